"""The order of additions of `softmax`, and the NumPy twins of its kernels, which follow it.

Lanes of threads take the elements of a span in turn. Where elements of a row are neighbours in memory, and a row has
several lanes, a lane takes four neighbours at a time, and adds them to four numbers of its own, which it then adds up.
Otherwise it takes one, and adds it to one number. Lanes are added up by halves: each of 32 lanes t < 16 takes that of
lane t + 16, and so on, then their sums are. The numbers of the spans of a row are added up in the same way, one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.kernels.arrays.movement.axis_groups import GroupPattern
from dagpu.kernels.arrays.reducing.ordered_sums import Array, Combination, parts_of, reduce_lines
from dagpu.kernels.arrays.reducing.reduction_order import GROUP, power_of_two
from dagpu.kernels.expressions.numpy_twin import PART
from dagpu.kernels.expressions.operations.numpy_operations import NumpyFunction, numpy_function, register_dtype
from dagpu.kernels.generated.cancelled_parts import until_cancelled
from dagpu.kernels.generated.element_blocks import in_groups
from dagpu.kernels.generated.scratch_arrays import SCRATCH, shaped

EACH: Final = (16, 32)
"""The elements that a thread keeps: of short rows and of rows whose elements are no neighbours, and of longer rows."""
WARP: Final = 32


@final
class SoftmaxOrder(NamedTuple):
    """How a block walks over a tensor (before, along, after): its threads, the lanes of a row, whether neighbouring
    threads have rows side by side, or elements of one row, and the elements that a thread keeps."""

    threads: int
    width: int
    across: bool
    each: int

    @property
    def span(self) -> int:
        """The number of elements of a row that a block takes."""
        return self.width * self.each

    @property
    def beside(self) -> int:
        """The number of neighbours that a lane takes at a time."""
        return 1 if self.across else GROUP

    @property
    def partial(self) -> int:
        """The number of sums of a lane."""
        return 1 if self.width == 1 else self.beside

    @property
    def folds(self) -> tuple[int, ...]:
        """The distances of the lanes that are added up: in groups of 32, then of these."""
        steps = [1 << bit for bit in reversed(range(self.width.bit_length() - 1))]
        return (*[step for step in steps if step < WARP], *[step for step in steps if step >= WARP])

    @property
    def rows(self) -> int:
        """The number of rows of a block."""
        return self.threads // self.width

    @property
    def outer(self) -> int:
        """The number of rows of a block that lie before the axis."""
        return 1 if self.across else self.rows

    @property
    def inner(self) -> int:
        """The number of rows of a block that lie after the axis."""
        return self.rows if self.across else 1


def softmax_order(length: int, neighbours: int) -> SoftmaxOrder:
    """Return the order for rows of this length, of which this many lie side by side in memory."""
    few, many = EACH
    if neighbours == 1:
        each = few if length <= WARP * few else many
        width = power_of_two(-(-length // each))
        threads = 256 if width <= 256 or width > 512 else 512  # a longer row has several spans
        return SoftmaxOrder(threads, min(threads, width), False, each)
    side = min(32, power_of_two(neighbours))
    threads = 256 if length <= 256 // side * few or length > 1024 // side * few else 1024
    return SoftmaxOrder(threads, min(threads // side, power_of_two(-(-length // few))), True, few)


# ---- NumPy
def softmax_twin(step: str, dtype: "np.dtype[Any]", source: GroupPattern, order: SoftmaxOrder) -> Callable[..., None]:
    """Return the NumPy twin of a step: `body(out, x, *known)`. It works on a part of the elements at a time, so that
    their exponentials stay in the processor's cache."""
    number = register_dtype(dtype)
    exp = numpy_function("exp", number, number)

    def body(out: Any, x: Any, *known: Any) -> None:
        rows, of_rows = in_groups(x, source.groups, source.size), _numbers_of_rows(known, order)
        before, length, after = rows.shape
        beside = max(1, PART // min(length, order.span))
        for begin in range(0, after, beside):
            cut = slice(begin, begin + beside)
            parts = parts_of(order.span, length, before, 0, max(1, PART // after))
            for elements, chosen, spans in until_cancelled(parts):
                part = rows[chosen, elements, cut].astype(number, copy=False)
                given = [each[chosen, :, cut] for each in of_rows]
                target = out[chosen, spans if step in ("largest", "total") else elements, cut]
                lines = part.reshape(-1, min(part.shape[1], order.span), part.shape[2])
                _step_of_lines(step, exp, lines, given, order, target)

    return body


def _numbers_of_rows(known: Sequence[Array], order: SoftmaxOrder) -> list[Array]:
    """Return the largest element of each row and the total of each row, of shape (before, 1, after), of those of its
    spans, as far as they are `known`."""
    return [_sum_of_lanes(each, order, 1) if at else _largest(each) for at, each in enumerate(known)]


def _step_of_lines(
    step: str, exp: NumpyFunction, lines: Array, given: Sequence[Array], order: SoftmaxOrder, target: Array
) -> None:
    """Compute a step of lines of shape (lines, elements, after), which are rows or the spans of one row. `target` has
    as many elements as the result. `given` are the largest elements and the totals of the rows, as far as the step
    reads them."""
    largest = given[0] if given else _largest(lines)
    if step == "largest":
        target[...] = largest.reshape(target.shape)
        return
    taken = SCRATCH.take()
    powers = np.subtract(lines, largest, shaped(taken, lines.shape, lines.dtype))
    exp(powers, out=powers)
    total = given[1] if len(given) > 1 else _sum_of_lanes(powers, order, order.partial)
    if step == "total":
        target[...] = total.reshape(target.shape)
    else:
        factor = lines.dtype.type(1) / total
        if target.dtype == lines.dtype:
            np.multiply(powers, factor, target.reshape(lines.shape))
        else:
            target[...] = np.multiply(powers, factor, powers).reshape(target.shape)
    SCRATCH.give_back(taken)


def _largest(numbers: Array) -> Array:
    """Return the largest number of all lanes: (lines, any, after) becomes (lines, 1, after). It has no order, and the
    exponential of a difference does not tell the two zeros apart."""
    found: Array = np.maximum.reduce(numbers, 1, keepdims=True)
    return found


def _sum_of_lanes(numbers: Array, order: SoftmaxOrder, partial: int) -> Array:
    """Return the sum of numbers of which the lanes add each to one of `partial` sums of their own, in turn:
    (lines, any, after) becomes (lines, 1, after)."""
    sums = _in_turn(numbers, order.width * partial)
    sums = sums.reshape(order.width, partial, *sums.shape[1:])
    lanes: Array = sums[:, 0]
    for part in range(1, partial):
        lanes = lanes + sums[:, part]
    groups = lanes.reshape(-1, min(WARP, order.width), *lanes.shape[1:])
    for half in order.folds:
        if half < WARP:
            groups = groups[:, :half] + groups[:, half:]
        else:
            groups = groups[: half // WARP] + groups[half // WARP :]
    found: Array = groups[0, 0][:, None]
    return found


def _in_turn(numbers: Array, columns: int) -> Array:
    """Add numbers to columns in turn: (lines, any, after) becomes (columns, lines, after)."""
    (lines, length, after), does = numbers.shape, Combination(np.add, numbers.dtype.type(-0.0))
    each, rest = divmod(length, columns)
    found: Array
    if not each:
        found, rest = np.zeros((columns, lines, after), numbers.dtype), 0
        found[:length] = numbers.transpose(1, 0, 2)
    elif after > 1:
        block = numbers[:, : length - rest].reshape(lines, each, columns * after)
        found = does.along(1, block).reshape(lines, columns, after).transpose(1, 0, 2)
    elif columns > 1:
        block = numbers[:, : length - rest].reshape(lines, each, columns)
        found = np.ascontiguousarray(reduce_lines(does, block).T)[..., None]
    elif lines > 1:
        found = does.along(0, np.ascontiguousarray(numbers[..., 0].T))[None, :, None]
    else:
        found = np.add.accumulate(numbers, axis=1)[:, -1:]
    if rest:
        found[:rest] += numbers[:, length - rest :].transpose(1, 0, 2)
    return found
