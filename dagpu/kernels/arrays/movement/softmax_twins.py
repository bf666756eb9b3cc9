"""The order of additions of `softmax`, and the NumPy twins of its kernels, which follow it.

In a span, lane t of `width` takes elements t, t + width, t + 2 width, ... one after the other; then lane t takes that
of lane t + width / 2, and so on by halves. The numbers of the spans of a row are combined in the same way.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.arrays.movement.axis_groups import GroupPattern, grouped_array
from dagpu.kernels.arrays.reducing.reduction_order import power_of_two
from dagpu.kernels.expressions.operations.numpy_operations import numpy_function, register_dtype

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
    """Return the NumPy twin of a step: `body(out, x, *known)`."""
    number = register_dtype(dtype)
    exp = numpy_function("exp", number, number)

    def body(out: Any, x: Any, *known: Any) -> None:
        rows = grouped_array(x, source).astype(number, copy=False)
        length = rows.shape[1]
        largest = _largest_of(known[0], order) if known else _spans_of(_largest_of, rows, -np.inf, order)
        if step == "largest":
            out[...] = largest
            return
        powers = exp(rows - largest)
        total = _total_of(known[1], order) if len(known) > 1 else _spans_of(_total_of, powers, 0, order)
        np.copyto(out, total if step == "total" else powers / total, casting="unsafe")
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
    """Return the sum of all lanes: (before, any, after) becomes (before, 1, after)."""
    width = order.width
    if width == 1:
        one: NDArray[Any] = np.add.accumulate(numbers, axis=1)  # one after the other, unlike a sum
        return one[:, -1:]
    found = np.zeros((numbers.shape[0], width, numbers.shape[2]), numbers.dtype)
    for begin in range(0, numbers.shape[1], width):
        part = numbers[:, begin : begin + width]
        found[:, : part.shape[1]] += part
    while width > 1:
        width //= 2
        found = found[:, :width] + found[:, width : 2 * width]
    return found
