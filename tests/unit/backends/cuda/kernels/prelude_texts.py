"""The CUDA prelude as a text: in a namespace of its own, arrays as it reads them, and nvcc where there is one."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.paths import ROOT

PRELUDE = (ROOT / "dagpu/backends/cuda/kernels/prelude/dagpu.cuh").read_text()


VARIANTS = {
    "plain": (),
    "strided": ("STRIDED",),
    "linear": ("LINEAR_GRID",),
    "wide": ("STRIDED", "WIDE", "LINEAR_GRID"),
    "checked": ("STRIDED", "CHECKED"),
    "checked_wide": ("WIDE", "LINEAR_GRID", "CHECKED"),
}


def in_namespace(variant: str, text: str) -> str:
    """The prelude and `text`, in a namespace of their own and with the macros of that variant."""
    return in_variant(variant, [f"DAGPU_{word}" for word in VARIANTS[variant]], text)


def in_variant(namespace: str, macros: Sequence[str], text: str) -> str:
    """The prelude and `text`, in this namespace and with these macros."""
    body = PRELUDE.replace("#pragma once\n", "") + text
    defined, undefined = ("\n".join(f"#{word} {macro}" for macro in macros) for word in ("define", "undef"))
    return f"{defined}\nnamespace {namespace} {{\n{body}\n}}\n{undefined}\n"


def packed(
    variant: str,
    array: NDArray[Any],
    tile: Sequence[int] | None = None,
    report: NDArray[np.uint8] | None = None,
    argument: int = 0,
) -> bytes:
    """A `View` of the array, or a `Tile`, as the launch packs it."""
    macros = VARIANTS[variant]
    numbers = list(array.shape)
    if "STRIDED" in macros:
        numbers += [stride // array.itemsize for stride in array.strides]
    if tile is not None:
        numbers += tile
        if "LINEAR_GRID" in macros:
            numbers += [-(-extent // step) for extent, step in zip(array.shape, tile, strict=True)]
    body = pack("<Q", array.ctypes.data) + pack(f"<{len(numbers)}{'q' if 'WIDE' in macros else 'i'}", *numbers)
    if "CHECKED" in macros:
        body = body.ljust(-(-len(body) // 8) * 8, b"\0")
        body += pack("<Qi", 0 if report is None else report.ctypes.data, argument)
    return body.ljust(-(-len(body) // 8) * 8, b"\0")


def nvcc(*arguments: str, cwd: Path) -> str:
    """Runs nvcc, which must succeed; gives what it says. Skips where there is none."""
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(found).exists():
        pytest.skip("no nvcc to compile the device code with")
    command = [found, "-std=c++17", "-arch=sm_90", *arguments]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[:6000]
    return ran.stderr
