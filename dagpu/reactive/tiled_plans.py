"""`TiledPlans`: the plans of one stage after changes of parts of sources, in which launches run lists of tiles."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from dagpu.handles.storage import Storage
from dagpu.lowering.plan import Plan
from dagpu.lowering.updates.comparing.cutoff_comparisons import CutoffComparisons
from dagpu.lowering.updates.dirty.tile_lists import TiledProgram, lengths_of, list_array, with_lists
from dagpu.lowering.updates.dirty.tile_updates import WHOLE_FROM, TileCount, TileUpdate, TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram
from dagpu.lowering.verify.verify_tiles import verify_tiles
from dagpu.lowering.verify.verify_update import UpdateVerifier
from dagpu.ops.live.parts import Box
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.settings import Settings

if TYPE_CHECKING:
    import numpy as np
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

    __slots__ = ("loaded", "locks", "proved", "subprogram", "targets", "tiled", "whole")

    def __init__(
        self,
        whole: Subprogram,
        tiled: TiledProgram,
        targets: set[int],
        loaded: LoadedPlan | None,
        locks: list[Storage],
    ) -> None:
        self.whole = whole
        """The same instructions without lists."""
        self.proved: set[frozenset[int]] = set()
        """The sets of instructions that leave what they left before, for which the plan is proved."""
        self.tiled = tiled
        self.subprogram: Subprogram = tiled.subprogram
        self.targets = frozenset([buffer for buffer, _ in tiled.subprogram.outputs if buffer in targets])
        """The targets that the plan makes."""
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = dict.fromkeys(locks, False)


@final
class _Prepared(NamedTuple):
    """What an update runs after a change of certain parts."""

    update: TileUpdate
    unchanged: frozenset[int]
    """The instructions that leave what they left before."""
    written: tuple[int, ...]
    """The buffers of which tiles are written."""
    lengths: tuple[tuple[int, int], ...]
    array: "NDArray[np.int32] | None"
    """The lists, as the plan's copy brings them to the device."""
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
        self._totals = self._tiles.total
        self._verifier: UpdateVerifier | None = None
        self._plans: OrderedDict[Hashable, TiledPlan] = OrderedDict()
        self._prepared: OrderedDict[Hashable, _Prepared] = OrderedDict()
        self.counts: tuple[TileCount, ...] = ()
        """The tiles that the last update ran, of each launch that may run in tiles; empty if it ran launches whole."""

    def find(
        self, change: Change, parts: ChangedParts, targets: TargetMemory
    ) -> "tuple[TiledPlan, dict[int, object]] | None":
        """Return the plan for a change of parts of sources, and what its buffers are bound to beside those that each
        plan binds: the lists, and the memory of outputs of which tiles are written. None if it would run no less than
        the plan for the change of all of them."""
        if not change.only:  # else it goes on with an update that waited for a cutoff
            self.counts = ()
        if not parts or not self._totals or self._leaves.mostly_changed(parts, WHOLE_FROM):
            return None
        prepared = self._prepare(change, parts)
        update = prepared.update
        self._count(update)
        if not prepared.runs_less:
            return None
        held = tuple([buffer for buffer in prepared.written if targets.is_held(buffer)])
        key = change, update.chosen, prepared.lengths, held
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(change, update, prepared.lengths, held)
            while len(self._plans) > MOST_TILED_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        if self._settings.verify and prepared.unchanged not in plan.proved:
            if self._verifier is None:
                self._verifier = UpdateVerifier(self._staleness, self._comparisons)
            self._verifier.verify(change, plan.whole, prepared.unchanged)
            plan.proved.add(prepared.unchanged)
        return plan, self._bound(plan, prepared, held, targets)

    def _prepare(self, change: Change, parts: ChangedParts) -> "_Prepared":
        """Return what an update runs after a change of these parts, proved. The same parts often change again."""
        key = change, tuple(parts.items())
        found = self._prepared.get(key)
        if found is None:
            dirt = self._leaves.dirt(parts)
            update = self._tiles.update(change, dirt)
            unchanged: frozenset[int] = frozenset()
            if self._settings.verify:
                unchanged = verify_tiles(self._staleness, change, dirt, update)
            instructions = self._staleness.program.instructions
            written = sorted({buffer for index in update.lists for buffer in instructions[index].writes})
            lengths = lengths_of(update.lists, self._totals)
            runs_less = self._tiles.runs_less(change, update)
            array = list_array(lengths, update.lists, self._totals) if lengths else None
            found = self._prepared[key] = _Prepared(update, unchanged, tuple(written), lengths, array, runs_less)
            while len(self._prepared) > MOST_PREPARED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        return found

    def _count(self, update: TileUpdate) -> None:
        """Record the tiles that an update runs."""
        chosen, before = set(update.chosen), {each.instruction: each for each in self.counts}
        self.counts = tuple(
            [
                TileCount(index, len(update.lists.get(index, range(total))), total)
                if index in chosen
                else before.get(index, TileCount(index, 0, total))
                for index, total in self._totals.items()
            ]
        )

    def _bound(
        self, plan: TiledPlan, prepared: "_Prepared", held: tuple[int, ...], targets: TargetMemory
    ) -> dict[int, object]:
        """Return the memory of the buffers of lists, and of outputs of which tiles are written."""
        tiled, outputs = plan.tiled, dict(plan.subprogram.outputs)
        bound: dict[int, object] = {here: targets.memory[buffer] for buffer, here in tiled.old}
        for buffer in prepared.written:
            if buffer in outputs:
                bound[outputs[buffer]] = None if buffer in held else targets.memory[buffer]
        if tiled.list_cell is not None:
            bound[tiled.list_cell] = prepared.array
        return bound

    def _make(
        self, change: Change, update: TileUpdate, lengths: tuple[tuple[int, int], ...], held: tuple[int, ...]
    ) -> TiledPlan:
        """Return a new plan. Outputs that something else holds begin as copies."""
        whole = self._comparisons.extract(update.chosen, change.compare, self._staleness.targets)
        tiled, loaded = with_lists(whole, lengths, held), None
        if whole.chosen:
            made = plan_program(tiled.subprogram.program, self._settings.verify)
            self._on_plan(made)
            loaded = LoadedPlan(made, self._settings)
            loaded.keep(None, _GRAPH_FROM)
        locks = [self._leaves.locks[b] for b, _ in whole.inputs if b in self._leaves.locks]
        return TiledPlan(whole, tiled, self._staleness.targets, loaded, locks)
