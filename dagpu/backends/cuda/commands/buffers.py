"""The memory of one run of a plan, out of the pools, and the bases that it gives the plan's addresses."""

from collections.abc import Sequence
from typing import Any, Final, final

from numpy.typing import NDArray

from dagpu.backends.common.host_instructions import source_array
from dagpu.backends.cuda.commands.command_list import Reporting
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.commands.transfers import CopyIn, array_over, locked
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY
from dagpu.backends.cuda.kernels.launch_params import REPORT
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import DeviceError

_ARENA: Final = "the temporaries of a run"
_RESULT: Final = "a result"
_GATHER: Final = "an array that is gathered on its way to the host"


@final
class RunMemory:
    """What the buffers of a plan are bound to, the bases, and what is to be kept until the run is over. Implements
    `RunBuffers`."""

    __slots__ = ("_compiled", "bases", "bound", "kept", "launched", "locked", "reports", "taken")

    def __init__(self, compiled: CompiledPlan, bound: list[object]) -> None:
        self._compiled = compiled
        self.bound = bound
        """Of each buffer of the plan its block, of each cell its value."""
        self.bases: list[int] = [0] * compiled.bases
        self.kept: list[object] = []
        self.launched: list[Reporting] = []
        """The frozen plans that the run has launched."""
        self.locked: Sequence[tuple[CopyIn, NDArray[Any]]] = ()
        """For a graph, what each copy from the host copies from: the array itself, or its bytes elsewhere."""
        self.reports: MemoryBlock | None = None
        """Where the plan's checked kernels report."""
        self.taken = False
        """Has `take` been called?"""

    def address(self, place: BaseOffset) -> int:
        """The address of a place in this run."""
        return self.bases[place.base] + place.offset

    def look(self) -> None:
        """Where what the caller has brought lies."""
        bases, bound = self.bases, self.bound
        for buffer, base in self._compiled.inputs:
            block = bound[buffer]
            assert isinstance(block, MemoryBlock), f"{block!r} is no memory of the CUDA backend"
            bases[base] = block.address
        for buffer, base, _, _ in self._compiled.outputs:
            block = bound[buffer]
            if block is not None:
                assert isinstance(block, MemoryBlock), f"{block!r} is no memory of the CUDA backend"
                bases[base] = block.address

    def take(self, before: Sequence[int]) -> None:
        """The arenas, a block for each output that has none yet, and one for each copy that gathers. All or nothing.

        Those of an earlier run, whose bases are `before`, where they are free: then nothing has to be written anew.

        The context of the plan's first device is current.

        Raises:
            OutOfMemoryError: there is too little.
        """
        compiled, bases, bound = self._compiled, self.bases, self.bound
        self.taken = True
        for number, size in compiled.arenas:
            arena = self._block(number, size, before[number], _ARENA)
            self.kept.append(arena)
            bases[number] = arena.address
        for buffer, base, number, nbytes in compiled.outputs:
            if bound[buffer] is None:
                bound[buffer] = block = self._block(number, nbytes, before[base], _RESULT)
                bases[base] = block.address
        for base, number, nbytes in compiled.gathers:
            block = self._block(number, nbytes, before[base], _GATHER)
            self.kept.append(block)
            bases[base] = block.address
        if compiled.reports:
            nbytes, wanted = len(compiled.reports) * REPORT, before[compiled.report_base]
            self.reports = compiled.devices[0].pinned.take(nbytes, wanted=wanted)
            array_over(self.reports, self.reports.nbytes)[...] = 0
            bases[compiled.report_base] = self.reports.address

    def prompt(self) -> bool:
        """Are all copies from and to the host submitted so quickly that the submitting thread may do it?"""
        compiled = self._compiled
        for copies in (compiled.copies_in, compiled.copies_out):
            for copy in copies:
                if not copy.prompt(self.bound, compiled.devices[copy.instruction.device]):
                    return False
        return True

    def take_host_memory(self, before: Sequence[int]) -> None:
        """Page-locked memory for what is copied from and to the host, with the arrays' contents in it, for a graph.

        Raises:
            ShapeError: an array is not what it was when it was planned.
            DeviceError: there is too little (code 2).
        """
        compiled, device = self._compiled, self._compiled.devices[0]
        locked_arrays = self.locked = list[tuple[CopyIn, NDArray[Any]]]()
        for copy_out in compiled.copies_out:
            result = copy_out.locked_result(self.bound, device, before[copy_out.host])
            self.bases[copy_out.host] = _start(result) if result.nbytes else 0
        for copy_in in compiled.copies_in:
            array = source_array(copy_in.instruction, self.bound)
            if array.nbytes:
                source = locked(array, device, before[copy_in.host])
                locked_arrays.append((copy_in, source))
                self.bases[copy_in.host] = _start(source)

    def drop(self) -> None:
        """The run is over."""
        self.kept.clear()
        self.launched.clear()
        self.locked = ()
        self.reports = None
        self.bound = []

    def _block(self, number: int, nbytes: int, wanted: int, purpose: str) -> MemoryBlock:
        device = self._compiled.devices[number]
        if number:
            with device.gpu.current():
                return self._block_here(device, number, nbytes, wanted, purpose)
        return self._block_here(device, number, nbytes, wanted, purpose)

    def _block_here(self, device: CudaDevice, number: int, nbytes: int, wanted: int, purpose: str) -> MemoryBlock:
        try:
            return device.memory.take(nbytes, wanted=wanted)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        device.reclaim()
        try:
            return device.memory.take(nbytes)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise device.out_of_memory(self._compiled.plan, number, nbytes, purpose) from None


def _start(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
