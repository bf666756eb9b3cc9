"""Runs one op: traces, locks, schedules, verifies, submits and waits, stage by stage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, final

from dagpu.common.critical import pause_section, restore_section
from dagpu.common.origin import Origin
from dagpu.handles.storage import Locks
from dagpu.lowering.arguments.cache_key import flatten_op
from dagpu.lowering.arguments.exact_tokens import is_fixed
from dagpu.lowering.plan import Plan
from dagpu.lowering.reuse.bound_arguments import BoundArguments
from dagpu.lowering.tracing.deferred import Deferred
from dagpu.lowering.tracing.tracer import Stage, Tracer
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Value
from dagpu.ops.live.versions import Snapshot
from dagpu.runtime.calls.direct_call import MISS
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_stage
from dagpu.runtime.calls.run_call import run_bound, run_call
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.plan_lookup import PlanLookup, direct_call, pipeline_call
from dagpu.runtime.waiting.waits import BlockingWaits, Waits, drive

_T = TypeVar("_T")
_blocking: Final = BlockingWaits()


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


def plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> Plan:
    """Return the plan of the op's first stage. Nothing is run, and the op keeps its handles."""
    tracer = Tracer(op, settings.device, settings.policy, find_device, flatten_op(op))
    try:
        return plan_stage(tracer.stage(), settings.verify)
    finally:
        tracer.abandon("it was only planned")


def execute_now(op: DeviceOp[Any, Any, Any], settings: Settings, origin: Origin) -> Any:
    """Run an op, block this thread until its result is complete, and return it. See `execute`."""
    call = direct_call(op) if settings.direct else None
    if call is not None:
        loaded, direct, arguments, named, cache = call
        result = direct.now(loaded, arguments, named, settings, origin)
        if result is not MISS:
            if cache is not None:
                cache.hits += 1
            return result
    return drive(execute(op, settings, _blocking, origin))


async def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run an op, and return its result. `origin` is the place in the user's code that starts the run.

    It uses the plan of an earlier run that the op's key finds. It traces the op if there is none, or if another run has
    claimed a value that the plan computes. When the run ends, also by an error or a cancellation, its work is complete
    and its locks and claims are released.
    """
    call = pipeline_call(op)
    if call is not None and (check := call[0].check) is not None:
        return await check(op, settings, waits, origin)
    return await run_unchecked(op, settings, waits, origin)


async def run_unchecked(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run an op as `execute` does, also the call of a pipeline that is checked."""
    if type(op) is Value and is_fixed(op.content):  # no work to trace or launch, but the run is a checkpoint
        await waits.finish_run(False)
        return op.content
    lookup = PlanLookup(op, settings)
    found = await _run_by_a_plan(lookup, settings, waits, origin)
    return await _run_traced(op, settings, waits, lookup, origin) if found is MISS else found


async def _run_by_a_plan(lookup: PlanLookup, settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run an op by the plan of an earlier run that its key finds. Return `MISS` if it needs a trace."""
    found = lookup.bind()
    if found is None:
        return MISS
    loaded, bound = found
    if bound is None:
        assert lookup.inputs is not None
        again, leaves = loaded.again, lookup.inputs.leaves
        if waits is _blocking:
            result = again.now(loaded, leaves, (), settings, origin)
        else:
            result = await again.in_task(loaded, leaves, (), settings, origin)
        if result is not MISS:
            return result
        bound = lookup.bind_again(loaded)
    if bound is not None and (bound.claims is None or bound.claims.claim()):
        return await _run_found(loaded, bound, settings, waits, origin)
    return MISS


async def _run_found(
    loaded: LoadedPlan, bound: BoundArguments, settings: Settings, waits: Waits, origin: Origin
) -> Any:
    """Run a plan of an earlier run. The run has claimed the values of `Shared` and `Unzip` that it computes."""
    claims = bound.claims
    if claims is None:
        return await run_bound(loaded, bound, settings, waits, origin)
    try:
        return claims.publish(await run_bound(loaded, bound, settings, waits, origin))
    finally:
        claims.abandon()


@final
class _WaitsForWhole(Exception):  # reason: it is a result and no error
    """Raised by the run of a part of an op: it needs a value that the run of the whole is making."""


@final
@dataclass(frozen=True, slots=True)
class _Whole:
    """The run of an op, for the runs of its parts."""

    instant: Snapshot
    """The instant at which all of them read sources."""
    runs: tuple[object, ...]
    """The owners of its claims, and of those of the runs that it is a part of."""


async def _run_traced(
    op: DeviceOp[_T, Any, Any],
    settings: Settings,
    waits: Waits,
    lookup: PlanLookup,
    origin: Origin,
    whole: _Whole | None = None,
    read: dict[Any, int] | None = None,
) -> _T:
    """Run an op without a cached plan: trace, plan and run it, stage by stage. Store the plan for later runs.

    For a part of a `whole`, `read` gets the sources that the run has read, with their revisions.
    """
    tracer = Tracer(op, settings.device, settings.policy, find_device, lookup.inputs, origin)
    if whole is not None:
        tracer.read_sources_at(whole.instant)
    if lookup.inputs is None:
        tracer.find_parts(op)
    locks = Locks(origin)
    waited = False
    try:
        while True:
            stage = await next_stage(tracer, waits)
            with quiet_collector():
                plan = plan_stage(stage, settings.verify) if stage.program.instructions else None
            if plan is not None:
                tracer.begin_work()
                call_on_plan(settings, op, plan)
                loaded, bound = LoadedPlan(plan, settings), stage.bind()
                await run_call(loaded, bound, locks, settings, waits, partial(_store, lookup, loaded, tracer))
                tracer.settle(bound.memory)
                waited = True
            else:
                tracer.settle([])
            if tracer.remembers:
                locks.hand_on(tracer.published_storages())
                tracer.publish()
            if tracer.finished:
                result: _T = tracer.result
                break
            if parts := tracer.parts_to_run():
                await _run_parts(tracer, parts, settings, waits, origin, whole)
                waited = True
            elif plan is None:
                if not (others := tracer.awaited_values()):
                    raise tracer.stuck_error()
                if whole is not None and any(once.owner in whole.runs for once in others):
                    raise _WaitsForWhole
                await waits.wait_for_any(others)
                waited = True
        await waits.finish_run(waited)
        if read is not None:
            read |= tracer.read_sources()
        lookup.warn_never_kept(tracer.never_kept)
        return result
    except BaseException:
        tracer.abandon("the run that was to make them failed or was cancelled")
        raise
    finally:
        locks.release()


async def _run_parts(
    tracer: Tracer, parts: list[Deferred], settings: Settings, waits: Waits, origin: Origin, whole: _Whole | None
) -> None:
    """Run parts of the op that is traced, together, by a plan of their own."""
    op = tracer.op_of_parts(parts)
    lookup = PlanLookup(op, settings, instant=tracer.instant)
    read: dict[Any, int] = {}
    result = await _run_by_a_plan(lookup, settings, waits, origin)
    if result is MISS:
        inner = _Whole(tracer.instant, (tracer.run, *(() if whole is None else whole.runs)))
        try:
            result = await _run_traced(op, settings, waits, lookup, origin, inner, read)
        except _WaitsForWhole:
            tracer.trace_parts(parts)
            return
    if lookup.inputs is not None:
        read |= lookup.inputs.revisions()
    tracer.finish_parts(parts, result, read)


def _store(lookup: PlanLookup, loaded: LoadedPlan, tracer: Tracer) -> None:
    """Store a submitted plan, while the device works. It is valid however this run ends."""
    lookup.store(loaded, tracer.make_signature(), tracer.reads)


async def next_stage(tracer: Tracer, waits: Waits) -> Stage:
    """Return the next stage of a trace. The trace pauses between two closures when `waits.pause_is_due()`, and while a
    library prepares its work."""
    turns = tracer.stage_in_turns(waits.pause_is_due)
    while True:
        with quiet_collector():
            try:
                work = next(turns)
            except StopIteration as end:
                stage: Stage = end.value
                return stage
        if work is None:
            await waits.pause()
        else:
            await waits.run_slow_work(work)


def call_on_plan(settings: Settings, op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
    """Call the setting `on_plan`, if there is one, with a new plan. That function may run ops itself."""
    if settings.on_plan is not None:
        before = pause_section()
        try:
            settings.on_plan(op, plan)
        finally:
            restore_section(before)
