"""Memory of a GPU, exchanged with other libraries.

*Arrivals*: work of another library may still be under way in memory that dagpu is given. An event is recorded behind
that work, which the next run asks for: a query takes a third of the time of an import, and is in vain if the work has
just been enqueued. Until it has happened, each run that uses the memory makes its streams wait for it. No thread waits.

*Departures*: a consumer that drops memory of dagpu says that the host has finished with it, not that the device has. So
a block that has ever been given out is parked, and used again only after the device has been idle once. A run that uses
memory of a handle that a consumer has returned late, or that `try_unwrap()` has made writable, waits for that too.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from itertools import count
from typing import Final, TypeAlias, final
from weakref import WeakSet, ref

from dagpu.backends.cuda.driver.driver_protocol import CAPTURED_EVENT, INVALID_VALUE, Gpu, RawEvent, RawGraph, RawStream
from dagpu.backends.cuda.resources.pools import ForeignOwner, MemoryBlock, Pool
from dagpu.backends.cuda.resources.streams import Streams
from dagpu.common.critical import ReferenceQueue
from dagpu.common.errors import DeviceError, InteropError
from dagpu.common.places import describe, start_of_run

Arrival: TypeAlias = tuple[Callable[[], MemoryBlock | None], RawEvent | None]
"""A function that returns memory, or None when it is gone, and the event that has to happen before it is used; None
where the device has to be idle once."""


class _State(Enum):
    """The state of an event."""

    HAPPENED = auto()
    PENDING = auto()
    CAPTURED = auto()
    """It was recorded in a stream that was being captured: it never happens."""


_CAPTURED_BEFORE: Final = frozenset((CAPTURED_EVENT, INVALID_VALUE))
"""The driver's answers for an event that was recorded in a capture some time ago. Driver 580 gives the second once the
capture has ended."""

_Pending: TypeAlias = tuple[int, Callable[[], MemoryBlock | None], RawEvent | None, _State]
"""The number of an arrival, its parts, and the state of the event."""

MOST_ARRIVALS: Final = 1024
"""The number of arrivals above which an import looks for those that have happened."""

ALIGNMENT: Final = 256
"""Bytes: the least alignment of memory that the driver allocates. Kernels may rely on it for the start of a block."""

PARKED_SHARE: Final = 8
"""Parked blocks are made idle, after one wait for the device, when they are the device's memory divided by this."""


def _state_of(event: RawEvent, captured: frozenset[int] = frozenset((CAPTURED_EVENT,))) -> _State:
    """Return the state of an event. `captured` are the driver's answers for one that was recorded in a capture."""
    try:
        return _State.HAPPENED if event.query() else _State.PENDING
    except DeviceError as error:
        if error.code not in captured:
            raise
        return _State.CAPTURED


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
        self.arrivals: dict[int, Arrival] = {}
        """The memory for which runs may have to wait. Empty if no run waits for anything: the hot paths only look at
        that. Adding and removing are atomic."""
        self._numbers = count()
        self._most_arrivals = MOST_ARRIVALS
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
        retired, gpu = self._retired, self._gpu
        if retired.gone:
            self._destroy_retired()
        arriving = self._stream or self._arriving() if stream is None else gpu.foreign_stream(stream)
        event = self._streams.take_event()
        try:
            gpu.record(event, arriving)
        except DeviceError:
            self._streams.give_back(event)
            self._refuse_if_lost()
            raise
        memory, number = MemoryBlock(address, nbytes, 0), next(self._numbers)
        self._pool.mapped = object()
        self.arrivals[number] = retired.watch(memory, (owner, number)), event
        if len(self.arrivals) > self._most_arrivals:
            with gpu.current():
                self._most_arrivals = max(MOST_ARRIVALS, 2 * len(self.pending()))
        return memory

    def forget(self, number: int) -> None:
        """Forget an arrival: it has happened, or its memory is gone, so that no stream will wait for its event."""
        arrival = self.arrivals.pop(number, None)
        if arrival is not None and arrival[1] is not None:
            self._streams.give_back(arrival[1])

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

    def follow(self, stream: int) -> bool:
        """Make the arrival stream wait for all work that is in `stream` now. Return False, and do nothing, if that is
        being captured: the arrival stream would become a part of the capture."""
        arriving, (event, state) = self._arriving(), self._record_behind(stream)
        if state is _State.PENDING:
            with self._gpu.current():
                arriving.wait_for_event(event)  # for this record, whatever the event is used for next
        self._streams.give_back(event)
        return state is not _State.CAPTURED

    def await_work(self, memory: object, stream: int | None) -> None:
        """Make every run that uses `memory` from now on wait for all work that is in `stream` now; None for the arrival
        stream. Work that is being captured does not run, so nothing waits for it."""
        assert isinstance(memory, MemoryBlock)
        event, state = self._record_behind(self._arriving().handle if stream is None else stream)
        if state is _State.PENDING:
            self.arrivals[next(self._numbers)] = ref(memory), event
        else:
            self._streams.give_back(event)

    def _record_behind(self, stream: int) -> "tuple[RawEvent, _State]":
        """Return an event behind the work that is in `stream` now, and its state."""
        self._refuse_if_lost()
        gpu, event = self._gpu, self._streams.take_event()
        gpu.record(event, gpu.foreign_stream(stream))
        with gpu.current():
            return event, _state_of(event)

    def await_visitors(self, memory: object) -> None:
        """Make the next run that uses `memory` wait until the device is idle, if other libraries have been given it.
        It calls no driver."""
        assert isinstance(memory, MemoryBlock)
        if self.is_parked(memory):
            self.arrivals[next(self._numbers)] = ref(memory), None

    # ---- runs ---------------------------------------------------------------------------------------------------

    def delay_run(self, memory: Sequence[object], streams: Sequence["RawStream"]) -> None:
        """Make the streams of a run that uses this memory wait for what is still to arrive there. A context must be
        current.

        Raises:
            InteropError: some of it never arrives, since the stream that writes it was being captured.
        """
        visited: list[int] = []
        for number, find, event, state in self.pending():
            found = find()
            if found is None or not any(used is found for used in memory):
                continue
            if event is None:
                visited.append(number)
            elif state is _State.CAPTURED:  # a stream that waited for it would become a part of the capture
                raise InteropError(
                    f"the run at {describe(start_of_run())} uses an array of another library that was taken over while "
                    "its stream was being captured into a CUDA graph, so its contents never arrive. Take it over "
                    "before the capture, or after the graph has run."
                )
            else:
                for stream in streams:
                    stream.wait_for_event(event)
        if visited:
            self._gpu.synchronize()
            for number in visited:
                self.forget(number)

    def pending(self) -> "list[_Pending]":
        """Forget the arrivals that have happened, or whose memory is gone, and return the others. A context must be
        current."""
        left: list[_Pending] = []
        for number, (find, event) in tuple(self.arrivals.items()):
            state = _State.PENDING if event is None or find() is None else _state_of(event, _CAPTURED_BEFORE)
            if state is _State.HAPPENED or find() is None:
                self.forget(number)
            else:
                left.append((number, find, event, state))
        return left

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

    @property
    def visited(self) -> set[int]:
        """The addresses of the blocks in use that other libraries have been given."""
        return self._pool.visited

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
