"""One run of one op: trace, lock, schedule, verify, submit, wait; stage by stage."""

import gc
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

from dagpu.backends.base import Backend, Bindings, Failure, Prepared, Replay
from dagpu.device import Device
from dagpu.errors import DeviceError
from dagpu.lowering.list_schedule import ListSchedule
from dagpu.lowering.plan import Plan
from dagpu.lowering.policies import RoundRobin, SingleStream, arranged
from dagpu.lowering.program import Program
from dagpu.lowering.reuse import Repeat
from dagpu.lowering.schedule import schedule
from dagpu.lowering.trace import Stage, Tracer
from dagpu.lowering.verify import verify
from dagpu.ops.base import DeviceOp, keep_for_later_runs, kept_from_earlier_runs
from dagpu.origin import here
from dagpu.runtime.completion import Waits
from dagpu.runtime.device import backend, device
from dagpu.runtime.environment import Variable
from dagpu.storage import Locks, Storage

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


_SPIN = Variable("DAGPU_SPIN_US")


def _spin_seconds() -> float | None:
    asked = _SPIN.get()
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
    """Put in the policies' order, schedule, and verify what came of it."""
    plan = schedule(arranged(program))
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


@final
class Kept:
    """What a run leaves for later runs of the same op: the plan, made ready by its backend, and how to run it again.

    Immutable, and used by any number of runs at once. It hangs on the op, and dies with it.
    """

    __slots__ = ("device", "driver", "policy", "prepared", "repeat", "verify")

    def __init__(self, settings: Settings, repeat: Repeat, driver: Backend, prepared: Prepared) -> None:
        self.device = settings.device
        self.policy = settings.policy
        self.verify = settings.verify
        self.repeat = repeat
        self.driver = driver
        self.prepared = prepared

    def suits(self, settings: Settings) -> bool:
        """Would these settings give the same plan? A policy of the user's is asked once; it is known by identity."""
        policy = settings.policy
        return (
            self.device is settings.device
            and (self.policy is policy or (type(policy) in _BY_VALUE and self.policy == policy))
            and self.verify is settings.verify
        )


_BY_VALUE = frozenset((SingleStream, RoundRobin, ListSchedule))
_KEPT_PER_OP = 8
"""For how many devices and policies an op keeps a plan: the latest."""


def _find_kept(op: DeviceOp[Any, Any, Any], settings: Settings) -> Kept | None:
    kept: Kept
    for kept in kept_from_earlier_runs(op) or ():
        if kept.suits(settings):
            return kept
    return None


def _keep(op: DeviceOp[Any, Any, Any], new: Kept, settings: Settings) -> None:
    """Of two first runs that are under way at once the later one's is kept: one plan for each setting."""
    before = kept_from_earlier_runs(op)
    others = [kept for kept in before if not kept.suits(settings)] if before else ()
    keep_for_later_runs(op, (new, *others[: _KEPT_PER_OP - 1]))


def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits) -> Coroutine[Any, Any, _T]:
    """Run an op to its result.

    Whatever happens, nothing is left running, and every lock and claim is given back.
    """
    kept = _find_kept(op, settings)
    if kept is not None:
        bindings = Bindings(kept.repeat.buffers)
        wanted = kept.repeat.bind(bindings.memory)
        if wanted is not None:
            return _run_again(kept, bindings, wanted, settings, waits)
    return _run_anew(op, settings, waits)


async def _run_anew(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits) -> _T:
    """Trace, plan, run; stage by stage."""
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
                await _run_plan(op, plan, stage, tracer, settings, waits)
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


async def _run_again(
    kept: Kept, bindings: Bindings, wanted: dict[Storage, bool], settings: Settings, waits: Waits
) -> Any:
    """Run a plan that an earlier run has left: no trace, no schedule; what this costs is its inputs and outputs."""
    locks = Locks(here()) if wanted else None  # most have nothing to lock, and looking up the place takes 1 us
    if locks is not None:
        locks.acquire(wanted)
    try:
        await waits.before_submit()
        spin = _spin(kept.driver, settings)
        await _replay(kept.prepared.submit(bindings, spin), 0.0, waits)
        return kept.repeat.result(bindings.memory)
    finally:
        if locks is not None:
            locks.release()


async def _run_plan(
    op: DeviceOp[Any, Any, Any], plan: Plan, stage: Stage, tracer: Tracer, settings: Settings, waits: Waits
) -> None:
    driver = backend(_kind_of(plan))
    prepared = driver.prepare(plan)
    if prepared.before_first is not None:
        await waits.slowly(prepared.before_first)
    await waits.before_submit()
    bindings = Bindings(len(plan.buffers))
    for index, held in stage.inputs.items():
        bindings.memory[index] = held
    replay = prepared.submit(bindings)
    tracer.submitted()
    # Now, while the device is at work. However this run ends, the plan was right.
    repeat = tracer.repeat()
    if repeat is not None:
        _keep(op, Kept(settings, repeat, driver, prepared), settings)
    await _replay(replay, _spin(driver, settings), waits)
    tracer.settle(bindings.memory)


def _kind_of(plan: Plan) -> str:
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
    """For how long to poll before sleeping."""
    return driver.spin() if settings.spin is None else settings.spin


async def _replay(replay: Replay, spin: float, waits: Waits) -> None:
    """Until it is done, or has been drained."""
    try:
        await waits.replay(replay, spin)
    finally:
        failures = replay.failures()
        if failures:
            _raise(failures)


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
