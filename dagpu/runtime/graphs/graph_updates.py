"""Work that is enqueued for the next launch of a graph."""

import threading
from collections.abc import Callable
from typing import final

from dagpu.backends.protocol import Failure, Replay
from dagpu.common.origin import Origin
from dagpu.handles.storage import Locks, Storage


@final
class EnqueuedUpdate:
    """The updates that a launch has taken over: replays to wait for, and failures so far."""

    __slots__ = ("failures", "replays")

    def __init__(self) -> None:
        self.replays: list[Replay] = []
        self.failures: list[Failure] = []


@final
class GraphUpdates:
    """The work that `CudaGraph.update` has put into the graph's stream, and its locks.

    The next launch takes both over: it comes after them in the stream, and waits for them. If none comes, the locks go
    back when the work is done.
    """

    __slots__ = ("_enqueued", "_gate", "_locks")

    def __init__(self) -> None:
        self._gate = threading.RLock()
        self._locks: Locks | None = None
        self._enqueued = EnqueuedUpdate()

    def add(self, wanted: dict[Storage, bool], origin: Origin, submit: Callable[[], Replay]) -> None:
        """Lock, and start.

        Raises:
            BorrowError: a run is in the way.
        """
        with self._gate:
            locks = self._locks
            if locks is None:
                locks = Locks(origin)
            locks.acquire(wanted)
            try:
                replay = submit()
            except BaseException:
                if self._locks is None:
                    locks.release()
                raise
            self._locks = locks
            self._enqueued.replays.append(replay)
        replay.when_done(self._give_back)

    def hand_over(self, locks: Locks, to: EnqueuedUpdate) -> None:
        """Let a launch have what was enqueued, and its locks."""
        with self._gate:
            enqueued, self._enqueued = self._enqueued, EnqueuedUpdate()
            if self._locks is not None:
                locks.adopt(self._locks)
                self._locks = None
        to.replays += enqueued.replays
        to.failures += enqueued.failures

    def _give_back(self) -> None:
        """A replay is done: keep its failures only. So updates that no launch follows take no memory. (An error that
        stayed in its replay would keep the tensors of both alive.)"""
        with self._gate:
            enqueued, going = self._enqueued, list[Replay]()
            for replay in enqueued.replays:
                if replay.done():
                    enqueued.failures += replay.failures()
                else:
                    going.append(replay)
            enqueued.replays = going
            if self._locks is not None and not going:
                self._locks.release()
                self._locks = None
