"""Writes to a part of device memory, with no plan: a copy of the part alone, and one of rows where it is not dense."""

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, Gpu
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memcpy2D, copy
from dagpu.backends.cuda.resources.pools import LockedMemory, MemoryBlock, Pool, array_over
from dagpu.backends.cuda.resources.streams import CudaStream, Streams
from dagpu.common.errors import DeviceError
from dagpu.common.layout import Layout, contiguous_layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST: Final = 4 << 20
"""Bytes that the calling thread stages itself, in up to half a millisecond. More is staged by several threads of a
run."""


@final
class PartWrites:
    """The writes to parts of one device's memory. The context must be current.

    Each method returns when its copies are complete. Both writes raise a `DeviceLostError` if the device is lost, and
    return False, and change nothing, if a run has to do the work: rows are so short that a kernel copies them, or there
    is too little memory.
    """

    def __init__(self, gpu: Gpu, streams: Streams, memory: Pool, pinned: Pool, room: int) -> None:
        """`memory` and `pinned` are the pools of the device and of page-locked memory, of which copies for later take
        at most `room` bytes in all."""
        self._gpu = gpu
        self._room = room
        self._streams = streams
        self._memory = memory
        self._pinned = pinned

    def write(self, block: MemoryBlock, layout: Layout, array: "NDArray[Any]") -> bool:
        """Write an array to the elements of `layout` in a block that no run uses. Return False also for a large array,
        unless it is page-locked."""
        work = copy(layout, contiguous_layout(layout.shape, layout.dtype))
        is_locked = _is_locked(array)
        if isinstance(work, BuiltinWork) or (array.nbytes > MOST and not is_locked):
            return False
        try:
            staged = None if is_locked else self._pinned.take(array.nbytes)
            target = self._memory.take(array.nbytes) if isinstance(work, Memcpy2D) else block
            stream = self._streams.take_exclusive()
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            return False
        source = array
        if staged is not None:
            source = array_over(staged, layout.shape, layout.dtype)
            np.copyto(source, array)
        try:
            if isinstance(work, Memcpy2D):
                self._gpu.copy_in(target.address, source, stream.raw)
                self._copy(work, block, target, stream)
            else:
                self._gpu.copy_in(block.address + work.out_offset, source, stream.raw)
        finally:
            self._end(stream)  # the blocks go back to their pools from here on
        return True

    def copy(self, block: MemoryBlock, layout: Layout, source: MemoryBlock) -> bool:
        """Copy memory with the same elements in C order to the elements of `layout` in a block that no run uses."""
        work = copy(layout, contiguous_layout(layout.shape, layout.dtype))
        if isinstance(work, BuiltinWork):
            return False
        stream = self._streams.take_exclusive()
        try:
            self._copy(work, block, source, stream)
        finally:
            self._end(stream)
        return True

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a page-locked copy of an array, or an ordinary one if there is too little memory. None for a large
        array."""
        if array.nbytes > MOST:
            return None
        try:
            block = self._pinned.take(array.nbytes, self._room)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            return np.array(array)
        copied = array_over(block, array.shape, array.dtype)
        np.copyto(copied, array)
        return copied

    def _copy(self, work: Memcpy | Memcpy2D, block: MemoryBlock, source: MemoryBlock, stream: CudaStream) -> None:
        """Enqueue a copy on the device."""
        to, origin = block.address + work.out_offset, source.address + work.source_offset
        if isinstance(work, Memcpy2D):
            pitches = work.out_pitch, work.source_pitch
            self._gpu.copy_pitched(to, origin, work.width, work.height, pitches, stream.raw)
        else:
            self._gpu.copy(to, origin, work.nbytes, stream.raw)

    def _end(self, stream: CudaStream) -> None:
        """Wait for a stream, and return it."""
        stream.raw.synchronize()
        self._streams.give_back_exclusive(stream)


def _is_locked(array: "NDArray[Any]") -> bool:
    """Return True if the device copies an array from its place: it is dense, and in page-locked memory of a pool."""
    base: object = array.base
    return type(base) is LockedMemory and array.flags.c_contiguous
