"""Compiles the driver that does nothing and the compiled reader, and runs Python with them in child processes."""

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.paths import first_in

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
SOURCES: Final = ROOT / "dagpu" / "compiled"
READER: Final = "DAGPU_TEST_READER"
"""The environment variable with the folder of the extension that a child is to import in the place of dagpu's own."""
PATIENCE: Final = 300


@cache
def missing() -> str:
    """Return the reason why C cannot be compiled for this Python; an empty string if it can."""
    if shutil.which("gcc") is None:
        return "there is no gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"there is no {header}"


def _compile(sources: Iterable[Path], library: Path, *flags: str) -> None:
    shared = ["gcc", "-shared", "-fPIC", *flags, *map(str, sources), "-o", str(library), "-lpthread"]
    subprocess.run(shared, check=True, capture_output=True, text=True)


def build_driver(folder: Path, *flags: str) -> Path:
    """Build the driver that does nothing in a folder, and return its path."""
    library = folder / "libnull.so"
    _compile([HERE / "null_driver.c"], library, "-O1", "-Wall", "-Werror", *flags)
    return library


def build_reader(folder: Path, *flags: str, changed: Mapping[str, str] | None = None) -> Path:
    """Build the compiled reader in a folder, and return the folder. `changed` has the whole text of some sources."""
    copies = folder / "sources"
    shutil.copytree(SOURCES, copies, ignore=shutil.ignore_patterns("*.so", "*.py*"))
    for name, text in (changed or {}).items():
        (copies / name).write_text(text, encoding="utf-8")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _compile(
        sorted(copies.glob("*.c")), folder / f"_reader{suffix}", f"-I{sysconfig.get_path('include')}", "-w", *flags
    )
    return folder


def use_built_reader() -> None:
    """Import the extension that `READER` names, if it names one, before dagpu imports its own."""
    folder = os.environ.get(READER)
    if folder:
        importlib.import_module("dagpu.compiled").__path__.insert(0, folder)


def run_child(
    module: str,
    *arguments: str,
    compiled: bool = True,
    reader: Path | None = None,
    more: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
    options: Sequence[str] = (),
) -> "subprocess.CompletedProcess[str]":
    """Run a module of this project in a process of its own, with the compiled reader or without it. `reader` is the
    folder of another extension."""
    environment = {
        **os.environ,
        "DAGPU_COMPILED": str(int(compiled)),
        "DAGPU_DEVICE": "cuda:0",
        "DAGPU_MEASURE": "0",
        "PYTHONPATH": first_in("PYTHONPATH", ROOT),
        READER: "" if reader is None else str(reader),
        **(more or {}),
    }
    command = [sys.executable, *options, "-m", module, *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=patience, check=False
    )
