"""`logsumexp` and `log_softmax`: logarithms of sums of powers, without overflow.

A first reduction finds the largest element of a row, a second one adds up the powers of the elements less it, which no
memory holds, and an expression makes the result of both. f16 and bf16 are computed in f32 and rounded once.
"""

from functools import cache
from typing import Any

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.element_functions import exp, isfinite, log, where
from dagpu.arrays.fused_reductions import reduce_rows, widened
from dagpu.arrays.reductions import Axis, checked_input, kept_shape, normal_axes, with_shape
from dagpu.common.layout import Layout, bf16, contiguous_layout, f16, f32, f64
from dagpu.common.places import here, leaves_run
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.expression_text import ArgumentPattern
from dagpu.kernels.generated_launch import AnyOp, array_call, contiguous_copy, move_arguments, reshaped
from dagpu.kernels.operations import register_dtype
from dagpu.kernels.reduction_order import merge_axes
from dagpu.kernels.row_elements import one_axis
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import Form

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_F = TypeVar("_F", f16, bf16, f32, f64)


@leaves_run
def logsumexp(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return `log(sum(exp(x)))` over some axes, of the element type of `x`, without overflow on the way.

    The error is that of the sum of powers, which are within 2 ulp, and a few ulp of the largest element. For nothing it
    is -inf.

    Args:
        x: a tensor of floats, or an op whose result is one.
        axis: the axes that are summed over; None for all.
        keepdims: True keeps them, with extent 1.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `x` has no such axis.
    """
    return _log_sum("logsumexp", x, axis, keepdims)


@leaves_run
def log_softmax(x: In[_F], axis: int = -1) -> DeviceOp[Tensor[_F], Any]:
    """Return the logarithm of `softmax(x, axis)`, of the shape and element type of `x`.

    That is `x - logsumexp(x, axis)`, computed as the difference from the largest element less the logarithm of a sum.

    Args:
        x: a tensor of floats, or an op whose result is one.
        axis: one axis; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `x` has no such axis.
    """
    return _log_sum("log_softmax", x, axis, keepdims=True)


def _log_sum(name: str, x: Any, axis: object, keepdims: object) -> AnyOp:
    origin = here()
    kept, of_elements = check_flag(keepdims, name, origin, "keepdims"), name == "log_softmax"

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "float", origin)
        rank, dtype = len(layout.shape), layout.dtype
        axes = (one_axis(axis, rank, name, origin),) if of_elements else normal_axes(axis, rank, name, origin)
        shape = layout.shape if of_elements else kept_shape(layout.shape, axes, kept)
        (moved,) = move_arguments(name, arguments, origin)
        if not layout.size:
            return Alloc(shape, dtype, Constant(-np.inf), origin)
        if of_elements and not layout.contiguous:  # its axes are merged, and are those of the result
            moved, layout = contiguous_copy(moved, origin), contiguous_layout(layout.shape, dtype)
        rows = merge_axes(layout.shape, tuple([place in axes for place in range(rank)]), contiguous=layout.contiguous)
        wide = register_dtype(dtype)
        elements = ArgumentPattern(Form.IN, tuple(range(len(rows.shape))))
        others = tuple([place for place, kind in enumerate(rows.reduced) if not kind])
        of_row, of_rows = ArgumentPattern(Form.IN, others), tuple([rows.shape[place] for place in others])
        most, (again,) = reduce_rows(
            widened(dtype), "amax", [reshaped(moved, layout, rows.shape, origin)], (elements,), rows, origin, again=True
        )
        row_layout = contiguous_layout(of_rows, wide)
        largest = with_shape(most, wide, (rows.rows, 1), of_rows, origin)
        powers, (again, largest) = reduce_rows(
            _powers(dtype), "sum", [again, largest], (elements, of_row), rows, origin, again=True
        )
        if not of_elements:
            largest = reshaped(largest, row_layout, (rows.rows, 1), origin)
            found = _of_row(dtype).build((powers, largest), origin)
            return with_shape(found, dtype, (rows.rows, 1), shape, origin)
        beside = tuple([1 if kind else extent for kind, extent in zip(rows.reduced, rows.shape, strict=True)])
        summed = with_shape(powers, wide, (rows.rows, 1), beside, origin)
        largest = reshaped(largest, row_layout, beside, origin)
        return with_shape(_of_element(dtype).build((again, summed, largest), origin), dtype, rows.shape, shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


def _shift(largest: Elem[Any]) -> Elem[Any]:
    """Return what is subtracted from elements: nothing where the largest is infinite or a NaN."""
    return where(isfinite(largest), largest, 0.0)


@cache
def _powers(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the powers of elements less the largest one."""
    wide = register_dtype(dtype)

    def powers(x: Elem[Any], largest: Elem[Any]) -> Elem[Any]:
        return exp(x.to(wide.type) - _shift(largest))

    return Expression(trace_expression(powers, (dtype, wide)), (logsumexp.__code__, 0))


@cache
def _of_row(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the result for a row."""
    wide = register_dtype(dtype)

    def logarithm(summed: Elem[Any], largest: Elem[Any]) -> Elem[Any]:
        return (log(summed) + _shift(largest)).to(dtype.type)

    traced = trace_expression(logarithm, (wide, wide))
    return Expression(traced.named("logsumexp"), (logsumexp.__code__, 0))


@cache
def _of_element(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the result for an element of a row."""
    wide = register_dtype(dtype)

    def logarithm(x: Elem[Any], summed: Elem[Any], largest: Elem[Any]) -> Elem[Any]:
        return ((x.to(wide.type) - _shift(largest)) - log(summed)).to(dtype.type)

    traced = trace_expression(logarithm, (dtype, wide, wide))
    return Expression(traced.named("log_softmax"), (log_softmax.__code__, 0))
