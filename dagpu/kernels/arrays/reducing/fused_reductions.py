"""Reductions of an expression, whose elements are computed in the kernel of the first pass.

The rows are those of the broadcast arguments. The order in which elements are combined is that of the reduction of the
expression's result, so the bits are the same.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, is_ours_at
from dagpu.common.param_form import Form
from dagpu.kernels.arrays.movement.fused_softmax import FUSED_SOFTMAX
from dagpu.kernels.arrays.reducing.reduction_kernels import count_params, pass_text
from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReducedAxes, ReductionOrder, reduction_order
from dagpu.kernels.arrays.reducing.reduction_steps import REDUCTIONS, STEPS, number_type, result_type
from dagpu.kernels.arrays.reducing.reduction_twins import pass_twin
from dagpu.kernels.arrays.reducing.reductions import kept_shape, later_passes, normal_axes, of_nothing, with_shape
from dagpu.kernels.expressions.broadcasting import passed_arguments, patterns_of, walk_of_kinds
from dagpu.kernels.expressions.expression import Expression
from dagpu.kernels.expressions.expression_text import ArgumentPattern
from dagpu.kernels.expressions.operations.element_operations import DOMAINS
from dagpu.kernels.expressions.reduced_expression import FUSED, ROW, FusedCall, FusedFunction
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    with_layouts,
)
from dagpu.kernels.generated.row_elements import expression_elements, fused_name, walked_extents, with_elements
from dagpu.ops.compose import Map, components_of
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import UNCUT


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
