"""Runs device code on the CPU: g++ compiles it with `device.h`, and ctypes calls it."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O0", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC")


class Emulation:
    """The kernels that a C++ text exports with `EMULATED(name, kernel)`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def launch(self, name: str, grid: Sequence[int], block: Sequence[int], packed: bytes) -> None:
        """Run a kernel to its end. `packed` must have the length of its parameters."""
        entry = self.library[name]
        entry.restype = ctypes.c_size_t
        sizes = [(ctypes.c_uint * 3)(*extent, *(1,) * (3 - len(extent))) for extent in (grid, block)]
        taken = entry(*sizes, packed)
        assert -(-taken // 8) * 8 == -(-len(packed) // 8) * 8, (
            f"{name} takes {taken} bytes of parameters, not {len(packed)}"
        )


def emulation(text: str, folder: Path) -> Emulation:
    """Return the kernels of `text`, compiled once for all processes that share `folder`. Skips the test without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the device code for the CPU")
    key = hashlib.sha256((HERE / "device.h").read_bytes() + text.encode() + " ".join(FLAGS).encode()).hexdigest()[:16]
    library = folder / f"{key}.so"
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            source = library.with_suffix(".cpp")
            source.write_text(f'#include "device.h"\n{text}')
            made = library.with_suffix(".new")
            ran = subprocess.run(
                [compiler, *FLAGS, f"-I{HERE}", str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[:4000]
            made.replace(library)
    return Emulation(ctypes.CDLL(str(library)))


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this test session share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
