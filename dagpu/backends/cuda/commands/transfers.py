"""Commands that copy between host and device or call the host: each is called with a run's buffers, the device and a
stream. A copy also gives the node that does the same in a graph.

Host memory that the driver reads or writes while Python goes on must be page-locked. An array that is (what `to_host`
gives, what CuPy or PyTorch pinned) is copied from where it lies; any other goes by way of a block of the pinned pool:
whole where it is small, in chunks where it is large, several threads copying ahead of the driver.
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
"""Bytes: an array that is not pinned is staged by the thread that submits up to this size: some 20 us."""

PROMPT_OUT: Final = 8 << 20
"""Bytes: for larger results page-locking fresh memory may take milliseconds, which a thread of its own waits for."""

CHUNK: Final = 4 << 20
"""Bytes staged at a time: long enough that the copy, not its launch, is what takes time."""

RING: Final = 6
"""Chunks under way at once."""

STAGERS: Final = 4
"""Threads that copy into the ring: one moves some 10 GB/s, the bus 55."""


@final
class _Exposed:
    """Page-locked memory, so that NumPy makes an array over it which keeps it alive."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: MemoryBlock, nbytes: int) -> None:
        self._block = block
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (block.address, False), "version": 3}


def array_over(block: MemoryBlock, nbytes: int) -> NDArray[np.uint8]:
    """The first bytes of a block of pinned memory. The block lives as long as this or any view of it."""
    if not nbytes:
        return np.empty(0, np.uint8)  # NumPy 1 takes an address of 0 for none given
    return np.asarray(_Exposed(block, nbytes))


def locked(array: NDArray[Any], device: CudaDevice, wanted: int = 0) -> NDArray[Any]:
    """The array itself if it is in page-locked memory, in one piece and not small; else a copy that is, at the address
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
    """`from_host`: from the array that the run finds in the cell."""

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
        """The bases of its addresses."""
        return self.out.base, self.host

    def node(self, bases: Sequence[int]) -> CopyNode:
        """The node of a graph that does the same, from page-locked memory."""
        return CopyNode("in", bases[self.out.base] + self.out.offset, bases[self.host], self.nbytes)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array, address = source_array(self.instruction, buffers.bound), buffers.address(self.out)
        if array.nbytes > CHUNK and not _is_locked(array, device.gpu):
            _stage(np.ascontiguousarray(array).reshape(-1).view(np.uint8), address, device, stream)
        elif array.nbytes:
            source = locked(array, device)
            device.gpu.copy_in(address, source, stream)
            buffers.kept.append(source)

    def prompt(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Is this copy submitted so quickly that the submitting thread may do it?"""
        array = memory[self.instruction.source]
        return not isinstance(array, np.ndarray) or array.nbytes <= PROMPT_IN or _is_locked(array, device.gpu)


def _stage(source: NDArray[np.uint8], address: int, device: CudaDevice, stream: RawStream) -> None:
    """Through a ring of pinned chunks. Returns when all is copied, so that the ring is free again."""
    gpu, streams = device.gpu, device.streams
    starts = range(0, len(source), CHUNK)
    slots = min(RING, len(starts))
    ring = [array_over(device.pinned.take(CHUNK), CHUNK) for _ in range(slots)]
    left = [streams.event() for _ in range(slots)]

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
            # The slot before is refilled: its copy is over soonest, and this one follows it without a gap.
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
    """`to_host`: into the array that is in the cell already, or a new one."""

    instruction: CopyDtoH
    layout: Layout
    """Of what is copied: contiguous, from `source` on."""
    source: BaseOffset
    host: int
    """The base of the page-locked memory that a graph copies to."""

    @property
    def nbytes(self) -> int:
        """Bytes copied."""
        return self.layout.nbytes

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of its addresses."""
        return self.host, self.source.base

    def node(self, bases: Sequence[int]) -> CopyNode:
        """The node of a graph that does the same, to page-locked memory."""
        return CopyNode("out", bases[self.host], bases[self.source.base] + self.source.offset, self.nbytes)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array = self.result(buffers.bound, device)
        if array.nbytes:
            device.gpu.copy_out(array.reshape(-1).view(np.uint8), buffers.address(self.source), stream)

    def result(self, memory: list[object], device: CudaDevice) -> NDArray[Any]:
        """The array, which is in the cell from now on. A new one is in page-locked memory as far as there is room; to
        any other the driver copies by way of its own, and the thread that submits waits.

        Raises:
            ShapeError: the one that is there has another shape or element type, or is not in one piece.
        """
        try:
            return self.locked_result(memory, device)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        memory[self.instruction.out] = array = np.empty(self.layout.shape, self.layout.dtype)
        return array

    def locked_result(self, memory: list[object], device: CudaDevice, wanted: int = 0) -> NDArray[Any]:
        """The same, but that a new one is in page-locked memory, at the address `wanted` if that is free.

        Raises:
            DeviceError: there is no room for it (code 2).
        """
        given, layout = memory[self.instruction.out], self.layout
        if isinstance(given, np.ndarray):
            if given.shape != layout.shape or given.dtype != layout.dtype or not given.flags.c_contiguous:
                raise ShapeError(
                    f"to_host at {describe(self.instruction.origin)}: expected a contiguous array of {layout.dtype} "
                    f"and shape {layout.shape} to copy to, found {given.dtype} and {given.shape}. Give one like that."
                )
            return given
        flat = array_over(device.pinned.take(layout.nbytes, device.pinned_room, wanted), layout.nbytes)
        memory[self.instruction.out] = array = flat.view(layout.dtype).reshape(layout.shape)
        return array

    def prompt(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Is the result ready to be copied to, or page-locked so quickly that the submitting thread may do it?"""
        array = memory[self.instruction.out]
        if isinstance(array, np.ndarray):
            return device.gpu.is_pinned(array)
        return self.layout.nbytes <= PROMPT_OUT or device.pinned.has(self.layout.nbytes)


def host_call(instruction: HostCall) -> Do:
    """`host_map`: the function, once everything before it in its stream is complete."""

    def act(buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        streams = device.streams
        event = streams.event()
        event.record(stream)
        event.synchronize()
        streams.give_back(event)
        call(instruction, buffers.bound)

    return act
