"""`flip`, `roll`, `pad`, `tile`, `repeat`, `broadcast_to`, `meshgrid`, `tril` and `triu`: each element of the result is
one of the input, at a place that follows from its own place along each axis.

A kernel gets one map for each axis, such as "backwards" or "from element n on, around the end". One launch does all
axes, and the numbers of the maps are arguments: one kernel serves all shifts and widths.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.reductions import Axis, checked_input, normal_axes
from dagpu.common.errors import KernelArgumentError, ShapeError
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
from dagpu.common.wrong_arguments import (
    add_call_place,
    as_whole_number,
    check_word,
    format_value,
    is_real_number,
    wrong_argument,
)
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
from dagpu.kernels.numpy_twin import until_cancelled
from dagpu.kernels.operations import memory_type, store_text
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Zip
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, and a bound would join f32 and i64 to np.generic.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)

Border: TypeAlias = Literal["constant", "edge", "reflect", "symmetric", "wrap"]
"""What `pad` writes beyond the border: a number, the last element, the elements mirrored about the last one or about
the border, or those of the other end. They are NumPy's names."""

BORDERS: Final = ("constant", "edge", "reflect", "symmetric", "wrap")

_I64: Final = np.dtype(np.int64)


@final
class AxisMap(NamedTuple):
    """Where the elements along an axis of the result come from. `number` is a shift, a count or a width."""

    kind: str
    number: int = 0


NEW: Final = AxisMap("new")
"""The map of an axis that the input does not have."""
SAME: Final = AxisMap("same")
_NUMBERED: Final = frozenset((*BORDERS, "roll", "repeat"))

_PLACES: Final = {
    "same": "{p}",
    "one": "0",
    "flip": "{e} - 1 - {p}",
    "roll": "{p} < {n} ? {p} - {n} + {e} : {p} - {n}",
    "tile": "{p} % {e}",
    "repeat": "{p} / {n}",
    "constant": "{p} - {n}",
    "edge": "{p} < {n} ? 0 : {p} - {n} < {e} ? {p} - {n} : {e} - 1",
    "wrap": "around({p} - {n}, {e})",
    "symmetric": "mirrored(around({p} - {n}, 2 * {e}), {e}, 1)",
    "reflect": "mirrored(around({p} - {n}, {e} > 1 ? 2 * {e} - 2 : 1), {e}, 2)",
}
"""The place in the input for the place `p` in the result, of the number `n` and the extent `e` of the input."""


def border_place(border: str, place: str, extent: str) -> str:
    """Return the text of the place in a tensor for one beyond its border. It calls functions of `AROUND`."""
    return _PLACES[border].format(p=place, n="0", e=extent)


AROUND: Final = """\
// What a goes round to in a period: from 0 to length - 1.
__device__ __forceinline__ long long around(long long a, long long length) {
    const long long rest = a % length;
    return rest < 0 ? rest + length : rest;
}
// The place of the mirrored elements; `less` is 2 if the last element is not repeated.
__device__ __forceinline__ long long mirrored(long long a, long long extent, int less) {
    return a < extent ? a : 2 * extent - less - a;
}

"""

TEXT: Final = """\
{functions}\
__global__ void {name}({formals}) {{
    for (auto i : out) {{
{places}        {store}
    }}
}}
"""


# ---- public functions
@leaves_run
def flip(x: In[_V], axis: Axis = None) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements of `x` in the opposite order along some axes, of its shape and type.

    A new tensor is written, where NumPy returns a view.

    Args:
        x: a tensor, or an op whose result is one.
        axis: one axis, several as a tuple, or None for all; a negative number counts from the last one.

    Raises:
        ShapeError: `x` has no such axis.
    """
    origin = here()

    def maps(layout: Layout) -> list[AxisMap]:
        axes = normal_axes(axis, len(layout.shape), "flip", origin)
        return [AxisMap("flip") if each in axes else SAME for each in range(len(layout.shape))]

    return _mapped("flip", x, maps, lambda shape: shape, origin)


@leaves_run
def roll(x: In[_V], shift: int | tuple[int, ...], axis: Axis = None) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements of `x` moved along some axes, of its shape and type; what leaves one end enters at the other.

    Args:
        x: a tensor, or an op whose result is one.
        shift: by how many places elements move to higher indices, for all axes or for each as a tuple. A negative
            number moves them to lower ones.
        axis: one axis, or several as a tuple. None moves the elements in C order, as if `x` had one axis.

    Raises:
        ShapeError: `x` has no such axis, or there is not one shift for each.
        TypeError: a shift is not a whole number.
    """
    origin = here()
    shifts = _whole_numbers("roll", "shift", shift, origin)

    def maps(layout: Layout) -> list[AxisMap]:
        axes = normal_axes(axis, len(layout.shape), "roll", origin)
        if len(shifts) not in (1, len(axes)):
            raise ShapeError(
                f"roll at {describe(origin)}: shift has {len(shifts)} numbers, but axis has {len(axes)}. Give one for "
                "each, or one for all."
            )
        moved = dict(zip(axes, shifts * len(axes) if len(shifts) == 1 else shifts, strict=True))
        return [
            AxisMap("roll", moved[each] % max(1, extent)) if each in moved else SAME
            for each, extent in enumerate(layout.shape)
        ]

    return _mapped("roll", x, maps, lambda shape: shape, origin, flat=axis is None)


def rolled(name: str, x: Any, shifts: Mapping[int, int], origin: Origin) -> AnyOp:
    """Return the op of the function `name` that rolls the elements of a tensor along each of some axes."""

    def maps(layout: Layout) -> list[AxisMap]:
        return [
            AxisMap("roll", shifts[axis] % max(1, extent)) if axis in shifts else SAME
            for axis, extent in enumerate(layout.shape)
        ]

    return _mapped(name, x, maps, lambda shape: shape, origin)


@leaves_run
def tile(x: In[_V], reps: int | tuple[int, ...]) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` laid side by side, `reps` times along each axis, of its element type.

    If there are more numbers than axes, `x` gets axes of extent 1 before its own; if there are fewer, they are for the
    last axes.

    Args:
        x: a tensor, or an op whose result is one.
        reps: how often, for each axis of the result; a number is for the last axis.

    Raises:
        ShapeError: a number is negative.
        TypeError: it is not a whole number.
    """
    origin = here()
    counts = _counts("tile", "reps", reps, origin)

    def maps(layout: Layout) -> list[AxisMap]:
        rank = max(len(layout.shape), len(counts))
        return [NEW] * (rank - len(layout.shape)) + [AxisMap("tile")] * len(layout.shape)

    def extents(shape: Shape) -> Shape:
        rank = max(len(shape), len(counts))
        both = zip((1,) * (rank - len(shape)) + shape, (1,) * (rank - len(counts)) + counts, strict=True)
        return tuple([extent * count for extent, count in both])

    return _mapped("tile", x, maps, extents, origin)


@leaves_run
def repeat(x: In[_V], repeats: int, axis: int | None = None) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` with each element `repeats` times, one after the other along an axis.

    A count for each element, as NumPy takes it, would make a shape that only a run knows: gather with places instead,
    `take(x, places, axis)`.

    Args:
        x: a tensor, or an op whose result is one.
        repeats: how often, 0 or more.
        axis: one axis; None repeats the elements in C order, and the result has one axis.

    Raises:
        ShapeError: `x` has no such axis, or the count is negative.
        TypeError: the count is not a whole number.
    """
    origin = here()
    if as_whole_number(repeats) is None:
        raise TypeError(
            f"repeat at {describe(origin)}: repeats is {format_value(repeats)}, but one whole number is wanted. Gather "
            "with places for a count of each: take(x, places, axis)."
        )
    (count,) = _counts("repeat", "repeats", repeats, origin)

    def place(rank: int) -> int:
        axes = normal_axes(-1 if axis is None else axis, rank, "repeat", origin)
        if len(axes) != 1:
            raise ShapeError(f"repeat at {describe(origin)}: axis is {format_value(axis)}. Give one axis, or None.")
        return axes[0]

    def maps(layout: Layout) -> list[AxisMap]:
        rank = len(layout.shape)
        return [AxisMap("repeat", max(1, count)) if each == place(rank) else SAME for each in range(rank)]

    def extents(shape: Shape) -> Shape:
        along = place(len(shape))
        return tuple([extent * count if each == along else extent for each, extent in enumerate(shape)])

    return _mapped("repeat", x, maps, extents, origin, flat=axis is None)


@leaves_run
def broadcast_to(x: In[_V], shape: int | Shape) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` with another shape by NumPy's rules: its extents of 1, and axes before its own, are repeated.

    A new tensor is written, where NumPy returns a view. Expressions broadcast by themselves, and write none.

    Args:
        x: a tensor, or an op whose result is one.
        shape: the shape of the result.

    Raises:
        ShapeError: `x` does not broadcast to it, or an extent is negative.
        TypeError: an extent is not a whole number.
    """
    origin = here()
    target = _counts("broadcast_to", "shape", shape, origin)
    return _mapped("broadcast_to", x, lambda layout: _broadcast(layout.shape, target, origin), lambda _: target, origin)


@leaves_run
def meshgrid(*xs: In[_V], indexing: Literal["xy", "ij"] = "xy") -> DeviceOp[tuple[Tensor[_V], ...], Any]:
    """Return the coordinates of a grid: one tensor for each argument, all of one shape, as a tuple.

    With "ij" element `[i, j]` of the first is `xs[0][i]`, and of the second `xs[1][j]`. With "xy" the first two axes
    are exchanged, as for pictures.

    Args:
        *xs: tensors with one axis, or ops whose results are such, of one element type.
        indexing: "xy" or "ij".

    Raises:
        KernelArgumentError: there are no tensors, `indexing` is another word, or the element types differ.
        ShapeError: a tensor has not one axis.
    """
    origin = here()
    check_word("meshgrid", "indexing", indexing, ("xy", "ij"), origin)
    if not xs:
        raise refused_call("meshgrid", origin, "there are no tensors", "Pass one at least")
    names = [f"xs[{n}]" for n in range(len(xs))]

    def build(arguments: tuple[Any, ...], given: tuple[Layout | None, ...]) -> AnyOp:
        layouts = [
            checked_input("meshgrid", each, "any", origin, name) for each, name in zip(given, names, strict=True)
        ]
        for layout, name in zip(layouts, names, strict=True):
            if len(layout.shape) != 1:
                raise ShapeError(
                    f"meshgrid at {describe(origin)}: {name} has shape {layout.shape}, but one axis is wanted. Reshape "
                    "it: x.reshape((-1,))."
                )
        moved = move_arguments("meshgrid", arguments, origin)
        order = list(range(len(xs)))
        if indexing == "xy":
            order[:2] = order[:2][::-1]
        target = tuple([layouts[n].shape[0] for n in order])
        found = []
        for n, (x, layout) in enumerate(zip(moved, layouts, strict=True)):
            maps = tuple([SAME if each == n else NEW for each in order])
            found.append(_launch("meshgrid", x, layout.dtype, maps, target, None, origin))
        return Zip(tuple(found), origin)

    return array_call("meshgrid", names, xs, build, origin)


@leaves_run
def pad(
    x: In[_V],
    pad_width: int | tuple[int, int] | tuple[tuple[int, int], ...],
    mode: Border = "constant",
    *,
    constant_values: float = 0,
) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` with more elements before and after it along each axis, of its element type.

    Args:
        x: a tensor, or an op whose result is one.
        pad_width: how many: a number for both ends of all axes, `(before, after)` for all axes, or such a pair for
            each axis.
        mode: what is written there: "constant" a number, "edge" the last element, "reflect" the elements mirrored
            about the last one, "symmetric" those mirrored about the border, and "wrap" those of the other end. The
            widths may be larger than `x`.
        constant_values: the number of "constant".

    Raises:
        KernelArgumentError: `mode` is another word, or the elements cannot be this number.
        ShapeError: a width is negative, there is not one for each axis, or elements of an axis without any are asked
            for.
        TypeError: a width is not a whole number.
    """
    origin = here()
    check_word("pad", "mode", mode, BORDERS, origin)
    if not is_real_number(constant_values) and not isinstance(constant_values, bool):
        raise wrong_argument(
            "pad", origin, "constant_values", constant_values, "a number", "Write constant_values=1, say"
        )
    pairs = _widths(pad_width, origin)

    def of_each(rank: int) -> tuple[tuple[int, int], ...]:
        if len(pairs) not in (1, rank):
            raise ShapeError(
                f"pad at {describe(origin)}: pad_width has {len(pairs)} pairs, but x has {rank} axes. Give one for "
                "each, or one for all."
            )
        return pairs * rank if len(pairs) == 1 else pairs

    def maps(layout: Layout) -> list[AxisMap]:
        widths = of_each(len(layout.shape))
        for each, (extent, width) in enumerate(zip(layout.shape, widths, strict=True)):
            if not extent and any(width) and mode != "constant":
                raise ShapeError(
                    f"pad at {describe(origin)}: axis {each} of x has no elements to repeat. Pad it by a number: "
                    'mode="constant".'
                )
        return [AxisMap(mode, before) if before or after else SAME for before, after in widths]

    def extents(shape: Shape) -> Shape:
        return tuple([sum(width) + extent for extent, width in zip(shape, of_each(len(shape)), strict=True)])

    return _mapped("pad", x, maps, extents, origin, fill=constant_values if mode == "constant" else None)


@leaves_run
def tril(x: In[_V], k: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` with 0 above a diagonal of its last two axes, of its shape and type.

    Args:
        x: a tensor with two axes at least, or an op whose result is one.
        k: the diagonal: 0 is the main one, and the k-th is above it; a negative number is below.

    Raises:
        ShapeError: `x` has fewer axes.
        TypeError: `k` is not a whole number.
    """
    return _triangle("tril", x, k)


@leaves_run
def triu(x: In[_V], k: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return `x` with 0 below a diagonal of its last two axes. Arguments and errors are those of `tril`."""
    return _triangle("triu", x, k)


# ---- arguments
def _whole_numbers(name: str, param: str, given: object, origin: Origin) -> tuple[int, ...]:
    """Return a whole number, or a tuple of them, as a tuple."""
    found = [as_whole_number(each) for each in (given if isinstance(given, tuple | list) else (given,))]
    numbers = tuple([each for each in found if each is not None])
    if len(numbers) != len(found):
        raise TypeError(
            f"{name} at {describe(origin)}: {param} is {format_value(given)}, but a whole number, or a tuple of them, "
            f"is wanted. Write {param}=2, say."
        )
    return numbers


def _counts(name: str, param: str, given: object, origin: Origin) -> tuple[int, ...]:
    """Return whole numbers of 0 or more as a tuple."""
    numbers = _whole_numbers(name, param, given, origin)
    if min(numbers, default=0) < 0:
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} is {format_value(given)}, but it counts. Give numbers of 0 or more."
        )
    return numbers


def _widths(given: object, origin: Origin) -> tuple[tuple[int, int], ...]:
    """Return what `pad_width` says as pairs, one for all axes or one for each."""
    if isinstance(given, tuple | list) and any(isinstance(each, tuple | list) for each in given):
        pairs = [_counts("pad", "pad_width", each, origin) for each in given]
    else:
        pairs = [_counts("pad", "pad_width", given, origin)]
    whole = tuple([(pair[0], pair[-1]) for pair in pairs if len(pair) in (1, 2)])
    if len(whole) != len(pairs):
        raise ShapeError(
            f"pad at {describe(origin)}: pad_width is {format_value(given)}. Give a number, a pair, or a pair for each "
            "axis: ((1, 1), (2, 2)), say."
        )
    return whole


def _broadcast(shape: Shape, target: Shape, origin: Origin) -> list[AxisMap]:
    """Return the maps by which a shape is broadcast to another one."""
    before = len(target) - len(shape)
    if before < 0 or any(n not in (1, wanted) for n, wanted in zip(shape, target[max(before, 0) :], strict=True)):
        raise ShapeError(
            f"broadcast_to at {describe(origin)}: x has shape {shape}, which does not broadcast to {target}. Extents "
            "must be equal, or 1 in x; reshape it: x.reshape((n, 1)), say."
        )
    along = [SAME if n == wanted else AxisMap("one") for n, wanted in zip(shape, target[before:], strict=True)]
    return [NEW] * before + along


# ---- launches
def _mapped(
    name: str,
    x: Any,
    maps: Callable[[Layout], Sequence[AxisMap]],
    extents: Callable[[Shape], Shape],
    origin: Origin,
    *,
    flat: bool = False,
    fill: Any = None,
) -> AnyOp:
    """Return the op of a tensor whose elements are those of `x` by the maps of its layout. `extents` says its shape;
    with `flat` the elements of `x` are taken in C order, and `roll` gives them its shape."""

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        given = checked_input(name, layouts[0], "any", origin)
        layout = contiguous_layout((given.size,), given.dtype) if flat else given
        of_axes, target = tuple(maps(layout)), extents(layout.shape)
        (moved,) = move_arguments(name, arguments, origin)
        if flat:
            moved = moved if given.contiguous else contiguous_copy(moved, origin)
            moved = reshaped(moved, given, layout.shape, origin)
        op = _launch(name, moved, layout.dtype, of_axes, target, fill, origin)
        result: AnyOp = reshaped(op, layout, given.shape, origin) if flat and name == "roll" else op
        return result

    return array_call(name, ("x",), (x,), build, origin)


def _launch(
    name: str, x: Any, dtype: "np.dtype[Any]", maps: tuple[AxisMap, ...], target: Shape, fill: Any, origin: Origin
) -> AnyOp:
    """Return the op of one launch, of an argument that has moved."""
    spec = _kernel(name, dtype, tuple([each.kind for each in maps]), fill is not None)
    numbers = [each.number for each in maps if each.kind in _NUMBERED]
    check = spec.params[-1].check
    if dtype.kind == "b" and fill in (0, 1):
        fill = bool(fill)
    try:
        filling = [] if fill is None or check is None else [check(fill)]
    except KernelArgumentError as error:
        raise add_call_place(name, origin, error) from None
    return first_output(spec, (new_output(target, dtype, tile_of(target, TILE), origin), x, *numbers, *filling), origin)


@cache
def _kernel(name: str, dtype: "np.dtype[Any]", kinds: tuple[str, ...], filled: bool) -> KernelSpec:
    """Return the kernel for maps of these kinds. `filled` is true if places beyond the input get a number."""
    element, rank = memory_type(dtype), sum(kind != "new" for kind in kinds)
    params = [output("out", dtype, len(kinds)), tensor_input("x", dtype, rank)]
    formals = f"Tile<{element}, {len(kinds)}> out, View<const {element}, {rank}> x"
    places, within, axis = "", list[str](), 0
    for place, kind in enumerate(kinds):
        if kind == "new":
            continue
        if kind in _NUMBERED:
            params.append(number_input(f"n{axis}", _I64, name))
            formals += f", long long n{axis}"
        where = _PLACES[kind].format(p=f"p{axis}", n=f"n{axis}", e=f"e{axis}")
        places += f"        const long long p{axis} = i[{place}], e{axis} = x.extent({axis});\n"
        places += f"        const long long a{axis} = {where};\n"
        if kind == "constant":
            within.append(f"a{axis} >= 0 && a{axis} < e{axis}")
        axis += 1
    value = f"x({', '.join([f'a{each}' for each in range(rank)])})"
    store = f"out[i] = {value};"
    if filled:
        params.append(number_input("constant_values", dtype, name))
        formals += f", {element} constant_values"
        if within:
            store = f"if ({' && '.join(within)}) out[i] = {value};\n        else out[i] = constant_values;"
    text = TEXT.format(
        functions=AROUND if "around" in places else "", name=name, formals=formals, places=places, store=store
    )
    return generated_kernel(name, params, text, _twin(kinds, filled), (_kernel.__wrapped__.__code__, 0))


# ---- NumPy
Pieces: TypeAlias = list[tuple[slice, slice]]
"""Slices of an axis of the result and of the input; one element of the input may be for many of the result."""


def _twin(kinds: tuple[str, ...], filled: bool) -> Callable[..., None]:
    """Return the NumPy twin: a copy for each piece of the result, whose elements are evenly spaced in the input."""
    old = [place for place, kind in enumerate(kinds) if kind != "new"]

    def body(out: Any, x: Any, *numbers: Any) -> None:
        if filled:
            out[...] = numbers[-1]
        if not x.size or not out.size:
            return
        given, pieces = iter(numbers), list[Pieces]()
        for axis, place in enumerate(old):
            number = int(next(given)) if kinds[place] in _NUMBERED else 0
            pieces.append(_pieces(kinds[place], number, x.shape[axis], out.shape[place]))
        for chosen in until_cancelled(product(*pieces)):
            target: list[Any] = [slice(None)] * len(kinds)
            read: list[Any] = [None] * len(kinds)
            for place, (written, taken) in zip(old, chosen, strict=True):
                target[place], read[place] = written, taken
            out[(*target, ...)] = x[(*read, ...)]

    return body


def _pieces(kind: str, number: int, extent: int, length: int) -> Pieces:
    """Return the pieces of an axis of this length, of an input with this extent."""
    whole = slice(None)
    match kind:
        case "same" | "one":
            return [(whole, whole)]
        case "flip":
            return [(whole, slice(None, None, -1))]
        case "roll":
            return [(slice(number, None), slice(0, extent - number)), (slice(0, number), slice(extent - number, None))]
        case "constant":
            return [(slice(number, number + extent), whole)]
        case "tile" if length <= extent * extent:
            return [(slice(begin, begin + extent), whole) for begin in range(0, length, max(1, extent))]
        case "tile":
            return [(slice(at, None, extent), slice(at, at + 1)) for at in range(extent)]
        case "repeat" if number <= extent:
            return [(slice(at, None, number), whole) for at in range(number)]
        case "repeat":
            return [(slice(at * number, (at + 1) * number), slice(at, at + 1)) for at in range(extent)]
        case _:
            return _runs(_beyond(kind, np.arange(-number, length - number), extent))


def _beyond(kind: str, places: NDArray[Any], extent: int) -> NDArray[Any]:
    """Return the places in the input of those that count from its first element, and may be beyond it."""
    if kind == "edge":
        inside: NDArray[Any] = np.clip(places, 0, extent - 1)
        return inside
    if kind == "wrap":
        around: NDArray[Any] = places % extent
        return around
    less = 1 if kind == "symmetric" else 2
    turned = places % max(1, 2 * extent - 2 * (less - 1))
    found: NDArray[Any] = np.where(turned < extent, turned, 2 * extent - less - turned)
    return found


def _runs(places: NDArray[Any]) -> Pieces:
    """Return the pieces of a list of places: neighbours with equal steps between them are one."""
    found: Pieces = []
    steps = np.diff(places)
    changes = np.flatnonzero(np.diff(steps)).tolist()
    changes.append(len(places) - 2)
    begin = 0
    for change in changes:
        if change < begin:
            continue  # the step to the next piece
        end, step = change + 2, int(steps[begin])
        first, stop = int(places[begin]), int(places[end - 1]) + step
        read = slice(first, None if stop < 0 else stop, step) if step else slice(first, first + 1)
        found.append((slice(begin, end), read))
        begin = end
    if begin < len(places):
        found.append((slice(begin, begin + 1), slice(int(places[begin]), int(places[begin]) + 1)))
    return found


# ---- triangles
TRIANGLE: Final = """\
__global__ void {name}(Tile<{element}, {rank}> out, View<const {element}, {rank}> x, long long k) {{
    for (auto i : out) {{
        if ((long long)i[{last}] - (long long)i[{row}] {sign} k)
            out[i] = x[i];
        else
            out[i] = {zero};
    }}
}}
"""


def _triangle(name: str, x: Any, k: object) -> AnyOp:
    origin = here()
    diagonal = as_whole_number(k)
    if diagonal is None:
        raise TypeError(
            f"{name} at {describe(origin)}: k is {format_value(k)}, but a whole number is wanted. Write k=0, say."
        )

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "any", origin)
        if len(layout.shape) < 2:
            raise ShapeError(
                f"{name} at {describe(origin)}: x has shape {layout.shape}, but two axes at least are wanted. Reshape "
                "it: x.reshape((rows, columns)), say."
            )
        (moved,) = move_arguments(name, arguments, origin)
        limit = max(-(2**62), min(2**62, diagonal))
        target = new_output(layout.shape, layout.dtype, tile_of(layout.shape, TILE), origin)
        return first_output(_triangle_kernel(name, layout.dtype, len(layout.shape)), (target, moved, limit), origin)

    return array_call(name, ("x",), (x,), build, origin)


@cache
def _triangle_kernel(name: str, dtype: "np.dtype[Any]", rank: int) -> KernelSpec:
    """Return the kernel of `tril` or `triu`."""
    text = TRIANGLE.format(
        name=name,
        element=memory_type(dtype),
        rank=rank,
        last=rank - 1,
        row=rank - 2,
        sign="<=" if name == "tril" else ">=",
        zero=store_text(dtype, "0"),
    )
    params = [output("out", dtype, rank), tensor_input("x", dtype, rank), number_input("k", _I64, name)]

    def body(out: Any, x: Any, k: Any) -> None:
        rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
        kept = columns - rows <= int(k) if name == "tril" else columns - rows >= int(k)
        out[...] = 0
        np.copyto(out, x, where=kept)

    return generated_kernel(name, params, text, body, (_triangle_kernel.__wrapped__.__code__, 0))
