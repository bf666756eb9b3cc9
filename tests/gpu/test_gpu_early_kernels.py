"""Kernels that start before the one before them is over, on the GPU: they read nothing before it is there."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import DeviceOp, In, Out, SharedTensor, Tensor, Tile, empty, f32, from_host, kernel, pipeline
from tests.gpu.support.gpu_support import NAME

pytestmark = pytest.mark.skipif(not NAME.startswith("cuda"), reason="the host has no graphs of the driver's")

SIZE, TILE, CHAIN = 64 * 1024, 256, 40


# It lets the next kernel start at once, and writes late: the next one would read what was there before.
@kernel(
    cuda="""
__global__ void add_neighbour(Tile<float, 1> y, View<const float, 1> x, View<const float, 1> w) {
    const int i = y.origin(0) + threadIdx.x;
    const float weight = w[i];
    launch_dependents();
    wait_for_inputs();
    const float sum = x[(i + 4099) % x.extent(0)] + weight;
    const long long start = clock64();
    while (clock64() - start < 20000) {}
    y[i] = sum;
}
""",
    block=TILE,
    early_reads=("w",),
)
def add_neighbour(y: Out[f32], x: In[f32], w: In[f32]) -> None:
    """y[i] = x[i + 4099] + w[i], about 10 us later; x is a ring."""


@add_neighbour.host
def _(y: Tile[f32], x: Any, w: Any) -> None:
    y[:] = np.roll(x, -4099)[y.at] + w[y.at]


def test_a_chain_of_early_kernels_gives_what_numpy_gives() -> None:
    """Each element of each kernel depends on one of another block of the kernel before. Launched as a graph, and run
    again while the memory still holds what the run before wrote, nothing is read too early."""
    weights = np.arange(SIZE, dtype=f32) % 7
    w = from_host(weights).sync().share()

    @pipeline
    def chained(start: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
        x: DeviceOp[Any] = add_neighbour(empty((SIZE,)).partition((TILE,)), start, w).first().unpartition()
        for _ in range(CHAIN - 1):
            x = add_neighbour(empty((SIZE,)).partition((TILE,)), x, w).first().unpartition()
        return x

    for number in range(5):
        wanted = np.full(SIZE, f32(number))
        start = from_host(wanted).sync().share()
        for _ in range(CHAIN):
            wanted = np.roll(wanted, -4099) + weights
        assert_array_equal(chained(start).to_host().sync(), wanted)
