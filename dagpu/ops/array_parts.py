"""Parts of arrays: which of them have changed, and new versions of arrays with other parts."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dagpu.common.wrong_arguments import as_whole_number

Region: TypeAlias = slice | tuple[slice, ...]
"""A part of an array: a `slice` for each of the first axes, all of the others."""

Box: TypeAlias = tuple[tuple[int, int], ...]
"""A part of an array: for each axis the first element, and the one behind the last."""

MOST_PARTS: Final = 64
"""The most parts that a version of a source remembers one by one."""


def box_of(region: Any, shape: Sequence[int]) -> Box | str:
    """Return the part of an array of this shape that a region names, or what is wrong with the region."""
    slices = region if isinstance(region, tuple) else (region,)
    if len(slices) > len(shape):
        return f"{len(slices)} slices for {len(shape)} axes"
    box = []
    for axis, extent in enumerate(shape):
        part = slices[axis] if axis < len(slices) else slice(None)
        if not isinstance(part, slice):
            return f"{part!r} is no slice"
        given = ((part.start, 0), (part.stop, extent), (part.step, 1))
        found = [default if each is None else as_whole_number(each) for each, default in given]
        whole = [each for each in found if each is not None]
        if len(whole) < len(given):
            return f"{part!r} does not have whole numbers"
        begin, end, step = whole
        if step != 1:
            return f"{part!r} leaves elements out"
        begin, end = (each + extent if each < 0 else each for each in (begin, end))
        if not 0 <= begin <= end <= extent:
            return f"{part.start}:{part.stop} does not lie in the {extent} elements of axis {axis}"
        box.append((begin, end))
    return tuple(box)


def slices_of(box: Box) -> tuple[slice, ...]:
    """Return the slices that take a part out of an array."""
    return tuple([slice(begin, end) for begin, end in box])


@final
class Parts(NamedTuple):
    """Which parts of a source have changed since when."""

    whole: int
    """The revision of the last change of everything."""
    boxes: tuple[Box, ...] = ()
    """The parts that have changed since. One may be recorded larger, and later, than it was."""
    revisions: tuple[int, ...] = ()
    """The revision of each of them. They ascend."""

    def with_part(self, revision: int, box: Box) -> "Parts":
        """Return the record after one more change of a part. It has a bounded size: the oldest parts are joined."""
        whole, boxes, revisions = self
        if box in boxes:
            at = boxes.index(box)
            boxes, revisions = (*boxes[:at], *boxes[at + 1 :]), (*revisions[:at], *revisions[at + 1 :])
        if len(boxes) < MOST_PARTS:
            return Parts(whole, (*boxes, box), (*revisions, revision))
        joined = tuple([(min(a, c), max(b, d)) for (a, b), (c, d) in zip(boxes[0], boxes[1], strict=True)])
        return Parts(whole, (joined, *boxes[2:], box), (*revisions[1:], revision))

    def since(self, revision: int) -> tuple[Box, ...] | None:
        """Return the parts that have changed since a revision; None for everything."""
        return None if revision < self.whole else self.boxes[bisect_right(self.revisions, revision) :]


# ---- array parts
#
# `ArrayParts`, which writes parts of an array that others may be reading: each version is an array of its own.
#
# The memory of a version that nothing reads any more becomes that of a later one: it differs from the newest version in
# the parts that were written since, so these alone are copied. A version is a view of an array that is made of a
# buffer, and every view of it refers to that array too. So this array is dropped only after all readers of the version.

LEAST: Final = 1 << 16
"""The fewest bytes of an array whose memory is used again: a smaller one is copied as quickly."""

_MOST_SPARE: Final = 2
"""The most versions whose memory waits to be used again."""
_MOST_BOXES: Final = 16
"""The most parts in which such memory differs from the newest version."""

_Array: TypeAlias = NDArray[Any]


@final
class _Spare(NamedTuple):
    """The memory of a version that was replaced."""

    memory: _Array
    """The array that owns it."""
    read: "ref[Any]"
    """The buffer on which all arrays of the version are based, as long as something reads the version."""
    boxes: tuple[Box, ...]
    """The parts in which it differs from the newest version."""


@final
class _Made(NamedTuple):
    """The version that was made last."""

    version: "ref[_Array]"
    own: _Spare
    """Its memory."""
    spare: list[_Spare]
    """Memory of earlier versions, as it differs from this one."""


@final
class ArrayParts:
    """Makes the versions of one source that holds an array. Any thread may call it: one that comes between another
    thread's steps finds no memory to use again, and copies all."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[_Made] = []
        """What was made last, unless a thread is making a version of it. Popping is atomic."""

    def with_part(self, array: _Array, box: Box, data: _Array) -> _Array:
        """Return a read-only array that has `data` in a part, and is equal to `array` everywhere else."""
        if array.nbytes < LEAST:
            copy = np.array(array)
            copy[slices_of(box)] = data
            copy.flags.writeable = False
            return copy
        try:
            last = self._made.pop()
        except IndexError:
            last = None
        is_of_last = last is not None and last.version() is array
        spare = last.spare if last is not None and is_of_last else []
        free = next((each for each in spare if each.read() is None), None)
        if free is None:
            memory = np.empty(array.shape, array.dtype)
            memory[...] = array
        else:
            memory = free.memory
            for part in map(slices_of, free.boxes):
                memory[part] = array[part]
        memory[slices_of(box)] = data
        whole = np.frombuffer(memory.reshape(-1).view(np.uint8).data.toreadonly(), array.dtype)
        lowest: Any = whole.base
        made = whole.reshape(array.shape)
        kept = [each._replace(boxes=(*each.boxes, box)) for each in spare if each is not free]
        if last is not None and is_of_last:
            kept.append(last.own._replace(boxes=(box,)))
        kept = [each for each in kept[-_MOST_SPARE:] if len(each.boxes) <= _MOST_BOXES]
        self._made = [_Made(ref(made), _Spare(memory, ref(lowest), ()), kept)]
        return made
