"""The NumPy functions of the operations of an expression: the same bits as the CUDA text, and no warnings.

Each function takes arrays or NumPy scalars, and an array for its result or None. The element type of the operands has
been checked. f16 and bf16 arrive as f32 with rounded values, and `numpy_function` rounds the result.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.operations import OF_LIBRARIES, is_half

Array: TypeAlias = NDArray[Any]
NumpyFunction: TypeAlias = Callable[..., Any]
"""A function `f(*operands, out=None)`, which returns its result; that is `out` if it is given."""


# ---- the error function
#
# NumPy has none. The approximations are those of FreeBSD's s_erf.c (Sun Microsystems, 1993), with an error below 1 ulp.
# f32 is computed in f64 and rounded.

_TINY: Final = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
     -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
"""Numerator and denominator for |x| below 0.84375."""
_NEAR: Final = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
     -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
"""For |x| from there to 1.25, about 1."""
_MIDDLE: Final = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01,
     -1.62396669462573470355e+02, -1.84605092906711035994e+02, -8.12874355063065934246e+01,
     -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02, 6.57024977031928170135e+00,
     -6.04244152148580987438e-02),
)  # fmt: skip
"""For |x| from there to 1 / 0.35."""
_FAR: Final = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02,
     -6.37566443368389627722e+02, -1.02509513161107724954e+03, -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02, -2.24409524465858183362e+01),
)  # fmt: skip
"""For |x| from there to 6."""
_ONE_PART: Final = 8.45062911510467529297e-01
"""erf(1), as a number with few bits."""


def erf(x: Any, out: Any = None) -> Any:
    """Return the error function of each element, with the element type of `x`, in `out` if that is given."""
    given = np.asarray(x)
    found = _erf(np.atleast_1d(given).astype(np.float64)).reshape(given.shape).astype(given.dtype)
    if out is None:
        return found[()]
    np.copyto(out, found)
    return out


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.abs(x)
    found = np.sign(x)  # NaN stays NaN; from 6 on it is 1
    tiny = size < 0.84375
    part = x[tiny]
    found[tiny] = part + part * _ratio(_TINY, part * part)
    near = ~tiny & (size < 1.25)
    found[near] *= _ONE_PART + _ratio(_NEAR, size[near] - 1.0)
    for table, low, high in ((_MIDDLE, 1.25, 1 / 0.35), (_FAR, 1 / 0.35, 6.0)):
        inside = (size >= low) & (size < high)
        part = size[inside]
        # exp(-x * x) of the exact square: z is x without its lower bits, so that z * z is exact.
        z = (part.view(np.int64) & ~np.int64(0xFFFFFFFF)).view(np.float64)
        tail = np.exp(-z * z - 0.5625) * np.exp((z - part) * (z + part) + _ratio(table, 1.0 / (part * part)))
        found[inside] *= 1.0 - tail / part
    return found


def _ratio(table: "tuple[tuple[float, ...], tuple[float, ...]]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient of two polynomials; coefficients in rising order."""
    numerator, denominator = (_polynomial(coefficients, x) for coefficients in table)
    found: NDArray[np.float64] = numerator / denominator
    return found


def _polynomial(coefficients: "tuple[float, ...]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found


# ---- operations
def round_half(x: Any, dtype: "np.dtype[Any]") -> Any:
    """Return f32 numbers rounded to f16 or bf16, as f32."""
    return x.astype(dtype).astype(np.float32)


def numpy_function(operation: str, dtype: "np.dtype[Any]", result: "np.dtype[Any]") -> NumpyFunction:
    """Return the function of an operation on operands of element type `dtype`, with a result of type `result`."""
    if dtype.kind == "c" and operation in _COMPLEX_OWN:
        return _COMPLEX_OWN[operation]
    found = _OWN.get(operation) or getattr(np, operation)
    if operation in ("minimum", "maximum") and dtype.kind in "iu":
        found = getattr(np, operation)
    if not is_half(dtype) or result.kind == "b":
        return found
    if operation == "nextafter":
        return _next_of(dtype)

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


def _numpy_extremum(choose: Any, combine: Any) -> NumpyFunction:
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


def _next_of(dtype: "np.dtype[Any]") -> NumpyFunction:
    """Return `nextafter` of f16 or bf16: the next number of that type. Of equal operands it is the second, as in C."""

    def next_number(a: Any, b: Any, out: Any = None) -> Any:
        after = np.nextafter(a.astype(dtype), b.astype(dtype)).astype(np.float32)
        return _into(out, np.where(np.equal(a, b), b, after)[()])

    return next_number


def _in_double(function: "np.ufunc") -> NumpyFunction:
    """Return a function of NumPy computed in f64 and rounded, which is within 0.51 units in the last place of f32.

    NumPy's own loops for f32 are off by up to 3.8 (log), 2.4 (exp), 2.6 (expm1), 1.9 (log1p) and 2.2 (tanh), by other
    amounts on each kind of processor. This takes 1 to 2 ns for an element more, of blocks that NumPy converts.
    """

    def in_double(*operands: Any, out: Any = None) -> Any:
        dtype = operands[0].dtype
        if any(isinstance(each, np.ndarray) for each in operands):
            room = np.empty(np.broadcast_shapes(*map(np.shape, operands)), dtype) if out is None else out
            return function(*operands, out=room, dtype=np.float64, casting="same_kind")
        return _into(out, function(*operands, dtype=np.float64).astype(dtype))

    return in_double


IN_DOUBLE: Final = {
    name: _in_double(getattr(np, name)) for name in (*OF_LIBRARIES, "logaddexp") if name not in ("sin", "cos", "erf")
}
"""The operations that are computed in f64. `sin`, `cos` and `pow` of f32 are within 1.5 units, and twenty times as fast
as in f64."""


def writes_result(function: NumpyFunction) -> bool:
    """Return true if a function writes its result into the array for it, and makes none on the way."""
    return isinstance(function, np.ufunc) or any(function is each for each in IN_DOUBLE.values())


def complex_product(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of complex numbers, with each product and sum of parts rounded once, as the CUDA text has it.

    NumPy rounds once less where the processor has fused operations, and where the elements lie in its vectors.
    """
    real = a.real * b.real - a.imag * b.imag
    imag = a.real * b.imag + a.imag * b.real
    found = np.empty(np.shape(real), np.result_type(a, b)) if out is None else out
    found.real, found.imag = real, imag
    return found if out is not None or found.shape else found[()]


def complex_factor(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of complex numbers in which 1 changes no bit: the function of `combined_text`."""
    found = np.where(np.equal(a, 1), b, np.where(np.equal(b, 1), a, complex_product(a, b)))
    return found[()] if out is None else _into(out, found)


def combining_function(operation: str, number: "np.dtype[Any]") -> NumpyFunction:
    """Return the function that combines numbers as the text of `combined_text` does."""
    if operation == "multiply" and number.kind == "c":
        return complex_factor
    return numpy_function(operation, number, number)


def _real(x: Any, out: Any = None) -> Any:
    return _into(out, x.real)


def _imag(x: Any, out: Any = None) -> Any:
    return _into(out, x.imag)


def _angle(x: Any, out: Any = None) -> Any:
    return IN_DOUBLE["atan2"](x.imag, x.real, out=out)


_COMPLEX_OWN: Final[dict[str, NumpyFunction]] = {
    "multiply": complex_product, "real": _real, "imag": _imag, "angle": _angle, "exp": np.exp, "sqrt": np.sqrt,
}  # fmt: skip
"""The functions of complex operands; all others are NumPy's of the same name."""

_OWN: Final[dict[str, NumpyFunction]] = {
    **IN_DOUBLE,
    "minimum": _numpy_extremum(np.minimum, np.bitwise_or),
    "maximum": _numpy_extremum(np.maximum, np.bitwise_and),
    "erf": erf,
    "power": _power,
}
"""The operations that NumPy lacks or leaves open; all others are its functions of the same name."""
