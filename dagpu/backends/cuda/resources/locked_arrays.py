"""NumPy arrays over blocks of page-locked host memory."""

import ctypes
import sys
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dagpu.backends.cuda.resources.pools import MemoryBlock


@final
class LockedMemory(ctypes.Structure):
    """The page-locked memory of one block, as the base of the arrays over it. It keeps the block alive.

    The arrays know how long the memory is. One type serves all lengths, because ctypes takes a microsecond to make
    another.
    """

    _fields_ = (("memory", ctypes.c_char * sys.maxsize),)
    block: MemoryBlock


def array_over(
    block: MemoryBlock, shape: int | tuple[int, ...], dtype: DTypeLike = np.uint8, start: int = 0
) -> NDArray[Any]:
    """Return an array over the bytes of a block of pinned memory from byte `start` on. The block lives as long as the
    array or any view of it."""
    if not block.nbytes:
        return np.empty(shape, dtype)  # its address is 0
    memory = LockedMemory.from_address(block.address)
    memory.block = block
    buffer: Any = memory  # NumPy's stubs name a few types, and it takes any buffer
    return np.ndarray(shape, dtype, buffer, start)
