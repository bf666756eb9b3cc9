"""Tokens a second of examples/decode at the shape of Llama 3.2 1B, compared with the roofline and PyTorch.

    python -m benchmarks.decoding               keeps results/decoding.json and decoding.md
    python -m benchmarks.decoding --rehearse    dagpu's part on the host, tiny: measures nothing, keeps nothing

Batch 1, bfloat16, random weights, 1,024 cached positions. A step reads every weight and all of the cache once. So its
minimum time is their bytes divided by the bandwidth, which is that of a copy from device to device in the same run
(bytes read plus bytes written). The program waits for every step, like one that shows each token at once.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from benchmarks.peers.decode_torch import Run, TorchDecoder
from benchmarks.peers.gpu_peers import installed
from benchmarks.support.gpu import Bench, Measure, medians, rounds
from benchmarks.support.rehearsal import start_or_rehearse
from benchmarks.support.table import Span, Table
from dagpu import SharedTensor, TensorMut, bf16, empty, from_host, i32, memcpy, pipeline, randn, use_device
from examples.decode.decoding import LLAMA_1B, PROMPT, decoded, pipeline_of, plain, reference
from examples.decode.model import Model, Step, random_model, step
from examples.decode.parts import Sizes

SHARE = 0.75
"""Target: the fraction of the roofline."""
COMPARED = 8
"""Number of tokens after the prompt that are compared."""

ROOF, COPY = "roofline: bytes by bandwidth", "copy"
EAGER, IN_GRAPH = "PyTorch eager", "PyTorch eager, in a CUDA graph"
COMPILED = "PyTorch torch.compile, in a CUDA graph"
PLAIN_NAME, LOOP_NAME = "dagpu: plain runs", "dagpu: pipeline, launched one by one"
PIPELINE_NAME = "dagpu: pipeline, as one CUDA graph"
ALONE_NAME = "dagpu: the same, no kernel asks for the next one's weights"


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


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start_or_rehearse("decoding", "Tokens a second of a 1B transformer, beside the roofline and PyTorch.")
    count = bench.many(20)
    with use_device(bench.where):
        model = random_model(LLAMA_1B if bench.floor is not None else Sizes(), bf16, 1)
        check(bench, model)
        runs, agreement = torch_contenders(bench, model)
        ways = {
            PLAIN_NAME: plain(model),
            LOOP_NAME: one_by_one(model),
            ALONE_NAME: pipeline_of(replace(model, prefetching=False)),
            PIPELINE_NAME: pipeline_of(model),
        }
        runs |= {name: Steps(model, way) for name, way in ways.items()}
        copy, moved = copy_of(2**31 if bench.floor is not None else 2**20)
        contenders: list[Measure] = [partial(rounds, name, run, count) for name, run in (runs | {COPY: copy}).items()]
        samples = bench.measure(contenders, 9)
    bandwidth = moved / medians(samples.pop(COPY)).wall
    roof = bytes_of(model) / bandwidth
    bench.finish("Decoding, token by token", [tabled(bench, model, samples, roof, bandwidth, agreement)])


def tabled(
    bench: Bench, model: Model[Any], samples: dict[str, list[Span]], roof: float, bandwidth: float, agreement: str
) -> Table:
    """Return a table of microseconds a token, with tokens a second as a remark."""
    table = Table("A decode step", "us/token", ratio_to="roofline", remarks="tokens/s")
    base = [Span(roof, math.nan)]
    for name, spans in {ROOF: base, **samples}.items():
        target = round(1e6 * roof / SHARE, 1) if name == PIPELINE_NAME and bench.floor is not None else None
        table.add(name, spans, 1e6, target=target, base=base, remark=f"{1 / medians(spans).wall:,.0f}")
    table.note = (
        f"{bytes_of(model) / 1e9:.2f} GB a step, and {bandwidth / 1e12:.2f} TB/s in a copy. The target is {SHARE:.0%} "
        f"of the roofline.{agreement}{bench.missing()}"
    )
    return table


if __name__ == "__main__":
    main()
