"""Compiles the stand-in for the CUDA driver, and runs Python on it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.paths import first_in

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEADERS = (Path("/usr/local/cuda/include"), Path("/usr/include"), Path("/opt/cuda/include"))


def missing() -> str:
    """Return the reason why the stand-in cannot be used, such as a missing tool; an empty string if it can."""
    for name in ("pycuda", "cuda.bindings"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{name} is not installed"
    for tool in ("gcc", "nm"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    return "" if _headers() else "there is no cuda.h"


def _headers() -> Path | None:
    return next((folder for folder in HEADERS if (folder / "cuda.h").exists()), None)


def build(folder: Path) -> Path:
    """Build `libcuda.so.1` in `folder`: the functions of driver.c, and failing stubs of others that PyCUDA links."""
    headers = _headers()
    pycuda = importlib.util.find_spec("pycuda")
    assert headers is not None
    assert pycuda is not None
    assert pycuda.submodule_search_locations is not None
    (module,) = Path(pycuda.submodule_search_locations[0]).glob("_driver*.so")
    listed = subprocess.run(["nm", "-D", "--undefined-only", module], check=True, capture_output=True, text=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-1].startswith("cu")]
    others = folder / "others.c"
    others.write_text("".join(f"int __attribute__((weak)) {name}(void) {{ return 801; }}\n" for name in names))
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-w", f"-I{headers}", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *flags, HERE / "driver.c", others, "-o", library, "-ldl", "-lpthread"], check=True)
    return library


StandIn: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"
"""`stand_in(module, argument, ...)` runs a module of this project with the stand-in as libcuda."""


@pytest.fixture(name="stand_in", scope="module")
def on_the_stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """Return a function that runs modules on the stand-in. Skips the test if a tool or package is missing."""
    if why := missing():
        pytest.skip(why)
    library = build(tmp_path_factory.mktemp("driver"))

    def run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_python(library.parent, "-m", module, *arguments)

    return run


def run_python(libraries: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with `libraries` first in LD_LIBRARY_PATH, and the checkout first in PYTHONPATH.

    The folders of the caller's variables follow.
    """
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": first_in("LD_LIBRARY_PATH", libraries),
        "PYTHONPATH": first_in("PYTHONPATH", ROOT),
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
