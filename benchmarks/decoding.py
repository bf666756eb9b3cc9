"""Tokens a second of examples/decode at the shape of Llama 3.2 1B, compared with the roofline and PyTorch.

    python -m benchmarks.decoding               keeps results/decoding.json and decoding.md
    python -m benchmarks.decoding --rehearse    dagpu's part on the host, tiny: measures nothing, keeps nothing

Batch 1, bfloat16, random weights, 1,024 cached positions. A step reads every weight and all of the cache once. So its
minimum time is their bytes divided by the bandwidth, which is that of a copy from device to device in the same run
(bytes read plus bytes written). Some machines copy far slower than they read; therefore a second roofline has the
bandwidth of a kernel that only reads. The program waits for every step, like one that shows each token at once.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.decode_torch import Run, TorchDecoder
from benchmarks.peers.gpu_peers import installed
from benchmarks.support.gpu import Bench, Measure, medians, rounds
from benchmarks.support.rehearsal import start_or_rehearse
from benchmarks.support.table import Span, Table
from dagpu import (
    In,
    Out,
    SharedTensor,
    TensorMut,
    Tile,
    bf16,
    empty,
    f32,
    from_host,
    i32,
    kernel,
    memcpy,
    pipeline,
    randn,
    use_device,
)
from examples.decode.decoding import LLAMA_1B, PROMPT, decoded, pipeline_of, plain, reference
from examples.decode.model import Model, Step, model_of, random_model, step
from examples.decode.parts import Sizes

SHARE = 0.88
"""Target: the fraction of the roofline."""
COMPARED = 8
"""Number of tokens after the prompt that are compared."""

ROOF, COPY = "roofline: bytes by bandwidth of a copy", "copy"
READ_ROOF, READ = "roofline: bytes by bandwidth of reads", "reads"
EAGER, IN_GRAPH = "PyTorch eager", "PyTorch eager, in a CUDA graph"
COMPILED = "PyTorch torch.compile, in a CUDA graph"
PLAIN_NAME, LOOP_NAME = "dagpu: plain runs", "dagpu: pipeline, launched one by one"
PIPELINE_NAME = "dagpu: pipeline, as one CUDA graph"
ALONE_NAME = "dagpu: the same, each kernel starts after the one before"


BLOCKS = 2112  # 16 for each of the 132 multiprocessors of an H200
SUM = """
__global__ void sum_parts(Tile<float, 1> sums, View<const float, 1> x) {
    __shared__ float parts[512];
    const float4* quads = reinterpret_cast<const float4*>(x.data());
    const int count = x.extent(0) / 4, stride = gridDim.x * blockDim.x;
    float total = 0.0f;
    for (int from = blockIdx.x * blockDim.x + threadIdx.x; from < count; from += 8 * stride) {
        float4 found[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            found[i] = from + i * stride < count ? __ldcs(quads + from + i * stride) : float4{};
#pragma unroll
        for (int i = 0; i < 8; ++i) total += found[i].x + found[i].y + found[i].z + found[i].w;
    }
    parts[threadIdx.x] = total;
    for (int half = 256; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}
"""


@kernel(cuda=SUM, block=512)
def sum_parts(sums: Out[f32], x: In[f32]) -> None:
    """sums (blocks,) = the sum of each block's part of x. It reads, and writes next to nothing."""


@sum_parts.host(whole=True)
def _(sums: Tile[f32], x: NDArray[f32]) -> None:
    sums[:] = 0
    sums[0] = x.sum()


@final
class Steps:
    """Steps in a row on a full cache, at the last 16 positions in turn. The token's address and the position change."""

    def __init__(self, model: Model[bf16], following: Step[bf16]) -> None:
        s = model.sizes
        self._cache = randn((s.layers, s.kv_heads, 2, s.positions, s.head), bf16, seed=2).sync()
        self._token = from_host(np.array([PROMPT[0]], np.int32)).sync().share()
        self._positions = [s.positions - 1 - turn for turn in range(min(16, s.positions))]
        self._following = following
        self._turn = 0

    def __call__(self) -> None:
        position = self._positions[self._turn % len(self._positions)]
        self._turn += 1
        self._token = self._following(self._token, self._cache.borrow_mut(), position).sync().share()


def one_by_one(model: Model[bf16]) -> Step[bf16]:
    """Return the pipeline with its plan, but without a graph."""

    @pipeline(graph_from=None)
    def launched(token: SharedTensor[i32], cache: TensorMut[bf16], position: int) -> Any:
        return step(model, token, cache, position)

    return launched


def copy_of(nbytes: int) -> tuple[Run, int]:
    """Return a copy from device to device with its wait, and the bytes that it moves: each is read and written."""
    source, target = (empty((nbytes // 2,), bf16).sync() for _ in range(2))
    return lambda: memcpy(target.borrow_mut(), source.borrow()).sync(), 2 * source.nbytes


def reads_of(nbytes: int) -> tuple[Run, int]:
    """Return a sum over one array with its wait, and the bytes that it reads."""
    source = randn((nbytes // 4,), seed=3).sync().share()
    return lambda: sum_parts(empty((BLOCKS,)).partition((1,)), source).first().unpartition().sync(), source.nbytes


def bytes_of(model: Model[Any]) -> int:
    """Return the number of bytes that a step reads: the weights and the whole cache."""
    s = model.sizes
    cached = s.layers * s.kv_heads * 2 * s.positions * s.head * np.dtype(model.element).itemsize
    return sum(tensor.nbytes for tensor in model.weights) + cached


def only(way: Callable[[], Run]) -> list[Run]:
    """Prepare a way and run it once. If that fails, only this way is left out."""
    run = way()
    run()
    return [run]


def torch_contenders(bench: Bench, model: Model[bf16]) -> tuple[dict[str, Run], str]:
    """Return PyTorch's ways to run the same model, and a remark on how far its tokens equal dagpu's."""
    if bench.floor is None:
        return {}, ""
    made = installed(bench, "PyTorch", lambda: [TorchDecoder(model)])
    if not made:
        return {}, ""
    decoder = made[0]
    ours, theirs = decoded(model, pipeline_of(model), COMPARED).tokens, decoder.decoded(PROMPT, COMPARED)
    same = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) > 1), COMPARED)
    ways = {EAGER: decoder.eager, IN_GRAPH: decoder.in_graph, COMPILED: decoder.compiled_in_graph}
    found = {name: run for name, way in ways.items() for run in installed(bench, name, partial(only, way))}
    agreement = (
        f" PyTorch rounds what is between its kernels to bfloat16; its first {same} of {COMPARED} tokens are dagpu's."
    )
    return found, agreement


def check(bench: Bench, model: Model[bf16]) -> None:
    """Raise an error unless plain runs and the pipeline choose the same tokens. The tiny shape also checks NumPy's."""
    ours = decoded(model, pipeline_of(model), COMPARED).tokens
    assert ours == decoded(model, plain(model), COMPARED).tokens, "the pipeline and plain runs differ"
    if bench.floor is None:
        assert ours == reference(model, COMPARED), "dagpu and NumPy differ"


def measured(bench: Bench) -> tuple[dict[str, list[Span]], str]:
    """Return the times of a step in each way, with those of the rooflines, and sentences about them."""
    count = bench.many(20)
    with use_device(bench.where):
        model = random_model(LLAMA_1B if bench.floor is not None else Sizes(), bf16, 1)
        check(bench, model)
        runs, agreement = torch_contenders(bench, model)
        ways = {
            PLAIN_NAME: plain(model),
            LOOP_NAME: one_by_one(model),
            ALONE_NAME: pipeline_of(model_of(model.sizes, bf16, model.weights, early=False)),
            PIPELINE_NAME: pipeline_of(model),
        }
        runs |= {name: Steps(model, way) for name, way in ways.items()}
        size = 2**31 if bench.floor is not None else 2**20
        (copy, moved), (reads, read) = copy_of(size), reads_of(size)
        runs |= {COPY: copy, READ: reads}
        contenders: list[Measure] = [partial(rounds, name, run, count) for name, run in runs.items()]
        samples = bench.measure(contenders, 9)
    copied, only_read = moved / medians(samples.pop(COPY)).wall, read / medians(samples.pop(READ)).wall
    nbytes = bytes_of(model)
    roofs = {ROOF: [Span(nbytes / copied, math.nan)], READ_ROOF: [Span(nbytes / only_read, math.nan)]}
    about = (
        f"{nbytes / 1e9:.2f} GB a step, {copied / 1e12:.2f} TB/s in a copy, "
        f"{only_read / 1e12:.2f} TB/s in a kernel that only reads.{agreement}"
    )
    return roofs | samples, about


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start_or_rehearse("decoding", "Tokens a second of a 1B transformer, beside the roofline and PyTorch.")
    samples, about = measured(bench)
    bench.finish("Decoding, token by token", [tabled(bench, samples, about)])


def tabled(bench: Bench, samples: dict[str, list[Span]], about: str) -> Table:
    """Return a table of microseconds a token, with tokens a second as a remark."""
    table = Table("A decode step", "us/token", ratio_to="roofline", remarks="tokens/s")
    base = samples[ROOF]
    for name, spans in samples.items():
        reach = round(1e6 * medians(base).wall / SHARE, 1)
        target = reach if name == PIPELINE_NAME and bench.floor is not None else None
        table.add(name, spans, 1e6, target=target, base=base, remark=f"{1 / medians(spans).wall:,.0f}")
    table.note = f"{about} The target is {SHARE:.0%} of the roofline of the copy.{bench.missing()}"
    return table


if __name__ == "__main__":
    main()
