"""Finds how far the parts of a change may be shifted, so that the proof of one update in tiles serves all of them.

What a tile sees moves with the tile. `verify_tiles` proves that the tiles outside of a claimed box do not see a dirty
box by inequalities between the two: the tiles before end before it, and those behind begin behind it. Both sides of an
inequality grow by the same number if the dirty box is shifted by whole tiles, and the claimed box by as many tiles. So
the shifted claim is proved by the same inequalities, if none was left out because the claimed box begins or ends with
the grid. A claimed box that has no elements cut off at the end of the output has the shifted elements after a shift,
or fewer where it is cut off then, and what reads it is proved for all of them. Along an axis on which one of these does
not hold nothing may move.

A shift is found for programs of launches alone, in which each array that may differ moves along its axes with the
sources, or not at all.
"""

from collections.abc import Sequence
from math import inf, lcm
from typing import NamedTuple, final

from dagpu.lowering.updates.claims import Change, Dirt, LeafDirt, TileUpdate
from dagpu.lowering.verify.data_flow import DataFlow, Value
from dagpu.lowering.verify.verify_tiles import Seen, TileVerifier, is_before, is_behind, only_these_see, seen_by
from dagpu.ops.array_parts import Box
from dagpu.plans.program import Launch, Tiles


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
