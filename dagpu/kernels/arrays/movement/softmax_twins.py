"""The order of additions of `softmax`, and the NumPy twins of its kernels, which follow it.

In a span, lane t of `width` takes elements t, t + width, t + 2 width, ... one after the other; then lane t takes that
of lane t + width / 2, and so on by halves. The numbers of the spans of a row are combined in the same way.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.kernels.arrays.movement.axis_groups import GroupPattern, grouped_array
from dagpu.kernels.arrays.reducing.ordered_sums import Array, Combination, parts_of, reduce_lines
from dagpu.kernels.arrays.reducing.reduction_order import power_of_two
from dagpu.kernels.expressions.numpy_twin import PART
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.cancelled_parts import until_cancelled
from dagpu.kernels.generated.scratch_arrays import SCRATCH, shaped

EACH: Final = 16
"""The elements that a thread keeps."""


@final
class SoftmaxOrder(NamedTuple):
    """How a block walks over a tensor (before, along, after): its threads, the lanes of a row, and whether neighbouring
    threads have rows side by side, or elements of one row."""

    threads: int
    width: int
    across: bool

    @property
    def span(self) -> int:
        """The number of elements of a row that a block takes."""
        return self.width * EACH

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
    side, wanted = min(32, power_of_two(neighbours)), power_of_two(-(-length // EACH))
    threads = 256 if length <= 256 // side * EACH or length > 1024 // side * EACH else 1024
    return SoftmaxOrder(threads, min(threads // side, wanted), neighbours > 1)


# ---- NumPy
def softmax_twin(step: str, dtype: "np.dtype[Any]", source: GroupPattern, order: SoftmaxOrder) -> Callable[..., None]:
    """Return the NumPy twin of a step: `body(out, x, *known)`. It works on a part of the elements at a time, so that
    their exponentials stay in the processor's cache."""
    number = register_dtype(dtype)

    def body(out: Any, x: Any, *known: Any) -> None:
        rows, of_rows = grouped_array(x, source), _numbers_of_rows(known, order)
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
                _step_of_lines(step, lines, given, order.width, target)

    return body


def _numbers_of_rows(known: Sequence[Array], order: SoftmaxOrder) -> list[Array]:
    """Return the largest element of each row and the total of each row, of shape (before, 1, after), of those of its
    spans, as far as they are `known`."""
    return [_total(each, order.width) if at else _largest(each) for at, each in enumerate(known)]


def _step_of_lines(step: str, lines: Array, given: Sequence[Array], width: int, target: Array) -> None:
    """Compute a step of lines of shape (lines, elements, after), which are rows or the spans of one row. `target` has
    as many elements as the result. `given` are the largest elements and the totals of the rows, as far as the step
    reads them."""
    largest = given[0] if given else _largest(lines)
    if step == "largest":
        target[...] = largest.reshape(target.shape)
        return
    taken = SCRATCH.take()
    powers = np.subtract(lines, largest, shaped(taken, lines.shape, lines.dtype))
    np.exp(powers, powers)
    total = given[1] if len(given) > 1 else _total(powers, width)
    if step == "total":
        target[...] = total.reshape(target.shape)
    elif target.dtype == lines.dtype:
        np.divide(powers, total, target.reshape(lines.shape))
    else:
        target[...] = np.divide(powers, total, powers).reshape(target.shape)
    SCRATCH.give_back(taken)


def _largest(numbers: Array) -> Array:
    """Return the largest number of all lanes: (lines, any, after) becomes (lines, 1, after). It has no order, and the
    exponential of a difference does not tell the two zeros apart."""
    found: Array = np.maximum.reduce(numbers, 1, keepdims=True)
    return found


def _total(numbers: Array, width: int) -> Array:
    """Return the sum of all lanes: (lines, any, after) becomes (lines, 1, after)."""
    (lines, length, after), does = numbers.shape, Combination(np.add, numbers.dtype.type(-0.0))
    each, rest = divmod(length, width)
    lanes: Array
    if not each:
        lanes, rest = np.zeros((width, lines, after), numbers.dtype), 0
        lanes[:length] = numbers.transpose(1, 0, 2)
    elif width == 1:
        lanes = _in_turn(does, numbers)[None]
    elif after == 1:
        block = numbers[:, : length - rest].reshape(lines, each, width)
        lanes = np.ascontiguousarray(reduce_lines(does, block).T)[..., None]
    else:
        block = numbers[:, : length - rest].reshape(lines, each, width * after)
        lanes = does.along(1, block).reshape(lines, width, after).transpose(1, 0, 2)
    if rest:
        lanes[:rest] += numbers[:, length - rest :].transpose(1, 0, 2)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    found: Array = lanes[0][:, None]
    return found


def _in_turn(does: Combination, numbers: Array) -> Array:
    """Add numbers one after the other: (lines, any, after) becomes (lines, after)."""
    lines, _, after = numbers.shape
    if after > 1:
        return does.along(1, numbers)
    if lines > 1:
        return does.along(0, np.ascontiguousarray(numbers[..., 0].T))[:, None]
    found: Array = np.add.accumulate(numbers[0])[-1:]
    return found
