"""Graphs that the user captures: all of an op, or several ops in a scope, launched again as a whole.

A graph is made of a plan that was scheduled and verified, not of what a stream happened to be given: independent
branches stay independent. On a device without graphs a launch replays the plan.

Why a launch is safe: it is a run. It locks the memory that was lent when the graph was captured, its outputs, and the
graph itself; and it comes after what `update` has put into the same stream.
"""

import weakref
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, Protocol, cast, final

from typing_extensions import TypeVar

from dagpu import critical
from dagpu.backends.base import Bindings, Replay
from dagpu.critical import Section
from dagpu.device import Stream
from dagpu.errors import CaptureError, MovedError, NestedRunError
from dagpu.handles import copy_error
from dagpu.lowering.plan import Plan
from dagpu.lowering.structure import Inputs, inputs_of
from dagpu.lowering.trace import Tracer
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, check_op, check_stream
from dagpu.ops.captured import Captured
from dagpu.ops.compose import On
from dagpu.ops.graph import GraphLaunch
from dagpu.origin import Origin, describe, here
from dagpu.runtime.capture import Recording, capture, prepared_for
from dagpu.runtime.device import backend, find
from dagpu.runtime.kept import Kept, Settings
from dagpu.runtime.run import kind_of, plan_program
from dagpu.tracebacks import leaves_run

_T = TypeVar("_T")
_U = TypeVar("_U")
_T_co = TypeVar("_T_co", covariant=True)
_I_contra = TypeVar("_I_contra", contravariant=True)

_scope_around: "ContextVar[weakref.ref[_ScopeBlock] | None]" = ContextVar("dagpu_scope", default=None)
"""The `CudaGraph.scope` in which this task or thread is. Weak: of a `with` block that an interrupt has ended before its
`__exit__` could do anything, nothing is left."""


@final
class CudaGraph(Generic[_T_co]):
    """What an op did, ready to be launched again as a whole, on the same memory: `op.graph()`.

    It keeps alive whatever its nodes point at, until its last launch is complete. Everything in it was fixed when it
    was captured: closures are not called again, numbers and seeds stay; random numbers without a seed are others in
    each launch. New data goes into the memory that it reads, with `update`.

    What the `shared()` ops in it had remembered before the capture is a constant. What the capture has made of them for
    the first time each launch makes anew, in the graph's memory; they themselves have run, and remember a copy.
    """

    def __init__(self, captured: Captured, output: _T_co, settings: Settings) -> None:
        self._captured = captured
        self._output: Any = output
        self._taken: Origin | bool = False
        self._settings = settings

    def take_output(self) -> _T_co:
        """The result of the op, once. It lies in the graph's memory: every launch writes it anew.

        Raises:
            MovedError: it was taken before.
        """
        if self._taken is not False:
            assert not isinstance(self._taken, bool)
            raise MovedError(
                f"the output of {self!r} was taken at {describe(self._taken)}. A graph gives it once: keep what that "
                "gave."
            )
        output, self._output, self._taken = self._output, None, here()
        return cast(_T_co, output)

    def launch(self) -> DeviceOp[None, Borrowed, NoAlloc]:
        """An op that does it all again, on the graph's stream, after what `update` has put there."""
        return GraphLaunch(self._captured, here())

    @leaves_run
    def update(self, op: DeviceOp[_U, Borrowed, NoAlloc]) -> _U:
        """Put work into the graph's stream, before the next launch, and return at once: most often
        `graph.update(memcpy(input.borrow_mut(), new))`.

        What it locks stays locked until the launch is over, or where none comes, until it is done. If it fails, the
        next launch raises that.

        Raises:
            CaptureError: the op makes memory, or waits for the host.
            BorrowError: a run is using what it is to use.
            NestedRunError: it stands in a closure, or in a scope.
        """
        check_op(op, "update", "Pass an op that writes what the graph reads: memcpy(t.borrow_mut(), new)")
        refuse_nested(op)
        origin = here()
        with Section("update() was called"):
            return cast(_U, _enqueue(op, self._captured, self._settings, origin))

    @property
    def plan(self) -> Plan:
        """What it does, and which of it side by side: print it, or draw its lanes with `save_svg(path)`."""
        plan: Plan = self._captured.plan
        return plan

    @property
    def stream(self) -> Stream:
        """Where it is launched."""
        return self._captured.stream

    @classmethod
    def scope(cls, stream: Stream) -> "AbstractContextManager[Scope]":
        """Record ops into a graph, one after the other; nothing runs. After the `with` block it is `scope.graph`.

        An op may read what one before it has written. All work on tensors that were made before: an op that makes
        memory is refused.
        """
        from dagpu.runtime.interpreter import current_settings

        origin = here()
        check_stream(stream, "scope", origin)
        settings = current_settings(stream.device)
        return _ScopeBlock(Scope(Recording(stream, settings, origin), origin), settings, origin)

    def __repr__(self) -> str:
        return repr(self._captured)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            repr(self),
            "A copy would launch into the same memory, and give the same output to a second owner. Use the graph "
            "itself wherever it is wanted, or capture the op once more with op.graph()",
        )


@final
class Scope:
    """What `CudaGraph.scope(stream)` gives."""

    def __init__(self, recording: Recording, origin: Origin) -> None:
        self._recording: Recording | None = recording
        self._graph: CudaGraph[None] | None = None
        self._origin = origin

    @leaves_run
    def record(self, op: DeviceOp[_T, Borrowed, NoAlloc]) -> _T:
        """Add an op. What it borrows is free for the next one. Gives its value: handles whose contents are there when
        the graph has been launched.

        Raises:
            CaptureError: the op makes memory, or waits for the host.
        """
        check_op(op, "record", "Pass an op: a kernel call on t.borrow_mut().partition(tile), say")
        if self._recording is None:
            raise CaptureError(
                f"record() at {describe(here())} after the end of the scope at {describe(self._origin)}. Record within "
                "its with block."
            )
        with Section("record() was called"):
            return cast(_T, self._recording.add(op))

    @property
    def graph(self) -> CudaGraph[None]:
        """The graph, after the `with` block."""
        if self._graph is None:
            raise CaptureError(
                f"scope.graph at {describe(here())}: the scope at {describe(self._origin)} has no graph "
                + ("yet. Take it after its with block." if self._recording else "because it failed. Record it again.")
            )
        return self._graph

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            f"the scope at {describe(self._origin)}",
            "A copy would record into the same graph. Use the scope itself",
        )


@final
class _ScopeBlock(AbstractContextManager[Scope]):
    """The `with` block of a scope."""

    def __init__(self, scope: Scope, settings: Settings, origin: Origin) -> None:
        self._scope = scope
        self._settings = settings
        self._around: weakref.ref[_ScopeBlock] | None = None
        self.origin = origin

    def __enter__(self) -> Scope:
        self._around = _scope_around.get()
        _scope_around.set(weakref.ref(self))
        return self._scope

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        _scope_around.set(self._around)
        recording, self._scope._recording = self._scope._recording, None  # noqa: SLF001  # the block of a scope ends it
        assert recording is not None
        if error is not None:
            recording.abandon()
            return
        try:
            with Section("a scope ended"):
                captured = recording.captured()
        except BaseException:
            recording.abandon()
            raise
        self._scope._graph = CudaGraph(captured, None, self._settings)  # noqa: SLF001  # the block of a scope ends it


class Module(Protocol[_I_contra, _T_co]):
    """A model whose forward pass is a captured graph: copy the input in, replay, yield the output."""

    def forward(self, input: _I_contra, /) -> DeviceOp[_T_co, Borrowed, MayAlloc]: ...  # noqa: A002  # the name that the public contract has


def graph_of(op: DeviceOp[_T, Any, Any], stream: Stream | None, settings: Settings) -> CudaGraph[_T]:
    """`op.graph()` and `op.graph_on(stream)`."""
    origin = here()
    with Section("an op was captured"):
        captured, output = capture(op, stream, settings, origin)
    return CudaGraph(captured, output, settings)


def refuse_nested(op: DeviceOp[Any, Any, Any]) -> None:
    """Nothing runs inside a closure, nor while a graph is recorded.

    Raises:
        NestedRunError: it says where that is, and the cure.
    """
    critical.refuse_nested("an op was run")
    if critical.in_user_code():
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside a closure or host_map of another run. "
            "Return the op from .then instead: it becomes part of that run."
        )
    around = _scope_around.get()
    block = None if around is None else around()
    if block is not None:
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside the scope at {describe(block.origin)}, in which ops are "
            "only recorded. Record it with scope.record(op), or run it before or after the with block."
        )


def _enqueue(op: DeviceOp[Any, Any, Any], captured: Captured, settings: Settings, origin: Origin) -> Any:
    """Start an op on a graph's stream, by the plan of an earlier update where there is one."""
    placed: On[Any] = On(op, captured.stream, origin)
    inputs = inputs_of(placed)
    kept = captured.plans.find(inputs, settings) if inputs is not None else None
    if inputs is not None and kept is not None:
        bindings = Bindings(kept.repeat.buffers)
        bound = kept.repeat.bind(bindings.memory, inputs.leaves)
        if bound is not None:
            bound.take(origin)
            try:
                captured.updates.add(bound.locks, origin, lambda: kept.prepared.submit(bindings))
            except BaseException:
                bound.undo()
                raise
            return kept.repeat.result(bindings.memory, bound.leaves)
    return _enqueue_anew(placed, inputs, captured, settings, origin)


def _enqueue_anew(
    placed: On[Any], inputs: Inputs | None, captured: Captured, settings: Settings, origin: Origin
) -> Any:
    tracer = Tracer(placed, captured.stream.device, settings.policy, find, inputs)
    try:
        tracer.record("given to update()")
        stage = tracer.stage()
        if stage.program.instructions:
            plan = plan_program(stage.program, settings.verify)
            prepared = prepared_for(plan)
            bindings = Bindings(len(plan.buffers))
            for index, held in stage.inputs.items():
                bindings.memory[index] = held

            def begin() -> Replay:
                replay = prepared.submit(bindings)
                tracer.submitted()
                return replay

            captured.updates.add(stage.locks, origin, begin)
            repeat = tracer.repeat()
            if inputs is not None and repeat is not None:
                new = Kept(settings, repeat, backend(kind_of(plan)), prepared, tracer.reads)
                new.of(inputs, None)
                captured.plans.keep(inputs, new, settings)
        return tracer.result
    except BaseException:
        tracer.abandon("the update that was to write them failed")
        raise
