"""Expressions, reductions and the other functions of arrays beside NumPy on the host, and CuPy and PyTorch on a GPU.

    python -m benchmarks.arrays                    on the host: keeps results/arrays.json and arrays.md
    python -m benchmarks.arrays --device cuda:0    on a GPU: keeps results/arrays_gpu.json and arrays_gpu.md
    python -m benchmarks.arrays --dry              keeps nothing, and measures small sizes alone
    python -m benchmarks.arrays --only softmax     measures the computations whose names have it; keeps nothing
    python -m benchmarks.arrays --only sum,amax --keep     keeps these in the place of those that were kept before
    python -m benchmarks.arrays --keep --seconds 60        begins no table after a minute, and keeps what it has
    python -m benchmarks.arrays --quick            measures less often, and keeps nothing

Each contender computes one result from the same contents, from the call to its end. dagpu's calls are those of a
pipeline, on tensors that are on the device already; the result stays there. Results of up to 2^22 elements, and those
of products, are compared with NumPy's before they are timed; the contents of larger inputs repeat. Peers are given the
text that their users write. Below 2^20 the time on the host is that of a run. Tables are printed and kept one by one.

On a GPU, a second table has the time on the device, without that of a call: a CUDA graph of several such computations,
one after the other, is launched and waited for, and so is a longer one. What the longer one takes more is divided by
the number of computations that it has more. A contender whose work cannot be captured is not in it.

On a GPU, the share of the copy's bandwidth is that of the fastest copy of a tensor of this size, among those of the
contenders: the bytes that the computation must read and write, in a second, beside the bytes that the copy does.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import Measure, medians, rounds
from benchmarks.support.table import Span, Table, kept_tables, load_average, machine, measure, save, show
from dagpu import (
    DeviceOp,
    SingleStream,
    array,
    bf16,
    c64,
    dup,
    expr,
    f32,
    from_host,
    pipeline,
    use_device,
    zeros,
    zip_ops,
)

Array: TypeAlias = NDArray[Any]

gelu = expr(f32)(lambda x: x / (1 + array.exp(-1.702 * x)))
five = expr(f32)(lambda x: array.maximum(x * 2 + 1, 0.25) / (x * x + 1))
attend = expr(f32, f32)(lambda x, y: x * 0.125 + y).softmax(1)

ON_HOST: Final = (1 << 16, 1 << 20, 1 << 24)
ON_GPU: Final = (1 << 20, 1 << 24, 1 << 28)
SORTED: Final = (1 << 16, 1 << 20, 1 << 24)
CHECKED: Final = 1 << 22
"""The most elements of an input whose result is compared: NumPy takes seconds for more in twice the precision."""
ROW: Final = 1024
SIGNAL: Final = 4096
BINS: Final = 1000


class Case(NamedTuple):
    """One computation: of dagpu, and of a module with NumPy's names.

    `shape` gives the shape of each of the `inputs` for a size, `target` is the largest ratio to NumPy, and `moved` the
    number of bytes that are read and written for each byte of an input; 0 if memory is not what bounds it. `on_host`
    are the sizes there. With `places` a further input has random indices below it.
    """

    name: str
    shape: Callable[[int], tuple[int, ...]]
    ours: Callable[..., DeviceOp[Any, Any]]
    theirs: Callable[..., Any]
    target: float
    moved: float = 0
    inputs: int = 1
    dtype: Any = f32
    on_host: tuple[int, ...] = ON_HOST
    on_gpu: tuple[int, ...] = ON_GPU
    places: int = 0


def line(n: int) -> tuple[int, ...]:
    """Return the shape of a vector."""
    return (n,)


def square(n: int) -> tuple[int, ...]:
    """Return the shape of a matrix with rows of `ROW`."""
    return (n // ROW, ROW)


def signals(n: int) -> tuple[int, ...]:
    """Return the shape of a matrix with rows of `SIGNAL`."""
    return (n // SIGNAL, SIGNAL)


def matrix(n: int) -> tuple[int, ...]:
    """Return the shape of a matrix of n by n."""
    return (n, n)


def softmax(m: Any, x: Any) -> Any:
    """Return the softmax of rows, as users of a module write it."""
    if m.__name__ == "torch":
        return m.softmax(x, 1)
    powers = m.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def sort(m: Any, x: Any) -> Any:
    """Return the sorted elements."""
    return m.sort(x).values if m.__name__ == "torch" else m.sort(x)


def argsort(m: Any, x: Any) -> Any:
    """Return the places that sort the elements, the first of equal ones first."""
    return m.argsort(x, stable=True) if m.__name__ == "torch" else m.argsort(x, kind="stable")


def largest(m: Any, x: Any) -> Any:
    """Return the 16 largest elements, the largest first."""
    return x.topk(16).values if m.__name__ == "torch" else m.sort(x)[-16:][::-1]


def counted(m: Any, x: Any, places: Any) -> Any:
    """Return the sums of the elements of each of `BINS` places."""
    if m.__name__ == "torch":
        return m.zeros(BINS, device=x.device).index_add_(0, places, x)
    sums = m.zeros(BINS, x.dtype)
    m.add.at(sums, places, x)
    return sums


CASES: Final = (
    Case("x / (1 + exp(-1.702 x))", line, gelu, lambda m, x: x / (1 + m.exp(-1.702 * x)), 1.2, 2),
    Case("max(2 x + 1, 0.25) / (x x + 1)", line, five, lambda m, x: (x * 2 + 1).clip(0.25, None) / (x * x + 1), 1.2, 2),
    Case("sum", line, array.sum, lambda m, x: x.sum(), 2.0, 1),
    Case("amax", line, array.amax, lambda m, x: x.max(), 2.0, 1),
    Case("sum of columns", square, lambda t: array.sum(t, 0), lambda m, x: x.sum(0), 2.0, 1),
    Case("sum of rows", square, lambda t: array.sum(t, 1), lambda m, x: x.sum(1), 2.0, 1),
    Case("softmax of rows", square, array.softmax, softmax, 2.0, 2),
    Case("softmax of rows of x / 8 + y", square, attend, lambda m, x, y: softmax(m, x * 0.125 + y), 2.0, 3, 2),
    Case("sort", line, array.sort, sort, 2.0, on_gpu=SORTED),
    Case("sort of rows", square, array.sort, sort, 2.0, on_gpu=SORTED),
    Case("argsort", line, array.argsort, argsort, 2.0, on_gpu=SORTED),
    Case("topk of 16", line, lambda t: array.topk(t, 16), largest, 2.0, on_gpu=SORTED),
    Case("fft of rows", signals, array.fft, lambda m, x: m.fft.fft(x), 2.0, 2, dtype=c64, on_gpu=(1 << 20, 1 << 24)),
    Case("fft of columns", square, lambda t: array.fft(t, axis=0), lambda m, x: m.fft.fft(x, None, 0), 2.0, 2,
         dtype=c64, on_gpu=(1 << 20, 1 << 24)),
    Case("rfft of rows", signals, array.rfft, lambda m, x: m.fft.rfft(x), 2.0, 2, on_gpu=(1 << 20, 1 << 24)),
    Case("matmul of bf16", matrix, array.matmul, lambda m, x, y: x @ y, 2.0, inputs=2, dtype=bf16,
         on_host=(256,), on_gpu=(256, 4096, 8192)),
    Case("scatter_add to 1,000", line, lambda x, places: array.scatter_add(zeros((BINS,)), places, x), counted, 6.0,
         places=BINS, on_host=(1 << 16, 1 << 20), on_gpu=(1 << 20,)),
)  # fmt: skip


def contents(case: Case, size: int) -> list[Array]:
    """Return the inputs of a computation. Beyond `CHECKED` elements they repeat, which takes less time to make."""
    generator, shape = np.random.default_rng(0), case.shape(size)

    def normal() -> Array:
        return np.resize(generator.standard_normal(min(CHECKED, math.prod(shape)), dtype=np.float32), shape)

    parts = [normal() for _ in range(case.inputs)]
    if case.places:
        return [*parts, generator.integers(0, case.places, shape)]
    if np.dtype(case.dtype).kind == "c":
        return [part + np.complex64(1j) * normal() for part in parts]
    return [part.astype(case.dtype, copy=False) for part in parts]


def check(case: Case, given: list[Array], found: Array) -> None:
    """Compare a result with NumPy's, in twice the precision. Long products of matrices are compared in a few rows."""
    wide = [
        x if x.dtype.kind == "i" else x.astype(np.result_type(x.dtype, np.float64) if x.dtype != bf16 else np.float64)
        for x in given
    ]
    if case.dtype is bf16:
        wide[0], found = wide[0][:8], found[:8].astype(np.float64)
    want = case.theirs(np, *wide)
    rough = 16 if case.dtype is bf16 else 1
    np.testing.assert_allclose(found, want, rtol=2e-3 * rough, atol=1e-3 * rough * max(1.0, np.abs(want).max()))


def contenders(case: Case, given: list[Array], on_gpu: bool) -> list[Measure]:
    """Return a measurement of dagpu and of each peer that is installed, after a comparison with NumPy."""
    run = pipeline(case.ours)
    tensors = [from_host(x).sync().share() for x in given]
    count = 3 if given[0].size >= 1 << 24 else 20
    if given[0].size <= CHECKED or case.shape is matrix:
        made: Any = run(*tensors).sync()
        check(case, given, (made[0] if isinstance(made, tuple) else made).to_host().sync())
    found: list[Measure] = [partial(rounds, "dagpu", lambda: run(*tensors).sync(), count)]
    if not on_gpu:
        return [*found, partial(rounds, "NumPy", lambda: case.theirs(np, *given), count)]
    for name, (module, arrays, finish) in peers(given).items():

        def by_peer(module: Any = module, arrays: Any = arrays, finish: Any = finish) -> Any:
            result = case.theirs(module, *arrays)
            finish()
            return result

        found.append(partial(rounds, name, by_peer, count))
    return found


def on_the_device(case: Case, given: list[Array]) -> list[Measure]:
    """Return a measurement of the time on the device, of dagpu and of each peer whose work can be captured."""
    tensors = [from_host(x).sync().share() for x in given]
    few, many = (4, 20) if given[0].nbytes < 1 << 24 else (2, 8) if given[0].nbytes < 1 << 28 else (1, 4)
    counts = few, many
    launches = [captured(case, tensors, n) for n in counts]
    found: list[Measure] = [partial(each_of_many, "dagpu", launches, many - few)]
    for name, (module, arrays, _) in peers(given).items():
        capture = by_torch if module.__name__ == "torch" else by_cupy
        try:
            launches = [capture(module, partial(case.theirs, module, *arrays), n) for n in counts]
        except Exception as error:  # whatever the peer raises for work that waits for the device
            print(f"{case.name}: no graph of {name}'s work ({type(error).__name__})")
            continue
        found.append(partial(each_of_many, name, launches, many - few))
    return found


def captured(case: Case, tensors: list[Any], count: int) -> Callable[[], object]:
    """Return the launch of a graph of this many computations of dagpu, with its wait."""
    graph = zip_ops(*[case.ours(*tensors) for _ in range(count)]).schedule(SingleStream()).graph()
    return lambda: graph.launch().sync()


def by_torch(torch: Any, compute: Callable[[], object], count: int) -> Callable[[], object]:
    """Return the launch of a graph of this many computations of PyTorch, with its wait."""
    compute()  # once before the capture: libraries initialise themselves
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            compute()

    def launch() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return launch


def by_cupy(cupy: Any, compute: Callable[[], object], count: int) -> Callable[[], object]:
    """Return the launch of a graph of this many computations of CuPy, with its wait."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept = [compute()]  # its pool of memory has what the capture takes
        stream.synchronize()
        kept.clear()
        stream.begin_capture()
        try:
            for _ in range(count):
                kept[:] = [compute()]
        finally:
            graph = stream.end_capture()

    def launch() -> list[object]:
        graph.launch(stream)
        stream.synchronize()
        return kept

    return launch


def each_of_many(name: str, launches: list[Callable[[], object]], more: int) -> dict[str, Span]:
    """Return the time of each computation: what the second launch takes more than the first one, divided by the number
    of computations that it has more."""
    spans: list[Span] = []
    for _ in range(10):
        few, many = [rounds(name, launch, 1, 1)[name] for launch in launches]
        spans.append(Span((many.wall - few.wall) / more, math.nan))
    return {name: medians(spans)}


def peers(given: list[Array]) -> dict[str, tuple[Any, list[Any], Callable[[], object]]]:
    """Return the peers that are installed and have the element type: the module, the inputs, and the wait for its
    work."""
    found: dict[str, tuple[Any, list[Any], Callable[[], object]]] = {}
    half = given[0].dtype == bf16
    if find_spec("cupy") is not None and not half:
        cupy: Any = import_module("cupy")
        found["CuPy"] = cupy, [cupy.asarray(x) for x in given], lambda: cupy.cuda.get_current_stream().synchronize()
    if find_spec("torch") is not None:
        torch: Any = import_module("torch")
        tensors = [torch.from_numpy(x.astype(np.float32) if half else x).to("cuda:0") for x in given]
        if half:
            tensors = [x.to(torch.bfloat16) for x in tensors]
        found["PyTorch"] = torch, tensors, lambda: torch.cuda.current_stream().synchronize()
    return found


def copy(m: Any, x: Any) -> Any:
    """Return a copy."""
    return x.clone() if m.__name__ == "torch" else x.copy()


COPIES: Final = Case("copy", line, dup, copy, 1.0, 2)
"""Measured for the sizes in bytes of the others."""


def median(spans: list[Span]) -> float:
    """Return the middle of times on the clock."""
    return statistics.median([span.wall for span in spans])


def compare(
    case: Case, size: int, on_gpu: bool, copies: Mapping[tuple[int, bool], float], repeats: int, device: bool = False
) -> Table:
    """Return the times of one computation at one size; with `device` those on the device alone. `copies` has the
    seconds of a copy, by the bytes copied and by `device`."""
    given = contents(case, size)
    samples = measure(on_the_device(case, given) if device else contenders(case, given, on_gpu), repeats)
    others = [name for name in samples if name != "dagpu"]
    base = samples[others[0]] if others else None
    what = f"{size:,} by {size:,}" if case.shape is matrix else f"{size:,} elements"
    copied = copies.get((given[0].nbytes, device)) if case.moved else None
    heading = "" if copied is None else "of the copy's bandwidth"
    title = f"{case.name}, {what}{', on the device' if device else ''}"
    table = Table(title, "us", ratio_to=others[0] if others else "", remarks=heading)
    for name, spans in samples.items():
        target = None
        if name == "dagpu" and base is not None:
            fastest = min(median(samples[other]) for other in others)
            target = round(fastest * 1e6 * (1.0 if on_gpu else case.target), 1)
        share = "" if copied is None else f"{case.moved / 2 * copied / median(spans):.0%}"
        table.add(name, spans, 1e6, target=target, base=base, remark=share)
    return table


def merged(kept: list[Table], made: Table) -> list[Table]:
    """Return the tables that are kept, with one of this run in the place of that with its title, or at the end."""
    if all(table.title != made.title for table in kept):
        return [*kept, made]
    return [made if table.title == made.title else table for table in kept]


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="host or cuda:0")
    parser.add_argument("--dry", action="store_true", help="keep nothing, and measure small sizes alone")
    parser.add_argument("--only", default="", help="measure the computations whose names have one of these texts")
    parser.add_argument("--keep", action="store_true", help="keep what --only measures, beside what is kept of others")
    parser.add_argument("--quick", action="store_true", help="measure less often, and keep nothing")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no table after this time")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    on_gpu = arguments.device.startswith("cuda")
    about = machine(("numpy", "pycuda", "cupy-cuda13x", "torch"), arguments.device)
    name = "arrays_gpu" if on_gpu else "arrays"
    tables = kept_tables(name) if arguments.keep else []
    keeps = not (arguments.dry or arguments.quick) and (arguments.keep or not arguments.only)
    with use_device(arguments.device):
        for table in measured(arguments.only.split(","), on_gpu, arguments.dry, 3 if arguments.quick else 7, until):
            print(table.text(), end="\n\n", flush=True)
            tables = merged(tables, table)
            if keeps:
                save(name, "Functions of arrays", tables, about | {"load average after": load_average()})
    print(show([], about | {"load average after": load_average()}))


def measured(wanted: list[str], on_gpu: bool, dry: bool, repeats: int, until: float) -> Iterator[Table]:
    """Yield the tables of the computations whose names have one of these texts, in the order of the texts. None is
    begun after the time `until`."""
    cases = [case for n in range(len(wanted)) for case in CASES if first_text(case, wanted) == n]
    copies: dict[tuple[int, bool], float] = {}
    if on_gpu:
        compare(COPIES, ON_GPU[0], on_gpu, {}, 1)  # dropped: the first table of a process had longer times than others
    for case in cases:
        sizes = case.on_gpu if on_gpu else case.on_host
        for size in sizes[:1] if dry else sizes:
            for device in (False, True) if on_gpu else (False,):
                copied = math.prod(case.shape(size)) * np.dtype(case.dtype).itemsize
                if on_gpu and case.moved and (copied, device) not in copies and time.monotonic() < until:
                    table = compare(COPIES, copied // 4, on_gpu, {}, repeats, device)
                    copies[copied, device] = min(row.median for row in table.rows) / 1e6
                    yield table
                if time.monotonic() >= until:
                    return
                yield compare(case, size, on_gpu, copies, repeats, device)


def first_text(case: Case, wanted: list[str]) -> int | None:
    """Return the number of the first text that the name of a computation has; None if it has none of them."""
    return next((n for n, text in enumerate(wanted) if text in case.name), None)


if __name__ == "__main__":
    main()
