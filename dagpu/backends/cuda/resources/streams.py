"""Pools of one device's streams and events, which are never destroyed."""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final
from weakref import WeakValueDictionary

from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawEvent, RawStream, TimingEvent
from dagpu.backends.host.plan_devices import streams_of_lanes
from dagpu.backends.host.worker_threads import WorkerStream
from dagpu.common.critical import ReferenceQueue

SPREAD: Final = 8
"""The number of streams over which concurrent runs are spread: the driver's number of hardware queues, unless
CUDA_DEVICE_MAX_CONNECTIONS is set. A plan with more lanes gets more."""

POOL: Final = 64
"""The most streams in the pool. Some lanes of a plan with more lanes share a stream."""

MARK_EVERY: Final = 192
"""The number of instructions in a stream between two marks."""

MARKS: Final = 4
"""The number of incomplete marks at which a stream counts as full. The driver's queue holds about 1,024 launches, and a
further launch blocks the thread."""


@final
@dataclass(slots=True, eq=False, repr=False)
class CudaStream:
    """One CUDA stream. It may be the key of a lane: it equals only itself."""

    _gpu: Gpu
    raw: RawStream
    _owner: "Streams"
    worker: WorkerStream
    """The thread that submits this stream's part of a run if that may block. It starts with its first work."""
    users: set[object] = field(default_factory=set)
    """The runs under way that use the stream. Adding and discarding are atomic."""
    still_submitting: set[object] = field(default_factory=set)
    """The runs that a worker thread is still submitting. A later run must queue behind them to keep stream order."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _marks: deque[RawEvent] = field(default_factory=deque)
    _since: int = 0

    @property
    def device(self) -> int:
        """Index of the stream's device."""
        return self._gpu.index

    def count_entries(self, count: int) -> None:
        """Count newly enqueued instructions, and record a mark event after every `MARK_EVERY` of them. The context must
        be current."""
        self._since += count
        if self._since >= MARK_EVERY:
            self._since = 0
            event = self._owner.take_event()
            event.record(self.raw)
            self._marks.append(event)

    def congested(self) -> bool:
        """Return True if the stream is full, or if new work would overtake a run that a worker thread is submitting.
        The context must be current."""
        return bool(self.still_submitting) or (len(self._marks) >= MARKS and self.full())

    def full(self) -> bool:
        """Return True if the stream has so much pending work that the next launch might block. The context must be
        current."""
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
        """Block until the stream is not full. Other threads run meanwhile. The context must be current."""
        while self.full():
            with self._lock:
                oldest = self._marks[0] if self._marks else None
            if oldest is not None:
                oldest.synchronize()

    def __repr__(self) -> str:
        return f"<CudaStream on cuda:{self._gpu.index}>"


@final
class OwnedStream:
    """A stream that a user has opened, or has from another library. One of dagpu goes back to the pool when the
    last reference to this object is dropped."""

    __slots__ = ("__weakref__", "foreign", "owner", "stream")

    def __init__(self, owner: "Streams", stream: CudaStream, foreign: object = None) -> None:
        self.owner = owner
        self.stream = stream
        self.foreign = foreign
        """The object of another library that keeps its stream alive; None for a stream of dagpu."""
        if foreign is None:
            owner.returned.watch(self, stream)

    def __repr__(self) -> str:
        return f"<OwnStream on cuda:{self.stream.device}>"

    def __str__(self) -> str:
        return "own"


@final
class Detour:
    """The way of a lane's work through another stream: within the `with` block, work that is put there comes after the
    lane's earlier work, and before its later work. Keep the object until the run is over."""

    def __init__(self, streams: "Streams", lane: RawStream, stream: RawStream) -> None:
        self._streams = streams
        self._lane = lane
        self._stream = stream
        self._events: list[RawEvent] = []

    def __enter__(self) -> None:
        self._join(self._stream, self._lane)

    def __exit__(self, *error: object) -> None:
        self._join(self._lane, self._stream)

    def _join(self, later: RawStream, earlier: RawStream) -> None:
        event = self._streams.take_event()
        self._events.append(event)
        event.record(earlier)
        later.wait_for_event(event)

    def __del__(self) -> None:
        for event in self._events:
            self._streams.give_back(event)


@final
class Streams:
    """The streams and events of one device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._pool: list[CudaStream] = []
        self._of_runs: set[int] = set()
        """The CUstreams of the streams that runs take where the user has named none."""
        self._of_bodies: dict[int, RawStream] = {}
        """The streams on which bodies are called whose library keeps memory for each stream, by their CUstreams."""
        self._events: deque[RawEvent] = deque()
        self.give_back: Final[Callable[[RawEvent], None]] = self._events.append
        """Returns an event to the pool. It need not have happened: a stream that waits for it waits for what was
        recorded before. No thread may wait for it from now on."""
        self._timing_events: deque[TimingEvent] = deque()
        self.exclusive: list[CudaStream] = []
        """The idle streams of `take_exclusive`. Popping and appending are atomic."""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.returned: ReferenceQueue[CudaStream] = ReferenceQueue()
        """Streams that users have dropped, for reuse. Their pending work still runs, in order."""
        self._foreign: WeakValueDictionary[int, OwnedStream] = WeakValueDictionary()
        """The streams of other libraries that users have now, by their CUstreams."""
        self.abandoned: ReferenceQueue[Sequence[RawEvent]] = ReferenceQueue()
        """Events of dropped command lists. Their runs are over, because a run keeps its command list's pool alive."""

    def open(self) -> OwnedStream:
        """Return a stream for a user. The context must be current."""
        try:
            return OwnedStream(self, self.returned.pop())
        except IndexError:
            return OwnedStream(self, self._over(self._gpu.new_stream()))

    def open_foreign(self, raw: RawStream, foreign: object) -> OwnedStream:
        """Return a stream of another library for a user, always the same object while that lives. The context must be
        current."""
        with self._lock:
            found = self._foreign.get(raw.handle)
            if found is None:
                found = self._foreign[raw.handle] = OwnedStream(self, self._over(raw), foreign)
        return found

    def take(self, keys: Sequence[Hashable]) -> list[CudaStream]:
        """Return a stream for each lane of a plan, given the lanes' keys; see `streams_of_lanes`. The context must be
        current."""
        if len(keys) == 1:  # most plans
            key = keys[0]
            if isinstance(key, int):
                for stream in self._pool:
                    if not stream.users:
                        return [stream]
            elif isinstance(key, OwnedStream) and key.owner is self:
                return [key.stream]
        return streams_of_lanes(keys, f"cuda:{self._gpu.index}", self._own, self._least_busy)

    def _own(self, key: Hashable) -> CudaStream | None:
        return key.stream if isinstance(key, OwnedStream) and key.stream.device == self._gpu.index else None

    def _least_busy(self, count: int) -> Iterator[CudaStream]:
        with self._lock:
            idle = len([stream for stream in self._pool if not stream.users])
            wanted = min(max(count - idle, 0), max(SPREAD, min(count, POOL)) - len(self._pool))
            self._pool += [self._new_for_runs() for _ in range(wanted)]
        chosen = sorted(self._pool, key=lambda stream: len(stream.users))[:count]
        return itertools.cycle(chosen)

    def _new_for_runs(self) -> CudaStream:
        with self._gpu.current():
            made = self._over(self._gpu.new_stream())
        self._of_runs.add(made.raw.handle)  # atomic
        return made

    def _over(self, raw: RawStream) -> CudaStream:
        name = f"cuda:{self._gpu.index}/{next(self._numbers)}"
        return CudaStream(self._gpu, raw, self, WorkerStream(self._gpu.index, name))

    def stream_for_body(self, stream: RawStream, most: int) -> RawStream:
        """Return the stream for a body of the user's in a lane on `stream`, of at most `most` streams of dagpu's: the
        lane's own one if it is among these. A stream that the user has named is the user's choice."""
        handle, chosen = stream.handle, self._of_bodies
        if handle in chosen:
            return stream
        with self._lock:
            if handle not in self._of_runs:
                return stream
            if len(chosen) < most:
                chosen[handle] = stream
                return stream
        return tuple(chosen.values())[handle % most]

    def take_exclusive(self) -> CudaStream:
        """Return an idle stream that no lane and no other run uses. Any context may be current.

        A run that uses it alone is over when the stream is idle, so it needs no event. A stream that waits for a run
        delays no other run.
        """
        try:
            return self.exclusive.pop()
        except IndexError:
            return self._new_for_runs()

    def give_back_exclusive(self, stream: CudaStream) -> None:
        """Return an exclusive stream to the pool. It must be idle."""
        self.exclusive.append(stream)

    def take_event(self) -> RawEvent:
        """Return an unused event. Any context may be current."""
        if self.abandoned.gone:
            self.collect()
        try:
            return self._events.pop()
        except IndexError:
            with self._gpu.current():
                return self._gpu.new_event()

    def collect(self) -> None:
        """Return the events of dropped command lists to the pool."""
        while self.abandoned:
            try:
                self._events += self.abandoned.pop()
            except IndexError:  # another thread was quicker
                return

    def take_timing_event(self) -> TimingEvent:
        """Return an unused event with timing. The context must be current."""
        try:
            return self._timing_events.pop()
        except IndexError:
            return self._gpu.new_timing_event()

    def give_back_timing(self, event: TimingEvent) -> None:
        """Return a timing event to the pool. Its time must not be read afterwards."""
        self._timing_events.append(event)
