"""`sort`, `argsort` and `topk` along an axis.

The kernels sort rows that are contiguous. Along another axis than the last one, one launch transposes the elements
before, and one transposes each result.
"""

from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.movement.axis_groups import one_axis
from dagpu.kernels.arrays.movement.rows_along_axis import from_rows, rows_along
from dagpu.kernels.arrays.sorting.radix_passes import radix_sorted
from dagpu.kernels.expressions.operations.element_operations import type_name
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    move_arguments,
    refused_call,
    reshaped,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Zip
from dagpu.ops.creation import Alloc

# Constrained, not bounded: handles are covariant, and these types have an order.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)

_I64: Final = np.dtype(np.int64)


@leaves_run
def sort(x: In[_V], axis: int | None = -1) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements in ascending order along an axis, of the shape and element type of `x`.

    Equal elements keep their order, so -0 and 0 do too. NaNs come last. The bits are the same on every device.

    Args:
        x: a tensor, or an op whose result is one.
        axis: one axis; a negative number counts from the last one. None sorts all elements in C order, and the result
            has one axis. Along another axis than the last one, two more launches transpose the elements.

    Raises:
        ShapeError: `x` has no such axis.
    """
    return _sorted("sort", x, axis, (True, False))


@leaves_run
def argsort(x: In[_V], axis: int | None = -1) -> DeviceOp[Tensor[i64], Any]:
    """Return the places along an axis that sort `x`, as i64, of its shape: along its only axis, `take` of them is
    `sort(x)`.

    Of equal elements the first comes first, and NaNs come last.

    Args:
        x: a tensor, or an op whose result is one.
        axis: as for `sort`. The places for None are those of all elements in C order.

    Raises:
        ShapeError: `x` has no such axis.
    """
    return _sorted("argsort", x, axis, (False, True))


@leaves_run
def topk(x: In[_V], k: int, axis: int | None = -1) -> DeviceOp[tuple[Tensor[_V], Tensor[i64]], Any]:
    """Return the k largest elements along an axis and their places, the largest first.

    Both have the shape of `x` with k in the place of the axis. Of equal elements the first comes first. A NaN is larger
    than any number, as in `sort`.

    Args:
        x: a tensor, or an op whose result is one.
        k: the count, from 0 to the extent of the axis.
        axis: as for `sort`. The places for None are those of all elements in C order.

    Raises:
        ShapeError: `x` has no such axis, or k is not between 0 and its extent.
    """
    return _sorted("topk", x, axis, (True, True), (k,))


def _checked_count(k: object, shape: Shape, axis: int, origin: Origin) -> int:
    count, extent = as_whole_number(k), shape[axis]
    if count is None or not 0 <= count <= extent:
        row = f"a row of {shape}" if axis == len(shape) - 1 else f"axis {axis} of {shape}"
        raise ShapeError(
            f"topk at {describe(origin)}: k is {format_value(k)}, but {row} has {extent} elements. Give a whole number "
            "from 0 to that."
        )
    return count


def _sorted(name: str, x: Any, axis: object, chosen: tuple[bool, bool], largest: tuple[object, ...] = ()) -> AnyOp:
    """Return the op of a sort. `chosen` says whether elements and places are wanted. `largest` has the number of
    elements that are wanted of a row, the largest first; without it, all are, the smallest first."""
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        given = _checked_input(name, layouts[0], axis, origin)
        layout = contiguous_layout((given.size,), given.dtype) if axis is None else given
        place = one_axis(-1 if axis is None else axis, len(layout.shape), name, origin)
        wanted = _checked_count(largest[0], layout.shape, place, origin) if largest else layout.shape[place]
        (moved,) = move_arguments(name, arguments, origin)
        shape: Shape = (*layout.shape[:place], wanted, *layout.shape[place + 1 :])
        dtypes = [dtype for dtype, wants in zip((layout.dtype, _I64), chosen, strict=True) if wants]
        if 0 in shape:
            results: list[AnyOp] = [Alloc(shape, dtype, None, origin) for dtype in dtypes]
        else:
            if axis is None:
                moved = reshaped(
                    moved if given.contiguous else contiguous_copy(moved, origin), given, layout.shape, origin
                )
            rows = rows_along(moved, layout, place, origin)[0]
            sizes = layout.size // layout.shape[place], layout.shape[place]
            outputs = radix_sorted(rows, layout.dtype, sizes, wanted, chosen, bool(largest), origin)
            results = [from_rows(out, dtype, shape, place, origin) for out, dtype in zip(outputs, dtypes, strict=True)]
        return results[0] if len(results) == 1 else Zip(tuple(results), origin)

    return array_call(name, ("x",), (x,), build, origin)


def _checked_input(name: str, layout: Layout | None, axis: object, origin: Origin) -> Layout:
    if layout is None:
        raise refused_call(name, origin, "x is a number", "Pass a tensor: full((1,), x), say")
    if layout.dtype.kind == "c":
        what = f"elements of {type_name(layout.dtype)} have no order"
        raise refused_call(name, origin, what, "Sort by one part of them")
    if not layout.shape and axis is not None:
        raise ShapeError(
            f"{name} at {describe(origin)}: x has no axis, so it has no rows. Reshape it: x.reshape((1,)), say."
        )
    return layout
