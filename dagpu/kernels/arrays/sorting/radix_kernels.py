"""The generated kernels of a radix sort: their declarations and their NumPy twins; `radix_texts` has the CUDA texts.

On the host the first kernel that moves elements sorts whole rows, so that later ones have nothing left to do.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import as_truth
from dagpu.kernels.arrays.sorting.radix_texts import ADD_UP, BITS, COUNT, RANKS, SCATTER, SORT, order_text
from dagpu.kernels.expressions.operations.cuda_operations import memory_type
from dagpu.kernels.generated.generated_launch import generated_kernel, number_input, output, tensor_input
from dagpu.ops.kernel_spec import KernelSpec, Param

DIGITS: Final = 256
"""The number of digits: each has 8 bits."""
THREADS: Final = 256
"""Threads of a block that adds up counts."""
_I32: Final = np.dtype(np.int32)


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
def tile_kernel(moved: Moved, threads: int, each: int) -> KernelSpec:
    """Return the kernel that sorts tiles of rows, of `threads * each` elements, and writes the first ones of each: as
    many as its own tile has."""
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
    return _kernel("sort_tile", params, text, body, threads, (tile_kernel.__wrapped__.__code__, 0))


@cache
def count_kernel(
    dtype: "np.dtype[Any]", where: "np.dtype[Any]", descending: bool, threads: int, each: int
) -> KernelSpec:
    """Return the kernel that counts the digits of tiles of `threads * each` elements: (row, digit, tile)."""
    text = order_text(dtype, threads, each, descending) + COUNT.format(where=memory_type(where))
    params = [output("out", where, 3), tensor_input("x", dtype, 2), number_input("shift", _I32, "count_digits")]
    return _kernel("count_digits", params, text, _nothing, threads, (count_kernel.__wrapped__.__code__, 0))


@cache
def sum_kernel(where: "np.dtype[Any]", lanes: int) -> KernelSpec:
    """Return the kernel that adds up what lies before each tile, and at the end of all: (row, digit, tile). Each digit
    has this many threads of a block."""
    text = ADD_UP.format(where=memory_type(where), threads=THREADS, lanes=lanes)
    params = [output("out", where, 3), tensor_input("counts", where, 3)]
    return _kernel("add_up_counts", params, text, _nothing, THREADS, (sum_kernel.__wrapped__.__code__, 0))


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
    return _kernel("scatter_by_digit", params, text, body, threads, (scatter_kernel.__wrapped__.__code__, 0))


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
    name: str, params: Sequence[Param], text: str, body: Callable[..., None], threads: int, place: Any
) -> KernelSpec:
    return generated_kernel(name, params, text, body, place, block=(threads,), early_reads=())


# ---- NumPy
FEW: Final = 16
"""Where one of this many elements or less is wanted of each row, NumPy selects those before it sorts them."""


def _sort_rows(moved: Moved, arguments: Sequence[Any]) -> None:
    """Sort whole rows, and write as many elements and places as the outputs have."""
    *outputs, rows = arguments if moved.given is None else arguments[:-1]
    length = outputs[0].shape[1]
    if moved.places is None and rows.dtype.name not in ("bfloat16", "bool") and not moved.descending:
        outputs[0][...] = _sorted_keys(rows)[:, :length]
        return
    if moved.descending and length * FEW <= rows.shape[1]:
        order = np.stack([_largest_places(row, length) for row in rows])
    else:
        order = sorted_places(rows, moved.descending)[:, :length]
    if moved.keys:
        outputs[0][...] = np.take_along_axis(rows, order, axis=1)
    if moved.places is not None:
        outputs[-1][...] = order if moved.given is None else np.take_along_axis(arguments[-1], order, axis=1)


def _ordered(x: NDArray[Any]) -> NDArray[Any]:
    """Return elements that NumPy puts into the order of these: it has none for bf16, and of bools that of their
    bytes."""
    if x.dtype.kind == "b":
        found: NDArray[Any] = as_truth(x)
        return found
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


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
    return np.sort(rows, axis=1)


def _nothing(out: Any, *_: Any) -> None:
    """The host body of a kernel whose output no host body reads."""
    out[...] = 0
