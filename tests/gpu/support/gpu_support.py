"""Shared parts of the GPU tests: the GPU's name, the driver's own figures, other libraries, and subprocesses."""

import ctypes
import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.paths import ROOT, first_in

NAME: Final = os.environ.get("DAGPU_TEST_DEVICE", "cuda:0")

MAX_GRID_Y: Final = 6
MAX_SHARED_OPTIN: Final = 97
"""CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y and CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN (cuda.h)."""

DEADLINE_S: Final = 120
"""Far above what any subprocess takes: only ends one that hangs."""


def context() -> int:
    """The context that is current on this thread, 0 if there is none: asked of the driver, not of dagpu."""
    found = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found)) == 0
    return found.value or 0


def attribute(number: int) -> int:
    """An attribute of GPU 0."""
    found = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(found), number, 0) == 0
    return found.value


def theirs(name: str) -> Any:
    """Another library, imported whatever it warns of; the test is skipped where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} is not installed: {error}")


def digits_of(text: str) -> str:
    """A message without the commas in its numbers."""
    return text.replace(",", "")


def child(script: str, folder: Path, seconds: float = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a Python of its own, in `folder`, on the GPU; its output and errors apart. `seconds`: how long it
    means to take."""
    file = folder / "script.py"
    file.write_text(script, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": first_in("PYTHONPATH", ROOT), "DAGPU_DEVICE": NAME, **environment},
        timeout=DEADLINE_S + seconds,
        check=False,
        capture_output=True,
        text=True,
    )
