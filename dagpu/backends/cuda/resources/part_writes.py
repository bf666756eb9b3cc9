"""Writes of a small array to a part of device memory, with no plan: one copy to the device, and one of rows there."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, Gpu
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy2D, copy
from dagpu.backends.cuda.resources.locked_arrays import array_over
from dagpu.backends.cuda.resources.pools import MemoryBlock, Pool
from dagpu.backends.cuda.resources.streams import Streams
from dagpu.common.errors import DeviceError
from dagpu.common.layout import Layout, contiguous_layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST: Final = 4 << 20
"""Bytes that the calling thread stages itself, in up to half a millisecond. More is staged by several threads of a
run."""


def write_part(
    gpu: Gpu, streams: Streams, pools: tuple[Pool, Pool], block: MemoryBlock, layout: Layout, array: "NDArray[Any]"
) -> bool:
    """Write an array to the elements of `layout` in a block that no run uses, and return True when it is complete.

    Return False, and change nothing, if it needs a run: the array is large, its rows are so short that a kernel has to
    copy them, or there is too little memory. `pools` are those of the device and of page-locked memory. The context
    must be current.

    Raises:
        DeviceLostError: the device is lost.
    """
    work = copy(layout, contiguous_layout(layout.shape, layout.dtype))
    if array.nbytes > MOST or isinstance(work, BuiltinWork):
        return False
    on_device, pinned = pools
    try:
        staged = pinned.take(array.nbytes)
        target = on_device.take(array.nbytes) if isinstance(work, Memcpy2D) else block
        stream = streams.take_exclusive()
    except DeviceError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return False
    source = array_over(staged, layout.shape, layout.dtype)
    np.copyto(source, array)
    try:
        if isinstance(work, Memcpy2D):
            gpu.copy_in(target.address, source, stream.raw)
            to, origin = block.address + work.out_offset, target.address + work.source_offset
            pitches = work.out_pitch, work.source_pitch
            gpu.copy_pitched(to, origin, work.width, work.height, pitches, stream.raw)
        else:
            gpu.copy_in(block.address + work.out_offset, source, stream.raw)
    finally:
        stream.raw.synchronize()  # the blocks go back to their pools from here on
        streams.give_back_exclusive(stream)
    return True
