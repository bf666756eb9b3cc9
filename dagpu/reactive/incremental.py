"""`IncrementalRun`: an op over sources, run again and again, each time only what depends on what has changed.

The op is traced once, with stand-ins for its sources. An update looks up the plan for the set of changed sources, binds
the leaves that it reads, and runs it like any plan. The op is traced again where a closure has read a source's value,
where a value has another type or shape, and, if it has several stages, in each update; then memory whose contents are
the same by construction stays in use, so the device still runs only what has changed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

from dagpu.backends.protocol import Run
from dagpu.common.compiled import MISS
from dagpu.common.errors import BorrowError, KernelArgumentError, MovedError, PlanError
from dagpu.common.places import Origin, StartedAt, describe
from dagpu.handles import SharedTensor, live_state
from dagpu.handles.handle_state import Storage
from dagpu.ops.array_parts import Box
from dagpu.ops.base import DeviceOp
from dagpu.ops.drawing import name_of
from dagpu.ops.source_op import Source
from dagpu.ops.versions import PLAIN, Snapshot, Version
from dagpu.plans.program import Instruction, Launch, Program, label
from dagpu.reactive.claims import Change
from dagpu.reactive.compiled_updates import compiled_update, compiled_updates
from dagpu.reactive.host_layer import HostLayer, NewTraceNeeded
from dagpu.reactive.leaf_values import LeafValues, written_from_outside
from dagpu.reactive.live_result import Build, Made, TargetMemory, result_builder
from dagpu.reactive.live_stage import Contents, Lenders, LiveStage
from dagpu.reactive.shared_work import SharedWork
from dagpu.reactive.stage_cutoffs import compared_buffer
from dagpu.reactive.staleness import Staleness, ValueNumbers, fit_into
from dagpu.reactive.tile_updates import ChangedParts, TileUpdates
from dagpu.reactive.update_plans import UpdatePlan
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.execute import call_on_plan, next_stage
from dagpu.runtime.loaded_plan import Settings
from dagpu.runtime.waits import Waits
from dagpu.tracing.compare_values import same_kind
from dagpu.tracing.live_inputs import Bound, LastCall, LetThrough, LiveInput, LiveInputs
from dagpu.tracing.program_builder import ProgramBuilder, SharedBuffer
from dagpu.tracing.run_memo import LeftOut, ends_on_host
from dagpu.tracing.tracer import Tracer

# ---- makes the stages: what each keeps, and what it shares with other feeds


AnyOp = DeviceOp[Any, Any, Any]


def outputs_of(instruction: Instruction) -> list[int]:
    """Return the buffers that an instruction writes, but for the memory that its library works in."""
    scratch = instruction.scratch if type(instruction) is Launch else None
    return [buffer for buffer in instruction.writes if scratch is None or buffer != scratch.buffer]


@final
class StageMaker:
    """Makes the stages of one observed op. `shared` has the nodes that other feeds observe too; None to share none."""

    def __init__(
        self, op: AnyOp, settings: Settings, memory: int | None, origin: Origin, shared: SharedWork | None
    ) -> None:
        self._op = op
        self._settings = settings
        self._limit = memory
        self._origin = origin
        self._shared = shared

    def new_stage(
        self, tracer: Tracer, live: LiveInputs, program: Program, before: list[LiveStage], made: Mapping[Storage, int]
    ) -> LiveStage:
        """Return the stage that was traced last, before its first run. `made` has the bits of the memory that stages
        `before` have made."""
        builder, where = tracer.builder, self._origin
        self._check_borrows(builder)
        owned = written_from_outside(builder, tracer.taken_handles())
        if owned is not None:
            raise MovedError(
                f"the op observed at {describe(where)} writes over {owned[1]!r}, made at {describe(owned[1].origin)}, "
                "which moved into it: its second update would find it written. Share it, t.share(), and begin with a "
                "copy at each update, value(t).then(dup), or begin with zeros."
            )
        for state in builder.states:
            raise KernelArgumentError(
                f"the op observed at {describe(where)} launches {state.shares}: an update could not find it as a run "
                "from scratch does. Pass the variable as an output, which begins with zeros at each update."
            )
        known = {id(cut) for stage in before for cut in stage.cutoffs.inputs}
        cutoffs = [made for made in live.inputs if made.buffer is not None and id(made) not in known]
        # What closures were given may depend on all that was known before this stage, and not on its own cutoffs. Later
        # stages find more: on a bit of theirs nothing here depends.
        earlier = live.known_bits() & ~sum(cut.own for cut in cutoffs) if before else 0
        leaves = LeafValues(builder, live, earlier, made)
        shared, live.shared = live.shared, []
        staleness = self._analyse(program, leaves.bits, [compared_buffer(cut) for cut in cutoffs])
        memory = TargetMemory(len(program.buffers))
        on_plan = partial(call_on_plan, self._settings, self._op)
        stage = LiveStage(staleness, leaves, cutoffs, shared, memory, self._settings, on_plan, self._limit is None)
        if self._shared is not None:
            live.share_built()
            stage.opened = list(live.open)
            self.share(stage, self._shared)
        return stage

    def _analyse(
        self, program: Program, bits: dict[int, int], results: list[int], also_kept: frozenset[int] = frozenset()
    ) -> Staleness:
        """Return the analysis of a stage in which these buffers are results too, within the limit of memory."""
        staleness = Staleness(program, bits, results, (), also_kept)
        return staleness if self._limit is None else fit_into(staleness, self._limit, self._origin)

    def share(self, stage: LiveStage, shared: SharedWork) -> None:
        """Share the nodes of a stage that other feeds observe too. A feed with a limit of memory shares what fits."""
        common = [each for each in shared.common(stage.shared) if each.buffer in stage.staleness.last]
        if list(map(id, common)) != list(map(id, stage.common)):
            try:
                self._restage(stage, common, stage.staleness.also_kept)
            except PlanError:
                self._restage(stage, [], stage.staleness.also_kept)

    def keep_for_tiles(self, stage: LiveStage, bits: int) -> None:
        """Keep from now on what launches in tiles need after changes of parts of these sources."""
        stage.written_bits |= bits
        kept = TileUpdates(stage.staleness).kept_for(stage.leaves.bits_of_sources(), stage.written_bits)
        self._restage(stage, stage.common, kept)

    def _restage(self, stage: LiveStage, common: list[SharedBuffer], also_kept: frozenset[int]) -> None:
        """Analyse a stage again, with other nodes that are shared, or other buffers that are kept."""
        old = stage.staleness
        results = [*[compared_buffer(cut) for cut in stage.cutoffs.inputs], *[each.buffer for each in common]]
        for index in sorted(old.instructions_below([each.buffer for each in common])):
            outputs = [buffer for buffer in outputs_of(old.program.instructions[index]) if old.last[buffer] == index]
            if len(outputs) > 1:  # another feed may read the other output of this kernel alone
                results += outputs
        stage.restage(self._analyse(old.program, old.bits, results, also_kept), common)

    def _check_borrows(self, builder: ProgramBuilder) -> None:
        """Raise a `BorrowError` for an op that holds a borrow, or launches a graph: a feed outlives both."""
        if builder.graphs:
            raise BorrowError(
                f"observe at {describe(self._origin)} of an op that launches {builder.graphs[0]!r}, which works on "
                "memory that it borrows. Observe the op itself: its updates are launched as graphs."
            )
        for state, lender in builder.lent.items():
            if state.lender is not None:
                raise BorrowError(
                    f"observe at {describe(self._origin)} of an op that holds {state!r}, borrowed at "
                    f"{describe(state.origin)}: the feed may outlive the loan. share() the tensor and pass that."
                )
            del lender


# ---- explained stages
#
# What `feed.explain()` says of an observed op: what runs again for each source, in which tiles, and what is kept.

_SHOWN: Final = (int, float, str)
"""Values of these types are shown beside the places of their sources."""
_MOST_SHOWN: Final = 12
"""The most instructions that `explain` names for one source."""


def explain_stages(live: LiveInputs, stages: Sequence[LiveStage], kept_bytes: int, *, traces: bool) -> list[str]:
    """Describe the stages of an observed op, one fact a line. With `traces` each update traces the op again."""
    instructions = sum(len(stage.staleness.program.instructions) for stage in stages)
    lines = [_explain_bit(live, stages, number, instructions) for number in range(len(live.bit_names))]
    if traces:
        lines.append(f"{len(stages)} stages: a closure waits for host data, so each update traces the op again")
    lines += _explain_tiles(stages)
    total = sum(buffer.nbytes for stage in stages for buffer in stage.staleness.program.buffers)
    lines.append(f"kept {kept_bytes:,} bytes of {total:,}")
    return lines


def _explain_bit(live: LiveInputs, stages: Sequence[LiveStage], number: int, total: int) -> str:
    """Describe what runs again for the source or the cutoff of this bit, of a total number of instructions."""
    node, bit = live.bit_names[number], 1 << number
    again: list[str] = []
    for stage in stages:
        stale = stage.staleness
        again += [label(stale.program.instructions[i]) for i in stale.instructions_for_mask(bit)]
    what = name_of(node) if type(node) is Source else "cutoff, if its value differs,"
    shown = ", ".join(again[:_MOST_SHOWN]) + (", ..." if len(again) > _MOST_SHOWN else "")
    why = "; a closure reads it, so the op is traced again" if bit & live.structural_bits() else ""
    value = f", now {node.get()!r}" if type(node) is Source and issubclass(node.kind, _SHOWN) else ""
    for stage in stages:
        if bit & stage.cutoffs.bits:
            last = "was cut off" if bit & stage.cutoffs.cut_off else "was let through"
            why += f"; {stage.cutoffs.describe()}, and the last tensor {last}"
    where = f"{what} at {describe(node.origin)}{value}"
    return f"{where}: {len(again)} of {total} instructions{f': {shown}' if again else ''}{why}"


def _explain_tiles(stages: Sequence[LiveStage]) -> list[str]:
    """Describe which tiles the last update ran, and from how many on it runs all of them."""
    counts = [(stage, count) for stage in stages for count in stage.tiles.counts if count.tiles]
    if not counts:
        return []
    names = [label(stage.staleness.program.instructions[count.instruction]) for stage, count in counts]
    ran, least = [], []
    for name, (stage, count) in list(zip(names, counts, strict=True))[:_MOST_SHOWN]:
        ran.append(f"{name} {count.tiles:,} of {count.total:,}")
        least.append(f"{name} {stage.tiles.whole_from(count.instruction):,}")
    more = ", ..." if len(counts) > _MOST_SHOWN else ""
    return [
        f"from this number of dirty tiles on, a launch runs all of them and has no list: {', '.join(least)}{more}",
        f"the last update ran tiles: {', '.join(ran)} tiles{more}",
    ]


# ---- the run


_MOST_FAILED: Final = 2
"""The most traces in a row that have failed and of which something is kept."""


@final
class IncrementalRun:
    """The state of one observed op between updates. One task at a time calls `update`."""

    def __init__(
        self, op: AnyOp, settings: Settings, memory: int | None, origin: Origin, shared: SharedWork | None = None
    ) -> None:
        self._op = op
        self._shared = shared
        """The nodes that other feeds observe too; None for a run that shares nothing."""
        self._shared_at = -1
        """The number of changes of what is shared that this run has followed."""
        self._settings = settings
        self._maker = StageMaker(op, settings, memory, origin, shared)
        self._origin = origin
        self._live: LiveInputs | None = None
        self.cutoffs: LetThrough = MappingProxyType({})
        """What the cutoffs of another run of the op have let through last, for the first trace."""
        self._stages: list[LiveStage] = []
        self._held: list[Any] = []
        """The handles of the op that updates read, and that must not have moved."""
        self._build: Build | None = None
        """Builds the result; None if the op has several stages, and is traced in each update."""
        self._layer: HostLayer | None = None
        """The compiled host layer of the trace, from its second update on."""
        self._host_stale = 0
        """The bits that have changed since the host values of the trace were computed."""
        self._host_newer = 0
        """Those of them that have changed since that was tried last."""
        self._inputs: dict[Source[Any], LiveInput] = {}
        """The inputs of the trace that are sources."""
        self._failed: list[tuple[LiveInputs, list[LiveStage]]] = []
        """What traces that have failed since the last value have made good: their closures' values, and their
        stages."""
        self._stale = 0
        """The bits that have changed since the targets were made."""
        self._parts: dict[int, tuple[Box, ...] | None] = {}
        """The parts of sources that have changed since then, by the sources' bits; None for everything."""
        self.sources: tuple[Source[Any], ...] = ()
        """The sources that the last trace has read, also of one that failed."""
        self.launched = 0
        """The number of instructions that have run."""
        self.reused = 0
        """The number of instructions that did not have to run again."""
        self.kept_bytes = 0
        """The bytes of device memory that stay between updates."""
        self._repeated: Any = None
        """The updates of the trace that the compiled reader makes; None before the first."""
        self.repeated: Any = None
        """The same, if the next update may be one of these; else None."""
        if shared is not None:
            shared.lenders = self._lenders  # the feeds of other threads ask it from here on

    def explain(self) -> list[str]:
        """Describe which instructions run again for each source, and what is kept, one a line."""
        if self._live is None:
            return ["nothing has run yet"]
        return explain_stages(self._live, self._stages, self.kept_bytes, traces=self._build is None)

    async def update(self, snapshot: Snapshot, waits: Waits, newer: Mapping[Source[Any], Version] | None = None) -> Any:
        """Bring everything up to date with a snapshot, and return the op's value.

        If it fails or is cancelled, the next update makes what it has not made. `newer` has the
        versions of all sources in the snapshot that may differ from those of the last update; None for any.
        """
        shared, live = self._shared, self._live
        self.repeated = None
        if shared is not None:
            shared.begin()
        try:
            if live is None or self._build is None or not self._read_inputs(live, snapshot, newer):
                with StartedAt(self._origin):
                    return await self._trace(snapshot, waits)
            for handle in self._held:
                live_state(handle)  # raises a `MovedError` if it has moved since the trace
            stage = self._stages[0]
            parts = self._changed_parts() if self._parts else None
            whole = None if parts else stage.known_whole(self._stale)
            if whole is None:
                with StartedAt(self._origin):
                    whole = stage.find_whole(self._stale, parts)
            if whole is not None:
                value = await stage.run_whole(whole, self._build, waits, self._origin)
                if value is not MISS:
                    self._count(stage, whole.ran)
                    mask = self._stale
                    self._end_update()
                    self._repeat(whole, mask)
                    return value
            with StartedAt(self._origin):
                self._count(stage, await self._run_stage(stage, self._stale, snapshot, waits, parts=parts))
            self._end_update()
            return self._build()
        finally:
            if shared is not None:
                shared.end()

    # ---- updates by the compiled reader

    def _repeat(self, update: UpdatePlan, mask: int) -> None:
        """Let the compiled reader make further updates like this one, which a change of these bits has caused."""
        stage, build = self._stages[0], self._build
        if build is None or self._layer is None or self._layer.computes or not stage.repeats(update):
            return
        repeated = self._repeated
        if repeated is None:
            repeated = compiled_updates(list(self._inputs.items()), self._held, self._shared, stage, self._origin)
        if repeated is not None and mask not in repeated:
            made = compiled_update(stage, update, list(self._inputs.values()), mask, build)
            if made is not None:
                repeated.add(mask, made, stage.plans.kept)
        self._repeated = self.repeated = repeated

    def end_failed(self, mask: int, update: UpdatePlan, run: Run, memory: list[Any]) -> None:
        """Note that an update by the compiled reader has failed, or was cancelled. Its run is over. A feed that was
        closed meanwhile keeps nothing, so it has no stage."""
        self.repeated = None
        self._stale |= mask
        for stage in self._stages[:1]:
            stage.end_failed(update, run, memory)
        if self._shared is not None:
            self._shared.end()

    # ---- inputs

    def _read_inputs(self, live: LiveInputs, snapshot: Snapshot, newer: Mapping[Source[Any], Version] | None) -> bool:
        """Read the sources of a snapshot, and compute again the host values that depend on those that have changed.

        Return false if the op must be traced again: a closure that built it has read what has changed, or that has
        another type or shape.
        """
        shared = self._shared
        if shared is not None and shared.observed.changes != self._shared_at:
            self._follow_sharing(shared)
        fits, changed = self._mark_changed(snapshot, newer)
        if not fits or (live.reads and self._stale & live.structural_bits()):
            return False
        for made, version in changed:
            made.version, made.value = version, version.value
        if self._layer is None:
            self._layer = HostLayer(live, self._host_stale, self._shared)
        since, self._host_newer = self._host_newer, 0
        if self._layer.computes:
            try:
                self._layer.refresh(since, self._mark)
            except NewTraceNeeded:
                return False
        self._host_stale = 0
        return not (live.reads and self._stale & live.structural_bits())

    def _mark(self, bits: int) -> None:
        """Note that the sources of these bits have changed, or what cutoffs of these bits let through."""
        self._stale |= bits
        self._host_stale |= bits
        for stage in self._stages:
            if stage.fresh:
                stage.forget_fresh(bits)

    def _end_update(self) -> None:
        """Note that all targets are those of the present values."""
        self._stale = self._host_stale = self._host_newer = 0
        self._parts.clear()
        for stage in self._stages:
            stage.fresh.clear()

    def _mark_changed(
        self, snapshot: Snapshot, newer: Mapping[Source[Any], Version] | None = None
    ) -> tuple[bool, list[tuple[LiveInput, Version]]]:
        """Add the bits of the sources that differ from the trace's values. Return false if one needs a new trace, and
        the inputs that differ with their versions in the snapshot. Of the sources in `newer` alone, unless it is
        None."""
        fits, changed, inputs, bits = True, [], self._inputs, 0
        if newer is None:
            newer = {node: node.cell.history.at(snapshot) for node in inputs}
        for node, version in newer.items():
            made = inputs[node]
            before = made.version
            if version is before:
                continue
            assert before is not None
            if version.parts is not None or self._parts:
                boxes = version.parts_since(before.revision)
                if boxes is not None or made.own in self._parts:
                    self._note_parts(made.own, boxes)
            bits |= made.own
            kind = type(version.value)
            fits = fits and ((kind in PLAIN and kind is type(made.value)) or same_kind(made.value, version.value))
            changed.append((made, version))
        self._host_newer |= bits
        self._mark(bits)
        return fits, changed

    def _note_parts(self, bit: int, boxes: tuple[Box, ...] | None) -> None:
        """Add the parts of a source that have changed, to those that an update which failed has not made."""
        earlier = self._parts.get(bit) if bit in self._parts or self._stale & bit else ()
        self._parts[bit] = None if boxes is None or earlier is None else (*earlier, *boxes)

    def _changed_parts(self) -> ChangedParts:
        """Return the parts of sources that have changed, and keep from now on what launches in tiles need."""
        parts = {bit: boxes for bit, boxes in self._parts.items() if boxes is not None}
        stage, bits = self._stages[0], sum(parts)
        if bits & ~stage.written_bits:
            self._repeated = None
            self._maker.keep_for_tiles(stage, bits)
            self._count_kept()
        return parts

    def _count_kept(self) -> None:
        """Set `kept_bytes` for the present stages."""
        self.kept_bytes = sum([stage.staleness.kept_bytes for stage in self._stages])

    # ---- the device

    async def _run_stage(
        self,
        stage: LiveStage,
        mask: int,
        snapshot: Snapshot,
        waits: Waits,
        reuse: "_Reuse | None" = None,
        parts: ChangedParts | None = None,
    ) -> int:
        """Make the targets of a stage, and return the number of instructions that ran. What comes after cutoffs that
        are not decided is left for a later part."""
        ran, before = 0, 0
        cutoffs = stage.cutoffs
        undecided = list(cutoffs.inputs)
        leftover = frozenset(stage.fresh)
        while True:
            if reuse is not None:
                stage.reuse(*reuse)
            wait = cutoffs.waiting_bits(undecided, mask, stage.lost)
            ready = cutoffs.ready(undecided, wait)
            given = leftover & stage.made_for(mask) if leftover else leftover
            change = Change(mask, wait, before, stage.lost, given)
            compare = sum(cut.own for cut in ready if cutoffs.compares(cut, change))
            change = change._replace(compare=compare)
            if (stage.common or stage.opened) and self._shared is not None:
                table = ValueNumbers() if reuse is None else reuse[0]
                ran += await self._shared.run(stage, table, change, snapshot, waits, self._origin, parts)
            else:
                ran += await stage.run(change, waits, self._origin, parts)
            if not wait:
                break
            for cut in ready:
                if cutoffs.decide(cut, compare):
                    mask |= cut.own
                    self._stale |= cut.own
                    stage.forget_fresh(cut.own)
                undecided.remove(cut)
            before = wait
        return ran

    def _count(self, stage: LiveStage, ran: int) -> None:
        """Count the instructions of an update that ran, and those that did not have to."""
        self.launched += ran
        self.reused += len(stage.staleness.program.instructions) - ran

    # ---- the trace

    def let_through(self) -> LetThrough:
        """Return what cutoffs have let through last: also in an update that has failed since the last value."""
        found = dict(self.cutoffs)
        for live in (self._live, *[failed for failed, _ in self._failed]):
            found |= {} if live is None else live.cutoff_values()
        return found

    def _made_before(self, snapshot: Snapshot, table: ValueNumbers) -> tuple[Contents, Bound]:
        """Return the memory that is still right in a snapshot, and what closures have returned: of the last trace, and
        of those that have failed since."""
        available: Contents = {}
        bound: dict[AnyOp, LastCall] = {}
        again = self._build is None
        if self._live is not None:
            self._mark_changed(snapshot)
            stale = 0 if again else self._stale
            for stage in self._stages:
                available |= stage.contents(table, stale)
            bound |= self._live.bound(self._host_stale, in_each_update=again)
        for live, stages in self._failed:
            for stage in stages:
                available |= stage.contents(table, 0)
            bound |= live.bound(0, in_each_update=again)
        return available, bound

    async def _trace(self, snapshot: Snapshot, waits: Waits) -> Any:
        """Trace the op, and make what no memory of the trace before it holds already."""
        table = ValueNumbers()
        available, bound = self._made_before(snapshot, table)
        settings, where = self._settings, self._origin
        tracer = Tracer(
            self._op, settings.device, settings.policy, find_device, None, snapshot=snapshot, before=self.let_through()
        )
        live = tracer.live
        assert live is not None
        live.bound_before, live.are_equal = bound, table.are_equal
        if self._shared is not None:
            self._shared_at = self._shared.observed.changes
            live.sharing = None if self._shared.is_alone else self._shared
        stages: list[LiveStage] = []
        made: Made = {}
        bits: dict[Storage, int] = {}
        build: Build | None = None

        async def make_up(output: LeftOut) -> None:
            targets, buffer = made[live_state(output.handle).storage]
            stage = next(each for each in stages if each.targets is targets)
            stage.untaken -= {buffer}
            ran = await self._run_stage(stage, 0, snapshot, waits, (table, available))
            self.launched, self.reused = self.launched + ran, self.reused - ran
            stage.lenders(table, 0)
            live_state(output.handle).storage.memory = targets.memory[buffer]

        try:
            while True:
                program = (await next_stage(tracer, waits, make_up)).program
                untaken = tracer.untaken_outputs()
                if stages:
                    stages[-1].lenders(table, 0)
                stage = self._maker.new_stage(tracer, live, program, stages, bits)
                for buffer, storage in tracer.builder.outputs():
                    made[storage] = stage.targets, buffer
                    bits[storage] = stage.staleness.bits_of(buffer)
                if not stages and all(map(ends_on_host, tracer.suspended)):
                    build = result_builder(tracer.root, live, stage.targets, made, where)
                stages.append(stage)
                stage.untaken = frozenset([each for each in untaken if not program.accesses.readers[each]])
                self._count(stage, await self._run_stage(stage, 0, snapshot, waits, (table, available)))
                tracer.settle(stage.targets.memory, stage.untaken & stage.lost)
                published = [handle for handle in tracer.publish() if type(handle) is SharedTensor]
                for handle in published:
                    targets, buffer = made.get(live_state(handle).storage, (None, 0))
                    if targets is not None:
                        targets.adopt(buffer, handle.clone())
                if build is not None or tracer.finished:
                    break
                if not program.instructions:
                    if not (others := tracer.awaited_values()):
                        raise tracer.stuck_error()
                    await waits.wait_for_any(others)
            make = build or result_builder(tracer.root, live, stages[-1].targets, made, where)
            assert make is not None, "the last stage has no value that waits"
            held = [handle for handle, _ in tracer.taken_handles()]
            result = make()
        except BaseException:
            self._failed = [*self._failed, (live, stages)][-_MOST_FAILED:]
            raise
        finally:
            live.end_trace()
            self.sources = live.sources()
            tracer.abandon("the update that was to make them failed or was cancelled")
        self._live, self._stages, self._build, self._held = live, stages, build, held
        self._repeated = None
        self._end_update()
        self._failed = []
        self._inputs = {made.source: made for made in live.inputs if made.source is not None}
        self._layer = None
        self._count_kept()
        if self._shared is not None:
            self._shared.keep_met(live.met, live.called())
        return result

    # ---- other feeds

    def _lenders(self, table: ValueNumbers, versions: set[Version] | None) -> Lenders:
        """Return what this run holds for other feeds, by value number: nothing if it has none of these versions of
        sources; None for any."""
        live, found = self._live, dict[int, tuple[TargetMemory, int]]()
        if live is None or (
            versions is not None and versions.isdisjoint([made.version for made in self._inputs.values()])
        ):
            return found
        for stage in self._stages:
            found |= stage.lenders(table, 0 if self._build is None else self._stale)
        return found

    def _follow_sharing(self, shared: SharedWork) -> None:
        """Share with other feeds what they observe too now, and nothing else."""
        self._shared_at = shared.observed.changes
        self._repeated = None
        self._layer = None  # it calls the closures that are shared
        for stage in self._stages:
            self._maker.share(stage, shared)
        self._count_kept()


_Reuse: TypeAlias = tuple[ValueNumbers, Contents]
