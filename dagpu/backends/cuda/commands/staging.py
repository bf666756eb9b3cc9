"""Page-locked host memory, and the arrays that pass through it on their way to a device.

Host memory that the driver accesses while Python continues must be page-locked. An array that is page-locked (a result
of `to_host`, an array that CuPy or PyTorch pinned) is copied directly. Any other array is staged in blocks of the
pinned pool: a small one by the thread that submits the copy, a large one by several threads that copy ahead of the
driver.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver.driver_protocol import Gpu, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import GRAIN, LockedMemory, MemoryBlock, array_over

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
