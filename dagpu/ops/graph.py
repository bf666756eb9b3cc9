"""Captured graphs: `CudaGraph`, its recording in a `Scope`, and `GraphLaunch`, the node that launches it.

A graph is a description like an op. dagpu.runtime captures it and starts updates; dagpu.plans plans its launches.
"""

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, cast, final

from typing_extensions import TypeVar

from dagpu.common.compiled import READER
from dagpu.common.critical import Section
from dagpu.common.errors import CaptureError, MovedError
from dagpu.common.frozen import frozen
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.handles import HandleState, Lender, copy_error, last_move, state_of
from dagpu.handles.device_handles import Stream
from dagpu.handles.handle_state import Storage
from dagpu.ops.base import RUNNER, Borrowed, DeviceOp, MayAlloc, NoAlloc, check_op, check_stream

if TYPE_CHECKING:
    from dagpu.plans.plan import Plan  # the type of `CudaGraph.plan`; imported by no running code

_T = TypeVar("_T")
_U = TypeVar("_U")
_T_co = TypeVar("_T_co", covariant=True)
_I_contra = TypeVar("_I_contra", contravariant=True)

_numbers: Final = itertools.count()


@final
class Captured:
    """A captured graph, for the ops and runs that launch it. It keeps all memory alive that its nodes use."""

    __slots__ = (
        "__weakref__", "_lent", "_token", "frozen", "number", "origin", "plan", "plans", "reads", "settings",
        "storages", "stream", "updates", "writes",
    )  # fmt: skip

    def __init__(
        self,
        frozen: object,
        plan: "Plan",
        stream: Stream,
        storages: dict[Storage, bool],
        lent: Iterable[tuple[HandleState, Lender]],
        origin: Origin,
        *,
        updates: Any,
        plans: Any,
        settings: Any,
    ) -> None:
        self.frozen = frozen
        """The backend's form of the captured plan. `Prepared.freeze` returned it."""
        self.plan = plan
        self.number = next(_numbers)
        """The number of this graph. No other graph in the process has it."""
        self.stream = stream
        self.storages = storages
        """The memory that the graph uses, its outputs included; the value is true for memory that it writes."""
        self.origin = origin
        self.updates = updates
        """The work that is enqueued for the next launch: a `GraphUpdates` of dagpu.runtime.run_call."""
        self.plans = plans
        """The plans of the graph's updates and of the ops that launch it: a `PlanCache`, which dies with the graph."""
        self.settings = settings
        """The `Settings` with which the graph was captured; see dagpu.runtime.loaded_plan."""
        self._lent = tuple(lent)
        # No tensor owns the temporaries, and two launches must not use them at once: each launch locks this storage.
        self._token = Storage(stream.device, 0, memory=())
        self.writes: Final = [storage.lock for storage, exclusive in self.locks().items() if exclusive]
        """The locks that a launch takes for writing."""
        self.reads: Final = [storage.lock for storage, exclusive in storages.items() if not exclusive]
        """The locks that a launch takes for reading."""

    def check(self) -> None:
        """Raise if a tensor that the graph reads or writes has been moved since the capture.

        Raises:
            MovedError: the message names the tensor and the move.
        """
        for used, lender in self._lent:
            if state_of(lender) is None:
                how, where = last_move(lender)
                raise MovedError(
                    f"the graph captured at {describe(self.origin)} uses {used.kind.__name__} made at "
                    f"{describe(used.origin)}, whose tensor was moved by {how} at {describe(where)}. Keep the tensor "
                    "where it is while the graph is in use, or capture the graph again."
                )

    def lenders(self) -> list[Lender]:
        """Return the tensors that must not have moved at a launch."""
        return [lender for _, lender in self._lent]

    def locks(self) -> dict[Storage, bool]:
        """Return the memory that a launch locks; the value is true for an exclusive lock."""
        return {**self.storages, self._token: True}

    def __repr__(self) -> str:
        return f"<graph captured at {describe(self.origin)}>"


@final
@frozen
class GraphLaunch(DeviceOp[None, Borrowed, NoAlloc]):
    """One launch of a captured graph, on the memory of its capture."""

    captured: Captured
    origin: Origin


@final
class CudaGraph(Generic[_T_co]):
    """An op captured by `op.graph()`, which is launched as a whole on the memory of the capture.

    The graph keeps the memory that its nodes use alive until its last launch is complete. The capture fixes its
    contents: closures are not called again, numbers and seeds stay the same. Random numbers without a seed differ in
    each launch. `update` writes new data to the memory that the graph reads.

    A value that a `shared()` op remembered before the capture is a constant. A value that the capture computed first is
    computed again by each launch, in the graph's memory; the `shared()` op itself has run, and remembers a copy.
    """

    def __init__(self, captured: Captured, output: _T_co) -> None:
        self._captured = captured
        self._output: Any = output
        self._taken: Origin | bool = False

    @leaves_run
    def take_output(self) -> _T_co:
        """Return the result of the captured op. It lies in the graph's memory, and every launch overwrites it.

        Raises:
            MovedError: an earlier call has returned it.
        """
        if self._taken is not False:
            assert not isinstance(self._taken, bool)
            raise MovedError(
                f"the output of {self!r} was taken at {describe(self._taken)}. take_output() works once: keep "
                "the value that the first call returned."
            )
        output, self._output, self._taken = self._output, None, here()
        return cast(_T_co, output)

    def launch(self) -> DeviceOp[None, Borrowed, NoAlloc]:
        """Return an op that launches the graph on its stream, after the work that `update` has enqueued there."""
        return GraphLaunch(self._captured, here())

    @leaves_run
    def update(self, op: DeviceOp[_U, Borrowed, NoAlloc]) -> _U:
        """Enqueue work on the graph's stream, before the next launch, and return at once: most often
        `graph.update(memcpy(input.borrow_mut(), new))`.

        The memory of the work stays locked until the next launch is complete, or until the work is complete if there is
        no launch. If the work fails, the next launch raises its error.

        Raises:
            CaptureError: the op allocates memory, or waits for the host.
            BorrowError: a run is using the same memory.
            NestedRunError: the call is in a closure, or in a scope.
        """
        check_op(op, "update", "Pass an op that writes what the graph reads: memcpy(t.borrow_mut(), new)")
        return RUNNER.value.update(self._captured, op)

    @property
    def plan(self) -> "Plan":
        """The plan that a launch replays. Print it, or draw its lanes with `save_svg(path)`."""
        return self._captured.plan

    @property
    def stream(self) -> Stream:
        """The stream on which the graph is launched."""
        return self._captured.stream

    @classmethod
    def scope(cls, stream: Stream) -> "AbstractContextManager[Scope]":
        """Record ops into a graph, in order; nothing runs. After the `with` block, `scope.graph` is the graph.

        An op may read memory that an earlier op writes. Ops work on existing tensors: an op that allocates memory is
        refused.
        """
        check_stream(stream, "scope", here())
        return RUNNER.value.scope(stream)

    def __repr__(self) -> str:
        return repr(self._captured)

    def _repr_html_(self) -> str:
        """Return the picture of the plan, for a notebook."""
        return self.plan._repr_html_()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            repr(self),
            "A copy would launch into the same memory, and give the same output to a second owner. Use the graph "
            "itself wherever it is wanted, or capture the op once more with op.graph()",
        )


if READER is not None:  # as `DeviceOp.sync`
    CudaGraph.launch = READER.launch_method(CudaGraph, CudaGraph.launch)  # type: ignore[method-assign]  # the same, in C


class ScopeRecorder(Protocol):
    """Records the ops of a scope, and makes a graph of them or returns their handles."""

    def record(self, op: DeviceOp[Any, Any, Any], /) -> Any: ...
    def abandon(self) -> None: ...
    def finish(self) -> Captured: ...


@final
class ScopeState:
    """The state shared by a `Scope` and its `with` block."""

    __slots__ = ("graph", "recording")

    def __init__(self, recording: ScopeRecorder) -> None:
        self.recording: ScopeRecorder | None = recording
        """The recorder of the block; None after the end of the block."""
        self.graph: CudaGraph[None] | None = None
        """The recorded graph; None until the block has ended without an error."""


@final
class Scope:
    """Records ops into a graph within a block `with CudaGraph.scope(stream) as scope`."""

    def __init__(self, state: ScopeState, origin: Origin) -> None:
        self._state = state
        self._origin = origin

    @leaves_run
    def record(self, op: DeviceOp[_T, Borrowed, NoAlloc]) -> _T:
        """Add an op. The next op may borrow the same tensors.

        Returns the op's result: handles whose contents are complete after a launch of the graph.

        Raises:
            CaptureError: the op allocates memory, or waits for the host.
        """
        check_op(op, "record", "Pass an op: a kernel call on t.borrow_mut().partition(tile), say")
        recording = self._state.recording
        if recording is None:
            raise CaptureError(
                f"record() at {describe(here())} after the end of the scope at {describe(self._origin)}. Record within "
                "its with block."
            )
        with Section("record() was called"):
            return cast(_T, recording.record(op))

    @property
    @leaves_run
    def graph(self) -> CudaGraph[None]:
        """The recorded graph. It exists after the `with` block has ended without an error."""
        graph, recording = self._state.graph, self._state.recording
        if graph is None:
            raise CaptureError(
                f"scope.graph at {describe(here())}: the scope at {describe(self._origin)} has no graph "
                + ("yet. Take it after its with block." if recording else "because it failed. Record it again.")
            )
        return graph

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            f"the scope at {describe(self._origin)}",
            "A copy would record into the same graph. Use the scope itself",
        )


class Module(Protocol[_I_contra, _T_co]):
    """A model whose forward pass is a captured graph: copy the input in, replay, return the output."""

    def forward(self, input: _I_contra, /) -> DeviceOp[_T_co, Borrowed, MayAlloc]: ...  # noqa: A002  # the name that the public contract has
