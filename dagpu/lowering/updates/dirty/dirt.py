"""`Dirt`: the parts of an array that may differ after a change, and the tiles of a kernel that see such a part.

Parts are boxes. A tile sees along each axis an interval, which moves with the tile; so the tiles that see a box are a
box of tiles, exactly. All of this is arithmetic of a few whole numbers, because it is done anew for each update.
"""

from collections.abc import Sequence
from itertools import starmap
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.frozen import frozen
from dagpu.common.layout import Layout
from dagpu.lowering.program import Tiles
from dagpu.ops.kernel_spec import Sight
from dagpu.ops.live.parts import Box, slices_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BOXES: Final = 256
"""The most boxes of one array. A change in more places counts as one of everything."""

_FEW_TILES: Final = 128
"""The most tiles that are numbered one by one: NumPy's calls take as long as about this many numbers."""


@final
@frozen
class Everything:
    """The dirt of contents that may differ anywhere."""


EVERYTHING: Final = Everything()


@final
@frozen
class Dirt:
    """The parts of an array that may differ: at least one, none of them empty."""

    layout: Layout
    """The view of the buffer that the boxes are parts of."""
    boxes: tuple[Box, ...]
    """Parts, in elements."""
    tiles: tuple[Box, ...] = ()
    """For an output of a launch the same parts as boxes of its tiles, by their indices."""


Dirty: TypeAlias = Dirt | Everything | None
"""What may differ of some contents; None for contents that stay the same."""


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
    steps = list(zip(tiles.tile, tiles.view.layout.shape, strict=True))
    elements = [
        tuple(
            [(first * step, min(end * step, extent)) for (first, end), (step, extent) in zip(box, steps, strict=True)]
        )
        for box in found
    ]
    return Dirt(tiles.view.layout, tuple(elements), found)


def tiles_that_see(box: Box, sight: Sight, tiles: Tiles) -> Box | None:
    """Return the box of an output's tiles that see a box of an input; None if there are none."""
    found = [(0, count) for count in tiles.grid]
    for (begin, end), part in zip(box, sight.axes, strict=True):
        if part is None:
            continue
        axis, before, after = part
        step, extent = tiles.tile[axis], tiles.view.layout.shape[axis]
        if begin - after >= extent:  # behind all that the last tile sees
            return None
        first, last = found[axis]
        found[axis] = max(first, (begin - after) // step), min(last, -(-(end + before) // step))
        if found[axis][0] >= found[axis][1]:
            return None
    return tuple(found)


def numbers_of(boxes: Sequence[Box], grid: Shape) -> "NDArray[np.int32]":
    """Return the numbers of the tiles in these boxes, in C order over the grid, each once."""
    if sum([_volume(box) for box in boxes]) <= _FEW_TILES:
        found: set[int] = set()
        for box in boxes:
            row = [0]
            for (first, end), count in zip(box, grid, strict=True):
                row = [number * count + place for number in row for place in range(first, end)]
            found.update(row)
        return np.array(sorted(found), np.int32)
    if len(boxes) > 1:
        inside = np.zeros(grid, np.bool_)
        for box in boxes:
            inside[slices_of(box)] = True
        return np.flatnonzero(inside).astype(np.int32)
    numbers = np.zeros((), np.int32)
    for (first, end), count in zip(boxes[0], grid, strict=True):
        numbers = np.add.outer(numbers * np.int32(count), np.arange(first, end, dtype=np.int32))
    return numbers.ravel()


def _volume(box: Box) -> int:
    return prod([end - first for first, end in box])


def _outermost(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Return the boxes that do not lie in others."""
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
