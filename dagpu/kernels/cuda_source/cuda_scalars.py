"""Scalar C types and their dtypes, `CudaParam`, and the check of scalar arguments.

The names of types are those of NumPy dtypes (`float32`, `int64`, `bool`), with `float16` for `half` and `bfloat16` for
`nv_bfloat16`. `long` has 64 bits and `char` is signed, as in CUDA on 64-bit Linux.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NoReturn, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.param_form import Passed

ScalarKind: TypeAlias = Literal["int", "float", "bool"]


@final
@dataclass(frozen=True, slots=True)
class CudaParam:
    """One parameter of a CUDA declaration.

    `name` is empty for an unnamed parameter. `const` is true if the elements must not be written; it is false for a
    scalar, whose `const` does not concern the caller. `rank` is None unless the form is `tile` or `view`. `line` counts
    from 1 in the source; it is 0 for a parameter without a CUDA declaration.
    """

    name: str
    form: Passed | Literal["pointer"]
    ctype: str
    const: bool
    rank: int | None
    line: int

    @property
    def is_tensor(self) -> bool:
        """True if it is memory of a device, false if it is a value."""
        return self.form in ("view", "tile", "pointer")


# ---- C types ------------------------------------------------------------------------------
# Messages use the first spelling of a dtype.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float",), "float64": ("double",), "bool": ("bool",),
    "float16": ("__half", "half"), "bfloat16": ("__nv_bfloat16", "nv_bfloat16"),
    "int8": ("signed char", "char", "int8_t"), "uint8": ("unsigned char", "uint8_t"),
    "int16": ("short", "int16_t"), "uint16": ("unsigned short", "uint16_t", "ushort"),
    "int32": ("int", "signed", "int32_t"), "uint32": ("unsigned int", "uint32_t", "uint"),
    "int64": ("long long", "long", "int64_t", "ptrdiff_t", "ssize_t", "intptr_t"),
    "uint64": ("unsigned long long", "unsigned long", "uint64_t", "size_t", "uintptr_t", "ulong"),
}  # fmt: skip


def _type_key(words: Sequence[str]) -> str:
    """Return a key that ignores the order of the words, and an `int` or `signed` without effect."""
    key = sorted(words)
    if len(key) > 1 and "int" in key:
        key.remove("int")
    if len(key) > 1 and "signed" in key and "char" not in key:
        key.remove("signed")
    return " ".join(key)


_DTYPES = {_type_key(c.split()): dtype for dtype, spellings in SPELLINGS.items() for c in spellings}


def dtype_of(words: Sequence[str]) -> str | None:
    """Return the dtype of a C type without `const`, or None. `std::`, `cuda::std::` and a leading `::` are ignored."""
    if "::" in words:
        scope, _, last = "".join(words).rpartition("::")
        return _DTYPES.get(last) if scope.removeprefix("::") in ("", "std", "cuda::std") else None
    return _DTYPES.get(_type_key(words))


def kind_of(dtype: str) -> ScalarKind:
    """Return the kind of Python number that a call passes for a scalar of `dtype`."""
    return "int" if dtype in _INT_RANGES else "bool" if dtype == "bool" else "float"


def c_text(c: CudaParam) -> str:
    """Return a parameter as C++ text for messages."""
    element = ("const " if c.const else "") + SPELLINGS[c.ctype][0]
    return parameter_text(c.form, element, c.rank, c.name).rstrip()


_TEXTS: Mapping[str, str] = {
    "scalar": "{element} {name}",
    "pointer": "{element}* {name}",
    "view": "View<{element}, {rank}> {name}",
    "tile": "Tile<{element}, {rank}> {name}",
}


def parameter_text(form: Passed | Literal["pointer"], element: str, rank: int | str | None, name: str) -> str:
    """Return the declaration of a parameter in C++. `element` is the C type, with `const` where it is const."""
    return _TEXTS[form].format(element=element, rank=rank, name=name)


# ---- scalar arguments ---------------------------------------------------------------------------
_INT_RANGES: Mapping[str, tuple[int, int]] = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u") for bits in (8, 16, 32, 64)
}  # fmt: skip
# The least magnitude that rounds to infinity (the largest number plus half a unit in its last place), and the largest
# number as text for messages. A float64 holds every Python float.
_FLOAT_LIMITS: Mapping[str, tuple[float, str]] = {
    "float16": (65520.0, "65504"),
    "bfloat16": (2.0**128 - 2.0**119, "3.3895e38"),
    "float32": (2.0**128 - 2.0**103, "3.4028e38"),
    "float64": (float("inf"), "1.7977e308"),
}


def _plain(value: object) -> object:
    """Return a NumPy scalar as a Python number, and any other value itself. This does not import NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    scalar: Any = value
    if scalar.dtype.kind in "biu":
        return bool(scalar) if scalar.dtype.kind == "b" else int(scalar)
    # bfloat16 is an extension of NumPy. Its kind is "V", which structured scalars have too.
    return float(scalar) if scalar.dtype.kind == "f" or scalar.dtype.name == "bfloat16" else value


def check_scalar(value: object, param: CudaParam, *, kernel: str) -> int | float | bool:
    """Return the Python number that is passed for a scalar parameter.

    An integer parameter accepts an int in its range. A floating-point parameter accepts a float or an int that does not
    overflow it, and infinities and NaN. A bool parameter accepts a bool. NumPy scalars are converted by value.

    Raises:
        KernelArgumentError: the parameter does not accept the value.
    """
    plain = _plain(value)
    kind = kind_of(param.ctype)
    if param.is_tensor:
        _refuse_scalar(value, param, kernel, "pass a tensor")
    if isinstance(plain, bool) or kind == "bool":
        if isinstance(plain, bool) and kind == "bool":
            return plain
        _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")
    if kind == "int" and isinstance(plain, int):
        low, high = _INT_RANGES[param.ctype]
        if low <= plain <= high:
            return int(plain)  # a subclass such as IntEnum becomes a plain int
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    if kind == "float" and isinstance(plain, int | float):
        if _fits(plain, param.ctype):
            return float(plain)
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    return _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")


def _fits(number: float, dtype: str) -> bool:
    """Return true if a number stays finite as `dtype`, or is infinite or NaN itself."""
    try:
        return abs(float(number)) < _FLOAT_LIMITS[dtype][0] or not isfinite(number)
    except OverflowError:  # an int beyond every float
        return False


def _refuse_scalar(value: object, param: CudaParam, kernel: str, cure: str) -> NoReturn:
    """Raise the error for a value that a scalar parameter does not accept."""
    plain = _plain(value)
    shown = ""  # only numbers are shown: an array could fill the screen
    if isinstance(plain, int) and plain.bit_length() > 128:  # Python refuses to print very long ones
        shown = f" of {plain.bit_length()} bits"
    elif isinstance(plain, int | float):
        shown = f" {plain!r}"
    if param.is_tensor:
        wanted = "device data"
    elif param.ctype == "bool":
        wanted = "a bool"
    elif param.ctype in _INT_RANGES:
        low, high = _INT_RANGES[param.ctype]
        wanted = f"an int from {low} to {high}"
    else:
        largest = _FLOAT_LIMITS[param.ctype][1]
        wanted = f"a number from -{largest} to {largest}"
    takes = f"its CUDA parameter '{c_text(param)}' (CUDA source line {param.line}) takes"
    if not param.line:  # the user wrote no CUDA
        takes, cure = f"elements of {param.ctype} take", cure.replace(", or declare a wider type", "")
    raise KernelArgumentError(
        f"kernel {kernel!r}: argument {param.name or '(unnamed)'!r} is {type(value).__name__}{shown}; "
        f"{takes} {wanted}. Cure: {cure}."
    )
