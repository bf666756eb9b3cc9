"""Proves that an update in tiles leaves out no tile that may differ.

It takes the dirt that the analysis claims for each version of each buffer, and proves one instruction after the other
that what the instruction leaves differs nowhere else. The analysis goes from a dirty box to the tiles that see it. This
looks at the tiles just outside of a box that is claimed: what a tile sees moves with the tile, so if neither the tile
before nor the one behind sees the dirty box along an axis, no tile farther away does. Then the instructions without
dirt leave what they left before, which `verify_update` takes as given, and a launch with a list leaves what a whole
launch would, if the list has all dirty tiles and the output held all of its tiles before.
"""

from typing import TYPE_CHECKING, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.lowering.program import Cell, CopyDtoD, CopyHtoD, Launch, Tiles, View, label
from dagpu.lowering.updates.dirty.dirt import Dirt, Dirty
from dagpu.lowering.updates.dirty.tile_updates import LeafDirt, TileUpdate
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.verify.step_names import CURE
from dagpu.ops.kernel_spec import Sight
from dagpu.ops.live.parts import Box, slices_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def verify_tiles(staleness: Staleness, change: Change, leaves: LeafDirt, update: TileUpdate) -> frozenset[int]:
    """Prove the tiles of an update for a change of inputs, of which these leaves have known dirt.

    Return the instructions that depend on the change and leave what they left before.

    Raises:
        PlanError: a tile that may differ is left out, or a launch of a list writes memory that does not hold the rest.
    """
    program = staleness.program
    unchanged: set[int] = set()
    claims = _Claims(staleness, change, leaves, update)
    for index in staleness.dependents(change.mask):
        instruction = program.instructions[index]
        for buffer in instruction.writes:
            claimed = update.dirt.get((buffer, index))
            if not _covers(staleness, index, buffer, claimed, claims):
                raise PlanError(
                    f"an update leaves out tiles of buffer {buffer}, which {label(instruction)} writes, and which may "
                    f"differ. {CURE}"
                )
        if all(update.dirt.get((buffer, index)) is None for buffer in instruction.writes):
            unchanged.add(index)
    for index, numbers in update.lists.items():
        launch = program.instructions[index]
        assert type(launch) is Launch
        listed = np.zeros(launch.grid, np.bool_)
        listed.ravel()[numbers] = True
        for buffer in launch.writes:
            held = buffer in staleness.targets and buffer not in change.lost
            claimed = update.dirt.get((buffer, index))
            whole = len(staleness.writers[buffer]) > 1 or (
                not held and (buffer in staleness.targets or buffer in staleness.read)
            )
            if whole or not _lists_all(claimed, listed):
                raise PlanError(
                    f"an update runs a list of tiles of {label(launch)}, which leaves buffer {buffer} stale. {CURE}"
                )
    return frozenset(unchanged)


@final
class _Claims:
    """Answers what may differ of what an instruction reads, by the claims for earlier ones."""

    def __init__(self, staleness: Staleness, change: Change, leaves: LeafDirt, update: TileUpdate) -> None:
        self._staleness = staleness
        self._mask = change.mask
        self._leaves = leaves
        self._update = update

    def dirt(self, index: int, buffer: int) -> tuple[bool, Dirt | None]:
        """Return whether what an instruction finds in a buffer may differ, and where; None for anywhere."""
        for read, writer in self._staleness.needs[index]:
            if read != buffer:
                continue
            if writer < 0:
                stale = bool(self._staleness.bits.get(buffer, 0) & self._mask)
                found: Dirty = self._leaves.get(buffer) if buffer in self._leaves else None
                known = buffer in self._leaves
                return stale and (not known or found is not None), found if type(found) is Dirt else None
            stale = bool(self._staleness.deps[writer] & self._mask)
            found = self._update.dirt.get((buffer, writer))
            return stale and found is not None, found if type(found) is Dirt else None
        return False, None


def _covers(staleness: Staleness, index: int, buffer: int, claimed: Dirty, claims: _Claims) -> bool:
    """Return true if what an instruction leaves in a buffer differs at most where this is claimed."""
    if claimed is not None and type(claimed) is not Dirt:
        return True
    instruction = staleness.program.instructions[index]
    dirty = [(read, *claims.dirt(index, read)) for read, _ in staleness.needs[index]]
    dirty = [each for each in dirty if each[1]]
    if not dirty:
        return True
    if type(instruction) is Launch:
        return all(_launch_covers(instruction, read, where, buffer, claimed) for read, _, where in dirty)
    if claimed is None or not isinstance(instruction, CopyHtoD | CopyDtoD) or len(dirty) > 1:
        return False
    where = dirty[0][2]
    out = instruction.out.layout
    return (
        where is not None
        and (type(instruction) is CopyHtoD or where.layout == instruction.source.layout)
        and out.shape == where.layout.shape
        and claimed.layout == out
        and all(any(_lies_in(box, other) for other in claimed.boxes) for box in where.boxes)
    )


def _launch_covers(launch: Launch, read: int, where: Dirt | None, buffer: int, claimed: Dirt | None) -> bool:
    """Return true if each tile of an output that sees dirt of what it reads in one buffer is claimed to be dirty."""
    kernel, outputs = launch.kernel, [each for each in launch.args if type(each) is Tiles]
    if kernel.sees is None or kernel.grid is not None or where is None:
        return False
    (own,) = [each for each in outputs if each.view.buffer == buffer]
    for position, argument in enumerate(launch.args):
        if type(argument) is Cell and argument.buffer == read:
            return False
        view = argument.view if type(argument) is Tiles else argument
        if type(view) is not View or view.buffer != read:
            continue
        sight, tiles = kernel.sees[position], outputs[0]
        if type(argument) is Tiles:
            sight, tiles = Sight(tuple([(axis, 0, 0) for axis in range(len(own.tile))]), ""), argument
        if sight is None or view.layout != where.layout:
            return False
        boxes = () if claimed is None or claimed.layout != own.view.layout else claimed.tiles
        for box in where.boxes:
            if not any(_only_these_see(box, sight, tiles, each) for each in boxes) and not _none_sees(
                box, sight, tiles
            ):
                return False
        if claimed is not None and not _are_alike(claimed, own):
            return False
    return True


def _only_these_see(box: Box, sight: Sight, tiles: Tiles, claimed: Box) -> bool:
    """Return true if no tile outside of a box of tiles sees a dirty box."""
    return all(
        (first == 0 or _is_before(box, sight, tiles, axis, first - 1))
        and (end == count or _is_behind(box, sight, tiles, axis, end))
        for axis, ((first, end), count) in enumerate(zip(claimed, tiles.grid, strict=True))
    )


def _none_sees(box: Box, sight: Sight, tiles: Tiles) -> bool:
    """Return true if no tile sees a dirty box: along some axis each tile is before or behind it."""
    return any(
        all(_is_before(box, sight, tiles, axis, n) or _is_behind(box, sight, tiles, axis, n) for n in range(count))
        for axis, count in enumerate(tiles.grid)
    )


def _is_before(box: Box, sight: Sight, tiles: Tiles, axis: int, index: int) -> bool:
    """Return true if what a tile with this index along an axis of the output sees ends before a dirty box."""
    step, extent = tiles.tile[axis], tiles.view.layout.shape[axis]
    return any(
        part is not None and part[0] == axis and min((index + 1) * step, extent) + part[2] <= begin
        for part, (begin, _) in zip(sight.axes, box, strict=True)
    )


def _is_behind(box: Box, sight: Sight, tiles: Tiles, axis: int, index: int) -> bool:
    """Return true if what a tile with this index along an axis of the output sees begins behind a dirty box."""
    return any(
        part is not None and part[0] == axis and index * tiles.tile[axis] - part[1] >= end
        for part, (_, end) in zip(sight.axes, box, strict=True)
    )


def _are_alike(claimed: Dirt, tiles: Tiles) -> bool:
    """Return true if the claimed boxes of elements are those of the claimed boxes of tiles."""
    shape = tiles.view.layout.shape
    return claimed.boxes == tuple(
        [
            tuple([(a * step, min(b * step, n)) for (a, b), step, n in zip(box, tiles.tile, shape, strict=True)])
            for box in claimed.tiles
        ]
    )


def _lists_all(claimed: Dirty, listed: "NDArray[np.bool_]") -> bool:
    """Return true if a list has all tiles that are claimed to be dirty."""
    if claimed is None:
        return True
    return type(claimed) is Dirt and all(bool(listed[slices_of(box)].all()) for box in claimed.tiles)


def _lies_in(box: Box, other: Box) -> bool:
    return all(a <= begin and end <= b for (begin, end), (a, b) in zip(box, other, strict=True))
