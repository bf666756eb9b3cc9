"""Commands that copy between host and device, or call a host function. Each is called with a run's buffers, the device
and a stream. A copy also produces the equivalent node of a graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.host_instructions import call, source_array
from dagpu.backends.cuda.commands.command_list import Do, RunBuffers
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.commands.staging import (
    PROMPT_IN,
    LockedArray,
    is_copied_in_place,
    is_locked,
    stage,
    stage_by_threads,
)
from dagpu.backends.cuda.driver.driver_errors import OUT_OF_MEMORY
from dagpu.backends.cuda.driver.driver_protocol import CopyNode, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import array_over
from dagpu.common.errors import DeviceError, ShapeError
from dagpu.common.layout import Layout, address_of
from dagpu.common.places import describe
from dagpu.plans.program import CopyDtoH, CopyHtoD, HostCall

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
