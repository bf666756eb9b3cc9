"""The machine with the simulated GPUs: their memory, their streams and events, and the scheduler.

A seed determines the order in which streams make progress. Work is done only on demand: a query of an event does a
little work, a wait for an event does all work before it, and a thread does the work before a descriptor is closed for
a sleeping task. `Machine.hold` stops all progress.
"""

import os
import random
import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from dagpu.backends.cuda.driver.driver_protocol import CAPTURED_EVENT, INVALID_VALUE
from dagpu.backends.host.arrays import HostMemory
from dagpu.backends.kernel_text.units import Unit
from dagpu.testing import EnqueuedWork
from tests.support.driver_calls import may_wait_behind_a_load, releases

if TYPE_CHECKING:
    from tests.simulated.gpu import SimulatedGpu
    from tests.simulated.graphs import GraphRun

QUEUE_DEPTH: Final = 1024
"""Number of launches, copies and fills in a stream at which the driver blocks the caller that adds one more."""

PATIENCE: Final = 30.0
"""Seconds after which a wait is considered hung."""

POISON: Final = 0xA5

LOOKS: Final = 0.2
"""Probability that the backend's watchdog polls after a piece of work that is done for a sleeping task."""

CONDITION: Final = 0x7000
"""The handle of the first condition."""

UNKNOWN: Final = EnqueuedWork("a node", ())
"""Work of which an audit reads no address."""


@final
class Record:
    """One record of an event. A wait refers to it, even if the event is recorded again later."""

    __slots__ = ("done", "late", "number", "stream", "when")

    def __init__(self, stream: "SimulatedStream | None" = None, number: int = 0, late: int = 0) -> None:
        self.done = False
        """True once the device has reached it. Waits in streams depend on this."""
        self.when = 0
        """The machine's time at which it was done."""
        self.stream = stream
        self.number = number
        """Its number among the records of its stream, from 1 on."""
        self.late = late
        """Number of queries from the host that do not see it yet after it is done."""

    def seen(self) -> bool:
        """Query it from the host. Once seen, it stays seen, as do all earlier records of its stream."""
        if not self.done or self.stream is None:
            return self.done
        if self.number > self.stream.seen:
            if self.late:
                self.late -= 1
                return False
            self.stream.seen = self.number
        return True


@final
class SimulatedEvent:
    """Implements `RawEvent`, and with `timing` also `TimingEvent`."""

    def __init__(self, gpu: "SimulatedGpu", timing: bool = False) -> None:
        self._gpu = gpu
        self._timing = timing
        self.latest: Record | None = None
        self.captured_in: Any = None
        """The stream whose capture has the last record; None if that is in no capture."""
        """True if the stream was being captured when the event was recorded: it never happens."""

    def record(self, stream: Any, /) -> None:
        with self._gpu.call("cuEventRecord"):
            if stream.gpu is not self._gpu:
                self._gpu.machine.problem("an event is recorded in a stream of another device")
            self.captured_in = stream if stream.is_captured else None
            record = self.latest = stream.new_record()

            def act() -> None:
                record.done = True
                record.when = self._gpu.machine.now

            stream.put(act)

    def query(self) -> bool:
        with self._gpu.call("cuEventQuery", anywhere=True):
            self._gpu.machine.progress()
            self._gpu.refuse_if_lost("cuEventQuery")
            if self.captured_in is not None:
                code = CAPTURED_EVENT if self.captured_in.is_captured else INVALID_VALUE
                raise self._gpu.refused("cuEventQuery", code)
            return self.latest is None or self.latest.seen()

    def synchronize(self) -> None:
        with self._gpu.call("cuEventSynchronize", anywhere=True):
            record = self.latest
        if record is not None:
            self._gpu.machine.run_until(lambda: record.done, self._gpu, "cuEventSynchronize")
            with self._gpu.machine.changed:
                record.late = 0
                record.seen()

    def time_since(self, earlier: "SimulatedEvent", /) -> float:
        with self._gpu.call("cuEventElapsedTime"):
            first, last = earlier.latest, self.latest
            if not (self._timing and earlier._timing and earlier._gpu is self._gpu):  # noqa: SLF001  # another event of this class
                self._gpu.machine.problem("the time between events that have none, or are of two devices, is asked for")
            if first is None or last is None or not (first.seen() and last.seen()):
                self._gpu.machine.problem("the time between events is asked for before they have happened")
                return 0.0
            return (last.when - first.when) * 1e-3


@final
@dataclass(slots=True)
class Work:
    """One piece of work in a stream."""

    act: Callable[[], None]
    needs: Record | None = None
    takes_room: bool = False
    python: bool = False
    """True for a host function in Python, for which the driver's thread needs the GIL."""
    enqueued: EnqueuedWork = UNKNOWN
    """The work, as an audit of a capture reads it."""


@final
class SimulatedStream:
    """Implements `RawStream`."""

    def __init__(self, gpu: "SimulatedGpu", handle: int) -> None:
        self.gpu = gpu
        self.handle = handle
        self.queue: deque[Work] = deque()
        self.pending = 0
        self.seen = 0
        """Number of the latest record that the host has seen done."""
        self.records = 0
        """Number of records so far."""
        self.is_captured = False
        """True while another library captures it."""

    def new_record(self) -> Record:
        """Return a new record of this stream. The device may reach it long before the host sees that."""
        self.records += 1
        return Record(self, self.records, self.gpu.machine.lateness())

    def put(
        self,
        act: Callable[[], None],
        *,
        needs: Record | None = None,
        takes_room: bool = False,
        python: bool = False,
        enqueued: EnqueuedWork = UNKNOWN,
    ) -> None:
        """Append a piece of work to the stream."""
        if takes_room and self.pending >= QUEUE_DEPTH:
            self.gpu.machine.problem(f"more than {QUEUE_DEPTH} launches, copies and fills are pending in a stream")
        self.pending += takes_room
        self.queue.append(Work(act, needs, takes_room, python, enqueued))

    def wait_for_event(self, event: Any, /) -> None:
        with self.gpu.call("cuStreamWaitEvent", anywhere=True):
            if event.captured_in is not None and not self.is_captured:
                self.gpu.machine.problem("a stream becomes a part of another library's capture")
            if event.latest is not None:
                self.put(lambda: None, needs=event.latest)

    def query(self) -> bool:
        with self.gpu.call("cuStreamQuery", anywhere=True):
            self.gpu.machine.progress()
            self.gpu.refuse_if_lost("cuStreamQuery")
            return not self.queue

    def synchronize(self) -> None:
        with self.gpu.call("cuStreamSynchronize", anywhere=True):
            pass
        self.gpu.machine.run_until(lambda: not self.queue, self.gpu, "cuStreamSynchronize")


@final
class Machine:
    """The GPUs, the memory and the scheduler. All of its state is guarded by `changed`."""

    def __init__(self, seed: int, pinned: int = 1 << 32) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.problems: list[str] = []
        self.pinned_room = pinned
        self.peers = True
        """True if a kernel of one device can read memory of another."""
        self.maps_anew = False
        """True if freed addresses are used again, as by the driver. Otherwise an access to freed memory is an error."""
        self.blocks: dict[int, tuple[HostMemory, int]] = {}
        """All live allocations by address: the memory and its device, -1 for pinned memory."""
        self._addresses: list[int] = []
        self._buried: list[HostMemory] = []
        self._stacks: dict[int, list[SimulatedGpu]] = {}
        self._random = random.Random(seed)
        self._held = False
        self._gil_held = 0
        """Number of threads that wait in the driver with the GIL held. The driver's thread runs no Python meanwhile."""
        self._loaders: dict[int, int] = {}
        """The thread that is loading a module on a device, by the device's index."""
        self._closes = 0
        self.now = 0
        """The time in microseconds. Every piece of work takes one."""
        self._engine: threading.Thread | None = None
        self.streams: list[SimulatedStream] = []
        self.capturing: dict[int, SimulatedStream] = {}
        """The stream that each thread captures."""
        self.graphs: list[GraphRun] = []
        """The graph launches in progress."""
        self.conditions: dict[int, int] = {}
        """The values of the conditions of graphs, by their handles."""
        self.decisions: list[bool] = []
        """For each conditional node that was reached, True if its body ran."""
        self.gpus: list[SimulatedGpu] = []
        self.looks: list[Callable[[], None]] = []
        """Functions that a thread of the backend calls at any time: its watchdog polls the runs that tasks wait for."""
        self.units: list[Unit] = []
        self.shapes: set[tuple[str, tuple[int, int, int], int]] = set()
        """Name, block and dynamic shared memory of the launches of kernels in Python."""
        """All compiled units; a cubin is an index into this list."""

    def problem(self, what: str) -> None:
        """Record a violation of the driver's rules."""
        self.problems.append(what)
        raise AssertionError(what)

    def stream_of(self, handle: int) -> SimulatedStream:
        """Return the stream that has this handle. A library enqueues work to it."""
        return next((s for s in self.streams if s.handle == handle), None) or self.capturing[threading.get_ident()]

    def new_condition(self) -> int:
        """Return the handle of a new condition of a graph."""
        handle = CONDITION + len(self.conditions)
        self.conditions[handle] = 0
        return handle

    # ---- contexts --------------------------------------------------------------------------------------------------

    def stack(self) -> "list[SimulatedGpu]":
        """The stack of contexts of this thread."""
        return self._stacks.setdefault(threading.get_ident(), [])

    def no_context_left(self) -> bool:
        """Return True if every thread's context stack is empty, after waiting for threads that are still running."""
        with self.changed:
            return self.changed.wait_for(lambda: not any(self._stacks.values()), PATIENCE)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def add(self, address: int, memory: HostMemory, device: int) -> None:
        """Add an allocation."""
        memory.block[...] = POISON
        self.blocks[address] = memory, device
        insort(self._addresses, address)

    def remove(self, address: int, device: int) -> None:
        """Remove an allocation. Its memory stays alive, unreachable by address, because arrays may still view it."""
        memory, where = self.blocks.pop(address, (None, None))
        if memory is None or where != device:
            self.problem(f"{address:#x} is freed, which nobody allocated there")
            return
        self._addresses.remove(address)
        memory.block[...] = POISON
        self._buried.append(memory)

    def poison(self, address: int, nbytes: int) -> None:
        """Overwrite memory that must not be read any more."""
        found = self.find(address, nbytes)
        if found is not None:
            found[0].block[found[1] : found[1] + nbytes] = POISON

    def find(self, address: int, nbytes: int) -> tuple[HostMemory, int, int] | None:
        """Return the allocation that contains these bytes, their offset in it, and its device; None without one."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return None
        start = self._addresses[at]
        memory, device = self.blocks[start]
        return (memory, address - start, device) if address + nbytes <= start + memory.nbytes else None

    # ---- the scheduler ---------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one piece of work of any stream that is not blocked. Return False if all are blocked or empty."""
        ready = [stream for stream in self.streams if stream.queue and not stream.gpu.lost and self._may_run(stream)]
        graphs = [graph for graph in self.graphs if not any(gpu.lost for gpu in graph.gpus)]
        if not (ready or graphs) or self._held:
            return False
        self.now += 1
        choices: list[SimulatedStream | GraphRun] = [*ready, *graphs]
        chosen = self._random.choice(choices)
        if isinstance(chosen, SimulatedStream):
            work = chosen.queue.popleft()
            chosen.pending -= work.takes_room
            work.act()
        else:
            chosen.step(self._random)
            if chosen.end.done:
                self.graphs.remove(chosen)
        self.changed.notify_all()
        return True

    def _may_run(self, stream: SimulatedStream) -> bool:
        work = stream.queue[0]
        return (work.needs is None or work.needs.done) and not (work.python and self._gil_held)

    def lateness(self) -> int:
        """Return a random number of queries from the host that do not see a record after it is done."""
        return self._random.choice((0, 0, 0, 1, 2, 7))

    def progress(self) -> None:
        """Do a random amount of work, as GPUs do between two queries."""
        for _ in range(self._random.choice((0, 0, 1, 3, 10, 100))):
            if not self.step():
                return

    def run_until(self, done: Callable[[], bool], gpu: "SimulatedGpu", call: str) -> None:
        """Do work until `done()` is True. Other threads may run between any two pieces of work."""
        with self._waiting(call):
            while True:
                with self.changed:
                    if done():
                        return
                    gpu.refuse_if_lost(call)
                    if not self.step():
                        if not self._held:
                            because = ", with the GIL held that a host function needs" if self._gil_held else ""
                            self.problem(f"{call} would wait for ever{because}")
                        self.changed.wait()

    @contextmanager
    def _waiting(self, call: str) -> Iterator[None]:
        """Within the `with` block, a call waits. If the call holds the GIL, by the list of the driver's calls, no host
        function in Python runs until it returns."""
        holding = not releases(call)
        with self.changed:
            self._gil_held += holding
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self._gil_held -= holding

    @contextmanager
    def loading(self, gpu: "SimulatedGpu") -> Iterator[None]:
        """Within the `with` block, this thread loads a module. Every call that may wait for a load waits."""
        with self.changed:
            self.wait_behind_a_load(gpu, "cuModuleLoadData")
            self._loaders[gpu.index] = threading.get_ident()
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                del self._loaders[gpu.index]
                self.changed.notify_all()

    def loads(self, gpu: "SimulatedGpu") -> bool:
        """Return True if another thread is loading a module."""
        return self._loaders.get(gpu.index, threading.get_ident()) != threading.get_ident()

    def wait_behind_a_load(self, gpu: "SimulatedGpu", call: str) -> None:
        """Wait until no other thread is loading a module, as a call does that needs the lock of a load."""
        if self.loads(gpu) and may_wait_behind_a_load(call):
            with self._waiting(call):
                if not self.changed.wait_for(lambda: not self.loads(gpu), PATIENCE):
                    self.problem(f"{call} waits behind a load that does not end")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within the `with` block, no work is done. A thread that waits for work stays blocked."""
        with self.changed:
            self._held = True
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """End `hold`: continue the work."""
        with self.changed:
            self._held = False
            self.changed.notify_all()

    def will_close(self) -> None:
        """Note that a task sleeps until a descriptor is closed, so that the thread does all work before that."""
        self._closes += 1
        if self._engine is None:
            self._engine = threading.Thread(target=self._work, name="simulated-gpu", daemon=True)
            self._engine.start()
        self.changed.notify_all()

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self._closes:
                    self._engine = None
                    return
                if not self.step():
                    self.changed.wait()
                looking = self._random.random() < LOOKS
            if looking:
                for look in self.looks:
                    look()

    def closed(self, descriptor: int) -> None:
        """Close a descriptor, as the driver does at the end of the work before it."""
        self._closes -= 1
        try:
            os.close(descriptor)
        except OSError:
            self.problems.append("a descriptor was closed that is not open")

    def shut_down(self) -> None:
        """End the thread, even if it is waiting."""
        with self.changed:
            self._closes = 0
            self._held = False
            engine = self._engine
            self.changed.notify_all()
        if engine is not None:
            engine.join()
