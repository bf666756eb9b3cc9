"""Simulated GPUs: a driver for the CUDA backend on machines without a GPU.

Device memory is a separate address space. New and freed memory is poisoned, and an access to unallocated memory is an
illegal address, as on a GPU. A stream is a queue of work. A scheduler with a seed picks any stream whose next piece of
work may run (`tests.simulated.machine`), so a schedule that lacks an event gives wrong results for some seed.

The simulator is stricter than the driver: freeing memory does not wait, a full queue is a failure where the driver
would block, and every call needs its device's context. Violations of these rules are also listed in `Machine.problems`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.compile.module_cache import BUILTIN_FILE
from dagpu.backends.cuda.driver.driver_protocol import (
    IN_DRIVER,
    STICKY,
    Launches,
    RawEvent,
    TimingEvent,
    device_error,
)
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.common.errors import DeviceError
from dagpu.testing import (
    LAUNCH,
    CapturedNode,
    EnqueuedWork,
    Function,
    Gpu,
    GraphNode,
    KernelLaunch,
    Limits,
    RawGraph,
    RawStream,
)
from tests.simulated.machine import Machine, SimulatedEvent, SimulatedStream

FIRST_HANDLE: Final = 0x100
"""The CUstream of the first stream that is created. 1 and 2 are the default streams."""

NO_CONTEXT: Final = frozenset(
    (
        "cuStreamQuery", "cuStreamSynchronize", "cuEventQuery", "cuEventRecord", "cuEventSynchronize", "cuGraphLaunch",
        "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",
    )
)  # fmt: skip
"""The calls that need no context, as tried on a driver of CUDA 13.0. There an update of a node ends the process."""

TEXTS: Final = {
    1: "invalid argument", 2: "out of memory", 700: "an illegal memory access was encountered",
    719: "unspecified launch failure",
}  # fmt: skip
OPEN: Final = 1024
"""The bytes of a `__constant__` variable whose extent the text leaves open."""
CAPTURING: Final = 1 << 40
"""The handle of a stream under capture. No other stream has it."""
LIMITS: Final = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 227 << 10, 48 << 10)


@final
class Current:
    """A context while it is current."""

    def __init__(self, gpu: "SimulatedGpu") -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        self._gpu.machine.stack().append(self._gpu)

    def __exit__(self, *_: object) -> None:
        machine = self._gpu.machine
        with machine.changed:
            stack = machine.stack()
            if not stack or stack.pop() is not self._gpu:
                machine.problem("a context is popped that is not the thread's current one")
            machine.changed.notify_all()


@final
class SimulatedGpu:
    """Implements `dagpu.backends.cuda.driver.driver_protocol.Gpu`."""

    is_native = False

    def __init__(self, machine: Machine, index: int, memory: int, limits: Limits) -> None:
        self.machine = machine
        self.index = index
        self.name = f"simulated GPU {index}"
        self.arch = "sm_90"
        self.limits = limits
        self.needs_context = False
        """True for a driver that refuses the calls of `NO_CONTEXT` where no context is current."""
        self.multiprocessors = 4
        self.total = memory
        self.used = 0
        self.used_pinned = 0
        self.events = 0
        self.timing_events = 0
        self.calls: Counter[str] = Counter()
        self.lost = 0
        """The CUresult of every call from now on; 0 while the device works."""
        self.graphs = 0
        """Number of executable graphs that are alive."""
        self.lacks_conditions = ""
        """As of a driver that is too old, the reason why graphs have no conditional nodes."""
        self.reached: set[int] = set()
        self._faults: dict[str, list[tuple[int, int]]] = {}
        self._next = (index + 1) << 44
        self._freed: dict[int, list[int]] = {}
        """The addresses that were freed, by the bytes that they had."""

    # ---- common parts of calls -------------------------------------------------------------------------------------

    def fail(self, call: str, code: int, nth: int = 1) -> None:
        """Let the nth call of this kind from now on fail."""
        self._faults.setdefault(call, []).append((self.calls[call] + nth, code))

    def heal(self) -> None:
        """Withdraw all failures that have not occurred yet."""
        self._faults.clear()

    def lose(self, code: int = 700) -> None:
        """Lose the device: every call from now on fails with `code`, as after a sticky error of a kernel."""
        with self.machine.changed:
            self.lost = code
            self.machine.changed.notify_all()

    def refuse_if_lost(self, call: str) -> None:
        """Raise the error of a lost device, as every call does after a sticky error."""
        if self.lost:
            raise self.refused(call, self.lost)

    @contextmanager
    def call(self, name: str, *, anywhere: bool = False) -> Iterator[None]:
        """Within the `with` block, a call is made. With `anywhere`, the context of any device may be current."""
        with self.machine.changed:
            self.calls[name] += 1
            self.machine.changed.notify_all()
            stack = self.machine.stack()
            is_current = bool(stack) and (anywhere or stack[-1] is self)
            if not is_current and (self.needs_context or name not in NO_CONTEXT):
                self.machine.problem(f"{name} is called without the context of cuda:{self.index}")
            self.machine.wait_behind_a_load(self, name)
            self.refuse_if_lost(name)
            for fault in self._faults.get(name, ()):
                if fault[0] == self.calls[name]:
                    if fault[1] in STICKY:
                        self.lose(fault[1])
                    raise self.refused(name, fault[1])
            yield

    def current(self) -> Current:
        return Current(self)

    def entered(self) -> AbstractContextManager[object]:
        return self.current() if self.needs_context else IN_DRIVER

    def record(self, event: RawEvent, stream: RawStream) -> None:
        with self.current():
            event.record(stream)

    def refused(self, call: str, code: int) -> DeviceError:
        return device_error(call, code, TEXTS.get(code, "some error"))

    # ---- streams and events ----------------------------------------------------------------------------------------

    def new_stream(self) -> RawStream:
        with self.call("cuStreamCreate"):
            stream = SimulatedStream(self, FIRST_HANDLE + len(self.machine.streams))
            self.machine.streams.append(stream)
            return stream

    def foreign_stream(self, handle: int) -> RawStream:
        with self.machine.changed:
            for stream in self.machine.streams:
                if stream.gpu is self and stream.handle == handle:
                    return stream
            if handle not in (1, 2):
                self.machine.problem(f"{handle:#x} is no stream of cuda:{self.index}")
            stream = SimulatedStream(self, handle)  # a default stream: it is there from the start
            self.machine.streams.append(stream)
            return stream

    def device_of(self, address: int) -> int:
        with self.call("cuPointerGetAttribute"):
            found = self.machine.find(address, 1)
            if found is None or found[2] < 0:
                raise self.refused("cuPointerGetAttribute", 1)
            return found[2]

    def new_event(self) -> RawEvent:
        with self.call("cuEventCreate"):
            self.events += 1
            return SimulatedEvent(self)

    def new_timing_event(self) -> TimingEvent:
        with self.call("cuEventCreate"):
            self.timing_events += 1
            return SimulatedEvent(self, timing=True)

    def make_graph(
        self,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: Sequence[Gpu] = (),
        bodies: Sequence[int] = (),
    ) -> RawGraph:
        from tests.simulated.graphs import SimulatedGraph

        places = [gpu for gpu in gpus if isinstance(gpu, SimulatedGpu)] or [self] * len(nodes)
        return SimulatedGraph(self, nodes, places, bodies)

    def captured(self, node: CapturedNode) -> "list[Callable[[], None]]":
        """Return what a library enqueues for this node, in the order of its stream. Nothing of it is done."""
        stream = SimulatedStream(self, CAPTURING)
        with self.call("cuStreamBeginCapture"):
            self.machine.capturing[threading.get_ident()] = stream
        try:
            node.enqueue(stream.handle, node.addresses, node.scratch, *node.numbers)
        finally:
            del self.machine.capturing[threading.get_ident()]
        with self.call("cuStreamEndCapture"):
            queue = list(stream.queue)
        if node.inspect is not None:
            node.inspect([work.enqueued for work in queue])
        return [work.act for work in queue]

    def captured_work(self, node: CapturedNode) -> Sequence[EnqueuedWork]:
        found: list[EnqueuedWork] = []
        self.captured(replace(node, inspect=found.extend))
        return found

    def close_when_reached(self, stream: Any, descriptor: int) -> None:
        with self.call("cuLaunchHostFunc"):
            stream.put(lambda: self.machine.closed(descriptor))
            self.machine.will_close()

    def synchronize(self) -> None:
        with self.call("cuCtxSynchronize"):
            pass
        self._wait_for_all("cuCtxSynchronize")

    def _wait_for_all(self, call: str) -> None:
        """Wait until this device has done all of its work. Then the host sees all earlier records."""
        with self.machine.changed:
            mine = {stream: stream.records for stream in self.machine.streams if stream.gpu is self}
        self.machine.run_until(lambda: not any(stream.queue for stream in mine), self, call)
        with self.machine.changed:
            for stream, record in mine.items():
                stream.seen = max(stream.seen, record)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        with self.call("cuMemAlloc"):
            if self.used + nbytes > self.total:
                raise self.refused("cuMemAlloc", 2)
            self.used += nbytes
            if self.machine.maps_anew and self._freed.get(nbytes):
                address = self._freed[nbytes].pop()
            else:
                address, self._next = self._next, self._next + -(-nbytes // 512) * 512 + 512
            self.machine.add(address, HostMemory(Account(), nbytes), self.index)
            return address

    def free(self, address: int) -> None:
        with self.call("cuMemFree"):
            nbytes = self.machine.blocks[address][0].nbytes
            self.used -= nbytes
            self._freed.setdefault(nbytes, []).append(address)
            self.machine.remove(address, self.index)

    def allocate_pinned(self, nbytes: int) -> int:
        with self.call("cuMemHostAlloc"):
            if self.used_pinned + nbytes > self.machine.pinned_room:
                raise self.refused("cuMemHostAlloc", 2)
            self.used_pinned += nbytes
            memory = HostMemory(Account(), nbytes)
            address: int = memory.block.__array_interface__["data"][0]
            self.machine.add(address, memory, -1)
            return address

    def free_pinned(self, address: int) -> None:
        with self.call("cuMemFreeHost"):
            self.used_pinned -= self.machine.blocks[address][0].nbytes
            self.machine.remove(address, -1)

    def memory_info(self) -> tuple[int, int]:
        with self.call("cuMemGetInfo"):
            return self.total - self.used, self.total

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        found = self.machine.find(array.__array_interface__["data"][0], array.nbytes)
        return found is not None and found[2] == -1

    def bytes_at(self, address: int, nbytes: int, *, peers: bool = False) -> NDArray[np.uint8] | None:
        """Return memory that this device can reach, with `peers` on any device. Otherwise lose the device."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        found = self.machine.find(address, nbytes)
        if found is None or not (peers or found[2] in (-1, self.index) or found[2] in self.reached):
            self.lose()
            return None
        return found[0].block[found[1] : found[1] + nbytes]

    # ---- copies ----------------------------------------------------------------------------------------------------

    def copied(self, target: int, source: int, nbytes: int) -> None:
        """Do a copy of `nbytes` bytes from `source` to `target`."""
        to, origin = self.bytes_at(target, nbytes, peers=True), self.bytes_at(source, nbytes, peers=True)
        if to is not None and origin is not None:
            to[...] = origin

    def _copy(self, call: str, stream: Any, target: int, source: int, nbytes: int) -> None:
        with self.call(call):
            ends = (target, target + nbytes - 1, source, source + nbytes - 1)
            work = EnqueuedWork("a copy", ends)
            stream.put(lambda: self.copied(target, source, nbytes), takes_room=True, enqueued=work)

    def copy_in(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        assert source.flags.c_contiguous
        if not self.is_pinned(source):
            self.machine.problem("an array that is not page-locked is copied in: it would hold up whoever copies it")
        self._copy("cuMemcpyHtoDAsync", stream, address, source.__array_interface__["data"][0], source.nbytes)

    def copy_in_and_wait(self, address: int, source: NDArray[Any], stream: Any) -> None:
        if self.is_pinned(source):
            self.copy_in(address, source, stream)
            return
        assert source.flags.c_contiguous
        flat = source.reshape(-1).view(np.uint8)

        def act() -> None:
            to = self.bytes_at(address, source.nbytes)
            if to is not None:
                to[...] = flat

        with self.call("cuMemcpyHtoDAsync"):
            stream.put(act, takes_room=True)
        self.machine.run_until(lambda: not stream.queue, self, "cuMemcpyHtoDAsync")  # it returns after the copy

    def copy_out(self, target: NDArray[Any], address: int, stream: Any) -> None:
        assert target.flags.c_contiguous
        if self.is_pinned(target):
            self._copy("cuMemcpyDtoHAsync", stream, target.__array_interface__["data"][0], address, target.nbytes)
            return
        flat = target.reshape(-1).view(np.uint8)

        def act() -> None:
            origin = self.bytes_at(address, target.nbytes)
            if origin is not None:
                flat[...] = origin

        with self.call("cuMemcpyDtoHAsync"):
            stream.put(act, takes_room=True)
        self.machine.run_until(lambda: not stream.queue, self, "cuMemcpyDtoHAsync")  # it returns after the copy

    def copy(self, target: int, source: int, nbytes: int, stream: RawStream) -> None:
        self._copy("cuMemcpyDtoDAsync", stream, target, source, nbytes)

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: Any
    ) -> None:
        def act() -> None:
            for row in range(height):
                to = self.bytes_at(target + row * pitches[0], width, peers=True)
                origin = self.bytes_at(source + row * pitches[1], width, peers=True)
                if to is not None and origin is not None:
                    to[...] = origin

        with self.call("cuMemcpy2DAsync"):
            stream.put(act, takes_room=True)

    def filled(self, address: int, width: int, value: int, count: int) -> None:
        """Do a fill: write `value` to `count` elements of `width` bytes."""
        to = self.bytes_at(address, width * count)
        if to is not None:
            to.view(f"u{width}")[...] = value

    def fill(self, address: int, width: int, value: int, count: int, stream: Any) -> None:
        with self.call(f"cuMemsetD{8 * width}Async"):
            work = EnqueuedWork("a fill", (address, address + width * count - 1))
            stream.put(lambda: self.filled(address, width, value, count), takes_room=True, enqueued=work)

    def reach_peer(self, peer: Gpu) -> bool:
        with self.call("cuCtxEnablePeerAccess"):
            if peer is self:
                return False
            if self.machine.peers:
                self.reached.add(peer.index)
            return self.machine.peers

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes, symbol: str, variables: Sequence[str] = ()) -> Function:
        from tests.simulated.kernels import Loaded, LoadedOwn

        with self.machine.loading(self):
            with self.call("cuModuleLoadData"):
                unit = self.machine.units[int(cubin)]
                assert symbol == unit.name
            self._wait_for_all("cuModuleLoadData")
            found = tuple([self._variable(nbytes or OPEN) for _, nbytes in unit.constants])
            assert list(variables) == [name for name, _ in unit.constants]
        sizes = tuple([nbytes or OPEN for _, nbytes in unit.constants])
        kernel = (
            LoadedOwn(self) if unit.file == BUILTIN_FILE else Loaded(self, unit, list(zip(found, sizes, strict=True)))
        )
        return Function(
            kernel,
            self.limits.threads,
            0,
            32,
            self._allow_shared,
            resident=self._resident,
            variables=found,
            sizes=sizes,
        )

    def _allow_shared(self, nbytes: int) -> None:
        with self.call("cuFuncSetAttribute"):
            assert nbytes <= self.limits.shared

    def _resident(self, threads: int, shared: int) -> int:
        with self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor"):
            return self.most_blocks(threads, shared)

    def most_blocks(self, threads: int, shared: int) -> int:
        """Return how many blocks are on the device at once: one for 1,024 threads, or all shared memory, of each of its
        multiprocessors."""
        limits = self.limits
        return self.multiprocessors * min(limits.threads // threads, limits.shared // max(shared, 1))

    def _variable(self, nbytes: int) -> int:
        """Return the address of a variable of a module, in memory that stays there."""
        address, self._next = self._next, self._next + -(-nbytes // 512) * 512 + 512
        self.machine.add(address, HostMemory(Account(), nbytes), self.index)
        return address

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> Launches:
        return SimulatedLaunches(launches)


@final
class SimulatedLaunches:
    """Implements `Launches`."""

    def __init__(self, launches: Sequence[tuple[KernelLaunch, int]]) -> None:
        self.each = [partial(self._make, launch, lane) for launch, lane in launches]
        self._streams: Sequence[Any] = ()

    def set_streams(self, streams: Sequence[RawStream]) -> None:
        self._streams = streams

    def _make(self, launch: KernelLaunch, lane: int) -> int:
        kernel = launch.function.handle
        try:
            with kernel.gpu.call(LAUNCH):
                stream = self._streams[lane]
                if stream.gpu is not kernel.gpu:
                    kernel.gpu.machine.problem("a kernel is launched in a stream of another device")
                stream.put(kernel.act(launch), takes_room=True)
        except DeviceError as error:
            return error.code
        return 0
