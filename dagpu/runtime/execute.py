"""Runs one op: traces, locks, schedules, verifies, submits and waits, stage by stage."""

import gc
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dagpu.backends.protocol import Backend, Bindings, Failure, Replay
from dagpu.common.critical import pause_section, restore_section
from dagpu.common.errors import DeviceError
from dagpu.common.origin import start_of_run
from dagpu.common.tracebacks import passes_on
from dagpu.handles.storage import Locks
from dagpu.lowering.arguments.cache_key import Flattened, flatten_op, is_fixed
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.scheduler import schedule
from dagpu.lowering.tracing.signature import BoundArguments
from dagpu.lowering.tracing.tracer import Stage, Tracer
from dagpu.lowering.verify.verifier import verify
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Value
from dagpu.runtime.device_lookup import backend, find_device
from dagpu.runtime.graphs.graph_updates import EnqueuedUpdate
from dagpu.runtime.plan_cache import (
    CachedPlan,
    PlanCache,
    SubmittedRun,
    cache_of,
    find_on_op,
    most_nodes,
    store_plan,
    warn_uncacheable,
)
from dagpu.runtime.settings import Settings
from dagpu.runtime.waiting import Waits

_T = TypeVar("_T")


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would walk a trace again and again while it grows.

    A program and its plan have about ten objects for each launch, none of them garbage: at 100,000 launches the
    collector took half of the time of a trace. If several threads trace at once, it is off until the first one ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def plan_program(program: Program, check: bool) -> Plan:
    """Schedule a program, verify the plan if `check` is set, and return the plan."""
    plan = schedule(program)
    if check:
        verify(plan)
    return plan


def plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> Plan:
    """Return the plan of the op's first stage. Nothing is run, and the op keeps its handles."""
    tracer = Tracer(op, settings.device, settings.policy, find_device, flatten_op(op))
    try:
        return plan_program(tracer.stage().program, settings.verify)
    finally:
        tracer.abandon("it was only planned")


def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits) -> Coroutine[Any, Any, _T]:
    """Run an op, and return its result.

    When the run ends, also by an error or a cancellation, its work is complete and its locks and claims are released.
    """
    if type(op) is Value and is_fixed(op.content):
        return _run_value(op.content, waits)
    found = find_on_op(op, settings)
    if found is not None:
        again = _rerun(found[0], found[1], settings, waits)
        if again is not None:
            return again
    inputs = flatten_op(op, most_nodes(op), warn_uncacheable)
    cache = None if inputs is None else cache_of(inputs, settings)
    if inputs is not None and cache is not None:
        kept = cache.find(inputs, settings)
        if kept is not None:
            again = _rerun(kept, inputs.leaves, settings, waits)
            if again is not None:
                return again
    return _run_traced(op, settings, waits, inputs, cache)


async def _run_value(value: Any, waits: Waits) -> Any:
    """Run a plain value. There is no work to trace or launch, but the run is a checkpoint."""
    await waits.finish_run(False)
    return value


def _rerun(
    kept: CachedPlan, leaves: Sequence[Any], settings: Settings, waits: Waits
) -> Coroutine[Any, Any, Any] | None:
    """Return a run of a cached plan with these leaves; None if the plan does not fit them in their present state."""
    bindings = Bindings(kept.signature.buffers)
    bound = kept.signature.bind(bindings.memory, leaves)
    return None if bound is None else _run_cached(kept, bindings, bound, settings, waits)


async def _run_traced(
    op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, inputs: Flattened | None, cache: PlanCache | None
) -> _T:
    """Run an op without a cached plan: trace, plan and run it, stage by stage."""
    tracer = Tracer(op, settings.device, settings.policy, find_device, inputs)
    locks = Locks(start_of_run())
    updates = EnqueuedUpdate()
    waited = False
    try:
        while True:
            stage = await _next_stage(tracer, waits)
            with quiet_collector():
                plan = plan_program(stage.program, settings.verify) if stage.program.instructions else None
            if plan is not None:
                call_on_plan(settings, op, plan)
                for graph in stage.graphs:
                    graph.updates.transfer(locks, updates)
                locks.acquire(stage.locks)
                submitted = await submit_stage(plan, stage, tracer, waits)
                try:
                    # The plan is stored while the device works. It is valid however this run ends.
                    repeat = tracer.make_signature()
                    if repeat is not None:
                        kept = CachedPlan(settings, repeat, submitted.driver, submitted.prepared, tracer.reads)
                        store_plan(op, kept, settings, inputs, cache)
                except BaseException:
                    submitted.replay.cancel()
                    await waits.drain_replay(submitted.replay)
                    raise
                await wait_for_run(submitted, settings, waits)
                await _drain_updates(updates, waits)
                tracer.settle(submitted.bindings.memory)
                waited = True
            else:
                tracer.settle([])
            if tracer.finished:
                result: _T = tracer.result
                break
            if plan is None:
                if not (others := tracer.awaited_values()):
                    raise tracer.stuck_error()
                await waits.wait_for_any(others)
                waited = True
        await waits.finish_run(waited)
        return result
    except BaseException:
        tracer.abandon("the run that was to make them failed or was cancelled")
        raise
    finally:
        try:
            await _drain_updates(updates, waits)
        finally:
            locks.release()


async def _next_stage(tracer: Tracer, waits: Waits) -> Stage:
    """Return the next stage of a trace. The trace pauses between two closures when `waits.pause_is_due()`."""
    turns = tracer.stage_in_turns(waits.pause_is_due)
    while True:
        with quiet_collector():
            try:
                next(turns)
            except StopIteration as end:
                stage: Stage = end.value
                return stage
        await waits.pause()


async def _run_cached(
    kept: CachedPlan, bindings: Bindings, bound: BoundArguments, settings: Settings, waits: Waits
) -> Any:
    """Run a cached plan: bind its inputs, launch it, and build its result. Nothing is traced or scheduled."""
    origin = start_of_run() if bound.locks else None  # most runs lock nothing, and finding the place takes 1 us
    locks = Locks(origin) if bound.locks else None
    updates = EnqueuedUpdate()
    submitted = False
    try:
        if locks is not None:
            for captured in bound.graphs:
                captured.updates.transfer(locks, updates)
            locks.acquire(bound.locks)
            bound.take_leaves(origin)
        graph = kept.wants_graph()
        if graph and (instantiate := kept.prepared.before_graph) is not None:
            await waits.run_slow_work(instantiate)
        await waits.before_submit()
        replay = kept.prepared.submit(bindings, _spin_seconds(kept.driver, settings), graph=graph)
        submitted = True
        await _finish_replay(replay, 0.0, waits)
        if bound.graphs:
            await _drain_updates(updates, waits)
        return kept.signature.result(bindings.memory, bound.leaves)
    except BaseException:
        if not submitted:
            bound.return_leaves()
        raise
    finally:
        if locks is not None:
            try:
                await _drain_updates(updates, waits)
            finally:
                locks.release()


async def _drain_updates(updates: EnqueuedUpdate, waits: Waits) -> None:
    """Wait for the updates before a graph's launch, remove them from `updates`, and raise their failures."""
    while updates.replays:
        replay = updates.replays.pop(0)
        await waits.drain_replay(replay)
        updates.failures += replay.failures()
    if updates.failures:
        _raise_failures(updates.failures)


def call_on_plan(settings: Settings, op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
    """Call the setting `on_plan`, if there is one, with a new plan. That function may run ops itself."""
    if settings.on_plan is not None:
        before = pause_section()
        try:
            settings.on_plan(op, plan)
        finally:
            restore_section(before)


async def submit_stage(plan: Plan, stage: Stage, tracer: Tracer, waits: Waits) -> SubmittedRun:
    """Prepare a plan, and start a replay of it with the stage's inputs."""
    driver = backend(device_kind_of(plan))
    prepared = driver.prepare(plan)
    if prepared.before_first is not None:
        await waits.run_slow_work(prepared.before_first)
    await waits.before_submit()
    bindings = Bindings(len(plan.buffers))
    for index, held in stage.inputs.items():
        bindings.memory[index] = held
    replay = prepared.submit(bindings)
    tracer.discard_undo_log()
    return SubmittedRun(driver, prepared, bindings, replay)


def device_kind_of(plan: Plan) -> str:
    """Return the kind of the devices of a plan, which is that of the backend that runs it.

    Raises:
        DeviceError: the plan uses devices of several kinds.
    """
    first, *others = plan.devices
    kind = first.partition(":")[0]
    for name in others:
        if name.partition(":")[0] != kind:
            raise DeviceError(
                f"an op uses {first} and {name} at once, which have no memory or streams in common. Go from one to the "
                "other through an array: array = await op.to_host(), then from_host(array)."
            )
    return kind


def _spin_seconds(driver: Backend, settings: Settings) -> float:
    """Return the seconds for which a run polls before it sleeps."""
    return driver.spin() if settings.spin is None else settings.spin


async def wait_for_run(submitted: SubmittedRun, settings: Settings, waits: Waits) -> None:
    """Wait until a submitted stage is complete, or has been drained after a cancellation. Raises its failures."""
    await _finish_replay(submitted.replay, _spin_seconds(submitted.driver, settings), waits)


async def _finish_replay(replay: Replay, spin: float, waits: Waits) -> None:
    """Wait until a replay is complete, or has been drained after a cancellation. Raises its failures."""
    try:
        await waits.wait_for_replay(replay, spin)
    finally:
        failures = replay.failures()
        if failures:
            _raise_failures(failures)


@passes_on
def _raise_failures(failures: list[Failure]) -> None:
    """Raise one failure as it is, or several as an exception group, and empty the list.

    An error whose traceback refers to a list that contains the error would be a reference cycle: it would keep the
    run's memory until the cyclic garbage collector runs.
    """
    errors = [failure.error for failure in failures]
    failures.clear()
    try:
        if len(errors) == 1:
            raise errors[0]
        raise BaseExceptionGroup(f"{len(errors)} ops of one run failed", errors)
    finally:
        del errors
