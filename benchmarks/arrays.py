"""Expressions and reductions beside NumPy on the host, and beside CuPy and PyTorch on a GPU.

    python -m benchmarks.arrays                    on the host: keeps results/arrays.json and arrays.md
    python -m benchmarks.arrays --device cuda:0    on a GPU: keeps results/arrays_gpu.json and arrays_gpu.md
    python -m benchmarks.arrays --dry              keeps nothing

Each contender computes one result from the same contents, from the call to its end. dagpu's calls are those of a
pipeline, on a tensor that is on the device already; the result stays there. Every result is compared with NumPy's
before it is timed. Peers are given the text that their users write. Below 2^20 the time on the host is that of a run.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import Measure, rounds
from benchmarks.support.table import Table, load_average, machine, measure, save, show
from dagpu import DeviceOp, Tensor, array, expr, f32, from_host, pipeline, use_device

Array: TypeAlias = NDArray[f32]

gelu = expr(f32)(lambda x: x / (1 + array.exp(-1.702 * x)))
five = expr(f32)(lambda x: array.maximum(x * 2 + 1, 0.25) / (x * x + 1))


class Case(NamedTuple):
    """One computation: of dagpu, and of a module with NumPy's names. `target` is the largest ratio to NumPy."""

    name: str
    shape: Callable[[int], tuple[int, ...]]
    ours: Callable[[Any], DeviceOp[Tensor[f32], Any]]
    theirs: Callable[[Any, Any], Any]
    target: float


def line(n: int) -> tuple[int, ...]:
    """Return the shape of a vector."""
    return (n,)


def square(n: int) -> tuple[int, ...]:
    """Return the shape of a matrix with rows of 1,024."""
    return (n // 1024, 1024)


CASES: Final = (
    Case("x / (1 + exp(-1.702 x))", line, gelu, lambda m, x: x / (1 + m.exp(-1.702 * x)), 1.2),
    Case("max(2 x + 1, 0.25) / (x x + 1)", line, five, lambda m, x: (x * 2 + 1).clip(0.25, None) / (x * x + 1), 1.2),
    Case("sum", line, array.sum, lambda m, x: x.sum(), 2.0),
    Case("amax", line, array.amax, lambda m, x: x.max(), 2.0),
    Case("sum of columns", square, lambda t: array.sum(t, 0), lambda m, x: x.sum(0), 2.0),
    Case("sum of rows", square, lambda t: array.sum(t, 1), lambda m, x: x.sum(1), 2.0),
)


def contenders(case: Case, x: Array, on_gpu: bool) -> list[Measure]:
    """Return a measurement of dagpu and of each peer that is installed, after a comparison with NumPy."""
    run = pipeline(case.ours)
    t = from_host(x).sync().share()
    count = 3 if x.size >= 1 << 24 else 20
    want = case.theirs(np, x.astype(np.float64))
    np.testing.assert_allclose(
        run(t).sync().to_host().sync(), want, rtol=2e-3, atol=1e-3 * max(1.0, np.abs(want).max())
    )
    found: list[Measure] = [partial(rounds, "dagpu", lambda: run(t).sync(), count)]
    if not on_gpu:
        return [*found, partial(rounds, "NumPy", lambda: case.theirs(np, x), count)]
    if find_spec("cupy") is not None:
        cupy: Any = import_module("cupy")
        here = cupy.asarray(x)

        def by_cupy() -> Any:
            result = case.theirs(cupy, here)
            cupy.cuda.get_current_stream().synchronize()
            return result

        found.append(partial(rounds, "CuPy", by_cupy, count))
    if find_spec("torch") is not None:
        torch: Any = import_module("torch")
        there = torch.from_numpy(x).to("cuda:0")

        def by_torch() -> Any:
            result = case.theirs(torch, there)
            torch.cuda.current_stream().synchronize()
            return result

        found.append(partial(rounds, "PyTorch", by_torch, count))
    return found


def compare(case: Case, size: int, on_gpu: bool) -> Table:
    """Return the times of one computation at one size."""
    x = np.random.default_rng(0).standard_normal(case.shape(size), dtype=np.float32)
    samples = measure(contenders(case, x, on_gpu), 7)
    peers = [name for name in samples if name != "dagpu"]
    base = samples[peers[0]] if peers else None
    table = Table(f"{case.name}, {size:,} floats", "us", ratio_to=peers[0] if peers else "")
    for name, spans in samples.items():
        target = None
        if name == "dagpu" and base is not None:
            middle = sorted(span.wall for span in base)[len(base) // 2]
            target = round(middle * 1e6 * (1.0 if on_gpu else case.target), 1)
        table.add(name, spans, 1e6, target=target, base=base)
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="host or cuda:0")
    parser.add_argument("--dry", action="store_true", help="keep nothing, and measure small sizes alone")
    arguments = parser.parse_args()
    on_gpu = arguments.device.startswith("cuda")
    sizes = [1 << 16] if arguments.dry else [1 << n for n in ((20, 24, 28) if on_gpu else (16, 20, 24))]
    about = machine(("numpy", "pycuda", "cupy-cuda13x", "torch"))
    with use_device(arguments.device):
        tables = [compare(case, size, on_gpu) for case in CASES for size in sizes]
    about["load average after"] = load_average()
    print(show(tables, about))
    if not arguments.dry:
        save("arrays_gpu" if on_gpu else "arrays", "Expressions and reductions", tables, about)


if __name__ == "__main__":
    main()
