"""Commands that copy between host and device, or call a host function. Each is called with a run's buffers, the device
and a stream. A copy also produces the equivalent node of a graph.

Host memory that the driver accesses while Python continues must be page-locked. An array that is page-locked (a result
of `to_host`, an array that CuPy or PyTorch pinned) is copied directly. Any other array is staged in blocks of the
pinned pool: a small one whole, a large one in chunks, with several threads that copy ahead of the driver.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.host_instructions import call, source_array
from dagpu.backends.cuda.commands.command_list import Do, RunBuffers
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, CopyNode, Gpu, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import DeviceError, ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import describe
from dagpu.lowering.program import CopyDtoH, CopyHtoD, HostCall

PROMPT_IN: Final = 256 << 10
"""Bytes: the submitting thread stages an array that is not pinned up to this size, which takes some 20 us."""

PROMPT_OUT: Final = 8 << 20
"""Bytes: for a larger result, page-locking fresh memory may take milliseconds. A worker thread waits for that."""

CHUNK: Final = 4 << 20
"""Bytes staged at a time: large enough that the copy takes longer than its launch."""

RING: Final = 6
"""Chunks in flight at the same time."""

STAGERS: Final = 4
"""Threads that copy into the ring: a thread moves some 10 GB/s, the bus 55."""


@final
class _Exposed:
    """Page-locked memory with NumPy's array interface. An array over it keeps the block alive."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: MemoryBlock, nbytes: int) -> None:
        self._block = block
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (block.address, False), "version": 3}


def array_over(block: MemoryBlock, nbytes: int) -> NDArray[np.uint8]:
    """Return an array over the first bytes of a block of pinned memory. The block lives as long as the array or any
    view of it."""
    if not nbytes:
        return np.empty(0, np.uint8)  # NumPy 1 treats an address of 0 as none
    return np.asarray(_Exposed(block, nbytes))


def locked(array: NDArray[Any], device: CudaDevice, wanted: int = 0) -> NDArray[Any]:
    """Return the array itself if it is page-locked, contiguous and not small; else a page-locked copy, at the address
    `wanted` if that is free."""
    if array.nbytes > PROMPT_IN // 8 and _is_locked(array, device.gpu):
        return array
    staged = array_over(device.pinned.take(array.nbytes, wanted=wanted), array.nbytes)
    np.copyto(staged.view(array.dtype).reshape(array.shape), array)
    return staged


def _is_locked(array: NDArray[Any], gpu: Gpu) -> bool:
    return array.flags.c_contiguous and gpu.is_pinned(array)


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
        if array.nbytes > CHUNK and not _is_locked(array, device.gpu):
            _stage(np.ascontiguousarray(array).reshape(-1).view(np.uint8), address, device, stream)
        elif array.nbytes:
            source = locked(array, device)
            device.gpu.copy_in(address, source, stream)
            buffers.kept_alive.append(source)

    def submits_quickly(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Return True if this copy is submitted without a long wait, so that the starting thread may submit it."""
        array = memory[self.instruction.source]
        return not isinstance(array, np.ndarray) or array.nbytes <= PROMPT_IN or _is_locked(array, device.gpu)


def _stage(source: NDArray[np.uint8], address: int, device: CudaDevice, stream: RawStream) -> None:
    """Copy through a ring of pinned chunks. Return when all is copied, so that the ring is free again."""
    gpu, streams = device.gpu, device.streams
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
            return self.locked_result(memory, device)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        memory[self.instruction.out] = array = np.empty(self.layout.shape, self.layout.dtype)
        return array

    def locked_result(self, memory: list[object], device: CudaDevice, wanted: int = 0) -> NDArray[Any]:
        """Return the target array. A new one is in page-locked memory, at the address `wanted` if that is free.

        Raises:
            ShapeError: the array in the cell has another shape or element type, or is not contiguous.
            DeviceError: there is too little page-locked memory (code 2).
        """
        given, layout = memory[self.instruction.out], self.layout
        if isinstance(given, np.ndarray):
            if given.shape != layout.shape or given.dtype != layout.dtype or not given.flags.c_contiguous:
                raise ShapeError(
                    f"to_host at {describe(self.instruction.origin)}: expected a contiguous array of {layout.dtype} "
                    f"and shape {layout.shape} to copy to, found {given.dtype} and {given.shape}. Give such an array."
                )
            return given
        flat = array_over(device.pinned.take(layout.nbytes, device.pinned_room, wanted), layout.nbytes)
        memory[self.instruction.out] = array = flat.view(layout.dtype).reshape(layout.shape)
        return array

    def submits_quickly(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Return True if the target is page-locked, or is page-locked so quickly that the starting thread may wait for
        it."""
        array = memory[self.instruction.out]
        if isinstance(array, np.ndarray):
            return device.gpu.is_pinned(array)
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
