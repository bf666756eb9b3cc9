"""`softmax`: exponentials along an axis, divided by their sum.

A row of up to 32 elements for each lane of a block is computed by one launch, which reads it once and keeps it in
registers. A longer row is cut into spans: one launch finds the largest element of each span, one adds up the
exponentials of each span, and one writes the quotients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, f16, f32, f64
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, here
from dagpu.common.tracebacks import leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.movement.axis_groups import around_axis, one_axis
from dagpu.kernels.arrays.movement.softmax_kernels import softmax_kernel
from dagpu.kernels.arrays.movement.softmax_twins import SoftmaxOrder, softmax_order
from dagpu.kernels.arrays.reducing.reductions import checked_input
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    is_number,
    move_arguments,
    new_output,
    reshaped,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, components_of
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import UNCUT

_F = TypeVar("_F", f16, bf16, f32, f64)


@leaves_run
def softmax(x: In[_F], axis: int = -1) -> DeviceOp[Tensor[_F], Any]:
    """Return `exp(x - m) / s` along an axis, where m is the largest element of the row and s the sum of its
    exponentials.

    Exponentials are within 2 ulp, are added in an order that follows from the shape alone, and are multiplied by 1 / s.
    So results differ between devices by a few ulp, and are the same in every run on one. f16 and bf16 are computed in
    f32, and the result is rounded once. A row is NaN if it has a NaN or positive infinity, or negative infinity alone.

    Args:
        x: a tensor of a floating type, or an op whose result is one.
        axis: one axis; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `x` has no such axis.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("softmax", layouts[0], "float", origin)
        source = around_axis(layout, one_axis(axis, len(layout.shape), "softmax", origin))
        (moved,) = move_arguments("softmax", arguments, origin)
        op = normalise(
            [reshaped(moved, layout, source.passed, origin)],
            source.extents,
            layout.dtype,
            lambda step, order: softmax_kernel(step, layout.dtype, source.pattern, order),
            origin,
        )
        result: AnyOp = reshaped(op, Layout(layout.dtype, source.extents, (), 0), layout.shape, origin)
        return result

    return array_call("softmax", ("x",), (x,), build, origin)


def normalise(
    passed: Sequence[Any],
    extents: Shape,
    dtype: "np.dtype[Any]",
    kernel_of: Callable[[str, SoftmaxOrder], KernelSpec],
    origin: Origin,
) -> AnyOp:
    """Return the op of the quotients, of the shape `extents`: (before, along, after).

    `passed` are the inputs of each launch: handles that have moved, ops and numbers. `kernel_of` returns the kernel of
    a step.
    """
    before, length, after = extents
    order = softmax_order(length, after)
    target = new_output(extents, dtype, (order.outer, order.span, order.inner), origin)
    spans = -(-length // order.span)
    if spans <= 1:
        return first_output(kernel_of("whole", order), (target, *passed), origin)
    number = register_dtype(dtype)
    known: list[AnyOp] = []
    for step in ("largest", "total"):
        part = new_output((before, spans, after), number, (order.outer, 1, order.inner), origin)
        made, *again = components_of(Launch(kernel_of(step, order), (part, *passed, *known), origin), origin)
        passed = [arg if is_number(arg) else op for arg, op in zip(passed, again, strict=False)]
        known = [*again[len(passed) :], Map(made, UNCUT, origin)]
    return first_output(kernel_of("quotient", order), (target, *passed, *known), origin)
