"""Updates by hand of a graph of three kernels, of which an input changes each time: in C++, in Python, with PyTorch.

In C++ and in Python the arguments of all nodes are written again before the launch. PyTorch's graphs have fixed
arguments, so its users put the number into a tensor that the graph reads, and replay the graph.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from benchmarks.peers.graph_floor import GraphFloor
from benchmarks.peers.updates_by_hand import GraphByHand
from benchmarks.support.gpu import Floor, optional, rounds
from benchmarks.support.table import Span
from dagpu.backends.cuda.compile.nvidia_compilers import find_nvcc

FLOOR_NAME = "C++: graph of 3, all arguments written"
HAND_NAME = "Python, by hand: the same through cuda.bindings, awaited"
TORCH_NAME = "PyTorch: graph of 3, its input changed"

Contender = Callable[[], Mapping[str, Span]]


def update_peers(
    nodes: int, elements: int, count: int, graphs: GraphFloor | None = None
) -> tuple[list[Contender], list[str]]:
    """Return the contenders that can run here, which do `count` updates each time, and the reasons for the others.

    Args:
        graphs: the floor, if the benchmark has opened it.
    """
    found: list[Contender] = []
    left_out: list[str] = []
    for name, make in ((FLOOR_NAME, partial(_floor, graphs)), (HAND_NAME, _by_hand), (TORCH_NAME, _torch)):
        try:
            found.append(make(name, nodes, elements, count))
        except Exception as error:  # a peer that is missing, or does not fit the driver, leaves the others
            left_out.append(f"{name} ({type(error).__name__}: {error})")
    return found, left_out


def _floor(graphs: GraphFloor | None, name: str, nodes: int, _elements: int, count: int) -> Contender:
    if graphs is None:
        nvcc = find_nvcc()
        if nvcc is None:
            raise RuntimeError("there is no nvcc")
        graphs = GraphFloor(Floor(nvcc))
    return partial(graphs.changed_rounds, name, nodes, count)


def _by_hand(name: str, nodes: int, elements: int, count: int) -> Contender:
    graph = GraphByHand(nodes, elements)
    trio.run(graph.update, 2.0)
    graph.check(2.0)
    return lambda: graph.rounds(name, count)


def _torch(name: str, nodes: int, elements: int, count: int) -> Contender:
    torch: Any = optional("torch")
    if not torch.cuda.is_available():
        raise ImportError("it has no CUDA")
    x, late = torch.ones(elements, device="cuda:0"), torch.ones((), device="cuda:0")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        y = late - x  # the kernel is loaded before the capture
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            y = x
            for _ in range(nodes):
                y = late - y
    number = 2.0

    def update() -> None:
        nonlocal number
        number += 1.0
        late.fill_(number)
        graph.replay()
        stream.synchronize()

    def contender() -> Mapping[str, Span]:
        with torch.cuda.stream(stream):
            return rounds(name, update, count)

    with torch.cuda.stream(stream):
        update()
    wanted = 1.0
    for _ in range(nodes):
        wanted = number - wanted
    if y.tolist() != [wanted] * elements:
        raise RuntimeError(f"it computed {y.tolist()}, and not {wanted}")
    return contender


__all__ = ["FLOOR_NAME", "HAND_NAME", "TORCH_NAME", "update_peers"]
