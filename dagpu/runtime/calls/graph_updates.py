"""Keeps the work that `CudaGraph.update` has enqueued for the next launch of a graph."""

import threading
from collections.abc import Callable
from typing import final

from dagpu.backends.protocol import Failure, Run
from dagpu.common.places import Origin
from dagpu.handles.storage import Locks


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
