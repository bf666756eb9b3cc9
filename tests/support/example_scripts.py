"""The examples: imported as modules, or run like a user runs them, each in a separate Python process."""

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dagpu import device
from tests.support.paths import ROOT, first_in

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("[!_]*.py"), *(main.parent for main in EXAMPLES.glob("*/__main__.py"))])
"""The scripts of all examples. A file is run by its path, a folder as a module."""
LONG = {"cholesky", "digits", "flash_attention", "life", "photo", "server"}
"""Examples that take too long for a test. The suite runs their short forms."""
OTHER_PROCESSES = {"cluster_mlp"}
"""Examples whose ops run on devices of other processes, which they start. Their own process uses no GPU."""
LIBRARIES = {
    "cupy_fft": "cupy", "mlp_data_parallel": "nvmath", "spectrum": "nvmath", "torch_inside": "torch",
    "transformer": "nvmath",
}  # fmt: skip
"""The library that an example calls on a GPU."""
WITHOUT = {"cupy_fft", "torch_inside"}
"""Those of them that run on the host where their library is not installed."""
DEADLINE_S = 120
"""Seconds after which a run counts as hung. Every example takes far less."""
WARNINGS = ("-W", "error::RuntimeWarning")
"""Options of their Python."""


@cache
def example(name: str) -> Any:
    """Import and return a module of the examples, such as "life" or "digits.kernels".

    Tests import only the modules that they need, because some take long to import.
    """
    return importlib.import_module(f"examples.{name}")


def lacks_library(script: Path) -> bool:
    """True for an example that needs a library on the default device, where the library is not installed."""
    needed = script.stem in LIBRARIES.keys() - WITHOUT
    return needed and device().kind == "cuda" and find_spec(LIBRARIES[script.stem]) is None


def calls_library(script: Path) -> bool:
    """True for an example that on the default device calls a library. The library uses the real GPU, and would
    dereference the addresses of a simulated one."""
    return script.stem in LIBRARIES and device().kind == "cuda" and find_spec(LIBRARIES[script.stem]) is not None


def main_of(script: Path) -> Any:
    """Return the module whose `main` an example runs."""
    return example(f"{script.name}.__main__" if script.is_dir() else script.stem)


def texts(script: Path) -> str:
    """Return the source of all files of an example."""
    files = sorted(script.glob("*.py")) if script.is_dir() else [script]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def run(script: Path, folder: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run an example in `folder`; a RuntimeWarning (such as that of a `sync` that blocks a loop) is an error."""
    program = ["-m", f"examples.{script.name}"] if script.is_dir() else [str(script)]
    return subprocess.run(
        [sys.executable, *WARNINGS, *program, *arguments],
        cwd=folder,
        env=environment(more),
        timeout=DEADLINE_S,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of an example's process: this one, and `more`."""
    return {**os.environ, "PYTHONPATH": first_in("PYTHONPATH", ROOT), **more}
