"""`searchsorted`, `bincount` and `histogram`: where numbers belong in a sorted list, and how many belong to each place.

Counts are whole numbers, whose sum does not depend on the order. So a block counts a span of the elements in shared
memory by atomic operations, and a reduction adds up the counts of the spans: the bits are the same in every run.
"""

from functools import cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input, converted
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, bf16, contiguous_layout, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_count, check_word, format_value, is_real_number
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import FUSED, TILE, Expression, FusedCall
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    refused_type,
    reshaped,
    tensor_input,
)
from dagpu.kernels.numpy_twin import until_cancelled
from dagpu.kernels.operations import DOMAINS, load_text, memory_type, register_dtype, register_type, type_name
from dagpu.kernels.reduction_order import power_of_two
from dagpu.kernels.row_elements import GroupPattern, element_text, extent_text, group_axes, grouped_array
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import FromHost
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, and a bound would join f32 and i64 to np.generic.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_F = TypeVar("_F", f16, bf16, f32, f64)
_I = TypeVar("_I", i8, i16, i32, i64, u8, u16, u32, u64)

Side: TypeAlias = Literal["left", "right"]
"""Where a value belongs that is equal to an edge: before it, or behind it."""

_I64: Final = np.dtype(np.int64)
_I32: Final = np.dtype(np.int32)

THREADS: Final = 256
WIDTH: Final = 4096
"""The most counters of a block, which are in shared memory."""
SPAN: Final = 4096
"""The least elements of a span."""
SPANS: Final = 512
"""The most spans."""
COUNTERS: Final = 1 << 24
"""The most counters of all spans together, where several spans are taken."""

SEARCH: Final = """\
// True if a is before b, where NaNs are behind all numbers.
template <class T> __device__ __forceinline__ bool before(T a, T b) {{
    return a < b || (b != b && a == a);
}}

__global__ void searchsorted(
    Tile<long long, 1> out, View<const {element}, 1> edges, View<const {element}, {rank}> values
) {{
    for (auto i : out) {{
        const long long at = i[0];
        const {number} value = {value};
        long long low = 0, high = edges.extent(0);
        while (low < high) {{
            const long long middle = low + (high - low) / 2;
            const {number} edge = {edge};
            if ({ahead}) low = middle + 1;
            else high = middle;
        }}
        out[i] = low;
    }}
}}
"""
COUNT: Final = """\
__global__ void bincount(Tile<int, 2> out, View<const {element}, {rank}> x, long long each) {{
    __shared__ int counts[{width}];
    const long long begin = out.origin(0) * each, length = {length}, first = out.origin(1);
    const long long end = begin + each < length ? begin + each : length;
    const int columns = static_cast<int>(out.tile_extent(1));
    for (int n = threadIdx.x; n < columns; n += {threads}) counts[n] = 0;
    __syncthreads();
    for (long long at = begin + threadIdx.x; at < end; at += {threads}) {{
        const long long value = static_cast<long long>({value});
        if (value >= first && value < first + columns) atomicAdd(&counts[value - first], 1);
    }}
    __syncthreads();
    for (int n = threadIdx.x; n < columns; n += {threads}) out(out.origin(0), first + n) = counts[n];
}}
"""


@leaves_run
def searchsorted(edges: In[_N], values: In[_N], side: Side = "left") -> DeviceOp[Tensor[i64], Any]:
    """Return the places in a sorted list at which values belong, as i64 of the shape of `values`.

    With "left" place n is the first with `edges[n] >= value`, and with "right" the first with `edges[n] > value`; the
    number of edges if there is none. NaNs are behind all numbers, as in `sort`. The places for edges that are not
    sorted have no meaning.

    Args:
        edges: a tensor with one axis, in ascending order.
        values: a tensor of the element type of `edges`, of any shape.
        side: "left" or "right".

    Raises:
        KernelArgumentError: the element types differ, or `side` is another word.
        ShapeError: `edges` has not one axis.
    """
    origin = here()
    check_word("searchsorted", "side", side, ("left", "right"), origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        listed: Layout = checked_input("searchsorted", layouts[0], "real", origin, "edges")
        layout: Layout = checked_input("searchsorted", layouts[1], "real", origin, "values")
        if listed.dtype != layout.dtype:
            what = f"edges of {type_name(listed.dtype)} and values of {type_name(layout.dtype)}"
            raise refused_call("searchsorted", origin, what, "Convert one: convert(t, f32), say")
        if len(listed.shape) != 1:
            raise ShapeError(
                f"searchsorted at {describe(origin)}: edges has shape {listed.shape}, but one axis is wanted. Reshape "
                "it: edges.reshape((-1,))."
            )
        edge, given = move_arguments("searchsorted", arguments, origin)
        return searched(edge, given, layout, side, origin)

    return array_call("searchsorted", ("edges", "values"), (edges, values), build, origin)


@leaves_run
def bincount(x: In[_I], length: int) -> DeviceOp[Tensor[i64], Any]:
    """Return how often each of the numbers from 0 to `length - 1` is in `x`, as i64 of the shape `(length,)`.

    Other numbers are not counted: NumPy's result is as long as the largest number says, which only a run knows. For
    sums of weights there is `segment_sum`. Cost: one launch that reads `x` once for each 4,096 numbers, and a sum.

    Args:
        x: a tensor of integers, of any shape.
        length: the number of counts, 1 or more.

    Raises:
        KernelArgumentError: the elements are not integers.
        TypeError: `length` is not a whole number.
        ValueError: `length` is less than 1.
    """
    origin = here()
    count = check_count(length, "bincount", origin, "length")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input("bincount", layouts[0], "any", origin)
        if layout.dtype not in DOMAINS["int"]:
            raise refused_type("bincount", origin, layout.dtype)
        (moved,) = move_arguments("bincount", arguments, origin)
        return _counted(moved, layout, count, origin)

    return array_call("bincount", ("x",), (x,), build, origin)


@leaves_run
def histogram(
    x: In[_F],
    bins: int,
    range: tuple[float, float],  # noqa: A002  # reason: NumPy's name
) -> DeviceOp[Tensor[i64], Any]:
    """Return how many elements of `x` are in each of some intervals of equal length, as i64 of the shape `(bins,)`.

    The borders are `numpy.linspace(*range, bins + 1)`, rounded to the element type. An element on a border belongs to
    the interval above it, and one on the last border to the last interval. Elements beyond the range, and NaNs, are not
    counted. The range has to be said, since the smallest and largest element are known by the run alone.

    Args:
        x: a tensor of floats, of any shape.
        bins: the number of intervals, 1 or more.
        range: the first and the last border.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `range` is not two finite numbers, the smaller one first.
        TypeError: `bins` is not a whole number.
        ValueError: `bins` is less than 1.
    """
    origin = here()
    count, (low, high) = check_count(bins, "histogram", origin, "bins"), _ends(range, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input("histogram", layouts[0], "float", origin)
        edges = np.linspace(low, high, count + 1).astype(layout.dtype)
        edges[-1] = np.nextafter(edges[-1], layout.dtype.type(np.inf))  # so that the last interval has its end
        (moved,) = move_arguments("histogram", arguments, origin)
        places = searched(FromHost(edges, origin), moved, layout, "right", origin)
        counted = contiguous_layout(layout.shape, _I64)
        return _counted(_before().build((places,), origin), counted, count, origin)

    return array_call("histogram", ("x",), (x,), build, origin)


# ---- arguments and launches
def _ends(given: object, origin: Origin) -> tuple[float, float]:
    """Return the first and the last border."""
    pair = given if isinstance(given, tuple | list) else ()
    ends = [float(each) for each in pair if is_real_number(each) and np.isfinite(each)]
    if len(ends) != 2 or len(pair) != 2 or not ends[0] < ends[1]:
        raise ShapeError(
            f"histogram at {describe(origin)}: range is {format_value(given)}, but two numbers are wanted, the smaller "
            "one first. Write range=(0, 1), say."
        )
    return ends[0], ends[1]


def searched(edges: Any, values: Any, layout: Layout, side: Side, origin: Origin) -> AnyOp:
    """Return the op of the places of values, which have moved, with their shape."""
    listed = group_axes(layout, (len(layout.shape),))
    target = (listed.extents[0],)
    op = first_output(
        _search_kernel(layout.dtype, listed.pattern, side),
        (
            new_output(target, _I64, tile_of(target, TILE), origin),
            edges,
            reshaped(values, layout, listed.passed, origin),
        ),
        origin,
    )
    result: AnyOp = reshaped(op, contiguous_layout(target, _I64), layout.shape, origin)
    return result


def _counted(x: Any, layout: Layout, count: int, origin: Origin) -> AnyOp:
    """Return the op of the counts of numbers, which have moved."""
    listed = group_axes(layout, (len(layout.shape),))
    length = listed.extents[0]
    spans = max(1, min(SPANS, -(-length // SPAN), COUNTERS // count))
    width = min(WIDTH, power_of_two(count))
    counts = first_output(
        _count_kernel(layout.dtype, listed.pattern, width),
        (
            new_output((spans, count), _I32, (1, width), origin),
            reshaped(x, layout, listed.passed, origin),
            -(-length // spans),
        ),
        origin,
    )
    summed: AnyOp = FUSED.value["sum"].build(FusedCall(converted(_I32, _I64), "sum", 0, False), (counts,), origin)
    return summed


@cache
def _before() -> Expression[..., Any]:
    """Return the expression of the place before a place."""

    def before(place: Elem[i64]) -> Elem[i64]:
        return place - 1

    return Expression(trace_expression(before, (_I64,)), (histogram.__code__, 0))


@cache
def _search_kernel(dtype: "np.dtype[Any]", listed: GroupPattern, side: Side) -> KernelSpec:
    """Return the kernel of `searchsorted`."""
    number = register_dtype(dtype)
    text = SEARCH.format(
        element=memory_type(dtype),
        rank=listed.rank,
        number=register_type(number),
        value=load_text(dtype, element_text("values", listed, ("at",))),
        edge=load_text(dtype, "edges(middle)"),
        ahead="before(edge, value)" if side == "left" else "!before(value, edge)",
    )
    params = [output("out", _I64, 1), tensor_input("edges", dtype, 1), tensor_input("values", dtype, listed.rank)]

    def body(out: Any, edges: Any, values: Any) -> None:
        wide = number if dtype != number else dtype
        found = grouped_array(values, listed).astype(wide, copy=False)
        out[...] = np.searchsorted(edges.astype(wide, copy=False), found, side)

    return generated_kernel("searchsorted", params, text, body, (_search_kernel.__wrapped__.__code__, 0))


@cache
def _count_kernel(dtype: "np.dtype[Any]", listed: GroupPattern, width: int) -> KernelSpec:
    """Return the kernel that counts the numbers of each span."""
    text = COUNT.format(
        element=memory_type(dtype),
        rank=listed.rank,
        width=width,
        threads=THREADS,
        length=extent_text("x", listed, 0),
        value=element_text("x", listed, ("at",)),
    )
    params = [output("out", _I32, 2), tensor_input("x", dtype, listed.rank), number_input("each", _I64, "bincount")]

    def body(out: Any, x: Any, each: Any) -> None:
        numbers, (spans, count) = grouped_array(x, listed), out.shape
        for span in until_cancelled(range(spans)):
            part = numbers[span * int(each) : (span + 1) * int(each)].astype(np.int64, copy=False)
            if part.size and (part.min() < 0 or part.max() >= count):
                part = part[(part >= 0) & (part < count)]
            out[span] = np.bincount(part, minlength=count)

    return generated_kernel("bincount", params, text, body, (_count_kernel.__wrapped__.__code__, 0), block=(THREADS,))
