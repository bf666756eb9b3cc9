"""`cumsum`, `cumprod`, `cummax` and `cummin`: the ops, their generated kernels and their NumPy twins."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input
from dagpu.common.layout import Layout, Shape, bf16, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import Origin, here, leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    reshaped,
    tensor_input,
)
from dagpu.kernels.numpy_operations import NumpyFunction, combining_function
from dagpu.kernels.operations import (
    OPERATIONS,
    combined_text,
    helper_texts,
    load_text,
    memory_type,
    register_dtype,
    register_type,
    store_text,
)
from dagpu.kernels.reduction_order import identity, identity_text
from dagpu.kernels.row_elements import (
    AxisGroups,
    GroupPattern,
    around_axis,
    element_text,
    extent_text,
    grouped_array,
    one_axis,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Launch, Map, components_of
from dagpu.ops.kernel_spec import KernelSpec

SCANS: Final = {"cumsum": "add", "cumprod": "multiply", "cummax": "maximum", "cummin": "minimum"}
"""The operation of each function. What the texts call a sum is what it makes of two numbers."""

RUN: Final = 16
"""The elements of a run, and the runs of a run of runs."""
BLOCK: Final = 4096
"""The elements of a block: `RUN` for each thread."""
THREADS: Final = BLOCK // RUN
LARGE: Final = RUN * RUN
"""The elements of a run of runs."""


@final
class ScanShape(NamedTuple):
    """The part of a tensor (before, along, after) that a block scans: 16, 32, ... or 4,096 elements along the axis, of
    several rows that lie before or after it. Their product is `BLOCK`."""

    span: int
    outer: int
    inner: int


SUMS: Final = """\
{helpers}\
__global__ void {name}(Tile<{target}, 3> out, View<const {element}, {rank}> x{formals}) {{
    // Elements in the order of rows, and one unused after each run: threads then use different banks.
    __shared__ {number} part[{block} + {threads}];
{shared}    const int thread = threadIdx.x;
    const dagpu::index_t outer = out.origin(0), first = {first}, inner = out.origin(2);
    const dagpu::index_t most_outer = out.tile_extent(0), most_inner = out.tile_extent(2);
    const dagpu::index_t most = {length} - first;
    for (int k = 0; k < {run}; ++k) {{
        const int number = k * {threads} + thread;
        const int b = number % {inner}, a = number / {inner} % {span}, c = number / {inner_span};
        {number} value = {identity};
        if (c < most_outer && a < most && b < most_inner) {{
            const dagpu::index_t o = outer + c, at = first + a, n = inner + b;
            value = {load};
        }}
        const int slot = (c * {inner} + b) * {span} + a;
        part[slot + slot / {run}] = value;
    }}
    __syncthreads();
    {number}* const own = part + thread * ({run} + 1);
    for (int k = 1; k < {run}; ++k) own[k] = {add_own};
{end}}}
"""
TOTALS: Final = """\
    totals[thread] = own[{run} - 1];
    __syncthreads();
    const int run = thread % ({span} / {run});
"""
PLACE: Final = """\
    const int row = thread / ({span} / {run}), c = row / {inner}, b = row % {inner};
"""
LARGER: Final = """\
    if (thread < {run}) {{
        {number} sum = totals[thread * {run}];
        for (int k = 1; k < {run}; ++k) sum = {add_total};
        larger[thread] = sum;
    }}
    __syncthreads();
"""
TOTAL: Final = """\
    if (run == 0 && c < most_outer && b < most_inner) {{
        {number} sum = {of}[{begin}];
        for (int k = 1; k < {run}; ++k) {{
            const {number} next = {of}[{begin} + k];
            sum = {add};
        }}
        out(outer + c, out.origin(1), inner + b) = sum;
    }}
"""
BEFORE: Final = """\
    if (run {place} > 0) {{
        {number} sum = {of}[{begin}];
        for (int k = 1; k < run {place}; ++k) {{
            const {number} next = {of}[{begin} + k];
            sum = {add};
        }}
        const {number} next = sum;
        sum = before;
        before = {add};
    }}
"""
WRITE: Final = """\
    for (int k = 0; k < {run}; ++k) {{
        const int number = k * {threads} + thread;
        const int b = number % {inner}, a = number / {inner} % {span}, c = number / {inner_span};
        const int slot = (c * {inner} + b) * {span} + a;
        if (c < most_outer && a < most && b < most_inner)
            out(outer + c, first + a, inner + b) = {store};
    }}
"""


@cache
def total_kernel(name: str, dtype: "np.dtype[Any]", source: GroupPattern, form: ScanShape) -> KernelSpec:
    """Return the kernel that writes the sum of each span: `out` of shape (before, spans, after)."""
    number, operation = register_dtype(dtype), SCANS[name]
    add = _add(operation, number, "sum", "next")
    end = PLACE.format(span=form.span, run=RUN, inner=form.inner)
    if form.span == BLOCK:
        end += TOTAL.format(run=RUN, number=register_type(number), of="larger", begin="0", add=add)
    else:
        end += TOTAL.format(run=RUN, number=register_type(number), of="totals", begin="thread", add=add)
    text = _text(name, dtype, number, source, form, f"out.origin(1) * {form.span}", "", end)
    params = [output("out", number, 3), tensor_input("x", dtype, source.rank)]

    def body(out: Any, x: Any) -> None:
        levels = _levels(operation, grouped_array(x, source).astype(number, copy=False), form.span)
        out[...] = levels[-1][..., -1, :]

    return generated_kernel(name, params, text, body, (total_kernel.__wrapped__.__code__, 0), block=(THREADS,))


@cache
def prefix_kernel(
    name: str, dtype: "np.dtype[Any]", source: GroupPattern, form: ScanShape, continued: bool, exclusive: bool
) -> KernelSpec:
    """Return the kernel that writes running sums.

    With `continued` its input `earlier`, of shape (before, spans, after), is what comes before each span. With
    `exclusive` it writes what comes before each element.
    """
    number, operation = register_dtype(dtype), SCANS[name]
    kind, add = register_type(number), _add(operation, number, "sum", "next")
    formals = f", View<const {kind}, 3> earlier" if continued else ""
    end = PLACE.format(span=form.span, run=RUN, inner=form.inner) if continued else ""
    end += f"    {kind} before = {identity_text(operation, number)};\n"
    if continued:
        end += "    if (c < most_outer && b < most_inner)\n"
        end += f"        before = earlier(outer + c, first / {form.span}, inner + b);\n"
    if form.span > LARGE:
        begin = f"thread / {RUN} - run / {RUN}"
        end += BEFORE.format(number=kind, place=f"/ {RUN}", of="larger", begin=begin, add=add)
    if form.span > RUN:
        end += BEFORE.format(number=kind, place=f"% {RUN}", of="totals", begin=f"thread - run % {RUN}", add=add)
    shifted = _add(operation, number, "before", "own[k - 1]"), _add(operation, number, "before", "own[k]")
    if exclusive:
        end += f"    for (int k = {RUN} - 1; k > 0; --k) own[k] = {shifted[0]};\n    own[0] = before;\n"
    else:
        end += f"    for (int k = 0; k < {RUN}; ++k) own[k] = {shifted[1]};\n"
    end += "    __syncthreads();\n" + WRITE.format(
        run=RUN,
        threads=THREADS,
        span=form.span,
        inner=form.inner,
        inner_span=form.inner * form.span,
        store=store_text(dtype, f"part[slot + slot / {RUN}]"),
    )
    text = _text(name, dtype, dtype, source, form, "out.origin(1)", formals, end)
    params = [output("out", dtype, 3), tensor_input("x", dtype, source.rank)]
    if continued:
        params.append(tensor_input("earlier", number, 3))
    twin = _prefix_twin(operation, number, source, form.span, exclusive)
    return generated_kernel(name, params, text, twin, (prefix_kernel.__wrapped__.__code__, 0), block=(THREADS,))


# ---- CUDA
def _add(operation: str, number: "np.dtype[Any]", a: str, b: str) -> str:
    return combined_text(operation, number, (a, b)).text


def _text(
    name: str,
    dtype: "np.dtype[Any]",
    target: "np.dtype[Any]",
    source: GroupPattern,
    form: ScanShape,
    first: str,
    formals: str,
    end: str,
) -> str:
    number, operation = register_dtype(dtype), SCANS[name]
    add, kind = combined_text(operation, number, ("own[k - 1]", "own[k]")), register_type(number)
    shared = f"    __shared__ {kind} totals[{THREADS}];\n" if form.span > RUN else ""
    shared += f"    __shared__ {kind} larger[{RUN}];\n" if form.span > LARGE else ""
    sums = TOTALS.format(run=RUN, span=form.span) if form.span > RUN else ""
    if form.span > LARGE:
        sums += LARGER.format(
            run=RUN, number=kind, add_total=_add(operation, number, "sum", f"totals[thread * {RUN} + k]")
        )
    return SUMS.format(
        helpers=helper_texts(set(add.helpers)),
        name=name,
        target=memory_type(target),
        element=memory_type(dtype),
        rank=source.rank,
        formals=formals,
        number=kind,
        shared=shared,
        block=BLOCK,
        threads=THREADS,
        run=RUN,
        first=first,
        length=extent_text("x", source, 1),
        span=form.span,
        inner=form.inner,
        inner_span=form.inner * form.span,
        identity=identity_text(operation, number),
        load=load_text(dtype, element_text("x", source, ("o", "at", "n"))),
        add_own=add.text,
        end=sums + end,
    )


# ---- NumPy
def _prefix_twin(
    operation: str, number: "np.dtype[Any]", source: GroupPattern, span: int, exclusive: bool
) -> Callable[..., None]:
    combine = combining_function(operation, number)

    def body(out: Any, x: Any, earlier: Any = None) -> None:
        rows = grouped_array(x, source).astype(number, copy=False)
        levels = _levels(operation, rows, span)
        before: NDArray[Any] = np.full((rows.shape[0], levels[-1].shape[1], rows.shape[2]), identity(operation, number))
        if earlier is not None:
            before = earlier
        for level in reversed(levels[1:]):
            before = _shifted(combine, before, level).reshape(rows.shape[0], -1, rows.shape[2])
        found = _shifted(combine, before, levels[0]) if exclusive else combine(before[:, :, None], levels[0])
        found = found.reshape(rows.shape[0], -1, rows.shape[2])
        np.copyto(out, found[:, : rows.shape[1]], casting="unsafe")

    return body


def _levels(operation: str, rows: NDArray[Any], span: int) -> list[NDArray[Any]]:
    """Return the running sums inside of runs, of elements and then of the sums of runs, up to those of a span.

    Each level has the shape (before, runs, 16, after), or fewer than 16. Rows are filled up to a multiple of the span
    with what changes no sum.
    """
    before, length, after = rows.shape
    full = np.full((before, -(-length // span) * span, after), identity(operation, rows.dtype))
    full[:, :length] = rows
    levels: list[NDArray[Any]] = []
    combine = combining_function(operation, rows.dtype)
    while span > 1:
        width = min(RUN, span)
        runs = full.reshape(before, full.shape[1] // width, width, after)
        sums = runs.copy() if levels else runs
        for k in range(1, width):  # one addition for all runs: four times as fast as NumPy's `accumulate`
            combine(sums[:, :, k - 1], runs[:, :, k], out=sums[:, :, k])
        levels.append(sums)
        full = sums[:, :, -1]
        span //= width
    return levels


def _shifted(combine: NumpyFunction, before: NDArray[Any], level: NDArray[Any]) -> NDArray[Any]:
    """Return what comes before each item of the runs of a level, of what comes before each run."""
    found = np.empty_like(level)
    found[:, :, 0] = before
    found[:, :, 1:] = combine(before[:, :, None], level[:, :, :-1])
    return found


# ---- running sums
#
# `cumsum`: running sums along an axis.
#
# The order of additions follows from the length of a row alone. A row is cut into runs of 16 elements. The sums of
# these runs are a shorter row, which is cut into runs of 16 again, and so on, until one run is left. Within a run, sums
# are added one after the other from its first item. Each item has a number before it: that of its run, to which the
# running sum of the items before it in the run is added. A run has the number that its sum has in the shorter row, and
# the last run has none. The result for an element is the number before its run, plus the running sum up to it inside of
# the run.
#
# A block computes `BLOCK` elements. Where a row is longer, a first launch writes the sums of its spans, and the number
# before each span is computed of these by the same rule.

# Constrained, not bounded: handles are covariant, and a bound would accept bool.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_S = TypeVar("_S", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)

PLAIN: Final = GroupPattern((0, 1, 2), 3)
"""The pattern of a contiguous argument of shape (before, along, after)."""


@leaves_run
def cumsum(x: In[_S], axis: int | None = None) -> DeviceOp[Tensor[_S], Any]:
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
    return _along("cumsum", x, axis)


@leaves_run
def cumprod(x: In[_S], axis: int | None = None) -> DeviceOp[Tensor[_S], Any]:
    """Return the running products along an axis. Order, arguments and errors are those of `cumsum`."""
    return _along("cumprod", x, axis)


@leaves_run
def cummax(x: In[_N], axis: int | None = None) -> DeviceOp[Tensor[_N], Any]:
    """Return the largest element so far along an axis. A NaN wins, and -0 is below 0. Arguments and errors are those of
    `cumsum`. NumPy calls it `maximum.accumulate`."""
    return _along("cummax", x, axis)


@leaves_run
def cummin(x: In[_N], axis: int | None = None) -> DeviceOp[Tensor[_N], Any]:
    """Return the smallest element so far along an axis, as `cummax` returns the largest."""
    return _along("cummin", x, axis)


def _along(name: str, x: Any, axis: object) -> AnyOp:
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], OPERATIONS[SCANS[name]].domain, origin)
        place = None if axis is None else one_axis(axis, len(layout.shape), name, origin)
        (moved,) = move_arguments(name, arguments, origin)
        return scanned(name, moved, layout, place, origin)

    return array_call(name, ("x",), (x,), build, origin)


def scanned(name: str, x: Any, layout: Layout, axis: int | None, origin: Origin) -> AnyOp:
    """Return the op of one of `SCANS` of an argument that has moved, along an axis or over all elements."""
    source = around_axis(layout, axis)
    op = _scan(name, reshaped(x, layout, source.passed, origin), layout.dtype, source, origin)
    shape = (layout.size,) if axis is None else layout.shape
    result: AnyOp = reshaped(op, Layout(layout.dtype, source.extents, (), 0), shape, origin)
    return result


def _scan(
    name: str, x: Any, dtype: "np.dtype[Any]", source: AxisGroups, origin: Origin, *, exclusive: bool = False
) -> AnyOp:
    """Return the op of the running sums of `x` along its middle group; with `exclusive`, of what comes before each
    element."""
    form = scan_shape(source.extents)
    before, length, after = source.extents
    spans = -(-length // form.span)
    earlier: list[AnyOp] = []
    if spans > 1:
        number = register_dtype(dtype)
        totals = new_output((before, spans, after), number, (form.outer, 1, form.inner), origin)
        launch = Launch(total_kernel(name, dtype, source.pattern, form), (totals, x), origin)
        summed, x = components_of(launch, origin)
        extents = (before, spans, after)
        before_spans = AxisGroups(extents, extents, PLAIN.groups)
        earlier = [_scan(name, Map(summed, UNCUT, origin), number, before_spans, origin, exclusive=True)]
    spec = prefix_kernel(name, dtype, source.pattern, form, bool(earlier), exclusive)
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
