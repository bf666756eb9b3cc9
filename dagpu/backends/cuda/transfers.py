"""Copies between host and device, and what else is no kernel launch: each as a function of a run and a stream.

Host memory that the driver reads or writes while Python goes on must be page-locked. An array that is (what `to_host`
gives, what CuPy or PyTorch pinned) is copied from where it lies; any other goes by way of a block of the pinned pool:
whole where it is small, in chunks where it is large, several threads copying ahead of the driver.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver import OUT_OF_MEMORY
from dagpu.backends.host_work import call, source_array
from dagpu.errors import DeviceError
from dagpu.layout import Layout
from dagpu.lowering.program import CopyDtoH, CopyHtoD, HostCall

if TYPE_CHECKING:
    from dagpu.backends.cuda.builtin import Memcpy, Memcpy2D, Memset
    from dagpu.backends.cuda.device import CudaDevice
    from dagpu.backends.cuda.driver import Gpu, RawStream
    from dagpu.backends.cuda.memory import Block
    from dagpu.backends.cuda.run import CudaRun
    from dagpu.backends.cuda.script import Do, Place

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

    def __init__(self, block: "Block", nbytes: int) -> None:
        self._block = block
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (block.address, False), "version": 3}


def array_over(block: "Block", nbytes: int) -> NDArray[np.uint8]:
    """The first bytes of a block of pinned memory. The block lives as long as this or any view of it."""
    return np.asarray(_Exposed(block, nbytes))


def copy_in(instruction: CopyHtoD, place: "Place") -> "Do":
    """`from_host`: from the array that the run finds in the cell."""

    def act(run: "CudaRun", stream: "RawStream") -> None:
        array = source_array(instruction, run.memory)
        if array.nbytes == 0:
            return
        device, address = run.devices[instruction.device], run.address(place) + instruction.out.layout.offset
        gpu = device.gpu
        if array.nbytes > PROMPT_IN // 8 and array.flags.c_contiguous and gpu.is_pinned(array):
            gpu.copy_in(address, array, stream)
            run.keep(array)
        elif array.nbytes <= CHUNK:
            block = device.pinned.take(array.nbytes)
            staged = array_over(block, array.nbytes)
            np.copyto(staged.view(array.dtype).reshape(array.shape), array)
            gpu.copy_in(address, staged, stream)
            run.keep(block)
        else:
            _stage(np.ascontiguousarray(array).reshape(-1).view(np.uint8), address, device, stream)

    return act


def prompt(run: "CudaRun", instruction: CopyHtoD) -> bool:
    """Is this copy submitted so quickly that the submitting thread may do it?"""
    array = run.memory[instruction.source]
    if not isinstance(array, np.ndarray) or array.nbytes <= PROMPT_IN:
        return True
    return array.flags.c_contiguous and run.devices[instruction.device].gpu.is_pinned(array)


def _stage(source: NDArray[np.uint8], address: int, device: "CudaDevice", stream: "RawStream") -> None:
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


def copy_out(instruction: CopyDtoH, layout: Layout, place: "Place") -> "Do":
    """`to_host`: into a new array, in pinned memory as far as there is room for it. `layout` is contiguous."""
    nbytes, dtype, shape = layout.nbytes, layout.dtype, layout.shape

    def act(run: "CudaRun", stream: "RawStream") -> None:
        if nbytes == 0:
            run.memory[instruction.out] = np.empty(shape, dtype)
            return
        device = run.devices[instruction.device]
        try:
            flat = array_over(device.pinned.take(nbytes, device.pinned_room), nbytes)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            flat = np.empty(nbytes, np.uint8)  # the driver stages it, and this thread waits
        device.gpu.copy_out(flat, run.address(place) + layout.offset, stream)
        run.memory[instruction.out] = flat.view(dtype).reshape(shape)

    return act


def host_call(instruction: HostCall) -> "Do":
    """`host_map`: the function, once everything before it in its stream is complete."""

    def act(run: "CudaRun", stream: "RawStream") -> None:
        streams = run.devices[instruction.device].streams
        event = streams.event()
        event.record(stream)
        event.synchronize()
        streams.give_back(event)
        call(instruction, run.memory)

    return act


def memset(made: "Memset", out: "Place", gpu: "Gpu") -> "Do":
    """A constant, by the driver."""

    def act(run: "CudaRun", stream: "RawStream") -> None:
        if made.count:
            gpu.fill(run.address(out) + made.offset, made.width, made.value, made.count, stream)

    return act


def memcpy(made: "Memcpy", out: "Place", source: "Place", gpu: "Gpu") -> "Do":
    """Contiguous, within a device or between two: the driver tells by the addresses."""

    def act(run: "CudaRun", stream: "RawStream") -> None:
        if made.nbytes:
            target, origin = run.address(out) + made.out_offset, run.address(source) + made.source_offset
            gpu.copy(target, origin, made.nbytes, stream)

    return act


def memcpy_pitched(made: "Memcpy2D", out: "Place", source: "Place", gpu: "Gpu") -> "Do":
    """Rows at equal distances."""

    def act(run: "CudaRun", stream: "RawStream") -> None:
        target, origin = run.address(out) + made.out_offset, run.address(source) + made.source_offset
        pitches = made.out_pitch, made.source_pitch
        gpu.copy_pitched(target, origin, made.width, made.height, pitches, stream)

    return act
