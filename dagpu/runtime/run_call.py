"""The one way to run a loaded plan: lock, take the handles, submit, wait and raise the failures."""

import threading
from collections.abc import Callable
from typing import Any, final

from dagpu.backends.protocol import Failure, Run
from dagpu.common.places import Origin, passes_on
from dagpu.handles.handle_state import Locks
from dagpu.runtime.loaded_plan import LoadedPlan, Settings
from dagpu.runtime.waits import Pace, Waits
from dagpu.tracing.signature import BoundArguments

# ---- updates of a graph that are under way: the next launch takes them over, and waits for them -----------------


@final
class EnqueuedUpdate:
    """The updates that a launch takes over: the runs that it waits for, and the failures so far."""

    __slots__ = ("failures", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.failures: list[Failure] = []


@final
class GraphUpdates:
    """The work that `CudaGraph.update` has enqueued on the graph's stream, with its locks.

    The next launch takes both over: it comes after the work in the stream, and waits for it. Without a launch, the
    locks are released when the work is done.
    """

    __slots__ = ("_enqueued", "_gate", "_locks")

    def __init__(self) -> None:
        self._gate = threading.RLock()
        self._locks: Locks | None = None
        self._enqueued = EnqueuedUpdate()

    @property
    def idle(self) -> bool:
        """True if there is nothing for a launch to take over."""
        enqueued = self._enqueued
        return self._locks is None and not enqueued.runs and not enqueued.failures

    def enqueue(self, origin: Origin, start: Callable[[Locks], Run]) -> None:
        """Start an update by `start`, which adds what it locks to the locks of the updates.

        Raises:
            BorrowError: a run uses that memory.
        """
        with self._gate:
            locks = self._locks
            if locks is None:
                locks = Locks(origin)
            try:
                run = start(locks)
            except BaseException:
                if self._locks is None:
                    locks.release()
                raise
            self._locks = locks
            self._enqueued.runs.append(run)
        run.when_done(self._release_when_done)

    def transfer(self, locks: Locks, to: EnqueuedUpdate) -> None:
        """Transfer the enqueued work to the launch's `to`, and its locks to the launch's `locks`."""
        with self._gate:
            enqueued, self._enqueued = self._enqueued, EnqueuedUpdate()
            if self._locks is not None:
                locks.adopt(self._locks)
                self._locks = None
        to.runs += enqueued.runs
        to.failures += enqueued.failures

    def _release_when_done(self) -> None:
        """Drop the runs that are done, except their failures, and release the locks if none is left.

        So updates without a later launch keep no memory. An error that stayed in its run would keep the tensors of
        both alive.
        """
        with self._gate:
            enqueued, going = self._enqueued, list[Run]()
            for run in enqueued.runs:
                if run.done():
                    enqueued.failures += run.failures()
                else:
                    going.append(run)
            enqueued.runs = going
            if self._locks is not None and not going:
                self._locks.release()
                self._locks = None


# ---- the sequence ---------------------------------------------------------------------------------------------------


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
) -> bool:
    """Run a plan once with bound inputs, and raise the failures. `on_submit` gets the run. Return false, with nothing
    run, for a plan that `decides` what it runs, if no graph can be launched now.

    When this ends, the work is complete, and `bound.memory` has the memory that the run made. If it fails before the
    submission, the handles are back in their op. The caller releases `locks`, which are None for a call that locks
    nothing and takes no handle. `meanwhile` is called while the device works.
    """
    updates = EnqueuedUpdate() if bound.graphs else None
    try:
        if updates is not None and locks is not None:
            for captured in bound.graphs:
                captured.updates.transfer(locks, updates)
        spin, pace = (loaded.spin, loaded.pace) if settings.spin is None else (settings.spin, None)
        polls_now = meanwhile is None and waits.polls_at_submit
        run = await start_call(loaded, bound, locks, waits, spin if polls_now else 0.0)
        if run is None:
            return False
        if on_submit is not None:
            on_submit(run)
        if meanwhile is not None:
            try:
                meanwhile()
            except BaseException:
                run.cancel()
                await waits.drain_run(run)
                raise
        await settle(run, waits, 0.0 if polls_now else spin, pace)
    finally:
        if updates is not None:
            await _finish_updates(updates, waits)
    return True


async def start_call(
    loaded: LoadedPlan, bound: BoundArguments, locks: Locks | None, waits: Waits, spin: float = 0.0
) -> Run | None:
    """Do the first part of `run_call`, and return the run, which was polled for at most `spin` seconds: lock the
    memory, take the handles, do slow work that is due, and submit. From then on the handles cannot be put back. Return
    None, with nothing run, for a plan that `decides` what it runs, if no graph can be launched now."""
    try:
        if locks is not None:
            locks.acquire(bound.locks)
            if bound.moves:
                bound.take_leaves(locks.origin)
        graph = loaded.runs + 1 >= loaded.graph_from
        for as_graph in (False, True) if loaded.decides else (graph,):  # what decides has no way to run but the graph
            if not (loaded.graph_is_ready if as_graph else loaded.is_compiled):
                slow = loaded.slow_work(as_graph)
                if slow is not None:
                    await waits.run_slow_work(slow)
        if waits.must_end():
            await waits.raise_reason()
        run = loaded.start(bound.memory, spin, graph)
        if run is not None:
            loaded.runs += 1
            if bound.undo_log is not None:
                bound.undo_log.discard()
        return run
    except BaseException:
        bound.return_leaves()
        raise


async def settle(run: Run, waits: Waits, spin: float, pace: Pace | None = None) -> None:
    """Wait for a run, and raise its failures. `pace` is that of its plan.

    A run that ended in its submission without completing what it writes has failed, or an interrupt has cancelled it:
    the wait raises the interrupt.
    """
    try:
        if not waits.polls_at_submit or not run.done() or run.spoilt():
            await waits.wait_for_run(run, spin, pace)
    finally:
        failures = run.failures()
        if failures:
            raise_failures(failures)


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
