"""`nansum`, `nanprod`, `nanmean`, `nanmax` and `nanmin`: reductions that leave NaNs out.

Expressions put a number that changes no result in the place of a NaN while a row is reduced, so no memory holds it. The
order is that of the reductions without NaNs, and so are the bits.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.element_functions import isnan, where
from dagpu.arrays.fused_reductions import reduce_rows
from dagpu.arrays.reductions import Axis, checked_input, kept_shape, no_elements, normal_axes, of_nothing, with_shape
from dagpu.common.layout import Layout, bf16, f16, f32, f64, i64
from dagpu.common.places import here, leaves_run
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.expression_text import ArgumentPattern
from dagpu.kernels.generated_launch import AnyOp, array_call, move_arguments, reshaped
from dagpu.kernels.operations import register_dtype
from dagpu.kernels.reduction_order import merge_axes
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import Form

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_F = TypeVar("_F", f16, bf16, f32, f64)

_PLAIN: Final = {"nansum": "sum", "nanprod": "prod", "nanmean": "sum", "nanmax": "amax", "nanmin": "amin"}
_FILLED: Final = {"nansum": -0.0, "nanprod": 1.0, "nanmean": -0.0, "nanmax": -np.inf, "nanmin": np.inf}
"""What stands in the place of a NaN. -0 changes no sum."""


@leaves_run
def nansum(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the sum over some axes of the elements that are no NaNs, of the element type of `x`.

    It is that of `sum` with 0 in the place of NaNs: f16 and bf16 are added in f32, and the sum is rounded once. If all
    are NaNs it is 0.

    Args:
        x: a tensor of floats, or an op whose result is one.
        axis: the axes that are summed over; None for all.
        keepdims: True keeps them, with extent 1.

    Raises:
        KernelArgumentError: the elements are not floats; integers have no NaNs.
        ShapeError: `x` has no such axis.
    """
    return _without_nans("nansum", x, axis, keepdims)


@leaves_run
def nanprod(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the product over some axes of the elements that are no NaNs; 1 if all are. Arguments and errors are those
    of `nansum`."""
    return _without_nans("nanprod", x, axis, keepdims)


@leaves_run
def nanmean(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the mean over some axes of the elements that are no NaNs; NaN if all are, without a warning. Arguments and
    errors are those of `nansum`."""
    return _without_nans("nanmean", x, axis, keepdims)


@leaves_run
def nanmax(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the largest element over some axes that is no NaN; NaN if all are, without a warning. -0 is below 0.

    Arguments are those of `nansum`.

    Raises:
        KernelArgumentError: the elements are not floats; integers have no NaNs.
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _without_nans("nanmax", x, axis, keepdims)


@leaves_run
def nanmin(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the smallest element over some axes that is no NaN; NaN if all are. Arguments and errors are those of
    `nanmax`."""
    return _without_nans("nanmin", x, axis, keepdims)


def _without_nans(name: str, x: Any, axis: object, keepdims: object) -> AnyOp:
    origin = here()
    kept = check_flag(keepdims, name, origin, "keepdims")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input(name, layouts[0], "float", origin)
        dtype, rank, plain = layout.dtype, len(layout.shape), _PLAIN[name]
        axes = normal_axes(axis, rank, name, origin)
        shape = kept_shape(layout.shape, axes, kept)
        rows = merge_axes(layout.shape, tuple([place in axes for place in range(rank)]), contiguous=layout.contiguous)
        if not rows.length and plain in ("amax", "amin") and 0 not in shape:
            raise no_elements(name, origin)
        (moved,) = move_arguments(name, arguments, origin)
        if not rows.length:
            return of_nothing("mean" if name == "nanmean" else plain, dtype, shape, origin)
        patterns = (ArgumentPattern(Form.IN, tuple(range(len(rows.shape)))),)
        passed = [reshaped(moved, layout, rows.shape, origin)]
        if name in ("nansum", "nanprod"):
            found, _ = reduce_rows(_filled(name, dtype, dtype), plain, passed, patterns, rows, origin)
        else:
            wide = register_dtype(dtype)
            reduced, again = reduce_rows(_filled(name, dtype, wide), plain, passed, patterns, rows, origin, again=True)
            test, how = (_numbers(dtype), "sum") if name == "nanmean" else (_nans(dtype), "all")
            other, _ = reduce_rows(test, how, again, patterns, rows, origin)
            found = _result(name, dtype).build((reduced, other), origin)
        return with_shape(found, dtype, (rows.rows, 1), shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


# ---- expressions
def _traced(function: Callable[..., Any], *dtypes: "np.dtype[Any]") -> Expression[..., Any]:
    return Expression(trace_expression(function, dtypes), (nansum.__code__, 0))


@cache
def _filled(name: str, dtype: "np.dtype[Any]", target: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of elements with a number in the place of NaNs, of another type."""

    def numbers(x: Elem[Any]) -> Elem[Any]:
        return where(isnan(x), _FILLED[name], x).to(target.type)

    return _traced(numbers, dtype)


@cache
def _numbers(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression that is 1 where elements are no NaNs."""

    def count(x: Elem[Any]) -> Elem[Any]:
        return (x == x).to(i64)  # reason: a NaN is not equal to itself

    return _traced(count, dtype)


@cache
def _nans(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression that is true where elements are NaNs."""

    def nans(x: Elem[Any]) -> Elem[np.bool_]:
        return isnan(x)

    return _traced(nans, dtype)


@cache
def _result(name: str, dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the result of two reductions."""
    wide = register_dtype(dtype)

    def of_sum(summed: Elem[Any], count: Elem[Any]) -> Elem[Any]:
        return (summed / count.to(wide.type)).to(dtype.type)

    def of_extremum(found: Elem[Any], none: Elem[Any]) -> Elem[Any]:
        return where(none, float("nan"), found).to(dtype.type)

    if name == "nanmean":
        return _traced(of_sum, wide, np.dtype(i64))
    return _traced(of_extremum, wide, np.dtype(np.bool_))
