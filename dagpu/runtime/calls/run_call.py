"""The one way to run a loaded plan: lock, take the handles, submit, wait and raise the failures."""

from collections.abc import Callable
from typing import final

from dagpu.backends.protocol import Failure
from dagpu.common.origin import Origin
from dagpu.common.tracebacks import passes_on
from dagpu.handles.storage import Locks
from dagpu.lowering.tracing.signature import BoundArguments
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.graphs.graph_updates import EnqueuedUpdate
from dagpu.runtime.waiting import Waits


@final
class RunLocks:
    """The locks of one run, and the updates of graphs for which it waits."""

    __slots__ = ("_locks", "_updates", "origin")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        """The place in the user's code that started the run."""
        self._locks = Locks(origin)
        self._updates: EnqueuedUpdate | None = None

    def acquire(self, bound: BoundArguments) -> None:
        """Lock the memory of one call, and take over the updates of the graphs that it launches.

        Raises:
            BorrowError: another run holds a conflicting lock.
        """
        if bound.graphs and self._updates is None:
            self._updates = EnqueuedUpdate()
        for captured in bound.graphs:
            captured.updates.transfer(self._locks, self._updates)
        self._locks.acquire(bound.locks)

    async def finish_updates(self, waits: Waits) -> None:
        """Wait for the updates that were taken over, forget them, and raise their failures."""
        updates = self._updates
        if updates is None:
            return
        while updates.replays:
            replay = updates.replays.pop(0)
            await waits.drain_replay(replay)
            updates.failures += replay.failures()
        if updates.failures:
            _raise_failures(updates.failures)

    async def end_run(self, waits: Waits) -> None:
        """Wait for the updates that are left, and release the locks."""
        try:
            if self._updates is not None:
                await self.finish_updates(waits)
        finally:
            self._locks.release()


async def run_call(
    loaded: LoadedPlan,
    bound: BoundArguments,
    locks: RunLocks | None,
    settings: Settings,
    waits: Waits,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run a plan once with bound inputs, and raise the failures.

    When this ends, the work is complete, and `bound.memory` has the memory that the run made. If it fails before the
    submission, the handles are back in their op. The caller ends `locks`, which are None for a call that locks nothing
    and takes no handle. `meanwhile` is called while the device works.
    """
    try:
        if locks is not None:
            locks.acquire(bound)
            bound.take_leaves(locks.origin)
        graph = loaded.wants_graph()
        slow = loaded.prepared.before_graph if graph else loaded.prepared.before_first
        if slow is not None:
            await waits.run_slow_work(slow)
        await waits.before_submit()
        spin = loaded.spin_seconds(settings)
        polls_now = meanwhile is None and waits.polls_at_submit
        replay = loaded.submit(bound, spin if polls_now else 0.0, graph=graph)
    except BaseException:
        bound.return_leaves()
        raise
    if meanwhile is not None:
        try:
            meanwhile()
        except BaseException:
            replay.cancel()
            await waits.drain_replay(replay)
            raise
    try:
        await waits.wait_for_replay(replay, 0.0 if polls_now else spin)
    finally:
        failures = replay.failures()
        if failures:
            _raise_failures(failures)
    if locks is not None and bound.graphs:
        await locks.finish_updates(waits)


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
