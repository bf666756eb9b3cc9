"""floor/graph.cu in this process: the cost in C++ of a launch of a CUDA graph, with its kernels' arguments written."""

import ctypes
import hashlib
import math
import os
import statistics
import subprocess
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import Floor
from benchmarks.support.gpu_kernels import FLOOR, SIZE
from benchmarks.support.table import Span
from dagpu import f32
from dagpu.backends.cuda.compile.nvidia_compilers import find_nvcc


@final
class GraphFloor:
    """The library of floor/graph.cu. It launches the kernels of floor/floor.cu.

    Raises:
        RuntimeError: it cannot be built, or the driver refuses.
    """

    def __init__(self, floor: Floor) -> None:
        self._calls = ctypes.CDLL(str(_built()))
        self._calls.graph_failure.restype = ctypes.c_char_p
        self._calls.graph_changed.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_double)]
        self._calls.graph_calls.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_float, ctypes.c_float]
        self._calls.graph_read.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._check(self._calls.graph_open(str(floor.kernels).encode()))

    def chain(self, n: int) -> "FloorGraph":
        """Return a graph of `n` times y *= a in a row, on one memory of ones."""
        return self._made(self._calls.graph_chain(n))

    def side_by_side(self, n: int) -> "FloorGraph":
        """Return a graph of `n` times y += a x, each on memories of its own, of ones."""
        return self._made(self._calls.graph_side_by_side(n))

    def on_two_gpus(self) -> "FloorGraph":
        """Return a graph of y *= a on each of two GPUs, which is launched from the first."""
        return self._made(self._calls.graph_on_two_gpus())

    def call(self, number: int, count: int, even: float, odd: float) -> None:
        """Launch a graph and poll for its end, `count` times. See `FloorGraph`."""
        self._check(self._calls.graph_calls(number, count, even, odd))

    def read(self, number: int, kernel: int) -> NDArray[f32]:
        """Return the y of a kernel of a graph."""
        found = np.empty(SIZE, f32)
        self._check(self._calls.graph_read(number, kernel, found.ctypes.data))
        return found

    def _made(self, number: int) -> "FloorGraph":
        self._check(number < 0)
        return FloorGraph(self, number)

    def changed_rounds(self, name: str, n: int, count: int) -> dict[str, Span]:
        """Return the median of `count` times on its own clock, of setting every node's arguments, launch and wait."""
        seconds = (ctypes.c_double * count)()
        self._check(self._calls.graph_changed(n, count, seconds))
        return {name: Span(statistics.median(seconds), math.nan)}

    def _check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(f"the C++ floor of graphs failed: {self._calls.graph_failure().decode()}")


@final
class FloorGraph:
    """A graph in C++, whose calls are a launch and polls of its stream until the end."""

    def __init__(self, floor: GraphFloor, number: int) -> None:
        self._floor, self._number = floor, number

    def calls(self, count: int, even: float = 1.0, odd: float = 1.0) -> None:
        """Call the graph `count` times. If the numbers differ, every kernel is given one of them before each launch,
        in turns."""
        self._floor.call(self._number, count, even, odd)

    def read(self, kernel: int) -> NDArray[f32]:
        """Return the y of a kernel."""
        return self._floor.read(self._number, kernel)


def _built() -> Path:
    """Return the library, after building it if these sources have changed. One process at a time may build."""
    sources = [FLOOR / "graph.cu", FLOOR / "driver.h"]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    library = FLOOR / "build" / f"graph-{key}.so"
    if library.exists():
        return library
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("there is no nvcc to build floor/graph.cu with")
    library.parent.mkdir(exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    # as plain C++: it has no device code, and needs no CUDA runtime
    shared = ["-x", "c++", "-cudart", "none", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-ldl"]
    command = [nvcc, *shared, "-o", str(unfinished), str(sources[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc could not build floor/graph.cu:\n{done.stdout}{done.stderr}")
    unfinished.replace(library)
    return library


__all__ = ["FloorGraph", "GraphFloor"]
