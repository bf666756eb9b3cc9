"""Kernels of plain pointers on a GPU: every element of what they are given is written, or the call is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import Device, In, KernelArgumentError, Out, Tile, f32, from_host, kernel, zeros

TEXT = """
extern "C" __global__ void added(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i] + 1;
}
"""
LOOPING = """
extern "C" __global__ void looped(float* y, const float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += x[i] + 1;
}
"""
N = 4096


@kernel(cuda=TEXT, abi="pointers")
def added(y: Out[f32], x: In[f32], n: int) -> None:
    """y += x + 1, an element by each thread"""


@kernel(cuda=LOOPING, abi="pointers", block=256)
def looped(y: Out[f32], x: In[f32], n: int) -> None:
    """y += x + 1, several elements by each thread"""


@added.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], n: int) -> None:
    y[...] += x + 1


@looped.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], n: int) -> None:
    y[...] += x + 1


@pytest.mark.parametrize(("block", "tile", "blocks"), [(1024, 1024, 0), (256, 256, 0), (256, N, 16), (1024, N, 4)])
def test_all_elements_are_written(cuda: Device, block: int, tile: int, blocks: int) -> None:
    """By a thread for each element of a tile, or by the grid that the call gives."""
    launched = added.block(block).grid(blocks) if blocks else added.block(block)
    op = launched(zeros((N,)).partition((tile,)), from_host(np.ones(N, f32)), N)
    np.testing.assert_array_equal(op.first().unpartition().to_host().sync(), np.full(N, 2, f32))


def test_threads_that_write_several_elements(cuda: Device) -> None:
    """The grid says that they do."""
    op = looped.grid(1)(zeros((N,)).partition((N,)), from_host(np.ones(N, f32)), N)
    np.testing.assert_array_equal(op.first().unpartition().to_host().sync(), np.full(N, 2, f32))


def test_fewer_threads_than_elements_are_refused(cuda: Device) -> None:
    """Without a block, and with one that has fewer threads than a tile has elements."""
    with pytest.raises(KernelArgumentError, match="its block is left open"):
        added(zeros((N,)).partition((1024,)), from_host(np.ones(N, f32)), N)
    with pytest.raises(KernelArgumentError, match="4096 elements, but a block has 256 threads"):
        added.block(256)(zeros((N,)).partition((N,)), from_host(np.ones(N, f32)), N).sync()
