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
PATIENCE: Final = 150
MODULES: Final = (
    "call_cases", "copy_cases", "section_cases", "task_cases", "graph_cases", "mesh_cases", "pool_cases",
    "feeds.change_cases", "feeds.memory_cases", "feeds.failure_cases", "feeds.step_cases",
    "feeds.random_cases", "long_cases",
)  # fmt: skip
"""The modules of cases."""


@cache
def missing() -> str:
    """Return the reason why C cannot be compiled for this Python; an empty string if it can."""
    if shutil.which("gcc") is None:
        return "there is no gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"there is no {header}"


def _gcc(*arguments: object) -> None:
    subprocess.run(["gcc", *map(str, arguments)], check=True, capture_output=True, text=True)


def build_driver(folder: Path, *flags: str) -> Path:
    """Build the driver that does nothing in a folder, and return its path."""
    library = folder / "libnull.so"
    _gcc("-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags, HERE / "null_driver.c", "-o", library, "-lpthread")
    return library


def _object(source: Path, into: Path, *flags: str) -> Path:
    built = into / f"{source.stem}.o"
    headers = f"-I{sysconfig.get_path('include')}", f"-I{SOURCES}"
    _gcc("-c", "-fPIC", *flags, *headers, source, "-o", built)
    return built


def build_reader(folder: Path, *flags: str) -> Path:
    """Build the compiled reader and its objects in a folder, and return the folder."""
    _link(folder, [_object(source, folder, *flags) for source in sorted(SOURCES.glob("*.c"))], *flags)
    return folder


def build_changed(folder: Path, whole: Path, text: str, instead: str, *flags: str) -> Path:
    """Build the reader with another text in the place of one, which is in all sources once. `whole` has the objects of
    the other sources. Return the folder.

    Raises:
        ValueError: the text is in no source, or more than once.
    """
    found = [source for source in SOURCES.glob("*.c") for _ in range(source.read_text(encoding="utf-8").count(text))]
    if len(found) != 1:
        raise ValueError(f"this is {len(found)} times in the sources: {text}")
    (source,) = found
    changed = folder / source.name
    changed.write_text(source.read_text(encoding="utf-8").replace(text, instead), encoding="utf-8")
    others = [each for each in whole.glob("*.o") if each.stem != source.stem]
    _link(folder, [*others, _object(changed, folder, *flags)], *flags)
    return folder


def _link(folder: Path, objects: Iterable[Path], *flags: str) -> None:
    _gcc("-shared", *flags, *objects, "-o", folder / f"_reader{sysconfig.get_config_var('EXT_SUFFIX')}")


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
