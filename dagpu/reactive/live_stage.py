"""`LiveStage`, a traced stage between updates: it runs the plan of each change, and has the memory that stays."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, final

from dagpu.backends.protocol import Run
from dagpu.common.compiled import MISS
from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import Origin
from dagpu.handles import SharedTensor, live_state
from dagpu.handles.handle_state import Locks
from dagpu.handles.tensors import make_unwritable
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Shared
from dagpu.plans.plan import Plan
from dagpu.plans.program import HOST
from dagpu.reactive.claims import Change
from dagpu.reactive.leaf_values import LeafValues
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.stage_cutoffs import StageCutoffs, compared_buffer
from dagpu.reactive.staleness import Staleness, ValueNumbers
from dagpu.reactive.tile_updates import ChangedParts, StageTiles
from dagpu.reactive.update_plans import UpdatePlan, UpdatePlans
from dagpu.reactive.update_rows import UpdateRows, bind, rows_of
from dagpu.runtime.direct_call import OFTEN, DirectCall
from dagpu.runtime.loaded_plan import LEAVES, Settings
from dagpu.runtime.run_call import run_call
from dagpu.runtime.waits import Waits
from dagpu.tracing.call_guard import Reading
from dagpu.tracing.live_inputs import LiveInput
from dagpu.tracing.program_builder import SharedBuffer
from dagpu.tracing.signature import BoundArguments

AnyOp = DeviceOp[Any, Any, Any]

Contents: TypeAlias = dict[int, tuple[object, Any]]
"""Memory by the value number of its contents, with the handle that was handed out for it, or None."""


Lenders: TypeAlias = dict[int, tuple[TargetMemory, int]]
"""The targets of feeds by the value number of their contents: the memory that they are in, and their buffers."""


@final
class LiveStage:
    """A stage of an observed op: its program, its leaves, and the contents of its targets after the last update."""

    def __init__(
        self,
        staleness: Staleness,
        leaves: LeafValues,
        cutoffs: list[LiveInput],
        shared: list[SharedBuffer],
        memory: TargetMemory,
        settings: Settings,
        on_plan: Callable[[Plan], None],
        keeps_memory: bool,
    ) -> None:
        """With `keeps_memory` the plans of updates may keep a little memory of their own."""
        self.staleness = staleness
        self.on_devices = _targets_on_devices(staleness)
        """The targets in memory of devices, which an update makes where they are if nothing else reads them."""
        self.leaves = leaves
        self.cutoffs = StageCutoffs(staleness, leaves, memory, cutoffs)
        self.targets = memory
        self.lost = frozenset(staleness.targets)
        """The targets that do not hold what they should: none was made yet, or an update failed."""
        self.fresh: set[int] = set()
        """The targets that the present update has made already, or that one which failed has, for values of the sources
        that are still the present ones."""
        self.untaken: frozenset[int] = frozenset()
        """The outputs that no op has taken yet, though one of a later stage may."""
        self.shared = shared
        """The `shared()` nodes whose tensors this stage makes of sources."""
        self.common: list[SharedBuffer] = []
        """Those that another feed observes too. Their tensors are results."""
        self.shares_updates = False
        """True if one of these depends on a source, so that an update may make it for other feeds."""
        self.opened: list[Shared[Any]] = []
        """The nodes that another feed observes too, and that a later stage makes of what this one makes."""
        self._below: dict[frozenset[int], set[int]] = {}
        self._settings = settings
        comparisons = self.cutoffs.comparisons
        self.plans = UpdatePlans(staleness, comparisons, leaves.locks, settings, on_plan, keeps_memory)
        self.tiles = StageTiles(staleness, leaves, verify=settings.verify)
        self.written_bits = 0
        """The bits of the sources of which parts have been written: what launches in tiles need is kept for these."""

    def restage(self, staleness: Staleness, common: list[SharedBuffer]) -> None:
        """Go on with another analysis of the same program, which keeps other buffers, and in which the tensors of the
        nodes `common` are results. What was not kept before is lost."""
        before, targets = self.staleness.targets, staleness.targets
        self.staleness, self.common = staleness, common
        self.shares_updates = any(each.sources != () for each in common)
        self._below.clear()
        self.on_devices = _targets_on_devices(staleness)
        self.cutoffs.staleness = staleness
        self.plans = self.plans.with_staleness(staleness)
        self.tiles = StageTiles(staleness, self.leaves, verify=self._settings.verify)
        self.lost = (self.lost & targets) | (targets - before)
        self.fresh &= targets
        for buffer in before - targets:
            self.targets.drop(buffer)

    def below(self, buffers: frozenset[int]) -> set[int]:
        """Return the targets on which these depend, they included, and the other outputs of the kernels that make
        them."""
        found = self._below.get(buffers)
        if found is None:
            staleness = self.staleness
            makers = staleness.instructions_below(buffers)
            found = self._below[buffers] = {b for b in staleness.targets if staleness.last[b] in makers}
        return found

    def reuse(self, table: ValueNumbers, available: Contents) -> None:
        """Take over memory of an earlier trace for lost targets whose contents are the same by construction."""
        if not available or not self.lost:
            return
        numbers = self._numbers(table)
        for buffer in self.lost:
            found = available.get(numbers[buffer])
            if found is not None:
                self.targets.take_over(buffer, *found)
                self.lost -= {buffer}

    def take_from(self, wanted: Iterable[int], table: ValueNumbers, lenders: Lenders) -> set[int]:
        """Take over memory of other feeds whose contents are, by construction, those of these targets. Return the
        targets that were found."""
        numbers, found = self._numbers(table), set[int]()
        for buffer in wanted:
            lender = lenders.get(numbers[buffer])
            if lender is not None:
                targets, theirs = lender
                self.targets.take_over(buffer, *targets.lend(theirs))
                found.add(buffer)
        self.lost -= found
        return found

    def lenders(self, table: ValueNumbers, stale: int) -> Lenders:
        """Return the targets that are right although the bits `stale` have changed, by value number, and name what they
        hold: a later stage may read it. What a cutoff has not let through leaves the name of the tensor before, which
        an earlier trace may have read."""
        numbers, found, cutoffs = self._numbers(table), Lenders(), self.cutoffs
        cut_off = {compared_buffer(cut) for cut in cutoffs.inputs if cut.own & cutoffs.cut_off}
        for buffer in self.staleness.targets - self.lost:
            memory = self.targets.memory[buffer]
            is_stale = self.staleness.bits_of(buffer) & stale and buffer not in self.fresh
            if memory is not None and not is_stale:
                found[numbers[buffer]] = self.targets, buffer
                if buffer not in cut_off:
                    table.name(memory, numbers[buffer])
        return found

    def contents(self, table: ValueNumbers, stale: int) -> Contents:
        """Return the memory of the targets that are right although the bits `stale` have changed, by value number."""
        lenders = self.lenders(table, stale)
        return {number: (each.memory[b], each.handle_of(b)) for number, (each, b) in lenders.items()}

    def _numbers(self, table: ValueNumbers) -> dict[int, int]:
        """Return the value number of each buffer. A constant that was published has that of its memory, which is a leaf
        to others."""
        last, memory = self.staleness.program.accesses.last, self.targets.memory
        made = {last[one.buffer]: memory[one.buffer] for one in self.common if one.sources == ()}
        return table.of_program(self.staleness.program, self.leaves.identity, made)

    def take(self, buffer: int, tensor: SharedTensor[Any]) -> None:
        """Take over the memory of a tensor that another run has made for a target."""
        self.targets.take_over(buffer, live_state(tensor).storage.memory, tensor.clone())
        self.lost -= {buffer}

    # ---- updates

    def forget_fresh(self, bits: int) -> None:
        """Note that these bits have changed since the targets in `fresh` were made."""
        if self.fresh:
            self.fresh = {buffer for buffer in self.fresh if not self.staleness.bits_of(buffer) & bits}

    def made_for(self, mask: int) -> frozenset[int]:
        """Return the targets that an update which failed has made, and that need not be made although the bits `mask`
        have changed."""
        return frozenset([buffer for buffer in self.fresh if self.staleness.bits_of(buffer) & mask])

    async def run(self, change: Change, waits: Waits, origin: Origin, parts: ChangedParts | None = None) -> int:
        """Make the targets that a change makes stale, and return the number of instructions that ran.

        `parts` are the parts of sources that have changed, where that is known: then launches run the tiles that see
        them. If it fails or is cancelled, what it has not made counts as lost.
        """
        change = self._leave_untaken(change)
        update = self.plans.find(change, self.tiles.find(change, parts, self.targets))
        # Without cutoffs `run_whole` has the direct calls, which build the value too.
        await self.run_whole(update, _nothing, waits, origin, directly=bool(self.cutoffs.inputs))
        self.cutoffs.find_differing(update.compare)
        return update.ran

    def _leave_untaken(self, change: Change) -> Change:
        """Return the change that leaves out what no op has taken, where this saves all that would run for it: then it
        costs no more later, if it is taken."""
        staleness = self.staleness
        stale = staleness.stale_targets(change)
        untaken = stale & self.untaken & change.lost
        if not untaken:
            return change
        others = frozenset(staleness.instructions_for(stale - untaken))
        left = frozenset([each for each in untaken if others.isdisjoint(staleness.instructions_for({each}))])
        return change._replace(left=left)

    def known_whole(self, mask: int) -> UpdatePlan | None:
        """Return the plan for all of the update for a change of these bits, in whole sources, if there is one already
        and the update may run it."""
        if self._is_in_parts():
            return None
        found = self.plans.kept.use(mask)
        return found if type(found) is UpdatePlan else None

    def repeats(self, update: UpdatePlan) -> bool:
        """Return true if an update that has just run is all of any further update for the same change."""
        loaded = update.loaded
        is_often = self._settings.direct and loaded is not None and loaded.runs >= OFTEN
        return is_often and not update.decides and update.tiles is None and not (update.compare or self._is_in_parts())

    def _is_in_parts(self) -> bool:
        """Return true if the next update may not be the whole plan for its change."""
        return bool(self.cutoffs.inputs or self.lost or self.fresh or self.shares_updates or self.tiles.latest)

    def find_whole(self, mask: int, parts: ChangedParts | None) -> UpdatePlan | None:
        """Return the plan for all of the update for a change of these bits; None if it must be run in parts."""
        if self.cutoffs.inputs:
            return self._find_deciding(mask, parts)
        if self.lost or self.fresh or self.shares_updates:
            return None
        change = Change(mask)
        return self.plans.find(change, self.tiles.find(change, parts, self.targets))

    def _find_deciding(self, mask: int, parts: ChangedParts | None) -> UpdatePlan | None:
        """Return the plan that decides the cutoffs of an update itself; None if it must be run in parts."""
        cutoffs = self.cutoffs
        wait = cutoffs.waiting_bits(cutoffs.inputs, mask, self.lost)
        if not wait:
            return None
        if self.lost or self.fresh:
            cutoffs.in_parts = "it goes on with an update that failed"
        elif self.shares_updates:
            cutoffs.in_parts = "another feed shares what this one computes"
        elif parts:
            cutoffs.in_parts = "a part of a source was written"
        elif not cutoffs.are_alike(wait):
            cutoffs.in_parts = "the tensor has another layout than the last one, or no elements"
        else:
            found = self.plans.find_deciding(mask, wait)
            if type(found) is UpdatePlan:
                cutoffs.in_parts = ""
                return found
            cutoffs.in_parts = str(found)
        return None

    async def run_whole(
        self, update: UpdatePlan, build: Callable[[], Any], waits: Waits, origin: Origin, *, directly: bool = True
    ) -> Any:
        """Run an update, take over what it makes, and return what `build` returns. Return `MISS`, with nothing run, if
        it decides cutoffs and no graph can be launched.

        A plan that has run often has a direct call. `run_call` makes the first runs, and those that it refuses.
        """
        settings, loaded = self._settings, update.loaded
        if loaded is None:
            return build()
        if directly and settings.direct and loaded.runs >= OFTEN:
            direct: DirectCall | None = loaded.direct.get(LEAVES)
            if direct is None:
                direct = loaded.direct[LEAVES] = self._direct_call(update, build)
            if waits.polls_at_submit:
                value = direct.now(loaded, None, None, settings, origin)
            else:
                value = await direct.in_task(loaded, None, None, settings, origin)
            if value is not MISS:
                return value
        memory = self._bind(update)
        locks = Locks(origin) if update.locks else None
        submitted: list[Run] = []
        try:
            bound = BoundArguments(memory, update.locks, (), ())
            if not await run_call(loaded, bound, locks, settings, waits, on_submit=submitted.append):
                self.cutoffs.in_parts = loaded.prepared.lacks_graph or "no graph can be launched now"
                return MISS
        except BaseException:
            self.end_failed(update, submitted[0] if submitted else None, memory)
            raise
        finally:
            if locks is not None:
                locks.release()
        self._take_over(update, memory)
        return build()

    def _direct_call(self, update: UpdatePlan, build: Callable[[], Any]) -> DirectCall:
        """Return the direct call of an update: what `_bind`, `run_call`, `_take_over` and `build` do.

        If the update is one launch of a graph that decides nothing, the last two are done while the device works. Then
        all that it makes is in memory of the device, so `build` calls no closure. After a failure the targets that the
        device has not completed are lost all the same.
        """
        locks = [storage.lock for storage in update.locks]

        def read(_arguments: object, _named: object) -> Reading | None:
            try:
                memory = self._bind(update)
            except KernelArgumentError:
                return None  # the general way raises it, and loses no target
            return memory, [], [], locks, []

        def publish(memory: list[Any], _leaves: object) -> Any:
            self._take_over(update, memory)
            return build()

        return DirectCall(read, publish, on_failure=partial(self.end_failed, update))

    def _take_over(self, update: UpdatePlan, memory: Sequence[object], spoilt: frozenset[int] = frozenset()) -> None:
        """Take over what an update has made in this memory, and decide the cutoffs that it decides. What it has left in
        the buffers `spoilt`, by its own numbers, is lost."""
        outputs, differing = update.outputs, 0
        if update.decides:
            differing = self.cutoffs.find_differing(update.compare)
            outputs = update.outputs_of(differing)
        on_devices = self.on_devices
        for buffer, here in outputs:
            if here not in spoilt:
                held: Any = memory[here]
                self.targets.replace(buffer, held if buffer in on_devices else make_unwritable(held))
        if update.decides:
            self.cutoffs.decide_all(update.note(differing))
        made = frozenset([buffer for buffer, _ in outputs]) if update.decides else update.targets
        lost = frozenset([buffer for buffer, here in outputs if here in spoilt]) if spoilt else spoilt
        self.lost = (self.lost - made) | lost
        self.fresh = (self.fresh | made) - lost

    def end_failed(self, update: UpdatePlan, run: Run | None, memory: Sequence[object]) -> None:
        """Take over what an update whose run has failed or was cancelled has completed in this memory, and count its
        other targets as lost. `run` is None if nothing has run."""
        if run is None:
            return
        spoilt = run.spoilt() if run.done() else None
        if spoilt is not None and spoilt.isdisjoint(update.flags):
            self._take_over(update, memory, spoilt)
        else:
            self.lost |= update.targets
            self.fresh -= update.targets

    def rows_of(self, update: UpdatePlan) -> UpdateRows:
        """Return the rows by which an update is bound."""
        if update.rows is None:
            targets = self.staleness.last
            update.rows = rows_of(update.subprogram, update.outputs, self.leaves, targets, self.on_devices)
        return update.rows

    def _bind(self, update: UpdatePlan) -> list[object]:
        """Bind the buffers of an update: by its rows, and what the cutoffs that it decides let through last."""
        memory = bind(self.rows_of(update), self.targets)
        if update.compare:
            self.cutoffs.bind(update.compare, update.subprogram, memory)
        if update.tiles is not None:
            update.tiles.bind(memory, self.targets)
        return memory


def _targets_on_devices(staleness: Staleness) -> set[int]:
    """Return the targets in memory of devices."""
    return {buffer for buffer in staleness.targets if staleness.program.buffers[buffer].device != HOST}


def _nothing() -> None:
    """Build no value: the parts of an update with cutoffs leave that to its end."""
