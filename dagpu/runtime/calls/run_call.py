"""The one way to run a loaded plan: lock, take the handles, submit, wait and raise the failures."""

from collections.abc import Callable
from typing import Any

from dagpu.backends.protocol import Bindings, Failure, Run
from dagpu.common.places import Origin, passes_on
from dagpu.handles.storage import Locks
from dagpu.runtime.calls.graph_updates import EnqueuedUpdate
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.waiting.pace import Pace
from dagpu.runtime.waiting.waits import Waits
from dagpu.tracing.signature import BoundArguments


async def run_bound(
    loaded: LoadedPlan,
    bound: BoundArguments,
    settings: Settings,
    waits: Waits,
    origin: Origin,
    locks: Locks | None = None,
) -> Any:
    """Run a plan of an earlier run with bound inputs, and return its result. Nothing is traced or scheduled. `origin`
    is the place in the user's code that started the run. A part of a run has the `locks` of that run."""
    if not bound.locks and not bound.moves:
        await run_call(loaded, bound, None, settings, waits)
        return loaded.result(bound)
    locks = Locks(origin) if locks is None else locks
    before = frozenset(locks.held)
    try:
        await run_call(loaded, bound, locks, settings, waits)
        return loaded.result(bound)
    finally:
        locks.release(before)


async def run_call(
    loaded: LoadedPlan,
    bound: BoundArguments,
    locks: Locks | None,
    settings: Settings,
    waits: Waits,
    meanwhile: Callable[[], None] | None = None,
    on_submit: Callable[[Run], None] | None = None,
) -> None:
    """Run a plan once with bound inputs, and raise the failures. `on_submit` gets the run.

    When this ends, the work is complete, and `bound.memory` has the memory that the run made. If it fails before the
    submission, the handles are back in their op. The caller releases `locks`, which are None for a call that locks
    nothing and takes no handle. `meanwhile` is called while the device works.
    """
    updates = EnqueuedUpdate() if bound.graphs else None
    try:
        try:
            if locks is not None:
                if updates is not None:
                    _take_over_updates(bound, locks, updates)
                locks.acquire(bound.locks)
                if bound.moves:
                    bound.take_leaves(locks.origin)
            graph = loaded.runs + 1 >= loaded.graph_from
            loaded.runs += 1
            if not (loaded.graph_is_ready if graph else loaded.is_compiled):
                slow = loaded.slow_work(graph)
                if slow is not None:
                    await waits.run_slow_work(slow)
            if waits.must_end():
                await waits.raise_reason()
            spin = loaded.spin if settings.spin is None else settings.spin
            bindings = Bindings(bound.memory)
            polls_now = meanwhile is None and waits.polls_at_submit
            run = loaded.prepared.submit(bindings, spin if polls_now else 0.0, graph=graph)
            if on_submit is not None:
                on_submit(run)
            if bound.undo_log is not None:
                bound.undo_log.discard()
        except BaseException:
            bound.return_leaves()
            raise
        if meanwhile is not None:
            try:
                meanwhile()
            except BaseException:
                run.cancel()
                await waits.drain_run(run)
                raise
        pace = loaded.pace if settings.spin is None else None
        await settle(run, waits, 0.0 if polls_now else spin, pace)
    finally:
        if updates is not None:
            await _finish_updates(updates, waits)


async def settle(run: Run, waits: Waits, spin: float, pace: Pace | None = None) -> None:
    """Wait for a run, and raise its failures. `pace` is that of its plan."""
    try:
        if not waits.polls_at_submit or not run.done():
            await waits.wait_for_run(run, spin, pace)
    finally:
        failures = run.failures()
        if failures:
            raise_failures(failures)


def _take_over_updates(bound: BoundArguments, locks: Locks, updates: EnqueuedUpdate) -> None:
    """Take over the updates that are enqueued for the graphs of a call, and their locks."""
    for captured in bound.graphs:
        captured.updates.transfer(locks, updates)


async def _finish_updates(updates: EnqueuedUpdate, waits: Waits) -> None:
    """Wait for updates that a launch has taken over, and raise their failures."""
    while updates.runs:
        run = updates.runs.pop(0)
        await waits.drain_run(run)
        updates.failures += run.failures()
    if updates.failures:
        raise_failures(updates.failures)


@passes_on
def raise_failures(failures: list[Failure]) -> None:
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
