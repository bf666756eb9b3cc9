"""One CUDA device: its memory, its streams, its kernels, and the runs that are under way on it."""

import os
import threading
from collections.abc import Hashable, Sequence
from typing import Final, Protocol, final

from dagpu.backends.common.run_errors import no_room, out_of_memory
from dagpu.backends.cuda.compile.module_cache import CubinCompiler, Library
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, Gpu, RawEvent, RawGraph
from dagpu.backends.cuda.resources.pools import Pool, Slabs
from dagpu.backends.cuda.resources.streams import OwnedStream, Streams
from dagpu.backends.cuda.resources.watchdog import Watchdog
from dagpu.common.env_vars import PINNED_BYTES
from dagpu.common.errors import DeviceError, DeviceLostError, OutOfMemoryError
from dagpu.common.origin import describe
from dagpu.common.reference_queue import ReferenceQueue
from dagpu.lowering.memory.planner import describe_peak
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import CopyDtoD

NAMED: Final = 3
"""Launches under way that a lost device's message names."""


class LiveRun(Protocol):
    """The part of a run that its devices call while it is under way."""

    @property
    def finishing(self) -> bool:
        """True once the devices are done with all of it."""
        ...

    def done(self) -> bool:
        """Look whether everything has happened."""
        ...

    def wait(self) -> object:
        """Block until it is done."""
        ...

    def lose(self, error: DeviceLostError) -> None:
        """End it, because a device of it was lost."""
        ...


@final
class CudaDevice:
    """Implements `dagpu.handles.device_handles.Driver`."""

    def __init__(self, gpu: Gpu, compiler: CubinCompiler) -> None:
        self.gpu = gpu
        self.memory = Pool(gpu.allocate, gpu.free)
        slabs = Slabs(gpu.allocate_pinned, gpu.free_pinned)
        self.pinned = Pool(slabs.allocate, slabs.free)
        self.pinned_room = pinned_room()
        """Bytes that results of `to_host` may lock together; further ones are in ordinary memory."""
        self.streams = Streams(gpu)
        self.library = Library(gpu, compiler)
        self.watch = Watchdog()
        self.live: set[LiveRun] = set()
        self.retired: ReferenceQueue[RawGraph | None] = ReferenceQueue()
        """Graphs that nobody has any more, to be destroyed by the next who calls the driver anyway."""
        self.lost: DeviceLostError | None = None
        self._peers: dict[int, bool] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"cuda:{self.gpu.index}"

    # ---- the Driver ---------------------------------------------------------------------------------------------

    def open_stream(self) -> Hashable:
        """A stream of one's own."""
        self.refuse_if_lost()
        with self.gpu.current():
            return self.streams.open()

    def stream_handle(self, lane: Hashable) -> int:
        """The CUstream of such a stream."""
        assert isinstance(lane, OwnedStream)
        return lane.stream.raw.handle

    def memory_info(self) -> tuple[int, int]:
        """Free and total memory, bytes. What idles in dagpu's pool is not free to others."""
        self.refuse_if_lost()
        with self.gpu.current():
            return self.gpu.memory_info()

    def memory_used(self) -> int:
        """Bytes that handles and runs hold."""
        return self.memory.used

    # ---- for runs -----------------------------------------------------------------------------------------------

    def new_event(self) -> RawEvent:
        """An event of the pool, whatever context is current."""
        with self.gpu.current():
            return self.streams.event()

    def reclaim(self) -> None:
        """Wait for the runs under way, so that the pool gets their memory back, and empty the pool."""
        self.gpu.synchronize()
        for run in list(self.live):
            if not run.done() and run.finishing:
                run.wait()  # another thread has seen its end, and is giving back what it held
        self.destroy_retired()
        self.memory.trim()

    def out_of_memory(self, plan: Plan, number: int, nbytes: int, purpose: str) -> OutOfMemoryError:
        """The error of a run of a plan, in which this device has the given number, that finds no room for something.
        The context is current."""
        free, total = self.gpu.memory_info()
        return out_of_memory(
            f"{no_room(self.name, nbytes)} for {purpose}. A run takes {plan.peak_bytes:,}; alive at the peak: "
            f"{describe_peak(plan, number)}. {free:,} of {total:,} bytes are free, and dagpu's handles and runs hold "
            f"{self.memory.used:,}",
            OUT_OF_MEMORY,
        )

    def destroy_retired(self) -> None:
        """Give the driver back the graphs that nobody has any more. None of them runs. The context is current."""
        while self.retired:
            try:
                graph = self.retired.pop()
            except IndexError:  # another thread was quicker
                return
            if graph is not None and self.lost is None:
                try:
                    graph.destroy()
                except DeviceLostError:
                    raise
                except DeviceError:
                    pass  # whatever it still is, nobody can use it

    def reach(self, peer: "CudaDevice", instruction: CopyDtoD) -> None:
        """Let kernels of this device read the peer's memory.

        Raises:
            DeviceError: the hardware cannot.
        """
        with self._lock:
            reached = self._peers.get(peer.gpu.index)
            if reached is None:
                with self.gpu.current():
                    reached = self._peers[peer.gpu.index] = self.gpu.reach_peer(peer.gpu)
        if not reached:
            raise DeviceError(
                f"copying a strided view, or converting it, from {peer.name} to {self.name} at "
                f"{describe(instruction.origin)}: {self.name} cannot read memory of {peer.name}. Copy or convert it on "
                f'{peer.name} first: dup(t).on("{peer.name}").'
            )

    # ---- when it is lost ----------------------------------------------------------------------------------------

    def refuse_if_lost(self) -> None:
        """Raise if the device was lost."""
        if self.lost is not None:
            raise DeviceLostError(f"{self.name} cannot be used any more by this process. {self.lost}", self.lost.code)

    def lose(self, error: DeviceError, under_way: Sequence[str]) -> None:
        """The context is beyond repair: fail every run under way, and every later one."""
        with self._lock:
            first = self.lost is None
            if first:
                named = ", ".join(dict.fromkeys(under_way[:NAMED])) or "nothing of dagpu's"
                more = f" and {len(under_way) - NAMED} more" if len(under_way) > NAMED else ""
                self.lost = DeviceLostError(
                    f"{self.name} was lost while a run was under way that has {named}{more}: {error} Start the process "
                    "anew; results that were not copied to the host are gone.",
                    error.code,
                )
        assert self.lost is not None
        for run in list(self.live):
            run.lose(self.lost)


def pinned_room() -> int:
    """The most page-locked memory to take, in bytes: DAGPU_PINNED_BYTES, or a quarter of the machine's memory."""
    said = PINNED_BYTES.get()
    if said is not None:
        return said
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
