"""Reductions and `softmax` of an expression.

The order of additions is that of `softmax` of the expression's result, so the bits are the same.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from dagpu.arrays.axis_groups import GroupPattern, one_axis
from dagpu.arrays.normalising import (
    SoftmaxInput,
    SoftmaxOrder,
    normalise,
    softmax_order,
    softmax_params,
    softmax_text,
    softmax_twin,
)
from dagpu.arrays.reduction_order import (
    REDUCTIONS,
    STEPS,
    THREADS,
    ReducedAxes,
    ReductionOrder,
    number_type,
    reduction_order,
    result_type,
)
from dagpu.arrays.reductions import (
    count_params,
    kept_shape,
    later_passes,
    normal_axes,
    of_nothing,
    pass_text,
    pass_twin,
    with_shape,
)
from dagpu.common.layout import Layout
from dagpu.common.param_form import Form
from dagpu.common.places import Origin, is_ours_at
from dagpu.kernels.expression import FUSED, ROW, Expression, FusedCall, FusedFunction
from dagpu.kernels.expression_text import ArgumentPattern, passed_arguments, patterns_of, walk_of_kinds
from dagpu.kernels.generated_launch import (
    AnyOp,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    reshaped,
    with_layouts,
)
from dagpu.kernels.operations import DOMAINS
from dagpu.kernels.row_elements import expression_elements, fused_name, walked_extents, with_elements
from dagpu.ops.compose import UNCUT, Map, components_of
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch


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
