"""The launches of a radix sort of rows (`radix_texts`).

A row of up to `TILE` elements is sorted by one block. A longer one takes three launches for each byte of an element.
Where only a few elements are wanted of a long row, one launch keeps as many of each tile, until a tile is left of them.

This is a sort of our own, and not that of CUB, which takes the bits of a float for its order. It puts NaNs with a sign
before all numbers, and NaNs of other bits into another order than that of their places. For NumPy's order it would sort
numbers that are made of the elements, with their places, and a launch would gather the elements.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.origin import Origin
from dagpu.kernels.arrays.libraries.matrix_kernels import resize_kernel
from dagpu.kernels.arrays.reducing.reduction_order import power_of_two
from dagpu.kernels.arrays.sorting.radix_kernels import (
    DIGITS,
    THREADS,
    Moved,
    count_kernel,
    scatter_kernel,
    sum_kernel,
    tile_kernel,
)
from dagpu.kernels.expressions.broadcasting import tile_of
from dagpu.kernels.expressions.expression import TILE as CUT
from dagpu.kernels.generated.generated_launch import AnyOp, first_output, new_output
from dagpu.ops.compose import Map, components_of
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import UNCUT

EACH: Final = 16
"""The most elements of a thread."""
TILE: Final = 4096
"""The most elements of a row that one block sorts."""
FEW: Final = TILE // 4
"""The most elements that are wanted of each tile of a long row."""

_I32: Final = np.dtype(np.int32)
_I64: Final = np.dtype(np.int64)


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
    spec = tile_kernel(moved, threads, min(EACH, power_of_two(-(-length // 32))))
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
