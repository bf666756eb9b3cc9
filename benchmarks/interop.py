"""The cost of an array that comes in from another library or goes out to one, without a copy.

    python -m benchmarks.interop                      NumPy on the host; keeps results/interop.json and interop.md
    python -m benchmarks.interop --device cuda:0      PyTorch and CuPy on a GPU; keeps interop_gpu.json and .md

A row is one call and the end of what it returned. The peers exchange the same array among themselves. A foreign op
stands beside its body, called by hand on arrays of the library and waited for. Nothing is asserted.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.support.table import Span, Table, load_average, machine, measure, now, save, show
from dagpu import In, Tensor, adopt, f32, foreign, full, lend, lent_out, pipeline, share_array, use_device
from dagpu.interop import new

EXPORT_US, IMPORT_US, LARGE_US = 12.0, 8.0, 20.0
"""Targets in microseconds: an export, an import, and the import of 8 GiB."""

OVER_US, OVER_GRAPH = 5.0, 1.05
"""Targets: microseconds of a foreign op over the library's own call, and ten in a graph over the library's graph."""

SHAPE = (1024, 256)
SMALL = (256,)
TEN = 10
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


def scaled_by(capture: str, library: str) -> Any:
    """Return the op x * by with a body for one library, "host" for NumPy."""

    def scaled(x: In[f32], by: float) -> Tensor[f32]:
        return new(x)

    op: Any = foreign(capture=capture)(scaled)  # type: ignore[call-overload]  # reason: `capture` is a text here

    module: Any = importlib.import_module("numpy" if library == "host" else library)
    multiply = module.mul if library == "torch" else module.multiply

    def body(x: Any, by: float, out: Any) -> None:
        multiply(x, by if library == "torch" else np.float32(by), out=out)

    op.host(body) if library == "host" else op.on(library)(body)
    return op


def chain_of(op: Any, count: int, graph_from: int | None) -> Callable[[], object]:
    """Return a run of a pipeline of `count` such ops, one after the other."""

    def chain(x: Any) -> Any:
        for _ in range(count):
            x = op(x, 1.0)
        return x

    step, x = pipeline(graph_from=graph_from)(chain), full(SMALL, 1.0).sync().share()
    return lambda: step(x.clone()).sync()


def captured_chain(op: Any, count: int) -> Callable[[], object]:
    """Return the launch of a captured graph of `count` such ops, and the wait for it: its operands stay where they are,
    as those of a library's own graph."""
    x: Any = full(SMALL, 1.0).sync().share()
    for _ in range(count):
        x = op(x, 1.0)
    graph = x.graph()
    return lambda: graph.launch().sync()


def library_call(library: str, count: int) -> Callable[[], object]:
    """Return the same work by hand: new results by the library, and a wait for the last."""
    if library == "host":
        x = np.ones(SMALL, np.float32)

        def on_host() -> None:
            y = x
            for _ in range(count):
                y = np.multiply(y, np.float32(1))

        return on_host
    module = importlib.import_module(library)
    made = module.ones(SMALL, device="cuda") if library == "torch" else module.ones(SMALL, np.float32)
    stream = module.cuda.Stream() if library == "torch" else module.cuda.Stream(non_blocking=True)

    def on_gpu() -> None:
        y = made
        with module.cuda.stream(stream) if library == "torch" else stream:
            for _ in range(count):
                y = y * 1.0
        stream.synchronize()

    return on_gpu


def torch_graph(count: int) -> Callable[[], object]:
    """Return the launch of PyTorch's own graph of the same work, and the wait for it."""
    torch = importlib.import_module("torch")
    x, stream = torch.ones(SMALL, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            x = x * 1.0

    def launch() -> None:
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    return launch


def foreign_table(libraries: tuple[str, ...]) -> Table:
    """Return the time of foreign ops beside the library's own calls."""
    rows: dict[str, tuple[Callable[[], object], str | None]] = {}
    for library in libraries:
        for count in (1, TEN):
            own, named = f"{count} by {library} itself", f"{count} foreign, {library}"
            rows[own] = library_call(library, count), None
            rows[f"{named}, through streams"] = chain_of(scaled_by("never", library), count, None), own
            if library != "host":
                rows[f"{named}, in a graph"] = chain_of(scaled_by("required", library), count, 2), None
                rows[f"{named}, graph.launch()"] = captured_chain(scaled_by("required", library), count), None
        if library == "torch":
            for count in (1, TEN):
                rows[f"{count} in a graph of torch itself"] = torch_graph(count), None
    for call, _ in rows.values():
        for _ in range(50):
            call()
    samples = measure([partial(times, name, call) for name, (call, _) in rows.items()], 7)
    table = Table("Foreign ops: x * 1.0 of 256 elements, and the wait for it", "us", ratio_to="its own")
    for name, spans in samples.items():
        base, target = rows[name][1], None
        if base is not None and name.startswith("1 "):
            target = statistics.median(span.wall for span in samples[base]) * 1e6 + OVER_US
        if name.endswith(("in a graph", "graph.launch()")) and "torch" in name:
            base = f"{name.split()[0]} in a graph of torch itself"
            target = statistics.median(span.wall for span in samples[base]) * 1e6 * OVER_GRAPH
        table.add(name, spans, 1e6, target=target, base=None if base is None else samples[base])
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
            del large
            ops = foreign_table(("torch", "cupy"))
        else:
            array = np.ones(SHAPE, np.float32)
            exports = export_table({"NumPy": np.from_dlpack}, {"NumPy to NumPy": partial(np.from_dlpack, array)})
            imports = import_table({"NumPy": array}, None, {})
            ops = foreign_table(("host",))
    about = machine(("numpy", "torch", "cupy-cuda13x", "pycuda"), device)
    about["device"] = device
    about["load average after"] = load_average()
    print(show([exports, imports, ops], about))
    name = "interop_gpu" if device.startswith("cuda") else "interop"
    print("kept", *save(name, "Arrays of other libraries", [exports, imports, ops], about))


if __name__ == "__main__":
    main()
