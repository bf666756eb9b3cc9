"""One run of one op: trace, lock, schedule, verify, submit, wait; stage by stage."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

from dagpu.backends.base import Bindings, Failure
from dagpu.device import Device
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule import schedule
from dagpu.lowering.trace import Stage, Tracer
from dagpu.lowering.verify import verify
from dagpu.ops.base import DeviceOp
from dagpu.origin import here
from dagpu.runtime.completion import Waits
from dagpu.runtime.device import backend, device
from dagpu.storage import Locks

_T = TypeVar("_T")


@final
class Settings:
    """What a run needs to know of its interpreter."""

    __slots__ = ("device", "policy", "spin", "verify")

    def __init__(self, where: Device, policy: Any, check: bool) -> None:
        self.device = where
        self.policy = policy
        self.verify = check
        self.spin = _spin_seconds()


def _spin_seconds() -> float | None:
    asked = os.environ.get("DAGPU_SPIN_US")
    if asked is None:
        return None
    try:
        return max(0.0, float(asked)) * 1e-6
    except ValueError:
        raise ValueError(f"DAGPU_SPIN_US={asked!r} is no number. Give microseconds, such as 20.") from None


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
    """Schedule, and verify what came of it."""
    plan = schedule(program)
    if check:
        verify(plan)
    return plan


def plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> Plan:
    """The plan of the op's first stage, with nothing run: what the op owns, it owns still."""
    tracer = Tracer(op, settings.device, settings.policy, device)
    try:
        return plan_program(tracer.stage().program, settings.verify)
    finally:
        tracer.abandon("it was only planned")


async def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits) -> _T:
    """Run an op to its result.

    Whatever happens, nothing is left running, and every lock and claim is given back.
    """
    tracer = Tracer(op, settings.device, settings.policy, device)
    locks = Locks(here())
    waited = False
    try:
        while True:
            with quiet_collector():
                stage = tracer.stage()
                plan = plan_program(stage.program, settings.verify) if stage.program.instructions else None
            if plan is not None:
                locks.acquire(stage.locks)
                await _run_plan(plan, stage, tracer, settings, waits)
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
        locks.release()


async def _run_plan(plan: Plan, stage: Stage, tracer: Tracer, settings: Settings, waits: Waits) -> None:
    await waits.before_submit()
    bindings = Bindings(len(plan.buffers))
    for index, held in stage.inputs.items():
        bindings.memory[index] = held
    driver = backend(plan.devices[0].partition(":")[0])
    tracer.submitted()
    replay = driver.submit(plan, bindings)
    try:
        await waits.replay(replay, driver.spin() if settings.spin is None else settings.spin)
    finally:
        failures = replay.failures()
        if failures:
            _raise(failures)
    tracer.settle(bindings.memory)


def _raise(failures: list[Failure]) -> None:
    """One failure as itself, several as a group."""
    if len(failures) == 1:
        raise failures[0].error
    raise BaseExceptionGroup(f"{len(failures)} ops of one run failed", [failure.error for failure in failures])
