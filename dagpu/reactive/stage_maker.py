"""`StageMaker`, which makes the stages of an observed op: what each keeps, and what it shares with other feeds."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, final

from dagpu.common.errors import BorrowError, KernelArgumentError, MovedError, PlanError
from dagpu.common.places import Origin, describe
from dagpu.ops.base import DeviceOp
from dagpu.ops.drawing import name_of
from dagpu.ops.source_op import Source
from dagpu.plans.program import Instruction, Launch, Program, label
from dagpu.reactive.leaf_values import LeafValues, written_from_outside
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.live_stage import LiveStage
from dagpu.reactive.shared_work import SharedWork
from dagpu.reactive.stage_cutoffs import compared_buffer
from dagpu.reactive.staleness import Staleness, fit_into
from dagpu.reactive.tile_updates import TileUpdates
from dagpu.runtime.execute import call_on_plan
from dagpu.runtime.loaded_plan import Settings
from dagpu.tracing.live_inputs import LiveInputs
from dagpu.tracing.program_builder import ProgramBuilder, SharedBuffer
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
