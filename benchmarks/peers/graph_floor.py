"""floor/graph.cu in this process: the cost in C++ of a CUDA graph whose nodes' arguments change."""

import ctypes
import hashlib
import math
import os
import statistics
import subprocess
from pathlib import Path
from typing import final

from benchmarks.support.gpu import Floor
from benchmarks.support.gpu_kernels import FLOOR
from benchmarks.support.table import Span
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
        self._check(self._calls.graph_open(str(floor.kernels).encode()))

    def changed_rounds(self, name: str, n: int, count: int) -> dict[str, Span]:
        """Return the median of `count` times on its own clock, of setting every node's arguments, launch and wait."""
        seconds = (ctypes.c_double * count)()
        self._check(self._calls.graph_changed(n, count, seconds))
        return {name: Span(statistics.median(seconds), math.nan)}

    def _check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(f"the C++ floor of graphs failed: {self._calls.graph_failure().decode()}")


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


__all__ = ["GraphFloor"]
