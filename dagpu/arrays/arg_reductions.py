"""`argmin` and `argmax`: the places of the smallest and the largest elements.

A pass writes the place of the best element of each span and the element itself, which the next pass compares. Of equal
elements the first is best, so the result does not depend on the order of comparisons.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input, kept_shape, no_elements, normal_axes
from dagpu.common.layout import (
    Layout,
    bf16,
    bool_,
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
from dagpu.common.places import Origin, here, leaves_run
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import Expression
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
from dagpu.kernels.numpy_twin import NBYTES, until_cancelled
from dagpu.kernels.operations import memory_type, register_dtype, register_type
from dagpu.kernels.reduction_kernels import early_text, rows_of
from dagpu.kernels.reduction_order import (
    THREADS,
    ReducedAxes,
    ReductionOrder,
    RowWalk,
    identity_text,
    merge_axes,
    reduction_order,
)
from dagpu.kernels.row_elements import array_elements
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Launch, Map, components_of
from dagpu.ops.creation import Alloc
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, and a bound would join f32 and i64 to np.generic.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)

_I64: Final = np.dtype(np.int64)

TEXT: Final = """\
// True if a at place i is better than b at place j. A NaN is best, and of equal ones the first.
template <class T> __device__ __forceinline__ bool better(T a, long long i, T b, long long j) {{
    const bool odd = a != a, other = b != b, sooner = i < j;
    return odd | other ? odd & (!other | sooner) : (a {sign} b) | ((a == b) & sooner);
}}

__global__ void {name}(Tile<long long, 2> out{best}, View<const {element}, {rank}> x{before}) {{
{early}{head}    {number} found[{count}] = {{{identities}}};
    long long places[{count}] = {{{nowhere}}};
    if (mine) {{
{body}    }}
{fold}    if (mine && lane == 0) {{
{results}    }}
}}
"""


@leaves_run
def argmin(x: In[_V], axis: int | None = None, *, keepdims: bool = False) -> DeviceOp[Tensor[i64], Any]:
    """Return the place of the smallest element along an axis; without an axis, in the whole tensor in C order.

    Of equal elements it is the first. A NaN counts as the smallest. Bools are converted to bytes by a launch before.
    With `keepdims` the axis stays, with extent 1.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _arg_reduce("argmin", x, axis, keepdims)


@leaves_run
def argmax(x: In[_V], axis: int | None = None, *, keepdims: bool = False) -> DeviceOp[Tensor[i64], Any]:
    """Return the place of the largest element along an axis; without an axis, in the whole tensor in C order.

    Of equal elements it is the first. A NaN counts as the largest. Bools are converted to bytes by a launch before.
    With `keepdims` the axis stays, with extent 1.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _arg_reduce("argmax", x, axis, keepdims)


def _arg_reduce(name: str, x: Any, axis: object, keepdims: object) -> AnyOp:
    origin = here()
    kept = check_flag(keepdims, name, origin, "keepdims")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "ordered", origin)
        axes = normal_axes(axis, len(layout.shape), name, origin)
        shape = kept_shape(layout.shape, axes, kept)
        reduced = tuple([a in axes for a in range(len(layout.shape))])
        merged = merge_axes(layout.shape, reduced, contiguous=layout.contiguous)
        if not merged.length and 0 not in shape:
            raise no_elements(name, origin)
        (moved,) = move_arguments(name, arguments, origin)
        if not merged.length:
            return Alloc(shape, _I64, None, origin)
        if layout.dtype.kind == "b":
            moved = _as_bytes().build((moved,), origin)
            layout = contiguous_layout(layout.shape, np.dtype(u8))
            merged = merge_axes(layout.shape, reduced, contiguous=True)
        found = _passes(name, reshaped(moved, layout, merged.shape, origin), layout.dtype, merged, origin)
        result: AnyOp = reshaped(found, Layout(_I64, (merged.rows, 1), (), 0), shape, origin)
        return result

    return array_call(name, ("x",), (x,), build, origin)


@cache
def _as_bytes() -> Expression[..., Any]:
    """Return the expression of bools as bytes of 0 and 1."""

    def as_bytes(x: Elem[bool_]) -> Elem[u8]:
        return x.to(u8)

    return Expression(trace_expression(as_bytes, (np.dtype(bool_),)), (_arg_reduce.__code__, 0))


def _passes(name: str, x: Any, dtype: "np.dtype[Any]", axes: ReducedAxes, origin: Origin) -> AnyOp:
    """Return the op of all passes over the rows of `x`. Its result has the shape (rows, 1)."""
    rows, before = axes.rows, list[AnyOp]()
    while True:
        order = reduction_order(axes.length, axes.neighbours)
        spans = -(-axes.length // order.span)
        spec = _kernel(name, dtype, axes.reduced, order, not before, spans == 1)
        places = new_output((rows, spans), _I64, (order.rows, 1), origin)
        if spans == 1:
            return first_output(spec, (places, x, *before), origin)
        best = new_output((rows, spans), register_dtype(dtype), (order.rows, 1), origin)
        parts = components_of(Launch(spec, (places, best, x, *before), origin), origin)
        before, x = [Map(parts[0], UNCUT, origin)], Map(parts[1], UNCUT, origin)
        axes = ReducedAxes((rows, spans), (False, True))


@cache
def _kernel(
    name: str, dtype: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, first: bool, last: bool
) -> KernelSpec:
    """Return the kernel of one pass: `out[row, span]`, the places of the best elements, and `best`, these elements.

    The last pass has no `best`. Each pass but the first has the places of its elements as another input, `before`.
    """
    number = register_dtype(dtype)
    source = dtype if first else number
    params = [output("out", _I64, 2)]
    if not last:
        params.append(output("best", number, 2))
    params.append(tensor_input("x", source, len(reduced)))
    if not first:
        params.append(tensor_input("before", _I64, 2))
    text = _pass_text(name, source, reduced, order, (first, last))
    place = (_kernel.__wrapped__.__code__, 0)
    twin = _twin(name, reduced, order, first, last)
    return generated_kernel(name, params, text, twin, place, block=(THREADS,), early_reads=None if first else ())


def _pass_text(
    name: str, source: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> str:
    """Return the text of a pass over elements of the type `source`; `ends` says whether it is the first pass, and the
    last."""
    (first, last), number = ends, register_dtype(source)
    register = register_type(number)
    walk = RowWalk(order, reduced, array_elements("x", source, len(reduced)).operands)
    rows = range(order.beside if order.across else 1)
    results = []
    for n in rows:
        writes = [f"out(out.origin(0) + row + {n}, out.origin(1)) = all_places[{walk.result(n)}];"]
        if not last:
            writes.append(f"best(out.origin(0) + row + {n}, out.origin(1)) = all_found[{walk.result(n)}];")
        guard = f"if (row + {n} < out.tile_extent(0)) " if order.across else ""
        results.append(f"        {guard}{{ {' '.join(writes)} }}\n")

    def visit(values: Sequence[str], position: str) -> list[str]:
        return [
            f"const {register} element = {values[0]};",
            f"const long long from = {position if first else f'before(of, {position})'};",
            f"if (better<{register}>(element, from, found[n], places[n])) found[n] = element, places[n] = from;",
        ]

    def join(names: Sequence[str], a: str, b: str) -> str:
        found, places = names
        return (
            f"if (better<{register}>({found}[{b}], {places}[{b}], {found}[{a}], {places}[{a}])) "
            f"{found}[{a}] = {found}[{b}], {places}[{a}] = {places}[{b}];"
        )

    return TEXT.format(
        name=name,
        sign="<" if name == "argmin" else ">",
        best="" if last else f", Tile<{register}, 2> best",
        element=memory_type(source),
        rank=len(reduced),
        before="" if first else ", View<const long long, 2> before",
        early=early_text(first, last),
        head=walk.head(),
        number=register,
        count=order.beside,
        identities=", ".join([identity_text("minimum" if name == "argmin" else "maximum", number)] * order.beside),
        nowhere=", ".join(["0x7fffffffffffffffLL"] * order.beside),
        body=walk.body(visit),
        fold=walk.fold({"found": register, "places": "long long"}, join),
        results="".join(results),
    )


_NBYTES: Final = 1 << 23
"""The bytes that are read at a time, where they are not copied."""


@lru_cache(maxsize=256)
def _parts(span: int, length: int, total: int, most: int) -> list[tuple[slice, slice, slice]]:
    """Return parts of rows side by side as slices of the elements, of the rows and of the spans, of about `most`
    elements each: whole spans, or the one that is cut off."""
    beside = max(1, most // min(length, span))
    step, full = max(1, most // (span * min(total, beside))), length // span
    columns = [slice(left, min(left + beside, total)) for left in range(0, total, beside)]
    spans = [slice(at, min(at + step, full)) for at in range(0, full, step)]
    found = [(slice(each.start * span, each.stop * span), chosen, each) for each in spans for chosen in columns]
    if full * span < length:
        found += [(slice(full * span, length), chosen, slice(full, full + 1)) for chosen in columns]
    return found


def _twin(name: str, reduced: tuple[bool, ...], order: ReductionOrder, first: bool, last: bool) -> Callable[..., None]:
    choose: Any = getattr(np, name)

    def body(out: Any, *arguments: Any) -> None:
        best, (x, *before) = (None, arguments) if last else (arguments[0], arguments[1:])
        rows = rows_of(x, reduced)
        number, (length, total) = register_dtype(rows.dtype), rows.shape
        copies = total > 1 or number != rows.dtype or not isinstance(rows, np.ndarray)
        most = (NBYTES if copies else _NBYTES) // number.itemsize
        for elements, chosen, spans in until_cancelled(_parts(order.span, length, total, most)):
            part = rows[elements, chosen].astype(number, copy=False)
            side, count = part.shape[1], spans.stop - spans.start
            part = part.reshape(count, -1, side)  # of spans one after another, that are one axis cut in two
            places = choose(part.reshape(count, -1), 1)[:, None] if side == 1 else choose(part, 1)
            across, down = np.arange(count)[:, None], np.arange(side)
            from_start = places + (elements.start + order.span * across)
            out[chosen, spans] = (from_start if first else before[0][chosen.start + down, from_start]).T
            if best is not None:
                best[chosen, spans] = part[across, places, down].T

    return body
