"""Streams and events of one device, pooled: none is ever destroyed."""

import itertools
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, final

from dagpu.backends.common.lanes import streams_of_lanes
from dagpu.backends.common.worker_threads import WorkerStream
from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawEvent, RawStream, TimingEvent
from dagpu.common.reference_queue import ReferenceQueue

SPREAD: Final = 8
"""Streams over which runs spread that are under way at once: as many as the driver has hardware queues, unless
CUDA_DEVICE_MAX_CONNECTIONS says otherwise. A plan of more lanes gets more."""

POOL: Final = 64
"""How many streams the pool may have: of a plan with more lanes, some share a stream."""

MARK_EVERY: Final = 192
"""Instructions put into a stream between two marks."""

MARKS: Final = 4
"""Unfinished marks at which a stream counts as full. A driver's queue takes about 1,024 launches; one more blocks the
thread that launches."""


@final
class CudaStream:
    """One stream. As the key of a lane it stands for itself; equal to itself alone."""

    __slots__ = ("_gpu", "_lock", "_marks", "_owner", "_since", "behind", "raw", "users", "worker")

    def __init__(self, gpu: Gpu, raw: RawStream, owner: "Streams", worker: WorkerStream) -> None:
        self._gpu = gpu
        self._owner = owner
        self._lock = threading.Lock()
        self._marks: deque[RawEvent] = deque()
        self._since = 0
        self.raw = raw
        self.users: set[object] = set()
        """The runs under way that use it; adding and discarding are atomic."""
        self.behind: set[object] = set()
        """Those of them that a thread is submitting: whoever comes next has to come after them."""
        self.worker = worker
        """The thread that plays this stream's part of a run where that may block; it starts with its first work."""

    @property
    def device(self) -> int:
        """Index of its device."""
        return self._gpu.index

    def put(self, count: int) -> None:
        """So many instructions have been put in: mark the place where they are many. The context is current."""
        self._since += count
        if self._since >= MARK_EVERY:
            self._since = 0
            event = self._owner.event()
            event.record(self.raw)
            self._marks.append(event)

    def congested(self) -> bool:
        """Is it full, or would what is put in now overtake a run that is being submitted? The context is current."""
        return bool(self.behind) or (len(self._marks) >= MARKS and self.full())

    def full(self) -> bool:
        """Is so much waiting in it that the next launch might block? The context is current."""
        marks = self._marks
        if not marks:
            return False
        done = []
        with self._lock:
            while marks and marks[0].query():
                done.append(marks.popleft())
            full = len(marks) >= MARKS
        for event in done:
            self._owner.give_back(event)
        return full

    def drain(self) -> None:
        """Block until it is not full. Other threads run meanwhile. The context is current."""
        while self.full():
            with self._lock:
                oldest = self._marks[0] if self._marks else None
            if oldest is not None:
                oldest.synchronize()

    def __repr__(self) -> str:
        return f"<CudaStream on cuda:{self._gpu.index}>"


@final
class OwnedStream:
    """A stream that a user asked for. Its stream goes back to the pool when the last reference to this goes."""

    __slots__ = ("__weakref__", "stream")

    def __init__(self, owner: "Streams", stream: CudaStream) -> None:
        self.stream = stream
        owner.returned.watch(self, stream)

    def __repr__(self) -> str:
        return f"<OwnStream on cuda:{self.stream.device}>"

    def __str__(self) -> str:
        return "own"


@final
class Streams:
    """The streams and events of one device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._pool: list[CudaStream] = []
        self._events: deque[RawEvent] = deque()
        self._timing_events: deque[TimingEvent] = deque()
        self._notifiers: list[CudaStream] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.returned: ReferenceQueue[CudaStream] = ReferenceQueue()
        """Streams of users that are nobody's any more; whatever was put into them still runs, in order."""
        self.abandoned: ReferenceQueue[Sequence[RawEvent]] = ReferenceQueue()
        """Events of scripts that are gone. Their runs are over: these refer to the plan, which has its scripts."""

    def open(self) -> OwnedStream:
        """A stream of one's own. The context is current."""
        try:
            return OwnedStream(self, self.returned.pop())
        except IndexError:
            return OwnedStream(self, self._new())

    def take(self, keys: Sequence[Hashable]) -> list[CudaStream]:
        """A stream for each lane of a plan, given the lanes' keys; see `streams_of_lanes`. The context is current."""
        if len(keys) == 1 and isinstance(keys[0], int):  # most plans
            pool = self._pool
            for stream in pool:
                if not stream.users:
                    return [stream]
        return streams_of_lanes(keys, f"cuda:{self._gpu.index}", self._own, self._least_busy)

    def _own(self, key: Hashable) -> CudaStream | None:
        return key.stream if isinstance(key, OwnedStream) and key.stream.device == self._gpu.index else None

    def _least_busy(self, count: int) -> Iterator[CudaStream]:
        with self._lock:
            idle = sum(not stream.users for stream in self._pool)
            wanted = min(max(count - idle, 0), max(SPREAD, min(count, POOL)) - len(self._pool))
            self._pool += [self._new() for _ in range(wanted)]
        chosen = sorted(self._pool, key=lambda stream: len(stream.users))[:count]
        return itertools.cycle(chosen)

    def _new(self) -> CudaStream:
        name = f"cuda:{self._gpu.index}/{next(self._numbers)}"
        return CudaStream(self._gpu, self._gpu.new_stream(), self, WorkerStream(self._gpu.index, name))

    def take_notifier(self) -> CudaStream:
        """A stream that is no lane's: it may wait for a run without holding up others. The context is current."""
        try:
            return self._notifiers.pop()
        except IndexError:
            return self._new()

    def give_back_notifier(self, stream: CudaStream) -> None:
        """Its run is done."""
        self._notifiers.append(stream)

    def event(self) -> RawEvent:
        """An event that nobody uses. The context is current."""
        if self.abandoned:
            self.collect()
        try:
            return self._events.pop()
        except IndexError:
            return self._gpu.new_event()

    def collect(self) -> None:
        """Take back the events of scripts that are gone."""
        while self.abandoned:
            try:
                self._events += self.abandoned.pop()
            except IndexError:  # another thread was quicker
                return

    def give_back(self, event: RawEvent) -> None:
        """It has happened, and nobody waits for it any more."""
        self._events.append(event)

    def timing_event(self) -> TimingEvent:
        """The same, with timing. The context is current."""
        try:
            return self._timing_events.pop()
        except IndexError:
            return self._gpu.new_timing_event()

    def give_back_timing(self, event: TimingEvent) -> None:
        """Nobody wants its time any more."""
        self._timing_events.append(event)
