"""`TiledPlans`: the plans of one stage after changes of parts of sources, in which launches run lists of tiles."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Storage
from dagpu.lowering.plan import Plan
from dagpu.lowering.updates.comparing.cutoff_comparisons import CutoffComparisons
from dagpu.lowering.updates.dirty.tile_lists import TiledProgram, lengths_of, list_array, shifted_lists, with_lists
from dagpu.lowering.updates.dirty.tile_updates import WHOLE_FROM, TileCount, TileUpdate, TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram
from dagpu.lowering.verify.tile_shifts import Shifts, find_shifts
from dagpu.lowering.verify.verify_tiles import TileVerifier
from dagpu.lowering.verify.verify_update import UpdateVerifier
from dagpu.ops.live.parts import Box
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.device_lookup import find_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_TILED_PLANS: Final = 32
"""The most plans with lists of tiles that a feed keeps, those used last."""

MOST_PREPARED: Final = 256
"""The most sets of changed parts whose tiles a feed remembers, those used last."""

MOST_SHAPES: Final = 64
"""The most shapes of changed parts whose proof a feed remembers, those used last."""

_GRAPH_FROM: Final = 2
"""The use of one plan, counted from 1, from which on it is launched as one CUDA graph."""

ChangedParts: TypeAlias = Mapping[int, tuple[Box, ...]]
"""The parts of sources that have changed, by the sources' bits. Of any other source everything may have."""


@final
class TiledPlan:
    """A plan with lists of tiles, which serves all lists that fit into its own."""

    __slots__ = (
        "_lists", "bound", "fresh", "held", "kept", "loaded", "locks", "proved", "subprogram", "targets", "whole",
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
class _Prepared:
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

    def shifted(self, by: dict[int, int]) -> "_Prepared":
        """Return the same with these numbers added to the tiles of each launch. Of its update the counts hold."""
        array = None if self.array is None else shifted_lists(self.array, self.lengths, self.update.lists, by)
        made = _Prepared(self.update, self.unchanged, self.written, self.lengths, array, self.runs_less)
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

    prepared: _Prepared
    anchor: tuple[int, ...]
    """Where the parts were for which it is proved, in units of the shifts."""
    shifts: Shifts


@final
class TiledPlans:
    """The plans with lists of tiles of one stage. `on_plan` is called with each new one."""

    def __init__(
        self,
        staleness: Staleness,
        comparisons: CutoffComparisons,
        leaves: LeafValues,
        settings: Settings,
        on_plan: Callable[[Plan], None],
    ) -> None:
        self._staleness = staleness
        self._comparisons = comparisons
        self._leaves = leaves
        self._settings = settings
        self._on_plan = on_plan
        self._tiles = TileUpdates(staleness)
        self._totals = self._tiles.totals
        self._verifier: UpdateVerifier | None = None
        self._tile_verifier = TileVerifier(staleness)
        self._plans: dict[Hashable, TiledPlan] = {}
        self._used: OrderedDict[TiledPlan, Hashable] = OrderedDict()
        """These plans, the one used last at the end, with their keys."""
        self._prepared: OrderedDict[tuple[Change, tuple[tuple[int, tuple[Box, ...]], ...]], _Prepared] = OrderedDict()
        """By changes and the parts that have changed."""
        self._shapes: OrderedDict[_Shape, _Proved] = OrderedDict()
        """By the shapes of changed parts: a shift of these is proved with them."""
        self._units: dict[tuple[Change, tuple[int, ...]], tuple[int, ...]] = {}
        """By changes and the sources of which parts have changed, the units of the shifts that were found last."""
        self._latest: list[TileUpdate] = []
        """The parts of the last update, if it may have run tiles: the later ones waited for cutoffs."""

    @property
    def counts(self) -> tuple[TileCount, ...]:
        """The tiles that the last update ran, of each launch that may run in tiles; empty if it ran launches whole."""
        found = dict.fromkeys(self._totals, 0) if self._latest else {}
        for update in self._latest:
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

    def find(self, change: Change, parts: ChangedParts | None, targets: TargetMemory) -> TiledPlan | None:
        """Return the plan for a change of parts of sources, with its lists written. None if it would run no less than
        the plan for the change of all of them, and if more than parts has changed.

        Parts that have changed before need neither an analysis nor a proof.
        """
        if not change.only:  # else it goes on with an update that waited for a cutoff
            self._latest.clear()
        if not parts or not self._totals:
            return None
        key = change, tuple(parts.items())
        prepared = self._prepared.get(key)
        if prepared is None:
            if self._leaves.mostly_changed(parts, WHOLE_FROM):
                return None
            prepared = self._prepared[key] = self._prepare(change, parts)
            if len(self._prepared) > MOST_PREPARED:
                self._prepared.popitem(last=False)
        else:
            self._prepared.move_to_end(key)
        self._latest.append(prepared.update)
        if not prepared.runs_less:
            return None
        held = tuple([buffer for buffer in prepared.written if targets.is_held(buffer)])
        plan = prepared.plan
        if plan is None or plan.held != held:
            plan = prepared.plan = self._plan_for(change, prepared, held)
        self._used.move_to_end(plan)
        if prepared.array is not None:
            plan.put_lists(prepared.array)
        return plan

    def _prepare(self, change: Change, parts: ChangedParts) -> _Prepared:
        """Return what an update runs after a change of these parts, proved for them or for parts of the same shape."""
        about = change, tuple(parts)
        units = self._units.get(about)
        if units is not None:
            anchor, shape = _anchored(about, parts, units)
            proved = self._shapes.get(shape)
            if proved is not None:
                shift = [new - old for new, old in zip(anchor, proved.anchor, strict=True)]
                if proved.shifts.allow(shift):
                    self._shapes.move_to_end(shape)
                    return proved.prepared.shifted(
                        {
                            index: sum([number * stride for number, stride in zip(shift, strides, strict=True)])
                            for index, strides in proved.shifts.strides.items()
                        }
                    )
        dirt = self._leaves.dirt(parts)
        update = self._tiles.update(change, dirt)
        unchanged: frozenset[int] = frozenset()
        if self._settings.verify:
            unchanged = self._tile_verifier.verify(change, dirt, update)
        instructions = self._staleness.program.instructions
        written = tuple(dict.fromkeys([buffer for index in update.lists for buffer in instructions[index].writes]))
        lengths = lengths_of(update.lists, self._totals)
        array = list_array(lengths, update.lists, self._totals) if lengths else None
        made = _Prepared(update, unchanged, written, lengths, array, self._tiles.runs_less(change, update))
        shifts = find_shifts(self._staleness, change, dirt, update)
        if shifts is not None:
            anchor, shape = _anchored(about, parts, shifts.units)
            self._units[about] = shifts.units
            self._shapes[shape] = _Proved(made, anchor, shifts)
            if len(self._shapes) > MOST_SHAPES:
                self._shapes.popitem(last=False)
                self._units = {each: self._units[each] for each in {shape.about for shape in self._shapes}}
        return made

    def _plan_for(self, change: Change, prepared: _Prepared, held: tuple[int, ...]) -> TiledPlan:
        """Return the plan that runs this, proved for it. Outputs that something else holds begin as copies."""
        key = change, prepared.update.chosen, prepared.lengths, held
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(change, prepared, held)
            self._used[plan] = key
            if len(self._used) > MOST_TILED_PLANS:
                self._drop_oldest()
        if self._settings.verify and prepared.unchanged not in plan.proved:
            if self._verifier is None:
                self._verifier = UpdateVerifier(self._staleness, self._comparisons)
            self._verifier.verify(change, plan.whole, prepared.unchanged)
            plan.proved.add(prepared.unchanged)
        return plan

    def _drop_oldest(self) -> None:
        """Keep the plan no longer that was not used for the longest time."""
        oldest, key = self._used.popitem(last=False)
        del self._plans[key]
        for prepared in (*self._prepared.values(), *[each.prepared for each in self._shapes.values()]):
            if prepared.plan is oldest:
                prepared.plan = None

    def _make(self, change: Change, prepared: _Prepared, held: tuple[int, ...]) -> TiledPlan:
        """Return a new plan. Outputs that something else holds begin as copies."""
        whole = self._comparisons.extract(prepared.update.chosen, change.compare, self._staleness.targets)
        tiled, loaded = with_lists(whole, prepared.lengths, held), None
        if whole.chosen:
            made = plan_program(tiled.subprogram.program, self._settings.verify)
            self._on_plan(made)
            loaded = LoadedPlan(made, self._settings)
            loaded.keep(None, _GRAPH_FROM)
        locks = [self._leaves.locks[b] for b, _ in whole.inputs if b in self._leaves.locks]
        return TiledPlan(whole, tiled, self._staleness.targets, frozenset(prepared.written), held, loaded, locks)


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
