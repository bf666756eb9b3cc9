"""`scatter_add`, `scatter_set`, `scatter_max`, `scatter_min` and `segment_sum`: values for the rows of a tensor that
indices name.

Float additions by atomic operations would come in another order in each run. Here a block owns a tile of the output,
and each thread some of its elements. The block reads all indices, a chunk at a time, lists in their order those of its
rows, and each thread adds the listed values to its own elements, one after the other. So each element adds up its
values in the order of the indices, on every device.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.gathering import check_places, checked_indices, checked_places
from dagpu.arrays.reductions import checked_input
from dagpu.common.env_vars import CHECKED
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
from dagpu.common.wrong_arguments import check_count
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.kernels.annotations import In
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.kernels.numpy_twin import PART, in_groups, until_cancelled
from dagpu.kernels.operations import (
    OPERATIONS,
    CudaText,
    Domain,
    helper_texts,
    load_text,
    memory_type,
    operation_text,
    register_dtype,
    register_type,
    store_text,
    type_name,
)
from dagpu.kernels.reduction_order import power_of_two
from dagpu.kernels.row_elements import GroupPattern, element_text, extent_text, group_axes, grouped_array
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import Cut, Map, Value
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import Indexed, KernelSpec

# Constrained, not bounded: handles are covariant, and a bound would accept bool.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_S = TypeVar("_S", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)
_I = TypeVar("_I", i32, i64)

COMBINED: Final = {"scatter_add": "add", "scatter_max": "maximum", "scatter_min": "minimum"}
"""The operation by which an element and a value are combined; `scatter_set` takes the value."""

THREADS: Final = 256
MOST: Final = 4096
"""The most elements of a tile: a block keeps their sums in shared memory."""
EACH: Final = 8
"""The indices that a thread reads at a time. `THREADS * EACH` of them are a chunk."""
BLOCKS: Final = 256
"""The number of blocks below which tiles are made smaller: about two for each processor of a large GPU."""

TEXT: Final = """\
{helpers}\
__global__ void {name}(
    Tile<{element}, 2> out, View<const {whole}, {index_rank}> indices, View<const {element}, {rank}> values
) {{
    __shared__ {number} sums[{rows} * {width}];
    __shared__ int counts[2][{threads}];
    __shared__ int found[{threads} * {each}];  // a place in the chunk and a row of the tile, in one number
    const int thread = threadIdx.x, column = thread % {width}, lane = thread / {width};
    const dagpu::index_t first = out.origin(0), n = out.origin(1) + column;
    const int rows = static_cast<int>(out.tile_extent(0));
    const bool mine = column < out.tile_extent(1);
    const long long length = {length}, extent = out.extent(0);
    if (mine)
        for (int row = lane; row < rows; row += {lanes}) sums[row * {width} + column] = {load_out};
    for (long long begin = 0; begin < length; begin += {threads} * {each}) {{
        int own[{each}], count = 0;
#pragma unroll
        for (int k = 0; k < {each}; ++k) {{
            const long long at = begin + thread * {each} + k;
            own[k] = -1;
            if (at >= length) continue;
            const long long given = {index};
            const long long row = given < 0 ? given + extent : given;
#ifdef DAGPU_CHECKED
            if ((row < 0 || row >= extent) && first == 0 && out.origin(1) == 0) out(given, 0) = out(0, 0);
#endif
            if (row >= first && row < first + rows) own[k] = static_cast<int>(row - first), ++count;
        }}
        counts[0][thread] = count;
        __syncthreads();
        int now = 0;
        for (int step = 1; step < {threads}; step *= 2) {{
            counts[1 - now][thread] = counts[now][thread] + (thread < step ? 0 : counts[now][thread - step]);
            now = 1 - now;
            __syncthreads();
        }}
        int slot = counts[now][thread] - count;
        const int total = counts[now][{threads} - 1];
#pragma unroll
        for (int k = 0; k < {each}; ++k)
            if (own[k] >= 0) found[slot++] = (thread * {each} + k) * {most} + own[k];
        __syncthreads();
        for (int k = 0; k < total; ++k) {{
            const int row = found[k] % {most};
            if (!mine || row % {lanes} != lane) continue;
            const long long at = begin + found[k] / {most};
            const {number} value = {load_value};
            {number}& sum = sums[row * {width} + column];
            sum = {combined};
        }}
        __syncthreads();
    }}
    if (mine)
        for (int row = lane; row < rows; row += {lanes}) out(first + row, n) = {store};
}}
"""


@leaves_run
def scatter_add(
    into: Tensor[_S] | DeviceOp[Tensor[_S], Borrowed], indices: In[_I], values: In[_S]
) -> DeviceOp[Tensor[_S], Any]:
    """Add rows of `values` to the rows of `into` that `indices` name, in place: `into[indices[k]] += values[k]`.

    The result is the tensor `into`, which moves into the op. An index may occur many times. Each element adds its
    values one after the other in the order of the indices, so the bits are the same in every run and on every device;
    f16 and bf16 are added in f32 and rounded once, and integers wrap. This is `numpy.add.at`, but `values` is not
    broadcast and not converted.

    A negative index counts from the end. An index beyond `into` is a `KernelBoundsError` with the line of this call:
    always on the host, and on a GPU if DAGPU_CHECKED is 1; without it the GPU leaves the value out. If rows have no
    elements, no index is read or checked.

    Cost: one launch. Each of its blocks owns a tile of `into`, of up to 4,096 elements, and of fewer while there are
    less than 256 blocks. It reads all indices, and each value of its own rows once. An element that gets many values
    takes as long as they take one after the other.

    Args:
        into: an owned tensor with one axis at least, or an op whose result is one.
        indices: a tensor of i32 or i64, of any shape.
        values: a tensor of the element type of `into`, of the shape `(*indices.shape, *into.shape[1:])`.

    Raises:
        KernelArgumentError: an element type is wrong, or `into` is not owned.
        ShapeError: the shapes do not fit together.
    """
    return _scatter("scatter_add", into, indices, values)


@leaves_run
def scatter_set(
    into: Tensor[_V] | DeviceOp[Tensor[_V], Borrowed], indices: In[_I], values: In[_V]
) -> DeviceOp[Tensor[_V], Any]:
    """Write rows of `values` to the rows of `into` that `indices` name, in place: `into[indices[k]] = values[k]`.

    Of several values for one row the last one stays, on every device. Arguments, errors and cost are those of
    `scatter_add`; elements may be bools, too.
    """
    return _scatter("scatter_set", into, indices, values)


@leaves_run
def scatter_max(
    into: Tensor[_N] | DeviceOp[Tensor[_N], Borrowed], indices: In[_I], values: In[_N]
) -> DeviceOp[Tensor[_N], Any]:
    """Keep the largest of the elements of `into` and of the `values` whose indices name them, in place.

    A NaN wins, and -0 is below 0, as for `maximum`. Arguments, errors and cost are those of `scatter_add`.
    """
    return _scatter("scatter_max", into, indices, values)


@leaves_run
def scatter_min(
    into: Tensor[_N] | DeviceOp[Tensor[_N], Borrowed], indices: In[_I], values: In[_N]
) -> DeviceOp[Tensor[_N], Any]:
    """Keep the smallest of the elements of `into` and of the `values` whose indices name them, in place. A NaN wins."""
    return _scatter("scatter_min", into, indices, values)


@leaves_run
def segment_sum(values: In[_S], segments: In[_I], n: int) -> DeviceOp[Tensor[_S], Any]:
    """Return the sums of the rows of `values` that belong to each of `n` segments: a tensor of the shape
    `(n, *values.shape[1:])`, whose row s is the sum of the rows k with `segments[k] == s`.

    The sum of no rows is 0. Segments need not be sorted; the order of additions is that of `scatter_add`, whose rules
    for indices hold for `segments`.

    Args:
        values: a tensor with as many first axes as `segments` has.
        segments: a tensor of i32 or i64.
        n: the number of segments, 1 or more.

    Raises:
        KernelArgumentError: an element type is wrong.
        ShapeError: the shapes do not fit together.
        TypeError: `n` is not a whole number.
        ValueError: `n` is less than 1.
    """
    origin = here()
    count = check_count(n, "segment_sum", origin, "n")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        added: Layout = checked_input("segment_sum", layouts[0], "number", origin, "values")
        places: Layout = checked_indices("segment_sum", layouts[1], origin, "segments")
        shape: Shape = (count, *added.shape[len(places.shape) :])
        target: Layout = contiguous_layout(shape, added.dtype)
        check_shapes("segment_sum", target, places, added, origin, ("the sums", "segments"))
        value, given = move_arguments("segment_sum", arguments, origin)
        into: AnyOp = Alloc(target.shape, target.dtype, Constant(0), origin)
        return _scattered("scatter_add", (into, given, value), (target, places, added), origin)

    return array_call("segment_sum", ("values", "segments"), (values, segments), build, origin)


def _scatter(name: str, into: Any, indices: Any, values: Any) -> AnyOp:
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        checked = _checked_layouts(name, arguments[0], layouts, origin)
        return _scattered(name, move_arguments(name, arguments, origin), checked, origin)

    return array_call(name, ("into", "indices", "values"), (into, indices, values), build, origin)


def _scattered(name: str, arguments: tuple[Any, ...], layouts: tuple[Layout, Layout, Layout], origin: Origin) -> AnyOp:
    """Return the op of the launch for arguments that have moved."""
    into, given, value = arguments
    target, places, added = layouts
    shape: Shape = (target.shape[0], prod(target.shape[1:]))
    listed = group_axes(places, (len(places.shape),))
    source = group_axes(added, (len(places.shape), len(target.shape) - 1))
    tile = _tile(shape)
    op = into if isinstance(into, DeviceOp) else Value(into, origin)
    spec = _kernel(name, target.dtype, places.dtype, listed.pattern, source.pattern, tile, CHECKED.get())
    out: AnyOp = Map(reshaped(op, target, shape, origin), Cut(tile, True), origin)
    given, value = reshaped(given, places, listed.passed, origin), reshaped(value, added, source.passed, origin)
    op = first_output(spec, (out, given, value), origin)
    result: AnyOp = reshaped(op, Layout(target.dtype, shape, (), 0), target.shape, origin)
    return result


def _checked_layouts(
    name: str, into: Any, layouts: tuple[Layout | None, ...], origin: Origin
) -> tuple[Layout, Layout, Layout]:
    """Return the layouts of the target, the indices and the values.

    Raises:
        KernelArgumentError: one of them has a wrong element type, or the target cannot be written.
        ShapeError: the shapes do not fit together.
    """
    domain: Domain = "any" if name == "scatter_set" else OPERATIONS[COMBINED[name]].domain
    target = checked_input(name, layouts[0], domain, origin, "into")
    places = checked_indices(name, layouts[1], origin)
    added = checked_input(name, layouts[2], domain, origin, "values")
    if isinstance(into, SharedTensor | TensorRef | TensorMut | Partition):
        what = f"into is a {type(into).__name__}, and it is written"
        raise refused_call(name, origin, what, "Pass an owned Tensor, or a copy: dup(t)")
    if added.dtype != target.dtype:
        what = f"values of {type_name(added.dtype)} and into of {type_name(target.dtype)}"
        raise refused_call(name, origin, what, "Convert one: convert(t, f32), say")
    if not target.shape:
        raise ShapeError(
            f"{name} at {describe(origin)}: into has no axes, so it has no rows. Reshape it: into.reshape((1,))."
        )
    if not target.shape[0] and 0 not in places.shape:
        raise ShapeError(
            f"{name} at {describe(origin)}: into has no rows, but indices has {places.size} elements. Give no indices."
        )
    check_shapes(name, target, places, added, origin, ("into", "indices"))
    return target, places, added


def check_shapes(
    name: str, target: Layout, places: Layout, added: Layout, origin: Origin, names: tuple[str, str]
) -> None:
    """Raise a ShapeError if there is not a value for each element of the rows that indices name. `names` are the words
    for the target and the indices."""
    wanted = (*places.shape, *target.shape[1:])
    if added.shape != wanted:
        raise ShapeError(
            f"{name} at {describe(origin)}: values has shape {added.shape}, but {names[1]} of {places.shape} and "
            f"{names[0]} of {target.shape} want {wanted}. Give it that shape: values.reshape({wanted}), say."
        )


def _tile(shape: Shape) -> Shape:
    """Return the tile of one block: up to 128 columns, and as many rows as give enough blocks."""
    rows, columns = shape
    width = min(128, power_of_two(columns))
    across = -(-columns // width)
    wanted = power_of_two(-(-rows * max(across, 1) // BLOCKS))
    return min(MOST // width, wanted), width


@cache
def _kernel(
    name: str,
    dtype: "np.dtype[Any]",
    whole: "np.dtype[Any]",
    listed: GroupPattern,
    source: GroupPattern,
    tile: Shape,
    checked: bool,
) -> KernelSpec:
    """Return the kernel `out[indices[k], n] += values[k, n]`, or of another function."""
    del checked  # `generated_kernel` reads it
    moves, (rows, width) = name == "scatter_set", tile
    number = dtype if moves else register_dtype(dtype)
    pair, value = ("sum", "value"), element_text("values", source, ("at", "n"))
    total = f"sums[row * {width} + column]"
    combined = CudaText("value") if name == "scatter_set" else operation_text(COMBINED[name], number, pair)
    text = TEXT.format(
        helpers=helper_texts(set(combined.helpers)),
        name=name,
        element=memory_type(dtype),
        whole=memory_type(whole),
        index_rank=listed.rank,
        rank=source.rank,
        number=memory_type(dtype) if moves else register_type(number),
        rows=rows,
        width=width,
        lanes=THREADS // width,
        threads=THREADS,
        each=EACH,
        most=MOST,
        length=extent_text("indices", listed, 0),
        index=element_text("indices", listed, ("at",)),
        load_out="out(first + row, n)" if moves else load_text(dtype, "out(first + row, n)"),
        load_value=value if moves else load_text(dtype, value),
        combined=combined.text,
        store=total if moves else store_text(dtype, total),
    )
    params = [
        output("out", dtype, 2),
        tensor_input("indices", whole, listed.rank),
        tensor_input("values", dtype, source.rank),
    ]
    return generated_kernel(
        name,
        params,
        text,
        _twin(name, number, listed, source),
        (_kernel.__wrapped__.__code__, 0),
        block=(THREADS,),
        indexed=Indexed("indices", 0),
    )


def _twin(name: str, number: "np.dtype[Any]", listed: GroupPattern, source: GroupPattern) -> Callable[..., None]:
    """Return the NumPy twin. `numpy.add.at` is ten times as quick for one axis as for rows, so rows are cut into
    elements, a part of the indices at a time. It adds them in the order of the indices, too."""

    def body(out: Any, indices: Any, values: Any) -> None:
        rows, width = out.shape
        places, added = grouped_array(indices, listed), in_groups(values, source.groups, source.size)
        in_place = out.dtype == number and out.flags.c_contiguous
        sums = out if in_place else np.ascontiguousarray(out, number)
        flat, columns, step = sums.reshape(-1), np.arange(width), max(1, PART // max(1, width))
        check_places(places, rows)  # all of them, before anything is written
        for begin in until_cancelled(range(0, len(places), step)):
            part = checked_places(places[begin : begin + step], rows)
            of_rows = added[begin : begin + step, :].astype(number, copy=False)
            at = part if width == 1 else (part[:, None] * np.int64(width) + columns).reshape(-1)
            _combine(name, flat, at, of_rows.reshape(-1))
        if not in_place:
            np.copyto(out, sums, casting="unsafe")

    return body


def _combine(name: str, into: NDArray[Any], at: NDArray[Any], values: NDArray[Any]) -> None:
    """Combine values with the elements at these places, in their order."""
    if name == "scatter_set":
        into[at] = values
    elif name == "scatter_add":
        np.add.at(into, at, values)
    else:
        largest = name == "scatter_max"
        signed = [np.signbit(each) != largest for each in (into, values)] if into.dtype.kind == "f" else None
        zero = into == 0
        (np.maximum if largest else np.minimum).at(into, at, values)
        if signed is None:
            return
        # NumPy leaves open which of two zeros it keeps: 0 is the largest, and -0 the smallest.
        won = zero & signed[0]
        won[at[(values == 0) & signed[1]]] = True
        zero = into == 0
        into[zero] = np.where(won[zero] == largest, into.dtype.type(0), into.dtype.type(-0.0))
