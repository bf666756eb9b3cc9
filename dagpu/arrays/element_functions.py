"""Functions of elements and of tensors."""

from functools import cache
from typing import Any, Final, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.sorting import argsort
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, as_elements, constant, dtype_of, operate, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.generated_launch import AnyOp, array_call, refused_call, refused_type
from dagpu.kernels.operations import DOMAINS, OPERATIONS, register_dtype, type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc, Seed, check_seed, with_seed
from dagpu.ops.initializers import DROPOUT_STREAM, PERMUTATION_STREAM, Uniform

_F32: Final = np.dtype(f32)


_D = TypeVar("_D", bound=np.generic)
_F = TypeVar("_F", bound="np.floating[Any]")
# Constrained, not bounded: handles are covariant, so a bound would join f32 and i64 to np.generic, and refuse nothing.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_M = TypeVar("_M", f16, bf16, f32, f64)
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)


@overload
def sqrt(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def sqrt(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def sqrt(x: Any, /) -> Any:
    """Return the square root, rounded once: the same bits on every device."""
    return _apply("sqrt", x)


@overload
def exp(x: Elem[_F], /) -> Elem[_F]: ...
@overload
def exp(x: In[_F], /) -> DeviceOp[Tensor[_F], Any]: ...
@leaves_run
def exp(x: Any, /) -> Any:
    """Return e to the power of x, within 2 ulp."""
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
def isnan(x: Elem[_F], /) -> Elem[bool_]: ...
@overload
def isnan(x: In[_F], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def isnan(x: Any, /) -> Any:
    """Return true where x is a NaN."""
    return _apply("isnan", x)


@overload
def isfinite(x: Elem[_F], /) -> Elem[bool_]: ...
@overload
def isfinite(x: In[_F], /) -> DeviceOp[Tensor[bool_], Any]: ...
@leaves_run
def isfinite(x: Any, /) -> Any:
    """Return true where x is neither infinite nor a NaN."""
    return _apply("isfinite", x)


@overload
def abs(x: Elem[_D], /) -> Elem[_D]: ...
@overload
def abs(x: In[_D], /) -> DeviceOp[Tensor[_D], Any]: ...
@leaves_run
def abs(x: Any, /) -> Any:
    """Return the magnitude of x. The lowest number of a signed integer type is its own magnitude, as in NumPy."""
    return _apply("absolute", x)


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
def clip(x: Elem[_D], low: Elem[_D] | float, high: Elem[_D] | float, /) -> Elem[_D]: ...
@overload
def clip(x: In[_N], low: In[_N] | float, high: In[_N] | float, /) -> DeviceOp[Tensor[_N], Any]: ...
@leaves_run
def clip(x: Any, low: Any, high: Any, /) -> Any:
    """Return `minimum(maximum(x, low), high)`: x, but not below `low` and not above `high`. A NaN wins."""
    if low is None or high is None:
        what = f"{'low' if low is None else 'high'} is None, but a number or a tensor is wanted"
        raise refused_call("clip", here(), what, "For one bound say minimum(x, high), or maximum(x, low)")
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
    for dtype in data:
        if dtype.kind == "c":
            raise refused_type(operation, origin, dtype)
    if len(data) != 1:
        what = f"operands of {' and '.join(map(type_name, data))}" if data else "the operands are numbers"
        cure = "Convert one: convert(t, f32), say" if data else "Pass a tensor: full((1,), x), say"
        raise refused_call(operation, origin, what, cure)
    (dtype,) = data
    domain = DOMAINS[
        OPERATIONS[operation].domain if operation in OPERATIONS else "any" if operation == "where" else "number"
    ]
    if dtype not in domain:
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


# ---- random functions
#
# `permutation` and `dropout`: functions with random numbers by Philox, the same on every device.

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_Float = TypeVar("_Float", f16, bf16, f32, f64)


@leaves_run
def permutation(n: int, *, seed: Seed | None = None) -> DeviceOp[Tensor[i64], Any]:
    """Return the numbers from 0 to n - 1 in random order, as i64 of shape (n,).

    They are sorted by keys of f64, which Philox draws as for `rand`, in a stream of `permutation`'s own: one seed gives
    the same order on every device and in every run. Two of these keys are equal with a probability of about
    `n ** 2 / 2 ** 54`; then the smaller number comes first.

    Args:
        n: the count.
        seed: as for `rand`: without one, each run draws another order. An argument of a pipeline varies it without
            another plan.

    Raises:
        ShapeError: n is negative, or the seed is not a whole number.
    """
    count, origin = as_whole_number(n), here()
    if count is None or count < 0:
        raise ShapeError(
            f"permutation at {describe(origin)}: n is {format_value(n)}, but it counts elements. Give a whole number "
            "of 0 or more."
        )
    keys = (count,), np.dtype(f64)

    def build(chosen: int | None) -> AnyOp:
        return Alloc(*keys, Uniform(chosen, PERMUTATION_STREAM), origin)

    return argsort(with_seed(seed, "permutation", build, origin))


@leaves_run
def dropout(x: In[_Float], p: float, *, seed: Seed | None = None) -> DeviceOp[Tensor[_Float], Any]:
    """Return x with a share p of its elements set to 0, and the others divided by 1 - p, of its shape and type.

    Philox draws a number of f32 for each element, as for `rand`, in a stream of `dropout`'s own; an element whose
    number is below p is set to 0. So one seed drops the same elements on every device and in every run, and the bits
    are the same everywhere. f16 and bf16 are divided in f32.

    Args:
        x: a tensor, or an op whose result is one.
        p: the probability, from 0 to 1. An argument of a pipeline varies it without another plan.
        seed: as for `rand`: without one, each run drops other elements.

    Raises:
        KernelArgumentError: x is not a tensor of floats, or p is not such a number.
        ShapeError: the seed is not a whole number.
    """
    origin = here()
    given = seed if isinstance(seed, DeviceOp) else check_seed(seed, "dropout", origin)

    def check_range(given: Any) -> None:
        # To compare an argument of a pipeline would fix its value in the plan.
        if type(given) is not SymbolicNumber and isinstance(given, float | int | np.floating) and not 0 <= given <= 1:
            raise refused_call("dropout", origin, f"p is {format_value(given)}", "Give a probability, from 0 to 1")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = layouts[0]
        if layout is None:
            raise refused_call("dropout", origin, "x is a number", "Pass a tensor: full((1,), x), say")
        if layouts[1] is not None:
            raise refused_call("dropout", origin, "p is a tensor", "Give a probability, from 0 to 1")
        check_range(arguments[1])
        if layout.dtype not in DOMAINS["float"]:
            raise refused_type("dropout", origin, layout.dtype)
        chances = with_seed(
            given, "dropout", lambda chosen: Alloc(layout.shape, _F32, Uniform(chosen, DROPOUT_STREAM), origin), origin
        )
        return _kept(layout.dtype).build((arguments[0], chances, arguments[1]), origin)

    check_range(p)
    return array_call("dropout", ("x", "p"), (x, p), build, origin)


@cache
def _kept(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the elements that are kept, of this type."""
    wide = register_dtype(dtype)

    def kept(x: Elem[Any], chance: Elem[Any], p: Elem[Any]) -> Elem[Any]:
        divided = x.to(wide.type) / (1 - p)
        return where(chance.to(wide.type) >= p, divided, 0.0).to(dtype.type)

    traced = trace_expression(kept, (dtype, _F32, wide))
    return Expression(traced._replace(name="dropout"), (dropout.__code__, 0))
