"""`TileUpdates`: which tiles of a program's launches an update runs after changes of parts of sources.

The dirt of the sources is carried forward through the stale instructions: a copy carries it unchanged, a launch turns
it into the tiles that see it, by what its kernel declares (`sees`), and anything else makes its results dirty as a
whole. An instruction without dirt does not run. A launch runs its dirty tiles alone if its outputs stay between
updates and hold what they held before, and if these tiles are less than half of all.

A buffer that several instructions write is made again as a whole, because its earlier contents are gone. Its dirt is
known all the same, so what reads it may run in tiles.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from dagpu.lowering.program import HOST, Cell, CopyDtoD, CopyHtoD, Launch, Tiles, View
from dagpu.lowering.updates.dirty.dirt import EVERYTHING, Dirt, Dirty, dirt_of_tiles, numbers_of, tiles_that_see
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.ops.kernel_spec import Sight
from dagpu.ops.live.parts import Box

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LeafDirt: TypeAlias = Mapping[int, Dirty]
"""The dirt of leaves of which it is known, by buffer. Any other leaf whose bits have changed may differ anywhere."""

WHOLE_FROM: Final = 0.5
"""A launch of this part of its tiles or more runs as a whole."""

_MOST_REMEMBERED: Final = 64
"""The most changes whose stale targets are remembered, and sets of targets whose instructions are."""


class TileCount(NamedTuple):
    """How many tiles of a launch an update runs."""

    instruction: int
    tiles: int
    total: int


@final
class TileUpdate(NamedTuple):
    """What an update runs."""

    chosen: tuple[int, ...]
    """The instructions, in the order of the program."""
    lists: "dict[int, NDArray[np.int32]]"
    """The numbers of the tiles of each launch that does not run as a whole."""
    dirt: dict[tuple[int, int], Dirty]
    """What may differ, by buffer and the instruction that wrote it, -1 for a leaf."""


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
        self._stale: dict[Change, frozenset[int]] = {}
        """The stale targets after changes of everything that sources hold."""
        self._chosen: dict[frozenset[int], tuple[int, ...]] = {}
        """The instructions that make targets, by sets of these."""

    def _may_run_in_tiles(self, index: int, launch: Launch) -> bool:
        """Return true for a launch that declares what its tiles see, and alone writes what it leaves."""
        writers = self.staleness.writers
        return (
            launch.kernel.sees is not None
            and launch.kernel.grid is None
            and prod(launch.grid) > 1
            and all(len(writers[buffer]) == 1 for buffer in launch.writes)
        )

    @property
    def total(self) -> dict[int, int]:
        """The number of tiles of each launch that may run in tiles."""
        return {index: prod(self._launch(index).grid) for index in sorted(self._candidates)}

    def kept_for(self, leaves: Mapping[int, int], bits: int) -> frozenset[int]:
        """Return the buffers that must stay between updates, so that launches may run in tiles after a change of a part
        of one of the sources `bits`. `leaves` has the bits of the leaves of which dirt may be known."""
        staleness, partial = self.staleness, {(buffer, -1): own for buffer, own in leaves.items()}
        found: set[int] = set()
        for index, instruction in enumerate(staleness.program.instructions):
            deps = staleness.deps[index]
            if not deps & bits:
                continue
            keeps = 0
            match instruction:
                case CopyHtoD() | CopyDtoD():
                    keeps = partial.get(staleness.needs[index][0], 0)
                case Launch() if instruction.kernel.sees is not None:
                    whole = 0
                    for need, declared in self._reads(index, instruction):
                        of = self._deps_of(need)
                        whole |= of & ~(partial.get(need, 0) if declared else 0)
                    keeps = deps & ~whole
                    if keeps & bits and index in self._candidates:
                        found.update(b for b in instruction.writes if staleness.program.buffers[b].device != HOST)
                case _:
                    pass
            partial.update({(buffer, index): keeps for buffer in instruction.writes})
        return frozenset(found)

    def update(self, change: Change, leaves: LeafDirt) -> TileUpdate:
        """Return what an update runs if these leaves are dirty."""
        staleness, lost = self.staleness, change.lost
        dirt = self._carry(change.mask, leaves)
        stale = frozenset(
            [
                buffer
                for buffer in self._stale_targets(change)
                if buffer in lost or dirt.get((buffer, staleness.last[buffer])) is not None
            ]
        )
        chosen = self._instructions_for(stale)
        valid = staleness.targets - lost
        lists = {}
        for index in self._candidates.intersection(chosen):
            launch = self._launch(index)
            found = dirt.get((launch.writes[0], index)) if launch.writes else None
            if type(found) is not Dirt or not all(self._stays(buffer, index, valid) for buffer in launch.writes):
                continue
            numbers = numbers_of(found.tiles, launch.grid)
            if len(numbers) < WHOLE_FROM * prod(launch.grid):
                lists[index] = numbers
        return TileUpdate(chosen, lists, dirt)

    def runs_less(self, change: Change, update: TileUpdate) -> bool:
        """Return true if an update runs less than it would without knowing which parts have changed."""
        return bool(update.lists) or len(update.chosen) < len(self._instructions_for(self._stale_targets(change)))

    def _stale_targets(self, change: Change) -> frozenset[int]:
        """Return what `Staleness.stale_targets` does. The same changes often come back."""
        found = self._stale.get(change)
        if found is None:
            if len(self._stale) >= _MOST_REMEMBERED:
                self._stale.clear()
            found = self._stale[change] = frozenset(self.staleness.stale_targets(change))
        return found

    def _instructions_for(self, targets: frozenset[int]) -> tuple[int, ...]:
        """Return what `Staleness.instructions_for` does. The same targets are often made again."""
        found = self._chosen.get(targets)
        if found is None:
            if len(self._chosen) >= _MOST_REMEMBERED:
                self._chosen.clear()
            found = self._chosen[targets] = self.staleness.instructions_for(set(targets))
        return found

    def _stays(self, buffer: int, writer: int, valid: set[int]) -> bool:
        """Return true if a buffer holds what it held after the last update, or nothing reads it."""
        return buffer in valid or (buffer not in self.staleness.targets and buffer not in self.staleness.read)

    def _launch(self, index: int) -> Launch:
        launch = self.staleness.program.instructions[index]
        assert type(launch) is Launch
        return launch

    # ---- dirt

    def _carry(self, mask: int, leaves: LeafDirt) -> dict[tuple[int, int], Dirty]:
        """Return the dirt of everything that depends on the bits `mask`."""
        staleness = self.staleness
        dirt: dict[tuple[int, int], Dirty] = {
            (buffer, -1): leaves.get(buffer, EVERYTHING) for buffer, bits in staleness.bits.items() if bits & mask
        }
        for index in staleness.dependents(mask):
            instruction = staleness.program.instructions[index]
            match instruction:
                case CopyHtoD(out=out) | CopyDtoD(out=out):
                    source = instruction.source.layout if type(instruction) is CopyDtoD else None
                    dirt[out.buffer, index] = _copied(dirt.get(staleness.needs[index][0]), source, out)
                case Launch():
                    dirt.update(self._launched(index, instruction, dirt))
                case _:
                    clean = all(dirt.get(need) is None for need in staleness.needs[index])
                    dirt.update({(buffer, index): None if clean else EVERYTHING for buffer in instruction.writes})
        return dirt

    def _launched(
        self, index: int, launch: Launch, dirt: Mapping[tuple[int, int], Dirty]
    ) -> dict[tuple[int, int], Dirty]:
        """Return the dirt of a launch's outputs: all of them have the tiles of one grid."""
        outputs = [argument for argument in launch.args if type(argument) is Tiles]
        boxes: list[Box] = []
        for position, argument in enumerate(launch.args):
            found, layout = self._dirt_read(index, argument, dirt)
            if found is None:
                continue
            sight, tiles = sight_of(launch, position), argument if type(argument) is Tiles else outputs[0]
            if sight is None or type(found) is not Dirt or found.layout != layout:
                return {(buffer, index): EVERYTHING for buffer in launch.writes}
            boxes += [seen for box in found.boxes if (seen := tiles_that_see(box, sight, tiles)) is not None]
        return {(each.view.buffer, index): dirt_of_tiles(each, boxes) for each in outputs}

    def _dirt_read(self, index: int, argument: Any, dirt: Mapping[tuple[int, int], Dirty]) -> tuple[Dirty, object]:
        """Return the dirt of what a launch finds in one argument, and the layout by which it reads it."""
        view = argument.view if type(argument) is Tiles else argument
        if type(view) is not View and type(view) is not Cell:
            return None, None
        layout = view.layout if type(view) is View else None
        for buffer, writer in self.staleness.needs[index]:
            if buffer == view.buffer:
                return dirt.get((buffer, writer)), layout
        return None, layout

    # ---- what stays

    def _reads(self, index: int, launch: Launch) -> list[tuple[tuple[int, int], bool]]:
        """Return what a launch reads, each with whether a tile sees a declared part of it alone, and in the layout in
        which it was written."""
        found = []
        for need in self.staleness.needs[index]:
            declared = True
            for position, argument in enumerate(launch.args):
                if type(argument) is View and argument.buffer == need[0]:
                    declared &= sight_of(launch, position) is not None
                elif type(argument) is Cell and argument.buffer == need[0]:
                    declared = False
            found.append((need, declared))
        return found

    def _deps_of(self, need: tuple[int, int]) -> int:
        buffer, writer = need
        return self.staleness.bits.get(buffer, 0) if writer < 0 else self.staleness.deps[writer]


def sight_of(launch: Launch, position: int) -> Sight | None:
    """Return what a tile sees of an argument; None for everything, or if the launch has a grid of its own. A tile of an
    output sees itself."""
    kernel, argument = launch.kernel, launch.args[position]
    if kernel.sees is None or kernel.grid is not None:
        return None
    if type(argument) is Tiles:
        return Sight(tuple([(axis, 0, 0) for axis in range(len(argument.tile))]), "")
    return kernel.sees[position]


def _copied(dirt: Dirty, source: object, out: View) -> Dirty:
    """Return the dirt of a copy. `source` is the layout that is read of a buffer; None for an array of the host."""
    if type(dirt) is not Dirt:
        return dirt
    if (source is not None and dirt.layout != source) or dirt.layout.shape != out.layout.shape:
        return EVERYTHING
    return Dirt(out.layout, dirt.boxes)
