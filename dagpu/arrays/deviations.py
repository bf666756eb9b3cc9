"""`var` and `std`: means of the squares of deviations from the mean.

The mean is computed first, in f32 for f16 and bf16. It is rounded, and its error, which the squares would have in each
of them, is the mean of the deviations from it: a second reduction finds that, and a third adds up the squares of the
deviations less it. So equal numbers have no variance, however large they are (Chan, Golub, LeVeque, "Algorithms for
computing the sample variance", 1983, whose formula 1.7 subtracts the same from the sum). The kernels compute the
deviations that they add up, in the order of any other reduction, so the bits are the same on every device.
"""

from functools import cache
from math import isfinite
from typing import Any

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.fused_reductions import reduce_rows
from dagpu.arrays.reduction_order import merge_axes
from dagpu.arrays.reductions import Axis, checked_input, kept_shape, normal_axes, of_nothing, with_shape
from dagpu.common.layout import Layout, bf16, f16, f32, f64
from dagpu.common.param_form import Form
from dagpu.common.places import here, leaves_run
from dagpu.common.wrong_arguments import check_flag, format_value, is_real_number
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem
from dagpu.kernels.expression import Expression
from dagpu.kernels.expression_text import ArgumentPattern
from dagpu.kernels.generated_launch import AnyOp, array_call, move_arguments, refused_call, reshaped
from dagpu.kernels.operations import register_dtype
from dagpu.kernels.traced_expression import trace_expression
from dagpu.ops.base import DeviceOp

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_F = TypeVar("_F", f16, bf16, f32, f64)


@leaves_run
def var(x: In[_F], axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the variance over some axes: the sum of the squared deviations from the mean, divided by `n - ddof`.

    f16 and bf16 are computed in f32, and the result is rounded once. The variance of nothing is NaN. If `ddof` is not
    below n, the divisor is 0, as in NumPy.

    Args:
        x: a tensor of floats, or an op whose result is one.
        axis: the axes that are reduced; None for all.
        ddof: 0 for the variance of the elements, 1 for an estimate of that of what they are a sample of.
        keepdims: True keeps the axes, with extent 1.

    Raises:
        KernelArgumentError: the elements are not floats, or `ddof` is not a number.
        ShapeError: `x` has no such axis.
    """
    return _spread("var", x, axis, ddof, keepdims)


@leaves_run
def std(x: In[_F], axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the standard deviation over some axes: the square root of the variance. Arguments and errors are those of
    `var`."""
    return _spread("std", x, axis, ddof, keepdims)


def _spread(name: str, x: Any, axis: object, ddof: object, keepdims: object) -> AnyOp:
    origin = here()
    kept = check_flag(keepdims, name, origin, "keepdims")
    if not is_real_number(ddof) or not isfinite(ddof):
        cure = "Give a number: 0 divides by the count of elements, 1 by one less"
        raise refused_call(name, origin, f"ddof is {format_value(ddof)}", cure)
    fewer = float(ddof)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "float", origin)
        axes = normal_axes(axis, len(layout.shape), name, origin)
        reduced = tuple([place in axes for place in range(len(layout.shape))])
        shape = kept_shape(layout.shape, axes, kept)
        rows = merge_axes(layout.shape, reduced, contiguous=layout.contiguous)
        (moved,) = move_arguments(name, arguments, origin)
        if not rows.length:
            return of_nothing(name, layout.dtype, shape, origin)
        elements = ArgumentPattern(Form.IN, tuple(range(len(rows.shape))))
        wide = register_dtype(layout.dtype)
        means, (again,) = reduce_rows(
            _widened(layout.dtype), "mean", [reshaped(moved, layout, rows.shape, origin)], (elements,), rows, origin,
            again=True,
        )  # fmt: skip
        others = tuple([place for place, kind in enumerate(rows.reduced) if not kind])
        kept_axes = tuple([rows.shape[place] for place in others])
        mean = with_shape(means, wide, (rows.rows, 1), kept_axes, origin)
        of_row = ArgumentPattern(Form.IN, others)
        errors, (again, mean) = reduce_rows(
            _deviations(layout.dtype), "mean", [again, mean], (elements, of_row), rows, origin, again=True
        )
        error = with_shape(errors, wide, (rows.rows, 1), kept_axes, origin)
        count = max(rows.length - fewer, 0.0)
        found, _ = reduce_rows(
            _squares(layout.dtype), name, [again, mean, error], (elements, of_row, of_row), rows, origin,
            dtype=layout.dtype, count=count,
        )  # fmt: skip
        return with_shape(found, layout.dtype, (rows.rows, 1), shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


@cache
def _widened(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the elements in the type in which they are added."""
    wide = register_dtype(dtype)

    def elements(x: Elem[Any]) -> Elem[Any]:
        return x.to(wide.type)

    return Expression(trace_expression(elements, (dtype,)), (var.__code__, 0))


@cache
def _deviations(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the deviations of elements from a mean."""
    wide = register_dtype(dtype)

    def deviations(x: Elem[Any], mean: Elem[Any]) -> Elem[Any]:
        return x.to(wide.type) - mean

    return Expression(trace_expression(deviations, (dtype, wide)), (var.__code__, 0))


@cache
def _squares(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the squared deviations of elements from a mean whose error is known."""
    wide = register_dtype(dtype)

    def squares(x: Elem[Any], mean: Elem[Any], error: Elem[Any]) -> Elem[Any]:
        apart = x.to(wide.type) - mean - error
        return apart * apart

    return Expression(trace_expression(squares, (dtype, wide, wide)), (var.__code__, 0))
