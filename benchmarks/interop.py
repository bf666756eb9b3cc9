"""The cost of an array that comes in from another library or goes out to one, without a copy.

    python -m benchmarks.interop                      NumPy on the host; keeps results/interop.json and interop.md
    python -m benchmarks.interop --device cuda:0      PyTorch and CuPy on a GPU; keeps interop_gpu.json and .md

A row is one call and the end of what it returned. The peers exchange the same array among themselves. Nothing is
asserted.
"""

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.support.table import Span, Table, load_average, machine, measure, now, save, show
from dagpu import adopt, f32, full, lend, lent_out, share_array, use_device

EXPORT_US, IMPORT_US, LARGE_US = 12.0, 8.0, 20.0
"""Targets in microseconds: an export, an import, and the import of 8 GiB."""

SHAPE = (1024, 256)
CALLS = 2_000
LARGE = 8 << 30


def times(name: str, call: Callable[[], object], count: int = CALLS) -> dict[str, Span]:
    """Return the seconds of one call in a loop of `count`."""
    begin = now()
    for _ in range(count):
        call()
    whole = now().since(begin)
    return {name: Span(whole.wall / count, whole.cpu / count)}


def lending(x: Any) -> None:
    with lend(x, f32):
        pass


def export_table(consumers: dict[str, Callable[[Any], object]], peers: dict[str, Callable[[], object]]) -> Table:
    """Return the time of an export to each consumer."""
    shared, tensor = full(SHAPE, 1.0).sync().share(), full(SHAPE, 1.0).sync()

    def lend_on(consume: Callable[[Any], object]) -> None:
        with lent_out(tensor.borrow()) as x:
            consume(x)

    rows: dict[str, Callable[[], object]] = {}
    for name, consume in consumers.items():
        rows[f"a shared tensor to {name}"] = partial(consume, shared)
        rows[f"with lent_out(...), to {name}"] = partial(lend_on, consume)
    samples = measure([partial(times, name, call) for name, call in (rows | peers).items()], 7)
    table = Table("Out: an array of dagpu for another library", "us")
    for name, spans in samples.items():
        table.add(name, spans, 1e6, target=EXPORT_US if name.startswith("a shared") else None)
    return table


def import_table(arrays: dict[str, Any], large: Any, peers: dict[str, Callable[[], object]]) -> Table:
    """Return the time of an import of each array."""
    rows: dict[str, Callable[[], object]] = {}
    for name, x in arrays.items():
        rows[f"share_array of {name}"] = partial(share_array, x, f32)
        rows[f"adopt of {name}"] = partial(adopt, x, f32)
        rows[f"with lend(...), {name}"] = partial(lending, x)
    if large is not None:
        rows["share_array of 8 GiB"] = partial(share_array, large)
    samples = measure([partial(times, name, call) for name, call in (rows | peers).items()], 7)
    table = Table("In: an array of another library for dagpu", "us")
    for name, spans in samples.items():
        ours = name in rows
        table.add(name, spans, 1e6, target=(LARGE_US if "GiB" in name else IMPORT_US) if ours else None)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interop", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host", help="host or cuda:0")
    device = parser.parse_args().device
    with use_device(device):
        if device.startswith("cuda"):
            torch, cupy = importlib.import_module("torch"), importlib.import_module("cupy")
            ones, theirs = torch.ones(SHAPE, device="cuda"), cupy.ones(SHAPE, np.float32)
            exports = export_table(
                {"PyTorch": torch.from_dlpack, "CuPy": cupy.from_dlpack},
                {
                    "CuPy to PyTorch": partial(torch.from_dlpack, theirs),
                    "PyTorch to CuPy": partial(cupy.from_dlpack, ones),
                },
            )
            large = torch.empty(LARGE, dtype=torch.uint8, device="cuda")
            imports = import_table({"PyTorch": ones, "CuPy": theirs}, large, {})
        else:
            array = np.ones(SHAPE, np.float32)
            exports = export_table({"NumPy": np.from_dlpack}, {"NumPy to NumPy": partial(np.from_dlpack, array)})
            imports = import_table({"NumPy": array}, None, {})
    about = machine(("numpy", "torch", "cupy-cuda13x", "pycuda"))
    about["device"] = device
    about["load average after"] = load_average()
    print(show([exports, imports], about))
    name = "interop_gpu" if device.startswith("cuda") else "interop"
    print("kept", *save(name, "Arrays of other libraries", [exports, imports], about))


if __name__ == "__main__":
    main()
