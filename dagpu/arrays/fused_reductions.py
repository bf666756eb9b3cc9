"""Reductions and `softmax` of an expression; and `var` and `std`, which reduce expressions.

The order of additions is that of `softmax` of the expression's result, so the bits are the same.
"""

from collections.abc import Sequence
from functools import cache, partial
from math import isfinite, prod
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.normalising import (
    SoftmaxInput,
    SoftmaxOrder,
    normalise,
    softmax_order,
    softmax_params,
    softmax_text,
    softmax_twin,
)
from dagpu.arrays.reductions import Axis, checked_input, kept_shape, later_passes, normal_axes, of_nothing, with_shape
from dagpu.common.layout import Layout, bf16, f16, f32, f64
from dagpu.common.places import Origin, here, is_ours_at, leaves_run
from dagpu.common.wrong_arguments import check_flag, format_value, is_real_number
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import FUSED, ROW, Expression, FusedCall, FusedFunction
from dagpu.kernels.expression_text import ArgumentPattern, passed_arguments, patterns_of, walk_of_kinds
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    refused_call,
    reshaped,
    with_layouts,
)
from dagpu.kernels.operations import DOMAINS, register_dtype
from dagpu.kernels.reduction_kernels import count_params, pass_text, pass_twin
from dagpu.kernels.reduction_order import (
    REDUCTIONS,
    STEPS,
    THREADS,
    ReducedAxes,
    ReductionOrder,
    merge_axes,
    number_type,
    reduction_order,
    result_type,
)
from dagpu.kernels.row_elements import (
    GroupPattern,
    expression_elements,
    fused_name,
    one_axis,
    walked_extents,
    with_elements,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Launch, Map, components_of
from dagpu.ops.kernel_spec import Form, KernelSpec

# ---- softmax of an expression


def _accepts_softmax(_: str, dtype: "np.dtype[Any]") -> bool:
    return dtype in DOMAINS["float"]


def _softmax(call: FusedCall, args: tuple[Any, ...], origin: Origin) -> AnyOp:
    """Return the op of the softmax of an expression of these arguments."""
    expression = call.expression

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        whole = expression.broadcast(None, layouts, origin)
        axis = one_axis(call.axis, len(whole), call.label, origin)
        groups = tuple([(place > axis) - (place < axis) + 1 for place in range(len(whole))])
        walk, groups = walk_of_kinds(layouts, whole, groups)
        source, patterns = GroupPattern(groups, 3), patterns_of(layouts, walk)
        passed = passed_arguments(move_arguments(call.label, arguments, origin), layouts, walk, origin)
        extents = (prod(whole[:axis]), whole[axis], prod(whole[axis + 1 :]))
        dtype = expression.traced.dtype
        op = normalise(
            passed,
            extents,
            dtype,
            lambda step, order: _softmax_kernel(expression, step, patterns, source, order),
            origin,
        )
        result: AnyOp = reshaped(op, Layout(dtype, extents, (), 0), whole, origin)
        return result

    return with_layouts(call.label, args, partial(expression.check, origin=origin), build, origin)


def _softmax_kernel(
    expression: Expression[..., Any],
    step: str,
    patterns: tuple[ArgumentPattern, ...],
    source: GroupPattern,
    order: SoftmaxOrder,
) -> KernelSpec:
    """Return the kernel of a step for arguments of these patterns."""
    traced = expression.traced
    kernel = fused_name(traced, "softmax")

    def make() -> KernelSpec:
        inputs, elements = expression_elements(traced, patterns, kernel)
        return generated_kernel(
            kernel,
            softmax_params(step, traced.dtype, inputs),
            softmax_text(kernel, step, SoftmaxInput(elements, source), order),
            with_elements(traced, patterns, source.rank, softmax_twin(step, traced.dtype, source, order)),
            expression.origin,
            block=(order.threads,),
            walked=walked_extents(elements.operands, source.groups),
            source_name=traced.place,
            expression=f"softmax of {traced.label}",
        )

    return expression.kernel_for(("softmax", step, patterns, source, order), make)


def _softmax_of_rows(expression: Expression[..., Any], _: str) -> KernelSpec:
    patterns = (ArgumentPattern(Form.IN, (0, 1)),) * len(expression.traced.names)
    return _softmax_kernel(expression, "whole", patterns, GroupPattern((0, 1), 3), softmax_order(ROW, 1))


FUSED_SOFTMAX: Final = FusedFunction(_accepts_softmax, _softmax, _softmax_of_rows)


# ---- fused reductions
#
# Reductions of an expression, whose elements are computed in the kernel of the first pass.
#
# The rows are those of the broadcast arguments. The order in which elements are combined is that of the reduction of
# the expression's result, so the bits are the same.


def _accepts(name: str, dtype: "np.dtype[Any]") -> bool:
    return dtype in DOMAINS[STEPS[name].domain]


def _reduce(call: FusedCall, args: tuple[Any, ...], origin: Origin) -> AnyOp:
    """Return the op of a reduction of an expression of these arguments."""
    expression, name = call.expression, call.name

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        dtype, whole = expression.traced.dtype, expression.broadcast(None, layouts, origin)
        axes = normal_axes(call.axis, len(whole), call.label, origin)
        shape = kept_shape(whole, axes, call.keepdims)
        walk, kinds = walk_of_kinds(layouts, whole, tuple([number in axes for number in range(len(whole))]))
        rows = ReducedAxes(walk.shape, kinds)
        if not rows.length:
            nothing = of_nothing(name, dtype, shape, origin)
            move_arguments(call.label, arguments, origin)
            return nothing
        passed = passed_arguments(move_arguments(call.label, arguments, origin), layouts, walk, origin)
        found, _ = reduce_rows(expression, name, passed, patterns_of(layouts, walk), rows, origin)
        return with_shape(found, result_type(name, dtype), (rows.rows, 1), shape, origin)

    return with_layouts(call.label, args, partial(expression.check, origin=origin), build, origin)


def reduce_rows(
    expression: Expression[..., Any],
    name: str,
    passed: Sequence[Any],
    patterns: tuple[ArgumentPattern, ...],
    rows: ReducedAxes,
    origin: Origin,
    *,
    dtype: "np.dtype[Any] | None" = None,
    count: float | None = None,
    again: bool = False,
) -> tuple[AnyOp, list[AnyOp]]:
    """Return the op of all passes of a reduction of an expression, whose result has the shape (rows, 1). With `again`,
    also return the ops of the arguments after the first pass.

    Args:
        expression: computes the elements.
        name: the reduction.
        passed: the arguments as the kernel takes them. They have moved.
        patterns: those of the arguments.
        rows: the axes of the elements.
        origin: the place of the call.
        dtype: the element type of the reduction; None for that of the expression.
        count: what a mean divides by; None for the number of elements.
        again: true if other ops use the arguments.
    """
    dtype = expression.traced.dtype if dtype is None else dtype
    order, count = reduction_order(rows.length, rows.neighbours), rows.length if count is None else count
    spans = -(-rows.length // order.span)
    spec = _kernel(expression, name, dtype, patterns, rows.reduced, order, spans == 1)
    target = new_output((rows.rows, spans), spec.params[0].dtype or dtype, (order.rows, 1), origin)
    counted = [count] if len(spec.params) > 1 + len(passed) else []
    arguments, others = (target, *passed, *counted), list[AnyOp]()
    if again:
        made, *after = components_of(Launch(spec, arguments, origin), origin)
        others += after[: len(passed)]
        x: AnyOp = Map(made, UNCUT, origin)
    else:
        x = first_output(spec, arguments, origin)
    if spans > 1:
        x = later_passes(name, x, dtype, ReducedAxes((rows.rows, spans), (False, True)), count, origin)
    return x, others


def _kernel(
    expression: Expression[..., Any],
    name: str,
    dtype: "np.dtype[Any]",
    patterns: tuple[ArgumentPattern, ...],
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    last: bool,
) -> KernelSpec:
    """Return the kernel of the first pass, for arguments of these patterns. `dtype` is that of the reduction."""
    traced = expression.traced
    number, kernel = number_type(name, dtype), fused_name(traced, name)
    target = result_type(name, dtype) if last else number

    def make() -> KernelSpec:
        inputs, elements = expression_elements(traced, patterns, kernel)
        params = [output("out", target, 2), *inputs, *count_params(name, number, last)]
        text = pass_text(kernel, name, elements, (number, target), reduced, order, (True, last))
        twin = with_elements(traced, patterns, len(reduced), pass_twin(name, number, reduced, order, (True, last)))
        place = expression.origin
        label = name if is_ours_at(place) else f"{name} of {traced.label}"
        return generated_kernel(
            kernel,
            params,
            text,
            twin,
            place,
            block=(THREADS,),
            walked=walked_extents(elements.operands, reduced),
            source_name=traced.place,
            expression=label,
        )

    return expression.kernel_for(("reduced", name, dtype, patterns, reduced, order, last), make)


def _kernel_of_rows(expression: Expression[..., Any], name: str) -> KernelSpec:
    patterns = (ArgumentPattern(Form.IN, (0, 1)),) * len(expression.traced.names)
    dtype = expression.traced.dtype
    return _kernel(expression, name, dtype, patterns, (False, True), reduction_order(ROW, 1), True)


FUSED.set({**dict.fromkeys(REDUCTIONS, FusedFunction(_accepts, _reduce, _kernel_of_rows)), "softmax": FUSED_SOFTMAX})


# ---- `var` and `std`: means of the squares of deviations from the mean
#
# The mean is computed first, in f32 for f16 and bf16. It is rounded, and its error, which the squares would have in
# each of them, is the mean of the deviations from it: a second reduction finds that, and a third adds up the squares of
# the deviations less it. So equal numbers have no variance, however large they are (Chan, Golub, LeVeque, "Algorithms
# for computing the sample variance", 1983, whose formula 1.7 subtracts the same from the sum). The kernels compute the
# deviations that they add up, in the order of any other reduction, so the bits are the same on every device.


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
            widened(layout.dtype), "mean", [reshaped(moved, layout, rows.shape, origin)], (elements,), rows, origin,
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
def widened(dtype: "np.dtype[Any]") -> Expression[..., Any]:
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
