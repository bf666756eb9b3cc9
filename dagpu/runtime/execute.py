"""One run of one op: trace, lock, schedule, verify, submit, wait; stage by stage."""

import gc
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dagpu.backends.protocol import Backend, Bindings, Failure, Replay
from dagpu.common.critical import leave, pause
from dagpu.common.errors import DeviceError
from dagpu.common.origin import start_of_run
from dagpu.common.tracebacks import passes_on
from dagpu.handles.storage import Locks
from dagpu.lowering.arguments.cache_key import Flattened, inputs_of, is_fixed
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.scheduler import schedule
from dagpu.lowering.tracing.signature import BoundArguments
from dagpu.lowering.tracing.tracer import Stage, Tracer
from dagpu.lowering.verify.verifier import verify
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Value
from dagpu.runtime.device_lookup import backend, find
from dagpu.runtime.graphs.graph_updates import EnqueuedUpdate
from dagpu.runtime.plan_cache import CachedPlan, PlanCache, SubmittedRun, cache_of, keep, kept_by, most_nodes, refused
from dagpu.runtime.settings import Settings
from dagpu.runtime.waiting import Waits

_T = TypeVar("_T")


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking a trace again and again while it grows.

    A program and its plan are some ten objects for each launch, none of them garbage: at 100,000 launches the
    collector was half of the cost of tracing. Where several threads trace at once it stays off until the first ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def plan_program(program: Program, check: bool) -> Plan:
    """Schedule the program, and verify the plan if `check` is set."""
    plan = schedule(program)
    if check:
        verify(plan)
    return plan


def plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> Plan:
    """The plan of the op's first stage. Nothing is run, and the op still owns its handles."""
    tracer = Tracer(op, settings.device, settings.policy, find, inputs_of(op))
    try:
        return plan_program(tracer.stage().program, settings.verify)
    finally:
        tracer.abandon("it was only planned")


def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits) -> Coroutine[Any, Any, _T]:
    """Run an op to its result.

    Whatever happens, nothing is left running, and every lock and claim is given back.
    """
    if type(op) is Value and is_fixed(op.held):
        return _given(op.held, waits)
    found = kept_by(op, settings)
    if found is not None:
        again = _again(found[0], found[1], settings, waits)
        if again is not None:
            return again
    inputs = inputs_of(op, most_nodes(op), refused)
    cache = None if inputs is None else cache_of(inputs, settings)
    if inputs is not None and cache is not None:
        kept = cache.find(inputs, settings)
        if kept is not None:
            again = _again(kept, inputs.leaves, settings, waits)
            if again is not None:
                return again
    return _run_anew(op, settings, waits, inputs, cache)


async def _given(value: Any, waits: Waits) -> Any:
    """A run of a plain value: nothing to trace, and all the same a checkpoint."""
    await waits.finish(False)
    return value


def _again(
    kept: CachedPlan, leaves: Sequence[Any], settings: Settings, waits: Waits
) -> Coroutine[Any, Any, Any] | None:
    """A run of a plan that an earlier run has left; None if it does not suit these leaves as they are now."""
    bindings = Bindings(kept.repeat.buffers)
    bound = kept.repeat.bind(bindings.memory, leaves)
    return None if bound is None else _run_again(kept, bindings, bound, settings, waits)


async def _run_anew(
    op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, inputs: Flattened | None, cache: PlanCache | None
) -> _T:
    """Trace, plan, run; stage by stage."""
    tracer = Tracer(op, settings.device, settings.policy, find, inputs)
    locks = Locks(start_of_run())
    updates = EnqueuedUpdate()
    waited = False
    try:
        while True:
            stage = await _traced(tracer, waits)
            with quiet_collector():
                plan = plan_program(stage.program, settings.verify) if stage.program.instructions else None
            if plan is not None:
                tell(settings, op, plan)
                for graph in stage.graphs:
                    graph.updates.hand_over(locks, updates)
                locks.acquire(stage.locks)
                submitted = await submit(plan, stage, tracer, waits)
                try:
                    # Now, while the device is at work. However this run ends, the plan was right.
                    repeat = tracer.repeat()
                    if repeat is not None:
                        kept = CachedPlan(settings, repeat, submitted.driver, submitted.prepared, tracer.reads)
                        keep(op, kept, settings, inputs, cache)
                except BaseException:
                    submitted.replay.cancel()
                    await waits.drain(submitted.replay)
                    raise
                await settled(submitted, settings, waits)
                await _drain(updates, waits)
                tracer.settle(submitted.bindings.memory)
                waited = True
            else:
                tracer.settle([])
            if tracer.finished:
                result: _T = tracer.result
                break
            if plan is None:
                if not (others := tracer.waits_for()):
                    raise tracer.stuck()
                await waits.once(others)
                waited = True
        await waits.finish(waited)
        return result
    except BaseException:
        tracer.abandon("the run that was to make them failed or was cancelled")
        raise
    finally:
        try:
            await _drain(updates, waits)
        finally:
            locks.release()


async def _traced(tracer: Tracer, waits: Waits) -> Stage:
    """The next stage of a trace. It pauses between two closures where `waits` finds that due."""
    turns = tracer.in_turns(waits.due)
    while True:
        with quiet_collector():
            try:
                next(turns)
            except StopIteration as end:
                stage: Stage = end.value
                return stage
        await waits.pause()


async def _run_again(
    kept: CachedPlan, bindings: Bindings, bound: BoundArguments, settings: Settings, waits: Waits
) -> Any:
    """Run a plan that an earlier run has left: no trace, no schedule; what this costs is its inputs and outputs."""
    origin = start_of_run() if bound.locks else None  # most have nothing to lock, and looking up the place takes 1 us
    locks = Locks(origin) if bound.locks else None
    updates = EnqueuedUpdate()
    submitted = False
    try:
        if locks is not None:
            for captured in bound.graphs:
                captured.updates.hand_over(locks, updates)
            locks.acquire(bound.locks)
            bound.take(origin)
        graph = kept.wants_graph()
        if graph and (instantiate := kept.prepared.before_graph) is not None:
            await waits.slowly(instantiate)
        await waits.before_submit()
        replay = kept.prepared.submit(bindings, _spin(kept.driver, settings), graph=graph)
        submitted = True
        await _replay(replay, 0.0, waits)
        if bound.graphs:
            await _drain(updates, waits)
        return kept.repeat.result(bindings.memory, bound.leaves)
    except BaseException:
        if not submitted:
            bound.undo()
        raise
    finally:
        if locks is not None:
            try:
                await _drain(updates, waits)
            finally:
                locks.release()


async def _drain(updates: EnqueuedUpdate, waits: Waits) -> None:
    """Wait for the work that was enqueued before a graph's launch, and empty `updates`. Raises its failures."""
    while updates.replays:
        replay = updates.replays.pop(0)
        await waits.drain(replay)
        updates.failures += replay.failures()
    if updates.failures:
        _raise(updates.failures)


def tell(settings: Settings, op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
    """Call `on_plan` with a new plan, if there is one. It may run ops itself."""
    if settings.on_plan is not None:
        before = pause()
        try:
            settings.on_plan(op, plan)
        finally:
            leave(before)


async def submit(plan: Plan, stage: Stage, tracer: Tracer, waits: Waits) -> SubmittedRun:
    """Make a plan ready, and start it."""
    driver = backend(kind_of(plan))
    prepared = driver.prepare(plan)
    if prepared.before_first is not None:
        await waits.slowly(prepared.before_first)
    await waits.before_submit()
    bindings = Bindings(len(plan.buffers))
    for index, held in stage.inputs.items():
        bindings.memory[index] = held
    replay = prepared.submit(bindings)
    tracer.submitted()
    return SubmittedRun(driver, prepared, bindings, replay)


def kind_of(plan: Plan) -> str:
    """The kind of all devices of a plan: one backend runs it."""
    first, *others = plan.devices
    kind = first.partition(":")[0]
    for name in others:
        if name.partition(":")[0] != kind:
            raise DeviceError(
                f"an op uses {first} and {name} at once, which have no memory or streams in common. Go from one to the "
                "other through an array: array = await op.to_host(), then from_host(array)."
            )
    return kind


def _spin(driver: Backend, settings: Settings) -> float:
    """Seconds for which to poll before sleeping."""
    return driver.spin() if settings.spin is None else settings.spin


async def settled(submitted: SubmittedRun, settings: Settings, waits: Waits) -> None:
    """Wait until a stage is done, or has been drained; raises its failures."""
    await _replay(submitted.replay, _spin(submitted.driver, settings), waits)


async def _replay(replay: Replay, spin: float, waits: Waits) -> None:
    """Wait until a replay is done, or has been drained; raises its failures."""
    try:
        await waits.replay(replay, spin)
    finally:
        failures = replay.failures()
        if failures:
            _raise(failures)


@passes_on
def _raise(failures: list[Failure]) -> None:
    """One failure as itself, several as a group. Empties the list: an error whose traceback led to a list with itself
    in it would keep the run's memory until the cyclic collector comes."""
    errors = [failure.error for failure in failures]
    failures.clear()
    try:
        if len(errors) == 1:
            raise errors[0]
        raise BaseExceptionGroup(f"{len(errors)} ops of one run failed", errors)
    finally:
        del errors
