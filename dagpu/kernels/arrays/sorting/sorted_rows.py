"""`sort`, `argsort` and `topk` along the last axis."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.sorting.merge_passes import EACH, merge_passes, threads_of
from dagpu.kernels.arrays.sorting.sort_kernels import PassKernel, sort_kernel
from dagpu.kernels.expressions.element_operations import type_name
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    move_arguments,
    new_output,
    refused_call,
    reshaped,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Map, Zip, components_of
from dagpu.ops.creation import Alloc
from dagpu.ops.launch import Launch

# Constrained, not bounded: handles are covariant, and these types have an order.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)

_I32: Final = np.dtype(np.int32)
_I64: Final = np.dtype(np.int64)


def sort(x: In[_V]) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements in ascending order along the last axis, of the shape and element type of `x`.

    Equal elements keep their order, so -0 and 0 do too. NaNs come last. The bits are the same on every device.

    Raises:
        ShapeError: `x` has no axis.
    """
    return _sorted("sort", x, lambda layout, origin: (layout.shape[-1], True, False, False))


def argsort(x: In[_V]) -> DeviceOp[Tensor[i64], Any]:
    """Return the places along the last axis that sort `x`, as i64, of its shape: `take` of them is `sort(x)`.

    Of equal elements the first comes first, and NaNs come last.

    Raises:
        ShapeError: `x` has no axis.
    """
    return _sorted("argsort", x, lambda layout, origin: (layout.shape[-1], False, True, False))


def topk(x: In[_V], k: int) -> DeviceOp[tuple[Tensor[_V], Tensor[i64]], Any]:
    """Return the k largest elements along the last axis and their places, the largest first.

    Both have the shape of `x` with k in the place of the last extent. Of equal elements the first comes first. A NaN is
    larger than any number, as in `sort`.

    Raises:
        ShapeError: `x` has no axis, or k is not between 0 and its last extent.
    """
    return _sorted("topk", x, lambda layout, origin: (_checked_count(k, layout, origin), True, True, True))


def _checked_count(k: object, layout: Layout, origin: Origin) -> int:
    count = as_whole_number(k)
    if count is None or not 0 <= count <= layout.shape[-1]:
        raise ShapeError(
            f"topk at {describe(origin)}: k is {format_value(k)}, but a row of {layout.shape} has {layout.shape[-1]} "
            "elements. Give a whole number from 0 to that."
        )
    return count


def _sorted(name: str, x: Any, choose: Callable[[Layout, Origin], tuple[int, bool, bool, bool]]) -> AnyOp:
    """Return the op of a sort. `choose` gives the elements wanted of a row, whether elements and places are wanted, and
    whether the largest come first."""
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _checked_input(name, layouts[0], origin)
        wanted, keys, places, descending = choose(layout, origin)
        (moved,) = move_arguments(name, arguments, origin)
        shape: Shape = (*layout.shape[:-1], wanted)
        dtypes = [dtype for dtype, chosen in ((layout.dtype, keys), (_I64, places)) if chosen]
        if 0 in shape:
            found: list[AnyOp] = [Alloc(shape, dtype, None, origin) for dtype in dtypes]
            return found[0] if len(found) == 1 else Zip(tuple(found), origin)
        if not layout.contiguous:
            moved, layout = contiguous_copy(moved, origin), contiguous_layout(layout.shape, layout.dtype)
        length = layout.shape[-1]
        rows = layout.size // length
        outputs = _passes(reshaped(moved, layout, (rows, length), origin), layout.dtype, rows, wanted,
                          (keys, places), descending, length, origin)  # fmt: skip
        results: list[AnyOp] = [
            reshaped(out, contiguous_layout((rows, wanted), dtype), shape, origin)
            for out, dtype in zip(outputs, dtypes, strict=True)
        ]
        return results[0] if len(results) == 1 else Zip(tuple(results), origin)

    return array_call(name, ("x",), (x,), build, origin)


def _checked_input(name: str, layout: Layout | None, origin: Origin) -> Layout:
    if layout is None:
        raise refused_call(name, origin, "x is a number", "Pass a tensor: full((1,), x), say")
    if layout.dtype.kind == "c":
        what = f"elements of {type_name(layout.dtype)} have no order"
        raise refused_call(name, origin, what, "Sort by one part of them")
    if not layout.shape:
        raise ShapeError(
            f"{name} at {describe(origin)}: x has no axis, so it has no rows. Reshape it: x.reshape((1,)), say."
        )
    return layout


def _passes(
    x: Any, dtype: "np.dtype[Any]", rows: int, wanted: int, chosen: tuple[bool, bool], descending: bool, length: int,
    origin: Origin,
) -> list[AnyOp]:  # fmt: skip
    """Return the ops of the results of all passes over the rows of `x`: elements, places, or both."""
    threads = threads_of(length)
    span = threads * EACH
    held = (_I32 if length < 2**31 else _I64) if chosen[1] else None
    before: list[Any] = [x]
    for each in merge_passes(length, wanted, span):
        keys, places = (chosen[0], _I64 if chosen[1] else None) if each.last else (True, held)
        spec = sort_kernel(PassKernel(dtype, threads, each.run == 0, descending, keys, held, places))
        targets = [
            new_output((rows, each.made_length), out, (1, span), origin)
            for out in (dtype if keys else None, places)
            if out is not None
        ]
        numbers = [each.run, each.made] if each.run else []
        parts = components_of(Launch(spec, (*targets, *before, *numbers), origin), origin)
        before = [Map(part, UNCUT, origin) for part in parts[: len(targets)]]
    return before
