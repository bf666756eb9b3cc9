"""The cost of a launch of Triton's kernel: by dagpu, in streams and in a graph, and by Triton's own launcher.

    python -m benchmarks.triton_launches --device cuda:0      keeps results/triton_launches_gpu.json and .md

A chain of 1,000 launches on 4,096 elements, from the call to the end; a row is the time of one. On the host dagpu alone
runs, with the NumPy body. Triton is needed, for the peers PyTorch too. Nothing is asserted.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.table import Span, Table, load_average, machine, measure, now, save, show
from dagpu import DeviceOp, In, Out, Tensor, Tile, f32, full, pipeline, triton_kernel, use_device, zeros

TARGET = 0.35
"""The goal for a launch in a stream, as a part of the time of Triton's launcher."""

N, BLOCK, COUNT = 4_096, 1_024, 1_000
LAUNCHER, STREAM = "Triton's launcher, PyTorch's stream", "dagpu, in a stream"
PROGRAMS = "tests.behaviour.interop.python_kernels.triton_programs"


def ours(jit: Any) -> dict[str, Callable[[], object]]:
    """Return chains of dagpu's launches."""

    @triton_kernel(jit, constexprs={"BLOCK": BLOCK})
    def axpy(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    @axpy.host
    def _(y: Tile[f32], x: NDArray[np.float32], a: float, n: int) -> None:
        y[...] += a * x[y.at]

    def chain(x: In[f32]) -> DeviceOp[Tensor[f32], Any]:
        part: Any = zeros((N,), f32).partition((BLOCK,))
        for _ in range(COUNT):
            part = axpy(part, x, 2.0, N).first()
        made: DeviceOp[Tensor[f32], Any] = part.unpartition()
        return made

    x = full((N,), 1.0).sync().share()
    by_stream, by_graph = pipeline(graph_from=1 << 30)(chain), pipeline(graph_from=2)(chain)
    return {STREAM: lambda: by_stream(x.clone()).sync(), "dagpu, in a graph": lambda: by_graph(x.clone()).sync()}


def theirs(jit: Any) -> dict[str, Callable[[], object]]:
    """Return chains of Triton's launches, of PyTorch's tensors."""
    torch = importlib.import_module("torch")
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")

    def launches() -> None:
        for _ in range(COUNT):
            jit[(N // BLOCK,)](y, x, 2.0, N, BLOCK=BLOCK)

    def eager() -> None:
        launches()
        torch.cuda.synchronize()

    eager()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()

    def replayed() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return {LAUNCHER: eager, "PyTorch's graph of Triton's launches": replayed}


def times(name: str, call: Callable[[], object]) -> dict[str, Span]:
    """Return the seconds of one launch of a chain."""
    begin = now()
    call()
    whole = now().since(begin)
    return {name: Span(whole.wall / COUNT, whole.cpu / COUNT)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.triton_launches", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host", help="host or cuda:0")
    device = parser.parse_args().device
    on_gpu = device.startswith("cuda")
    jit = importlib.import_module(PROGRAMS).axpy
    with use_device(device):
        chains = ours(jit) | (theirs(jit) if on_gpu else {})
        samples = measure([partial(times, name, call) for name, call in chains.items()], 9, warmups=3)
    note = f"Goal: a launch in a stream takes at most {TARGET} of the time of Triton's launcher."
    table = Table("One launch of Triton's kernel in a chain of 1,000", "us", note=note, ratio_to="Triton's")
    base = samples.get(LAUNCHER)
    for name, spans in samples.items():
        goal = None if base is None or name != STREAM else TARGET * statistics.median(each.wall for each in base) * 1e6
        table.add(name, spans, 1e6, target=goal, base=base)
    about = machine(("numpy", "torch", "triton", "pycuda"), device)
    about["device"] = device
    about["load average after"] = load_average()
    print(show([table], about))
    if on_gpu:
        print("kept", *save("triton_launches_gpu", "Launches of Triton's kernels", [table], about))


if __name__ == "__main__":
    main()
