"""What updates in tiles run, and its plans: analysed and proved once for parts of one shape, whole tiles apart."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Storage
from dagpu.lowering.updates.claims import Change, LeafDirt, Subprogram, TileUpdate
from dagpu.lowering.updates.dirty.tile_lists import TiledProgram, shifted_lists
from dagpu.lowering.verify.tile_shifts import Shifts, find_shifts
from dagpu.lowering.verify.verify_tiles import TileVerifier
from dagpu.ops.array_parts import Box
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.device_lookup import find_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_SHAPES: Final = 64
"""The most shapes of changed parts whose proof a feed remembers, those used last."""

_MOST_EXTENTS: Final = 256
"""The most extents of changed parts that a feed remembers."""

ChangedParts: TypeAlias = Mapping[int, tuple[Box, ...]]
"""The parts of sources that have changed, by the sources' bits. Of any other source everything may have."""


@final
class TiledPlan:
    """A plan with lists of tiles, which serves all lists that fit into its own."""

    __slots__ = (
        "_lists", "bound", "fresh", "held", "kept", "loaded", "locks", "proved", "ran", "subprogram", "targets",
        "whole",
    )  # fmt: skip

    def __init__(
        self,
        whole: Subprogram,
        tiled: TiledProgram,
        targets: set[int],
        listed: frozenset[int],
        held: tuple[int, ...],
        loaded: LoadedPlan | None,
        locks: list[Storage],
    ) -> None:
        """`listed` has the buffers that launches with lists write, `held` those of them that begin as copies."""
        self.whole = whole
        """The same instructions without lists."""
        self.proved: set[frozenset[int]] = set()
        """The sets of instructions that leave what they left before, for which the plan is proved."""
        self.subprogram: Subprogram = tiled.subprogram
        self.ran = len(self.subprogram.chosen)
        """The number of instructions that each run runs."""
        self.targets = frozenset([buffer for buffer, _ in tiled.subprogram.outputs if buffer in targets])
        """The targets that the plan makes."""
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = dict.fromkeys(locks, False)
        self.held = held
        """The buffers of which tiles are written in new memory, which begins as a copy."""
        written = [(here, buffer) for buffer, here in tiled.subprogram.outputs if buffer in listed]
        self.fresh = tuple([here for here, buffer in written if buffer in held])
        """Their numbers here."""
        old = [(here, buffer) for buffer, here in tiled.old]
        self.kept = (*old, *[each for each in written if each[1] not in held])
        """The memory of targets that the plan copies, or of which it writes tiles: the number here, and in the whole
        program."""
        devices = tiled.subprogram.program.devices
        tables = [
            (here, driver_of(find_device(devices[device])).mapped_memory(tiled.subprogram.program.buffers[here].nbytes))
            for device, here in tiled.lists
        ]
        self.bound = tuple([(here, table.memory) for here, table in tables])
        """The memory of the lists, which every run of the plan reads. One run of a feed ends before the next begins."""
        self._lists = [table.content.view(np.int32) for _, table in tables]

    def put_lists(self, array: "NDArray[np.int32]") -> None:
        """Write the lists of the next run, where the kernels read them. No run of the plan may be under way."""
        for table in self._lists:
            table[:] = array


@final
class PreparedTiles:
    """What an update runs after a change of certain parts."""

    __slots__ = ("array", "lengths", "plan", "runs_less", "unchanged", "update", "written")

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
        self.plan: TiledPlan | None = None
        """The plan that ran this last, proved for it, as long as it is kept."""

    def shifted(self, by: dict[int, int]) -> "PreparedTiles":
        """Return the same with these numbers added to the tiles of each launch. Of its update the counts hold."""
        array = None if self.array is None else shifted_lists(self.array, self.lengths, self.update.lists, by)
        made = PreparedTiles(self.update, self.unchanged, self.written, self.lengths, array, self.runs_less)
        made.plan = self.plan
        return made


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
        self._proved: OrderedDict[_Shape, _Proved] = OrderedDict()
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
        proved = self._proved.get(shape)
        if proved is None:
            return None
        shift = [new - old for new, old in zip(anchor, proved.anchor, strict=True)]
        if not proved.shifts.allow(shift):
            return None
        self._proved.move_to_end(shape)
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
        self._proved[shape] = _Proved(prepared, anchor, shifts)
        if len(self._proved) > MOST_SHAPES:
            self._proved.popitem(last=False)
            self._units = {each: self._units[each] for each in {shape.about for shape in self._proved}}

    def prepared(self) -> list[PreparedTiles]:
        """Return all that was added and is kept."""
        return [proved.prepared for proved in self._proved.values()]


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
