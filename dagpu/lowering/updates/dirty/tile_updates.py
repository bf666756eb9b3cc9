"""`TileUpdates`: which tiles of a program's launches an update runs after changes of parts of sources.

The dirt of the sources is carried forward through the stale instructions (`carried_dirt`). An instruction without dirt
does not run. A launch runs its dirty tiles alone if its outputs stay between
updates and hold what they held before, and if these tiles are less than three quarters.

A buffer that several instructions write is made again as a whole, because its earlier contents are gone. Its dirt is
known all the same, so what reads it may run in tiles.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from dagpu.lowering.updates.claims import Change, Dirt, LeafDirt, TileUpdate
from dagpu.lowering.updates.dirty.carried_dirt import CarriedDirt, numbers_of, sight_of, volume
from dagpu.lowering.updates.staleness import Staleness
from dagpu.plans.program import HOST, Cell, CopyDtoD, CopyHtoD, Launch, Value, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

WHOLE_FROM: Final = 0.75
"""A launch of this part of its tiles or more runs as a whole. On an H200 a quarter of 4,096 tiles of 64 KB took 50 us
from a list, and all of them 176 without one."""

COPIED_WHOLE_FROM: Final = 0.5
"""The same where the outputs begin as copies, since something else holds what they held."""


class TileCount(NamedTuple):
    """How many tiles of a launch an update runs."""

    instruction: int
    tiles: int
    total: int


@final
class TileUpdates:
    """The tiles that updates of one program run."""

    def __init__(self, staleness: Staleness) -> None:
        self.staleness = staleness
        program = staleness.program
        self._candidates = frozenset(
            [
                i
                for i, each in enumerate(program.instructions)
                if type(each) is Launch and self._may_run_in_tiles(i, each)
            ]
        )
        """The launches that may run in tiles, as far as the program says."""
        self.totals = {index: prod(self._launch(index).grid) for index in sorted(self._candidates)}
        """The number of tiles of each launch that may run in tiles."""
        self._every: dict[int, NDArray[np.int32]] = {}
        """The number of each tile of such a launch, in the shape of its grid."""
        self._carried = CarriedDirt(staleness)

    def _may_run_in_tiles(self, index: int, launch: Launch) -> bool:
        """Return true for a launch that declares what its tiles see, and alone writes what it leaves."""
        accesses = self.staleness.program.accesses
        return (
            launch.kernel.sees is not None
            and launch.kernel.grid is None
            and prod(launch.grid) > 1
            and all(map(accesses.is_alone, accesses.makes(index)))
        )

    def kept_for(self, leaves: Mapping[int, int], bits: int) -> frozenset[int]:
        """Return the buffers that must stay between updates, so that launches may run in tiles after a change of a part
        of one of the sources `bits`. `leaves` has the bits of the leaves of which dirt may be known."""
        staleness, accesses, partial = self.staleness, self.staleness.program.accesses, dict(leaves)
        found: set[int] = set()
        for index, instruction in enumerate(staleness.program.instructions):
            deps = staleness.deps[index]
            if not deps & bits:
                continue
            keeps = 0
            match instruction:
                case CopyHtoD() | CopyDtoD() if len(accesses.uses[index]) == 1:  # it covers what it writes
                    keeps = partial.get(accesses.uses[index][0], 0)
                case Launch() if instruction.kernel.sees is not None:
                    whole = 0
                    for value, declared in self._reads(index, instruction):
                        whole |= staleness.bits_of_value(value) & ~(partial.get(value, 0) if declared else 0)
                    keeps = deps & ~whole
                    if keeps & bits and index in self._candidates:
                        found.update(b for b in instruction.writes if staleness.program.buffers[b].device != HOST)
                case _:
                    pass
            partial.update(dict.fromkeys(accesses.makes(index), keeps))
        return frozenset(found)

    def update(self, change: Change, leaves: LeafDirt) -> TileUpdate:
        """Return what an update runs if these leaves are dirty."""
        lost = change.lost
        dirt = self._carried.of(change.mask, leaves)
        accesses = self.staleness.program.accesses
        stale = frozenset(
            [b for b in self.staleness.stale_targets(change) if dirt.get(accesses.last[b]) is not None or b in lost]
        )
        chosen = self.staleness.instructions_for(stale)
        lists = {}
        for index in chosen:
            if index not in self._candidates:
                continue
            launch = self._launch(index)
            found = dirt.get(accesses.first[index]) if launch.writes else None
            if type(found) is not Dirt or not all(self._stays(buffer, lost) for buffer in launch.writes):
                continue
            total = self.totals[index]
            if len(found.tiles) == 1 and volume(found.tiles) >= WHOLE_FROM * total:
                continue
            numbers = numbers_of(found.tiles, self._every_tile(index))
            if len(numbers) < WHOLE_FROM * total:
                lists[index] = numbers
        return TileUpdate(chosen, lists, dirt)

    def runs_less(self, change: Change, update: TileUpdate) -> bool:
        """Return true if an update runs less than it would without knowing which parts have changed."""
        if update.lists:
            return True
        return len(update.chosen) < len(self.staleness.instructions_for(self.staleness.stale_targets(change)))

    def _stays(self, buffer: int, lost: frozenset[int]) -> bool:
        """Return true if a buffer holds what it held after the last update, or nothing reads it."""
        staleness = self.staleness
        return buffer not in lost if buffer in staleness.targets else buffer not in staleness.read

    def _every_tile(self, index: int) -> "NDArray[np.int32]":
        """Return the number of each tile of a launch, in the shape of its grid."""
        found = self._every.get(index)
        if found is None:
            grid = self._launch(index).grid
            found = self._every[index] = np.arange(prod(grid), dtype=np.int32).reshape(grid)
        return found

    def _launch(self, index: int) -> Launch:
        launch = self.staleness.program.instructions[index]
        assert type(launch) is Launch
        return launch

    # ---- what stays

    def _reads(self, index: int, launch: Launch) -> list[tuple[Value, bool]]:
        """Return the values that a launch uses, each with whether a tile sees a declared part of it alone, and in the
        layout in which it was written."""
        found, accesses = [], self.staleness.program.accesses
        for value in accesses.uses[index]:
            buffer, declared = accesses.buffer[value], True
            for position, argument in enumerate(launch.args):
                if type(argument) is View and argument.buffer == buffer:
                    declared &= sight_of(launch, position) is not None
                elif type(argument) is Cell and argument.buffer == buffer:
                    declared = False
            found.append((value, declared))
        return found
