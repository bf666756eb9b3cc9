"""Writes of a small array to a part of device memory, with no plan: one copy to the device, and one of rows there."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, RawStream
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy2D, copy
from dagpu.backends.cuda.resources.locked_arrays import array_over
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import DeviceError, DeviceLostError
from dagpu.common.layout import Layout, contiguous_layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagpu.backends.cuda.resources.cuda_device import CudaDevice

MOST: Final = 4 << 20
"""Bytes that the calling thread stages itself, in up to half a millisecond. More is staged by several threads of a
run."""


def write_part(device: "CudaDevice", block: MemoryBlock, layout: Layout, array: "NDArray[Any]") -> bool:
    """Write an array to the elements of `layout` in a block that no run uses, and return True when it is complete.

    Return False, and change nothing, if it needs a run: the array is large, its rows are so short that a kernel has to
    copy them, other libraries may still use the memory, or there is too little of it.

    Raises:
        DeviceLostError: the device is lost.
    """
    work = copy(layout, contiguous_layout(layout.shape, layout.dtype))
    if array.nbytes > MOST or isinstance(work, BuiltinWork) or device.exchange.arrivals:
        return False
    device.refuse_if_lost()
    gpu = device.gpu
    with gpu.current():
        try:
            staged = device.pinned.take(array.nbytes)
            target = device.memory.take(array.nbytes) if isinstance(work, Memcpy2D) else block
            stream = device.streams.take_exclusive()
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            return False
        source = array_over(staged, layout.shape, layout.dtype)
        np.copyto(source, array)
        try:
            try:
                if isinstance(work, Memcpy2D):
                    gpu.copy_in(target.address, source, stream.raw)
                    _spread(device, work, block, target, stream.raw)
                else:
                    gpu.copy_in(block.address + work.out_offset, source, stream.raw)
            finally:
                stream.raw.synchronize()  # the blocks go back to their pools from here on
        except DeviceLostError as error:
            device.lose(error, ["a write to a part of a tensor"])
            raise
        device.streams.give_back_exclusive(stream)
    return True


def _spread(device: "CudaDevice", work: Memcpy2D, out: MemoryBlock, source: MemoryBlock, stream: RawStream) -> None:
    """Copy the rows of a contiguous block to their places."""
    pitches = work.out_pitch, work.source_pitch
    to, origin = out.address + work.out_offset, source.address + work.source_offset
    device.gpu.copy_pitched(to, origin, work.width, work.height, pitches, stream)
