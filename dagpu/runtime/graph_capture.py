"""Captures one op, or the ops of a scope, as a graph, and starts the updates of captured graphs.

A graph is made from a scheduled and verified plan, not by recording a stream, so independent branches stay independent.
On a device without graphs a launch replays the plan.

A launch is safe because it is a run. It locks the memory that the capture borrowed, the graph's outputs, and the graph
itself; and it comes after the updates, which are in the same stream.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, final

from typing_extensions import TypeVar

from dagpu.backends.protocol import Run
from dagpu.common.critical import Section, pause_section, restore_section
from dagpu.common.errors import CaptureError
from dagpu.common.places import Origin, describe, here, start_of_run
from dagpu.handles import HandleState, Lender, SharedTensor, live_state
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.handle_state import Locks, Storage
from dagpu.handles.tensors import map_handles
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import On, Unzip, zip_ops
from dagpu.ops.creation import dup
from dagpu.ops.graph import Captured, CudaGraph, Scope, ScopeState
from dagpu.plans.placing import on_one_device
from dagpu.plans.plan import Plan
from dagpu.plans.program import GraphLaunch, HostCall, Program, Role
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.execute import (
    RecordingBlock,
    call_on_plan,
    enter_recording,
    execute_now,
    leave_recording,
    quiet_collector,
    refuse_nested,
)
from dagpu.runtime.loaded_plan import LoadedPlan, Settings, plan_stage
from dagpu.runtime.plan_lookup import PlanCache, PlanLookup
from dagpu.runtime.run_call import GraphUpdates, run_call, start_call
from dagpu.runtime.waits import BlockingWaits, drive
from dagpu.tracing.signature import BoundArguments
from dagpu.tracing.tracer import Tracer

# ---- capture


_LAUNCHERS = 16
"""The most structures of updates, and of ops that launch it, for which a graph keeps plans."""


def capture(
    op: DeviceOp[Any, Any, Any], stream: Stream | None, settings: Settings, origin: Origin
) -> tuple[Captured, Any]:
    """Run an op, and make a graph of its plan, on the memory of that run. Returns the graph and the op's result.

    A value that a `shared()` op remembered before is a constant. A value that the capture computes first is part of the
    graph: each launch computes it again, in the graph's memory. So the `shared()` op, which does not run a second time,
    remembers a copy of the value.

    Raises:
        CaptureError: part of the op cannot be in a graph. Nothing has run then.
    """
    waits = BlockingWaits()
    where = settings.device if stream is None else stream.device
    tracer = Tracer(op, where, settings.policy, find_device)
    locks = Locks(origin)
    try:
        with quiet_collector():
            stage = tracer.stage()
        while others := tracer.awaited_values():  # a value that another run is computing now becomes a constant
            drive(waits.wait_for_any(others))
            stage = tracer.stage()
        with quiet_collector():
            _refuse(tracer, stage.program, origin)
            plan = plan_stage(stage, settings.verify)
            where = _launching_device(plan, stream, f"the op captured at {describe(origin)}")
        call_on_plan(settings, op, plan)
        loaded, bound, constant = LoadedPlan(plan, settings), stage.bind(), stage.bind()
        drive(run_call(loaded, bound, locks, settings, waits))
        outputs, lent, owned = tracer.outputs(), tracer.lent_handles, tracer.owned_storages
        tracer.settle(bound.memory)
        tracer.stage()  # adds no instructions: tuples get their arrays, which are complete now
        assert tracer.finished
        for index, buffer in enumerate(plan.buffers):
            if buffer.role is Role.OUTPUT:
                constant.memory[index] = bound.memory[index]
        frozen = loaded.freeze(constant)
        locks.release()
        tracer.publish(_replace_by_copies(tracer.unpublished_handles(), {*outputs, *owned}, settings))
    except BaseException:
        tracer.abandon("the capture that was to make them failed")
        raise
    finally:
        locks.release()
    found = _new_captured(
        frozen, plan, stream or _own_stream(where), {**stage.locks, **outputs}, lent, origin, settings
    )
    _mark_written_by(found, (*outputs, *owned))
    return found, tracer.result


def _own_stream(where: Device) -> Stream:
    """Return a new stream of a device for a graph, by the public call `stream()`."""
    before = pause_section()
    try:
        return where.stream()
    finally:
        restore_section(before)


def _replace_by_copies(remembered: list[Any], written: set[Storage], settings: Settings) -> Callable[[Any], Any]:
    """Return a function that replaces handles in a remembered value by copies, if launches write their memory.

    This call makes all the copies, in one run.
    """
    changing = [handle for handle in remembered if live_state(handle).storage in written]
    if not changing:
        return lambda value: value
    quiet = replace(settings, graph_from=None, on_plan=None)
    copies = execute_now(zip_ops(*map(dup, changing)), quiet, start_of_run())
    constants = {
        id(handle): copy.share() if type(handle) is SharedTensor else copy.borrow()
        for handle, copy in zip(changing, copies, strict=True)
    }
    return lambda value: map_handles(lambda handle: constants.get(id(handle), handle), value)


def _mark_written_by(graph: object, storages: Iterable[Storage]) -> None:
    """Record in each storage that launches of `graph` write to it. `Tensor.share` checks this.

    A tensor that moved into the graph may come back in its result, where the user could share it.
    """
    for storage in storages:
        storage.graph = weakref.ref(graph)


@final
class ScopeRecording:
    """Records the ops of a scope, to make one graph of them. Nothing runs."""

    __slots__ = ("__weakref__", "_origin", "_settings", "_stream", "_tracers")

    def __init__(self, stream: Stream, settings: Settings, origin: Origin) -> None:
        self._stream = stream
        self._settings = settings
        self._origin = origin
        self._tracers: list[Tracer] = []

    def record(self, op: DeviceOp[Any, Any, Any]) -> Any:
        """Record one more op, which comes after earlier ops that use the same memory. Returns its result."""
        last = self._tracers[-1] if self._tracers else None
        tracer = Tracer(op, self._stream.device, on_one_device(self._settings.policy), find_device, after=last)
        value = tracer.record("recorded")
        self._tracers.append(tracer)
        _mark_written_by(self, tracer.owned_storages)
        return value

    def abandon(self) -> None:
        """Return the handles to the recorded ops, because the scope has failed."""
        for tracer in reversed(self._tracers):
            tracer.abandon("the scope that recorded them failed")

    def finish(self) -> Captured:
        """Make the graph of all recorded ops, and return it.

        Raises:
            CaptureError: there is nothing to launch, or all of it is on other devices than the scope's stream.
        """
        if not self._tracers:
            raise CaptureError(f"the scope at {describe(self._origin)} has recorded nothing. Call scope.record(op).")
        last = self._tracers[-1]
        stage = last.stage()
        _check_work(stage.program, self._origin)
        plan = plan_stage(stage, self._settings.verify)
        _launching_device(plan, self._stream, f"the scope at {describe(self._origin)}")
        loaded = LoadedPlan(plan, self._settings)
        loaded.compile()
        frozen = loaded.freeze(stage.bind())
        for tracer in self._tracers:
            tracer.discard_undo_log()
        found = _new_captured(frozen, plan, self._stream, stage.locks, last.lent_handles, self._origin, self._settings)
        _mark_written_by(found, [storage for tracer in self._tracers for storage in tracer.owned_storages])
        return found

    def __repr__(self) -> str:
        return f"<scope at {describe(self._origin)}>"


def _new_captured(
    frozen: object,
    plan: Plan,
    stream: Stream,
    storages: dict[Storage, bool],
    lent: list[tuple[HandleState, Lender]],
    origin: Origin,
    settings: Settings,
) -> Captured:
    plans = PlanCache(_LAUNCHERS, None)
    return Captured(
        frozen, plan, stream, storages, lent, origin, updates=GraphUpdates(), plans=plans, settings=settings
    )


def _check_work(program: Program, origin: Origin) -> None:
    """Check that there is something to launch."""
    if not program.instructions:
        raise CaptureError(
            f"the op captured at {describe(origin)} does no device work: there is nothing to launch again. Capture a "
            "kernel, a copy or a fill."
        )


def _launching_device(plan: Plan, stream: Stream | None, captured: str) -> Device:
    """Return the device in whose streams a plan's graph is launched: that of `stream`, or else the plan's first.

    Raises:
        CaptureError: nothing of the plan is on the device of `stream`.
    """
    if stream is None:
        return find_device(plan.devices[0])
    name = stream.device.name
    if name not in plan.devices:
        raise CaptureError(
            f"{captured} is launched on {name}, and works on {', '.join(plan.devices)}. Give a stream of "
            f"{plan.devices[0]}."
        )
    return stream.device


def _refuse(tracer: Tracer, program: Program, origin: Origin) -> None:
    _check_work(program, origin)
    captured = f"the op captured at {describe(origin)}"
    for instruction in program.instructions:
        if isinstance(instruction, HostCall):
            raise CaptureError(
                f"{captured} calls a function of the host, by host_map at {describe(instruction.origin)}, which a "
                "graph cannot. Capture what comes before it and what comes after it."
            )
        if isinstance(instruction, GraphLaunch):
            raise CaptureError(
                f"{captured} launches another graph at {describe(instruction.origin)}. Compose the two launches: "
                "a.launch().then(lambda _: b.launch())."
            )
    if (unsized := tracer.find_unsized()) is not None:
        raise CaptureError(
            f"{captured} goes on only when data has come to the host: {unsized} waits for the length of its result. "
            "Say the length: size=100."
        )
    if not tracer.ends_here:
        raise CaptureError(
            f"{captured} goes on only when data has come to the host, or another run is done. Capture what comes "
            "before that and what comes after it. A shared() op that has run before the capture is a constant in it."
        )
    left: Unzip[Any] | None = tracer.find_untaken()
    if left is not None:
        raise CaptureError(
            f"{captured} makes one component of {left!r} that it does not use. The owner of that op may still take the "
            "component, while every launch of the graph would overwrite it. Delete that op (del), or capture it too."
        )


# ---- updates


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
