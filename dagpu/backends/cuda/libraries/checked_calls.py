"""Checked calls of the bodies of foreign ops on a CUDA device; see `dagpu.backends.common.checks.checked_bodies`."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.checks.checked_bodies import (
    Bytes,
    GuardedMemory,
    check_outputs,
    check_written,
    layout_of,
    refuse_body,
    refuse_changed_input,
)
from dagpu.backends.cuda.driver.driver_protocol import RawStream
from dagpu.backends.cuda.libraries.body_audit import OperandSpan, operand_spans
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock, array_over
from dagpu.common.layout import contiguous_layout
from dagpu.plans.program import Launch

_U8 = np.dtype(np.uint8)


@final
class CheckedCall:
    """One checked call of a body. It waits for the stream several times. The context must be current."""

    def __init__(self, launch: Launch, device: CudaDevice, stream: RawStream, addresses: Sequence[int]) -> None:
        self._launch = launch
        self._device = device
        self._stream = stream
        self._addresses = addresses
        self._spans = operand_spans(launch, addresses)

    def run(self, call: Callable[[Sequence[int], int], object]) -> None:
        """Call the body by `call(addresses, scratch)`, on copies of the outputs, and copy these back if all is well.

        Raises:
            ForeignError: it writes something that is no output, or leaves a new tensor unwritten.
        """
        launch = self._launch
        inputs = [(span, self._read(span.start, span.nbytes)) for span in self._spans if not span.is_output]
        outputs = [(span, self._read(span.start, span.nbytes)) for span in self._spans if span.is_output]
        kept: list[list[NDArray[np.bool_]]] = []
        for flipped in (False, True):
            guarded = [(span.param, self._guarded(span, contents, flipped)) for span, contents in outputs]
            blocks = [self._placed(memory) for _, memory in guarded]
            given = list(self._addresses)
            for (span, _), (_, memory), block in zip(outputs, guarded, blocks, strict=True):
                given[self._spans.index(span)] = block.address + memory.first
            self._call(call, given, flipped)
            for span, contents in inputs:
                if not np.array_equal(self._read(span.start, span.nbytes), contents):
                    raise refuse_changed_input(launch, span.param)
            after = [
                self._read(block.address, len(memory.image)) for (_, memory), block in zip(guarded, blocks, strict=True)
            ]
            kept.append(check_outputs(launch, guarded, after))
            if not any(mask.any() for mask in kept[-1]):
                break
        else:
            check_written(launch, guarded, kept)
        for (span, contents), (_, memory), image in zip(outputs, guarded, after, strict=True):
            if span.nbytes:  # only the elements: what is between them is not the op's
                whole = memory.image.copy()
                memory.inside(whole)[...] = contents
                memory.elements(whole)[...] = memory.elements(image)
                self._write(span.start, memory.inside(whole))

    def _guarded(self, span: OperandSpan, contents: Bytes, flipped: bool) -> GuardedMemory:
        kernel = self._launch.kernel
        is_new = span.param >= len(kernel.params) - kernel.results
        return GuardedMemory(layout_of(self._launch, span.param), None if is_new else contents, flipped=flipped)

    def _call(self, call: Callable[[Sequence[int], int], object], addresses: Sequence[int], flipped: bool) -> None:
        """Call the body, with scratch memory between canaries."""
        scratch = self._launch.scratch
        if scratch is None:
            call(addresses, 0)
            return
        memory = GuardedMemory(contiguous_layout((scratch.layout.nbytes,), _U8), None, flipped=flipped)
        block = self._placed(memory)
        call(addresses, block.address + memory.first)
        if overrun := memory.overrun(self._read(block.address, len(memory.image))):
            what = f"wrote {overrun} bytes outside of its scratch memory"
            raise refuse_body(self._launch, what, "Reserve what it needs in the declaration: reserve(nbytes)")

    def _placed(self, memory: GuardedMemory) -> MemoryBlock:
        block = self._device.memory.take(len(memory.image))
        self._write(block.address, memory.image)
        return block

    def _read(self, address: int, nbytes: int) -> Bytes:
        """Return bytes of the device, once the stream has come to them."""
        if not nbytes:
            return np.empty(0, np.uint8)
        block = self._device.pinned.take(nbytes)
        found = array_over(block, nbytes)
        self._device.gpu.copy_out(found, address, self._stream)
        self._stream.synchronize()
        return found.copy()

    def _write(self, address: int, contents: Bytes) -> None:
        """Write bytes to the device, and wait until they are there."""
        block = self._device.pinned.take(contents.nbytes)
        source = array_over(block, contents.nbytes)
        source[...] = contents
        self._device.gpu.copy_in(address, source, self._stream)
        self._stream.synchronize()
