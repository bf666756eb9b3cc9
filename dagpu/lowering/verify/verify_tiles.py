"""Proves that an update in tiles leaves out no tile that may differ.

It takes the dirt that the analysis claims for each version of each buffer, and proves one instruction after the other
that what the instruction leaves differs nowhere else. The analysis goes from a dirty box to the tiles that see it. This
looks at the tiles just outside of a box that is claimed: what a tile sees moves with the tile, so if neither the tile
before nor the one behind sees the dirty box along an axis, no tile farther away does. Then the instructions without
dirt leave what they left before, which `UpdateVerifier` takes as given, and a launch with a list leaves what a whole
launch would, if the list has all dirty tiles and the output held all of its tiles before.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.common.layout import Layout
from dagpu.lowering.updates.claims import Change, Dirt, Dirty, LeafDirt, TileUpdate
from dagpu.lowering.verify.data_flow import Analysed, DataFlow, Value
from dagpu.ops.array_parts import Box, slices_of
from dagpu.ops.kernel_spec import Sight
from dagpu.plans.program import Cell, CopyDtoD, CopyHtoD, Instruction, Launch, Tiles, View, label
from dagpu.plans.verifier import CURE

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
class TileVerifier:
    """Proves updates in tiles of one program. What it reads off the program serves all of them."""

    def __init__(self, analysed: Analysed) -> None:
        self._targets = analysed.targets
        self.bits: Final = analysed.bits
        self.flow: Final = DataFlow(analysed.program, analysed.bits)
        """What the instructions read, for the proofs of shifts too."""
        self._read = frozenset([buffer for each in analysed.program.instructions for buffer in each.reads])
        """The buffers that an instruction reads."""
        self._reads: dict[tuple[int, int], tuple[Seen, ...] | None] = {}
        """For each launch and each buffer that it reads, how its tiles see that; None if each may see all of it."""
        self._outputs: dict[tuple[int, int], Tiles] = {}

    def verify(self, change: Change, leaves: LeafDirt, update: TileUpdate) -> frozenset[int]:
        """Prove the tiles of an update for a change of inputs, of which these leaves have known dirt.

        Return the instructions that depend on the change and leave what they left before.

        Raises:
            PlanError: a tile that may differ is left out, or a launch of a list writes memory that does not hold the
                rest.
        """
        flow, dirt, mask = self.flow, update.dirt, change.mask
        instructions, unchanged = flow.program.instructions, []
        for index in flow.dependents(mask):
            instruction, clean, found = instructions[index], True, list[_Found]()
            for value in flow.reads[index]:
                stale, where = self._dirt(value, mask, leaves, dirt)
                if stale:
                    found.append((flow.buffer[value], where))
            for buffer, made in zip(instruction.writes, flow.makes(index), strict=True):
                claimed = dirt.get(made)
                if claimed is not None:
                    clean = False
                if found and not self._covers(index, instruction, buffer, claimed, found):
                    raise PlanError(
                        f"an update leaves out tiles of buffer {buffer}, which {label(instruction)} writes, and which "
                        f"may differ. {CURE}"
                    )
            if clean:
                unchanged.append(index)
        for index, numbers in update.lists.items():
            launch = instructions[index]
            assert type(launch) is Launch
            listed = np.zeros(launch.grid, np.bool_)
            listed.ravel()[numbers] = True
            for buffer, made in zip(launch.writes, flow.makes(index), strict=True):
                held = buffer in self._targets and buffer not in change.lost
                whole = flow.writers[buffer] > 1 or (not held and (buffer in self._targets or buffer in self._read))
                if whole or not _lists_all(dirt.get(made), listed):
                    raise PlanError(
                        f"an update runs a list of tiles of {label(launch)}, which leaves buffer {buffer} stale. {CURE}"
                    )
        return frozenset(unchanged)

    def _dirt(self, value: Value, mask: int, leaves: LeafDirt, dirt: Mapping[Value, Dirty]) -> tuple[bool, Dirt | None]:
        """Return whether what an instruction reads may differ, and where; None for anywhere. Of what an earlier
        instruction leaves, the claim counts, which is proved."""
        made = self.flow.maker[value] >= 0  # else the value has the number of its buffer
        found = dirt.get(value) if made else leaves.get(value)
        known = made or value in leaves
        stale = (found is not None or not known) and bool(self.flow.bits_of(value) & mask)
        return stale, found if type(found) is Dirt else None

    def _covers(
        self, index: int, instruction: Instruction, buffer: int, claimed: Dirty, dirty: "Sequence[_Found]"
    ) -> bool:
        """Return true if what an instruction leaves in a buffer differs at most where this is claimed."""
        if claimed is not None and type(claimed) is not Dirt:
            return True
        if type(instruction) is Launch:
            return all(self._launch_covers(index, instruction, read, where, buffer, claimed) for read, where in dirty)
        if claimed is None or not isinstance(instruction, CopyHtoD | CopyDtoD) or len(dirty) > 1:
            return False
        (read, where), out = dirty[0], instruction.out.layout
        source = instruction.source.buffer
        return (
            where is not None
            and read == source
            and (type(instruction) is CopyHtoD or where.layout == instruction.source.layout)
            and out.shape == where.layout.shape
            and claimed.layout == out
            and all(any(_lies_in(box, other) for other in claimed.boxes) for box in where.boxes)
        )

    def _launch_covers(
        self, index: int, launch: Launch, read: int, where: Dirt | None, buffer: int, claimed: Dirt | None
    ) -> bool:
        """Return true if each tile of an output that sees dirt of what it reads in one buffer is claimed to be
        dirty."""
        key = index, read
        if key not in self._reads:
            self._reads[key] = seen_by(launch, read)
        seen, own = self._reads[key], self._output(index, launch, buffer)
        if seen is None or where is None:
            return False
        boxes = () if claimed is None or claimed.layout != own.view.layout else claimed.tiles
        for each in seen:
            if each.layout != where.layout:
                return False
            for box in where.boxes:
                for other in boxes:
                    if only_these_see(box, each, other):
                        break
                else:
                    if not _none_sees(box, each):
                        return False
        return claimed is None or _are_alike(claimed, own)

    def _output(self, index: int, launch: Launch, buffer: int) -> Tiles:
        found = self._outputs.get((index, buffer))
        if found is None:
            (found,) = [each for each in launch.outputs if each.view.buffer == buffer]
            self._outputs[index, buffer] = found
        return found


_Found: TypeAlias = "tuple[int, Dirt | None]"
"""A buffer that may differ, and where; None for anywhere."""


@final
class Seen(NamedTuple):
    """How the tiles of a launch see one argument."""

    layout: Layout
    grid: tuple[int, ...]
    axes: tuple[tuple[int, int, int, int, int, int], ...]
    """For each axis of the argument along which tiles differ: its number, the output's axis, the elements seen before
    and behind a tile's own place, the tile's extent, and the output's."""


def seen_by(launch: Launch, read: int) -> "tuple[Seen, ...] | None":
    """Return how the tiles of a launch see what it reads in a buffer, by argument; None if each may see all of it."""
    kernel, outputs = launch.kernel, launch.outputs
    if kernel.sees is None or kernel.grid is not None:
        return None
    found = []
    for position, argument in enumerate(launch.args):
        if type(argument) is Cell and argument.buffer == read:
            return None
        view = argument.view if type(argument) is Tiles else argument
        if type(view) is not View or view.buffer != read:
            continue
        sight, tiles = kernel.sees[position], outputs[0]
        if type(argument) is Tiles:
            sight, tiles = Sight(tuple([(axis, 0, 0) for axis in range(len(argument.tile))]), ""), argument
        if sight is None:
            return None
        axes = [
            (place, part[0], part[1], part[2], tiles.tile[part[0]], tiles.view.layout.shape[part[0]])
            for place, part in enumerate(sight.axes)
            if part is not None
        ]
        found.append(Seen(view.layout, tiles.grid, tuple(axes)))
    return tuple(found)


def only_these_see(box: Box, seen: Seen, claimed: Box) -> bool:
    """Return true if no tile outside of a box of tiles sees a dirty box."""
    for axis, ((first, end), count) in enumerate(zip(claimed, seen.grid, strict=True)):
        if first and not is_before(box, seen, axis, first - 1):
            return False
        if end != count and not is_behind(box, seen, axis, end):
            return False
    return True


def _none_sees(box: Box, seen: Seen) -> bool:
    """Return true if no tile sees a dirty box: along some axis each tile is before or behind it."""
    return any(
        all(is_before(box, seen, axis, n) or is_behind(box, seen, axis, n) for n in range(count))
        for axis, count in enumerate(seen.grid)
    )


def is_before(box: Box, seen: Seen, axis: int, index: int, *, cut: bool = True) -> bool:
    """Return true if what a tile with this index along an axis of the output sees ends before a dirty box. Without
    `cut` as if the output did not end."""
    for place, along, _, after, step, extent in seen.axes:
        end = (index + 1) * step
        if along == axis and (min(end, extent) if cut else end) + after <= box[place][0]:
            return True
    return False


def is_behind(box: Box, seen: Seen, axis: int, index: int) -> bool:
    """Return true if what a tile with this index along an axis of the output sees begins behind a dirty box."""
    for place, along, before, _, step, _ in seen.axes:
        if along == axis and index * step - before >= box[place][1]:
            return True
    return False


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
