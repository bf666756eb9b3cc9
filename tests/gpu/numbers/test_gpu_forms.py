"""Forms of CUDA that the host and simulated GPUs cannot run: constants, waits for the grid, clusters, on a GPU."""

from typing import Any

import numpy as np
import pytest

from dagpu import (
    Device,
    In,
    KernelArgumentError,
    Out,
    RoundRobin,
    f32,
    from_host,
    kernel,
    ones,
    pipeline,
    zeros,
    zip_ops,
)


@kernel(
    cuda="""
    namespace image { static __constant__ float taps[4]; }
    __constant__ float bias;
    __global__ void weigh(Tile<float, 1> y, View<const float, 1> x) {
        for (auto i : y) y[i] = x[i] * (image::taps[0] + image::taps[1] + image::taps[2] + image::taps[3]) + bias;
    }
    """
)
def weigh(y: Out[f32], x: In[f32], taps: In[f32], bias: In[f32]) -> None: ...


def weighed(x: Any, taps: Any, bias: Any) -> Any:
    return zip_ops(*[weigh.new((8,), (4,))(x, each, bias).to_host() for each in taps])


def four(x: Any, a: Any, b: Any, c: Any, d: Any, bias: Any) -> Any:
    return weighed(x, (a, b, c, d), bias)


def shared(*values: float) -> Any:
    return from_host(np.array(values, f32)).sync().share()


def test_each_launch_has_its_own_constants(cuda: Device) -> None:
    """As an op on four lanes, and as a graph whose contents change; contents that are short are filled with zeros."""
    x, bias = shared(*range(8)), shared(0.5)
    contents = [shared(1, 2, 3, 4), shared(5), shared(6, 7), shared(-1, -1, -1, -1)]
    piped = pipeline(four)
    for turn in range(50):
        a, b, c, d = each = contents[turn % 4 :] + contents[: turn % 4]
        wanted = [float(one.to_host().sync().sum()) for one in each]
        plain = four(x, a, b, c, d, bias)
        for op in (plain, plain.schedule(RoundRobin(4)), piped(x, a, b, c, d, bias)):
            for found, total in zip(op.sync(), wanted, strict=True):
                assert found.tolist() == [total * n + 0.5 for n in range(8)]


@kernel(
    block=64,
    cuda="""
    #include <cooperative_groups.h>
    __global__ void ring(Tile<float, 1> y, View<const float, 1> x) {
        for (auto i : y) y[i] = x[i];
        cooperative_groups::this_grid().sync();
        const int n = y.extent(0), i = y.origin(0) + threadIdx.x;
        const float next = i < n ? y.data()[(i + 64) % n] : 0;
        cooperative_groups::this_grid().sync();
        if (i < n) y[i] = next;
    }
    """,
)
def ring(y: Out[f32], x: In[f32]) -> None:
    """y[i] = x[i + 64]: each block reads what its neighbour wrote."""


def test_blocks_that_wait_for_each_other(cuda: Device) -> None:
    """As an op and as a graph; a grid that does not fit is refused before the launch."""
    x = np.arange(64 * 100, dtype=f32)
    piped = pipeline(lambda t: ring.new((x.size,), (64,))(t).to_host())
    t = from_host(x).sync().share()
    for _again in range(20):
        assert np.array_equal(piped(t).sync(), np.roll(x, -64))
    with pytest.raises(KernelArgumentError, match=r"that wait for each other, but .* at once"):
        ring(zeros((64 << 14,)).partition((64,)), ones((64 << 14,))).sync()


@kernel(
    cluster=2,
    block=32,
    cuda="""
    #include <cooperative_groups.h>
    __global__ void ranks(Tile<float, 1> y) {
        const auto cluster = cooperative_groups::this_cluster();
        for (auto i : y) y[i] = 10 * cluster.num_blocks() + cluster.block_rank();
    }
    """,
)
def ranks(y: Out[f32]) -> None:
    """y[i] = 10 times the blocks of a cluster, and the number of the block in it."""


def test_clusters_of_two_blocks(cuda: Device) -> None:
    """As an op and as a graph."""
    piped = pipeline(lambda: ranks.new((8,), (2,))().to_host())
    for _again in range(5):
        assert piped().sync().tolist() == [20, 20, 21, 21] * 2


@kernel(
    abi="pointers",
    block=32,
    shared_memory=128,
    cuda="""__global__ void reverse(float* y, const float* x) {
        extern __shared__ float s[];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = s[31 - threadIdx.x];
    }""",
)
def reverse(y: Out[f32], x: In[f32]) -> None: ...


def test_dynamic_shared_memory_of_the_declaration(cuda: Device) -> None:
    """The launch has its bytes."""
    x = np.arange(32, dtype=f32)
    assert np.array_equal(reverse.new((32,), (32,))(from_host(x)).to_host().sync(), x[::-1])
