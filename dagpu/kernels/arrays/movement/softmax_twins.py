"""The order of additions of `softmax`, and the NumPy twins of its kernels, which follow it.

Lanes of threads take the elements of a span in turn. Where elements of a row are neighbours in memory, and a row has
several lanes, a lane takes four neighbours at a time, and adds them to four numbers of its own, which it then adds up.
Otherwise it takes one, and adds it to one number. Lanes are added up by halves: each of 32 lanes t < 16 takes that of
lane t + 16, and so on, then their sums are. The numbers of the spans of a row are added up in the same way, one by one.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.arrays.movement.axis_groups import GroupPattern, grouped_array
from dagpu.kernels.arrays.reducing.reduction_order import GROUP, power_of_two
from dagpu.kernels.expressions.operations.numpy_operations import numpy_function, register_dtype

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
    """Return the NumPy twin of a step: `body(out, x, *known)`."""
    number = register_dtype(dtype)
    exp = numpy_function("exp", number, number)

    def body(out: Any, x: Any, *known: Any) -> None:
        rows = grouped_array(x, source).astype(number, copy=False)
        length = rows.shape[1]
        numbers = [each.view(np.ndarray) for each in known]
        with np.errstate(all="ignore"):
            largest = _largest_of(numbers[0], order) if known else _spans_of(_largest_of, rows, -np.inf, order)
            if step == "largest":
                out.view(np.ndarray)[...] = largest
                return
            powers = exp(rows - largest)
            total = _sum_of_lanes(numbers[1], order) if len(known) > 1 else _spans_of(_total_of, powers, 0, order)
            found = total if step == "total" else powers * (number.type(1) / total)
            np.copyto(out.view(np.ndarray), found, casting="unsafe")
            assert powers.shape[1] == length

    return body


def _spans_of(
    combine: Callable[[NDArray[Any], SoftmaxOrder], NDArray[Any]],
    rows: NDArray[Any],
    nothing: float,
    order: SoftmaxOrder,
) -> NDArray[Any]:
    """Return the number of each span: (before, along, after) becomes (before, spans, after).

    Rows are filled up to a multiple of the span with `nothing`, which changes no number.
    """
    before, length, after = rows.shape
    spans = -(-length // order.span)
    if spans <= 1:
        return combine(rows, order)
    full = np.full((before, spans * order.span, after), nothing, rows.dtype)
    full[:, :length] = rows
    return combine(full.reshape(before * spans, order.span, after), order).reshape(before, spans, after)


def _largest_of(numbers: NDArray[Any], _: SoftmaxOrder) -> NDArray[Any]:
    """Return the largest number of all lanes: (before, any, after) becomes (before, 1, after). It has no order, and
    the exponential of a difference does not tell the two zeros apart."""
    found: NDArray[Any] = numbers.max(axis=1, keepdims=True)
    return found


def _total_of(numbers: NDArray[Any], order: SoftmaxOrder) -> NDArray[Any]:
    """Return the sum of all elements of a span: (before, along, after) becomes (before, 1, after)."""
    if order.partial == 1:
        return _sum_of_lanes(numbers, order)
    sums = _in_turn(numbers, order.width * order.partial)
    parts = sums.reshape(sums.shape[0], order.width, order.partial, sums.shape[2])
    found: NDArray[Any] = parts[:, :, 0]
    for part in range(1, order.partial):
        found = found + parts[:, :, part]
    return _folded(found, order)


def _sum_of_lanes(numbers: NDArray[Any], order: SoftmaxOrder) -> NDArray[Any]:
    """Return the sum of numbers that the lanes take one by one: (before, any, after) becomes (before, 1, after)."""
    if order.width == 1:
        one: NDArray[Any] = np.add.accumulate(numbers, axis=1)  # one after the other, unlike a sum
        return one[:, -1:]
    return _folded(_in_turn(numbers, order.width), order)


def _in_turn(numbers: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return the sums of every column of some: (before, any, after) becomes (before, columns, after)."""
    found = np.zeros((numbers.shape[0], columns, numbers.shape[2]), numbers.dtype)
    for begin in range(0, numbers.shape[1], columns):
        part = numbers[:, begin : begin + columns]
        found[:, : part.shape[1]] += part
    return found


def _folded(lanes: NDArray[Any], order: SoftmaxOrder) -> NDArray[Any]:
    """Return the sum of all lanes: (before, lanes, after) becomes (before, 1, after)."""
    before, width, after = lanes.shape
    found = lanes.reshape(before, -1, min(WARP, width), after)
    for half in order.folds:
        if half < WARP:
            found = found[:, :, :half] + found[:, :, half : 2 * half]
        else:
            groups = half // WARP
            found = found[:, :groups] + found[:, groups : 2 * groups]
    return found[:, :, 0]
