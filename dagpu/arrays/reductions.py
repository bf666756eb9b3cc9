"""Reductions over axes: the public functions, their generated kernels and the NumPy twins.

All combine elements in an order that follows from the shape alone (`reduction_order`), in one pass or two. So the bits
of a result are the same on every device, in every schedule and in every run.
"""

from functools import cache
from typing import Any, Final, TypeAlias, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
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
    scalar_dtype,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import FUSED, Expression, FusedCall
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    move_arguments,
    new_output,
    refused_call,
    refused_type,
    reshaped,
)
from dagpu.kernels.operations import (
    DOMAINS,
    Domain,
)
from dagpu.kernels.reduction_kernels import reduction_kernel
from dagpu.kernels.reduction_order import (
    COUNTED,
    STEPS,
    ReducedAxes,
    identity,
    merge_axes,
    number_type,
    reduction_order,
    result_type,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant

_D = TypeVar("_D", bound=np.generic)
# Constrained, not bounded: handles are covariant, and a bound would accept bool, which has no sum.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
_E = TypeVar("_E", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)
_F = TypeVar("_F", f16, bf16, f32, f64)
_X = TypeVar("_X", f16, bf16, f32, f64, c64, c128)

Axis: TypeAlias = int | tuple[int, ...] | None
"""One axis, several, or all of them (None). A negative number counts from the last axis."""


@overload
def sum(x: In[_N], axis: Axis = None, *, dtype: None = None, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]: ...
@overload
def sum(x: In[_D], axis: Axis = None, *, dtype: type[_E], keepdims: bool = False) -> DeviceOp[Tensor[_E], Any]: ...
@leaves_run
def sum(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the sum over some axes, of the element type of `x` or of another one.

    Integers wrap and are not widened unless `dtype` says so. f16 and bf16 are added in f32, and the sum is rounded
    once. Nothing adds up to 0.

    Args:
        x: a tensor, or an op whose result is one.
        axis: the axes that are summed over; None for all.
        dtype: the element type to which elements are converted while they are added, in the same launch: `i64` for a
            sum of `i8` that does not fit, `i32` for the number of true bools.
        keepdims: True keeps the axes, with extent 1.

    Raises:
        KernelArgumentError: the elements are bools, and `dtype` is None; or there is no such element type.
        ShapeError: `x` has no such axis.
    """
    return _reduce("sum", x, axis, keepdims, dtype)


@overload
def prod(x: In[_N], axis: Axis = None, *, dtype: None = None, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]: ...
@overload
def prod(x: In[_D], axis: Axis = None, *, dtype: type[_E], keepdims: bool = False) -> DeviceOp[Tensor[_E], Any]: ...
@leaves_run
def prod(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the product over some axes, of the element type of `x` or of another one. As for `sum`, integers wrap; f16
    and bf16 are multiplied in f32. The product of nothing is 1. Arguments and errors are those of `sum`."""
    return _reduce("prod", x, axis, keepdims, dtype)


@leaves_run
def mean(x: In[_X], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_X], Any]:
    """Return the mean over some axes: the sum divided by the number of elements. The mean of nothing is NaN."""
    return _reduce("mean", x, axis, keepdims)


@overload
def norm(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]: ...
@overload
def norm(x: In[c64], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def norm(x: In[c128], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[f64], Any]: ...
@leaves_run
def norm(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Return the Euclidean norm over some axes: the square root of the sum of squares; of complex elements of their
    sizes, so that it is real.

    Squares are not scaled: they overflow from about 1.8e19 on in f32, and for f16 and bf16, which are squared in f32.
    """
    return _reduce("norm", x, axis, keepdims)


@leaves_run
def amin(x: In[_V], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_V], Any]:
    """Return the smallest element over some axes. A NaN wins, and -0 is below 0; of bools it is `all`.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _reduce("amin", x, axis, keepdims)


@leaves_run
def amax(x: In[_V], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_V], Any]:
    """Return the largest element over some axes. A NaN wins, and -0 is below 0; of bools it is `any`.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _reduce("amax", x, axis, keepdims)


@leaves_run
def any(x: In[_D], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[bool_], Any]:
    """Return true where an element over some axes is not 0. A NaN is not 0. False for nothing."""
    return _reduce("any", x, axis, keepdims)


@leaves_run
def all(x: In[_D], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[bool_], Any]:
    """Return true where no element over some axes is 0. True for nothing."""
    return _reduce("all", x, axis, keepdims)


# ---- axes
def normal_axes(axis: object, rank: int, name: str, origin: Origin) -> tuple[int, ...]:
    """Return the axes that an argument `axis` names, counted from the first.

    Raises:
        ShapeError: it is not a number, a tuple of different numbers, or None, or there is no such axis.
    """
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    found = [as_whole_number(each) for each in given]
    axes = tuple([each % rank for each in found if each is not None and -rank <= each < rank])
    if len(axes) != len(found) or len(set(axes)) != len(axes):
        raise ShapeError(
            f"{name} at {describe(origin)}: axis is {format_value(axis)}, but x has {rank} axes. Give one of them, a "
            "tuple of different ones, or None for all."
        )
    return axes


def kept_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return the shape of a result: without the reduced axes, or with extent 1 there."""
    if keepdims:
        return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])
    return tuple([n for axis, n in enumerate(shape) if axis not in axes])


def checked_input(name: str, layout: Layout | None, domain: Domain, origin: Origin, param: str = "x") -> Layout:
    """Return the layout of an input, the argument `param` of a function of tensors.

    Raises:
        KernelArgumentError: it is a number, or a tensor of an element type that the function does not take.
    """
    if layout is None:
        raise refused_call(name, origin, f"{param} is a number", "Pass a tensor: full((1,), x), say")
    if layout.dtype not in DOMAINS[domain]:
        raise refused_type(name, origin, layout.dtype)
    return layout


def no_elements(name: str, origin: Origin) -> ShapeError:
    """Return the error for the smallest or largest of no elements."""
    return ShapeError(
        f"{name} at {describe(origin)}: x has no elements along the axis, so there is none to choose. Append one "
        "before, or test its shape."
    )


# ---- passes
OF_BOOLS: Final = {"amin": "all", "amax": "any"}
"""The reductions of bools that have another name."""


def _reduce(name: str, x: Any, axis: object, keepdims: bool, dtype: object = None) -> AnyOp:
    origin = here()
    kept, target = check_flag(keepdims, name, origin, "keepdims"), scalar_dtype(dtype)
    if dtype is not None and (target is None or target.kind == "b"):
        what = f"dtype is {format_value(dtype)}"
        raise refused_call(name, origin, what, f"Pass the element type of a number: array.{name}(x, dtype=f32), say")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        domain = "ordered" if name in OF_BOOLS else "any" if target is not None else STEPS[name].domain
        layout = checked_input(name, layouts[0], domain, origin)
        if target is not None and target != layout.dtype:
            if layout.dtype.kind == "c" and target.kind != "c":
                raise refused_type(name, origin, layout.dtype)
            fused = FUSED.value[name]
            op: AnyOp = fused.build(FusedCall(converted(layout.dtype, target), name, axis, kept), arguments, origin)
            return op
        axes = normal_axes(axis, len(layout.shape), name, origin)
        shape = kept_shape(layout.shape, axes, kept)
        merged = merge_axes(
            layout.shape, tuple([a in axes for a in range(len(layout.shape))]), contiguous=layout.contiguous
        )
        if not merged.length and name in OF_BOOLS and 0 not in shape:
            raise no_elements(name, origin)
        does = OF_BOOLS.get(name, name) if layout.dtype.kind == "b" else name
        (moved,) = move_arguments(name, arguments, origin)
        if not merged.length:
            return of_nothing(does, layout.dtype, shape, origin)
        found = _passes(does, reshaped(moved, layout, merged.shape, origin), layout.dtype, merged, origin)
        return with_shape(found, result_type(does, layout.dtype), (merged.rows, 1), shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


@cache
def converted(dtype: "np.dtype[Any]", target: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of elements of another type."""

    def elements(x: Elem[Any]) -> Elem[Any]:
        return x.to(target.type)

    return Expression(trace_expression(elements, (dtype,)), (_reduce.__code__, 0))


def _passes(name: str, x: Any, dtype: "np.dtype[Any]", axes: ReducedAxes, origin: Origin) -> AnyOp:
    """Return the op of all passes over the rows of `x`. Its result has the shape (rows, 1)."""
    return later_passes(name, x, dtype, axes, axes.length, origin, first=True)


def later_passes(
    name: str, x: Any, dtype: "np.dtype[Any]", axes: ReducedAxes, count: float, origin: Origin, *, first: bool = False
) -> AnyOp:
    """Return the op of the passes over the rows of `x`, which are numbers of an earlier pass, or with `first` elements
    of `dtype`. `count` is what the last pass of a mean divides by. The result has the shape (rows, 1)."""
    rows = axes.rows
    while True:
        order = reduction_order(axes.length, axes.neighbours)
        spans = -(-axes.length // order.span)
        last = spans == 1
        spec = reduction_kernel(name, dtype, axes.reduced, order, first, last)
        target = new_output((rows, spans), spec.params[0].dtype or dtype, (order.rows, 1), origin)
        numbers = [count] if len(spec.params) == 3 else []
        x = first_output(spec, (target, x, *numbers), origin)
        if last:
            found: AnyOp = x
            return found
        axes, first = ReducedAxes((rows, spans), (False, True)), False


def with_shape(op: AnyOp, dtype: "np.dtype[Any]", before: Shape, shape: Shape, origin: Origin) -> AnyOp:
    """Return an op whose result has the shape `before` with another shape."""
    result: AnyOp = reshaped(op, Layout(dtype, before, (), 0), shape, origin)
    return result


def of_nothing(name: str, dtype: "np.dtype[Any]", shape: Shape, origin: Origin) -> AnyOp:
    """Return the op of a reduction over no elements.

    Raises:
        ShapeError: there is no smallest and no largest one, and some are asked for.
    """
    if name in OF_BOOLS and 0 not in shape:
        raise no_elements(name, origin)
    number = number_type(name, dtype)
    value = 0.0 if STEPS[name].operation == "add" else identity(STEPS[name].operation, number).item()
    value = float("nan") if STEPS[name].finish in COUNTED else value
    return Alloc(shape, result_type(name, dtype), Constant(value), origin)
