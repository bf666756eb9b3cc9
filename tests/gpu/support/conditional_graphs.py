"""A graph with two conditional nodes, made by the driver layer alone: on a GPU, and on a simulated one."""

from typing import ClassVar, Final, final

import numpy as np

from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.testing import CopyNode, FillNode, GraphNode, IfNode, KernelLaunch, backend

NBYTES: Final = 4096
COUNTS: Final = (5, 1024)
"""The number of flags of each of two arrays."""


@final
class ConditionalGraph:
    """The first body fills memory if a flag of the first array is set. The second one copies a number to the host if a
    flag of either array is set."""

    bodies: ClassVar[tuple[int, ...]] = (-1, -1, 1, -1, -1, 4, -1)

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        gpu = device.gpu
        with gpu.current():
            self._blocks = [device.memory.take(NBYTES) for _ in range(3)]
            self._flags = [device.mapped_memory(4 * count) for count in COUNTS]
            self._told = [device.mapped_memory(NBYTES) for _ in range(2)]
            first, second, third = (block.address for block in self._blocks)
            self._filled = first
            told = [each.memory.address for each in self._told]  # type: ignore[attr-defined]  # a block of the backend
            self.nodes: list[tuple[GraphNode, tuple[int, ...]]] = [
                (self._decides(1, [0]), ()),
                (IfNode(), (0,)),
                (FillNode(first, 1, 1, NBYTES), ()),
                (self._decides(4, [0, 1]), (1,)),
                (IfNode(), (3,)),
                (CopyNode("out", told[1], third, NBYTES), ()),
                (CopyNode("out", told[0], first, NBYTES), (4,)),
            ]
            self._second = second
            self._raw = gpu.make_graph(self.nodes, (), self.bodies)
            self._stream = gpu.new_stream()
            gpu.fill(third, 1, 1, NBYTES, self._stream)
            self._stream.synchronize()

    def _decides(self, node: int, arrays: list[int]) -> KernelLaunch:
        """Return the launch of the kernel that sets the condition of a node by the flags of these arrays."""
        found = backend("cuda")
        assert isinstance(found, CudaBackend)
        work = found.factories.decide([COUNTS[number] for number in arrays])
        parameters = bytearray(work.arguments)
        for at, number in zip(work.pointers, arrays, strict=True):
            address: int = self._flags[number].memory.address  # type: ignore[attr-defined]  # a block of the backend
            parameters[at : at + 8] = address.to_bytes(8, "little")
        function = self._device.library.load_builtin(work)
        return KernelLaunch(function, work.grid, work.block, parameters, 0, decides=node)

    def run(self, *, first: bool, second: bool) -> tuple[bool, bool]:
        """Launch the graph with a flag of each array set or not. Return which of the two bodies has run."""
        for mapped, is_set in zip(self._flags, (first, second), strict=True):
            mapped.content.fill(0)
            mapped.content.view(np.uint32)[-1] = is_set
        for told in self._told:
            told.content.fill(0)
        with self._device.gpu.current():
            self._device.gpu.fill(self._filled, 1, 0, NBYTES, self._stream)
            self._raw.launch(self._stream)
            self._stream.synchronize()
        counts = [int(told.content.sum()) for told in self._told]
        assert set(counts) <= {0, NBYTES}, counts
        return counts[0] == NBYTES, counts[1] == NBYTES

    def move(self) -> None:
        """Let the first body fill other memory, and the last copy read that."""
        node, copied = self.nodes[2][0], self.nodes[6][0]
        assert isinstance(node, FillNode)
        assert isinstance(copied, CopyNode)
        self._filled = self._second
        with self._device.gpu.current():
            self._raw.update_fill(2, FillNode(self._second, node.width, node.value, node.count))
            self._raw.update_copy(6, CopyNode("out", copied.target, self._second, NBYTES))

    def destroy(self) -> None:
        """Destroy the graph."""
        with self._device.gpu.current():
            self._raw.destroy()
