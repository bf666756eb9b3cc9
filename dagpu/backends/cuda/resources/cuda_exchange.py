"""Memory of a GPU, exchanged with other libraries.

*Arrivals*: work of another library may still be under way in memory that dagpu is given. An event is recorded behind
that work. Until it has happened, each run that uses the memory makes its streams wait for it. No thread waits.

*Departures*: a consumer that drops memory of dagpu says that the host has finished with it, not that the device has. So
a block that has ever been given out is parked, and used again only after the device has been idle once.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias, final

from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawEvent, RawStream
from dagpu.backends.cuda.resources.pools import MemoryBlock, Pool
from dagpu.backends.cuda.resources.streams import Streams
from dagpu.common.reference_queue import ReferenceQueue

Arrivals: TypeAlias = list[tuple[Callable[[], MemoryBlock | None], RawEvent]]
"""Functions that return memory, or None when it is gone, each with an event that has to happen before it is used."""

ALIGNMENT: Final = 256
"""Bytes: the least alignment of memory that the driver allocates. Kernels may rely on it for the start of a block."""

PARKED_SHARE: Final = 8
"""Parked blocks are made idle, after one wait for the device, when they are the device's memory divided by this."""


@final
class CudaExchange:
    """Implements `dagpu.handles.device_handles.Exchange` for one GPU."""

    alignment = ALIGNMENT
    """The alignment of blocks, in bytes."""

    def __init__(self, gpu: Gpu, streams: Streams, pool: Pool, refuse_if_lost: Callable[[], None]) -> None:
        self.dlpack_device = 2, gpu.index
        """The type of the device in DLPack's numbers, and its index."""
        self._gpu = gpu
        self._streams = streams
        self._pool = pool
        self._refuse_if_lost = refuse_if_lost
        self._lock = threading.Lock()
        self._stream: RawStream | None = None
        self.arrivals: Arrivals = []
        """Memory for whose arrival runs wait, and the event that is recorded behind the last work of another
        library. Empty if no run waits for anything: the hot paths only look at that."""
        self._owners: ReferenceQueue[object] = ReferenceQueue()
        """The owners of imported memory that is dropped. They are released by the next call, never in a finaliser:
        their libraries call the driver."""
        self._limit = 0

    def open_stream(self, stream: int, owner: object) -> Hashable:
        """Return a stream of another library as the key of a lane. It keeps `owner` alive."""
        self._refuse_if_lost()
        with self._gpu.current():
            return self._streams.open_foreign(self._gpu.foreign_stream(stream), owner)

    # ---- imports ------------------------------------------------------------------------------------------------

    def wrap(self, address: int, nbytes: int, owner: object) -> MemoryBlock:
        """Return memory of another library as a block."""
        if self._owners.gone:
            self.release_owners()
        return MemoryBlock.over(address, nbytes, owner, self._owners)

    def release_owners(self) -> None:
        """Release the owners of memory that is dropped."""
        while self._owners.gone:
            try:
                self._owners.pop()
            except IndexError:  # another thread was quicker
                return

    def address_of(self, memory: object) -> int:
        """Return the address of a block."""
        assert isinstance(memory, MemoryBlock), f"{memory!r} is not memory of the CUDA backend"
        return memory.address

    def device_of(self, address: int) -> int:
        """Return the index of the device that has this address."""
        self._refuse_if_lost()
        with self._gpu.current():
            return self._gpu.device_of(address)

    def arrival_stream(self) -> int:
        """Return the CUstream that libraries make wait for their work on an array that they give to dagpu."""
        return self._arriving().handle

    def _arriving(self) -> "RawStream":
        if self._stream is not None:
            return self._stream
        with self._lock:
            stream = self._stream
            if stream is None:
                self._refuse_if_lost()
                with self._gpu.current():
                    stream = self._stream = self._gpu.new_stream()
        return stream

    def follow(self, stream: int) -> None:
        """Make the arrival stream wait for all work that is in `stream` now."""
        arriving = self._arriving()
        with self._gpu.current():
            event = self._streams.take_event()
            event.record(self._gpu.foreign_stream(stream))
            arriving.wait_for_event(event)
            self._keep_until_done(None, event)

    def await_work(self, memory: object, stream: int | None) -> None:
        """Make every run that uses `memory` from now on wait for all work that is in `stream` now; None for the arrival
        stream."""
        assert isinstance(memory, MemoryBlock)
        ordered = self._arriving() if stream is None else self._gpu.foreign_stream(stream)
        self._refuse_if_lost()
        with self._gpu.current():
            # The streams of others get an event in any case: a query may break a capture that is under way there.
            if stream is None and ordered.query():
                return
            event = self._streams.take_event()
            event.record(ordered)
            if event.query():
                self._streams.give_back(event)
            else:
                self._keep_until_done(memory, event)

    def _keep_until_done(self, memory: MemoryBlock | None, event: "RawEvent") -> None:
        with self._lock:
            self.arrivals.append((_nothing if memory is None else weakref.ref(memory), event))

    # ---- runs ---------------------------------------------------------------------------------------------------

    def delay_run(self, memory: Sequence[object], streams: Sequence["RawStream"]) -> None:
        """Make the streams of a run that uses this memory wait for what is still to arrive there. A context must be
        current."""
        for block, event in self._pending():
            found = block()
            if found is not None and any(used is found for used in memory):
                for stream in streams:
                    stream.wait_for_event(event)

    def _pending(self) -> "Arrivals":
        """Return the arrivals that have not happened, and forget the others."""
        if not self.arrivals:
            return self.arrivals
        with self._lock:
            pending: Arrivals = []
            done: Arrivals = []
            for arrival in self.arrivals:
                (done if arrival[1].query() else pending).append(arrival)
            self.arrivals = pending
        for _, event in done:
            self._streams.give_back(event)
        return pending

    # ---- exports ------------------------------------------------------------------------------------------------

    def give_out(self, memory: object, stream: int | None) -> None:
        """Make `stream` wait for what runs that use `memory` would wait for. Keep the block, once it is dropped, from
        being used again before the device has been idle."""
        assert isinstance(memory, MemoryBlock)
        if stream is not None and self.arrivals:
            with self._gpu.current():
                self.delay_run((memory,), (self._gpu.foreign_stream(stream),))
        if memory.size:
            self._pool.visited.add(memory.address)

    def is_parked(self, memory: object) -> bool:
        """Return True if other libraries have been given a block."""
        assert isinstance(memory, MemoryBlock)
        return memory.address in self._pool.visited

    def make_room(self) -> None:
        """If the parked blocks are many, wait until the device is idle, and make them idle too. The context must be
        current."""
        if not self._limit:
            self._limit = max(1, self._gpu.memory_info()[1] // PARKED_SHARE)
        if self._pool.parked_bytes > self._limit:
            self._pool.unpark(self._gpu.synchronize)


def _nothing() -> None:
    """Return None, as a dead weak reference does."""
