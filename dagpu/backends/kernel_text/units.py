"""The text of one kernel as a compiler takes it, and everything that determines how it is compiled."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from dagpu.backends.kernel_text.launch_params import parameter_sizes
from dagpu.kernels.preprocessing import read
from dagpu.ops.kernel_spec import KernelSpec, Param

PRELUDE: Final = Path(__file__).resolve().parents[1] / "cuda" / "kernels" / "prelude" / "dagpu.cuh"
"""The header that defines `Tile` and `View`. The compiler reads it from this path."""


@final
@dataclass(frozen=True, slots=True)
class Unit:
    """The source of one kernel, and everything that determines how it is compiled."""

    name: str
    """The name of the `__global__` function."""
    text: str
    file: str
    """The user's file that contains the text, for messages. Quoted headers are searched in its folder."""
    line: int
    """The line of `file` on which the text begins, counted from 1."""
    prelude: bool
    """True if the kernel uses `Tile` and `View`."""
    defines: tuple[str, ...]
    """Macros, as `NAME` or `NAME=value`."""
    options: tuple[str, ...]
    """The user's options. They follow dagpu's own, so the user's take precedence."""
    arch: str
    """The real architecture to compile for: `sm_90`, `sm_90a`."""
    entry: str = ""
    """The kernel as a C++ expression, if it is an instance of a template, or one of several functions of a name:
    `&ns::k<float, 256>`."""
    sizes: tuple[int, ...] = ()
    """The sizes of the parameters in bytes that a launch passes, if one of them is a structure."""
    constants: tuple[tuple[str, int], ...] = ()
    """The names of the `__constant__` variables that launches set, and the bytes of each by its declaration; 0 if that
    does not tell them."""


def kernel_unit(spec: KernelSpec, defines: tuple[str, ...], arch: str) -> Unit:
    """Return the unit of a kernel in CUDA C++ with these macros. With a `source_name` `file.py:12` the text begins on
    line 12 of that file, with `path.cu` on line 1."""
    file, colon, line = spec.source_name.rpartition(":")
    if not (colon and line.isascii() and line.isdigit()):
        file, line = spec.source_name, "1"
    plain = spec.entry.partition("<")[0].rpartition("::")[2] or spec.name
    qualified = spec.entry or spec.name
    entry = f"&{qualified}" if "<" in qualified else ""
    if spec.overload:
        entry = f"static_cast<void (*)({spec.overload})>(&{qualified})"
    return Unit(
        name=plain,
        entry=entry,
        sizes=parameter_sizes(spec) if spec.records else (),
        constants=tuple([(param.name, _bytes_of(param)) for _, param in spec.constants]),
        text=spec.cuda,
        file=file,
        line=int(line),
        prelude=spec.abi == "views",
        defines=defines,
        options=spec.options,
        arch=arch,
    )


def _bytes_of(constant: Param) -> int:
    assert constant.dtype is not None
    return (constant.constant or 0) * constant.dtype.itemsize


_HALF: Final = re.compile(r"\b(?:__)?half2?\b")
_BFLOAT16: Final = re.compile(r"\b(?:__)?nv_bfloat16\w*")


def element_types(texts: Sequence[str]) -> Iterator[str]:
    """Yield the macros that enable 16-bit floats in the prelude. Their headers are slow to compile, so the prelude
    includes them only for code that uses them."""
    code = code_of(texts)
    if _HALF.search(code):
        yield "DAGPU_HALF"
    if _BFLOAT16.search(code):
        yield "DAGPU_BFLOAT16"


def code_of(texts: Sequence[str]) -> str:
    """Return texts without comments and literals."""
    return "\n".join(read(text).code for text in texts)


def quoted(text: str) -> str:
    """Return a path as it stands between the quotes of a directive."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
