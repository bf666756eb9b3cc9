"""Reductions of an expression, whose elements are computed in the kernel of the first pass.

The rows are those of the broadcast arguments. The order in which elements are combined is that of the reduction of the
expression's result, so the bits are the same.
"""

from functools import partial
from typing import Any

import numpy as np

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.kernels.arrays.movement.fused_softmax import FUSED_SOFTMAX
from dagpu.kernels.arrays.reducing.reduction_kernels import count_params, pass_text, pass_twin
from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReducedAxes, ReductionOrder, reduction_order
from dagpu.kernels.arrays.reducing.reduction_steps import STEPS, number_type, result_type
from dagpu.kernels.arrays.reducing.reductions import kept_shape, later_passes, normal_axes, of_nothing, with_shape
from dagpu.kernels.expressions.element_operations import DOMAINS
from dagpu.kernels.expressions.expression import Expression, passed_arguments, patterns_of, walk_of_kinds
from dagpu.kernels.expressions.expression_text import ArgumentPattern
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
from dagpu.kernels.generated.row_elements import expression_elements, fused_name, with_elements
from dagpu.ops.kernel_spec import KernelSpec


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
        found = _passes(expression, name, passed, patterns_of(layouts, walk), rows, origin)
        return with_shape(found, result_type(name, dtype), (rows.rows, 1), shape, origin)

    return with_layouts(call.label, args, partial(expression.check, origin=origin), build, origin)


def _passes(
    expression: Expression[..., Any],
    name: str,
    passed: list[Any],
    patterns: tuple[ArgumentPattern, ...],
    rows: ReducedAxes,
    origin: Origin,
) -> AnyOp:
    """Return the op of all passes. Its result has the shape (rows, 1)."""
    dtype, order = expression.traced.dtype, reduction_order(rows.length, rows.neighbours)
    spans = -(-rows.length // order.span)
    spec = _kernel(expression, name, patterns, rows.reduced, order, spans == 1)
    target = new_output((rows.rows, spans), spec.params[0].dtype or dtype, (order.rows, 1), origin)
    counted = len(spec.params) > 1 + len(passed)
    x = first_output(spec, (target, *passed, *([rows.length] if counted else [])), origin)
    if spans == 1:
        return x
    return later_passes(name, x, dtype, ReducedAxes((rows.rows, spans), (False, True)), rows.length, origin)


def _kernel(
    expression: Expression[..., Any],
    name: str,
    patterns: tuple[ArgumentPattern, ...],
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    last: bool,
) -> KernelSpec:
    """Return the kernel of the first pass, for arguments of these patterns."""
    traced = expression.traced
    number, kernel = number_type(name, traced.dtype), fused_name(traced, name)
    target = result_type(name, traced.dtype) if last else number

    def make() -> KernelSpec:
        inputs, elements = expression_elements(traced, patterns, kernel)
        params = [output("out", target, 2), *inputs, *count_params(name, number, last)]
        text = pass_text(kernel, name, elements, (number, target), reduced, order, (True, last))
        twin = with_elements(traced, patterns, len(reduced), pass_twin(name, number, reduced, order, (True, last)))
        place = expression.origin
        return generated_kernel(kernel, params, text, twin, place, block=(THREADS,), source_name=traced.place)

    return expression.kernel_for(("reduced", name, patterns, reduced, order, last), make)


def _kernel_of_rows(expression: Expression[..., Any], name: str) -> KernelSpec:
    patterns = (ArgumentPattern("array", (0, 1)),) * len(expression.traced.names)
    return _kernel(expression, name, patterns, (False, True), reduction_order(ROW, 1), True)


FUSED.set({**dict.fromkeys(STEPS, FusedFunction(_accepts, _reduce, _kernel_of_rows)), "softmax": FUSED_SOFTMAX})
