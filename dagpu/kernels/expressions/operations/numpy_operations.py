"""The NumPy functions of the operations of an expression: the same bits as the CUDA text, and no warnings.

Each function takes arrays or NumPy scalars, and an array for its result or None. The element type of the operands has
been checked. f16 and bf16 arrive as f32 with rounded values, and `numpy_function` rounds the result.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.expressions.operations.cuda_operations import is_half
from dagpu.kernels.expressions.operations.error_function import erf

Array: TypeAlias = "NDArray[Any]"
NumpyFunction: TypeAlias = Callable[..., Any]
"""A function `f(*operands, out=None)`, which returns its result; that is `out` if it is given."""


def register_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type in which values are kept between operations: f32 for f16 and bf16."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def round_half(x: Any, dtype: "np.dtype[Any]") -> Any:
    """Return f32 numbers rounded to f16 or bf16, as f32."""
    return x.astype(dtype).astype(np.float32)


def numpy_function(operation: str, dtype: "np.dtype[Any]", result: "np.dtype[Any]") -> NumpyFunction:
    """Return the function of an operation on operands of element type `dtype`, with a result of type `result`."""
    found = _OWN.get(operation) or getattr(np, operation)
    if operation in ("minimum", "maximum") and dtype.kind in "iu":
        found = getattr(np, operation)
    if not is_half(dtype) or result.kind == "b":
        return found

    def rounded(*operands: Any, out: Any = None) -> Any:
        return _into(out, round_half(found(*operands), dtype))

    return rounded


def cast_function(source: "np.dtype[Any]", target: "np.dtype[Any]") -> NumpyFunction:
    """Return the function that converts elements to another type."""

    def cast(x: Any, out: Any = None) -> Any:
        if target.kind == "b":
            return np.not_equal(x, 0, out=out)
        if is_half(target):
            narrow = x.astype(np.float32) if target == ml_dtypes.bfloat16 else x
            return _into(out, narrow.astype(target).astype(np.float32))
        if out is None:
            return x.astype(target)
        np.copyto(out, x, casting="unsafe")
        return out

    del source
    return cast


def where(condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """Return `a` where the condition holds, else `b`."""
    return _into(out, np.where(condition, a, b))


def _into(out: Any, found: Any) -> Any:
    """Return a result, in `out` if that is given."""
    if out is None:
        return found
    np.copyto(out, found)
    return out


def _extremum(choose: Any, combine: Any) -> NumpyFunction:
    """Return `np.minimum` or `np.maximum` with -0 below 0; NumPy leaves open which of two zeros it gives.

    Two equal floats have the same bits, unless they are zeros. So `combine`, `|` or `&` of the bits, is right for both.
    """

    def extremum(a: Any, b: Any, out: Any = None) -> Any:
        number = a if isinstance(a, np.generic) else b if isinstance(b, np.generic) else None
        if number is not None and number != 0:  # then no two zeros meet
            return choose(a, b, out=out)
        found = choose(a, b)
        if number is not None and choose is np.maximum and not np.signbit(number):
            return np.add(found, number, out=out)  # at least 0, so that this makes 0 of -0 and changes no other
        zeros = np.equal(found, 0)
        if zeros.any():
            ties = zeros & np.equal(a, b)
            bits = np.dtype(f"u{found.dtype.itemsize}")
            both = combine(np.asarray(a).view(bits), np.asarray(b).view(bits)).view(found.dtype)
            found = np.where(ties, both, found)
        return _into(out, found)

    return extremum


def _power(a: Any, b: Any, out: Any = None) -> Any:
    """Return `np.power`, with 0 for -0 and infinity for -infinity to the power of 0.5, as C and IEEE 754 have it.

    NumPy takes a square root where the exponents are one number, and `pow` where they are an array.
    """
    roots = np.equal(b, 0.5)
    if roots.any():
        a = np.where(roots & (np.equal(a, 0) | np.equal(a, -np.inf)), np.abs(a), a)
    return np.power(a, b, out=out)


def _in_double(function: "np.ufunc") -> NumpyFunction:
    """Return a function of NumPy computed in f64 and rounded, which is within 0.51 units in the last place of f32.

    NumPy's own loops for f32 are off by up to 3.8 (log), 2.4 (exp), 2.6 (expm1), 1.9 (log1p) and 2.2 (tanh), by other
    amounts on each kind of processor. This takes 1 to 2 ns for an element more, of blocks that NumPy converts.
    """

    def in_double(x: Any, out: Any = None) -> Any:
        if isinstance(x, np.ndarray):
            room = np.empty(x.shape, x.dtype) if out is None else out
            return function(x, out=room, dtype=np.float64, casting="same_kind")
        return _into(out, function(x, dtype=np.float64).astype(x.dtype))

    return in_double


IN_DOUBLE: Final = {name: _in_double(getattr(np, name)) for name in ("exp", "expm1", "log", "log1p", "tanh")}
"""The operations that are computed in f64. `sin`, `cos` and `pow` of f32 are within 1.5 units, and twenty times as fast
as in f64."""


def writes_result(function: NumpyFunction) -> bool:
    """Return true if a function writes its result into the array for it, and makes none on the way."""
    return isinstance(function, np.ufunc) or any(function is each for each in IN_DOUBLE.values())


_OWN: Final[dict[str, NumpyFunction]] = {
    **IN_DOUBLE,
    "minimum": _extremum(np.minimum, np.bitwise_or),
    "maximum": _extremum(np.maximum, np.bitwise_and),
    "erf": erf,
    "power": _power,
}
"""The operations that NumPy lacks or leaves open; all others are its functions of the same name."""
