"""`cumsum`: running sums along an axis.

The order of additions follows from the length of a row alone. A row is cut into runs of 16 elements. The sums of these
runs are a shorter row, which is cut into runs of 16 again, and so on, until one run is left. Within a run, sums are
added one after the other from its first item. Each item has a number before it: that of its run, to which the running
sum of the items before it in the run is added. A run has the number that its sum has in the shorter row, and the last
run has none. The result for an element is the number before its run, plus the running sum up to it inside of the run.

A block computes `BLOCK` elements. Where a row is longer, a first launch writes the sums of its spans, and the number
before each span is computed of these by the same rule.
"""

from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, here
from dagpu.common.tracebacks import leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.movement.axis_groups import AxisGroups, GroupPattern, around_axis, one_axis
from dagpu.kernels.arrays.movement.running_sum_kernels import BLOCK, RUN, ScanShape, prefix_kernel, total_kernel
from dagpu.kernels.arrays.reducing.reductions import checked_input
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    move_arguments,
    new_output,
    reshaped,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, components_of
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import UNCUT

# Constrained, not bounded: handles are covariant, and a bound would accept bool.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)

PLAIN: Final = GroupPattern((0, 1, 2), 3)
"""The pattern of a contiguous argument of shape (before, along, after)."""


@leaves_run
def cumsum(x: In[_N], axis: int | None = None) -> DeviceOp[Tensor[_N], Any]:
    """Return the running sums along an axis, of the element type and the shape of `x`.

    The order of additions follows from the length of the axis alone, in runs of 16 elements, so the bits are the same
    on every device and in every run; NumPy's order is another. Integers wrap and are not widened: convert before,
    `convert(t, i64)`, where a sum may not fit. f16 and bf16 are added in f32, and each sum is rounded once.

    Args:
        x: a tensor, or an op whose result is one.
        axis: one axis; a negative number counts from the last one. None sums over all elements in C order, and the
            result has one axis.

    Raises:
        ShapeError: `x` has no such axis.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("cumsum", layouts[0], "number", origin)
        place = None if axis is None else one_axis(axis, len(layout.shape), "cumsum", origin)
        source = around_axis(layout, place)
        (moved,) = move_arguments("cumsum", arguments, origin)
        op = _scan(reshaped(moved, layout, source.passed, origin), layout.dtype, source, origin)
        shape = (layout.size,) if place is None else layout.shape
        result: AnyOp = reshaped(op, Layout(layout.dtype, source.extents, (), 0), shape, origin)
        return result

    return array_call("cumsum", ("x",), (x,), build, origin)


def _scan(x: Any, dtype: "np.dtype[Any]", source: AxisGroups, origin: Origin, *, exclusive: bool = False) -> AnyOp:
    """Return the op of the running sums of `x` along its middle group; with `exclusive`, of what comes before each
    element."""
    form = scan_shape(source.extents)
    before, length, after = source.extents
    spans = -(-length // form.span)
    earlier: list[AnyOp] = []
    if spans > 1:
        number = register_dtype(dtype)
        totals = new_output((before, spans, after), number, (form.outer, 1, form.inner), origin)
        launch = Launch(total_kernel(dtype, source.pattern, form), (totals, x), origin)
        summed, x = components_of(launch, origin)
        extents = (before, spans, after)
        earlier = [
            _scan(
                Map(summed, UNCUT, origin), number, AxisGroups(extents, extents, PLAIN.groups), origin, exclusive=True
            )
        ]
    spec = prefix_kernel(dtype, source.pattern, form, bool(earlier), exclusive)
    target = new_output(source.extents, dtype, (form.outer, form.span, form.inner), origin)
    return first_output(spec, (target, x, *earlier), origin)


def scan_shape(extents: Shape) -> ScanShape:
    """Return how a block walks over rows of this shape: the span of a row, and the rows before and after the axis."""
    _, length, after = extents
    span = RUN
    while span < length and span < (BLOCK if after == 1 else BLOCK // RUN):
        span *= 2
    rows = BLOCK // span
    return ScanShape(span, 1 if after > 1 else rows, rows if after > 1 else 1)
