"""Capturing graphs, and starting the updates of captured ones.

A graph is made of a plan that was scheduled and verified, not of the work that a stream happened to be given:
independent branches stay independent. On a device without graphs a launch replays the plan.

Why a launch is safe: it is a run. It locks the memory that was lent when the graph was captured, its outputs, and the
graph itself; and it comes after the updates, which are in the same stream.
"""

import weakref
from contextlib import AbstractContextManager
from typing import Any, final

from typing_extensions import TypeVar

from dagpu.backends.protocol import Bindings, Replay
from dagpu.common.critical import Section
from dagpu.common.origin import Origin, here
from dagpu.handles.device_handles import Stream
from dagpu.lowering.arguments.cache_key import Flattened, inputs_of
from dagpu.lowering.tracing.tracer import Tracer
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import On
from dagpu.ops.graph import Captured, CudaGraph, Scope, ScopeState
from dagpu.runtime.device_lookup import backend, find
from dagpu.runtime.execute import kind_of, plan_program
from dagpu.runtime.graphs.capture import ScopeRecording, capture, prepared_for
from dagpu.runtime.nesting import RecordingBlock, enter_recording, leave_recording, refuse_nested
from dagpu.runtime.plan_cache import CachedPlan
from dagpu.runtime.settings import Settings

_T = TypeVar("_T")
_U = TypeVar("_U")


@final
class ScopeBlock(AbstractContextManager[Scope]):
    """The `with` block of `CudaGraph.scope(stream)`."""

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
                captured = recording.captured()
        except BaseException:
            recording.abandon()
            raise
        self._state.graph = CudaGraph(captured, None)


def graph_of(op: DeviceOp[_T, Any, Any], stream: Stream | None, settings: Settings) -> CudaGraph[_T]:
    """`op.graph()` and `op.graph_on(stream)`."""
    origin = here()
    with Section("an op was captured"):
        captured, output = capture(op, stream, settings, origin)
    return CudaGraph(captured, output)


def update(captured: Captured, op: DeviceOp[_U, Any, Any]) -> _U:
    """`graph.update(op)`: start an op on a graph's stream, before its next launch."""
    refuse_nested(op)
    origin = here()
    with Section("update() was called"):
        result: _U = _enqueue(op, captured, captured.settings, origin)
        return result


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
    placed: On[Any], inputs: Flattened | None, captured: Captured, settings: Settings, origin: Origin
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
                new = CachedPlan(settings, repeat, backend(kind_of(plan)), prepared, tracer.reads)
                new.of(inputs, None)
                captured.plans.keep(inputs, new, settings)
        return tracer.result
    except BaseException:
        tracer.abandon("the update that was to write them failed")
        raise
