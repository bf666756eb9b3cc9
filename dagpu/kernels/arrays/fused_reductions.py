"""Reductions of an expression, whose elements are computed in the kernel of the first pass.

The rows are those of the broadcast arguments. The order in which elements are combined is that of the reduction of the
expression's result, so the bits are the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.kernels.arrays.reduction_kernels import Elements, count_params, pass_text, pass_twin
from dagpu.kernels.arrays.reduction_order import THREADS, ReducedAxes, ReductionOrder, reduction_order
from dagpu.kernels.arrays.reduction_steps import STEPS, number_type, result_type
from dagpu.kernels.arrays.reductions import kept_shape, later_passes, normal_axes, of_nothing, with_shape
from dagpu.kernels.arrays.row_walk import Operand
from dagpu.kernels.expressions.broadcasting import direct_walk, merged_walk_of_kinds
from dagpu.kernels.expressions.cuda_operations import load_text, memory_type
from dagpu.kernels.expressions.element_operations import DOMAINS
from dagpu.kernels.expressions.expression import Expression, patterns_of
from dagpu.kernels.expressions.expression_text import ArgumentPattern, element_function, parameter_names, safe_name
from dagpu.kernels.expressions.numpy_twin import numpy_twin
from dagpu.kernels.expressions.reduced_expression import ACCEPTS, REDUCE
from dagpu.kernels.expressions.traced_expression import TracedExpression
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    reshaped,
    tensor_input,
    with_layouts,
)
from dagpu.ops.kernel_spec import KernelSpec, Param


def _accepts(name: str, dtype: "np.dtype[Any]") -> bool:
    return dtype in DOMAINS[STEPS[name].domain]


def _reduce(
    expression: Expression[..., Any], name: str, axis: object, keepdims: bool, args: tuple[Any, ...], origin: Origin
) -> AnyOp:
    """Return the op of a reduction of an expression of these arguments."""
    label = f"{name} of expression {expression.traced.name!r}"

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        dtype, whole = expression.traced.dtype, expression.broadcast(None, layouts, origin)
        axes = normal_axes(axis, len(whole), label, origin)
        shape = kept_shape(whole, axes, keepdims)
        kinds = tuple([number in axes for number in range(len(whole))])
        known = [layout for layout in layouts if layout is not None]
        shapes = [layout.shape for layout in known]
        if all(layout.contiguous for layout in known):
            walk, kinds = merged_walk_of_kinds(whole, shapes, kinds)
        else:
            walk = direct_walk(whole, shapes)
        rows = ReducedAxes(walk.shape, kinds)
        if not rows.length:
            nothing = of_nothing(name, dtype, shape, origin)
            move_arguments(label, arguments, origin)
            return nothing
        given, moved = iter(walk.arrays), move_arguments(label, arguments, origin)
        passed = [
            arg if layout is None else reshaped(arg, layout, next(given), origin)
            for arg, layout in zip(moved, layouts, strict=True)
        ]
        found = _passes(expression, name, passed, patterns_of(layouts, walk), rows, origin)
        return with_shape(found, result_type(name, dtype), (rows.rows, 1), shape, origin)

    return with_layouts(label, expression.check(args, origin), build, origin)


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
    key = ("reduced", name, patterns, rows.reduced, order, spans == 1)
    spec = expression.kernel_for(
        key, lambda: _kernel(expression.traced, expression.origin, name, patterns, rows.reduced, order, spans == 1)
    )
    target = new_output((rows.rows, spans), spec.params[0].dtype or dtype, (order.rows, 1), origin)
    counted = len(spec.params) > 1 + len(passed)
    x = first_output(spec, (target, *passed, *([rows.length] if counted else [])), origin)
    if spans == 1:
        return x
    return later_passes(name, x, dtype, ReducedAxes((rows.rows, spans), (False, True)), rows.length, origin)


def _kernel(
    traced: TracedExpression,
    place: Origin,
    name: str,
    patterns: tuple[ArgumentPattern, ...],
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    last: bool,
) -> KernelSpec:
    """Return the kernel of the first pass, for arguments of these patterns."""
    number, kernel = number_type(name, traced.dtype), safe_name(f"{traced.name}_{name}")
    target = result_type(name, traced.dtype) if last else number
    params: list[Param] = [output("out", target, 2)]
    operands: list[Operand] = []
    formals, values = "", list[str]()
    each = zip(patterns, traced.dtypes, parameter_names(traced), strict=True)
    for index, (pattern, dtype, param) in enumerate(each):
        argument = f"x{index}"  # a name that the text of the walk does not use
        if pattern.form == "number":
            params.append(number_input(param, dtype, kernel))
            formals += f", {memory_type(dtype)} {argument}"
            values.append(load_text(dtype, argument))
        else:
            params.append(tensor_input(param, dtype, len(pattern.axes)))
            formals += f", View<const {memory_type(dtype)}, {len(pattern.axes)}> {argument}"
            values.append(f"@{len(operands)}")
            operands.append(Operand(argument, dtype, pattern.axes))

    def value(read: Any) -> str:
        return f"element({', '.join([read[int(text[1:])] if text[0] == '@' else text for text in values])})"

    functions, helpers = element_function(traced)
    elements = Elements(traced.dtype, tuple(operands), formals, value, functions + "\n", frozenset(helpers))
    text = pass_text(kernel, name, elements, (number, target), reduced, order, (True, last))
    params += count_params(name, number, last)
    twin = _twin(traced, name, patterns, reduced, order, last)
    return generated_kernel(kernel, params, text, twin, place, block=(THREADS,), source_name=traced.place)


def _twin(
    traced: TracedExpression,
    name: str,
    patterns: tuple[ArgumentPattern, ...],
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    last: bool,
) -> Callable[..., None]:
    """Return the NumPy twin. On the host the elements are in memory, for one launch."""
    compute = numpy_twin(traced, patterns)
    combine = pass_twin(name, number_type(name, traced.dtype), reduced, order, (True, last))

    def body(out: Any, *arguments: Any) -> None:
        given = arguments[: len(patterns)]
        shape = [0] * len(reduced)
        for pattern, argument in zip(patterns, given, strict=True):
            for axis, extent in zip(pattern.axes, getattr(argument, "shape", ()), strict=True):
                if axis >= 0:
                    shape[axis] = extent
        elements = np.empty(shape, traced.dtype)
        compute(elements, *given)
        combine(out, elements, *arguments[len(patterns) :])

    return body


REDUCE.set(_reduce)
ACCEPTS.set(_accepts)
