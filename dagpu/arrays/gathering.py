"""`take`, `take_along_axis` and `one_hot`: elements at places that another tensor says."""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input
from dagpu.common.env_vars import CHECKED
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, f32, i32, i64, scalar_dtype
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_count, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import TILE
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import memory_type, store_text, type_name
from dagpu.kernels.row_elements import (
    GroupPattern,
    around_axis,
    element_text,
    extent_text,
    group_axes,
    grouped_array,
    one_axis,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import IndexBeyond, Indexed, KernelSpec

_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic, default=f32)
_I = TypeVar("_I", i32, i64)

INDEX_TYPES: Final = frozenset((np.dtype(np.int32), np.dtype(np.int64)))

TAKE: Final = """\
__global__ void take(
    Tile<{element}, 3> out, View<const {element}, {rank}> x, View<const {whole}, {index_rank}> indices
) {{
    const long long length = {length};
    for (auto i : out) {{
        const dagpu::index_t o = i[0], k = i[1], n = i[2];
        const long long given = {index};
        const long long at = given < 0 && given >= -length ? given + length : given;
#ifdef DAGPU_CHECKED
        out[i] = {load};  // an index beyond the axis is refused and reported here
#else
        if (at >= 0 && at < length)
            out[i] = {load};
        else
            out[i] = {zero};
#endif
    }}
}}
"""
TAKE_ALONG: Final = """\
__global__ void take_along_axis(
    Tile<{element}, {rank}> out, View<const {element}, {rank}> x, View<const {whole}, {rank}> indices
) {{
    const long long length = x.extent({axis});
    for (auto i : out) {{
        const long long given = indices[i];
        const long long at = given < 0 && given >= -length ? given + length : given;
#ifdef DAGPU_CHECKED
        out[i] = x({places});  // an index beyond the axis is refused and reported here
#else
        if (at >= 0 && at < length)
            out[i] = x({places});
        else
            out[i] = {zero};
#endif
    }}
}}
"""
ONE_HOT: Final = """\
__global__ void one_hot(Tile<{element}, 2> out, View<const {whole}, {rank}> indices) {{
    for (auto i : out) {{
        const dagpu::index_t k = i[0];
        const long long at = i[1];
        if ({index} == at)
            out[i] = {one};
        else
            out[i] = {zero};
    }}
}}
"""


@leaves_run
def take(x: In[_D], indices: In[_I], axis: int = 0) -> DeviceOp[Tensor[_D], Any]:
    """Return the elements of `x` at some places along an axis: in place of the axis stand the axes of `indices`.

    With `axis=0` and one axis of indices, row k of the result is row `indices[k]` of `x`. A negative index counts from
    the end. An index beyond the axis is a `KernelBoundsError` with the line of this call: always on the host, and on a
    GPU if DAGPU_CHECKED is 1; without it the GPU reads nothing there, and the elements are 0. A result without elements
    reads no index, and checks none.

    Args:
        x: a tensor, or an op whose result is one.
        indices: a tensor of i32 or i64, of any shape.
        axis: one axis; a negative number counts from the last one. `None`, NumPy's default, is not taken: reshape
            before.

    Raises:
        KernelArgumentError: the indices are not whole numbers of these types.
        ShapeError: `x` has no such axis.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("take", layouts[0], "any", origin)
        places = checked_indices("take", layouts[1], origin)
        place = one_axis(axis, len(layout.shape), "take", origin)
        given = move_arguments("take", arguments, origin)
        return taken((given[0], layout), (given[1], places), place, origin)

    return array_call("take", ("x", "indices"), (x, indices), build, origin)


@leaves_run
def take_along_axis(x: In[_D], indices: In[_I], axis: int = -1) -> DeviceOp[Tensor[_D], Any]:
    """Return the elements of `x` whose place along an axis the indices say, each for its own place along the others.

    Element `[i, k]` of the result for the last axis is `x[i, indices[i, k]]`, so `take_along_axis(x, argsort(x))` is
    `sort(x)`. Indices follow the rules of `take`.

    Args:
        x: a tensor, or an op whose result is one.
        indices: a tensor of i32 or i64 with the shape of `x`, but for this axis. It is not broadcast: say
            `broadcast_to` before.
        axis: one axis; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the indices are not whole numbers of these types.
        ShapeError: `x` has no such axis, or the shapes do not fit together.
    """
    name: str = "take_along_axis"
    origin: Origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "any", origin)
        places = checked_indices(name, layouts[1], origin)
        along = one_axis(axis, len(layout.shape), name, origin)
        wanted: Shape = layout.shape[:along] + places.shape[along : along + 1] + layout.shape[along + 1 :]
        if places.shape != wanted:
            raise ShapeError(
                f"{name} at {describe(origin)}: indices has shape {places.shape}, and x has {layout.shape}. Give both "
                f"one shape but for axis {along}: broadcast_to(indices, shape), say."
            )
        spec = _take_along_kernel(layout.dtype, places.dtype, len(layout.shape), along, CHECKED.get())
        target = new_output(places.shape, layout.dtype, tile_of(places.shape, TILE), origin)
        return first_output(spec, (target, *move_arguments(name, arguments, origin)), origin)

    return array_call(name, ("x", "indices"), (x, indices), build, origin)


@leaves_run
def one_hot(
    indices: In[_I],
    n: int,
    dtype: type[_E] = f32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_E], Any]:
    """Return a tensor with one more axis, of extent `n`: 1 at the place that the index says, 0 elsewhere.

    An index below 0 or above `n - 1` names none of the places, and all its elements are 0.

    Args:
        indices: a tensor of i32 or i64, of any shape.
        n: the number of places, 1 or more.
        dtype: the element type of the result.

    Raises:
        KernelArgumentError: the indices are not whole numbers of these types, or there is no such element type.
        TypeError: `n` is not a whole number.
        ValueError: `n` is less than 1.
    """
    origin = here()
    count, target = check_count(n, "one_hot", origin, "n"), scalar_dtype(dtype)
    if target is None:
        what = f"dtype is {format_value(dtype)}"
        raise refused_call("one_hot", origin, what, "Pass an element type, one_hot(indices, n, f32), say")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        places: Layout = checked_indices("one_hot", layouts[0], origin)
        listed = group_axes(places, (len(places.shape),))
        (given,) = move_arguments("one_hot", arguments, origin)
        shape = (prod(places.shape), count)
        op = first_output(
            _one_hot_kernel(target, places.dtype, listed.pattern),
            (
                new_output(shape, target, tile_of(shape, TILE), origin),
                reshaped(given, places, listed.passed, origin),
            ),
            origin,
        )
        with_places: Shape = (*places.shape, count)
        result: AnyOp = reshaped(op, Layout(target, shape, (), 0), with_places, origin)
        return result

    return array_call("one_hot", ("indices",), (indices,), build, origin)


def taken(x: tuple[Any, Layout], indices: tuple[Any, Layout], axis: int, origin: Origin) -> AnyOp:
    """Return the op of `take` of arguments that have moved, each with its layout."""
    (moved, layout), (given, places) = x, indices
    source, listed = around_axis(layout, axis), group_axes(places, (len(places.shape),))
    before, _, after = source.extents
    target = (before, listed.extents[0], after)
    spec = _take_kernel(layout.dtype, places.dtype, source.pattern, listed.pattern, CHECKED.get())
    op = first_output(
        spec,
        (
            new_output(target, layout.dtype, tile_of(target, TILE), origin),
            reshaped(moved, layout, source.passed, origin),
            reshaped(given, places, listed.passed, origin),
        ),
        origin,
    )
    shape: Shape = layout.shape[:axis] + places.shape + layout.shape[axis + 1 :]
    result: AnyOp = reshaped(op, Layout(layout.dtype, target, (), 0), shape, origin)
    return result


def checked_indices(name: str, layout: Layout | None, origin: Origin, param: str = "indices") -> Layout:
    """Return the layout of a tensor of indices.

    Raises:
        KernelArgumentError: it is a number, or its elements are not of i32 or i64.
    """
    found = checked_input(name, layout, "any", origin, param)
    if found.dtype not in INDEX_TYPES:
        what = f"{param} has elements of {type_name(found.dtype)}, and i32 or i64 is wanted"
        if found.dtype == np.bool_:  # converted, it would be the places 0 and 1
            cure = "A mask chooses by array.compress(mask, x), or in place by array.where(mask, x, 0)"
        else:
            cure = "Convert it before: convert(t, i64)"
        raise refused_call(name, origin, what, cure)
    return found


def check_places(indices: NDArray[Any], extent: int) -> bool:
    """Return true if one of the indices counts from the end.

    Raises:
        IndexBeyond: one of them is beyond an axis of this extent.
    """
    least, most = int(indices.min(initial=0)), int(indices.max(initial=-1))
    if least < -extent or most >= extent:
        raise IndexBeyond(int(indices[(indices < -extent) | (indices >= extent)][0]), extent)
    return least < 0


def checked_places(indices: NDArray[Any], extent: int) -> NDArray[Any]:
    """Return indices that count from the first element.

    Raises:
        IndexBeyond: one of them is beyond an axis of this extent.
    """
    return np.where(indices < 0, indices + extent, indices) if check_places(indices, extent) else indices


# ---- kernels
@cache
def _take_kernel(
    dtype: "np.dtype[Any]", whole: "np.dtype[Any]", source: GroupPattern, listed: GroupPattern, checked: bool
) -> KernelSpec:
    """Return the kernel `out[o, k, n] = x[o, indices[k], n]`."""
    del checked  # `generated_kernel` reads it
    element = memory_type(dtype)
    text = TAKE.format(
        element=element,
        rank=source.rank,
        whole=memory_type(whole),
        index_rank=listed.rank,
        length=extent_text("x", source, 1),
        index=element_text("indices", listed, ("k",)),
        load=element_text("x", source, ("o", "at", "n")),
        zero=store_text(dtype, "0"),
    )
    params = [
        output("out", dtype, 3),
        tensor_input("x", dtype, source.rank),
        tensor_input("indices", whole, listed.rank),
    ]
    indexed = Indexed("indices", source.groups.index(1))
    return generated_kernel(
        "take", params, text, _take_twin(source, listed), (_take_kernel.__wrapped__.__code__, 0), indexed=indexed
    )


def _take_twin(source: GroupPattern, listed: GroupPattern) -> Callable[..., None]:
    def body(out: Any, x: Any, indices: Any) -> None:
        elements = grouped_array(x, source)
        places = grouped_array(indices, listed)
        check_places(places, elements.shape[1])
        np.take(elements, places, axis=1, out=out, mode="wrap")  # the other modes make a copy of `out`

    return body


@cache
def _take_along_kernel(
    dtype: "np.dtype[Any]", whole: "np.dtype[Any]", rank: int, axis: int, checked: bool
) -> KernelSpec:
    """Return the kernel of `take_along_axis`."""
    del checked  # `generated_kernel` reads it
    text = TAKE_ALONG.format(
        element=memory_type(dtype),
        whole=memory_type(whole),
        rank=rank,
        axis=axis,
        places=", ".join(["at" if each == axis else f"i[{each}]" for each in range(rank)]),
        zero=store_text(dtype, "0"),
    )
    params = [output("out", dtype, rank), tensor_input("x", dtype, rank), tensor_input("indices", whole, rank)]

    def body(out: Any, x: Any, indices: Any) -> None:
        places = checked_places(indices, x.shape[axis])
        out[...] = np.take_along_axis(x, places, axis)

    return generated_kernel(
        "take_along_axis", params, text, body, (_take_along_kernel.__wrapped__.__code__, 0),
        indexed=Indexed("indices", axis),
    )  # fmt: skip


@cache
def _one_hot_kernel(dtype: "np.dtype[Any]", whole: "np.dtype[Any]", listed: GroupPattern) -> KernelSpec:
    """Return the kernel `out[k, at] = indices[k] == at`."""
    text = ONE_HOT.format(
        element=memory_type(dtype),
        whole=memory_type(whole),
        rank=listed.rank,
        index=element_text("indices", listed, ("k",)),
        one=store_text(dtype, "1"),
        zero=store_text(dtype, "0"),
    )
    params = [output("out", dtype, 2), tensor_input("indices", whole, listed.rank)]

    def body(out: Any, indices: Any) -> None:
        out[...] = grouped_array(indices, listed)[:, None] == np.arange(out.shape[1])

    return generated_kernel("one_hot", params, text, body, (_one_hot_kernel.__wrapped__.__code__, 0))
