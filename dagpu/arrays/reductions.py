"""Reductions over axes: the public functions, their generated kernels and the NumPy twins.

All combine elements in an order that follows from the shape alone (`reduction_order`), in one pass or two. So the bits
of a result are the same on every device, in every schedule and in every run.
"""

from typing import Any, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
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
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_F = TypeVar("_F", f16, bf16, f32, f64)

Axis: TypeAlias = int | tuple[int, ...] | None
"""One axis, several, or all of them (None). A negative number counts from the last axis."""


@leaves_run
def sum(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the sum over some axes, of the element type of `x`.

    Integers wrap and are not widened: convert before, `convert(t, i64)`, where a sum may not fit. f16 and bf16 are
    added in f32, and the sum is rounded once. Nothing adds up to 0.

    Args:
        x: a tensor, or an op whose result is one.
        axis: the axes that are summed over; None for all.
        keepdims: True keeps them, with extent 1.

    Raises:
        ShapeError: `x` has no such axis.
    """
    return _reduce("sum", x, axis, keepdims)


@leaves_run
def prod(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the product over some axes, of the element type of `x`. As for `sum`, integers wrap; f16 and bf16 are
    multiplied in f32. The product of nothing is 1."""
    return _reduce("prod", x, axis, keepdims)


@leaves_run
def mean(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the mean over some axes: the sum divided by the number of elements. The mean of nothing is NaN."""
    return _reduce("mean", x, axis, keepdims)


@leaves_run
def norm(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the Euclidean norm over some axes: the square root of the sum of squares.

    Squares are not scaled: they overflow from about 1.8e19 on in f32, and for f16 and bf16, which are squared in f32.
    """
    return _reduce("norm", x, axis, keepdims)


@leaves_run
def amin(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the smallest element over some axes. A NaN wins, and -0 is below 0.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _reduce("amin", x, axis, keepdims)


@leaves_run
def amax(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the largest element over some axes. A NaN wins, and -0 is below 0.

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
def _reduce(name: str, x: Any, axis: object, keepdims: bool) -> AnyOp:
    origin = here()
    kept = check_flag(keepdims, name, origin, "keepdims")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], STEPS[name].domain, origin)
        axes = normal_axes(axis, len(layout.shape), name, origin)
        shape = kept_shape(layout.shape, axes, kept)
        merged = merge_axes(
            layout.shape, tuple([a in axes for a in range(len(layout.shape))]), contiguous=layout.contiguous
        )
        if not merged.length:
            nothing = of_nothing(name, layout.dtype, shape, origin)
            move_arguments(name, arguments, origin)
            return nothing
        (moved,) = move_arguments(name, arguments, origin)
        found = _passes(name, reshaped(moved, layout, merged.shape, origin), layout.dtype, merged, origin)
        return with_shape(found, result_type(name, layout.dtype), (merged.rows, 1), shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


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
    if name in ("amin", "amax") and 0 not in shape:
        raise no_elements(name, origin)
    number = number_type(name, dtype)
    value = 0.0 if STEPS[name].operation == "add" else identity(STEPS[name].operation, number).item()
    value = float("nan") if STEPS[name].finish in COUNTED else value
    return Alloc(shape, result_type(name, dtype), Constant(value), origin)
