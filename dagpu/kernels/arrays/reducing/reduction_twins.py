"""The NumPy twins of reductions: one pass over rows, with the bits of the CUDA text.

Sums and products of floats follow the order of the kernel. Whatever has the same bits in any order is left to NumPy,
which has a faster one: smallest and largest elements, tests, and the numbers of integers, which wrap.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import numpy as np

from dagpu.kernels.arrays.reducing.ordered_sums import Array, Combination, parts_of, reduce_in_order
from dagpu.kernels.arrays.reducing.reduction_order import ReductionOrder
from dagpu.kernels.arrays.reducing.reduction_steps import COUNTED, STEPS, identity
from dagpu.kernels.generated.cancelled_parts import until_cancelled
from dagpu.kernels.generated.element_blocks import ElementBlocks, GroupedBlocks, in_groups
from dagpu.kernels.generated.scratch_arrays import NBYTES


@cache
def _groups(reduced: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the group of each axis of an input, that of the reduced ones before that of the others."""
    return tuple([int(not kind) for kind in reduced])


def rows_of(x: Array | ElementBlocks, reduced: tuple[bool, ...]) -> Array | GroupedBlocks:
    """Return an input as an array of shape (length of a row, rows), or as what reads blocks of it."""
    return in_groups(x, _groups(reduced), 2)


def pass_twin(
    name: str, number: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> Callable[..., None]:
    """Return the NumPy twin of a pass: `body(out, x, count=None)`. `ends` says whether it is the first pass, and the
    last."""
    step = STEPS[name]
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    if step.operation in ("add", "multiply") and number.kind == "f":
        combine = np.add if step.operation == "add" else np.multiply
        does = Combination(combine, identity(step.operation, number), start == "square")
        in_spans = partial(reduce_in_order, does, order)
    else:
        in_spans = partial(_in_any_order, step.operation, start == "test", order.span)

    def body(out: Any, x: Any, count: Any = None) -> None:
        rows = rows_of(x, reduced)
        if out.dtype == number and finish == "itself":
            in_spans(rows, out)
            return
        found = np.empty(out.shape, number)
        in_spans(rows, found)
        if finish in COUNTED:
            found /= number.type(count)
        if finish in ("sqrt", "root"):
            np.sqrt(found, out=found)
        np.copyto(out, found, casting="unsafe")

    return body


# ---- in any order
LARGE: Final = 1 << 22
"""The number of elements that NumPy reduces at a time, after which a cancelled run stops. Elements that have to be
converted first are so in smaller parts."""

_WHOLE: Final[dict[str, "np.ufunc"]] = {
    "add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_or": np.logical_or, "bitwise_and": np.logical_and,
}  # fmt: skip


def _in_any_order(operation: str, test: bool, span: int, rows: Array | GroupedBlocks, found: Array) -> None:
    """Reduce rows of shape (length, rows) to the numbers of their spans, of shape (rows, spans). With `test`, or for
    bools, an element counts as true unless it is 0."""
    length, total = rows.shape
    in_memory = isinstance(rows, np.ndarray) and (test or rows.dtype == found.dtype)
    size = LARGE if in_memory else NBYTES // found.itemsize
    for elements, chosen, spans in until_cancelled(parts_of(span, length, total, 0, size)):
        target = found[chosen, spans].T
        _reduce_whole(operation, test, rows[elements, chosen].reshape(len(target), -1, target.shape[1]), target)


def _reduce_whole(operation: str, test: bool, block: Array, found: Array) -> None:
    """Reduce elements of shape (spans, elements, rows) to (spans, rows)."""
    function = _WHOLE[operation]
    if test:
        function.reduce(block, 1, None, found)
        return
    numbers = block.astype(found.dtype, copy=False)
    function.reduce(numbers, 1, found.dtype, found)
    if found.dtype.kind == "f" and np.count_nonzero(found) < found.size:
        # NumPy leaves open which of two zeros it gives. Among whole numbers with the same bits, -0 is the lowest, other
        # negative numbers follow it, and 0 is the lowest of all others.
        whole, zeros = function.reduce(numbers.view(f"i{numbers.itemsize}"), 1), found == 0
        found[zeros] = np.where(whole[zeros] < 0, found.dtype.type(-0.0), found.dtype.type(0))
