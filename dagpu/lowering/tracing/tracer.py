"""The tracer: an op becomes a `Program`, stage by stage.

It walks the DAG (dagpu.lowering.tracing.evaluate) and calls closures once, with handles. What depends on host data is
suspended (`Deferred`); when the stage has run, the tracer goes on from there.

    while not tracer.finished:
        stage = tracer.stage()            # trace as far as it goes
        ... run stage.program ...         # unless it is empty
        tracer.settle(memory)             # here is what the stage made

What a run takes (handles out of ops, claims on `Shared` and `Unzip`) it can give back until something was submitted.
"""

import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar, final

from dagpu.common.errors import NestedRunError
from dagpu.common.origin import Origin, start_of_run
from dagpu.handles import HandleState, Lender
from dagpu.handles.device_handles import Device
from dagpu.handles.handle_trees import handles_in
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import without_standins
from dagpu.lowering.arguments.cache_key import Flattened
from dagpu.lowering.arguments.traced_arguments import TracedArguments, storage_of_leaf
from dagpu.lowering.program import Program
from dagpu.lowering.tracing.deferred import PENDING, Deferred, ForeignSuspension, FromCell, FromItems, resolved
from dagpu.lowering.tracing.evaluate import AnyOp, Evaluation
from dagpu.lowering.tracing.loans import Loans
from dagpu.lowering.tracing.placements import Placements
from dagpu.lowering.tracing.program_builder import ProgramBuilder, waits_for_host
from dagpu.lowering.tracing.run_memo import once_of, own_result
from dagpu.lowering.tracing.signature import Signature, repeat_of
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.ops.compose import Unzip
from dagpu.ops.single_flight import Once

_T = TypeVar("_T")


@final
class Stage:
    """The result of one call of `Tracer.stage`: a program, its inputs, and the memory that it must lock."""

    __slots__ = ("graphs", "inputs", "locks", "program")

    def __init__(self, program: Program, builder: ProgramBuilder) -> None:
        self.program = program
        self.inputs = builder.inputs
        self.locks = builder.locks
        self.graphs = builder.graphs


@final
class Tracer:
    """The trace of one run of one op.

    `find` finds a device by its name; `policy` and `device` place what no `On` places. `inputs` are the leaves of the
    op, where its plan may serve runs with others. `after` is the trace of an op whose program this one continues.
    """

    def __init__(
        self,
        op: AnyOp,
        device: Device,
        policy: Any,
        find: Callable[[str], Device],
        inputs: Flattened | None = None,
        *,
        after: "Tracer | None" = None,
    ) -> None:
        self._origin: Origin = start_of_run()
        self._places = Placements(device, policy, find)
        self._loans = Loans()
        self._leaves = leaves = TracedArguments(inputs)
        if after is None:
            builder = self._new_builder()
        else:
            builder = after.continued_by(self._places, self._loans)
        takings = UndoLog(leaves, self._loans, self._origin)
        self._walk: Evaluation = Evaluation(op, self._places, builder, leaves, takings, self._origin)
        self._root: Any = PENDING
        self._made: list[weakref.ref[TracedStorage]] = []
        """The memory that stages of this run have made and that it alone disposes of."""

    def _new_builder(self) -> ProgramBuilder:
        return ProgramBuilder(self._places.policies, self._loans, self._leaves.reads)

    def continued_by(self, places: Placements, loans: Loans) -> ProgramBuilder:
        """The builder of this trace, for the trace of a further op whose instructions follow in the same program."""
        places.follow(self._places)
        self._walk.builder.lend_anew(loans)
        return self._walk.builder

    @property
    def reads(self) -> set[int]:
        """The numbers among the leaves that something needed the value of: the trace holds for that alone."""
        return self._leaves.reads

    # ---- stages

    @property
    def finished(self) -> bool:
        """True once the result exists, and the run has completed all that it has begun.

        An `Unzip` may ask for a component that comes before the others. The others are made all the same: otherwise the
        source would be left to a run that has ended.
        """
        self._root = resolved(self._root)
        return self._root is not PENDING and type(self._root) is not Deferred and not self._walk.suspended

    @property
    def result(self) -> Any:
        """The value of the op, once `finished`."""
        return self._leaves.given_back(without_standins(self._root)) if self._leaves.pure else self._root

    def stage(self) -> Stage:
        """Trace as far as it goes without running anything."""
        return _at_once(self.in_turns(_never))

    def in_turns(self, due: Callable[[], bool]) -> Generator[None, None, Stage]:
        """`stage()` as a generator, for a driver that has other work too: it yields before a call of a closure if
        `due()` is true then."""
        walk = self._walk
        if self._root is PENDING:
            yield from walk.run(due)
            self._root = walk.done.pop()
        yield from walk.resume(due)
        if not walk.suspended:
            walk.seen.clear()  # ops that closures have built hold borrows, which would pass for outputs
        self._walk.memory.forget_unreachable()
        program = self._walk.builder.program()
        return Stage(program, self._walk.builder)

    def repeat(self) -> Signature | None:
        """Between the first stage's trace and its end: what spares later runs of the same op their trace.

        None where that cannot be; the rules are those of dagpu.lowering.tracing.signature.
        """
        if self._leaves.given is None:
            return None
        for later in self._walk.suspended:
            if type(later.cause) is not FromItems:
                return None
        repeat = repeat_of(self._root, self._leaves, self._walk.builder)
        self._leaves.forbid()
        return repeat

    @property
    def ends_here(self) -> bool:
        """True if the result will exist once the traced stage has run."""
        return all(type(later.cause) is FromItems for later in self._walk.suspended)

    def left_over(self) -> Unzip[Any] | None:
        """An op outside this one that might ask for a part of what the stage makes."""
        return self._walk.memory.left_over()

    def outputs(self) -> dict[Storage, bool]:
        """The memory that the stage makes and that handles refer to, as storages to lock exclusively."""
        return {storage: True for _, storage in self._walk.builder.outputs()}

    @property
    def lent(self) -> list[tuple[HandleState, Lender]]:
        """The borrows and shared tensors from outside that the stage uses, each with the tensor that must not move."""
        return list(self._walk.builder.lent.items())

    @property
    def owned(self) -> list[Storage]:
        """The memory from outside that the stage may write and that is not lent: it has moved into the op."""
        owned = self._loans.owned
        return [storage for storage, exclusive in self._walk.builder.locks.items() if exclusive and storage in owned]

    def record(self, how: str) -> Any:
        """Trace the op into the builder that it shares with earlier ones, and give its value. It must be there at once:
        handles to memory from outside, plain values. `how` says to the user where the op was put.

        Raises:
            CaptureError: the op makes memory, or waits for the host.
        """
        mark = self._walk.builder.mark()
        try:
            _at_once(self._walk.run(_never))
            value = self._walk.done.pop()
            self._walk.builder.refuse_made(mark, how, self._origin)
            if type(resolved(value)) is Deferred or self._walk.suspended:
                raise waits_for_host(how, self._origin)
        except BaseException:
            self._walk.builder.roll_back(mark)
            raise
        self._walk.memory.abandon()
        self._root = value
        return value

    def submitted(self) -> None:
        """From now on nothing that was taken can be given back."""
        self._walk.takings.submitted()

    def settle(self, memory: list[Any], *, publish: bool = True) -> None:
        """Complete the stage; `memory[i]` is the memory or value of buffer i. The values of `Shared` and `Unzip` ops
        become visible to other runs, unless `publish` is false: then the caller calls `publish` later."""
        for index, storage in self._walk.builder.outputs():
            storage.settle(memory[index])
            self._made.append(weakref.ref(storage))
        for later in self._walk.cells:
            cause = later.cause
            if type(cause) is FromCell:
                later.value = memory[cause.buffer]
        self._walk.cells.clear()
        self._walk.builder = self._new_builder()
        if publish:
            self.publish()

    def publish(self, constant: Callable[[Any], Any] = lambda value: value) -> None:
        """Make the values of `Shared` and `Unzip` ops visible to other runs. `constant` maps the value of a `Shared` to
        the value that is published."""
        published = list(handles_in(self._walk.memory.publish(constant)))
        if published:
            others = {id(storage_of_leaf(handle)) for handle in published}
            self._made = [made for made in self._made if id(made()) not in others]

    def remembered(self) -> list[Any]:
        """The handles in values of `Shared` ops that are complete and not published yet."""
        return self._walk.memory.handles()

    def waits_for(self) -> list[Once]:
        """The values that other runs are making and that this run needs to go on."""
        causes = [later.cause for later in self._walk.suspended]
        onces = [once_of(cause.node) for cause in causes if type(cause) is ForeignSuspension]
        return [once for once in onces if once.owner is not self._walk]

    def stuck(self) -> NestedRunError:
        """The error for a run that has no result, nothing left to run and nothing to wait for."""
        return own_result(self._origin)

    def abandon(self, reason: str) -> None:
        """The run failed or was cancelled: give back what can be given back, and forget the claims.

        Handles that closures have put aside, or that an error's traceback leads to, have no contents any more: they
        would keep the run's memory.
        """
        for made in self._made:
            storage = made()
            if storage is not None:
                storage.lost, storage.memory = reason, None
        self._walk.builder.lose(reason)
        self._walk.takings.give_back()
        self._walk.memory.abandon()
        self._walk.todo.clear()
        self._walk.done.clear()
        self._walk.suspended.clear()


def _never() -> bool:
    """The `due` of a trace that is not left before its end."""
    return False


def _at_once(turns: Generator[None, None, _T]) -> _T:
    """Drive a generator to its end."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: _T = end.value
            return result
