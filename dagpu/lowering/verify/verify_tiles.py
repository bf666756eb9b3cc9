"""Proves that an update in tiles leaves out no tile that may differ.

The analysis goes from each tile to what it sees. This goes the other way, from each dirty cell to the tiles that see
it, by arithmetic of its own: it takes the dirt that the analysis claims for each version of each buffer, and proves one
instruction after the other that what the instruction leaves differs nowhere else. Then the instructions without dirt
leave what they left before, which `verify_update` takes as given, and a launch with a list leaves what a whole launch
would, if the list has all dirty tiles and the output held all of its tiles before. Linear in the number of dirty cells.
"""

from itertools import product
from typing import TYPE_CHECKING, Any, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.lowering.program import Cell, CopyDtoD, CopyHtoD, Launch, Tiles, View, label
from dagpu.lowering.updates.dirty.dirt import Dirt, Dirty
from dagpu.lowering.updates.dirty.tile_updates import LeafDirt, TileUpdate
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.verify.step_names import CURE
from dagpu.ops.kernel_spec import Sight

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
    for index, instruction in enumerate(program.instructions):
        if not staleness.deps[index] & change.mask:
            continue
        for buffer in instruction.writes:
            claimed = update.dirt.get((buffer, index))
            if not _covers(staleness, index, buffer, claimed, claims):
                raise PlanError(
                    f"an update leaves out tiles of buffer {buffer}, which {label(instruction)} writes, and which may "
                    f"differ. {CURE}"
                )
        if all(update.dirt.get((buffer, index)) is None for buffer in instruction.writes):
            unchanged.add(index)
    read = {buffer for each in program.instructions for buffer in each.reads}
    for index, numbers in update.lists.items():
        launch, listed = program.instructions[index], set(numbers.tolist())
        for buffer in launch.writes:
            held = buffer in staleness.targets and buffer not in change.lost
            claimed = update.dirt.get((buffer, index))
            whole = len(staleness.writers[buffer]) > 1 or (not held and buffer in staleness.targets | read)
            if whole or (claimed is not None and not _numbers(claimed) <= listed):
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
        and all(map(np.array_equal, claimed.edges, where.edges))
        and bool((claimed.cells >= where.cells).all())
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
        seeing = _tiles_seeing(where, sight, tiles)
        if not seeing.any():
            continue
        if claimed is None or claimed.layout != own.view.layout or bool((seeing & ~claimed.cells).any()):
            return False
    return True


def _tiles_seeing(where: Dirt, sight: Sight, tiles: Tiles) -> "NDArray[np.bool_]":
    """Return for each tile whether one of the dirty cells is in its sight: each cell paints the box of these tiles."""
    cells = np.argwhere(where.cells)
    firsts: list[Any] = [np.zeros(len(cells), np.intp) for _ in tiles.grid]
    ends: list[Any] = [np.full(len(cells), extent, np.intp) for extent in tiles.grid]
    for axis, part in enumerate(sight.axes):
        if part is None:
            continue
        out, before, after = part
        step, extent = tiles.tile[out], tiles.view.layout.shape[out]
        begin, end = where.edges[axis][cells[:, axis]], where.edges[axis][cells[:, axis] + 1]
        first, last = (begin - after) // step, -(-(end + before) // step)
        last = np.where(begin - after < extent, last, 0)  # else it is behind what the last tile sees
        firsts[out] = np.maximum(firsts[out], first)
        ends[out] = np.minimum(ends[out], last)
    painted = np.zeros([extent + 1 for extent in tiles.grid], np.intp)
    some = np.ones(len(cells), np.bool_)
    for first, end in zip(firsts, ends, strict=True):
        some &= first < end
    for corner in product((False, True), repeat=len(tiles.grid)):
        places = tuple([(end if far else first)[some] for far, first, end in zip(corner, firsts, ends, strict=True)])
        np.add.at(painted, places, -1 if sum(corner) % 2 else 1)
    for axis in range(len(tiles.grid)):
        painted = painted.cumsum(axis)
    return painted[tuple([slice(extent) for extent in tiles.grid])] > 0


def _numbers(claimed: Dirty) -> set[int]:
    """Return the numbers of the tiles that are claimed to be dirty."""
    assert type(claimed) is Dirt, "a launch of everything has no list"
    return set(np.flatnonzero(claimed.cells).tolist())
