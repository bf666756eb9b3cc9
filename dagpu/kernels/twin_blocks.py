"""What NumPy twins work with: blocks of elements, scratch arrays, and an end amid the work.

A twin sees its elements along groups of axes, such as the reduced and the kept axes of a reduction. NumPy joins the
axes of a group by a copy of the whole array where they do not lie side by side, and an expression of broadcast arrays
has more elements than all its arguments. So of many elements no array is made: a twin reads block after block.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any, Final, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.layout import Shape

Array: TypeAlias = NDArray[Any]
Box: TypeAlias = tuple[slice, ...]
"""One slice for each axis."""

WHOLE: Final = 1 << 16
"""The number of elements up to which they are in memory at once."""


@final
class ElementBlocks:
    """Elements of a shape, which `read(box)` returns for a box of them, in an array of the box's shape."""

    def __init__(self, shape: Shape, dtype: "np.dtype[Any]", read: Callable[[Box], Array]) -> None:
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.read: Final = read


@final
class GroupedBlocks:
    """Elements with one axis for each group of their axes. A tuple of slices, one for each group, reads a block."""

    def __init__(self, elements: ElementBlocks, groups: Sequence[int], count: int) -> None:
        self._elements = elements
        self._axes = [[axis for axis, own in enumerate(groups) if own == group] for group in range(count)]
        self._order = [axis for axes in self._axes for axis in axes]
        self._shapes = [tuple([elements.shape[axis] for axis in axes]) for axes in self._axes]
        self.shape: Final = tuple(map(prod, self._shapes))
        self.dtype: Final = elements.dtype
        # in memory, elements along the last axis are neighbours
        self._inward = sorted(range(count), key=lambda group: max(self._axes[group], default=-1))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, block: tuple[slice, ...]) -> Array:
        ranges = [range(*cut.indices(extent)) for cut, extent in zip(block, self.shape, strict=True)]
        pieces = [boxes_of(shape, each.start, each.stop) for shape, each in zip(self._shapes, ranges, strict=True)]
        if all(len(each) == 1 for each in pieces):
            return self._read([each[0] for each in pieces])
        extents = [len(each) for each in ranges]
        made: Array = np.empty([extents[group] for group in self._inward], self.dtype)
        found = made.transpose([self._inward.index(group) for group in range(len(extents))])
        starts = [[0] * len(each) for each in pieces]
        for group, each in enumerate(pieces):
            for n in range(1, len(each)):
                starts[group][n] = starts[group][n - 1] + _size(each[n - 1])
        for chosen in product(*[range(len(each)) for each in pieces]):
            boxes = [pieces[group][n] for group, n in enumerate(chosen)]
            place = [
                slice(starts[group][n], starts[group][n] + _size(pieces[group][n])) for group, n in enumerate(chosen)
            ]
            found[tuple(place)] = self._read(boxes)
        return found

    def _read(self, boxes: Sequence[Box]) -> Array:
        """Return the elements of a box in each group."""
        box = [slice(0)] * len(self._order)
        for axes, cuts in zip(self._axes, boxes, strict=True):
            for axis, cut in zip(axes, cuts, strict=True):
                box[axis] = cut
        read = self._elements.read(tuple(box))
        return read.transpose(self._order).reshape([_size(cuts) for cuts in boxes])


def _size(box: Box) -> int:
    return prod([cut.stop - cut.start for cut in box])


def boxes_of(shape: Shape, start: int, stop: int) -> list[Box]:
    """Return the boxes that make up elements `start` to `stop` of an array in C order, in this order. `stop` is above
    `start`."""
    if not shape:
        return [()]
    inner, rest = prod(shape[1:]), shape[1:]
    first, last = start // inner, (stop - 1) // inner
    if first == last:
        within = boxes_of(rest, start - first * inner, stop - first * inner)
        return [(slice(first, first + 1), *box) for box in within]
    found: list[Box] = []
    if start > first * inner:
        found += [(slice(first, first + 1), *box) for box in boxes_of(rest, start - first * inner, inner)]
        first += 1
    end = stop // inner
    if end > first:
        found.append((slice(first, end), *[slice(0, extent) for extent in rest]))
    if stop > end * inner:
        found += [(slice(end, end + 1), *box) for box in boxes_of(rest, 0, stop - end * inner)]
    return found


def in_groups(x: "Array | ElementBlocks", groups: Sequence[int], count: int) -> "Array | GroupedBlocks":
    """Return elements with one axis for each of `count` groups of axes: an array where that takes no copy or they are
    few."""
    if isinstance(x, ElementBlocks):
        return GroupedBlocks(x, groups, count)
    axes = [axis for group in range(count) for axis in range(x.ndim) if groups[axis] == group]
    shape = [prod([x.shape[axis] for axis in range(x.ndim) if groups[axis] == group]) for group in range(count)]
    turned = x.transpose(axes)
    if x.size <= WHOLE:
        return turned.reshape(shape)
    try:
        return turned.reshape(shape, copy=False)
    except ValueError:
        return GroupedBlocks(ElementBlocks(x.shape, x.dtype, x.__getitem__), groups, count)


# ---- cancelled parts
#
# Lets a cancelled run end amid a long host body: one that dagpu has made works in parts, and stops between two.

_T = TypeVar("_T")


def _never() -> bool:
    return False


@final
class _Run(threading.local):
    """The run whose host body this thread executes."""

    def __init__(self) -> None:
        self.is_cancelled: Callable[[], bool] = _never


_run = _Run()


@contextmanager
def cancelled_by(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Bodies that are called in the `with` block stop if this function returns True."""
    before, _run.is_cancelled = _run.is_cancelled, is_cancelled
    try:
        yield
    finally:
        _run.is_cancelled = before


def until_cancelled(parts: Iterable[_T]) -> Iterator[_T]:
    """Yield the parts of a body's work, and stop if its run is cancelled. What the body has not written then is
    discarded with the run."""
    is_cancelled = _run.is_cancelled
    for part in parts:
        if is_cancelled():
            return
        yield part


# ---- scratch arrays
#
# Arrays for what NumPy twins compute on their way, which a thread keeps for its next call.
#
# The C library gives freed memory of such sizes back to the system. An array that is new for each step would be cleared
# by the system at each first touch, which takes longer than the step.

Bytes: TypeAlias = NDArray[np.uint8]

NBYTES: Final = 1 << 19
"""The size of an array that is kept; the processor's own cache is about as large."""
KEPT: Final = 4
"""The most arrays that a thread keeps."""


@final
class ScratchArrays(threading.local):
    """The free arrays of this thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def __reduce__(self) -> str:
        """A function that is sent to another process uses the arrays there."""
        return "SCRATCH"

    def take(self) -> Bytes:
        """Return `NBYTES` bytes that nothing else uses. Without `give_back` they are freed with the last reference."""
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(NBYTES, np.uint8)

    def give_back(self, taken: Bytes) -> None:
        """Keep an array that has been taken. No view of it is used any more."""
        if len(self._free) < KEPT:
            self._free.append(taken)


SCRATCH: Final = ScratchArrays()


def shaped(taken: Bytes, shape: Shape, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return an array over bytes that have been taken; a new one if they are too few."""
    nbytes = prod(shape) * dtype.itemsize
    return taken[:nbytes].view(dtype).reshape(shape) if nbytes <= NBYTES else np.empty(shape, dtype)
