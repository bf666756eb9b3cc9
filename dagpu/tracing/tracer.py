"""The tracer, which lowers an op to a `Program`, and refuses what a graph cannot capture.

It evaluates the DAG (dagpu.tracing.evaluate), and calls each closure once, with handles. Work that depends on
host data is suspended (`Deferred`). When the stage has run, the tracer resumes that work.

    while not tracer.finished:
        stage = tracer.stage()            # trace as far as possible
        ... run stage.program ...         # unless it is empty
        tracer.settle(memory)             # the memory that the stage made
        tracer.publish()                  # the values that it remembers

A run takes handles out of ops, and claims `Shared` and `Unzip` values. It can put both back until something was
submitted.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import numpy as np

from dagpu.common.errors import CaptureError, NestedRunError
from dagpu.common.places import Origin, describe, start_of_run
from dagpu.handles import (
    Handle,
    HandleState,
    Lender,
    SharedTensor,
    Tensor,
    TensorRef,
    find_live_state,
    live_state,
)
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.handle_state import Storage
from dagpu.handles.symbolic import replace_standins
from dagpu.handles.tensors import handles_in
from dagpu.ops.compose import Unzip, Zip
from dagpu.ops.graph import Captured
from dagpu.ops.single_flight import Claims, Once
from dagpu.ops.versions import Snapshot
from dagpu.plans.placing import place_spread
from dagpu.plans.policies import may_be_limited
from dagpu.plans.program import CopyDtoD, CopyDtoH, CopyHtoD, GraphLaunch, HostCall, Instruction, Launch, Program
from dagpu.plans.recomputing import recomputed
from dagpu.tracing.evaluate import AnyOp, Evaluation
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.live_inputs import LetThrough, LiveInputs
from dagpu.tracing.own_plans import parts_with_plans
from dagpu.tracing.program_builder import BuilderMark, Loans, ProgramBuilder, TracedStorage
from dagpu.tracing.run_memo import (
    PENDING,
    Deferred,
    ForeignSuspension,
    FromCell,
    FromItems,
    LeftOut,
    Turns,
    ends_on_host,
    is_host_part,
    own_result_error,
    part_of,
    resolve,
    waits_for_host,
    waits_for_length,
)
from dagpu.tracing.signature import BoundArguments, Signature, make_signature
from dagpu.tracing.sources import LiveSources, SnapshotSources
from dagpu.tracing.traced_arguments import TracedArguments, storage_of_leaf
from dagpu.tracing.undo_log import HandleTaker, Placements, UndoLog

_T = TypeVar("_T")

_OWN_RESULTS: Final = frozenset((np.ndarray, Tensor))
"""The types of results that are no stand-ins, and contain none."""


@final
@dataclass(slots=True, eq=False)
class Stage:
    """The result of one call of `Tracer.stage`: a program, its inputs, and the memory that its run must lock."""

    program: Program
    traced: Program
    """The program before its placement on a mesh, or before instructions were added that make temporaries again; the
    program itself without either."""
    inputs: dict[int, object]
    locks: dict[Storage, bool]
    graphs: list[Captured]
    went_on: bool
    """True if the trace has got a value for which it was suspended before."""
    _undo_log: UndoLog

    def bind(self) -> BoundArguments:
        """Bind the stage's own inputs, as `Signature.bind` binds those of a later run."""
        memory: list[Any] = [None] * len(self.program.buffers)
        for index, held in self.inputs.items():
            memory[index] = held
        return BoundArguments(memory, self.locks, (), self.graphs, undo_log=self._undo_log)


@final
class Tracer:
    """The trace of one run of one op.

    `find` finds a device by its name. `policy` and `device` place the instructions that no `On` places. `inputs` are
    the leaves of the op, if its plan may serve runs with other leaves. `origin` is the place in the user's code that
    starts the run; by default that of the call. `after` is the trace of an op whose program this
    one continues. With `snapshot`, the trace is for a feed: it reads sources at that instant, through stand-ins;
    `before` has what cutoffs have let through last.
    """

    def __init__(
        self,
        op: AnyOp,
        device: Device,
        policy: Any,
        find: Callable[[str], Device],
        inputs: Flattened | None = None,
        origin: Origin = None,
        *,
        after: "Tracer | None" = None,
        snapshot: Snapshot | None = None,
        before: LetThrough | None = None,
    ) -> None:
        self._origin = start_of_run() if origin is None else origin
        self._find = find
        # A feed compares memory of one trace with that of the next, by the device too.
        self._places = Placements(device, policy, find, one_device=snapshot is not None)
        self._loans = Loans()
        self._leaves = leaves = TracedArguments(inputs)
        self.live = None if snapshot is None else LiveInputs(snapshot, leaves.reads, before)
        """The inputs of an op that a feed observes; None in a plain run."""
        if after is None:
            builder = self._new_builder()
        else:
            builder = after.continue_with(self._places, self._loans)
        taker = HandleTaker(leaves, self._loans, self._origin)
        self._sources = SnapshotSources(leaves) if self.live is None else LiveSources(self.live)
        self._evaluation: Evaluation = Evaluation(op, self._places, builder, leaves, taker, self._origin, self._sources)
        self._root: Any = PENDING
        self._stage_storages: list[weakref.ref[TracedStorage]] = []
        """The memory that stages of this run have made and that no other run can reach."""

    def _new_builder(self) -> ProgramBuilder:
        """Return the builder of a new stage."""
        return ProgramBuilder(
            self._places.policies, self._loans, self._leaves.reads, copies_earlier=self.live is not None
        )

    def continue_with(self, places: Placements, loans: Loans) -> ProgramBuilder:
        """Return the builder of this trace, for the trace of a further op whose instructions follow in the same
        program."""
        places.share_policies(self._places)
        self._evaluation.builder.start_next_op(loans)
        return self._evaluation.builder

    @property
    def reads(self) -> set[int]:
        """The indices of the leaves whose values the trace has read. The plan holds for these values alone."""
        return self._leaves.reads

    @property
    def builder(self) -> ProgramBuilder:
        """The builder of the stage that was traced last, until `settle`."""
        return self._evaluation.builder

    @property
    def root(self) -> Any:
        """The value of the op as the trace has it, once the first stage is traced: a `Deferred` if it needs work."""
        return resolve(self._root)

    @property
    def suspended(self) -> list[Deferred]:
        """The values that wait for host data, or for another run."""
        return self._evaluation.suspended

    def taken_handles(self) -> list[tuple[Handle, HandleState]]:
        """Return the handles that the trace has taken out of the op, each with its state before."""
        return self._evaluation.taker.undo_log.taken()

    # ---- stages

    @property
    def finished(self) -> bool:
        """True once the result exists, and the run has completed everything that it has begun.

        The result may need only one component of an `Unzip`, which exists before the others. The run makes the others
        all the same: otherwise a run that has ended would still own the source.
        """
        self._root = resolve(self._root)
        return self._root is not PENDING and type(self._root) is not Deferred and not self._evaluation.suspended

    @property
    def result(self) -> Any:
        """The value of the op, once `finished`."""
        return self._root if type(self._root) in _OWN_RESULTS else self._restore(self._root)

    def _restore(self, value: Any) -> Any:
        """Return a value with the leaves in place of their stand-ins."""
        return self._leaves.restore_arguments(replace_standins(value)) if self._leaves.pure else value

    def stage(self) -> Stage:
        """Trace as far as possible without running anything."""
        return _run_to_end(self.stage_in_turns(_never_due))

    def stage_in_turns(self, due: Callable[[], bool]) -> Turns[Stage]:
        """Trace a stage, as a generator, for a driver that has other work too.

        It yields None before a call of a closure if `due()` is true then, and work that another thread should do before
        the trace goes on. The trace itself does what is not done.
        """
        evaluation = self._evaluation
        resumed = evaluation.resumed
        if self._root is PENDING:
            yield from evaluation.run(due)
            self._root = evaluation.done.pop()
        if evaluation.suspended:
            yield from evaluation.resume(due)
        if all(map(ends_on_host, evaluation.suspended)):
            evaluation.memo.forget_private_components()  # they would count as outputs, which updates make for nobody
            # Ops that closures have built hold handles, whose memory would count as an output.
            evaluation.seen.clear()
            if self._sources.reads is not None:
                self._sources.settle()
        elif self.live is not None:
            self._sources.settle()
            _forget_dead(evaluation.seen)
        if not evaluation.suspended:
            evaluation.memo.forget_private()
        evaluation.memo.forget_unreachable()
        builder = evaluation.builder
        program = traced = builder.program()
        if traced.instructions:
            program = place_spread(traced)
            is_alone = (
                program is traced and self.live is None
            )  # a feed follows the instructions of one trace in the next
            if is_alone and may_be_limited(traced):
                program = recomputed(traced, self._memory_for_runs)
            if program is not traced:
                builder.place_outputs(program, self._find)
        undo_log = evaluation.taker.undo_log
        went_on = evaluation.resumed > resumed
        return Stage(program, traced, builder.inputs, builder.locks, builder.graphs, went_on, undo_log)

    def _memory_for_runs(self, device: str, results: Sequence[int]) -> int | None:
        """Return the bytes that a run with results of these sizes could allocate on a device now; None if its runs have
        no limit."""
        return driver_of(self._find(device)).memory_for_runs(results)

    def make_signature(self) -> Signature | None:
        """Return the record that lets later runs of the same op skip their trace. Call this after the trace of the
        first stage and before `settle`.

        None if later runs need a trace; the rules are those of dagpu.tracing.signature.
        """
        if self._leaves.fixed_handles is None:
            return None
        evaluation, signature = self._evaluation, None
        needs_more = next((each for each in evaluation.suspended if not is_host_part(each)), None)
        if needs_more is None:
            signature = make_signature(
                self._root, self.suspended, self._leaves, evaluation.builder, evaluation.memo, self._sources.made_for
            )
        else:
            self._leaves.never_kept = waits_for_host(needs_more)
        self._leaves.forbid_reuse()
        return signature

    @property
    def never_kept(self) -> str | None:
        """Why no run of this op leaves a plan for later ones, and the cure; None if that is not known, or the trace has
        left one."""
        return self._leaves.never_kept

    @property
    def ends_here(self) -> bool:
        """True if the result will exist once the traced stage has run."""
        suspended = self._evaluation.suspended
        return not suspended or all(type(deferred.cause) is FromItems for deferred in suspended)

    def find_unsized(self) -> str | None:
        """Return the name and place of a call that waits for the length of its result; None if there is none."""
        return next(filter(None, map(waits_for_length, self._evaluation.suspended)), None)

    def find_untaken(self) -> Unzip[Any] | None:
        """Return an op outside this one that might ask for a component that the stage makes; None if there is none."""
        return self._evaluation.memo.find_untaken()

    def outputs_kept_elsewhere(self) -> frozenset[int]:
        """Return the outputs of a stage that are not in its result, by their buffers: a handle to them is held by a
        closure, say. The trace forgets its result for that, so it can only be abandoned then. There are none to name if
        the op needs further stages, or makes values of `Shared` or `Unzip` ops, which other runs may have."""
        if not self.finished or self.remembers:
            return frozenset()
        self._root = PENDING
        return frozenset([index for index, _ in self._evaluation.builder.outputs()])

    def outputs(self) -> dict[Storage, bool]:
        """Return the memory that the stage makes and that handles refer to, as storages to lock exclusively."""
        return {storage: True for _, storage in self._evaluation.builder.outputs()}

    @property
    def lent_handles(self) -> list[tuple[HandleState, Lender]]:
        """The borrows and shared tensors from outside that the stage uses, each with the tensor that must not move."""
        return list(self._evaluation.builder.lent.items())

    @property
    def owned_storages(self) -> list[Storage]:
        """The memory from outside that the stage may write and that is not lent, because it has moved into the op."""
        owned = self._loans.owned
        return [
            storage for storage, exclusive in self._evaluation.builder.locks.items() if exclusive and storage in owned
        ]

    def record(self, how: str) -> Any:
        """Trace the op into the builder that it shares with earlier ops, and return its value. The value must exist at
        once: handles to memory from outside, and plain values. `how` tells the user where the op was put.

        Raises:
            CaptureError: the op makes memory, or waits for the host.
        """
        mark = self._evaluation.builder.mark()
        try:
            _run_to_end(self._evaluation.run(_never_due))
            value = self._evaluation.done.pop()
            refuse_new_memory(self._evaluation.builder, mark, how, self._origin)
            if type(resolve(value)) is Deferred or self._evaluation.suspended:
                raise waits_for_host_error(how, self._origin)
        except BaseException:
            self._evaluation.builder.roll_back(mark)
            raise
        self._evaluation.memo.abandon()
        self._root = value
        return value

    # ---- parts that run by plans of their own

    def find_parts(self, op: AnyOp) -> None:
        """Let the parts of the op that have plans of their own run by these. Call this before the first stage."""
        self._evaluation.parts = parts_with_plans(op)
        self._evaluation.finds_parts = True

    def parts_to_run(self) -> list[Deferred]:
        """Return the parts whose values the run needs to go on, each once."""
        return self._evaluation.parts_to_run()

    def op_of_parts(self, parts: Sequence[Deferred]) -> AnyOp:
        """Return these parts as one op, whose result has their values, if there are several. Their work may overlap."""
        ops = [self._evaluation.placed_part(part) for part in parts]
        return ops[0] if len(ops) == 1 else Zip(tuple(ops), None)

    def finish_part(self, part: Deferred, value: Any, made_for: Mapping[Any, int]) -> None:
        """Record the value of a part, and the sources of which it was made, with their revisions."""
        self._evaluation.finish_part(part, value, made_for)

    def values_so_far(self, count: int) -> list[Any]:
        """Return the values of this op, of `count` parts of another one; `PENDING` for each that does not exist yet."""
        root = self.root
        items: Any = (root,) if count == 1 else root
        if type(items) is Deferred:
            assert type(items.cause) is FromItems
            items = [resolve(item) for item in items.cause.items]
        return [PENDING if type(item) is Deferred else self._restore(item) for item in items]

    def read_sources_at(self, instant: Snapshot, parts: Iterable[Deferred]) -> None:
        """Let a plain run read sources at this instant, and tell what these parts of another op depend on. Call this
        before the first stage."""
        assert isinstance(self._sources, SnapshotSources)
        self._sources.snapshot = instant
        self._sources.watch(part_of(part) for part in parts)

    def read_by(self, part: Deferred) -> Mapping[Any, int]:
        """Return the sources on which the value of such a part depends, with their revisions. Its value exists."""
        assert isinstance(self._sources, SnapshotSources)
        return self._sources.read_by(part_of(part))

    @property
    def instant(self) -> Snapshot:
        """The instant at which a plain run reads sources."""
        assert isinstance(self._sources, SnapshotSources)
        return self._sources.instant()

    @property
    def claims(self) -> Claims:
        """The claims of this run."""
        return self._evaluation.memo.claims

    def discard_undo_log(self) -> None:
        """Discard the undo log: from now on nothing that was taken can be put back."""
        self._evaluation.taker.undo_log.discard()

    # ---- outputs that a stage leaves out

    def untaken_outputs(self) -> frozenset[int]:
        """Return the outputs of a feed's stage, by their buffers, to which nothing refers but a component that no op
        has taken. Call this before anything else refers to the outputs."""
        return frozenset([buffer for _, _, handle, buffer in self._untaken() if live_state(handle).is_alone])

    def _untaken(self) -> Iterator[tuple[list[Any], int, Handle, int]]:
        """Yield each component that no op has taken and that the stage makes: its list and place, and its buffer."""
        builder = self._evaluation.builder
        for parts, index, handle in self._evaluation.memo.untaken_handles():
            state = find_live_state(handle)
            if state is not None and type(state.storage) is TracedStorage and state.storage.builder is builder:
                yield parts, index, handle, state.storage.buffer

    def settle(self, memory: list[Any], left: Collection[int] = ()) -> None:
        """Complete the stage. `memory[i]` is the memory or value of buffer i. It has left out the buffers `left`, which
        are among the `untaken_outputs`. Call `publish` afterwards."""
        for parts, index, handle, buffer in list(self._untaken()) if left else ():
            if buffer in left:
                parts[index] = LeftOut(handle)
        for index, storage in self._evaluation.builder.outputs():
            storage.settle(memory[index])
            self._stage_storages.append(weakref.ref(storage))
        for deferred in self._evaluation.cells:
            cause = deferred.cause
            if type(cause) is FromCell:
                deferred.value = memory[cause.buffer]
        self._evaluation.cells.clear()
        self._evaluation.shared_cells.clear()
        if not self._evaluation.builder.is_new():
            self._evaluation.builder = self._new_builder()
            self._evaluation.stage += 1

    def publish(self, constant: Callable[[Any], Any] = lambda value: value) -> list[Handle]:
        """Make the values of `Shared` and `Unzip` ops visible to other runs. `constant` maps the value of a `Shared` to
        the value that is published. Return the handles in the published values."""
        published = list(handles_in(self._evaluation.memo.publish(self._restore, constant, self._sources.made_for)))
        if published:
            others = {id(storage_of_leaf(handle)) for handle in published}
            self._stage_storages = [reference for reference in self._stage_storages if id(reference()) not in others]
        return published

    @property
    def remembers(self) -> bool:
        """True if the run makes values of `Shared` or `Unzip` ops that are not published yet."""
        return self._evaluation.memo.makes_values

    def published_storages(self) -> dict[Storage, bool]:
        """Return the memory that `publish` makes available to other runs and that this run does not borrow. The value
        is true for shared memory, which this run may still read in a later stage."""
        found: dict[Storage, bool] = {}
        for handle in self.unpublished_handles():
            storage = storage_of_leaf(handle)
            if storage is not None and type(handle) is not TensorRef:
                found[storage] = type(handle) is SharedTensor
        return found

    def unpublished_handles(self) -> list[Any]:
        """Return the handles in values of `Shared` and `Unzip` ops that exist and are not published yet."""
        return self._evaluation.memo.unpublished_handles()

    def awaited_values(self) -> list[Once]:
        """Return the values that other runs are making and that this run needs to continue."""
        causes = [deferred.cause for deferred in self._evaluation.suspended]
        onces = [cause.node.once for cause in causes if type(cause) is ForeignSuspension]
        return [once for once in onces if not self._evaluation.memo.is_claimed(once)]

    def stuck_error(self) -> NestedRunError:
        """Return the error for a run that has no result, nothing left to run and nothing to wait for."""
        return own_result_error(self._origin)

    def abandon(self, reason: str) -> None:
        """Put back what can be put back, and give up the claims, because the run failed or was cancelled.

        Handles that closures have stored, or that an error's traceback refers to, lose their contents: they would keep
        the run's memory alive.
        """
        for reference in self._stage_storages:
            storage = reference()
            if storage is not None:
                storage.lost, storage.memory = reason, None
        self._evaluation.builder.lose(reason)
        self._evaluation.taker.undo_log.put_back()
        self._evaluation.memo.abandon()
        self._evaluation.todo.clear()
        self._evaluation.done.clear()
        self._evaluation.suspended.clear()


def _forget_dead(ops: set[AnyOp]) -> None:
    """Let go of the ops that nothing else refers to: no op can use them again. The memory of the handles in those that
    closures have built would count as an output."""
    references = list(map(weakref.ref, ops))
    ops.clear()
    ops.update([op for op in [reference() for reference in references] if op is not None])


def _never_due() -> bool:
    """Return false: the `due` of a trace that runs to its end without a pause."""
    return False


def _run_to_end(turns: Turns[_T]) -> _T:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: _T = end.value
            return result


# ---- capture refusals
#
# Refuses ops that cannot be added to a graph's work: ops that make memory, wait for the host, or launch graphs.

_NEW_TENSOR: Final = "a new tensor"


def refuse_new_memory(builder: ProgramBuilder, mark: BuilderMark, how: str, where: Origin) -> None:
    """Raise `CaptureError` if an op that was added since the mark makes memory, waits for the host, or launches another
    graph."""
    for instruction in builder.instructions[mark.instructions :]:
        if isinstance(instruction, HostCall | CopyDtoH):
            raise waits_for_host_error(how, where, f": {_name_of(instruction)} at {describe(instruction.origin)}")
        new = [buffer for buffer in instruction.writes if buffer >= mark.buffers and buffer not in builder.inputs]
        if new or isinstance(instruction, GraphLaunch):
            what = "launches another graph" if isinstance(instruction, GraphLaunch) else "makes memory of its own"
            raise _capture_error(what, _name_of(instruction), instruction.origin, how, where)
    for origin in builder.unwritten_since(mark):
        raise _capture_error("makes memory of its own", _NEW_TENSOR, origin, how, where)


def _name_of(instruction: Instruction) -> str:
    """Return the words of the user's code for an instruction."""
    match instruction:
        case Launch():
            return instruction.kernel.label
        case GraphLaunch():
            return "graph launch"
        case HostCall():
            return "host_map"
        case CopyDtoH():
            return "to_host"
        case CopyHtoD():
            return "from_host"
        case CopyDtoD():
            return "a copy"
        case _:
            return _NEW_TENSOR


def waits_for_host_error(how: str, where: Origin, by: str = "") -> CaptureError:
    """Return the error for an op that was added to a graph's work and needs host data. `by` names the part of the op
    that needs them."""
    return CaptureError(
        f"the op {how} at {describe(where)} waits for data of the host{by}. Nothing waits here. Leave to_host() and "
        "host_map() to an op that runs after the launch."
    )


def _capture_error(what: str, name: str, origin: Origin, how: str, where: Origin) -> CaptureError:
    """Return the error for an op that was added to a graph's work and makes memory, or launches another graph."""
    return CaptureError(
        f"the op {how} at {describe(where)} {what}: {name} at {describe(origin)}. Such an op works on tensors "
        "that were made before, and lent: t.borrow(), t.borrow_mut().partition(tile). op.graph() captures ops that "
        "make memory."
    )
