"""A kernel's declaration against CUDA: the source, the parameters as both sides agree on them, settings."""

import dataclasses
import linecache
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast, final

import numpy as np

from dagpu.common.dtypes import FLOATING
from dagpu.common.errors import KernelArgumentError
from dagpu.common.wrong_arguments import shown, whole
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import PySignature, declaration_error, declared_at
from dagpu.kernels.cuda_scalars import CudaParam, check_scalar
from dagpu.kernels.cuda_signature import PyParam, check_signature, parse_cuda_signature
from dagpu.ops.kernel_spec import Param


# ---- the source ---------------------------------------------------------------------------
def read_source(cuda: str | Path, function: Callable[..., object]) -> tuple[str, str]:
    """The text of the CUDA source, and what messages call it: its path, or `file.py:12` for a text.

    A `Path`, or one line of text ending in `.cu`, is read; relative ones lie beside the declaring module.

    Raises:
        KernelArgumentError: there is no such file, or it cannot be read.
    """
    name, place, home = function.__name__, declared_at(function), function.__code__.co_filename
    if isinstance(cuda, str) and ("\n" in cuda or not cuda.endswith(".cu")):
        return cuda, f"{home}:{_line_of(cuda, function)}"
    if not isinstance(cuda, str | Path):
        what = f"cuda= is of type {type(cuda).__name__}"
        raise declaration_error(name, place, what, "Give CUDA C++ source text, or the path of a .cu file")
    path = Path(home).parent / cuda  # which is `cuda` itself where that is absolute
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        what = f"the CUDA source {str(path)!r} cannot be read ({why})"
        raise declaration_error(name, place, what, "A relative path starts at the declaring module's folder") from error


def _line_of(text: str, function: Callable[..., object]) -> int:
    """The line of the declaring file on which a literal begins; the decorator's where it cannot be found.

    The literal nearest below the decorator is taken, else the last one above it (a constant of the module).
    """
    declared = function.__code__.co_firstlineno
    lines: Sequence[str] = linecache.getlines(function.__code__.co_filename, function.__globals__)
    file, begin = "".join(lines), sum(map(len, lines[: declared - 1]))
    at = file.find(text, begin) if text else -1
    if at < 0:
        at = file.rfind(text) if text else -1
    return declared if at < 0 else file.count("\n", 0, at) + 1


# ---- against CUDA ---------------------------------------------------------------------------
def params_of(
    function: Callable[..., object], signature: PySignature, source: str, abi: Literal["views", "pointers"]
) -> tuple[Param, ...]:
    """The parameters as Python and CUDA agree on them; an element type left open in Python is CUDA's.

    Raises:
        KernelArgumentError: they do not agree, CUDA's cannot be read, or a default does not fit.
    """
    name, place = function.__name__, declared_at(function)
    pairs = list(zip(signature.names, signature.annotations, strict=True))
    python = [PyParam(n, a.form, a.dtype.name if a.dtype is not None else None, a.scalar) for n, a in pairs]
    try:
        cuda = parse_cuda_signature(source, name, abi=abi)
    except KernelArgumentError as error:
        raise KernelArgumentError(f"{error} The kernel is declared at {place}.") from None
    check_signature(cuda, python, kernel=name, where=place)
    params: list[Param] = []
    for (param_name, annotation), declared in zip(pairs, cuda.params, strict=True):
        if annotation.form == "scalar":
            check = ScalarCheck(dataclasses.replace(declared, name=param_name), name)
            params.append(Param(param_name, "scalar", None, None, check, annotation.lazy))
            if param_name in signature.defaults:
                _check_default(function, check, signature.defaults[param_name])
        else:
            params.append(Param(param_name, annotation.form, np.dtype(declared.ctype), declared.rank, None, False))
    return tuple(params)


def _check_default(function: Callable[..., object], check: Callable[[object], object], default: object) -> None:
    try:
        check(default)
    except KernelArgumentError as error:
        raise KernelArgumentError(f"{error} It is the default, declared at {declared_at(function)}.") from None


@final
class ScalarCheck:
    """`check_scalar` for one parameter.

    `type(v) is kind and low <= v <= high` holds for nearly all numbers; such a `v` is passed as it is.
    """

    __slots__ = ("_kernel", "_param", "dtype", "high", "kind", "low")

    def __init__(self, param: CudaParam, kernel: str) -> None:
        self._param = param
        self._kernel = kernel
        self.dtype = dtype = np.dtype(param.ctype)
        """The parameter's type in CUDA."""
        self.kind: type[int | float]
        self.low: int | float
        self.high: int | float
        if dtype.kind in "iu":
            self.kind, self.low, self.high = int, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        elif dtype in FLOATING:
            # 65504 is the largest float16; it is in the range of bfloat16 too, which np.finfo does not know.
            self.high = 65504.0 if dtype.itemsize == 2 else float(np.finfo(dtype).max)
            self.kind, self.low = float, -self.high
        else:
            self.kind, self.low, self.high = bool, False, True

    def __call__(self, value: object) -> int | float | bool:
        if type(value) is self.kind and self.low <= value <= self.high:
            return value
        if type(value) is SymbolicNumber:
            self(value.number)  # each call's number is checked; what goes on is what stands for them all
            return cast("int | float", value)
        return check_scalar(value, self._param, kernel=self._kernel)


# ---- other parts of a declaration ---------------------------------------------------------
MAX_THREADS = 1024
"""Threads in a block on every architecture (CUDA C++ Programming Guide, table of compute capabilities)."""
_MAX_GRID = 2**31 - 1
"""Blocks along the first axis of a grid (the same table)."""


def extents(
    given: Sequence[object], what: Literal["grid", "block"], kernel: str, place: str, called: str = ""
) -> tuple[int, ...]:
    """The extents of a grid or block, checked. `called` is the place of the call, where that is not the declaration.

    Raises:
        KernelArgumentError: not 1 to 3 whole numbers of 1 or more, or too many threads in a block.
    """
    found = tuple(n for n in map(whole, given) if n is not None and 1 <= n <= _MAX_GRID)
    call = f"{what}({', '.join(map(shown, given))}){called and f' at {called}'}"
    if len(found) != len(given) or not 1 <= len(found) <= 3:
        raise declaration_error(kernel, place, call, "Give 1 to 3 whole numbers, each 1 or more")
    if what == "block" and math.prod(found) > MAX_THREADS:
        threads = f"{call} has {math.prod(found)} threads"
        raise declaration_error(
            kernel, place, threads, f"A block has at most {MAX_THREADS}, all its extents multiplied"
        )
    return found
