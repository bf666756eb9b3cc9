"""Memory of a GPU, exchanged with other libraries.

*Arrivals*: work of another library may still be under way in memory that dagpu is given. An event is recorded behind
that work. Until it has happened, each run that uses the memory makes its streams wait for it. No thread waits.

*Departures*: a consumer that drops memory of dagpu says that the host has finished with it, not that the device has. So
a block that has ever been given out is parked, and used again only after the device has been idle once. A run that uses
memory of a handle that a consumer has returned late, or that `try_unwrap()` has made writable, waits for that too.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias, final
from weakref import WeakSet, ref

from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawEvent, RawGraph, RawStream
from dagpu.backends.cuda.resources.pools import ForeignOwner, MemoryBlock, Pool
from dagpu.backends.cuda.resources.streams import Streams
from dagpu.common.reference_queue import ReferenceQueue

Arrivals: TypeAlias = list[tuple[Callable[[], MemoryBlock | None], RawEvent | None]]
"""Functions that return memory, or None when it is gone, each with an event that has to happen before it is used; None
where the device has to be idle once."""

ALIGNMENT: Final = 256
"""Bytes: the least alignment of memory that the driver allocates. Kernels may rely on it for the start of a block."""

PARKED_SHARE: Final = 8
"""Parked blocks are made idle, after one wait for the device, when they are the device's memory divided by this."""


@final
class CudaExchange:
    """Implements `dagpu.handles.device_handles.Exchange` for one GPU."""

    alignment = ALIGNMENT
    """The alignment of blocks, in bytes."""

    def __init__(
        self, gpu: Gpu, streams: Streams, pool: Pool, retired: "ReferenceQueue[RawGraph | ForeignOwner | None]",
        destroy_retired: Callable[[], None], refuse_if_lost: Callable[[], None],
    ) -> None:  # fmt: skip
        self.dlpack_device = 2, gpu.index
        """The type of the device in DLPack's numbers, and its index."""
        self._gpu = gpu
        self._streams = streams
        self._pool = pool
        self._retired = retired
        self._destroy_retired = destroy_retired
        self._refuse_if_lost = refuse_if_lost
        self._lock = threading.Lock()
        self._stream: RawStream | None = None
        self.arrivals: Arrivals = []
        """Memory for whose arrival runs wait, and the event that is recorded behind the last work of another
        library. Empty if no run waits for anything: the hot paths only look at that."""
        self._imports_given_out: WeakSet[MemoryBlock] = WeakSet()
        """Memory of other libraries that has been given out again. The pool knows of its own memory."""
        self._limit = 0

    def open_stream(self, stream: int, owner: object) -> Hashable:
        """Return a stream of another library as the key of a lane. It keeps `owner` alive."""
        self._refuse_if_lost()
        with self._gpu.current():
            return self._streams.open_foreign(self._gpu.foreign_stream(stream), owner)

    # ---- imports ------------------------------------------------------------------------------------------------

    def wrap(self, address: int, nbytes: int, owner: object, stream: int | None) -> MemoryBlock:
        """Return memory of another library as a block, for which runs wait as `await_work` says.

        The owner is released by the next import or run after the block is dropped, never in a finaliser: its library
        calls the driver.
        """
        memory = MemoryBlock.over(address, nbytes, owner, self._retired)
        ordered = self._arriving() if stream is None else self._gpu.foreign_stream(stream)
        self._refuse_if_lost()
        with self._gpu.current():
            if self._retired.gone:
                self._destroy_retired()
            # The streams of others get an event in any case: a query may break a capture that is under way there.
            if stream is not None or not ordered.query():
                self._wait_behind(ordered, memory)
        return memory

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
            if stream is not None or not ordered.query():
                self._wait_behind(ordered, memory)

    def _wait_behind(self, stream: "RawStream", memory: MemoryBlock) -> None:
        event = self._streams.take_event()
        event.record(stream)
        if event.query():
            self._streams.give_back(event)
        else:
            self._keep_until_done(memory, event)

    def await_visitors(self, memory: object) -> None:
        """Make the next run that uses `memory` wait until the device is idle, if other libraries have been given it.
        It calls no driver."""
        assert isinstance(memory, MemoryBlock)
        if self.is_parked(memory):
            self._keep_until_done(memory, None)

    def _keep_until_done(self, memory: MemoryBlock | None, event: "RawEvent | None") -> None:
        with self._lock:
            self.arrivals.append((_nothing if memory is None else ref(memory), event))

    # ---- runs ---------------------------------------------------------------------------------------------------

    def delay_run(self, memory: Sequence[object], streams: Sequence["RawStream"]) -> None:
        """Make the streams of a run that uses this memory wait for what is still to arrive there. A context must be
        current."""
        idle = False
        for block, event in self._pending():
            found = block()
            if found is not None and any(used is found for used in memory):
                if event is None:
                    idle = True
                else:
                    for stream in streams:
                        stream.wait_for_event(event)
        if idle:
            self._await_idleness(memory)

    def _await_idleness(self, memory: Sequence[object]) -> None:
        """Wait until the device is idle, and forget what this memory was to wait for."""
        self._gpu.synchronize()
        with self._lock:
            self.arrivals = [
                (block, event) for block, event in self.arrivals
                if event is not None or not any(used is block() for used in memory)
            ]  # fmt: skip

    def _pending(self) -> "Arrivals":
        """Return the arrivals that have not happened, and forget the others."""
        if not self.arrivals:
            return self.arrivals
        with self._lock:
            pending: Arrivals = []
            done: Arrivals = []
            for arrival in self.arrivals:
                block, event = arrival
                (done if (event.query() if event is not None else block() is None) else pending).append(arrival)
            self.arrivals = pending
        for _, event in done:
            if event is not None:
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
        else:
            self._imports_given_out.add(memory)

    def is_parked(self, memory: object) -> bool:
        """Return True if other libraries have been given a block."""
        assert isinstance(memory, MemoryBlock)
        return memory.address in self._pool.visited if memory.size else memory in self._imports_given_out

    def make_room(self) -> None:
        """If the parked blocks are many, wait until the device is idle, and make them idle too."""
        with self._gpu.current():
            if not self._limit:
                self._limit = max(1, self._gpu.memory_info()[1] // PARKED_SHARE)
            if self._pool.parked_bytes > self._limit:
                self._pool.unpark(self._gpu.synchronize)


def _nothing() -> None:
    """Return None, as a dead weak reference does."""
