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
from dagpu.lowering.updates.dirty.tile_lists import TiledProgram, lengths_of, list_array, with_lists
from dagpu.lowering.updates.dirty.tile_updates import WHOLE_FROM, TileCount, TileUpdate, TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram
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

_GRAPH_FROM: Final = 2
"""The use of one plan, counted from 1, from which on it is launched as one CUDA graph."""

ChangedParts: TypeAlias = Mapping[int, tuple[Box, ...]]
"""The parts of sources that have changed, by the sources' bits. Of any other source everything may have."""


@final
class TiledPlan:
    """A plan with lists of tiles, which serves all lists that fit into its own."""

    __slots__ = ("_lists", "bound", "loaded", "locks", "old", "proved", "subprogram", "targets", "whole", "written")

    def __init__(
        self,
        whole: Subprogram,
        tiled: TiledProgram,
        targets: set[int],
        listed: frozenset[int],
        loaded: LoadedPlan | None,
        locks: list[Storage],
    ) -> None:
        """`listed` has the buffers that launches with lists write."""
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
        self.old = tiled.old
        self.written = tuple([(buffer, here) for buffer, here in tiled.subprogram.outputs if buffer in listed])
        """The outputs of which tiles are written: the number in the whole program, and here."""
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
class _Prepared(NamedTuple):
    """What an update runs after a change of certain parts."""

    update: TileUpdate
    unchanged: frozenset[int]
    """The instructions that leave what they left before."""
    written: frozenset[int]
    """The buffers of which tiles are written."""
    lengths: tuple[tuple[int, int], ...]
    array: "NDArray[np.int32] | None"
    """The lists, as kernels read them."""
    runs_less: bool
    """False if all runs that would run without knowing the parts."""


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
        self._plans: OrderedDict[Hashable, TiledPlan] = OrderedDict()
        self._prepared: OrderedDict[Hashable, _Prepared] = OrderedDict()
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

    def runs_whole(self, parts: ChangedParts | None) -> bool:
        """Return true if a change of these parts of sources runs all tiles, as far as their extents say; None if more
        than parts has changed. Then the last update ran no tiles."""
        if parts and self._totals and not self._leaves.mostly_changed(parts, WHOLE_FROM):
            return False
        self._latest.clear()
        return True

    def find(
        self, change: Change, parts: ChangedParts, targets: TargetMemory
    ) -> "tuple[TiledPlan, list[tuple[int, object]]] | None":
        """Return the plan for a change of parts of sources, and what its buffers are bound to beside those that each
        plan binds: the lists, and the memory of outputs of which tiles are written. None if it would run no less than
        the plan for the change of all of them."""
        if not parts or not self._totals or self._leaves.mostly_changed(parts, WHOLE_FROM):
            if not change.only:  # else it goes on with an update that waited for a cutoff
                self._latest.clear()
            return None
        return self.find_dirty(change, parts, targets)

    def find_dirty(
        self, change: Change, parts: ChangedParts, targets: TargetMemory
    ) -> "tuple[TiledPlan, list[tuple[int, object]]] | None":
        """Do what `find` does, for parts that are less than the share of all from which on all tiles run."""
        if not change.only:
            self._latest.clear()
        prepared = self._prepare(change, parts)
        update = prepared.update
        self._latest.append(update)
        if not prepared.runs_less:
            return None
        held = tuple([buffer for buffer in prepared.written if targets.is_held(buffer)])
        key = change, update.chosen, prepared.lengths, held
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(change, prepared, held)
            while len(self._plans) > MOST_TILED_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        if self._settings.verify and prepared.unchanged not in plan.proved:
            if self._verifier is None:
                self._verifier = UpdateVerifier(self._staleness, self._comparisons)
            self._verifier.verify(change, plan.whole, prepared.unchanged)
            plan.proved.add(prepared.unchanged)
        if prepared.array is not None:
            plan.put_lists(prepared.array)
        memory = targets.memory
        bound: list[tuple[int, object]] = [(here, memory[buffer]) for buffer, here in plan.old]
        bound += [(here, None if buffer in held else memory[buffer]) for buffer, here in plan.written]
        bound += plan.bound
        return plan, bound

    def _prepare(self, change: Change, parts: ChangedParts) -> "_Prepared":
        """Return what an update runs after a change of these parts, proved. The same parts often change again."""
        key = change, tuple(parts.items())
        found = self._prepared.get(key)
        if found is None:
            dirt = self._leaves.dirt(parts)
            update = self._tiles.update(change, dirt)
            unchanged: frozenset[int] = frozenset()
            if self._settings.verify:
                unchanged = self._tile_verifier.verify(change, dirt, update)
            instructions = self._staleness.program.instructions
            written = frozenset([buffer for index in update.lists for buffer in instructions[index].writes])
            lengths = lengths_of(update.lists, self._totals)
            runs_less = self._tiles.runs_less(change, update)
            array = list_array(lengths, update.lists, self._totals) if lengths else None
            found = self._prepared[key] = _Prepared(update, unchanged, written, lengths, array, runs_less)
            if len(self._prepared) > MOST_PREPARED:
                self._prepared.popitem(last=False)
        else:
            self._prepared.move_to_end(key)
        return found

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
        return TiledPlan(whole, tiled, self._staleness.targets, prepared.written, loaded, locks)
