"""Functions of elements and of tensors."""

from functools import cache
from typing import Any, Final, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.layout import (
    COMPLEX,
    Layout,
    bf16,
    bool_,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import PARTS, Elem, as_elements, constant, dtype_of, operate, part_of, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.generated_launch import AnyOp, array_call, refused_call, refused_type
from dagpu.kernels.operations import DOMAINS, OPERATIONS, Domain, type_name
from dagpu.ops.base import DeviceOp

_F32: Final = np.dtype(f32)


_D = TypeVar("_D", bound=np.generic)
_F = TypeVar("_F", bound="np.floating[Any]")
_X = TypeVar("_X", bound="np.inexact[Any]")
# Constrained, not bounded: handles are covariant, so a bound would join f32 and i64 to np.generic, and refuse nothing.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_M = TypeVar("_M", f16, bf16, f32, f64)
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)


@overload
def sqrt(x: Elem[_X], /) -> Elem[_X]: ...
@overload
def sqrt(x: In[_X], /) -> DeviceOp[Tensor[_X], Any]: ...
@leaves_run
def sqrt(x: Any, /) -> Any:
    """Return the square root, rounded once: the same bits on every device. That of a complex number lies in the right
    half of the plane, within 4 ulp of its size."""
    return _apply("sqrt", x)


@overload
def exp(x: Elem[_X], /) -> Elem[_X]: ...
@overload
def exp(x: In[_X], /) -> DeviceOp[Tensor[_X], Any]: ...
@leaves_run
def exp(x: Any, /) -> Any:
    """Return e to the power of x, within 2 ulp; of a complex x within 4 ulp of its size."""
    return _apply("exp", x)


@overload
def expm1(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def expm1(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def expm1(x: Any, /) -> Any:
    """Return exp(x) - 1, within 2 ulp, exact for small x too."""
    return _apply("expm1", x)


@overload
def log(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def log(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def log(x: Any, /) -> Any:
    """Return the natural logarithm, within 2 ulp."""
    return _apply("log", x)


@overload
def log1p(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def log1p(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def log1p(x: Any, /) -> Any:
    """Return log(1 + x), within 2 ulp, exact for small x too."""
    return _apply("log1p", x)


@overload
def tanh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def tanh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def tanh(x: Any, /) -> Any:
    """Return the hyperbolic tangent, within 2 ulp; of f64 on hosts without AVX-512 within 3."""
    return _apply("tanh", x)


@overload
def sin(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def sin(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def sin(x: Any, /) -> Any:
    """Return the sine of x in radians, within 2 ulp."""
    return _apply("sin", x)


@overload
def cos(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def cos(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def cos(x: Any, /) -> Any:
    """Return the cosine of x in radians, within 2 ulp."""
    return _apply("cos", x)


@overload
def erf(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def erf(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def erf(x: Any, /) -> Any:
    """Return the error function, within 2 ulp."""
    return _apply("erf", x)


@overload
def floor(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def floor(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def floor(x: Any, /) -> Any:
    """Return the largest whole number that is not above x."""
    return _apply("floor", x)


@overload
def ceil(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def ceil(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def ceil(x: Any, /) -> Any:
    """Return the smallest whole number that is not below x."""
    return _apply("ceil", x)


@overload
def rint(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def rint(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def rint(x: Any, /) -> Any:
    """Return the nearest whole number; of two as near, the even one."""
    return _apply("rint", x)


@overload
def isnan(x: Elem[_X], /) -> Elem[bool_]: ...
@overload
def isnan(x: In[_X], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def isnan(x: Any, /) -> Any:
    """Return true where x is a NaN."""
    return _apply("isnan", x)


@overload
def isfinite(x: Elem[_X], /) -> Elem[bool_]: ...
@overload
def isfinite(x: In[_X], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def isfinite(x: Any, /) -> Any:
    """Return true where x is neither infinite nor a NaN."""
    return _apply("isfinite", x)


@overload
def log2(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def log2(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def log2(x: Any, /) -> Any:
    """Return the logarithm to the base 2, within 2 ulp."""
    return _apply("log2", x)


@overload
def log10(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def log10(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def log10(x: Any, /) -> Any:
    """Return the logarithm to the base 10, within 2 ulp."""
    return _apply("log10", x)


@overload
def tan(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def tan(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def tan(x: Any, /) -> Any:
    """Return the tangent of x in radians, within 4 ulp."""
    return _apply("tan", x)


@overload
def asin(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def asin(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def asin(x: Any, /) -> Any:
    """Return the arc sine in radians, within 2 ulp. It is NaN below -1 and above 1."""
    return _apply("asin", x)


@overload
def acos(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def acos(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def acos(x: Any, /) -> Any:
    """Return the arc cosine in radians, within 2 ulp. It is NaN below -1 and above 1."""
    return _apply("acos", x)


@overload
def atan(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def atan(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def atan(x: Any, /) -> Any:
    """Return the arc tangent in radians, within 2 ulp."""
    return _apply("atan", x)


@overload
def sinh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def sinh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def sinh(x: Any, /) -> Any:
    """Return the hyperbolic sine, within 4 ulp."""
    return _apply("sinh", x)


@overload
def cosh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def cosh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def cosh(x: Any, /) -> Any:
    """Return the hyperbolic cosine, within 2 ulp."""
    return _apply("cosh", x)


@overload
def asinh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def asinh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def asinh(x: Any, /) -> Any:
    """Return the inverse of the hyperbolic sine, within 4 ulp."""
    return _apply("asinh", x)


@overload
def acosh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def acosh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def acosh(x: Any, /) -> Any:
    """Return the inverse of the hyperbolic cosine, within 4 ulp. It is NaN below 1."""
    return _apply("acosh", x)


@overload
def atanh(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def atanh(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def atanh(x: Any, /) -> Any:
    """Return the inverse of the hyperbolic tangent, within 4 ulp. It is NaN below -1 and above 1."""
    return _apply("atanh", x)


@overload
def trunc(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def trunc(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def trunc(x: Any, /) -> Any:
    """Return the nearest whole number that is not farther from 0 than x."""
    return _apply("trunc", x)


@overload
def isinf(x: Elem[_X], /) -> Elem[bool_]: ...
@overload
def isinf(x: In[_X], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def isinf(x: Any, /) -> Any:
    """Return true where x is infinite, of either sign."""
    return _apply("isinf", x)


@overload
def signbit(x: Elem[_F], /) -> Elem[bool_]: ...
@overload
def signbit(x: In[_F], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def signbit(x: Any, /) -> Any:
    """Return true where the sign of x is negative, as that of -0 is. The sign of a NaN may be either."""
    return _apply("signbit", x)


@overload
def sign(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def sign(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def sign(x: Any, /) -> Any:
    """Return -1, 0 or 1 for an x below, at or above 0. A NaN stays one, and the sign of -0 is 0."""
    return _apply("sign", x)


@overload
def positive(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def positive(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def positive(x: Any, /) -> Any:
    """Return x itself; of a tensor, a copy."""
    return _apply("positive", x)


@overload
def abs(x: Elem[c64], /) -> Elem[f32]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def abs(x: Elem[c128], /) -> Elem[f64]: ...
@overload
def abs(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def abs(x: In[c64], /) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def abs(x: In[c128], /) -> DeviceOp[Tensor[f64], Any]: ...
@overload
def abs(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def abs(x: Any, /) -> Any:
    """Return the magnitude of x. The lowest number of a signed integer type is its own magnitude, as in NumPy. That of
    a complex number is real, within 4 ulp, and does not overflow on the way."""
    return _apply("absolute", x)


@overload
def real(x: Elem[c64], /) -> Elem[f32]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def real(x: Elem[c128], /) -> Elem[f64]: ...
@overload
def real(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def real(x: In[c64], /) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def real(x: In[c128], /) -> DeviceOp[Tensor[f64], Any]: ...
@overload
def real(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def real(x: Any, /) -> Any:
    """Return the real part of x: of c64 an f32, of c128 an f64. A real x is its own real part."""
    return _apply("real", x)


@overload
def imag(x: Elem[c64], /) -> Elem[f32]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def imag(x: Elem[c128], /) -> Elem[f64]: ...
@overload
def imag(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def imag(x: In[c64], /) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def imag(x: In[c128], /) -> DeviceOp[Tensor[f64], Any]: ...
@overload
def imag(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def imag(x: Any, /) -> Any:
    """Return the imaginary part of x: of c64 an f32, of c128 an f64. That of a real x is 0."""
    return _apply("imag", x)


@overload
def conj(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def conj(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def conj(x: Any, /) -> Any:
    """Return the complex conjugate of x. A real x is its own conjugate."""
    return _apply("conj", x)


@overload
def angle(x: Elem[c64], /) -> Elem[f32]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def angle(x: Elem[c128], /) -> Elem[f64]: ...
@overload
def angle(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def angle(x: In[c64], /) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def angle(x: In[c128], /) -> DeviceOp[Tensor[f64], Any]: ...
@overload
def angle(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def angle(x: Any, /) -> Any:
    """Return the angle of x in the complex plane, `atan2(x.imag, x.real)`: in radians, from -pi to pi, within 4 ulp."""
    return _apply("angle", x)


@overload
def minimum(a: Elem[_D], b: Elem[_D] | float, /) -> Elem[_D]: ...
@overload
def minimum(a: float, b: Elem[_D], /) -> Elem[_D]: ...
@overload
def minimum(a: In[_N], b: In[_N] | float, /) -> DeviceOp[Tensor[_N], Any]: ...
@overload
def minimum(a: float, b: In[_N], /) -> DeviceOp[Tensor[_N], Any]: ...
@leaves_run
def minimum(a: Any, b: Any, /) -> Any:
    """Return the smaller of two elements. A NaN wins, and -0 is below 0."""
    return _apply("minimum", a, b)


@overload
def maximum(a: Elem[_D], b: Elem[_D] | float, /) -> Elem[_D]: ...
@overload
def maximum(a: float, b: Elem[_D], /) -> Elem[_D]: ...
@overload
def maximum(a: In[_N], b: In[_N] | float, /) -> DeviceOp[Tensor[_N], Any]: ...
@overload
def maximum(a: float, b: In[_N], /) -> DeviceOp[Tensor[_N], Any]: ...
@leaves_run
def maximum(a: Any, b: Any, /) -> Any:
    """Return the larger of two elements. A NaN wins, and -0 is below 0."""
    return _apply("maximum", a, b)


@overload
def pow(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def pow(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def pow(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def pow(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def pow(a: Any, b: Any, /) -> Any:
    """Return a to the power of b, within 2 ulp; of infinities and zeros as C's `pow`.

    In an expression `x ** 2` is `x * x`, and `x ** 0.5` is `sqrt(x)`. That differs for -inf and -0: `pow(-inf, 0.5)` is
    inf and `pow(-0.0, 0.5)` is 0, where the square root is NaN and -0.
    """
    return _apply("power", a, b)


@overload
def atan2(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def atan2(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def atan2(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def atan2(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def atan2(a: Any, b: Any, /) -> Any:
    """Return the angle of the point (b, a) in radians, from -pi to pi, within 4 ulp; of infinities and zeros as C's
    `atan2`."""
    return _apply("atan2", a, b)


@overload
def hypot(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def hypot(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def hypot(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def hypot(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def hypot(a: Any, b: Any, /) -> Any:
    """Return `sqrt(a * a + b * b)` without overflow on the way, within 4 ulp. It is infinite if one operand is."""
    return _apply("hypot", a, b)


@overload
def logaddexp(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def logaddexp(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def logaddexp(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def logaddexp(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def logaddexp(a: Any, b: Any, /) -> Any:
    """Return `log(exp(a) + exp(b))` without overflow on the way.

    Its error is at most 4 ulp of the largest of `abs(a)`, `abs(b)` and 1.
    """
    return _apply("logaddexp", a, b)


@overload
def copysign(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def copysign(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def copysign(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def copysign(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def copysign(a: Any, b: Any, /) -> Any:
    """Return the magnitude of a with the sign of b. The sign of a NaN may be either."""
    return _apply("copysign", a, b)


@overload
def nextafter(a: Elem[_F], b: Elem[_F] | float, /) -> Elem[_F]: ...
@overload
def nextafter(a: float, b: Elem[_F], /) -> Elem[_F]: ...
@overload
def nextafter(a: In[_M], b: In[_M] | float, /) -> DeviceOp[Tensor[_M], Any]: ...
@overload
def nextafter(a: float, b: In[_M], /) -> DeviceOp[Tensor[_M], Any]: ...
@leaves_run
def nextafter(a: Any, b: Any, /) -> Any:
    """Return the next number of the element type after a, towards b; b itself if they are equal."""
    return _apply("nextafter", a, b)


@overload
def where(condition: Elem[bool_], a: Elem[_D], b: Elem[_D] | float, /) -> Elem[_D]: ...
@overload
def where(condition: Elem[bool_], a: float, b: Elem[_D], /) -> Elem[_D]: ...
@overload
def where(condition: Elem[bool_], a: float, b: float, /) -> Elem[f32]: ...
@overload
def where(condition: In[bool_], a: In[_V], b: In[_V] | float, /) -> DeviceOp[Tensor[_V], Any]: ...
@overload
def where(condition: In[bool_], a: float, b: In[_V], /) -> DeviceOp[Tensor[_V], Any]: ...
@overload
def where(condition: In[bool_], a: float, b: float, /) -> DeviceOp[Tensor[f32], Any]: ...
@leaves_run
def where(condition: Any, a: Any, b: Any, /) -> Any:
    """Return a where the condition holds, else b. Tensors broadcast by NumPy's rules.

    Two numbers give elements of f32, as `full` does.
    """
    return _apply("where", condition, a, b)


@overload
def clip(x: Elem[_D], low: Elem[_D] | float | None = None, high: Elem[_D] | float | None = None, /) -> Elem[_D]: ...
@overload
def clip(
    x: In[_N], low: In[_N] | float | None = None, high: In[_N] | float | None = None, /
) -> DeviceOp[Tensor[_N], Any]: ...
@leaves_run
def clip(x: Any, low: Any = None, high: Any = None, /) -> Any:
    """Return `minimum(maximum(x, low), high)`: x, but not below `low` and not above `high`. A NaN wins.

    A bound that is None is none: `clip(x, 0)` has no upper one, and `clip(x, None, 1)` no lower one.
    """
    if low is None and high is None:
        raise refused_call("clip", here(), "low and high are None", "Give one bound: clip(x, 0), or clip(x, None, 1)")
    if low is None or high is None:
        return _apply("minimum" if low is None else "maximum", x, high if low is None else low)
    return _apply("clip", x, low, high)


# ---- elements or tensors
def _apply(operation: str, *operands: Any) -> Any:
    """Return what an operation makes of elements, or the op that it makes of tensors."""
    if any(isinstance(operand, Elem) for operand in operands):
        return _of_elements(operation, operands)
    origin = here()
    names = ("condition", "a", "b") if operation == "where" else ("x", "low", "high") if operation == "clip" else "ab"
    return array_call(operation, names, operands, lambda a, layouts: _build(operation, a, layouts, origin), origin)


def _build(operation: str, arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...], origin: Origin) -> AnyOp:
    """Return the op of an operation on tensors and numbers, by the expression for their element types."""
    dtypes = [None if layout is None else layout.dtype for layout in layouts]
    data = dict.fromkeys([dtype for dtype in dtypes[operation == "where" :] if dtype is not None])
    if operation == "where" and not data and dtypes[0] is not None:
        data = {_F32: None}
    if len(data) != 1:
        what = f"operands of {' and '.join(map(type_name, data))}" if data else "the operands are numbers"
        other = type_name(np.result_type(*data, np.complex64)) if COMPLEX.intersection(data) else "f32"
        cure = f"Convert one: convert(t, {other}), say" if data else "Pass a tensor: full((1,), x), say"
        raise refused_call(operation, origin, what, cure)
    (dtype,) = data
    others: dict[str, Domain] = {"where": "any", "clip": "real", **PARTS}
    if dtype not in DOMAINS[others[operation] if operation in others else OPERATIONS[operation].domain]:
        raise refused_type(operation, origin, dtype)
    condition = [np.dtype(np.bool_)] if operation == "where" else []
    wanted = (*condition, *[dtype] * (len(arguments) - len(condition)))
    return _expression(operation, wanted).build(arguments, origin)


@cache
def _expression(operation: str, dtypes: tuple["np.dtype[Any]", ...]) -> Expression[..., Any]:
    """Return the expression of one operation, made once for each element type."""
    formals: dict[int, Any] = {
        1: lambda x: _of_elements(operation, (x,)),
        2: lambda a, b: _of_elements(operation, (a, b)),
    }
    others: dict[str, Any] = {
        "clip": lambda x, low, high: _of_elements(operation, (x, low, high)),
        "where": lambda condition, a, b: _of_elements(operation, (condition, a, b)),
    }
    traced = trace_expression(others.get(operation) or formals[len(dtypes)], dtypes)
    return Expression(traced.named(operation), (_apply.__code__, 0))


def _of_elements(operation: str, operands: tuple[Any, ...]) -> Elem[Any]:
    """Return the element that an operation makes of elements and numbers."""
    if operation == "clip":
        x, low, high = operands
        return operate("minimum", operate("maximum", x, low), high)
    if operation in PARTS and isinstance(operands[0], Elem):
        return part_of(operation, operands[0])
    if operation != "where":
        return operate(operation, *operands)
    condition, *choices = operands
    if not isinstance(condition, Elem) or dtype_of(condition).kind != "b":
        raise TypeError(
            f"where at {describe(here())}: its condition is {format_value(condition)}, but an element of bool is "
            "wanted. Write a comparison: where(x > 0, a, b)."
        )
    if any(isinstance(choice, Elem) for choice in choices):
        a, b = as_elements(tuple(choices), "where")
    else:
        a, b = [constant(choice, _F32, "where", alone=True) for choice in choices]
    return Elem("where", dtype_of(a), (condition, a, b))
