"""Commands that call a library: its functions enqueue work on a stream. In a graph, that work is a child graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from dagpu.backends.common.host_instructions import blame
from dagpu.backends.cuda.commands.command_list import RunBuffers
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.temporaries import Temporaries
from dagpu.common.errors import CaptureError, DeviceLostError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import Capturing, Enqueue, UserBody
from dagpu.lowering.program import Cell, Launch


@final
@dataclass(frozen=True, slots=True, eq=False)
class LibraryCall:
    """Calls a library on the tensors and numbers of a launch."""

    instruction: Launch
    enqueue: Enqueue
    operands: Sequence[BaseOffset]
    """The places of the first elements of the tensors."""
    scratch: BaseOffset | None
    nbytes: int
    """Bytes of the largest tensor, or of the scratch memory; not 0."""
    numbers: tuple[Any, ...] = ()
    """The numbers. A `Cell` among them holds its number in each run."""

    @property
    def bases(self) -> tuple[int, ...]:
        """The bases of the call's addresses."""
        places = self.operands if self.scratch is None else (*self.operands, self.scratch)
        return tuple([place.base for place in places])

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells of the call's numbers."""
        return tuple([number.buffer for number in self.numbers if type(number) is Cell])

    @property
    def body(self) -> UserBody | None:
        """The user's body that is called; None for a call of a library's own functions."""
        body = self.instruction.kernel.library
        return body if isinstance(body, UserBody) else None

    def node(self, bases: Sequence[int], memory: Sequence[object], enqueue: Enqueue) -> CapturedNode:
        """Return the equivalent node of a graph, for the numbers in the cells of this memory. `enqueue` is the one of
        `for_graph`."""
        addresses, scratch = self._addresses(bases)
        return CapturedNode(enqueue, addresses, scratch, self._numbers(memory))

    def for_graph(self, device: CudaDevice) -> Enqueue:
        """Return the function that enqueues the work while it is captured for one graph, which keeps it."""
        if self.body is None:
            return self.enqueue
        return partial(self._capture, self.body, Temporaries(device.memory), Capturing())

    def _capture(
        self, body: UserBody, memory: Temporaries, capturing: Capturing, stream: int, addresses: Sequence[int],
        scratch: int, *numbers: Any,
    ) -> None:  # fmt: skip
        try:
            self.enqueue(stream, addresses, scratch, *numbers, memory=memory, capturing=capturing)
        except DeviceLostError:
            raise
        except Exception as error:
            raise refused_capture([self], f"it raised {type(error).__name__}: {error}") from error

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        addresses, scratch = self._addresses(buffers.bases)
        numbers = self._numbers(buffers.bound)
        if self.body is None:
            self.enqueue(stream.handle, addresses, scratch, *numbers)
            return
        memory = Temporaries(device.memory)
        buffers.kept_alive.append(memory)
        try:
            self.enqueue(stream.handle, addresses, scratch, *numbers, memory=memory)
        except BaseException as error:
            kernel = self.instruction.kernel
            whose = f"the body of foreign op {kernel.name}, declared at {describe(kernel.origin)}"
            blame(error, f"{whose}, called at {describe(self.instruction.origin)}")
            raise

    def _addresses(self, bases: Sequence[int]) -> tuple[tuple[int, ...], int]:
        addresses = tuple([bases[base] + offset for base, offset in self.operands])
        return addresses, 0 if self.scratch is None else bases[self.scratch.base] + self.scratch.offset

    def _numbers(self, memory: Sequence[object]) -> tuple[Any, ...]:
        return tuple([memory[number.buffer] if type(number) is Cell else number for number in self.numbers])


def refused_capture(calls: Sequence[LibraryCall], why: str) -> CaptureError:
    """Return the error for bodies of the user's, at least one of which cannot be captured. The bodies remember why."""
    named: list[str] = []
    for call in calls:
        if call.body is not None:
            call.body.refused = why
            launch = call.instruction
            kernel = launch.kernel
            named.append(f"{kernel.name}, declared at {describe(kernel.origin)}, called at {describe(launch.origin)}")
    return CaptureError(
        f"{' or '.join(named)}: its body cannot be in a CUDA graph: {why}. Take out of it what waits for the device "
        '(.item(), .cpu()), or declare it with @foreign(capture="never").'
    )
