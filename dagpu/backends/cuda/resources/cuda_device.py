"""One CUDA device: its memory, its streams, its kernels, and the runs that are under way on it."""

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

from dagpu.backends.common.run_errors import no_room, out_of_memory
from dagpu.backends.cuda.compile.module_cache import CubinCompiler, Library
from dagpu.backends.cuda.driver.driver_errors import OUT_OF_MEMORY
from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawEvent, RawGraph
from dagpu.backends.cuda.resources.cuda_exchange import CudaExchange
from dagpu.backends.cuda.resources.other_allocators import describe_memory_of_others
from dagpu.backends.cuda.resources.part_writes import PartWrites
from dagpu.backends.cuda.resources.pools import ForeignOwner, MemoryBlock, Pool, Slabs, array_over
from dagpu.backends.cuda.resources.streams import OwnedStream, Streams
from dagpu.backends.cuda.resources.watchdog import Watchdog
from dagpu.common.critical import ReferenceQueue
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
        where the hardware can: copies between the two take their own link then, and kernels may read the peer."""
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
