"""Shared parts of the GPU benchmarks: their arguments, the GPU, the timing, and the floor in C++."""

import argparse
import ctypes
import gc
import hashlib
import importlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NoReturn, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu_kernels import FLOOR, check_dagpu
from benchmarks.support.table import Grid, Span, Table, load_average, machine, measure, now, query_gpu, save, show
from dagpu import DagpuError, Device, device, f32
from dagpu.handles.device_handles import INSTALL_CUDA

PACKAGES = ("numpy", "trio", "pycuda", "cuda-bindings", "cuda-core", "cupy-cuda13x", "cupy-cuda12x", "torch")
Measure = Callable[[], dict[str, Span]]
"""Does one round of one contender. Returns the time of each name."""


def optional(module: str) -> ModuleType:
    """Import a peer's module. It has no types here, so everything in it is `Any`.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module(module)


# ---- timing


def medians(spans: Sequence[Span]) -> Span:
    """Return the median of each clock."""
    return Span(statistics.median(span.wall for span in spans), statistics.median(span.cpu for span in spans))


def rounds(name: str, call: Callable[[], object], count: int, warmups: int = 2) -> dict[str, Span]:
    """Return the median over `count` calls in a row, after `warmups` that do not count.

    The result of a call is freed after its clock has stopped.
    """
    spans = []
    for turn in range(warmups + count):
        start = now()
        result = call()
        span = now().since(start)
        del result
        if turn >= warmups:
            spans.append(span)
    return {name: medians(spans)}


# ---- the floor


@final
class Floor:
    """floor/floor.cu as a shared library in this process, in the primary context that every contender uses.

    Args:
        nvcc: the compiler; the build is kept in floor/build until the sources change.
    """

    def __init__(self, nvcc: str) -> None:
        library, self.kernels = _build(nvcc)
        self._calls = ctypes.CDLL(str(library))
        self._calls.floor_open.restype = self._calls.floor_answer.restype = ctypes.c_char_p
        self._calls.floor_ones.restype = ctypes.c_uint64
        self._calls.floor_read.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int]
        self._calls.floor_submit.argtypes = [ctypes.c_float]
        self._calls.floor_begin.argtypes = [ctypes.c_uint64, ctypes.c_float]
        self._calls.floor_end.argtypes = [ctypes.c_uint64]
        self._calls.floor_end.restype = ctypes.c_float
        _answer(self._calls.floor_open(str(self.kernels).encode()))
        self.submit: Callable[[float], int] = self._calls.floor_submit
        self.close_after: Callable[[int], int] = self._calls.floor_close_after
        self.mark: Callable[[], int] = self._calls.floor_mark
        self.reached: Callable[[], int] = self._calls.floor_reached
        self.wait: Callable[[], int] = self._calls.floor_wait

    def rounds(self, name: str, request: str, count: int) -> dict[str, Span]:
        """Return the median of `count` times that floor.cu measures on its own clock; floor.cu defines the requests."""
        seconds = _answer(self._calls.floor_answer(f"{request} {count}".encode()))
        middle = statistics.median(seconds)
        return {name: Span(middle, math.nan)}

    def ones(self, n: int) -> int:
        """Allocate device memory of `n` floats, all 1. It stays until the process ends."""
        memory: int = self._calls.floor_ones(n)
        if not memory:
            raise RuntimeError(f"the floor found no {n * 4:,} bytes of device memory")
        return memory

    def read(self, memory: int, n: int) -> NDArray[f32]:
        """Return `n` floats of device memory."""
        found = np.empty(n, np.float32)
        if self._calls.floor_read(memory, found.ctypes.data, n):
            raise RuntimeError("the floor could not read device memory")
        return found

    def device_seconds(self, stream: int, submit: Callable[[], object], hold: float) -> float:
        """Return the seconds, on the GPU's clock, of the work that `submit` puts on the stream.

        The stream is first kept busy for `hold` seconds, and the clock starts on the GPU when that ends. So the host's
        time for submission does not count, provided that it is shorter.
        """
        if self._calls.floor_begin(stream, hold * 1e6):
            raise RuntimeError("the floor could not start the GPU's clock")
        submit()
        milliseconds: float = self._calls.floor_end(stream)
        if milliseconds < 0:
            raise RuntimeError("the floor could not read the GPU's clock")
        return milliseconds * 1e-3


def _answer(text: bytes) -> list[float]:
    """Parse the seconds in an answer of the floor; none in an empty one."""
    found = json.loads(text or b"{}")
    if "error" in found:
        raise RuntimeError(f"the C++ floor failed: {found['error']}")
    seconds: list[float] = found.get("seconds", [])
    return seconds


def _build(nvcc: str) -> tuple[Path, Path]:
    """Return the library and the kernels' cubin, built if needed. One process at a time may build."""
    capability = query_gpu("compute_cap")
    arch = f"sm_{capability.replace('.', '')}" if capability else "native"
    sources = [FLOOR / name for name in ("floor.cu", "driver.h", "kernels.cu")]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + arch.encode()).hexdigest()[:12]
    library, cubin = FLOOR / "build" / f"floor-{key}.so", FLOOR / "build" / f"kernels-{key}.cubin"
    library.parent.mkdir(exist_ok=True)
    _compile(cubin, [nvcc, "-O3", f"-arch={arch}", "-cubin"], sources[2])
    # as plain C++: it has no device code, and needs no CUDA runtime
    shared = [nvcc, "-x", "c++", "-cudart", "none", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-ldl"]
    _compile(library, shared, sources[0])
    return library, cubin


def _compile(target: Path, command: list[str], source: Path) -> None:
    if target.exists():
        return
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    done = subprocess.run([*command, "-o", str(unfinished), str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc could not build {source.name}:\n{done.stdout}{done.stderr}")
    unfinished.replace(target)


def _find_nvcc() -> str | None:
    """Return $NVCC, otherwise nvcc on the path, otherwise in the folder of NVIDIA's installer."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")


# ---- a benchmark


@final
@dataclass(slots=True)
class Bench:
    """One benchmark on one device. On the host, which only tests the benchmark, there is no floor and nothing is saved.

    `left_out` names the missing peers, with reasons.
    """

    name: str
    where: Device
    floor: Floor | None
    about: dict[str, str]
    quick: bool
    left_out: list[str] = field(default_factory=list)

    def many(self, count: int, quick: int = 2) -> int:
        """Return the number of repetitions: `count`, or `quick` for a dry run."""
        return count if self.floor is not None and not self.quick else min(count, quick)

    def measure(self, contenders: Sequence[Measure], repeats: int) -> dict[str, list[Span]]:
        """Return medians of rounds that the contenders take in turns, after one round that does not count.

        Existing objects are hidden from the collector, which would otherwise walk every peer's modules in each round.
        """
        gc.collect()
        gc.freeze()
        return measure(contenders, self.many(repeats))

    def missing(self) -> str:
        """Return a sentence for a table's note on the peers that are not in it."""
        return f" Left out: {'; '.join(self.left_out)}." if self.left_out else ""

    def finish(self, title: str, tables: Sequence[Table | Grid]) -> None:
        """Print the tables, and save them."""
        self.about["load average after"] = load_average()
        print(show(tables, self.about))
        if self.floor is None or self.quick:
            print("\na dry run: nothing is kept")
            return
        for path in save(self.name, title, tables, self.about):
            print(f"kept {path}")


def start(name: str, description: str, argv: Sequence[str] | None = None) -> Bench:
    """Read the arguments and find the GPU. Without a GPU, print the requirements and exit with status 2.

    First, the results of dagpu's kernels are compared with NumPy's.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda:0", help="cuda:0; host makes a dry run, of which nothing is kept")
    parser.add_argument("--quick", action="store_true", help="few repeats; nothing is kept")
    options = parser.parse_args(argv)
    about = machine(PACKAGES)
    try:
        where = device(options.device)
        floor = None
        if where.kind == "cuda":
            nvcc = _find_nvcc()
            if nvcc is None:
                _refuse(name, "there is no nvcc: it is not on the path, nor in $CUDA_HOME/bin, nor named by $NVCC")
            floor = Floor(nvcc)
            about = {
                "gpu": query_gpu("name"),
                "gpu memory": query_gpu("memory.total"),
                "driver": query_gpu("driver_version"),
                "nvcc": _release(nvcc),
            } | about
    except DagpuError as error:
        _refuse(name, str(error))
    check_dagpu(where)
    return Bench(name, where, floor, about, options.quick)


def _refuse(name: str, reason: str) -> NoReturn:
    main = sys.modules["__main__"].__spec__
    module = f"benchmarks.{name}" if main is None else main.name
    print(
        f"{module} needs an NVIDIA GPU with its driver, PyCUDA and cuda-bindings "
        f"({INSTALL_CUDA}), and nvcc for the C++ floor. Here: {reason}\n"
        "With --device host it runs on the CPU, which shows that it is right and measures nothing.",
        file=sys.stderr,
    )
    raise SystemExit(2)


def _release(nvcc: str) -> str:
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    words = [line for line in done.stdout.splitlines() if "release" in line]
    return words[0].partition("release ")[2] if words else "unknown"


__all__ = ["Bench", "Floor", "Measure", "medians", "optional", "rounds", "start"]
