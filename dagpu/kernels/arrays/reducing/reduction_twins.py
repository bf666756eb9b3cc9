"""The NumPy twins of reductions: one pass over rows, with the bits of the CUDA text.

Sums and products of floats follow the order of the kernel. Whatever has the same bits in any order is left to NumPy,
which has a faster one: smallest and largest elements, tests, and the numbers of integers, which wrap.
"""

import operator
from collections.abc import Callable
from functools import cache, partial, reduce
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.arrays.reducing.reduction_order import QUICK, ReductionOrder
from dagpu.kernels.arrays.reducing.reduction_steps import COUNTED, STEPS, identity, start_function
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.scratch_arrays import SCRATCH, Bytes, shaped

PART: Final = 1 << 18
"""The number of elements that are reduced at a time: what lies between two additions stays in the processor's cache."""

FEWER: Final = 1 << 16
"""The same for rows of few columns, over which NumPy goes several times."""

NARROW: Final = 8
"""The columns of a row that are too few for a loop of NumPy over them."""

FEW: Final = 128
"""The numbers of a row that are reduced one by one."""

MANY: Final = 8192
"""The most rows side by side that are reduced at a time."""

Array: TypeAlias = NDArray[Any]


@cache
def _turned_axes(reduced: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the axes of an input, the reduced ones before the others."""
    return tuple(sorted(range(len(reduced)), key=lambda axis: not reduced[axis]))


def rows_of(x: Array, reduced: tuple[bool, ...]) -> Array:
    """Return an input as an array of shape (length of a row, rows)."""
    turned = x.transpose(_turned_axes(reduced))
    return turned.reshape(prod(turned.shape[: sum(reduced)]), -1)


def pass_twin(
    name: str, number: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> Callable[..., None]:
    """Return the NumPy twin of a pass: `body(out, x, count=None)`. `ends` says whether it is the first pass, and the
    last."""
    step = STEPS[name]
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    if step.operation in ("add", "multiply") and number.kind == "f":
        combine = np.add if step.operation == "add" else np.multiply
        in_spans = partial(_in_order, combine, identity(step.operation, number), start_function(start), order)
    else:
        in_spans = partial(_in_any_order, step.operation, start == "test", order.span)

    def body(out: Any, x: Any, count: Any = None) -> None:
        rows = rows_of(x, reduced)
        found = np.empty((rows.shape[1], -(-rows.shape[0] // order.span)), number)
        in_spans(rows, found)
        if finish in COUNTED:
            found /= number.type(count)
        if finish in ("sqrt", "root"):
            np.sqrt(found, out=found)
        np.copyto(out, found, casting="unsafe")

    return body


# ---- in any order
_WHOLE: Final[dict[str, "np.ufunc"]] = {
    "add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_or": np.logical_or, "bitwise_and": np.logical_and,
}  # fmt: skip


def _in_any_order(operation: str, test: bool, span: int, rows: Array, found: Array) -> None:
    """Reduce rows of shape (length, rows) to the numbers of their spans, of shape (rows, spans). With `test`, or for
    bools, an element counts as true unless it is 0."""
    length, total = rows.shape
    full = length // span
    if full:
        _reduce_whole(operation, test, rows[: full * span].reshape(full, span, total), found[:, :full].T)
    if full * span < length:
        _reduce_whole(operation, test, rows[full * span :].reshape(1, -1, total), found[:, full:].T)


def _reduce_whole(operation: str, test: bool, block: Array, found: Array) -> None:
    """Reduce elements of shape (spans, elements, rows) to (spans, rows)."""
    function = _WHOLE[operation]
    if test:
        found[...] = function.reduce(block, axis=1)
        return
    numbers = block.astype(found.dtype, copy=False)
    found[...] = function.reduce(numbers, axis=1, dtype=found.dtype)
    zeros = found == 0
    if found.dtype.kind == "f" and zeros.any():
        # NumPy leaves open which of two zeros it gives. Among whole numbers with the same bits, -0 is the lowest, other
        # negative numbers follow it, and 0 is the lowest of all others.
        whole = function.reduce(numbers.view(f"i{numbers.itemsize}"), axis=1)
        found[zeros] = np.where(whole[zeros] < 0, found.dtype.type(-0.0), found.dtype.type(0))


# ---- in the order of the kernel
def _in_order(
    combine: "np.ufunc", nothing: Any, start: Callable[[Array], Array], order: ReductionOrder, rows: Array, found: Array
) -> None:
    """Reduce rows of shape (length, rows) to the numbers of their spans, of shape (rows, spans), in parts."""
    (length, total), span = rows.shape, order.span
    if total == 1 and length <= min(FEW, span):
        found[0, 0] = _in_turn(combine, list(start(rows[:, 0].astype(register_dtype(rows.dtype), copy=False))), order)
        return
    full = length // span
    part_size = FEWER if order.width <= QUICK and not order.across else PART
    columns = MANY if order.across else max(1, part_size // min(length, span))
    parts = -(-total // columns)  # of equal size: neighbours that are reduced together are two at least
    steps = max(1, part_size // (span * min(total, columns)))
    scratch = SCRATCH.take(), SCRATCH.take()
    reduce_block = _reduce_across if order.across else _reduce_along

    def reduce_part(part: Array, target: Array) -> None:
        numbers = start(part.astype(register_dtype(part.dtype), copy=False))
        reduce_block(combine, *_cut_span(numbers, target.shape[1], nothing, order), order, scratch, target)

    for n in range(parts):
        chosen = slice(n * total // parts, (n + 1) * total // parts)
        for begin in range(0, full, steps):
            end = min(full, begin + steps)
            reduce_part(rows[begin * span : end * span, chosen], found[chosen, begin:end])
        if full * span < length:
            reduce_part(rows[full * span :, chosen], found[chosen, full:])
    for taken in scratch:
        SCRATCH.give_back(taken)


def _in_turn(combine: "np.ufunc", numbers: list[Any], order: ReductionOrder) -> Any:
    """Reduce a few numbers of one row, which takes less time than the calls of NumPy for arrays of them."""
    both = operator.add if combine is np.add else operator.mul
    columns = [reduce(both, numbers[column :: order.width]) for column in range(min(order.width, len(numbers)))]
    left = order.width
    for factor in order.folds:
        left //= factor
        columns = [reduce(both, columns[column::left]) for column in range(min(left, len(columns)))]
    return columns[0]


def _cut_span(numbers: Array, spans: int, nothing: Any, order: ReductionOrder) -> tuple[Array, Array]:
    """Return numbers of shape (length, rows) as a block of shape (spans, each, width, rows), and those that its columns
    have after it, of shape (columns, rows). The numbers are `spans` whole spans or one that is cut off."""
    length, rows = numbers.shape
    each, rest = divmod(length, spans * order.width)
    if each:
        return numbers[: length - rest].reshape(spans, each, order.width, rows), numbers[length - rest :]
    shape = (order.width, rows) if order.across else (rows, order.width)
    filled = np.full(shape, nothing, numbers.dtype)  # which changes no number
    filled = filled if order.across else filled.T
    filled[:length] = numbers
    return filled.reshape(1, 1, order.width, rows), numbers[:0]


# NumPy combines numbers one after the other along each axis but its inner loop's, along which it adds them in pairs.
# That is the axis of the nearest neighbours in memory, so it must not be the one that is reduced; columns are nearer to
# each other than the elements of one, unless there is a single column. Without `initial=None` sums would begin with +0,
# which is not neutral for -0.


def _reduce_across(
    combine: "np.ufunc",
    block: Array,
    rest: Array,
    order: ReductionOrder,
    scratch: tuple[Bytes, Bytes],
    target: Array,
) -> None:
    """Reduce numbers of shape (spans, each, width, rows), of several rows that are neighbours, to (rows, spans)."""
    if abs(block.strides[3]) > abs(block.strides[1]):
        block = np.ascontiguousarray(block)
    this, other = scratch
    spans, _, left, rows = block.shape
    found = combine.reduce(block, axis=1, initial=None, out=shaped(this, (spans, left, rows), block.dtype))
    if len(rest):
        combine(found[0, : len(rest)], rest, out=found[0, : len(rest)])
    for factor in order.folds:
        left //= factor
        this, other = other, this
        folded = shaped(this, (spans, left, rows), block.dtype)
        found = combine.reduce(found.reshape(spans, factor, left, rows), axis=1, initial=None, out=folded)
    target[...] = found[:, 0].T


def _reduce_along(
    combine: "np.ufunc",
    block: Array,
    rest: Array,
    order: ReductionOrder,
    scratch: tuple[Bytes, Bytes],
    target: Array,
) -> None:
    """Reduce numbers of shape (spans, each, width, rows), whose columns are neighbours, to (rows, spans)."""
    this, other = scratch
    spans, each, left, rows = block.shape
    turned = left <= NARROW  # then numbers of one column lie side by side
    if turned:
        whole = shaped(this, (each, left, rows, spans), block.dtype)
        np.copyto(whole, block.transpose(1, 2, 3, 0))
        found = whole[0]
        if each > 1:
            this, other = other, this
            found = combine.reduce(whole, axis=0, initial=None, out=shaped(this, found.shape, block.dtype))
        if len(rest):
            combine(found[: len(rest), :, 0], rest, out=found[: len(rest), :, 0])
    else:
        found = shaped(this, (rows, spans, left), block.dtype)
        _fold(combine, block.transpose(3, 0, 1, 2), found)
        if len(rest):
            combine(found[:, 0, : len(rest)], rest.T, out=found[:, 0, : len(rest)])
    for factor in order.folds:
        if left <= QUICK and not turned:
            turned, (this, other) = True, (other, this)
            found, before = shaped(this, (left, rows, spans), block.dtype), found
            np.copyto(found, before.transpose(2, 0, 1))
        left //= factor
        this, other = other, this
        if not turned:
            folded = shaped(this, (rows, spans, left), block.dtype)
            found = _fold(combine, found.reshape(rows, spans, factor, left), folded)
        elif left * rows * spans == 1:
            found = combine.accumulate(found.reshape(factor))[-1:].reshape(1, 1, 1)
        else:
            folded = shaped(this, (left, rows, spans), block.dtype)
            found = combine.reduce(found.reshape(factor, left, rows, spans), axis=0, initial=None, out=folded)
    target[...] = found[0]


def _fold(combine: "np.ufunc", block: Array, out: Array) -> Array:
    """Reduce numbers of shape (rows, spans, each, columns) to `out`, of shape (rows, spans, columns)."""
    _, _, each, columns = block.shape
    if each == 1:
        np.copyto(out, block[:, :, 0])
    elif columns > QUICK:
        combine.reduce(block, axis=2, initial=None, out=out)
    else:  # where `reduce` would begin a loop of its own for few columns
        combine(block[:, :, 0], block[:, :, 1], out=out)
        for k in range(2, each):
            combine(out, block[:, :, k], out=out)
    return out
