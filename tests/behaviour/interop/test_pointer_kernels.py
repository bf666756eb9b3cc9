"""Kernels that take plain pointers: what a pointer cannot say is refused on every device, before anything runs."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import In, KernelArgumentError, Out, Tile, dup, empty, f32, from_host, kernel, pipeline, value
from tests.simulated.each_device import where as where

pytestmark = pytest.mark.usefixtures("where")


@kernel(
    cuda="""__global__ void copied(float* y, const float* x) {
        for (int i = threadIdx.x; i < 4; i += blockDim.x) y[4 * blockIdx.x + i] = x[4 * blockIdx.x + i];
    }""",
    abi="pointers",
)
def copied(y: Out[f32], x: In[f32]) -> None:
    """y = x"""


@copied.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x.reshape(-1)[: y.size].reshape(y.shape) if y.ndim > 1 else x[y.at]


X = np.arange(16, dtype=f32)


@pytest.mark.parametrize("way", ["call", "op", "pipeline"])
def test_a_view_with_strides_is_refused(way: str) -> None:
    """Whether it is there when the kernel is called or comes of an op; a dense part is accepted."""
    x = from_host(X).sync()
    part = x.slice(slice(0, None, 2))
    out = empty((8,)).partition((4,))
    calls: dict[str, Any] = {
        "call": lambda: copied(out, part).sync(),
        "op": lambda: copied(out, value(part)).sync(),
        "pipeline": lambda: pipeline(lambda v: copied(empty((8,)).partition((4,)), v).first())(part).sync(),
    }
    with pytest.raises(KernelArgumentError, match=r"'x': a view of shape \(8,\) and strides \(8,\) .*dup\(...\)"):
        calls[way]()
    for dense, contents in ((dup(part), X[::2]), (value(x.slice(slice(8, 16))), X[8:])):
        found = copied(empty((8,)).partition((4,)), dense).first().unpartition().to_host().sync()
        assert_array_equal(found, contents)


def test_a_grid_of_four_axes_is_refused() -> None:
    """The kernel could not tell which tile a block has. With a grid of the user's it counts blocks as it likes."""
    out = empty((2, 1, 2, 4)).partition((1, 1, 1, 4))
    with pytest.raises(KernelArgumentError, match=r"a grid of \(2, 1, 2, 1\), but CUDA counts blocks along three axes"):
        copied(out, from_host(X)).sync()
    with pytest.raises(KernelArgumentError, match=r"copied.grid\(...\)\(...\)"):
        copied(value(0).then(lambda _: empty((2, 1, 2, 4)).partition((1, 1, 1, 4))), from_host(X)).sync()
    by_hand = copied.grid(4)(empty((2, 1, 2, 4)).partition((2, 1, 2, 4)), from_host(X))
    assert by_hand.first().unpartition().sync().shape == (2, 1, 2, 4)
