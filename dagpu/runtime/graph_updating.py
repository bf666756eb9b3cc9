"""Captures graphs, and starts the updates of captured graphs.

A graph is made from a scheduled and verified plan, not by recording a stream, so independent branches stay independent.
On a device without graphs a launch replays the plan.

A launch is safe because it is a run. It locks the memory that the capture borrowed, the graph's outputs, and the graph
itself; and it comes after the updates, which are in the same stream.
"""

import weakref
from contextlib import AbstractContextManager
from typing import Any, final

from typing_extensions import TypeVar

from dagpu.backends.protocol import Run
from dagpu.common.critical import Section
from dagpu.common.places import Origin, here
from dagpu.handles.device_handles import Stream
from dagpu.handles.storage import Locks
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import On
from dagpu.ops.graph import Captured, CudaGraph, Scope, ScopeState
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.graph_capture import ScopeRecording, capture
from dagpu.runtime.loaded_plan import LoadedPlan, Settings, plan_stage
from dagpu.runtime.nesting import RecordingBlock, enter_recording, leave_recording, refuse_nested
from dagpu.runtime.plan_lookup import PlanLookup
from dagpu.runtime.run_call import start_call
from dagpu.runtime.waits import BlockingWaits, drive
from dagpu.tracing.signature import BoundArguments
from dagpu.tracing.tracer import Tracer

_T = TypeVar("_T")
_U = TypeVar("_U")


@final
class ScopeBlock(AbstractContextManager[Scope]):
    """The context manager that `CudaGraph.scope(stream)` returns."""

    def __init__(self, stream: Stream, settings: Settings, origin: Origin) -> None:
        self._state = ScopeState(ScopeRecording(stream, settings, origin))
        self._around: weakref.ref[RecordingBlock] | None = None
        self.origin = origin

    def __enter__(self) -> Scope:
        self._around = enter_recording(self)
        return Scope(self._state, self.origin)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        leave_recording(self._around)
        recording, self._state.recording = self._state.recording, None
        assert recording is not None
        if error is not None:
            recording.abandon()
            return
        try:
            with Section("a scope ended"):
                captured = recording.finish()
        except BaseException:
            recording.abandon()
            raise
        self._state.graph = CudaGraph(captured, None)


def graph_of(op: DeviceOp[_T, Any, Any], stream: Stream | None, settings: Settings) -> CudaGraph[_T]:
    """Capture an op, for `op.graph()` and `op.graph_on(stream)`."""
    origin = here()
    with Section("an op was captured"):
        captured, output = capture(op, stream, settings, origin)
    return CudaGraph(captured, output)


def update(captured: Captured, op: DeviceOp[_U, Any, Any]) -> _U:
    """Start an op on a graph's stream, before its next launch, for `graph.update(op)`."""
    refuse_nested(op)
    origin = here()
    with Section("update() was called"):
        result: _U = _enqueue(op, captured, captured.settings, origin)
        return result


def _enqueue(op: DeviceOp[Any, Any, Any], captured: Captured, settings: Settings, origin: Origin) -> Any:
    """Start an op on a graph's stream, with the plan of an earlier update if there is one. Returns the op's result."""
    placed: On[Any] = On(op, captured.stream, origin)
    lookup = PlanLookup(placed, settings, captured.plans)
    found = lookup.bind()
    if found is None:
        return _enqueue_traced(placed, lookup, captured, settings, origin)
    loaded, bound = found
    assert bound is not None
    _start_call(captured, loaded, bound, origin)
    return loaded.result(bound)


def _start_call(captured: Captured, loaded: LoadedPlan, bound: BoundArguments, origin: Origin) -> None:
    """Start a plan with bound inputs before the graph's next launch, which waits for it."""

    def start(locks: Locks) -> Run:
        run = drive(start_call(loaded, bound, locks, BlockingWaits()))
        assert run is not None, "an update decides nothing"
        return run

    captured.updates.enqueue(origin, start)


def _enqueue_traced(placed: On[Any], lookup: PlanLookup, captured: Captured, settings: Settings, origin: Origin) -> Any:
    """Trace and plan an op, and start it on a graph's stream. Returns the op's result."""
    tracer = Tracer(placed, captured.stream.device, settings.policy, find_device, lookup.inputs)
    try:
        tracer.record("given to update()")
        stage = tracer.stage()
        if stage.program.instructions:
            loaded = LoadedPlan(plan_stage(stage, settings.verify), settings)
            _start_call(captured, loaded, stage.bind(), origin)
            lookup.store(loaded, tracer.make_signature(), tracer.reads)
        return tracer.result
    except BaseException:
        tracer.abandon("the update that was to write them failed")
        raise
