"""CUDA graphs of the peers: a chain of the tiny kernel, captured once for each length and launched with its wait.

Each is written like its users write it. All except PyTorch launch the machine code of floor/kernels.cu, as in
gpu_peers.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.peers.gpu_peers import GRID, Peer, installed
from benchmarks.support.gpu import Bench, Floor, optional
from benchmarks.support.gpu_kernels import BLOCK, FACTOR, SIZE, same, scaled
from dagpu import f32


def _checked(floor: Floor, peer: Peer, memory: Callable[[], int]) -> list[Peer]:
    """Return the peer, after checking a launch of ten nodes on `memory`, which had ones before the capture."""
    assert peer.chain is not None
    with peer.scope():
        peer.chain(10)
    same(peer.name, floor.read(memory(), SIZE), scaled(10))
    return [peer]


def _torch(floor: Floor) -> list[Peer]:
    torch = optional("torch")
    if not torch.cuda.is_available():
        raise ImportError("it has no CUDA")
    y, stream = torch.ones(SIZE, device="cuda:0"), torch.cuda.Stream()
    torch.mul(y, 1.0, out=y)  # its kernel is loaded before the capture
    torch.cuda.synchronize()

    @cache
    def captured(n: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # captures, and runs nothing
            for _ in range(n):
                torch.mul(y, FACTOR, out=y)
        return graph

    def chain(n: int) -> None:
        captured(n).replay()
        stream.synchronize()

    return _checked(floor, Peer("PyTorch CUDA graph", chain, None, lambda: torch.cuda.stream(stream)), y.data_ptr)


def _cupy(floor: Floor) -> list[Peer]:
    cupy = optional("cupy")
    scale = cupy.RawModule(path=str(floor.kernels)).get_function("scale")
    y, size, a = cupy.ones(SIZE, f32), np.int32(SIZE), np.float32(FACTOR)
    stream = cupy.cuda.Stream(non_blocking=True)
    scale((GRID[0],), (BLOCK,), (y, a, np.int32(0)))  # of no elements: the kernel is loaded before the capture
    cupy.cuda.Device(0).synchronize()

    @cache
    def captured(n: int) -> Any:
        stream.begin_capture()
        for _ in range(n):
            scale((GRID[0],), (BLOCK,), (y, a, size))
        graph = stream.end_capture()
        graph.upload(stream)
        return graph

    def chain(n: int) -> None:
        captured(n).launch(stream)
        stream.synchronize()

    return _checked(floor, Peer("CuPy CUDA graph", chain, None, lambda: stream), lambda: int(y.data.ptr))


def _cuda_core(floor: Floor) -> list[Peer]:
    core = optional("cuda.core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = core.ObjectCode.from_cubin(floor.kernels.read_bytes()).get_kernel("scale")
    config = core.LaunchConfig(grid=GRID[0], block=BLOCK)
    y, a, size = floor.ones(SIZE), np.float32(FACTOR), np.int32(SIZE)
    core.launch(stream, config, kernel, y, a, np.int32(0))
    stream.sync()

    @cache
    def captured(n: int) -> Any:
        builder = device.create_graph_builder().begin_building()
        for _ in range(n):
            core.launch(builder, config, kernel, y, a, size)
        graph = builder.end_building().complete()
        graph.upload(stream)
        return graph

    def chain(n: int) -> None:
        captured(n).launch(stream)
        stream.sync()

    return _checked(floor, Peer("cuda.core graph", chain), lambda: y)


def graph_peers(bench: Bench) -> list[Peer]:
    """Return every installed peer that has graphs and gives right results. `bench.left_out` has reasons for others."""
    if bench.floor is None:
        return []
    peers: list[Peer] = []
    for name, make in {"PyTorch's graphs": _torch, "CuPy's graphs": _cupy, "cuda.core's graphs": _cuda_core}.items():
        peers += installed(bench, name, partial(make, bench.floor))
    return peers


__all__ = ["graph_peers"]
