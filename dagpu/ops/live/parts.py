"""Parts of arrays: the regions that `Source.write` takes, and the record of which parts of a source have changed."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

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
