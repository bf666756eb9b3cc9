"""`TileUpdates`: which tiles of a program's launches an update runs after changes of parts of sources; and
`StageTiles`, those of one stage, analysed and proved.

The dirt of the sources is carried forward through the stale instructions (`carried_dirt`). An instruction without dirt
does not run. A launch runs its dirty tiles alone if its outputs stay between updates and hold what they held before,
and if these tiles are less than three quarters.

A buffer that several instructions write is made again as a whole, because its earlier contents are gone. Its dirt is
known all the same, so what reads it may run in tiles.
"""

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from dagpu.ops.array_parts import Box
from dagpu.reactive.claims import Change, LeafDirt, TileUpdate
from dagpu.reactive.leaf_values import LeafValues
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.staleness import Recent, Staleness
from dagpu.reactive.verify_tiles import Shifts, TileVerifier, find_shifts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.plans.program import HOST, Buffer, Cell, CopyDtoD, CopyHtoD, Instruction, Launch, Program, Role, Value, View
from dagpu.reactive.carried_dirt import CarriedDirt, numbers_of, sight_of, volume
from dagpu.reactive.claims import Dirt, Subprogram

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


# ---- tile lists
#
# The program of an update in which some launches run a list of their tiles.
#
# All lists of an update are one array, an input of the plan in memory that the host writes and kernels read where it
# is. So no copy goes before the kernels, and one plan serves all lists of the same lengths. A list is as long as the
# next power of two, but no longer than a launch with a list may be, and ends with numbers that are no tiles. So a few
# plans serve updates of any number of tiles.

_NUMBER: Final = np.dtype(np.int32)
_ALIGNMENT: Final = 16
"""The number of tiles at multiples of which lists begin."""


@final
@plain
class TiledProgram:
    """A subprogram with lists of tiles."""

    subprogram: Subprogram
    lists: tuple[tuple[int, int], ...]
    """The buffers of the array with all lists: for each device whose launches have one its number, and the buffer."""
    old: tuple[tuple[int, int], ...]
    """For each target that begins as a copy of what it held: its number in the whole program, and that of the buffer
    with the old contents here."""


def lengths_of(lists: "Mapping[int, NDArray[np.int32]]", totals: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return each launch that has a list, with the length that a plan has for it."""
    return tuple([(i, _length(len(lists[i]), totals[i])) for i in sorted(lists)])


def _length(count: int, total: int) -> int:
    return max(1, min(1 << (count - 1).bit_length() if count else 1, ceil(WHOLE_FROM * total) - 1))


def with_lists(subprogram: Subprogram, lengths: tuple[tuple[int, int], ...], copied: tuple[int, ...]) -> TiledProgram:
    """Return a subprogram in which launches run lists of tiles of these lengths. The targets `copied` begin as copies
    of what they held, in new memory."""
    program = subprogram.program
    buffers, number = list(program.buffers), {whole: here for here, whole in enumerate(subprogram.chosen)}
    instructions: list[Instruction] = list(program.instructions)
    policies = list(program.policy_of)
    first: list[tuple[Instruction, int]] = []
    places, end = _places(lengths)
    outputs = dict(subprogram.outputs)
    fresh = {outputs[buffer] for buffer in copied}
    on_device: dict[int, int] = {}
    if places:
        launches = [number[index] for index, _, _ in places]
        for device in sorted({instructions[here].device for here in launches}):
            on_device[device] = len(buffers)
            buffers.append(Buffer(end * _NUMBER.itemsize, device, Role.INPUT))
        for here, (_, start, length) in zip(launches, places, strict=True):
            launch = instructions[here]
            assert type(launch) is Launch
            listing = View(on_device[launch.device], Layout(_NUMBER, (length,), (4,), start * _NUMBER.itemsize))
            for out_number in launch.writes:  # what is not copied holds all of its tiles when the run begins
                if buffers[out_number].role is Role.OUTPUT and out_number not in fresh:
                    buffers[out_number] = replace(buffers[out_number], role=Role.INPUT)
            reads = (*launch.reads, listing.buffer)
            instructions[here] = replace(launch, tile_list=listing, reads=reads)
    old: list[tuple[int, int]] = []
    for buffer in copied:
        out_number = outputs[buffer]
        about, before = buffers[out_number], len(buffers)
        buffers.append(Buffer(about.nbytes, about.device, Role.INPUT))
        old.append((buffer, before))
        bytes_of = contiguous_layout((about.nbytes,), np.dtype(np.uint8))
        writer = next(here for here, each in enumerate(instructions) if out_number in each.writes)
        origin, target, source = instructions[writer].origin, View(out_number, bytes_of), View(before, bytes_of)
        first.append((CopyDtoD(target, source, (before,), (out_number,), about.device, origin), policies[writer]))
    tiled = Program(
        program.devices,
        tuple(buffers),
        (*[each for each, _ in first], *instructions),
        program.policies,
        (*[policy for _, policy in first], *policies),
    )
    return TiledProgram(replace(subprogram, program=tiled), tuple(on_device.items()), tuple(old))


def list_array(
    lengths: tuple[tuple[int, int], ...], lists: "Mapping[int, NDArray[np.int32]]", totals: Mapping[int, int]
) -> "NDArray[np.int32]":
    """Return the array with all lists."""
    places, end = _places(lengths)
    array = np.empty(end, _NUMBER)
    for index, start, length in places:
        numbers = lists[index]
        end = start + len(numbers)
        array[start:end] = numbers
        array[end : start + length] = totals[index]
    return array


def shifted_lists(
    array: "NDArray[np.int32]",
    lengths: tuple[tuple[int, int], ...],
    lists: "Mapping[int, NDArray[np.int32]]",
    by: Mapping[int, int],
) -> "NDArray[np.int32]":
    """Return the array of `list_array` for these lists, with a number added to all tiles of each launch."""
    shifted = array.copy()
    for index, start, _ in _places(lengths)[0]:
        shifted[start : start + len(lists[index])] += by[index]
    return shifted


def _places(lengths: tuple[tuple[int, int], ...]) -> tuple[list[tuple[int, int, int]], int]:
    """Return for each list its launch in the whole program, its first place in the array, and its length; and the
    length of the array."""
    places, end = [], 0
    for index, length in lengths:
        places.append((index, end, length))
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return places, end


# ---- the tiles of one stage
#
# They are analysed and proved once for parts of one shape, whole tiles apart.


MOST_SHAPES: Final = 64
"""The most shapes of changed parts whose proof a feed remembers, those used last."""

MOST_PREPARED: Final = 256
"""The most sets of changed parts whose tiles a feed remembers, those used last."""

_MOST_EXTENTS: Final = 256
"""The most extents of changed parts that a feed remembers."""

ChangedParts: TypeAlias = Mapping[int, tuple[Box, ...]]
"""The parts of sources that have changed, by the sources' bits. Of any other source everything may have."""


@final
class PreparedTiles:
    """What an update runs after a change of certain parts."""

    __slots__ = ("array", "lengths", "runs_less", "unchanged", "update", "written")

    def __init__(
        self,
        update: TileUpdate,
        unchanged: frozenset[int],
        written: tuple[int, ...],
        lengths: tuple[tuple[int, int], ...],
        array: "NDArray[np.int32] | None",
        runs_less: bool,
    ) -> None:
        self.update = update
        self.unchanged = unchanged
        """The instructions that leave what they left before."""
        self.written = written
        """The buffers of which tiles are written."""
        self.lengths = lengths
        self.array = array
        """The lists, as kernels read them."""
        self.runs_less = runs_less
        """False if all runs that would run without knowing the parts."""

    def shifted(self, by: dict[int, int]) -> "PreparedTiles":
        """Return the same with these numbers added to the tiles of each launch. Of its update the counts hold."""
        array = None if self.array is None else shifted_lists(self.array, self.lengths, self.update.lists, by)
        return PreparedTiles(self.update, self.unchanged, self.written, self.lengths, array, self.runs_less)


@final
class ListedTiles(NamedTuple):
    """The tiles that one update runs from lists."""

    prepared: PreparedTiles
    copied: tuple[int, ...]
    """The targets of which tiles are written in new memory, which begins as a copy: something may read the old one."""


@final
class _Shape(NamedTuple):
    """What has changed, but for where."""

    about: tuple[Change, tuple[int, ...]]
    """The change, and the sources of which parts have changed, by their bits."""
    units: tuple[int, ...]
    """The units of the shifts."""
    counts: tuple[int, ...]
    """The number of parts of each source."""
    parts: tuple[Box, ...]
    """These, as if they began at the first element."""


@final
class _Proved(NamedTuple):
    """What an update runs after a change of parts of one shape."""

    prepared: PreparedTiles
    anchor: tuple[int, ...]
    """Where the parts were for which it is proved, in units of the shifts."""
    shifts: Shifts


@final
class ProvedShapes:
    """What updates of one stage run after changes of parts, by the shapes of these."""

    def __init__(self, verifier: TileVerifier) -> None:
        self._verifier = verifier
        self._proved: Recent[_Shape, _Proved] = Recent(MOST_SHAPES)
        self._units: dict[tuple[Change, tuple[int, ...]], tuple[int, ...]] = {}
        """By changes and the sources of which parts have changed, the units of the shifts that were found last."""
        self._extents: set[object] = set()
        """The extents of parts for which shifts are looked for when they come again: for most parts that takes as long
        as their proof."""

    def find(self, change: Change, parts: ChangedParts) -> PreparedTiles | None:
        """Return what an update runs for these parts, if a shift of them is proved with them; else None."""
        about = change, tuple(parts)
        units = self._units.get(about)
        if units is None:
            return None
        anchor, shape = _anchored(about, parts, units)
        proved = self._proved.use(shape)
        if proved is None:
            return None
        shift = [new - old for new, old in zip(anchor, proved.anchor, strict=True)]
        if not proved.shifts.allow(shift):
            return None
        by = {
            index: sum([number * stride for number, stride in zip(shift, strides, strict=True)])
            for index, strides in proved.shifts.strides.items()
        }
        return proved.prepared.shifted(by)

    def add(self, change: Change, parts: ChangedParts, dirt: LeafDirt, prepared: PreparedTiles) -> None:
        """Add what an update runs for these parts, and is proved for them. Shifts are looked for if parts of these
        extents have changed before."""
        about = change, tuple(parts)
        sizes = [tuple([end - begin for begin, end in box]) for boxes in parts.values() for box in boxes]
        extents = about, tuple(map(len, parts.values())), tuple(sizes)
        if extents not in self._extents:
            if len(self._extents) >= _MOST_EXTENTS:
                self._extents.clear()
            self._extents.add(extents)
            return
        shifts = find_shifts(self._verifier, change, dirt, prepared.update)
        if shifts is None:
            return
        anchor, shape = _anchored(about, parts, shifts.units)
        self._units[about] = shifts.units
        before = len(self._proved)
        self._proved.keep(shape, _Proved(prepared, anchor, shifts))
        if len(self._proved) == before:  # one was dropped
            self._units = {each: self._units[each] for each in {shape.about for shape in self._proved}}


def _anchored(
    about: tuple[Change, tuple[int, ...]], parts: ChangedParts, units: tuple[int, ...]
) -> tuple[tuple[int, ...], _Shape]:
    """Return where parts begin, in units along each axis, and their shape."""
    every = [box for boxes in parts.values() for box in boxes]
    anchor = tuple([min([box[axis][0] for box in every]) // unit for axis, unit in enumerate(units)])
    starts = [place * unit for place, unit in zip(anchor, units, strict=True)]
    shifted = [
        tuple([(begin - start, end - start) for (begin, end), start in zip(box, starts, strict=True)]) for box in every
    ]
    return anchor, _Shape(about, units, tuple(map(len, parts.values())), tuple(shifted))


@final
class StageTiles:
    """The tiles of one stage. With `verify` they are proved."""

    def __init__(self, staleness: Staleness, leaves: LeafValues, *, verify: bool) -> None:
        self._staleness = staleness
        self._leaves = leaves
        self._verify = verify
        self._tiles = TileUpdates(staleness)
        self._totals = self._tiles.totals
        self._tile_verifier = TileVerifier(staleness)
        self._prepared: Recent[tuple[Change, tuple[tuple[int, tuple[Box, ...]], ...]], PreparedTiles] = Recent(
            MOST_PREPARED
        )
        """By changes and the parts that have changed."""
        self._shapes = ProvedShapes(self._tile_verifier)
        self.latest: list[TileUpdate] = []
        """The parts of the last update, if it may have run tiles: the later ones waited for cutoffs."""

    @property
    def counts(self) -> tuple[TileCount, ...]:
        """The tiles that the last update ran, of each launch that may run in tiles; empty if it ran launches whole."""
        found = dict.fromkeys(self._totals, 0) if self.latest else {}
        for update in self.latest:
            chosen = set(update.chosen)
            found |= {
                index: len(update.lists.get(index, range(total)))
                for index, total in self._totals.items()
                if index in chosen
            }
        return tuple([TileCount(index, count, self._totals[index]) for index, count in found.items()])

    def whole_from(self, launch: int) -> int:
        """Return the number of dirty tiles from which on a launch runs all of them, with no list."""
        return ceil(WHOLE_FROM * self._totals[launch])

    def find(self, change: Change, parts: ChangedParts | None, targets: TargetMemory) -> ListedTiles | None:
        """Return the tiles that an update runs after a change of parts of sources. None if it would run no less than
        after a change of all of them, and if more than parts has changed.

        Parts that have changed before need neither an analysis nor a proof.
        """
        if not change.only:  # else it goes on with an update that waited for a cutoff
            self.latest.clear()
        if not parts or not self._totals:
            return None
        key = change, tuple(parts.items())
        prepared = self._prepared.use(key)
        if prepared is None:
            if self._leaves.mostly_changed(parts, WHOLE_FROM):
                return None
            prepared = self._prepared.keep(key, self._prepare(change, parts))
        self.latest.append(prepared.update)
        if not prepared.runs_less:
            return None
        copied = tuple([buffer for buffer in prepared.written if targets.is_held(buffer)])
        if copied and self._share(prepared.update) >= COPIED_WHOLE_FROM:
            self.latest.clear()
            return None
        return ListedTiles(prepared, copied)

    def _share(self, update: TileUpdate) -> float:
        """Return the greatest part of the tiles of a launch that an update runs from a list."""
        return max([len(numbers) / self._totals[index] for index, numbers in update.lists.items()], default=0.0)

    def _prepare(self, change: Change, parts: ChangedParts) -> PreparedTiles:
        """Return what an update runs after a change of these parts, proved for them or for parts of the same shape."""
        shifted = self._shapes.find(change, parts)
        if shifted is not None:
            return shifted
        dirt = self._leaves.dirt(parts)
        update = self._tiles.update(change, dirt)
        unchanged: frozenset[int] = frozenset()
        if self._verify:
            unchanged = self._tile_verifier.verify(change, dirt, update)
        instructions = self._staleness.program.instructions
        written = tuple(dict.fromkeys([buffer for index in update.lists for buffer in instructions[index].writes]))
        lengths = lengths_of(update.lists, self._totals)
        array = list_array(lengths, update.lists, self._totals) if lengths else None
        made = PreparedTiles(update, unchanged, written, lengths, array, self._tiles.runs_less(change, update))
        self._shapes.add(change, parts, dirt, made)
        return made
