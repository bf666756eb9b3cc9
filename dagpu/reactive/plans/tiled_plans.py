"""`TiledPlans`: the plans of one stage after changes of parts of sources, in which launches run lists of tiles."""

from collections import OrderedDict
from collections.abc import Hashable
from math import ceil
from typing import Final, final

from dagpu.lowering.updates.claims import Change, TileUpdate
from dagpu.lowering.updates.dirty.tile_lists import lengths_of, list_array, with_lists
from dagpu.lowering.updates.dirty.tile_updates import COPIED_WHOLE_FROM, WHOLE_FROM, TileCount, TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.verify.verify_tiles import TileVerifier
from dagpu.ops.array_parts import Box
from dagpu.reactive.plans.plan_maker import PlanMaker
from dagpu.reactive.plans.prepared_tiles import ChangedParts, PreparedTiles, ProvedShapes, TiledPlan

MOST_TILED_PLANS: Final = 32
"""The most plans with lists of tiles that a feed keeps, those used last."""

MOST_PREPARED: Final = 256
"""The most sets of changed parts whose tiles a feed remembers, those used last."""


@final
class TiledPlans:
    """The plans with lists of tiles of one stage."""

    def __init__(self, maker: PlanMaker, leaves: LeafValues) -> None:
        self._maker = maker
        self._staleness = staleness = maker.staleness
        self._leaves = leaves
        self._tiles = TileUpdates(staleness)
        self._totals = self._tiles.totals
        self._tile_verifier = TileVerifier(staleness)
        self._plans: dict[Hashable, TiledPlan] = {}
        self._used: OrderedDict[TiledPlan, Hashable] = OrderedDict()
        """These plans, the one used last at the end, with their keys."""
        self._prepared: OrderedDict[tuple[Change, tuple[tuple[int, tuple[Box, ...]], ...]], PreparedTiles] = (
            OrderedDict()
        )
        """By changes and the parts that have changed."""
        self._shapes = ProvedShapes(self._tile_verifier)
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
        if held and self._share(prepared.update) >= COPIED_WHOLE_FROM:
            self._latest.clear()
            return None
        plan = prepared.plan
        if plan is None or plan.held != held:
            plan = prepared.plan = self._plan_for(change, prepared, held)
        self._used.move_to_end(plan)
        if prepared.array is not None:
            plan.put_lists(prepared.array)
        return plan

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
        if self._maker.settings.verify:
            unchanged = self._tile_verifier.verify(change, dirt, update)
        instructions = self._staleness.program.instructions
        written = tuple(dict.fromkeys([buffer for index in update.lists for buffer in instructions[index].writes]))
        lengths = lengths_of(update.lists, self._totals)
        array = list_array(lengths, update.lists, self._totals) if lengths else None
        made = PreparedTiles(update, unchanged, written, lengths, array, self._tiles.runs_less(change, update))
        self._shapes.add(change, parts, dirt, made)
        return made

    def _plan_for(self, change: Change, prepared: PreparedTiles, held: tuple[int, ...]) -> TiledPlan:
        """Return the plan that runs this, proved for it. Outputs that something else holds begin as copies."""
        key = change, prepared.update.chosen, prepared.lengths, held
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(change, prepared, held)
            self._used[plan] = key
            if len(self._used) > MOST_TILED_PLANS:
                self._drop_oldest()
        if prepared.unchanged not in plan.proved:
            self._maker.verify(change, plan.whole, prepared.unchanged)
            plan.proved.add(prepared.unchanged)
        return plan

    def _drop_oldest(self) -> None:
        """Keep the plan no longer that was not used for the longest time."""
        oldest, key = self._used.popitem(last=False)
        del self._plans[key]
        for prepared in (*self._prepared.values(), *self._shapes.prepared()):
            if prepared.plan is oldest:
                prepared.plan = None

    def _make(self, change: Change, prepared: PreparedTiles, held: tuple[int, ...]) -> TiledPlan:
        """Return a new plan. Outputs that something else holds begin as copies."""
        comparisons, targets = self._maker.comparisons, self._staleness.targets
        whole = comparisons.extract(prepared.update.chosen, change.compare, targets)
        tiled = with_lists(whole, prepared.lengths, held)
        loaded = self._maker.prepare(tiled.subprogram)
        locks = [self._leaves.locks[b] for b, _ in whole.inputs if b in self._leaves.locks]
        return TiledPlan(whole, tiled, targets, frozenset(prepared.written), held, loaded, locks)
