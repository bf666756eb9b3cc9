"""Commands that copy between host and device, or call a host function. Each is called with a run's buffers, the device
and a stream. A copy also produces the equivalent node of a graph.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.command_list import BaseOffset, Do, RunBuffers
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, CopyNode, Gpu, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import GRAIN, LockedMemory, MemoryBlock, array_over
from dagpu.backends.host.host_instructions import call, source_array
from dagpu.common.errors import DeviceError, ShapeError
from dagpu.common.layout import Layout, address_of
from dagpu.common.places import describe
from dagpu.plans.program import CopyDtoH, CopyHtoD, HostCall

# ---- page-locked host memory, and the arrays that pass through it on their way to a device ----------------------
# Host memory that the driver accesses while Python continues must be page-locked. An array that is page-locked (a
# result of `to_host`, an array that CuPy or PyTorch pinned) is copied directly. Any other array is staged in blocks of
# the pinned pool: a small one by the thread that submits the copy, a large one by several threads that copy ahead of
# the driver.


PROMPT_IN: Final = 4 << 20
"""Bytes that the thread which starts a run stages for it, in up to half a millisecond.

On an H200 it takes 0.2 ms for 1 MiB and 0.48 for 4 MiB, from the call to the result; the ring takes 0.34 and 0.74. From
8 MiB on both take the same. Threads that help with pieces of a smaller array were tried: their wake-ups cost more than
they save.
"""

SMALL: Final = 32 << 10
"""Bytes: up to this size an array is staged even if it is page-locked, because to find that out takes as long."""

KEPT: Final = 64 << 10
"""Bytes of page-locked memory for small arrays that a graph keeps. To take it from the pool and to make arrays over it
takes as long as to copy them."""

PIECE: Final = 512 << 10
"""Bytes of a staged array that are copied to the device at a time, while the next ones are staged. Smaller pieces
gain less than their calls cost."""

CHUNK: Final = 4 << 20
"""Bytes that one thread stages at a time: large enough that the copy takes longer than its launch."""

RING: Final = 6
"""Chunks in flight at the same time."""

STAGERS: Final = 4
"""Threads that copy into the ring: a thread moves some 10 GB/s, the bus 55."""


def is_locked(array: NDArray[Any], gpu: Gpu) -> bool:
    """Return True if the array is contiguous and in page-locked memory, whichever library allocated it."""
    if not array.flags.c_contiguous:
        return False
    base: object = array.base
    if isinstance(base, np.ndarray):
        base = base.base
    return type(base) is LockedMemory or gpu.is_pinned(array)  # a call of the driver takes some microseconds


class LockedArray(NamedTuple):
    """An array in page-locked memory, and its address."""

    array: NDArray[Any]
    address: int


def is_copied_in_place(array: NDArray[Any], gpu: Gpu) -> bool:
    """Return True if the device copies from the array itself: it is page-locked, contiguous and not small."""
    return array.nbytes > SMALL and is_locked(array, gpu)


def lock_together(arrays: Sequence[NDArray[Any]], device: CudaDevice, wanted: int) -> list[LockedArray]:
    """Return page-locked copies of arrays, in one block. It is at the address `wanted` if that is free."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // GRAIN) * GRAIN
    block = device.pinned.take(end, wanted=wanted)
    found = []
    for array, start in zip(arrays, starts, strict=True):
        copied = array_over(block, array.shape, array.dtype, start)
        np.copyto(copied, array)
        found.append(LockedArray(copied, block.address + start))
    return found


@final
class StagedArrays:
    """Page-locked memory for the small arrays that a graph copies to the device. It stays with the graph, of which one
    run at a time is under way."""

    __slots__ = ("_copies", "_hosts")

    def __init__(self) -> None:
        self._copies: list[LockedArray] = []
        self._hosts: list[int] = []
        """The base of each copy's memory: which of the plan's copies are staged differs from run to run."""

    def filled(
        self, arrays: Sequence[NDArray[Any]], hosts: list[int], device: CudaDevice, wanted: int
    ) -> list[LockedArray]:
        """Return page-locked copies of these arrays. `hosts` are the bases of their memory. New memory is at the
        address `wanted` if that is free."""
        if hosts == self._hosts:
            for array, (copied, _) in zip(arrays, self._copies, strict=True):
                np.copyto(copied, array)
            return self._copies
        copies = lock_together(arrays, device, wanted)
        if sum([array.nbytes for array in arrays]) <= KEPT:
            self._copies, self._hosts = copies, hosts
        return copies


def stage(array: NDArray[Any], block: MemoryBlock, address: int, gpu: Gpu, stream: RawStream) -> None:
    """Copy an array to the device through a block of pinned memory of its size, piece by piece. The block must live
    until the copies are complete."""
    if array.nbytes <= PIECE or not array.flags.c_contiguous:
        staged = array_over(block, array.shape, array.dtype)
        np.copyto(staged, array)
        gpu.copy_in(address, staged, stream)
        return
    source, target = array.reshape(-1).view(np.uint8), array_over(block, array.nbytes)
    for start in range(0, array.nbytes, PIECE):
        piece = target[start : start + PIECE]
        np.copyto(piece, source[start : start + PIECE])
        gpu.copy_in(address + start, piece, stream)


def stage_by_threads(array: NDArray[Any], address: int, device: CudaDevice, stream: RawStream) -> None:
    """Copy an array to the device through a ring of pinned chunks, which several threads fill. Return when all is
    copied, so that the ring is free again."""
    gpu, streams = device.gpu, device.streams
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    starts = range(0, len(source), CHUNK)
    slots = min(RING, len(starts))
    ring = [array_over(device.pinned.take(CHUNK), CHUNK) for _ in range(slots)]
    left = [streams.take_event() for _ in range(slots)]

    def fill(number: int) -> int:
        part = source[starts[number] : starts[number] + CHUNK]
        np.copyto(ring[number % slots][: len(part)], part)
        return len(part)

    copies = [_stagers().submit(fill, number) for number in range(slots)]
    try:
        for number, start in enumerate(starts):
            slot = number % slots
            size = copies[slot].result()
            gpu.copy_in(address + start, ring[slot][:size], stream)
            left[slot].record(stream)
            # The slot before is refilled: its copy ends first, and this one follows it without a gap.
            before = number - 1 + slots
            if number and before < len(starts):
                left[before % slots].synchronize()
                copies[before % slots] = _stagers().submit(fill, before)
    finally:
        for copy in copies:
            copy.exception()
        for event in left:
            event.synchronize()
            streams.give_back(event)


@cache
def _stagers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(STAGERS, thread_name_prefix="dagpu-stage")


PROMPT_OUT: Final = 8 << 20
"""Bytes: for a larger result, page-locking fresh memory may take milliseconds. A worker thread waits for that."""


@final
@dataclass(frozen=True, slots=True)
class CopyIn:
    """Copies to the device the array that the caller has put in the cell (`from_host`)."""

    instruction: CopyHtoD
    out: BaseOffset
    host: int
    """The base of the page-locked memory that a graph copies from."""

    @property
    def nbytes(self) -> int:
        """Bytes copied."""
        return self.instruction.out.layout.nbytes

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of the copy's addresses."""
        return self.out.base, self.host

    def node(self, bases: Sequence[int]) -> CopyNode:
        """Return the equivalent node of a graph, which copies from page-locked memory."""
        return CopyNode("in", bases[self.out.base] + self.out.offset, bases[self.host], self.nbytes)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array, address = source_array(self.instruction, buffers.bound), buffers.address(self.out)
        if buffers.may_wait and array.flags.c_contiguous and array.nbytes:
            # The driver stages the array itself, while it copies what it has staged. On an H200 that takes 82 us for
            # 1 MiB and 283 for 4 MiB; in pieces through page-locked memory of dagpu's it takes 85 and 411.
            device.gpu.copy_in_and_wait(address, array, stream)
            buffers.kept_alive.append(array)
        elif is_copied_in_place(array, device.gpu):
            device.gpu.copy_in(address, array, stream)
            buffers.kept_alive.append(array)
        elif array.nbytes > PROMPT_IN:
            stage_by_threads(array, address, device, stream)
        elif array.nbytes:
            block = device.pinned.take(array.nbytes)
            buffers.kept_alive.append(block)
            stage(array, block, address, device.gpu, stream)

    def staged_bytes(self, memory: Sequence[object], device: CudaDevice) -> int:
        """Return the bytes that the submitting thread has to stage: none of a page-locked array, or of one that a
        function of the host has yet to return."""
        array = memory[self.instruction.source.buffer]
        return 0 if not isinstance(array, np.ndarray) or is_locked(array, device.gpu) else array.nbytes


@final
@dataclass(frozen=True, slots=True)
class CopyOut:
    """Copies from the device to the array in the cell, or to a new array (`to_host`)."""

    instruction: CopyDtoH
    layout: Layout
    """The layout of the copied elements: contiguous, from `source` on."""
    source: BaseOffset
    host: int
    """The base of the page-locked memory that a graph copies to."""

    @property
    def nbytes(self) -> int:
        """Bytes copied."""
        return self.layout.nbytes

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of the copy's addresses."""
        return self.host, self.source.base

    def node(self, bases: Sequence[int]) -> CopyNode:
        """Return the equivalent node of a graph, which copies to page-locked memory."""
        return CopyNode("out", bases[self.host], bases[self.source.base] + self.source.offset, self.nbytes)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array = self.result(buffers.bound, device)
        if array.nbytes:
            device.gpu.copy_out(array.reshape(-1).view(np.uint8), buffers.address(self.source), stream)

    def result(self, memory: list[object], device: CudaDevice) -> NDArray[Any]:
        """Return the target array, and put a new one into the cell if the cell is empty.

        A new array is in page-locked memory as long as there is room. To ordinary memory the driver copies through a
        buffer of its own, and the submitting thread waits.

        Raises:
            ShapeError: the array in the cell has another shape or element type, or is not contiguous.
        """
        try:
            return self.locked_result(memory, device).array
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        memory[self.instruction.out.buffer] = array = np.empty(self.layout.shape, self.layout.dtype)
        return array

    def locked_result(self, memory: list[object], device: CudaDevice, wanted: int = 0) -> LockedArray:
        """Return the target array, and its address. A new one is in page-locked memory, at the address `wanted` if that
        is free.

        Raises:
            ShapeError: the array in the cell has another shape or element type, or is not contiguous.
            DeviceError: there is too little page-locked memory (code 2).
        """
        given, layout = memory[self.instruction.out.buffer], self.layout
        if isinstance(given, np.ndarray):
            if given.shape != layout.shape or given.dtype != layout.dtype or not given.flags.c_contiguous:
                raise ShapeError(
                    f"to_host at {describe(self.instruction.origin)}: expected a contiguous array of {layout.dtype} "
                    f"and shape {layout.shape} to copy to, found {given.dtype} and {given.shape}. Give such an array."
                )
            return LockedArray(given, address_of(given))
        block = device.pinned.take(layout.nbytes, device.pinned_room, wanted)
        memory[self.instruction.out.buffer] = array = array_over(block, layout.shape, layout.dtype)
        return LockedArray(array, block.address)

    def submits_quickly(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Return True if the target is page-locked, or is page-locked so quickly that the starting thread may wait for
        it."""
        array = memory[self.instruction.out.buffer]
        if isinstance(array, np.ndarray):
            return is_locked(array, device.gpu)
        return self.layout.nbytes <= PROMPT_OUT or device.pinned.has_idle(self.layout.nbytes)


def host_call(instruction: HostCall) -> Do:
    """Return the command of a `host_map`: it waits for all previous work of its stream, then calls the function."""

    def act(buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        streams = device.streams
        event = streams.take_event()
        event.record(stream)
        event.synchronize()
        streams.give_back(event)
        call(instruction, buffers.bound)

    return act
