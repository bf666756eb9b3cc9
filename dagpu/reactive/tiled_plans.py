"""`TiledPlans`: the plans of one stage after changes of parts of sources, in which launches run lists of tiles."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, final

from dagpu.handles.storage import Storage
from dagpu.lowering.plan import Plan
from dagpu.lowering.updates.dirty.tile_lists import TiledProgram, lengths_of, list_array, with_lists
from dagpu.lowering.updates.dirty.tile_updates import TileCount, TileUpdate, TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram, extract
from dagpu.lowering.verify.verify_tiles import verify_tiles
from dagpu.lowering.verify.verify_update import verify_update
from dagpu.ops.live.parts import Box
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.settings import Settings

MOST_TILED_PLANS: Final = 32
"""The most plans with lists of tiles that a feed keeps, those used last."""

_GRAPH_FROM: Final = 2
"""The use of one plan, counted from 1, from which on it is launched as one CUDA graph."""

ChangedParts = Mapping[int, Sequence[Box]]
"""The parts of sources that have changed, by the sources' bits. Of any other source everything may have."""


@final
class TiledPlan:
    """A plan with lists of tiles, which serves all lists that fit into its own."""

    __slots__ = ("loaded", "locks", "subprogram", "tiled")

    def __init__(self, tiled: TiledProgram, loaded: LoadedPlan | None, locks: list[Storage]) -> None:
        self.tiled = tiled
        self.subprogram: Subprogram = tiled.subprogram
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = locks


@final
class TiledPlans:
    """The plans with lists of tiles of one stage. `on_plan` is called with each new one."""

    def __init__(
        self, staleness: Staleness, leaves: LeafValues, settings: Settings, on_plan: Callable[[Plan], None]
    ) -> None:
        self._staleness = staleness
        self._leaves = leaves
        self._settings = settings
        self._on_plan = on_plan
        self._tiles = TileUpdates(staleness)
        self._totals = self._tiles.total
        self._plans: OrderedDict[Hashable, TiledPlan] = OrderedDict()
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
        if not parts or not self._totals:
            return None
        dirt = self._leaves.dirt(parts)
        update = self._tiles.update(change, dirt)
        self._count(update)
        if not self._tiles.runs_less(change, update):
            return None
        program = self._staleness.program
        written = sorted({buffer for index in update.lists for buffer in program.instructions[index].writes})
        held = tuple([buffer for buffer in written if targets.is_held(buffer)])
        lengths = lengths_of(update.lists, self._totals)
        unchanged: frozenset[int] = frozenset()
        if self._settings.verify:
            unchanged = verify_tiles(self._staleness, change, dirt, update)
        key = change, update.chosen, lengths, held
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make(change, update, lengths, held, unchanged)
            self._plans[key] = plan
            while len(self._plans) > MOST_TILED_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return plan, self._bound(plan, update, held, written, targets)

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
        self, plan: TiledPlan, update: TileUpdate, held: tuple[int, ...], written: list[int], targets: TargetMemory
    ) -> dict[int, object]:
        """Return the memory of the buffers of lists, and of outputs of which tiles are written."""
        tiled, outputs = plan.tiled, dict(plan.subprogram.outputs)
        bound: dict[int, object] = {here: targets.memory[buffer] for buffer, here in tiled.old}
        bound |= {outputs[buffer]: None for buffer in held}
        bound |= {
            outputs[buffer]: targets.memory[buffer] for buffer in written if buffer in outputs and buffer not in held
        }
        if tiled.list_cell is not None:
            bound[tiled.list_cell] = list_array(tiled, update.lists, self._totals)
        return bound

    def _make(
        self,
        change: Change,
        update: TileUpdate,
        lengths: tuple[tuple[int, int], ...],
        held: tuple[int, ...],
        unchanged: frozenset[int],
    ) -> TiledPlan:
        """Return a new plan. Outputs that something else holds begin as copies."""
        staleness = self._staleness
        subprogram = extract(staleness.program, update.chosen, staleness.targets)
        if self._settings.verify:
            verify_update(staleness, change, subprogram, unchanged)
        tiled, loaded = with_lists(subprogram, lengths, held), None
        if update.chosen:
            made = plan_program(tiled.subprogram.program, self._settings.verify)
            self._on_plan(made)
            loaded = LoadedPlan(made, self._settings)
            loaded.keep(None, _GRAPH_FROM)
        locks = [self._leaves.locks[b] for b, _ in subprogram.inputs if b in self._leaves.locks]
        return TiledPlan(tiled, loaded, locks)
