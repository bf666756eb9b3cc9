"""`softmax` of an expression, whose elements are computed in the kernels that normalise them.

The order of additions is that of `softmax` of the expression's result, so the bits are the same.
"""

from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.common.param_form import Form
from dagpu.kernels.arrays.movement.axis_groups import GroupPattern, one_axis
from dagpu.kernels.arrays.movement.normalising import normalise
from dagpu.kernels.arrays.movement.softmax_kernels import SoftmaxInput, softmax_params, softmax_text
from dagpu.kernels.arrays.movement.softmax_twins import SoftmaxOrder, softmax_order, softmax_twin
from dagpu.kernels.expressions.broadcasting import passed_arguments, patterns_of, walk_of_kinds
from dagpu.kernels.expressions.expression import Expression
from dagpu.kernels.expressions.expression_text import ArgumentPattern
from dagpu.kernels.expressions.operations.element_operations import DOMAINS
from dagpu.kernels.expressions.reduced_expression import ROW, FusedCall, FusedFunction
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    generated_kernel,
    move_arguments,
    reshaped,
    with_layouts,
)
from dagpu.kernels.generated.row_elements import expression_elements, fused_name, walked_extents, with_elements
from dagpu.ops.kernel_spec import KernelSpec


def _accepts(_: str, dtype: "np.dtype[Any]") -> bool:
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
            passed, extents, dtype, lambda step, order: _kernel(expression, step, patterns, source, order), origin
        )
        result: AnyOp = reshaped(op, Layout(dtype, extents, (), 0), whole, origin)
        return result

    return with_layouts(call.label, args, partial(expression.check, origin=origin), build, origin)


def _kernel(
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


def _kernel_of_rows(expression: Expression[..., Any], _: str) -> KernelSpec:
    patterns = (ArgumentPattern(Form.IN, (0, 1)),) * len(expression.traced.names)
    return _kernel(expression, "whole", patterns, GroupPattern((0, 1), 3), softmax_order(ROW, 1))


FUSED_SOFTMAX: Final = FusedFunction(_accepts, _softmax, _kernel_of_rows)
