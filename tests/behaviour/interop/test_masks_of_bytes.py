"""Masks whose bytes are neither 0 nor 1, such as an array of bytes that is viewed as bool: a kernel of the user's reads
them as truth, wherever they come from. In its host body NumPy's functions do so, and its CUDA is in
tests/unit/backends/cuda/kernels/test_cuda_prelude.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import In, Out, Tile, adopt, bool_, empty, from_array, from_host, i64, kernel, share_array

BYTES = np.array([0, 1, 2, 128, 255, 0], np.uint8)


@kernel(
    cuda="""__global__ void counted(Tile<long long, 1> y, View<const bool, 1> x) {
    for (auto i : y) y[i] = 10 * x[i] + (x[i] == x[0]);
}"""
)
def counted(y: Out[i64], x: In[bool_]) -> None: ...


@counted.host
def _(y: Tile[i64], x: NDArray[bool_]) -> None:
    y[...] = 10 * x[y.at].astype(i64) + (x[y.at] == x[0])


def of_dlpack(mask: Any) -> Any:
    """Bytes that another library shares as bools."""

    class Lent:
        def __dlpack__(self, **options: Any) -> object:
            return mask.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    return from_array(Lent(), bool_)


WAYS: dict[str, Callable[[NDArray[bool_]], Any]] = {
    "copied": from_host,
    "adopted": lambda mask: adopt(mask, bool_),
    "shared": share_array,
    "of DLPack": of_dlpack,
}


@pytest.mark.host_only("arrays of NumPy as tensors")
@pytest.mark.parametrize("how", WAYS)
def test_a_kernel_reads_truth(how: str) -> None:
    """As a number it is 1, and two true elements are equal; the memory keeps its bytes."""
    mask = BYTES.copy().view(np.bool_)
    y: Any = empty((6,), i64).partition((3,))
    assert counted(y, WAYS[how](mask)).first().unpartition().to_host().sync().tolist() == [1, 10, 10, 10, 10, 1]
    assert mask.view(np.uint8).tolist() == BYTES.tolist()


def test_what_moves_a_mask_keeps_its_bytes() -> None:
    """A copy to the device and back changes nothing."""
    mask = BYTES.view(np.bool_)
    assert from_host(mask).to_host().sync().view(np.uint8).tolist() == BYTES.tolist()
