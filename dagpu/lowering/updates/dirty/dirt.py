"""`Dirt`: the parts of an array that may differ after a change, and the tiles of a kernel that see such a part.

Parts are boxes. A tile sees along each axis an interval, which moves with the tile; so the tiles that see a box are a
box of tiles, exactly. All of this is arithmetic of a few whole numbers, because it is done anew for each update.
"""

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final, final

import numpy as np

from dagpu.common.layout import Layout
from dagpu.lowering.updates.claims import EVERYTHING, Dirt, Dirty
from dagpu.ops.array_parts import Box, slices_of
from dagpu.ops.kernel_spec import Sight
from dagpu.plans.program import Tiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BOXES: Final = 256
"""The most boxes of one array. A change in more places counts as one of everything."""


def dirt_of_boxes(layout: Layout, boxes: Sequence[Box]) -> Dirty:
    """Return the dirt of an array of which these parts have changed."""
    found = _outermost([box for box in boxes if all(begin < end for begin, end in box)])
    if not found:
        return None
    return Dirt(layout, found) if len(found) <= MOST_BOXES else EVERYTHING


def dirt_of_tiles(tiles: Tiles, boxes: Sequence[Box]) -> Dirty:
    """Return the dirt of an output of which these boxes of tiles may differ."""
    found = _outermost(boxes)
    if not found:
        return None
    if len(found) > MOST_BOXES:
        return EVERYTHING
    return Dirt(tiles.view.layout, (), found, tiles)


@final
class Window:
    """What one tile of an output sees of an input, in the numbers by which boxes become boxes of tiles."""

    __slots__ = ("axes", "grid")

    def __init__(self, sight: Sight, tiles: Tiles) -> None:
        self.grid: Final = tuple([(0, count) for count in tiles.grid])
        """All tiles of the output."""
        self.axes: Final = tuple(
            [
                (axis, part[0], part[1], part[2], tiles.tile[part[0]], tiles.view.layout.shape[part[0]])
                for axis, part in enumerate(sight.axes)
                if part is not None
            ]
        )
        """For each axis of the input along which tiles differ: its number, that of the output's axis, the elements seen
        before and behind the tile's own place, the tile's extent, and the output's."""


def tiles_that_see(box: Box, window: Window) -> Box | None:
    """Return the box of an output's tiles that see a box of an input; None if there are none."""
    found = list(window.grid)
    for place, axis, before, after, step, extent in window.axes:
        begin, end = box[place]
        if begin - after >= extent:  # behind all that the last tile sees
            return None
        first, last = found[axis]
        lowest, highest = (begin - after) // step, -(-(end + before) // step)
        first, last = max(first, lowest), min(last, highest)
        if first >= last:
            return None
        found[axis] = first, last
    return tuple(found)


def numbers_of(boxes: Sequence[Box], every: "NDArray[np.int32]") -> "NDArray[np.int32]":
    """Return the numbers of the tiles in these boxes, in C order, each once. `every` has the number of each tile."""
    if len(boxes) == 1:
        return every[slices_of(boxes[0])].ravel()
    inside = np.zeros(every.shape, np.bool_)
    for box in boxes:
        inside[slices_of(box)] = True
    return every[inside]


def volume(boxes: Sequence[Box]) -> int:
    """Return the number of elements, or tiles, of some boxes together, which counts what lies in two of them twice."""
    found = 0
    for box in boxes:
        size = 1
        for first, end in box:
            size *= end - first
        found += size
    return found


def _outermost(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Return the boxes that do not lie in others."""
    if len(boxes) < 2:
        return tuple(boxes)
    different = list(dict.fromkeys(boxes))
    if len(different) < 2:
        return tuple(different)
    return tuple(
        [box for box in different if not any(other is not box and _lies_in(box, other) for other in different)]
    )


def _lies_in(box: Box, other: Box) -> bool:
    return all(starmap(_is_within, zip(box, other, strict=True)))


def _is_within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
