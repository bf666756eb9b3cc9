"""Commands that copy between host and device, or call a host function. Each is called with a run's buffers, the device
and a stream. A copy also produces the equivalent node of a graph.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.command_list import BaseOffset, Do, RunBuffers
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, CopyNode, Gpu, RawEvent, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import GRAIN, LockedMemory, MemoryBlock, array_over
from dagpu.backends.host.host_instructions import call, source_array
from dagpu.backends.host.worker_threads import WorkerStream, enqueue
from dagpu.common.errors import DeviceError, ShapeError
from dagpu.common.layout import Layout, address_of
from dagpu.common.places import describe
from dagpu.plans.program import CopyDtoH, CopyHtoD, HostCall, View

# ---- page-locked host memory, and the arrays that pass through it on their way to a device ----------------------
# Host memory that the driver accesses while Python continues must be page-locked. An array that is page-locked (a
# result of `to_host`, an array that CuPy or PyTorch pinned) is copied directly. Any other array is staged in blocks of
# the pinned pool: a small one by the thread that submits the copy, a large one by several threads, each of which
# submits the copies of what it has staged.


PROMPT_IN: Final = 4 << 20
"""Bytes that the thread which starts a run stages for it, in up to half a millisecond.

If it waits anyway, the driver does that for it. On an H200 that takes 88 us for 1 MiB and 290 for 4 MiB; in pieces
through page-locked memory of dagpu's it takes 120 and 355. Several threads take 450 for 4 MiB, and 610 for 8 MiB, where
the driver takes 560. They gain by arrays that are in no cache near the processor: 500 and 760 against 720 and 1,230.
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
"""The most bytes that one thread stages at a time. Each thread has the device copy its chunks, and a thread that comes
back from the driver waits for the interpreter's lock while others have it: smaller chunks take up to half as long
again."""

SLOTS: Final = 2
"""Chunks of page-locked memory of each thread that stages: it fills one while the device reads the other."""

STAGERS: Final = min(8, os.cpu_count() or 1)
"""The most threads that stage an array: each moves some 10 GB/s, the bus 55. On an H200 256 MiB take 17 ms with two,
9.3 with four, 6.1 with eight, 6.7 with twelve."""


def is_locked(array: NDArray[Any], gpu: Gpu) -> bool:
    """Return True if the array is contiguous and in page-locked memory, whichever library allocated it."""
    if not array.flags.c_contiguous:
        return False
    base: object = array.base
    if isinstance(base, np.ndarray):
        base = base.base
    return type(base) is LockedMemory or gpu.is_pinned(array)  # a call of the driver takes some microseconds


def is_left_to_driver(array: NDArray[Any], gpu: Gpu) -> bool:
    """Return True if one call of the driver copies the array for a thread that waits: from the array itself, if that is
    page-locked. Else the driver stages it, while it copies what it has staged."""
    return array.flags.c_contiguous and (array.nbytes <= PROMPT_IN or is_locked(array, gpu))


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


def stage_by_threads(
    array: NDArray[Any], address: int, device: CudaDevice, stream: RawStream, kept_alive: list[object]
) -> None:
    """Copy an array to the device by several threads, of which this is one. Each stages chunks and has the device copy
    them, so none waits for another. Return when all is staged. What goes to `kept_alive` must live until the copies are
    complete."""
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    threads = min(2 + len(source) // CHUNK, STAGERS)
    size = min(-(-len(source) // threads // GRAIN) * GRAIN, CHUNK)
    starts = deque(range(0, len(source), size))

    def stage_chunks() -> None:
        slots: deque[tuple[NDArray[Any], RawEvent]] = deque()
        """Those in use, the one that the device has read first at the left."""
        with device.gpu.entered():
            try:
                while starts:
                    try:
                        start = starts.popleft()
                    except IndexError:  # another thread was quicker
                        return
                    if len(slots) < SLOTS:
                        slots.append((array_over(device.pinned.take(size), size), device.streams.take_event()))
                        kept_alive.append(slots[-1][0])
                    else:
                        slots[0][1].synchronize()
                        slots.rotate(-1)
                    room, read = slots[-1]
                    part = source[start : start + size]
                    np.copyto(room[: len(part)], part)
                    device.gpu.copy_in(address + start, room[: len(part)], stream)
                    if starts:
                        read.record(stream)
            finally:
                for _, read in slots:
                    device.streams.give_back(read)

    helpers = [_Helper(stage_chunks) for _ in range(min(threads, len(starts)) - 1)]
    enqueue(dict(zip(_stagers(), helpers, strict=False)))
    try:
        stage_chunks()
    finally:
        starts.clear()
        errors = [error for helper in helpers if (error := helper.end()) is not None]
    if errors:
        error = errors.pop()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


@final
class _Helper:
    """Work for a thread that helps to stage an array, unless it is ended before the thread begins it."""

    __slots__ = ("_busy", "_error", "_functions")

    def __init__(self, function: Callable[[], None]) -> None:
        self._functions = [function]
        """The function until somebody takes it, which is atomic: the thread to call it, or `end`."""
        self._error: BaseException | None = None
        self._busy = threading.Lock()
        self._busy.acquire()

    def run(self) -> None:
        try:
            function = self._functions.pop()
        except IndexError:
            return
        try:
            function()
        except BaseException as error:
            self._error = error
        finally:
            self._busy.release()

    def end(self) -> BaseException | None:
        """Take the work back, or wait until it is done. Return its error."""
        try:
            self._functions.pop()
        except IndexError:
            self._busy.acquire()
        error, self._error = self._error, None
        return error


@cache
def _stagers() -> list[WorkerStream]:
    """Return the threads that help to stage arrays, of all runs. A run whose helpers are busy stages by itself."""
    return [WorkerStream(0, f"stage/{number}") for number in range(STAGERS - 1)]


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
    def there(self) -> View:
        """The copy on the device."""
        return self.instruction.out

    @property
    def place(self) -> BaseOffset:
        """The place of `there`."""
        return self.out

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of the copy's addresses."""
        return self.out.base, self.host

    def node(self, bases: Sequence[int]) -> CopyNode:
        """Return the equivalent node of a graph, which copies from page-locked memory."""
        return CopyNode("in", bases[self.out.base] + self.out.offset, bases[self.host], self.nbytes)

    def is_prompt(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Return True if `submit` may copy the array, since the thread waits anyway."""
        array, layout = memory[self.instruction.source.buffer], self.instruction.out.layout
        return (
            isinstance(array, np.ndarray)
            and array.shape == layout.shape
            and array.dtype == layout.dtype
            and is_left_to_driver(array, device.gpu)
        )

    def host_address(self, memory: list[object], device: CudaDevice) -> int:
        """Return the address of the array; 0 if it is not prompt."""
        array: Any = memory[self.instruction.source.buffer]
        return address_of(array) if self.is_prompt(memory, device) else 0

    def submit(self, memory: list[object], address: int, device: CudaDevice, stream: RawStream) -> None:
        """Have the driver copy the array, which is prompt."""
        array: Any = memory[self.instruction.source.buffer]
        device.gpu.copy_in_and_wait(address, array, stream)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array, address = source_array(self.instruction, buffers.bound), buffers.address(self.out)
        if buffers.may_wait and array.nbytes and is_left_to_driver(array, device.gpu):
            device.gpu.copy_in_and_wait(address, array, stream)
            buffers.kept_alive.append(array)
        elif is_copied_in_place(array, device.gpu):
            device.gpu.copy_in(address, array, stream)
            buffers.kept_alive.append(array)
        elif array.nbytes > PROMPT_IN:
            stage_by_threads(array, address, device, stream, buffers.kept_alive)
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
    def there(self) -> View:
        """What is copied, on the device."""
        return self.instruction.source

    @property
    def place(self) -> BaseOffset:
        """The place of `there`."""
        return self.source

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of the copy's addresses."""
        return self.host, self.source.base

    def node(self, bases: Sequence[int]) -> CopyNode:
        """Return the equivalent node of a graph, which copies to page-locked memory."""
        return CopyNode("out", bases[self.host], bases[self.source.base] + self.source.offset, self.nbytes)

    def is_prompt(self, memory: Sequence[object], device: CudaDevice) -> bool:
        """Return True if `submit` may copy: the target is a new array."""
        return memory[self.instruction.out.buffer] is None

    def host_address(self, memory: list[object], device: CudaDevice) -> int:
        """Put a new array into the cell, and return its address; 0 if the caller has given a target."""
        return address_of(self.result(memory, device)) if self.is_prompt(memory, device) else 0

    def submit(self, memory: list[object], address: int, device: CudaDevice, stream: RawStream) -> None:
        """Copy to a new array, which is put into the cell."""
        device.gpu.copy_out(self.result(memory, device), address, stream)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        array = self.result(buffers.bound, device)
        if array.nbytes:
            device.gpu.copy_out(array, buffers.address(self.source), stream)

    def result(self, memory: list[object], device: CudaDevice) -> NDArray[Any]:
        """Return the target array, and put a new one into the cell if the cell is empty.

        A new array is in page-locked memory as long as there is room. To ordinary memory the driver copies through a
        buffer of its own, and the submitting thread waits.

        Raises:
            ShapeError: the array in the cell has another shape or element type, or is not contiguous.
        """
        if memory[self.instruction.out.buffer] is not None:
            return self.locked_result(memory, device).array
        layout = self.layout
        try:
            block = device.pinned.take(layout.nbytes, device.pinned_room)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            array = np.empty(layout.shape, layout.dtype)
        else:
            array = array_over(block, layout.shape, layout.dtype)
        memory[self.instruction.out.buffer] = array
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
