"""`LiveStage`, a traced stage between updates: its plans by the set of what has changed, and the memory that stays."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

from dagpu.common.origin import Origin
from dagpu.handles.handle_trees import make_unwritable
from dagpu.handles.storage import Locks, Storage
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import HOST
from dagpu.lowering.reuse.bound_arguments import BoundArguments
from dagpu.lowering.updates.leaf_values import LeafValues
from dagpu.lowering.updates.live_inputs import LiveInput
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram, extract
from dagpu.lowering.updates.value_numbers import ValueNumbers
from dagpu.lowering.verify.verify_update import verify_update
from dagpu.reactive.tiled_plans import ChangedParts, TiledPlan, TiledPlans
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.run_call import run_call
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.waiting import Waits

MOST_PLANS: Final = 32
"""The most sets of changed sources whose plans a feed keeps, those used last."""

_GRAPH_FROM: Final = 2
"""The use of one plan, counted from 1, from which on it is launched as one CUDA graph."""


Contents: TypeAlias = dict[int, tuple[object, Any]]
"""Memory by the value number of its contents, with the handle that was handed out for it, or None."""


@final
class _Update:
    """The plan of one change: what runs, and how its buffers are bound."""

    __slots__ = ("loaded", "locks", "subprogram")

    def __init__(self, subprogram: Subprogram, loaded: LoadedPlan | None, locks: list[Storage]) -> None:
        self.subprogram = subprogram
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = locks


@final
class LiveStage:
    """A stage of an observed op: its program, its leaves, and the contents of its targets after the last update."""

    def __init__(
        self,
        staleness: Staleness,
        leaves: LeafValues,
        cutoffs: list[LiveInput],
        memory: TargetMemory,
        settings: Settings,
        on_plan: Callable[[Plan], None],
    ) -> None:
        self.staleness = staleness
        self.leaves = leaves
        self.cutoffs = cutoffs
        """The cutoffs that compare contents of this stage's buffers."""
        self.targets = memory
        self.lost = frozenset(staleness.targets)
        """The targets that do not hold what they should: none was made yet, or an update failed."""
        self._settings = settings
        self._on_plan = on_plan
        self._updates: OrderedDict[Change, _Update] = OrderedDict()
        self.tiles = TiledPlans(staleness, leaves, settings, on_plan)
        """The plans in which launches run lists of tiles."""
        self.written_bits = 0
        """The bits of the sources of which parts have been written: what launches in tiles need is kept for these."""

    def restage(self, staleness: Staleness) -> None:
        """Keep other buffers of the same program from now on. What was not kept before is lost."""
        before, self.staleness = self.staleness, staleness
        self.lost = (self.lost | (staleness.targets - before.targets)) & staleness.targets
        for buffer in before.targets - staleness.targets:
            self.targets.memory[buffer] = None
        self._updates.clear()
        self.tiles = TiledPlans(staleness, self.leaves, self._settings, self._on_plan)

    def reuse(self, table: ValueNumbers, available: Contents) -> None:
        """Take over memory of an earlier trace for lost targets whose contents are the same by construction."""
        if not available or not self.lost:
            return
        numbers = table.of_program(self.staleness, self.leaves.identity)
        for buffer in self.lost:
            found = available.get(numbers[self.staleness.last[buffer]])
            if found is not None:
                self.targets.take_over(buffer, *found)
                self.lost -= {buffer}

    def contents(self, table: ValueNumbers, stale: int) -> Contents:
        """Return the memory of the targets that are right although the bits `stale` have changed, by value number."""
        numbers, memory = table.of_program(self.staleness, self.leaves.identity), self.targets.memory
        return {
            numbers[self.staleness.last[buffer]]: (memory[buffer], self.targets.handle_of(buffer))
            for buffer in self.staleness.targets - self.lost
            if not self.staleness.bits_of(buffer) & stale and memory[buffer] is not None
        }

    def tensor(self, made: LiveInput) -> Any:
        """Return a handle to what the buffer of a cutoff on the device holds now."""
        assert made.buffer is not None
        assert made.storage is not None
        assert made.layout is not None
        if made.buffer not in self.staleness.last:
            return self.leaves.tensor(made.buffer)
        storage = made.storage
        return self.targets.shared(made.buffer, storage.device, storage.nbytes, made.layout, made.origin)

    async def run(self, change: Change, waits: Waits, origin: Origin, parts: ChangedParts | None = None) -> int:
        """Make the targets that a change makes stale, and return the number of instructions that ran.

        `parts` are the parts of sources that have changed, where that is known: then launches run the tiles that see
        them. If it fails or is cancelled, everything that it was to make counts as lost.
        """
        tiled = self.tiles.find(change, parts or {}, self.targets)
        update: _Update | TiledPlan = self._find(change) if tiled is None else tiled[0]
        chosen = update.subprogram.chosen
        if update.loaded is None:
            self.lost = change.lost - {b for b, _ in update.subprogram.outputs}
            return 0
        outputs = update.subprogram.outputs
        bound = self._bind(update)
        if tiled is not None:
            for here, memory_here in tiled[1].items():
                bound.memory[here] = memory_here
        locks = Locks(origin) if bound.locks else None
        try:
            await run_call(update.loaded, bound, locks, self._settings, waits)
        except BaseException:
            self.lost |= {buffer for buffer, _ in outputs}
            raise
        finally:
            if locks is not None:
                locks.release()
        buffers, memory = self.staleness.program.buffers, self.targets.memory
        for buffer, here in outputs:
            made = bound.memory[here]
            memory[buffer] = make_unwritable(made) if buffers[buffer].device == HOST else made
        self.lost -= {buffer for buffer, _ in outputs}
        return len(chosen)

    def _bind(self, update: "_Update | TiledPlan") -> BoundArguments:
        """Bind the buffers of an update: leaves, kept memory that it reads, and kept memory that it writes in place."""
        memory: list[object] = [None] * len(update.subprogram.program.buffers)
        kept, last, own = self.staleness.kept, self.staleness.last, self.targets.memory
        for buffer, here in update.subprogram.inputs:
            memory[here] = own[buffer] if buffer in last else self.leaves.value(buffer)
        for buffer, here in update.subprogram.outputs:
            if buffer in kept and self.staleness.program.buffers[buffer].device != HOST:
                memory[here] = own[buffer]
        return BoundArguments(memory, dict.fromkeys(update.locks, False), (), ())

    def _find(self, change: Change) -> _Update:
        """Return the plan for a change, and make it if there is none."""
        found = self._updates.get(change)
        if found is not None:
            self._updates.move_to_end(change)
            return found
        chosen = self.staleness.instructions_for(self.staleness.stale_targets(change))
        subprogram = extract(self.staleness.program, chosen, self.staleness.targets)
        if self._settings.verify:
            verify_update(self.staleness, change, subprogram)
        loaded = None
        if chosen:
            plan = plan_program(subprogram.program, self._settings.verify)
            self._on_plan(plan)
            loaded = LoadedPlan(plan, self._settings)
            loaded.keep(None, _GRAPH_FROM)
        locks = [self.leaves.locks[b] for b, _ in subprogram.inputs if b in self.leaves.locks]
        found = self._updates[change] = _Update(subprogram, loaded, locks)
        while len(self._updates) > MOST_PLANS:
            self._updates.popitem(last=False)
        return found
