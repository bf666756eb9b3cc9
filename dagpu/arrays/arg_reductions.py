"""`argmin` and `argmax`: the places of the smallest and the largest elements.

A pass writes the place of the best element of each span and the element itself, which the next pass compares. Of equal
elements the first is best, so the result does not depend on the order of comparisons.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input, kept_shape, no_elements, normal_axes
from dagpu.common.layout import Layout, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
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

# Constrained, not bounded: handles are covariant, and a bound would accept bool.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)

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
def argmin(x: In[_N], axis: int | None = None) -> DeviceOp[Tensor[i64], Any]:
    """Return the place of the smallest element along an axis; without an axis, in the whole tensor in C order.

    Of equal elements it is the first. A NaN counts as the smallest.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _arg_reduce("argmin", x, axis)


@leaves_run
def argmax(x: In[_N], axis: int | None = None) -> DeviceOp[Tensor[i64], Any]:
    """Return the place of the largest element along an axis; without an axis, in the whole tensor in C order.

    Of equal elements it is the first. A NaN counts as the largest.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _arg_reduce("argmax", x, axis)


def _arg_reduce(name: str, x: Any, axis: object) -> AnyOp:
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "number", origin)
        axes = normal_axes(axis, len(layout.shape), name, origin)
        shape = kept_shape(layout.shape, axes, False)
        reduced = tuple([a in axes for a in range(len(layout.shape))])
        merged = merge_axes(layout.shape, reduced, contiguous=layout.contiguous)
        if not merged.length and 0 not in shape:
            raise no_elements(name, origin)
        (moved,) = move_arguments(name, arguments, origin)
        if not merged.length:
            return Alloc(shape, _I64, None, origin)
        found = _passes(name, reshaped(moved, layout, merged.shape, origin), layout.dtype, merged, origin)
        result: AnyOp = reshaped(found, Layout(_I64, (merged.rows, 1), (), 0), shape, origin)
        return result

    return array_call(name, ("x",), (x,), build, origin)


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


def _twin(name: str, reduced: tuple[bool, ...], order: ReductionOrder, first: bool, last: bool) -> Callable[..., None]:
    choose: Any = getattr(np, name)

    def body(out: Any, *arguments: Any) -> None:
        best, (x, *before) = (None, arguments) if last else (arguments[0], arguments[1:])
        rows = rows_of(x, reduced)
        number, (length, total) = register_dtype(rows.dtype), rows.shape
        beside = max(1, NBYTES // number.itemsize // min(length, order.span))
        blocks = product(range(0, length, order.span), range(0, total, beside))
        for begin, left in until_cancelled(blocks):
            chosen, span = slice(left, left + beside), begin // order.span
            part = rows[begin : begin + order.span, chosen].astype(number, copy=False)
            places = choose(part, axis=0)
            every = np.arange(len(places))
            out[chosen, span] = begin + places if first else before[0][left + every, begin + places]
            if best is not None:
                best[chosen, span] = part[places, every]

    return body
