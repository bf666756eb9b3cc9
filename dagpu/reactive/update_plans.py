"""`UpdatePlans`: the plans of the updates of one stage, those used last.

There is one for each change, and it runs exactly what the change makes stale. In some plans launches run lists of
tiles: such a plan serves all lists that fit into its own. Others decide cutoffs themselves: these run as one CUDA graph
or not at all. Where there can be no such plan, the update runs in parts, and the host decides the cutoffs in between.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np

from dagpu.handles.device_handles import driver_of
from dagpu.handles.handle_state import Storage
from dagpu.plans.plan import Plan
from dagpu.reactive.claims import ALWAYS, Change, ConditionalUpdate, Subprogram, runs
from dagpu.reactive.conditional_updates import conditional_update
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.staleness import Recent, Staleness
from dagpu.reactive.subprogram import CutoffComparisons
from dagpu.reactive.tile_updates import ListedTiles, TiledProgram, with_lists
from dagpu.reactive.update_rows import UpdateRows
from dagpu.reactive.verify_updates import UpdateVerifier, verify_conditional
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.loaded_plan import LoadedPlan, Settings, plan_program

if TYPE_CHECKING:
    from numpy.typing import NDArray


_NOTHING_ELSE: Final = Change(0)[1:]

MOST_PLANS: Final = 64
"""The most plans that a feed keeps, those used last."""


@final
class TileMemory:
    """The memory of a plan with lists of tiles: that of the lists, and that of which tiles are written."""

    __slots__ = ("_fresh", "_kept", "_lists", "_tables", "proved", "whole")

    def __init__(
        self, whole: Subprogram, tiled: TiledProgram, written: Collection[int], copied: Collection[int]
    ) -> None:
        """`written` has the targets that launches with lists write, `copied` those of them that begin as copies."""
        self.whole = whole
        """The same instructions without lists."""
        self.proved: set[frozenset[int]] = set()
        """The sets of instructions that leave what they left before, for which the plan is proved."""
        outputs = [(here, buffer) for buffer, here in tiled.subprogram.outputs if buffer in written]
        self._fresh = [here for here, buffer in outputs if buffer in copied]
        """The buffers of which tiles are written in new memory, which begins as a copy."""
        old = [(here, buffer) for buffer, here in tiled.old]
        self._kept = old + [each for each in outputs if each[1] not in copied]
        """The targets that the plan copies, or of which it writes tiles: the number here, and in the whole program."""
        program = tiled.subprogram.program
        tables = [
            (here, driver_of(find_device(program.devices[number])).mapped_memory(program.buffers[here].nbytes))
            for number, here in tiled.lists
        ]
        self._tables = [(here, table.memory) for here, table in tables]
        """The memory of the lists, which every run of the plan reads. One run of a feed ends before the next begins."""
        self._lists = [table.content.view(np.int32) for _, table in tables]

    def put_lists(self, array: "NDArray[np.int32]") -> None:
        """Write the lists of the next run, where the kernels read them. No run of the plan may be under way."""
        for table in self._lists:
            table[:] = array

    def bind(self, memory: list[object], targets: TargetMemory) -> None:
        """Bind the lists, and the targets of which tiles are written."""
        for here in self._fresh:
            memory[here] = None
        for here, buffer in self._kept:
            memory[here] = targets.memory[buffer]
        for here, table in self._tables:
            memory[here] = table


@final
class UpdatePlan:
    """The plan of one update: what runs, what it makes, and the memory of the op that each run locks."""

    __slots__ = (
        "_made",
        "_outcomes",
        "compare",
        "decides",
        "flags",
        "loaded",
        "locks",
        "outputs",
        "ran",
        "rows",
        "subprogram",
        "targets",
        "tiles",
    )

    def __init__(
        self,
        subprogram: Subprogram,
        made: Sequence[tuple[int, int, int]],
        compare: int,
        loaded: LoadedPlan | None,
        locks: dict[Storage, bool],
        *,
        decides: ConditionalUpdate | None = None,
        tiles: TileMemory | None = None,
    ) -> None:
        """`made` has each target that the plan makes: its number in the whole program, its number here, and the cutoffs
        of which one must differ for that."""
        self.subprogram = subprogram
        self.compare = compare
        """The bits of the cutoffs whose tensors the plan compares."""
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = locks
        self.rows: UpdateRows | None = None
        """The rows by which the update is bound; None before its first run."""
        self.tiles = tiles
        """The memory of the tiles; None for a plan without lists."""
        self._made = made
        self.outputs = [(buffer, here) for buffer, here, _ in made]
        """The targets that the plan may make, with their numbers here."""
        self.targets = frozenset([buffer for buffer, _ in self.outputs])
        decided = () if decides is None else subprogram.outputs
        self.flags = frozenset([here for buffer, here in decided if buffer not in self.targets])
        """The numbers here of the flags by which the plan decides."""
        self.ran = len(subprogram.chosen) - compare.bit_count()
        """The number of instructions of the op that the last run has run."""
        self._outcomes: dict[int, tuple[int, int]] = {}
        """For each set of cutoffs that the plan may find to differ, if it decides: those compared, and how many
        instructions run."""
        if decides is not None:
            self._outcomes = {each: (decides.compared(each), decides.count(each)) for each in decides.outcomes()}
        self.decides = bool(self._outcomes)
        """True if the plan decides itself what depends on the cutoffs that it compares."""

    def outputs_of(self, differing: int) -> list[tuple[int, int]]:
        """Return the targets that a run has made which has found the tensors of these cutoffs to differ."""
        return [(buffer, here) for buffer, here, guard in self._made if runs(guard, differing)]

    def note(self, differing: int) -> int:
        """Note that a run of a plan which decides has found the tensors of these cutoffs to differ. Return the bits of
        those that it has compared."""
        compared, self.ran = self._outcomes[differing]
        return compared


@final
class UpdatePlans:
    """The plans of one stage, made when they are due. `on_plan` is called with each new one. With `keeps_memory` each
    may keep a little memory of its own between updates."""

    def __init__(
        self,
        staleness: Staleness,
        comparisons: CutoffComparisons,
        locks: dict[int, Storage],
        settings: Settings,
        on_plan: Callable[[Plan], None],
        keeps_memory: bool,
    ) -> None:
        self._staleness = staleness
        self._comparisons = comparisons
        self._locks = locks
        self._settings = settings
        self._on_plan = on_plan
        self._keeps_memory = keeps_memory
        self.kept: Recent[Hashable, UpdatePlan | str] = Recent(MOST_PLANS)
        """By what has changed (its bits, if that is all), and the lists of tiles: the plan, or the reason why there is
        none that decides."""
        self._verifier: UpdateVerifier | None = None
        """The checker of updates; None until the first proof."""

    def __len__(self) -> int:
        return len(self.kept)

    def with_staleness(self, staleness: Staleness) -> "UpdatePlans":
        """Return a holder without plans, for another analysis of the program."""
        return UpdatePlans(staleness, self._comparisons, self._locks, self._settings, self._on_plan, self._keeps_memory)

    def find(self, change: Change, tiles: ListedTiles | None = None) -> UpdatePlan:
        """Return the plan for a change, in which launches run these lists of tiles, written where they are read."""
        key: Hashable = change if change[1:] != _NOTHING_ELSE else change.mask
        if tiles is not None:
            key = change, tiles.prepared.update.chosen, tiles.prepared.lengths, tiles.copied
        plan = self.kept.use(key)
        if plan is None:
            plan = self.kept.keep(key, self._whole(change) if tiles is None else self._tiled(change, tiles))
        assert type(plan) is UpdatePlan
        if tiles is not None and plan.tiles is not None:
            prepared = tiles.prepared
            if prepared.unchanged not in plan.tiles.proved:
                self._verify(change, plan.tiles.whole, prepared.unchanged)
                plan.tiles.proved.add(prepared.unchanged)
            if prepared.array is not None:
                plan.tiles.put_lists(prepared.array)
        return plan

    def find_deciding(self, mask: int, cutoffs: int) -> UpdatePlan | str:
        """Return the plan for a change of the bits `mask` that decides these cutoffs itself, or the reason why there
        can be none."""
        change = Change(mask, compare=cutoffs)  # which waits for none of them, so no part of an update is like it
        return self.kept.use(change) or self.kept.keep(change, self._deciding(change))

    # ---- making

    def _whole(self, change: Change) -> UpdatePlan:
        """Make the plan for a change."""
        staleness = self._staleness
        chosen = staleness.instructions_for(staleness.stale_targets(change))
        update = self._comparisons.extract(chosen, change.compare, staleness.targets)
        self._verify(change, update)
        return self._plan(update, change)

    def _tiled(self, change: Change, tiles: ListedTiles) -> UpdatePlan:
        """Make the plan in which launches run lists of tiles of these lengths."""
        prepared, copied = tiles.prepared, tiles.copied
        whole = self._comparisons.extract(prepared.update.chosen, change.compare, self._staleness.targets)
        tiled = with_lists(whole, prepared.lengths, copied)
        return self._plan(tiled.subprogram, change, TileMemory(whole, tiled, prepared.written, copied))

    def _plan(self, update: Subprogram, change: Change, tiles: TileMemory | None = None) -> UpdatePlan:
        """Return the plan of an update that decides nothing."""
        targets = self._staleness.targets
        made = [(buffer, here, ALWAYS) for buffer, here in update.outputs if buffer in targets]
        return UpdatePlan(update, made, change.compare, self._load(update), self._locks_of(update), tiles=tiles)

    def _deciding(self, change: Change) -> UpdatePlan | str:
        """Make the plan for a change that decides cutoffs, or say why there can be none."""
        for name in self._staleness.program.devices:
            lacking = driver_of(find_device(name)).lacks_conditions
            if lacking:
                return lacking
        update = conditional_update(self._staleness, self._comparisons, change.mask, change.compare)
        if type(update) is str:
            return update
        assert type(update) is ConditionalUpdate
        if self._settings.verify:
            verify_conditional(self._checker(), self._comparisons, update)
        part = update.subprogram
        loaded = self._load(part, decides=True)
        return UpdatePlan(part, update.made, update.cutoffs, loaded, self._locks_of(part), decides=update)

    def _load(self, update: Subprogram, *, decides: bool = False) -> LoadedPlan | None:
        """Schedule an update and prepare its plan. Return None where nothing runs."""
        if not update.chosen:
            return None
        plan = plan_program(update.program, self._settings.verify)
        self._on_plan(plan)
        loaded = LoadedPlan(plan, self._settings)
        loaded.keep_for_updates(self._keeps_memory, decides=decides)
        return loaded

    def _locks_of(self, update: Subprogram) -> dict[Storage, bool]:
        """Return the memory of the op that an update reads."""
        return dict.fromkeys([self._locks[buffer] for buffer, _ in update.inputs if buffer in self._locks], False)

    def _verify(self, change: Change, update: Subprogram, unchanged: frozenset[int] = frozenset()) -> None:
        """Prove an update, if the settings ask for that; see `UpdateVerifier.verify`."""
        if self._settings.verify:
            self._checker().verify(change, update, unchanged)

    def _checker(self) -> UpdateVerifier:
        if self._verifier is None:
            self._verifier = UpdateVerifier(self._staleness, self._comparisons)
        return self._verifier
