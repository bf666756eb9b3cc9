"""`StageTiles`: the tiles that the updates of one stage run after changes of parts of sources.

They are analysed and proved once for parts of one shape, whole tiles apart.
"""

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from dagpu.common.recent import Recent
from dagpu.ops.array_parts import Box
from dagpu.reactive.claims import Change, LeafDirt, TileUpdate
from dagpu.reactive.leaf_values import LeafValues
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.staleness import Staleness
from dagpu.reactive.tile_updates import (
    COPIED_WHOLE_FROM,
    WHOLE_FROM,
    TileCount,
    TileUpdates,
    lengths_of,
    list_array,
    shifted_lists,
)
from dagpu.reactive.verify_tiles import Shifts, TileVerifier, find_shifts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
