"""`StageMaker`, which makes the stages of an observed op: what each keeps, and what it shares with other feeds."""

from functools import partial
from typing import Any, final

from dagpu.common.errors import BorrowError, KernelArgumentError, MovedError, PlanError
from dagpu.common.places import Origin, describe
from dagpu.lowering.updates.dirty.tile_updates import TileUpdates
from dagpu.lowering.updates.leaf_values import LeafValues, written_from_outside
from dagpu.lowering.updates.live_inputs import LiveInputs
from dagpu.lowering.updates.live_result import TargetMemory
from dagpu.lowering.updates.shared_buffers import SharedBuffer
from dagpu.lowering.updates.staleness import Staleness, fit_into
from dagpu.ops.base import DeviceOp
from dagpu.plans.program import Instruction, Launch, Program
from dagpu.reactive.shared_work import SharedWork
from dagpu.reactive.stages.live_stage import LiveStage
from dagpu.reactive.stages.stage_cutoffs import compared_buffer
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.execute import call_on_plan
from dagpu.tracing.program_builder import ProgramBuilder
from dagpu.tracing.tracer import Tracer

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

    def new_stage(self, tracer: Tracer, live: LiveInputs, program: Program, before: list[LiveStage]) -> LiveStage:
        """Return the stage that was traced last, before its first run."""
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
        # What earlier stages have made may depend on everything but the cutoffs that wait for this stage.
        leaves = LeafValues(builder, live, ~sum(cut.own for cut in cutoffs) if before else 0)
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
