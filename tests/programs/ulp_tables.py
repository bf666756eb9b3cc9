"""Operands for the functions that need not be exact, and how far a result is from the exact one.

`validation_rows` are those of NumPy itself, which its wheels bring: numpy/_core/tests/data, whose results come from a
library with correct rounding.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu import bf16, f16, f32, f64

FUNCTIONS: Final = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "sin", "cos", "erf", "acos", "asin", "atan", "cosh",
    "tan", "sinh", "asinh", "acosh", "atanh",
)  # fmt: skip
PROMISED: Final = 2.0
"""Units in the last place, as the guide on arrays and the docstrings say."""


def promised(name: str, dtype: Any) -> float:
    """The same, but `tanh` of f64 is the C library's where NumPy has no code of its own for a processor."""
    if name in ("tan", "sinh", "asinh", "acosh", "atanh"):
        return 4.0
    return 3.0 if name == "tanh" and dtype is f64 else PROMISED


FLOATS: Final[tuple[Any, ...]] = (f16, bf16, f32, f64)

_OF_NUMPY: Final = {name: name.replace("a", "arc", 1) for name in ("acos", "asin", "atan", "asinh", "acosh", "atanh")}

_erf: Callable[[NDArray[Any]], NDArray[Any]] = np.vectorize(math.erf, otypes=[f64])


def operands(dtype: Any) -> NDArray[Any]:
    """Numbers of all sizes, with infinities and NaNs, and many where functions are hard: near 0, and from 0.5 to 2."""
    if np.dtype(dtype).itemsize == 2:
        return _quiet(np.arange(1 << 16, dtype=np.uint16).view(dtype))
    near = np.concatenate([np.linspace(0.5, 2, 40_001), np.linspace(-3, 3, 20_001), np.linspace(-104, 89, 20_001)])
    if dtype is f32:
        bits = np.arange(0, 1 << 32, 40_503, dtype=np.uint64).astype(np.uint32)
        return _quiet(np.concatenate([bits.view(f32), near.astype(f32)]))
    bits = np.arange(0, 1 << 64, 370_955_466_731_123, dtype=np.uint64)
    return _quiet(np.concatenate([bits.view(f64), near]))


def _quiet(x: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers with one NaN for all: a signalling one would warn when it is widened."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(x), x.dtype.type(np.nan), x)


def exact(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """The function of each operand, in a wider type than it has: f64, or a long double for f64."""
    wide = x.astype(np.longdouble if x.dtype == f64 else f64)
    with np.errstate(all="ignore"):
        return _erf(wide) if name == "erf" else getattr(np, name)(wide)


def units(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Return the largest distance of a result from the exact number, in units in the last place of its element type.
    Where the exact number is rounded to infinity, or is a NaN, the result must be so, too."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(found.dtype)
        finite = np.isfinite(rounded.astype(f64))
        there, unit = found[finite].astype(wanted.dtype), np.spacing(np.abs(rounded[finite])).astype(wanted.dtype)
        largest = float(np.max(np.abs(there - wanted[finite]) / unit, initial=0.0))
        # one more unit is infinity for the largest numbers
        edge = np.isinf(rounded.astype(f64)) & (
            np.abs(found.astype(f64)) == float(np.nextafter(found.dtype.type(np.inf), found.dtype.type(0)))
        )
        np.testing.assert_array_equal(np.isfinite(found.astype(f64)) & ~edge, finite)
        np.testing.assert_array_equal(np.isnan(found.astype(f64)), np.isnan(wanted.astype(f64)))
    return largest


def validation_rows(name: str, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """NumPy's operands for a function, and the correctly rounded results; None if they are not installed."""
    found = (
        Path(np.__file__).parent / "_core" / "tests" / "data" / f"umath-validation-set-{_OF_NUMPY.get(name, name)}.csv"
    )
    if not found.exists():
        return None
    rows = [
        line.split(",") for line in found.read_text().splitlines() if line.startswith(f"np.{np.dtype(dtype).name},")
    ]
    bits = np.array([[int(x, 16), int(y, 16)] for _, x, y, _ in rows], np.uint64)
    x, y = bits.astype(f"u{np.dtype(dtype).itemsize}").T.copy().view(dtype)
    return x, y
