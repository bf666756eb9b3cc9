"""`sort`, `argsort` and `topk`: the ops, the launches of their radix sort, and its kernels.

The kernels sort rows that are contiguous. Along another axis than the last one, one launch transposes the elements
before, and one transposes each result.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.products.matrix_products import resize_kernel
from dagpu.arrays.radix_texts import ADD_UP, BITS, COUNT, RANKS, SCATTER, SORT, order_text
from dagpu.arrays.rearranging import from_rows, rows_along
from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    as_truth,
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
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import TILE as CUT
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
from dagpu.kernels.row_elements import one_axis
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Launch, Map, Zip, components_of
from dagpu.ops.creation import Alloc
from dagpu.ops.kernel_spec import KernelSpec, Param

_I64: Final = np.dtype(np.int64)
_I32: Final = np.dtype(np.int32)


# Constrained, not bounded: handles are covariant, and these types have an order.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)


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
        raise refused_call(name, origin, what, "Sort what has one: array.real(t), array.imag(t), or array.abs(t)")
    if not layout.shape and axis is not None:
        raise ShapeError(
            f"{name} at {describe(origin)}: x has no axis, so it has no rows. Reshape it: x.reshape((1,)), say."
        )
    return layout


# ---- radix kernels
#
# The generated kernels of a radix sort: their declarations and their NumPy twins; `radix_texts` has the CUDA texts.
#
# On the host the first kernel that moves elements sorts whole rows, so that later ones have nothing left to do.

DIGITS: Final = 256
"""The number of digits: each has 8 bits."""
THREADS: Final = 256
"""Threads of a block that adds up counts."""


@final
class Moved(NamedTuple):
    """What a kernel moves: elements, and their places in the rows that are sorted."""

    dtype: "np.dtype[Any]"
    """The element type of the rows."""
    descending: bool
    keys: bool
    """True if the elements are written."""
    given: "np.dtype[Any] | None"
    """The type of the places that it reads; None if those of a row are 0, 1, 2, ..."""
    places: "np.dtype[Any] | None"
    """The type of the places that it writes; None if it writes none."""

    @property
    def outputs(self) -> list[Param]:
        """The parameters of the outputs: the elements, then the places."""
        dtypes = [dtype for dtype in (self.dtype if self.keys else None, self.places) if dtype is not None]
        return [output(name, dtype, 2) for name, dtype in zip(("out", "other"), dtypes, strict=False)]

    @property
    def inputs(self) -> list[Param]:
        """The parameters of the inputs: the elements, then the places."""
        places = [] if self.given is None else [tensor_input("from", self.given, 2)]
        return [tensor_input("x", self.dtype, 2), *places]

    @property
    def pieces(self) -> dict[str, str]:
        """The text of the parameters."""
        types = [BITS[self.dtype.itemsize]] if self.keys else []
        types += [] if self.places is None else [memory_type(self.places)]
        outputs = [f"Tile<{each}, 2> {name}" for each, name in zip(types, ("out", "other"), strict=False)]
        given = "" if self.given is None else f", View<const {memory_type(self.given)}, 2> from"
        return {"outputs": ", ".join(outputs), "inputs": given}


@cache
def tile_kernel(moved: Moved, threads: int, each: int, several: bool) -> KernelSpec:
    """Return the kernel that sorts tiles of rows, of `threads * each` elements, and writes the first ones of each: as
    many as its own tile has. `several`: rows may have more than one tile."""
    place = "from(row, first + numbers[at])" if moved.given is not None else "first + numbers[at]"
    written = [text for text, wants in (("part[at]", moved.keys), (place, moved.places is not None)) if wants]
    targets = zip(("out", "other"), written, strict=False)
    numbered = {
        "shared_numbers": "\n    __shared__ unsigned short numbers[SPAN];",
        "own_numbers": "\n        int number[EACH];",
        "first_number": "\n        numbers[begin + k * 32] = begin + k * 32;",
        "take_number": "\n            number[k] = numbers[begin + k * 32];",
        "move_number": "\n            numbers[places[k]] = number[k];",
    }
    text = order_text(moved.dtype, threads, each, moved.descending) + RANKS
    text += SORT.format(
        write="".join([f"\n        {target}(row, out.origin(1) + at) = {text};" for target, text in targets]),
        **(dict.fromkeys(numbered, "") if moved.places is None else numbered),
        **moved.pieces,
    )

    def body(*arguments: Any) -> None:
        _sort_rows(moved, arguments)

    params = [*moved.outputs, *moved.inputs]
    return _kernel("sort_tile", params, text, body, threads, (tile_kernel.__wrapped__.__code__, 0), together=several)


@cache
def count_kernel(
    dtype: "np.dtype[Any]", where: "np.dtype[Any]", descending: bool, threads: int, each: int
) -> KernelSpec:
    """Return the kernel that counts the digits of tiles of `threads * each` elements: (row, digit, tile)."""
    text = order_text(dtype, threads, each, descending) + COUNT.format(where=memory_type(where))
    params = [output("out", where, 3), tensor_input("x", dtype, 2), number_input("shift", _I32, "count_digits")]
    origin = (count_kernel.__wrapped__.__code__, 0)
    return _kernel("count_digits", params, text, _nothing, threads, origin, together=True)


@cache
def sum_kernel(where: "np.dtype[Any]", lanes: int) -> KernelSpec:
    """Return the kernel that adds up what lies before each tile, and at the end of all: (row, digit, tile). Each digit
    has this many threads of a block."""
    text = ADD_UP.format(where=memory_type(where), threads=THREADS, lanes=lanes)
    params = [output("out", where, 3), tensor_input("counts", where, 3)]
    origin = (sum_kernel.__wrapped__.__code__, 0)
    return _kernel("add_up_counts", params, text, _nothing, THREADS, origin, together=True)


@cache
def scatter_kernel(moved: Moved, where: "np.dtype[Any]", threads: int, each: int) -> KernelSpec:
    """Return the kernel that moves elements, their places or both into the order of one digit of a row."""
    name = memory_type(where)
    rows = [("out", BITS[moved.dtype.itemsize])] if moved.keys else []
    if moved.places is not None:
        rows.append(("other" if moved.keys else "out", memory_type(moved.places)))
    targets = "".join([f"\n    {kind}* const {out}_row = {out}.data() + row * {out}.stride(0);" for out, kind in rows])
    kept = move = place_row = ""
    if moved.given is not None:
        place_row = f"\n    const {name}* const from_row = from.data() + row * from.stride(0) + first + begin;"
    if moved.places is not None:
        targets += f"\n    {name} moved_to[EACH];"
        kept = "\n        moved_to[k] = to;"
        place = "first + begin + k * 32" if moved.given is None else "from_row[k * 32]"
        move = _MOVE_PLACES.format(where=name, place=place, row=f"{rows[-1][0]}_row")
    text = order_text(moved.dtype, threads, each, moved.descending) + RANKS
    text += SCATTER.format(
        where=name,
        widest=max(moved.dtype.itemsize, 0 if moved.places is None else where.itemsize),
        place_row=place_row,
        own_targets=targets,
        write_element="\n        if (at < all) out_row[to] = part[at];" if moved.keys else "",
        keep_target=kept,
        move_places=move,
        **moved.pieces,
    )

    def body(*arguments: Any) -> None:
        *tensors, _, shift = arguments
        if shift == 0:
            _sort_rows(moved, tensors)
            return
        outputs = len(moved.outputs)
        for out, source in zip(tensors[:outputs], tensors[outputs:][-outputs:], strict=True):
            out[...] = source

    params = [*moved.outputs, *moved.inputs, tensor_input("offsets", where, 3)]
    params.append(number_input("shift", _I32, "scatter_by_digit"))
    origin = (scatter_kernel.__wrapped__.__code__, 0)
    return _kernel("scatter_by_digit", params, text, body, threads, origin, together=True)


_MOVE_PLACES: Final = """
    __syncthreads();
    {where}* const spots = reinterpret_cast<{where}*>(room);
#pragma unroll
    for (int k = 0; k < EACH; ++k)
        if (k * 32 < most) spots[places[k]] = {place};
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k)
        if (k * THREADS + thread < all) {row}[moved_to[k]] = spots[k * THREADS + thread];"""


def _kernel(
    name: str,
    params: Sequence[Param],
    text: str,
    body: Callable[..., None],
    threads: int,
    place: Any,
    *,
    together: bool,
) -> KernelSpec:
    return generated_kernel(name, params, text, body, place, block=(threads,), early_reads=(), together=together)


# ---- NumPy
SELECT_FROM: Final = 16
"""Where one of this many elements or less is wanted of each row, NumPy selects those before it sorts them."""


def _sort_rows(moved: Moved, arguments: Sequence[Any]) -> None:
    """Sort whole rows, and write as many elements and places as the outputs have."""
    *outputs, rows = arguments if moved.given is None else arguments[:-1]
    length = outputs[0].shape[1]
    if moved.places is None and rows.dtype.name not in ("bfloat16", "bool") and not moved.descending:
        outputs[0][...] = _sorted_keys(rows)[:, :length]
        return
    if moved.descending and length * SELECT_FROM <= rows.shape[1]:
        order = np.stack([_largest_places(row, length) for row in rows])
    else:
        order = sorted_places(rows, moved.descending)[:, :length]
    if moved.keys:
        outputs[0][...] = np.take_along_axis(rows, order, axis=1)
    if moved.places is not None:
        outputs[-1][...] = order if moved.given is None else np.take_along_axis(arguments[-1], order, axis=1)


def _ordered(x: NDArray[Any]) -> NDArray[Any]:
    """Return elements that NumPy puts into the order of these: it has none for bf16, of bools that of their bytes, and
    of halves a wrong one (`np.sort` and `np.partition` of NumPy 2.4.6 where a processor has AVX-512 for 16 bits)."""
    if x.dtype.kind == "b":
        found: NDArray[Any] = as_truth(x)
        return found
    return x.astype(np.float32) if x.dtype.name in ("bfloat16", "float16") else x


def sorted_places(rows: NDArray[Any], descending: bool) -> NDArray[np.int64]:
    """Return the places of the elements of each row in order: stable, and a NaN is larger than any number."""
    wide = _ordered(rows)
    if not descending:
        return np.asarray(np.argsort(wide, axis=1, kind="stable"), np.int64)
    backwards: NDArray[np.int64] = np.argsort(wide[:, ::-1], axis=1, kind="stable")
    return np.asarray(rows.shape[1] - 1 - backwards[:, ::-1], np.int64)


def _largest_places(row: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the places of the largest elements of a row in order, as `sorted_places` does of all."""
    wide = _ordered(row)
    least = np.partition(wide, len(wide) - count)[len(wide) - count]
    chosen = np.flatnonzero(~(wide < least))  # with those that are equal to it, and NaNs
    return chosen[sorted_places(wide[None, chosen], True)[0, :count]]


def _sorted_keys(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of each row in order. Only zeros and NaNs may be equal and have different bits: without both
    kinds of zeros, and without NaNs, no order is needed among equal ones, and NumPy's fastest sort is right."""
    if rows.dtype.kind == "f":
        zeros = rows[rows == 0]
        if np.isnan(rows).any() or (zeros.size and np.signbit(zeros).any() and not np.signbit(zeros).all()):
            return np.sort(rows, axis=1, kind="stable")
    return np.sort(_ordered(rows), axis=1).astype(rows.dtype, copy=False)


def _nothing(out: Any, *_: Any) -> None:
    """The host body of a kernel whose output no host body reads."""
    out[...] = 0


# ---- radix passes
#
# The launches of a radix sort of rows (`radix_texts`).
#
# A row of up to `TILE` elements is sorted by one block. A longer one takes three launches for each byte of an element.
# Where only a few elements are wanted of a long row, one launch keeps as many of each tile, until a tile is left of
# them.
#
# This is a sort of our own, and not that of CUB, which takes the bits of a float for its order. It puts NaNs with a
# sign before all numbers, and NaNs of other bits into another order than that of their places. For NumPy's order it
# would sort numbers that are made of the elements, with their places, and a launch would gather the elements.

EACH: Final = 16
"""The most elements of a thread."""
TILE: Final = 4096
"""The most elements of a row that one block sorts."""
FEW: Final = TILE // 4
"""The most elements that are wanted of each tile of a long row."""


def radix_sorted(
    x: Any, dtype: "np.dtype[Any]", sizes: Shape, wanted: int, chosen: tuple[bool, bool], descending: bool,
    origin: Origin,
) -> list[AnyOp]:  # fmt: skip
    """Return the ops of the first `wanted` elements of the sorted rows of a matrix of the shape `sizes`, of their
    places, or of both, as `chosen` says. `x` has moved; it is a handle or an op."""
    rows, length = sizes
    where = _I32 if length < 2**31 else _I64
    moved = Moved(dtype, descending, True, None, where if chosen[1] else None)
    now: list[Any] = [x]
    if length > TILE and wanted > FEW:
        found = _by_digits(x, sizes, moved, chosen, where, origin)
        return [_first_columns(op, dtype, (rows, length), wanted, origin) for op, dtype in found]
    while length > TILE:
        tiles = -(-length // TILE)
        made = (tiles - 1) * wanted + min(length - (tiles - 1) * TILE, wanted)
        now = _of_tiles(now, moved, length, (rows, made), wanted, origin)
        moved, length = moved._replace(given=moved.places), made
    last = moved._replace(keys=chosen[0], places=_I64 if chosen[1] else None)
    return _of_tiles(now, last, length, (rows, wanted), wanted, origin)


def _of_tiles(arrays: Sequence[Any], moved: Moved, length: int, made: Shape, kept: int, origin: Origin) -> list[AnyOp]:
    """Return the ops of the first `kept` elements of each tile of rows of this length, of the shape `made`."""
    threads = min(TILE // EACH, max(32, power_of_two(-(-length // EACH))))
    spec = tile_kernel(moved, threads, min(EACH, power_of_two(-(-length // 32))), length > TILE)
    return _launched(spec, moved, made, kept, arrays, origin)


def _by_digits(
    x: Any, sizes: Shape, moved: Moved, chosen: tuple[bool, bool], where: "np.dtype[Any]", origin: Origin
) -> "list[tuple[AnyOp, np.dtype[Any]]]":
    """Return the ops of whole sorted rows and of their places, as `chosen` says, each with its element type."""
    (rows, length), dtype = sizes, moved.dtype
    threads = 256 if 8 in (dtype.itemsize, where.itemsize) else 512  # as many elements as shared memory has room for
    span = threads * EACH
    tiles = -(-length // span)
    lanes = min(THREADS, power_of_two(-(-tiles // 4)))
    count, add_up = count_kernel(dtype, where, moved.descending, threads, EACH), sum_kernel(where, lanes)
    now: list[Any] = [x]
    for byte in range(dtype.itemsize):
        target = new_output((rows, DIGITS, tiles), where, (1, DIGITS, 1), origin)
        counts, elements, _ = components_of(Launch(count, (target, now[0], 8 * byte), origin), origin)
        target = new_output((rows, DIGITS, tiles + 1), where, (1, THREADS // lanes, tiles + 1), origin)
        offsets = first_output(add_up, (target, Map(counts, UNCUT, origin)), origin)
        if byte == dtype.itemsize - 1:
            moved = moved._replace(keys=chosen[0], places=_I64 if chosen[1] else None)
        spec = scatter_kernel(moved, where, threads, EACH)
        now = _launched(spec, moved, sizes, span, (elements, *now[1:], offsets, 8 * byte), origin)
        moved = moved._replace(given=moved.places)
    return list(zip(now, [each for param in moved.outputs if (each := param.dtype) is not None], strict=True))


def _launched(
    spec: KernelSpec, moved: Moved, made: Shape, columns: int, arguments: Sequence[Any], origin: Origin
) -> list[AnyOp]:
    """Return the ops of a launch's outputs: new matrices of the shape `made`, cut into tiles of a row."""
    targets = [
        new_output(made, param.dtype, (1, columns), origin) for param in moved.outputs if param.dtype is not None
    ]
    parts = components_of(Launch(spec, (*targets, *arguments), origin), origin)
    return [Map(part, UNCUT, origin) for part in parts[: len(targets)]]


def _first_columns(op: AnyOp, dtype: "np.dtype[Any]", sizes: Shape, columns: int, origin: Origin) -> AnyOp:
    """Return the op of the first columns of a matrix of the shape `sizes`."""
    rows, length = sizes
    if columns == length:
        return op
    target = new_output((rows, columns), dtype, tile_of((rows, columns), CUT), origin)
    return first_output(resize_kernel(dtype), (target, op), origin)
