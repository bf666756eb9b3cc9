"""Runs one op: traces, locks, schedules, verifies, submits and waits, stage by stage."""

import gc
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from dagpu.common.critical import pause_section, restore_section
from dagpu.common.origin import start_of_run
from dagpu.lowering.arguments.cache_key import flatten_op, is_fixed
from dagpu.lowering.plan import Plan
from dagpu.lowering.tracing.signature import BoundArguments
from dagpu.lowering.tracing.tracer import Stage, Tracer
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Value
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.run_call import RunLocks, run_call
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.plan_cache import PlanLookup
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
    lookup = PlanLookup(op, settings)
    found = lookup.bind()
    return _run_traced(op, settings, waits, lookup) if found is None else _run_bound(*found, settings, waits)


async def _run_value(value: Any, waits: Waits) -> Any:
    """Run a plain value. There is no work to trace or launch, but the run is a checkpoint."""
    await waits.finish_run(False)
    return value


async def _run_traced(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, lookup: PlanLookup) -> _T:
    """Run an op without a cached plan: trace, plan and run it, stage by stage. Store the plan for later runs."""
    tracer = Tracer(op, settings.device, settings.policy, find_device, lookup.inputs)
    locks = RunLocks(start_of_run())
    waited = False
    try:
        while True:
            stage = await next_stage(tracer, waits)
            with quiet_collector():
                plan = plan_program(stage.program, settings.verify) if stage.program.instructions else None
            if plan is not None:
                call_on_plan(settings, op, plan)
                loaded, bound = LoadedPlan(plan, settings), stage.bind()
                await run_call(loaded, bound, locks, settings, waits, partial(_store, lookup, loaded, tracer))
                tracer.settle(bound.memory)
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
        await locks.end_run(waits)


def _store(lookup: PlanLookup, loaded: LoadedPlan, tracer: Tracer) -> None:
    """Store a submitted plan, while the device works. It is valid however this run ends."""
    lookup.store(loaded, tracer.make_signature(), tracer.reads)


async def next_stage(tracer: Tracer, waits: Waits) -> Stage:
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


async def _run_bound(loaded: LoadedPlan, bound: BoundArguments, settings: Settings, waits: Waits) -> Any:
    """Run a plan of an earlier run with bound inputs, and build its result. Nothing is traced or scheduled."""
    locks = RunLocks(start_of_run()) if bound.locks or bound.moves else None  # finding the place takes 1 us
    try:
        await run_call(loaded, bound, locks, settings, waits)
        return loaded.result(bound)
    finally:
        if locks is not None:
            await locks.end_run(waits)


def call_on_plan(settings: Settings, op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
    """Call the setting `on_plan`, if there is one, with a new plan. That function may run ops itself."""
    if settings.on_plan is not None:
        before = pause_section()
        try:
            settings.on_plan(op, plan)
        finally:
            restore_section(before)
