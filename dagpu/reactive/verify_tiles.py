"""Proves that an update in tiles leaves out no tile that may differ.

It takes the dirt that the analysis claims for each version of each buffer, and proves one instruction after the other
that what the instruction leaves differs nowhere else. The analysis goes from a dirty box to the tiles that see it. This
looks at the tiles just outside of a box that is claimed: what a tile sees moves with the tile, so if neither the tile
before nor the one behind sees the dirty box along an axis, no tile farther away does. Then the instructions without
dirt leave what they left before, which `UpdateVerifier` takes as given, and a launch with a list leaves what a whole
launch would, if the list has all dirty tiles and the output held all of its tiles before.
"""

from collections.abc import Mapping, Sequence
from math import inf, lcm
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.common.layout import Layout
from dagpu.ops.array_parts import Box, slices_of
from dagpu.ops.kernel_spec import Sight
from dagpu.plans.program import Cell, CopyDtoD, CopyHtoD, Instruction, Launch, Tiles, View, label
from dagpu.plans.verifier import CURE
from dagpu.reactive.claims import Change, Dirt, Dirty, LeafDirt, TileUpdate
from dagpu.reactive.verify_updates import Analysed, DataFlow, Value

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


# ---- tile shifts
#
# Finds how far the parts of a change may be shifted, so that the proof of one update in tiles serves all of them.
#
# What a tile sees moves with the tile. `verify_tiles` proves that the tiles outside of a claimed box do not see a
# dirty box by inequalities between the two: the tiles before end before it, and those behind begin behind it. Both
# sides of an inequality grow by the same number if the dirty box is shifted by whole tiles, and the claimed box by as
# many tiles. So the shifted claim is proved by the same inequalities, if none was left out because the claimed box
# begins or ends with the grid. A claimed box that has no elements cut off at the end of the output has the shifted
# elements after a shift, or fewer where it is cut off then, and what reads it is proved for all of them. Along an axis
# on which one of these does not hold nothing may move.
#
# A shift is found for programs of launches alone, in which each array that may differ moves along its axes with the
# sources, or not at all.


@final
class Shifts(NamedTuple):
    """The shifts of all dirty parts together, in units along each axis of the sources, for which a proof holds."""

    units: tuple[int, ...]
    """The elements of one unit along each axis."""
    least: tuple[float, ...]
    most: tuple[float, ...]
    strides: dict[int, tuple[int, ...]]
    """For each launch with a list, by how much the number of a dirty tile grows with one unit along each axis."""

    def allow(self, shift: Sequence[int]) -> bool:
        """Return true if the proof holds for this shift."""
        return all(low <= by <= high for low, by, high in zip(self.least, shift, self.most, strict=True))


def find_shifts(verifier: TileVerifier, change: Change, leaves: LeafDirt, update: TileUpdate) -> Shifts | None:
    """Return the shifts for which the proof of an update holds, which `verifier` has given; None for none."""
    flow, bits = verifier.flow, verifier.bits
    sources = {buffer: dirt for buffer, dirt in leaves.items() if bits.get(buffer, 0) & change.mask}
    changed = {buffer for buffer, own in bits.items() if own & change.mask}
    ranks = {len(dirt.layout.shape) if type(dirt) is Dirt else -1 for dirt in sources.values()}
    if changed != sources.keys() or len(ranks) != 1 or -1 in ranks:
        return None
    (rank,) = ranks
    finder = _Finder(flow, update, rank)
    finder.moves.update(dict.fromkeys(sources, tuple(range(rank))))
    dirt = {**leaves, **update.dirt}
    launches = []
    for index in flow.dependents(change.mask):
        dirty = [value for value in flow.reads[index] if dirt.get(value) is not None]
        if dirty:
            launch = flow.program.instructions[index]
            if type(launch) is not Launch or not finder.add(index, launch, dirty):
                return None
            launches.append((index, launch, dirty))
    finder.limit()
    for index, launch, dirty in launches:
        for value in dirty:
            where = dirt[value]
            for made in flow.makes(index):
                claimed = update.dirt.get(made)
                if type(where) is not Dirt or type(claimed) is not Dirt:
                    return None
                if not finder.hold_where_cut(index, launch, flow.buffer[value], where, claimed):
                    return None
    return finder.shifts()


@final
class _Finder:
    """Collects how what launches leave moves with the sources."""

    def __init__(self, flow: DataFlow, update: TileUpdate, rank: int) -> None:
        self._flow = flow
        self._update = update
        self.moves: dict[Value, tuple[int | None, ...]] = {}
        """For each axis of each value that may differ, the axis of the sources with which it moves; None if it does not
        move."""
        self._outputs: dict[int, Tiles] = {}
        """The output of each launch."""
        self._units = [1] * rank
        self._least = [-inf] * rank
        self._most = [inf] * rank
        self._held: set[int] = set()
        """The axes of the sources along which nothing may move."""

    def add(self, index: int, launch: Launch, dirty: Sequence[Value]) -> bool:
        """Add a launch that reads what is dirty. Return false if its tiles do not move with what it reads."""
        outputs = launch.outputs
        if not outputs or not launch.writes:
            return False
        first, shape = outputs[0], outputs[0].view.layout.shape
        if any(each.tile != first.tile or each.view.layout.shape != shape for each in outputs):
            return False
        own: list[int | None] | None = None
        for value in dirty:
            seen = seen_by(launch, self._flow.buffer[value])
            if seen is None or value not in self.moves:
                return False
            for each in seen:
                found = self._along(each, self.moves[value])
                if found is None or (own is not None and found != own):
                    return False
                own = found
        if own is None:
            return False
        for axis, with_axis in enumerate(own):
            if with_axis is not None:
                self._units[with_axis] = lcm(self._units[with_axis], first.tile[axis])
        self._outputs[index] = first
        self.moves.update(dict.fromkeys(self._flow.makes(index), tuple(own)))
        return True

    def _along(self, seen: Seen, read: Sequence[int | None]) -> list[int | None] | None:
        """Return for each axis of the tiles that see an argument the axis with which they move; None if they do not
        move as one."""
        found: dict[int, int | None] = {}
        for place, axis, *_ in seen.axes:
            if axis in found and found[axis] != read[place]:
                return None
            found[axis] = read[place]
        return [found.get(axis) for axis in range(len(seen.grid))]

    def limit(self) -> None:
        """Bound the shifts, so that all claimed tiles stay in their grids."""
        for index, output in self._outputs.items():
            for value in self._flow.makes(index):
                claimed = self._update.dirt.get(value)
                for box in claimed.tiles if type(claimed) is Dirt else ():
                    for axis, with_axis in enumerate(self.moves[value]):
                        if with_axis is not None:
                            tiles, (begin, end) = self._units[with_axis] // output.tile[axis], box[axis]
                            self._least[with_axis] = max(self._least[with_axis], -(begin // tiles))
                            self._most[with_axis] = min(self._most[with_axis], (output.grid[axis] - end) // tiles)

    def hold_where_cut(self, index: int, launch: Launch, read: int, where: Dirt, claimed: Dirt) -> bool:
        """Let no part move along an axis on which the proof needs the place of the dirty tiles in the grid: nothing but
        the grid's end keeps other tiles from seeing what is dirty, or a claimed box has elements cut off. Return false
        if there is no proof."""
        output, moves = self._outputs[index], self.moves[self._flow.first[index]]
        shape = output.view.layout.shape
        for box in claimed.tiles:
            for axis, with_axis in enumerate(moves):
                if with_axis is not None and box[axis][1] * output.tile[axis] > shape[axis]:
                    self._held.add(with_axis)
        for each in seen_by(launch, read) or ():
            for box in where.boxes:
                proof = next((other for other in claimed.tiles if only_these_see(box, each, other)), None)
                if proof is None:
                    return False
                for axis, with_axis in enumerate(moves):
                    if with_axis is not None and not _moves_along(box, each, proof, axis):
                        self._held.add(with_axis)
        return True

    def shifts(self) -> Shifts:
        """Return what was found."""
        for axis in self._held:
            self._least[axis] = self._most[axis] = 0
        strides = {}
        for index in self._update.lists:
            output, number = self._outputs[index], 1
            grows = [0] * len(self._units)
            moves = self.moves[self._flow.first[index]]
            for axis in reversed(range(len(output.grid))):
                with_axis = moves[axis]
                if with_axis is not None:
                    grows[with_axis] += number * (self._units[with_axis] // output.tile[axis])
                number *= output.grid[axis]
            strides[index] = tuple(grows)
        return Shifts(tuple(self._units), tuple(self._least), tuple(self._most), strides)


def _moves_along(box: Box, seen: Seen, claimed: Box, axis: int) -> bool:
    """Return true if no tile before and behind a box of tiles sees a dirty box, wherever the grid ends on this axis."""
    first, end = claimed[axis]
    return is_before(box, seen, axis, first - 1, cut=False) and is_behind(box, seen, axis, end)
