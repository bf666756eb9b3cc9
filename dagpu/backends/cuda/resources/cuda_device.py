"""One CUDA device: its memory, its streams, its kernels, and the runs that are under way on it."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

from dagpu.backends.cuda.compile.module_cache import CubinCompiler, Library
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, STICKY, Gpu, RawEvent, RawGraph
from dagpu.backends.cuda.resources.cuda_exchange import CudaExchange
from dagpu.backends.cuda.resources.part_writes import PartWrites
from dagpu.backends.cuda.resources.pools import (
    GRAIN,
    LARGE,
    ForeignOwner,
    MemoryBlock,
    Pool,
    Slabs,
    array_over,
    describe_memory_of_others,
    rounded,
)
from dagpu.backends.cuda.resources.streams import OwnedStream, Streams
from dagpu.backends.host.failures import no_room, out_of_memory
from dagpu.backends.host.worker_threads import start_thread
from dagpu.common.critical import ReferenceQueue, enter_section
from dagpu.common.env_vars import PINNED_BYTES
from dagpu.common.errors import DeviceError, DeviceLostError, OutOfMemoryError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.handles.device_handles import LibraryBody, MappedMemory
from dagpu.plans.memory import describe_peak
from dagpu.plans.plan import Plan
from dagpu.plans.program import CopyDtoD

if TYPE_CHECKING:
    from numpy.typing import NDArray


# ---- A watchdog thread that polls the runs for which tasks sleep ------------------------------------------------
# The driver calls no host function once a context is lost, so a task that sleeps on a pipe would sleep for ever. The
# watchdog ends the pipe then. If very many tasks sleep at once, there are not enough pipes and streams; the watchdog
# wakes the tasks without a pipe.


PERIOD: Final = 0.1
"""Seconds between two polls of the runs with a pipe: the delay until a lost device is noticed."""

PATIENCE: Final = 5.0
"""Seconds without a sleeper after which the thread ends."""

PIPES: Final = 64
"""The most sleepers with a pipe, which takes two descriptors and a stream. A process may have 1,024 descriptors."""

CROWDED_PERIOD: Final = 1e-3
"""Seconds between two polls while there are sleepers without a pipe."""

POLL_SIZE: Final = 32
"""The number of sleepers without a pipe that one poll covers, in turn: some 100 us."""


class MayBeLost(Protocol):
    """The part of a device that the watchdog reads."""

    @property
    def lost(self) -> DeviceLostError | None:
        """The error with which the device was lost; None while it works."""
        ...


class SleptOn(Protocol):
    """The part of a run that the watchdog polls."""

    @property
    def devices(self) -> Sequence[MayBeLost]: ...

    def done(self) -> bool:
        """Poll the run, and return True if it is over."""
        ...


@final
@dataclass(slots=True)
class _Sleeper:
    """A run for which a task sleeps until the write end of a pipe is closed: by the run, by the driver, or by the
    watchdog."""

    run: weakref.ref[SleptOn]
    """The run. The reference is weak, because the run's errors keep all its results alive; the sleeping task has a
    strong one."""
    devices: Sequence[MayBeLost]
    """The devices of the run. The driver closes the pipe in a stream of the first one."""
    pipe: tuple[int, int]
    """Device and inode of the pipe. They show whether the descriptor is still the pipe's end."""


@final
class Watchdog:
    """The runs of one device for which tasks sleep, and a thread while there are any."""

    def __init__(self) -> None:
        self._sleepers: dict[int, _Sleeper] = {}
        """The sleepers with a pipe, by the descriptor of its write end. A descriptor is reused only after it was
        closed."""
        self._without_pipe: deque[tuple[SleptOn, Callable[[], None]]] = deque()
        self._lock = threading.Lock()
        self.polling = threading.Lock()
        """Held while a thread polls: a poll keeps a run alive, and may close its pipe."""
        self._thread: threading.Thread | None = None

    @property
    def pipes_exhausted(self) -> bool:
        """True if there are as many sleepers with pipes as are allowed."""
        return len(self._sleepers) >= PIPES

    def call(self, run: SleptOn, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over.

        Raises:
            DeviceError: no thread can be started.
        """
        with self._lock:
            self._start()
            self._without_pipe.append((run, wake))

    def add(self, run: SleptOn, wakeup_fd: int, pipe: tuple[int, int]) -> None:
        """Poll this run until the write end of its pipe is closed. If it is closed already, do nothing: the descriptor
        may belong to a sleeper of another run."""
        with self._lock:
            if identity(wakeup_fd) == pipe:
                self._sleepers[wakeup_fd] = _Sleeper(weakref.ref(run), run.devices, pipe)
                with suppress(DeviceError):  # the driver closes the pipe all the same, and the next sleeper tries again
                    self._start()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="dagpu-watch", daemon=True)
            start_thread(thread)
            self._thread = thread

    def poll_all(self) -> None:
        """Poll each run with a pipe once."""
        with self.polling:
            for wakeup_fd, sleeper in list(self._sleepers.items()):
                self._poll_sleeper(wakeup_fd, sleeper)

    def _poll_sleeper(self, wakeup_fd: int, sleeper: _Sleeper) -> None:
        run = sleeper.run()
        if run is not None and not _ended(run):
            return
        # The driver is about to close the pipe, unless a device is lost.
        is_open = identity(wakeup_fd) == sleeper.pipe
        if is_open and any(device.lost is not None for device in sleeper.devices):
            _end_pipe(wakeup_fd, sleeper.devices[0].lost)
            is_open = False
        with self._lock:
            if not is_open and self._sleepers.get(wakeup_fd) is sleeper:
                del self._sleepers[wakeup_fd]

    def poll_some(self) -> None:
        """Poll some of the runs without a pipe, and wake the tasks of those that are over."""
        for _ in range(min(len(self._without_pipe), POLL_SIZE)):
            run, wake = self._without_pipe.popleft()
            if _ended(run):
                wake()
            else:
                self._without_pipe.append((run, wake))

    def _serve(self) -> None:
        enter_section("an op was run")  # this thread runs only dagpu's code
        looked = busy = time.monotonic()
        while True:
            time.sleep(CROWDED_PERIOD if self._without_pipe else PERIOD)
            self.poll_some()
            now = time.monotonic()
            if now - looked >= PERIOD:
                looked = now
                self.poll_all()
            with self._lock:
                if self._sleepers or self._without_pipe:
                    busy = now
                elif now - busy > PATIENCE:
                    self._thread = None
                    return


def _end_pipe(wakeup_fd: int, lost: DeviceLostError | None) -> None:
    """End a pipe that the driver has not closed, and wake the task that reads it. `lost` is the error of the device in
    whose stream the driver closes it.

    The driver never closes it in a context with an error. If the device counts as lost for another reason, or if only
    another device of the run is lost, the driver may still close the descriptor. So its number stays taken, by a file
    that nothing reads: otherwise the driver might close a file of the program's that has got the number.
    """
    if lost is None or lost.code not in STICKY:
        try:
            taken = os.open(os.devnull, os.O_RDONLY)
        except OSError:  # the process has too many files open
            pass
        else:
            os.dup2(taken, wakeup_fd, inheritable=False)
            os.close(taken)
            return
    os.close(wakeup_fd)


def _ended(run: SleptOn) -> bool:
    """Return True if the run is over, or if polling it raises: the waiting task then polls it and receives the
    error."""
    try:
        return run.done()
    except Exception:  # the waiting task gets the same error
        return True


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open descriptor; None if it is closed."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino


_T = TypeVar("_T")

NAMED: Final = 3
"""The number of launches under way that the message of a lost device names."""


class LiveRun(Protocol):
    """The part of a run that its devices call while it is under way."""

    @property
    def finishing(self) -> bool:
        """True once the devices have completed the run."""
        ...

    def done(self) -> bool:
        """Poll the run, and return True if it is over."""
        ...

    def wait(self) -> object:
        """Block until the run is over."""
        ...

    def lose(self, error: DeviceLostError) -> None:
        """End the run with this error: one of its devices is lost."""
        ...


@final
class CudaDevice:
    """One CUDA device. Implements `dagpu.handles.device_handles.Driver`."""

    def __init__(self, gpu: Gpu, compiler: CubinCompiler) -> None:
        self.gpu = gpu
        self.memory = Pool(_in_context(gpu, gpu.allocate), _in_context(gpu, gpu.free))
        slabs = Slabs(gpu.allocate_pinned, gpu.free_pinned)
        self.pinned = Pool(_in_context(gpu, slabs.allocate), _in_context(gpu, slabs.free))
        self.pinned_room = pinned_room()
        """The most page-locked bytes for results of `to_host`. Further results are in ordinary memory."""
        self.streams = Streams(gpu)
        self._parts = PartWrites(gpu, self.streams, self.memory, self.pinned, self.pinned_room)
        self.library = Library(gpu, compiler)
        self.watchdog = Watchdog()
        self.arch = gpu.arch
        """The architecture for which its kernels are compiled."""
        self.retired: ReferenceQueue[RawGraph | ForeignOwner | None] = ReferenceQueue()
        """Graphs that are no longer referenced, and the owners of imported memory that is dropped. The next thread that
        starts a run or imports an array destroys and releases them."""
        self.exchange = CudaExchange(
            gpu, self.streams, self.memory, self.retired, self.destroy_retired, self.refuse_if_lost
        )
        """The exchange of the device's memory with other libraries."""
        self.live: set[LiveRun] = set()
        self.lost: DeviceLostError | None = None
        self.all_devices: Sequence[CudaDevice] = (self,)
        """The CUDA devices of the process, by their numbers."""
        self._peers: dict[int, bool] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"cuda:{self.gpu.index}"

    # ---- the Driver ---------------------------------------------------------------------------------------------

    def open_stream(self) -> Hashable:
        """Return a new stream for a user. It goes back to the pool when its last reference is dropped."""
        self.refuse_if_lost()
        with self.gpu.current():
            return self.streams.open()

    def stream_handle(self, lane: Hashable) -> int:
        """Return the CUstream of a stream of `open_stream`, as an integer."""
        assert isinstance(lane, OwnedStream)
        return lane.stream.raw.handle

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory in bytes. Idle memory in dagpu's pool does not count as free."""
        self.refuse_if_lost()
        with self.gpu.current():
            return self.gpu.memory_info()

    def memory_for_runs(self, results: Sequence[int]) -> int:
        """Return the bytes that a run with results of these sizes could allocate now, with them: of what the driver
        says is free and of the pool's idle memory. Blocks of the pool are rounded."""
        left = self.memory_info()[0] + self.memory.idle - sum(map(rounded, results))
        return max(left - left % (LARGE if left >= LARGE else GRAIN), 0) + sum(results)

    def memory_used(self) -> int:
        """Return the number of bytes that handles and runs hold."""
        return self.memory.used

    def is_known(self, body: LibraryBody, operands: Sequence[Layout]) -> bool:
        """True if `scratch_bytes` returns at once for these arguments."""
        return body.is_known(operands, self.gpu.index)

    @property
    def lacks_conditions(self) -> str:
        """The reason why no graph of the device decides which of its nodes run; empty if graphs can."""
        return self.gpu.lacks_conditions

    def mapped_memory(self, nbytes: int) -> MappedMemory:
        """Return page-locked memory. Under unified addressing kernels read it at its address."""
        self.refuse_if_lost()
        with self.gpu.current():
            block = self.pinned.take(nbytes)
        return MappedMemory(block, array_over(block, nbytes))

    def write_part(self, memory: object, layout: Layout, array: "NDArray[Any]") -> bool:
        """Write an array to the elements of `layout` in memory that no run uses; see `part_writes`. If other libraries
        may still use memory of the device, it needs a run, which waits for them."""
        return self._change_part(memory, lambda block: self._parts.write(block, layout, array))

    def copy_part(self, memory: object, layout: Layout, source: object) -> bool:
        """Copy `source`, memory of the device, to the elements of `layout` in memory that no run uses; see
        `write_part`."""
        assert isinstance(source, MemoryBlock), f"{source!r} is not memory of the CUDA backend"
        return self._change_part(memory, lambda block: self._parts.copy(block, layout, source))

    def _change_part(self, memory: object, change: Callable[[MemoryBlock], bool]) -> bool:
        assert isinstance(memory, MemoryBlock), f"{memory!r} is not memory of the CUDA backend"
        self.refuse_if_lost()
        if self.exchange.arrivals:
            self.settle()
            if self.exchange.arrivals:
                return False
        try:
            with self.gpu.current():
                return change(memory)
        except DeviceLostError as error:
            self.lose(error, ["a write to a part of a tensor"])
            raise

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a copy of an array in page-locked memory; None if it is so large that several threads stage it."""
        self.refuse_if_lost()
        with self.gpu.current():
            return self._parts.copy_for_later(array)

    def scratch_bytes(self, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that the body of a kernel needs on this device."""
        self.refuse_if_lost()
        with self.gpu.current():
            return body.scratch_bytes(operands, self.gpu.index)

    # ---- for runs -----------------------------------------------------------------------------------------------

    def new_event(self) -> RawEvent:
        """Return an event of the pool. Any context may be current."""
        return self.streams.take_event()

    def reclaim(self) -> None:
        """Wait for the runs under way, so that their memory goes back to the pool, and free the pool's idle memory."""
        self.memory.unpark(self.gpu.synchronize)
        for run in list(self.live):
            if not run.done() and run.finishing:
                run.wait()  # another thread is returning its memory
        self.destroy_retired()
        self.memory.trim()

    def out_of_memory(self, plan: Plan, number: int, nbytes: int, purpose: str) -> OutOfMemoryError:
        """Return the error of a run that cannot allocate `nbytes` bytes for `purpose`. `number` is this device's number
        in the plan. The context must be current."""
        free, total = self.gpu.memory_info()
        return out_of_memory(
            f"{no_room(self.name, nbytes)} for {purpose}. A run takes {plan.peak_bytes:,}; alive at the peak: "
            f"{describe_peak(plan, number)}. {free:,} of {total:,} bytes are free, and dagpu's handles and runs hold "
            f"{self.memory.used:,}{describe_memory_of_others()}",
            OUT_OF_MEMORY,
        )

    def destroy_retired(self) -> None:
        """Destroy the graphs that are no longer referenced, of which none runs, and release the owners of imported
        memory that is dropped."""
        retired = self.retired
        while retired.gone:
            try:
                dropped = retired.pop()
            except IndexError:  # another thread was quicker
                return
            if isinstance(dropped, tuple):
                self.exchange.forget(dropped[1])
            elif dropped is not None and self.lost is None:
                self._destroy(dropped)

    def _destroy(self, graph: RawGraph) -> None:
        try:
            with self.gpu.current():
                graph.destroy()
        except DeviceLostError:
            if all(device.lost is None for device in self.all_devices):
                raise
        except DeviceError:
            pass  # nothing refers to the graph

    def settle(self) -> None:
        """Release what is retired, and forget the arrivals that have happened, so that a launch need not look."""
        if self.lost is None:
            try:
                self.destroy_retired()
                if self.exchange.arrivals:
                    with self.gpu.current():
                        self.exchange.pending()
            except DeviceLostError as error:
                self.lose(error, [])
                raise

    def reaches(self, peer: int) -> bool:
        """Return whether the device reads the memory of device number `peer`. The first call for a peer enables that,
        where the hardware can: copies between the two take their own link then, and kernels may read the peer. Its own
        memory each device reads, though the driver says that none is a peer of itself."""
        if peer == self.gpu.index:
            return True
        with self._lock:
            reached = self._peers.get(peer)
            if reached is None:
                with self.gpu.current():
                    reached = self._peers[peer] = self.gpu.reach_peer(self.all_devices[peer].gpu)
        return reached

    def reach(self, peer: "CudaDevice", instruction: CopyDtoD) -> None:
        """Enable kernels of this device to read the peer's memory.

        Raises:
            DeviceError: the hardware cannot.
        """
        if not self.reaches(peer.gpu.index):
            raise DeviceError(
                f"copying a strided view, or converting it, from {peer.name} to {self.name} at "
                f"{describe(instruction.origin)}: {self.name} cannot read memory of {peer.name}. Copy or convert it on "
                f'{peer.name} first: dup(t).on("{peer.name}").'
            )

    # ---- when it is lost ----------------------------------------------------------------------------------------

    def refuse_if_lost(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        if self.lost is not None:
            raise DeviceLostError(f"{self.name} cannot be used any more by this process. {self.lost}", self.lost.code)

    def lose(self, error: DeviceError, under_way: Sequence[str]) -> None:
        """Mark the device as lost, because its context cannot be used again. Fail every run under way and every later
        run."""
        with self._lock:
            first = self.lost is None
            if first:
                named = ", ".join(dict.fromkeys(under_way[:NAMED])) or "nothing of dagpu's"
                more = f" and {len(under_way) - NAMED} more" if len(under_way) > NAMED else ""
                self.lost = DeviceLostError(
                    f"{self.name} was lost while a run was under way with {named}{more}: {error} Restart the process; "
                    "results that were not copied to the host are lost.",
                    error.code,
                )
        assert self.lost is not None
        for run in list(self.live):
            run.lose(self.lost)


def lose_devices(devices: Sequence[CudaDevice], error: DeviceError, under_way: Sequence[str], asked: int = 0) -> None:
    """Mark those of a run's devices as lost that are, after this error of the run. A lost device refuses every call; if
    none of several does, the one with the number `asked` counts as lost, whose call failed."""
    for device in devices if len(devices) > 1 else ():
        try:
            with device.gpu.current():
                device.gpu.memory_info()
        except DeviceLostError as its_own:
            device.lose(its_own, under_way)
    if all(device.lost is None for device in devices):
        devices[asked].lose(error, under_way)


def _in_context(gpu: Gpu, call: Callable[[int], _T]) -> Callable[[int], _T]:
    """Return a function that makes a call of the driver in the device's context. Most requests for memory make none."""

    def made(argument: int) -> _T:
        with gpu.current():
            return call(argument)

    return made


def pinned_room() -> int:
    """Return the most page-locked memory to use, in bytes: DAGPU_PINNED_BYTES, or a quarter of the machine's memory."""
    said = PINNED_BYTES.get()
    if said is not None:
        return said
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
