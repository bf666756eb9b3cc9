"""Kernels that take plain pointers: what a pointer cannot say is refused on every device, before anything runs."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import In, KernelArgumentError, Out, Tile, dup, empty, f32, from_host, kernel, pipeline, value, zeros
from tests.simulated.each_device import where as where

pytestmark = pytest.mark.usefixtures("where")


@kernel(
    cuda="""__global__ void copied(float* y, const float* x) {
        for (int i = threadIdx.x; i < 4; i += blockDim.x) y[4 * blockIdx.x + i] = x[4 * blockIdx.x + i];
    }""",
    abi="pointers",
    block=4,
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


@kernel(cuda="__global__ void one_more(float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] += 1; }", abi="pointers")
def one_more(y: Out[f32]) -> None:
    """y += 1, an element by each thread"""


@one_more.host
def _(y: Tile[f32]) -> None:
    y += 1


def test_a_kernel_that_counts_its_threads_says_how_many_a_block_has() -> None:
    """Where dagpu chose the block, it would have fewer threads than a tile has elements, which stay unwritten."""
    with pytest.raises(
        KernelArgumentError, match=r"its block is left open.*@kernel\(block=256, \.\.\.\) or one_more.block"
    ):
        one_more(zeros((4096,)).partition((1024,)))
    with pytest.raises(KernelArgumentError, match="its block is left open"):
        one_more.grid(4)(zeros((4096,)).partition((1024,)))
    found = one_more.block(1024)(zeros((4096,)).partition((1024,))).first().unpartition().to_host().sync()
    assert_array_equal(found, np.ones(4096, f32))


@pytest.mark.parametrize("shape, tile, grid, blocks", [((4096,), (4096,), 16, 1), ((64, 64), (16, 32), 16, "4, 2")])  # noqa: PT006  # reason: a line less
@pytest.mark.parametrize("way", ["call", "op", "pipeline"])
def test_a_tile_has_no_more_elements_than_a_block_threads(
    way: str, shape: tuple[int, ...], tile: tuple[int, ...], grid: int, blocks: object
) -> None:
    """Unless the user gives the grid, which says that the threads are enough, or write several elements each."""
    by_256 = one_more.block(16, 16)
    calls: dict[str, Any] = {
        "call": lambda: by_256(zeros(shape).sync().partition(tile)),
        "op": lambda: by_256(zeros(shape).partition(tile)).sync(),
        "pipeline": lambda: pipeline(lambda v: by_256(v.partition(tile)).first())(zeros(shape).sync()).sync(),
    }
    with pytest.raises(KernelArgumentError) as caught:
        calls[way]()
    said = str(caught.value)
    assert f"a tile of {tile} has" in said
    assert "a block has 256 threads" in said
    assert f"one_more.grid({grid}) if each thread writes one element, one_more.grid({blocks}) if" in said
    found = by_256.grid(grid)(zeros(shape).partition(shape)).first().unpartition().to_host().sync()
    assert_array_equal(found, np.ones(shape, f32))


def test_a_tile_that_is_cut_by_its_tensor_is_as_large_as_that() -> None:
    """A tile of more elements than threads is fine where the tensor has no more."""
    op = one_more.block(32)(zeros((30,)).partition((64,), partial=True))
    assert_array_equal(op.first().unpartition().to_host().sync(), np.ones(30, f32))
