"""`concatenate`, `stack` and `transpose`: ops that move elements and compute nothing.

One launch writes the elements of up to `MOST` tensors. More of them take further launches, which write further parts of
the same output.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input
from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    bf16,
    bool_,
    c64,
    c128,
    contiguous_layout,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value, wrong_argument
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import TILE
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import memory_type, type_name
from dagpu.kernels.reduction_order import power_of_two
from dagpu.kernels.row_elements import (
    AxisGroups,
    GroupPattern,
    element_text,
    extent_text,
    group_axes,
    grouped_array,
    one_axis,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, Launch, Map
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, and a bound would join f32 and i64 to np.generic.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)

MOST: Final = 16
"""The most tensors of one launch: the parameters of a kernel have 4 KiB."""

TEXT: Final = """\
__global__ void {name}(Tile<{element}, 3> out, {formals}long long first) {{
    for (auto i : out) {{
        const dagpu::index_t o = i[0], n = i[2];
        long long at = i[1] - first;
        if (at < 0) continue;
{choices}    }}
}}
"""
CHOICE: Final = """\
        if (at < {extent}) {{
            out[i] = {value};
            continue;
        }}
        at -= {extent};
"""


@leaves_run
def concatenate(parts: Sequence[In[_V]], axis: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements of several tensors as one, one tensor after the other along an axis.

    Args:
        parts: tensors, or ops whose results are tensors, of one element type: they are not widened to a common one, as
            NumPy would. Their shapes are equal but for this axis.
        axis: the axis along which they are joined; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the element types differ, or there are no tensors.
        ShapeError: the shapes differ along another axis, or the tensors have no such axis.
    """
    return _join("concatenate", parts, axis)


@leaves_run
def stack(parts: Sequence[In[_V]], axis: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return several tensors of one shape as one, along a new axis.

    Args:
        parts: tensors, or ops whose results are tensors, of one shape and one element type.
        axis: the place of the new axis in the result, 0 for the first; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the element types differ, or there are no tensors.
        ShapeError: the shapes differ, or the result has no such axis.
    """
    return _join("stack", parts, axis)


def _join(name: str, parts: Any, axis: object) -> AnyOp:
    origin = here()
    if not isinstance(parts, tuple | list):
        raise wrong_argument(name, origin, "parts", parts, "a tuple of tensors", f"Write {name}((a, b))")
    if not parts:
        raise refused_call(name, origin, "there are no parts", "Pass one at least: (x,), say")
    names = [f"parts[{n}]" for n in range(len(parts))]

    def build(arguments: tuple[Any, ...], given: tuple[Layout | None, ...]) -> AnyOp:
        layouts = [
            checked_input(name, layout, "any", origin, param) for layout, param in zip(given, names, strict=True)
        ]
        groups, shape = _arrange(name, layouts, axis, origin)
        passed = [
            reshaped(x, layout, group.passed, origin)
            for x, layout, group in zip(move_arguments(name, arguments, origin), layouts, groups, strict=True)
        ]
        dtype = layouts[0].dtype
        lengths = [group.extents[1] for group in groups]
        target = (groups[0].extents[0], sum(lengths), groups[0].extents[2])
        out = new_output(target, dtype, tile_of(target, TILE), origin)
        for begin in range(0, len(passed), MOST):
            part = slice(begin, begin + MOST)
            spec = _join_kernel(name, dtype, tuple([group.pattern for group in groups[part]]))
            out = Map(Launch(spec, (out, *passed[part], sum(lengths[:begin])), origin), FIRST, origin)
        result: AnyOp = reshaped(Map(out, UNCUT, origin), Layout(dtype, target, (), 0), shape, origin)
        return result

    return array_call(name, names, tuple(parts), build, origin)


def _arrange(name: str, layouts: list[Layout], axis: object, origin: Origin) -> tuple[list[AxisGroups], Shape]:
    """Return the groups of axes before, along and after the axis for each part, and the shape of the result.

    Raises:
        KernelArgumentError: the element types differ.
        ShapeError: the shapes do not fit together, or there is no such axis.
    """
    types = dict.fromkeys([layout.dtype for layout in layouts])
    if len(types) > 1:
        what = f"parts of {' and '.join(map(type_name, types))}"
        raise refused_call(name, origin, what, "Convert one: convert(t, f32), say")
    first = layouts[0].shape
    new = name == "stack"
    place = one_axis(axis, len(first) + new, name, origin, "the result" if new else "parts[0]")
    for n, layout in enumerate(layouts):
        if _without(layout.shape, place, new) != _without(first, place, new):
            allowed = "Give all parts one shape" if new else f"Give all parts one shape but for axis {place}"
            raise ShapeError(
                f"{name} at {describe(origin)}: parts[0] has shape {first}, and parts[{n}] has {layout.shape}. "
                f"{allowed}: reshape one, x.reshape((n, 1)), say."
            )
    after = len(first) - place - (not new)
    groups = [group_axes(layout, (place, 0 if new else 1, after)) for layout in layouts]
    along = sum([group.extents[1] for group in groups])
    return groups, (*first[:place], along, *first[len(first) - after :])


def _without(shape: Shape, place: int, new: bool) -> Shape | None:
    """Return what must be equal of a part's shape: all of it, or all but the axis; None without such an axis."""
    if new:
        return shape
    return (*shape[:place], *shape[place + 1 :], len(shape)) if place < len(shape) else None


@cache
def _join_kernel(name: str, dtype: "np.dtype[Any]", patterns: tuple[GroupPattern, ...]) -> KernelSpec:
    """Return the kernel that writes the elements of several parts, from the place `first` of the axis on."""
    element = memory_type(dtype)
    params, formals, choices = [output("out", dtype, 3)], "", ""
    for n, pattern in enumerate(patterns):
        params.append(tensor_input(f"x{n}", dtype, pattern.rank))
        formals += f"View<const {element}, {pattern.rank}> x{n}, "
        choices += CHOICE.format(
            extent=extent_text(f"x{n}", pattern, 1), value=element_text(f"x{n}", pattern, ("o", "at", "n"))
        )
    params.append(number_input("first", np.dtype(np.int64), name))
    text = TEXT.format(name=name, element=element, formals=formals, choices=choices)
    return generated_kernel(name, params, text, _join_twin(patterns), (_join_kernel.__wrapped__.__code__, 0))


def _join_twin(patterns: tuple[GroupPattern, ...]) -> Callable[..., None]:
    def body(out: Any, *arguments: Any) -> None:
        *parts, begin = arguments
        for x, pattern in zip(parts, patterns, strict=True):
            array = grouped_array(x, pattern)
            out[:, begin : begin + array.shape[1]] = array
            begin += array.shape[1]

    return body


# ---- transposition
#
# `transpose`: the elements of a tensor with its axes in another order.
#
# Where the last axis stays, neighbours in memory stay neighbours, and each thread copies elements. Otherwise a block
# reads a tile along the last axis of the input, keeps it in shared memory, and writes it along the last axis of the
# output.

_D = TypeVar("_D", bound=np.generic)

THREADS: Final = 256

COPYING: Final = """\
__global__ void transpose(Tile<{element}, {rank}> out, View<const {element}, {rank}> x) {{
    for (auto i : out) out[i] = x({places});
}}
"""
TILED: Final = """\
// A tile has {across} elements along the last axis of x, and {along} along the last axis of out.
__global__ void transpose(Tile<{element}, {rank}> out, View<const {element}, {rank}> x) {{
    __shared__ {element} part[{along}][{across} + 1];
    for (int n = threadIdx.x; n < {size}; n += {threads}) {{
        const int a = n % {across}, b = n / {across};
        if (a < out.tile_extent({axis}) && b < out.tile_extent({last})) part[b][a] = x({places});
    }}
    __syncthreads();
    for (int n = threadIdx.x; n < {size}; n += {threads}) {{
        const int a = n / {along}, b = n % {along};
        if (a < out.tile_extent({axis}) && b < out.tile_extent({last})) out({targets}) = part[b][a];
    }}
}}
"""


@leaves_run
def transpose(x: In[_D], axes: tuple[int, ...] | None = None) -> DeviceOp[Tensor[_D], Any]:
    """Return a contiguous tensor with the axes of `x` in another order: axis n of the result is axis `axes[n]` of `x`.

    A new tensor is written, where NumPy returns a view.

    Args:
        x: a tensor, or an op whose result is one.
        axes: all axes of `x`, each once; a negative number counts from the last one. None reverses their order.

    Raises:
        ShapeError: `axes` does not name each axis of `x` once.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("transpose", layouts[0], "any", origin)
        order = _order(axes, len(layout.shape), origin)
        (moved,) = move_arguments("transpose", arguments, origin)
        return transposed(moved, layout, order, origin)

    return array_call("transpose", ("x",), (x,), build, origin)


def transposed(x: Any, layout: Layout, order: Shape, origin: Origin) -> AnyOp:
    """Return the op of a new tensor whose axis n is axis `order[n]` of an argument that has moved, a handle or an op.

    `layout` is that of the argument, with elements of any type, also of a complex one.
    """
    shape, merged = _merge(layout, order)
    target = tuple([shape[axis] for axis in merged])
    tile = _tile(target, merged)
    given = reshaped(x, layout, shape, origin) if layout.contiguous else x
    spec = _transpose_kernel(layout.dtype, merged, tile if _swaps(merged) else None)
    op = first_output(spec, (new_output(target, layout.dtype, tile, origin), given), origin)
    result: AnyOp = reshaped(
        op, Layout(layout.dtype, target, (), 0), tuple([layout.shape[axis] for axis in order]), origin
    )
    return result


def _order(axes: object, rank: int, origin: Origin) -> Shape:
    """Return the axis of the input for each axis of the output."""
    given: Any = range(rank)[::-1] if axes is None else axes
    found = [as_whole_number(each) for each in given] if isinstance(given, tuple | list | range) else []
    order = tuple([each % rank for each in found if each is not None and -rank <= each < rank])
    if sorted(order) != list(range(rank)) or len(found) != rank or not isinstance(given, tuple | list | range):
        raise ShapeError(
            f"transpose at {describe(origin)}: axes is {format_value(axes)}, but x has {rank} axes. Name each of them "
            f"once, {tuple(range(rank))} in another order, or leave axes out."
        )
    return order


def _merge(layout: Layout, order: Shape) -> tuple[Shape, Shape]:
    """Return the shape with which a kernel gets the input, and its order of axes, with as few axes as possible."""
    if not layout.contiguous:
        return layout.shape, order
    kept = [axis for axis in order if layout.shape[axis] != 1]
    runs: list[list[int]] = []
    before: int | None = None
    for axis in kept:
        if (
            before is not None
            and not any(layout.shape[between] != 1 for between in range(before + 1, axis))
            and (axis > before)
        ):
            runs[-1].append(axis)
        else:
            runs.append([axis])
        before = axis
    inputs = sorted(runs)
    shape = tuple([prod([layout.shape[axis] for axis in run]) for run in inputs])
    return shape, tuple([inputs.index(run) for run in runs])


def _swaps(order: Shape) -> bool:
    """True if the last axis of the input is another axis of the output."""
    return bool(order) and order[-1] != len(order) - 1


def _tile(target: Shape, order: Shape) -> Shape:
    """Return the tile of an output with this shape: of 32 by 32 elements where the last axis changes its place."""
    if not _swaps(order):
        return tile_of(target, TILE)
    axis = order.index(len(order) - 1)
    along, across = min(32, power_of_two(target[-1])), min(32, power_of_two(target[axis]))
    along, across = (
        min(power_of_two(target[-1]), TILE // across),
        min(power_of_two(target[axis]), TILE // along),
    )
    tile = [1] * len(target)
    tile[-1], tile[axis] = along, across
    return tuple(tile)


@cache
def _transpose_kernel(dtype: "np.dtype[Any]", order: Shape, tile: Shape | None) -> KernelSpec:
    """Return the kernel for an input whose axis `order[n]` is axis n of the output; with a tile through shared
    memory."""
    rank = len(order)
    element = memory_type(dtype)
    params = [output("out", dtype, rank), tensor_input("x", dtype, rank)]
    inverse = [order.index(axis) for axis in range(rank)]
    if tile is None:
        text = COPYING.format(element=element, rank=rank, places=", ".join([f"i[{place}]" for place in inverse]))
        return generated_kernel(
            "transpose", params, text, _transpose_twin(order), (_transpose_kernel.__wrapped__.__code__, 0)
        )
    axis, last = inverse[-1], rank - 1
    targets = [f"out.origin({n}){' + a' if n == axis else ' + b' if n == last else ''}" for n in range(rank)]
    text = TILED.format(
        element=element,
        rank=rank,
        across=tile[axis],
        along=tile[last],
        size=tile[axis] * tile[last],
        threads=THREADS,
        axis=axis,
        last=last,
        places=", ".join([targets[place] for place in inverse]),
        targets=", ".join(targets),
    )
    return generated_kernel(
        "transpose", params, text, _transpose_twin(order), (_transpose_kernel.__wrapped__.__code__, 0), block=(THREADS,)
    )


def _transpose_twin(order: Shape) -> Callable[..., None]:
    def body(out: Any, x: Any) -> None:
        out[...] = x.transpose(order)

    return body


# ---- rows along axis
#
# Rows along any axis of a tensor as a contiguous matrix, for kernels and libraries that work on such rows alone.
#
# Along another axis than the last one, one launch transposes the elements before, and one transposes the result.


def rows_along(x: Any, layout: Layout, axis: int, origin: Origin, *, multiple: int = 1) -> tuple[Any, bool]:
    """Return the matrix of an argument's rows along an axis, and True if it is a new tensor.

    The argument has moved; it is a handle or an op. An axis has elements, and the first one is to lie at a multiple of
    `multiple` bytes.
    """
    extent = layout.shape[axis]
    rows = (layout.size // extent, extent)
    if _is_last(layout.shape, axis):
        fresh = not layout.contiguous or layout.offset % multiple != 0
        if fresh:
            x, layout = contiguous_copy(x, origin), contiguous_layout(layout.shape, layout.dtype)
        return reshaped(x, layout, rows, origin), fresh
    rank = len(layout.shape)
    order = (*range(axis), *range(axis + 1, rank), axis)
    turned = contiguous_layout(tuple([layout.shape[each] for each in order]), layout.dtype)
    return reshaped(transposed(x, layout, order, origin), turned, rows, origin), True


def from_rows(op: AnyOp, dtype: "np.dtype[Any]", shape: Shape, axis: int, origin: Origin) -> AnyOp:
    """Return the op of a tensor of the shape `shape`, whose rows along an axis are those of a contiguous matrix."""
    extent = shape[axis]
    rows = contiguous_layout((prod(shape) // extent, extent), dtype)
    if _is_last(shape, axis):
        whole: AnyOp = reshaped(op, rows, shape, origin)
        return whole
    last = len(shape) - 1
    turned = contiguous_layout((*shape[:axis], *shape[axis + 1 :], extent), dtype)
    back = (*range(axis), last, *range(axis, last))
    return transposed(reshaped(op, rows, turned.shape, origin), turned, back, origin)


def _is_last(shape: Shape, axis: int) -> bool:
    """Return True if the elements of rows along an axis of a contiguous tensor lie side by side."""
    return prod(shape[axis + 1 :]) == 1
