"""Kernels whose module has variables, on a GPU: launches that share a counter give right sums, and what would give
wrong ones, or end the device, is refused."""

from typing import Any

import numpy as np
import pytest

from dagpu import (
    Device,
    DeviceOp,
    In,
    KernelArgumentError,
    Out,
    RoundRobin,
    empty,
    f32,
    from_host,
    kernel,
    pipeline,
    zip_ops,
)

N, BLOCKS, RUNS = 1 << 20, 60, 100

SUM_ONCE = """
__device__ unsigned int finished = 0;
extern "C" __global__ void sum_once(float* partial, const float* in, int n) {
    __shared__ float s[256];
    __shared__ bool last;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    s[threadIdx.x] = v;
    for (int o = 128; o > 0; o >>= 1) {
        __syncthreads();
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(&finished, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    v = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) v += ((volatile float*)partial)[i];
    s[threadIdx.x] = v;
    for (int o = 128; o > 0; o >>= 1) {
        __syncthreads();
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    }
    if (threadIdx.x == 0) {
        partial[0] = s[0];
        finished = 0;
    }
}
"""


@kernel(abi="pointers", block=256, cuda=SUM_ONCE)
def sum_once(partial: Out[f32], inp: In[f32], n: int) -> None:
    """partial[0] = the sum; the block that ends last adds up those of all blocks."""


@sum_once.host(whole=True)
def _(partial: Any, inp: Any, n: int) -> None:
    partial[...] = 0
    partial[0] = inp.sum(dtype=np.float64)


def one(x: Any) -> Any:
    return sum_once.grid(BLOCKS)(empty((BLOCKS,), f32).partition((BLOCKS,)), x, N).first().unpartition()


def four(a: Any, b: Any, c: Any, d: Any) -> DeviceOp[Any]:
    return zip_ops(one(a).to_host(), one(b).to_host(), one(c).to_host(), one(d).to_host())


def test_four_sums_that_share_a_counter(cuda: Device) -> None:
    """As an op, on lanes that take turns, and as a pipeline, which is a graph from its second run on."""
    handles = [from_host(np.full(N, k + 1, f32)).sync().share() for k in range(4)]
    wanted = [float(N * (k + 1)) for k in range(4)]
    piped = pipeline(four)
    for _ in range(RUNS):
        for op in (four(*handles), four(*handles).schedule(RoundRobin(4)), piped(*handles)):
            assert [float(found[0]) for found in op.sync()] == wanted


def test_runs_of_a_graph_and_of_an_op(cuda: Device) -> None:
    """A captured graph that launches the kernel, beside a launch of its own in one op."""
    x = from_host(np.ones(N, f32)).sync().share()
    graph = one(x).graph()
    for _ in range(RUNS // 10):
        found = zip_ops(graph.launch().map(lambda _: None), one(x).to_host()).sync()
        assert float(found[1][0]) == N


def test_a_constant_array_that_nothing_sets_is_refused(cuda: Device) -> None:
    """It would be zero."""
    with pytest.raises(KernelArgumentError, match=r"'taps'.*nothing sets"):

        @kernel(
            cuda="__constant__ float taps[4]; __global__ void filtered(float* y) { y[0] = taps[threadIdx.x]; }",
            abi="pointers",
            block=32,
        )
        def filtered(y: Out[f32]) -> None: ...


def test_a_constant_array_with_an_initialiser(cuda: Device) -> None:
    """It is what the text says."""

    @kernel(
        cuda="""__constant__ float taps[4] = {1, 2, 3, 4};
        __global__ void filtered(float* y) { if (threadIdx.x < 4) y[threadIdx.x] = taps[threadIdx.x]; }""",
        abi="pointers",
        block=32,
    )
    def filtered(y: Out[f32]) -> None: ...

    @filtered.host
    def _(y: Any) -> None:
        y[...] = (1, 2, 3, 4)

    op = filtered(empty((4,), f32).partition((4,))).first().unpartition()
    assert op.to_host().sync().tolist() == [1, 2, 3, 4]
