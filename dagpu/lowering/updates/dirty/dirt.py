"""`Dirt`: the part of an array that may differ after a change, and the tiles of a kernel that see such a part."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.frozen import frozen
from dagpu.common.layout import Layout
from dagpu.lowering.program import Tiles
from dagpu.ops.kernel_spec import Sight
from dagpu.ops.live.parts import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@frozen
class Everything:
    """The dirt of contents that may differ anywhere."""


EVERYTHING: Final = Everything()


@final
@frozen
class Dirt:
    """The cells of an array that may differ. Each axis is divided into cells at the positions in `edges`."""

    layout: Layout
    """The view of the buffer that the cells divide."""
    edges: tuple["NDArray[np.intp]", ...]
    """For each axis the first elements of its cells, and the extent."""
    cells: "NDArray[np.bool_]"
    """True for each cell that may differ. At least one is."""


Dirty: TypeAlias = Dirt | Everything | None
"""What may differ of some contents; None for contents that stay the same."""


def dirt_of_boxes(layout: Layout, boxes: Sequence[Box]) -> Dirty:
    """Return the dirt of an array of which these parts have changed. Its cells begin where a part begins or ends."""
    boxes = [box for box in boxes if all(begin < end for begin, end in box)]
    if not boxes or not layout.size:
        return None
    edges = tuple(
        [
            np.array(sorted({0, extent, *(place for box in boxes for place in box[axis])}), np.intp)
            for axis, extent in enumerate(layout.shape)
        ]
    )
    cells = np.zeros([len(each) - 1 for each in edges], np.bool_)
    for box in boxes:
        cells[tuple([slice(*np.searchsorted(each, part)) for each, part in zip(edges, box, strict=True)])] = True
    return Dirt(layout, edges, cells)


def dirt_of_tiles(tiles: Tiles, grid: "NDArray[np.bool_]") -> Dirty:
    """Return the dirt of an output of which these tiles may differ."""
    if not grid.any():
        return None
    layout = tiles.view.layout
    return Dirt(layout, tuple(map(_tile_edges, layout.shape, tiles.tile)), grid)


def tiles_that_see(dirt: Dirt, sight: Sight, tiles: Tiles) -> "NDArray[np.bool_]":
    """Return for each tile of an output whether it sees a dirty cell of an input.

    A tile sees a box of cells. So the cells are reduced along one axis of the input after the other: from cells to the
    tiles that see one of them along that axis.
    """
    seen: Any = dirt.cells
    for axis, part in enumerate(sight.axes):
        if part is None:
            seen = seen.any(axis, keepdims=True)
            continue
        out_axis, before, after = part
        extent, step = tiles.view.layout.shape[out_axis], tiles.tile[out_axis]
        begins, ends = _cells_seen(dirt.edges[axis], dirt.layout.shape[axis], extent, step, before, after)
        sums = np.concatenate([np.zeros_like(seen.take([0], axis), np.intp), np.cumsum(seen, axis, np.intp)], axis)
        seen = sums.take(ends, axis) > sums.take(begins, axis)
    follows = [None if part is None else part[0] for part in sight.axes]
    return _on_grid(seen, follows, tiles.grid)


def _cells_seen(
    edges: "NDArray[np.intp]", extent: int, out_extent: int, step: int, before: int, after: int
) -> "tuple[NDArray[np.intp], NDArray[np.intp]]":
    """Return for each tile along an axis of the output the first cell that it sees, and the one behind the last."""
    places = _tile_edges(out_extent, step)
    first, last = np.clip(places[:-1] - before, 0, extent), np.clip(places[1:] + after, 0, extent)
    begins = np.searchsorted(edges, first, "right") - 1
    ends = np.searchsorted(edges, last, "left")
    return np.where(last > first, begins, 0), np.where(last > first, ends, 0)


def _on_grid(seen: "NDArray[np.bool_]", follows: list[int | None], grid: Shape) -> "NDArray[np.bool_]":
    """Return an array by axes of the input as one by axes of the output. `follows` has the axis of the output for each
    axis of the input; where two follow the same one, a tile has to see along both."""
    axes = list(follows)
    for axis in range(len(axes) - 1, -1, -1):
        if axes[axis] is None:
            seen = seen[(slice(None),) * axis + (0,)]
            del axes[axis]
    for out in range(len(grid)):
        while axes.count(out) > 1:
            first = axes.index(out)
            second = axes.index(out, first + 1)
            seen = np.diagonal(seen, 0, first, second)  # its axis comes last
            del axes[second], axes[first]
            axes.append(out)
    order = [axes.index(out) for out in range(len(grid)) if out in axes]
    seen = seen.transpose(order)
    return np.broadcast_to(seen.reshape([n if out in axes else 1 for out, n in enumerate(grid)]), grid)


@lru_cache(maxsize=1024)
def _tile_edges(extent: int, step: int) -> "NDArray[np.intp]":
    """Return the first elements of the tiles along an axis, and its extent."""
    return np.minimum(np.arange(-(-extent // step) + 1, dtype=np.intp) * step, extent)


def numbers_of(grid: "NDArray[np.bool_]") -> "NDArray[np.int32]":
    """Return the numbers of the true tiles of a grid, in C order."""
    return np.flatnonzero(grid).astype(np.int32)
