"""The examples: as modules, and run as a user runs them, each in a Python process of its own."""

import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT, first_in

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("[!_]*.py"), *(main.parent for main in EXAMPLES.glob("*/__main__.py"))])
"""A file is run by its path, a folder as a module."""
LONG = {"cholesky", "digits", "flash_attention", "life", "photo", "server"}
"""Examples that take longer than a test may; the suite runs their short forms."""
DEADLINE_S = 120
"""Far above what any example takes: it only ends a run that hangs."""


@cache
def example(name: str) -> Any:
    """A module of the examples, such as "life" or "digits.kernels".

    Imported when a test asks for it: some take long to import, and not every process runs every test.
    """
    return importlib.import_module(f"examples.{name}")


def main_of(script: Path) -> Any:
    """The module whose `main` an example runs."""
    return example(f"{script.name}.__main__" if script.is_dir() else script.stem)


def texts(script: Path) -> str:
    """The source of an example, of all its files."""
    files = sorted(script.glob("*.py")) if script.is_dir() else [script]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def run(script: Path, folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run an example in `folder`; a RuntimeWarning (a `sync` that holds up a loop, say) is an error."""
    program = ["-m", f"examples.{script.name}"] if script.is_dir() else [str(script)]
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": first_in("PYTHONPATH", ROOT), **environment},
        timeout=DEADLINE_S,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
