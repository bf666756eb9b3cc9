"""Commands that call a library: its functions enqueue work on a stream. In a graph, that work is a child graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dagpu.backends.cuda.commands.command_list import RunBuffers
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.handles.device_handles import Enqueue
from dagpu.lowering.program import Launch


@final
@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Calls a library on the tensors of a launch."""

    instruction: Launch
    enqueue: Enqueue
    operands: Sequence[BaseOffset]
    """The places of the first elements of the tensors."""
    scratch: BaseOffset | None
    nbytes: int
    """Bytes of the largest tensor, or of the scratch memory; not 0."""

    @property
    def bases(self) -> tuple[int, ...]:
        """The bases of the call's addresses."""
        places = self.operands if self.scratch is None else (*self.operands, self.scratch)
        return tuple([place.base for place in places])

    def node(self, bases: Sequence[int]) -> CapturedNode:
        """Return the equivalent node of a graph."""
        addresses = tuple([bases[base] + offset for base, offset in self.operands])
        scratch = 0 if self.scratch is None else bases[self.scratch.base] + self.scratch.offset
        return CapturedNode(self.enqueue, addresses, scratch)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        node = self.node(buffers.bases)
        node.enqueue(stream.handle, node.addresses, node.scratch)
