"""The memory of one run of a plan: blocks of the pools, and the bases of the plan's addresses."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.command_list import BaseOffset, Reporting, instructions_of
from dagpu.backends.cuda.commands.transfers import PROMPT_IN, CopyIn, CopyOut, StagedArrays, is_copied_in_place
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock, array_over, free_idle_memory_of_others
from dagpu.backends.host.bounds_reports import LAYOUT, bounds_error
from dagpu.backends.host.failures import Outcome
from dagpu.backends.host.host_instructions import source_array
from dagpu.backends.kernel_text.launch_params import REPORT
from dagpu.common.errors import DeviceError, KernelBoundsError
from dagpu.common.layout import address_of
from dagpu.plans.plan import Plan
from dagpu.plans.program import Launch

# ---- A plan compiled for its devices, as immutable data. All its runs and graphs read it; none changes it -------


@final
@dataclass(frozen=True, slots=True, eq=False)
class CompiledPlan:
    """A plan, its devices, and the base from which each of its addresses is counted."""

    plan: Plan
    devices: Sequence[CudaDevice]
    keys: Sequence[Hashable]
    """The key of each lane's stream."""
    bases: int
    """The number of bases."""
    places: Sequence[BaseOffset | None]
    """For each buffer the place where it begins; None for cells and for buffers that nothing allocates."""
    outputs: Sequence[tuple[int, int, int, int]]
    """For each result: buffer, base, number of the device, bytes."""
    inputs: Sequence[tuple[int, int]]
    """For each input, a buffer that the caller gives: buffer, base."""
    arenas: Sequence[tuple[int, int]]
    """For each arena: number of the device, bytes."""
    gathers: Sequence[tuple[int, int, int]]
    """For each copy out of a strided source: base of the memory in which it is gathered, number of the device,
    bytes."""
    report_base: int
    """The base of the reports of bounds violations."""
    reports: Sequence[Launch]
    """The launches that report a violation of bounds, in the order of their reports."""
    copies_in: Sequence[CopyIn]
    bytes_in: int
    """Bytes that all copies from the host copy together."""
    copies_out: Sequence[CopyOut]
    allocates: bool
    """True if runs allocate memory: arenas, results, or what copies and reports need."""
    copies_host: bool
    """True if runs copy from or to the host."""
    blocking: bool
    """True if the submission of a run may take long for any inputs. Worker threads submit such a run."""
    calls_user: bool = False
    """True if the submission calls bodies of foreign ops. One thread that may wait submits such a run, in the plan's
    order: the current stream of a library belongs to a thread."""
    decides: bool = False
    """True if the plan has an `If`. Then each run is one graph, which decides what runs."""


_ARENA: Final = "the temporaries of a run"
_RESULT: Final = "a result"
_GATHER: Final = "an array that is gathered on its way to the host"


@final
class RunMemory:
    """The memory of one run: the plan's bound buffers, the bases, and the objects that the run keeps alive. Implements
    `RunBuffers`."""

    __slots__ = ("_compiled", "bases", "bound", "kept_alive", "launched", "locked", "may_wait", "reports")

    def __init__(self, compiled: CompiledPlan, bound: list[object], bases: list[int] | None = None) -> None:
        """`bases` are those of `bases_of`, if the caller knows them."""
        self._compiled = compiled
        self.bound = bound
        """For each buffer of the plan its block, for each cell its value. The caller has set the inputs, and may have
        set outputs."""
        self.bases = bases_of(compiled, bound) if bases is None else bases
        self.kept_alive: list[object] = []
        self.launched: list[Reporting] = []
        """The captured graphs that the run has launched."""
        self.locked: Sequence[tuple[CopyIn, NDArray[Any]]] = ()
        """For a run through a graph: the page-locked source of each copy from the host. It is the user's array itself
        or a copy of its bytes."""
        self.may_wait = False
        """True if the submitting thread waits for the run anyway, and for nothing else."""
        self.reports: MemoryBlock | None = None
        """Memory of the bounds reports of the plan's checked kernels; None if it has none."""

    def address(self, place: BaseOffset) -> int:
        """Return the address of a place in this run."""
        return self.bases[place.base] + place.offset

    def allocate(self, before: Sequence[int]) -> None:
        """Allocate the arenas, a block for each output that has none yet, and a block for each copy that gathers.

        Either all blocks are allocated or none. `before` are the bases of an earlier run. Blocks at these addresses are
        preferred: no launch parameter changes then.

        The context of the plan's first device must be current.

        Raises:
            OutOfMemoryError: there is too little memory.
        """
        compiled, bases = self._compiled, self.bases
        allocate_blocks(compiled, self.bound, bases, before, self.kept_alive)
        if compiled.reports:
            nbytes, wanted = len(compiled.reports) * REPORT, before[compiled.report_base]
            self.reports = compiled.devices[0].pinned.take(nbytes, wanted=wanted)
            array_over(self.reports, self.reports.nbytes)[...] = 0
            bases[compiled.report_base] = self.reports.address

    def submits_quickly(self) -> bool:
        """Return True if every copy from or to the host is submitted without a long wait, so that the starting thread
        may submit it."""
        compiled, bound = self._compiled, self.bound
        devices = compiled.devices
        for copy_out in compiled.copies_out:
            if not copy_out.submits_quickly(bound, devices[copy_out.instruction.device]):
                return False
        if compiled.bytes_in <= PROMPT_IN:
            return True
        staged = [copy.staged_bytes(bound, devices[copy.instruction.device]) for copy in compiled.copies_in]
        return sum(staged) <= PROMPT_IN

    def allocate_host_memory(self, before: Sequence[int], kept: StagedArrays) -> None:
        """Allocate the page-locked memory of a graph's copies from and to the host, and fill it with the arrays to
        copy. `kept` is memory for small arrays that stays with the graph.

        Raises:
            ShapeError: an array has another shape or element type than in the plan.
            DeviceError: there is too little page-locked memory (code 2).
        """
        compiled, device = self._compiled, self._compiled.devices[0]
        if not (compiled.copies_out or compiled.copies_in):
            return
        locked_arrays: list[tuple[CopyIn, NDArray[Any]]] = []  # `list[...]()` makes the type in each run, in 4 us
        self.locked = locked_arrays
        for copy_out in compiled.copies_out:
            result = copy_out.locked_result(self.bound, device, before[copy_out.host])
            self.bases[copy_out.host] = result.address if copy_out.nbytes else 0
        staged: list[CopyIn] = []
        arrays: list[NDArray[Any]] = []
        for copy_in in compiled.copies_in:
            array = source_array(copy_in.instruction, self.bound)
            if is_copied_in_place(array, device.gpu):
                self.bases[copy_in.host] = address_of(array)
                locked_arrays.append((copy_in, array))
            elif array.nbytes:
                staged.append(copy_in)
                arrays.append(array)
        if staged:
            copies = kept.filled(arrays, [copy_in.host for copy_in in staged], device, before[staged[0].host])
            for copy_in, (array, self.bases[copy_in.host]) in zip(staged, copies, strict=True):
                locked_arrays.append((copy_in, array))

    def release(self) -> None:
        """Release all memory and objects. The run must be over."""
        self.kept_alive.clear()
        self.launched.clear()
        self.locked = ()
        self.reports = None
        self.bound = []


def bases_of(compiled: CompiledPlan, bound: Sequence[object]) -> list[int]:
    """Return the bases of a run: the addresses of its inputs, and of the outputs that the caller gives; 0 for what
    `allocate_blocks` allocates."""
    bases = [0] * compiled.bases
    for buffer, base in compiled.inputs:
        block = bound[buffer]
        assert isinstance(block, MemoryBlock), f"{block!r} is not memory of the CUDA backend"
        bases[base] = block.address
    for buffer, base, _, _ in compiled.outputs:
        block = bound[buffer]
        if block is not None:
            assert isinstance(block, MemoryBlock), f"{block!r} is not memory of the CUDA backend"
            bases[base] = block.address
    return bases


def allocate_blocks(
    compiled: CompiledPlan, bound: list[object], bases: list[int], before: Sequence[int], kept_alive: list[object]
) -> None:
    """Allocate the arenas, the outputs that are missing in `bound`, and the memory of gathers; see
    `RunMemory.allocate`. What is in no output goes to `kept_alive`, which may have the arenas already; then their bases
    are set."""
    for number, size in () if kept_alive else compiled.arenas:
        arena = _block(compiled, number, size, before[number], _ARENA)
        kept_alive.append(arena)
        bases[number] = arena.address
    for buffer, base, number, nbytes in compiled.outputs:
        if bound[buffer] is None:
            block = take_result(compiled, number, nbytes, before[base])
            bound[buffer] = block
            bases[base] = block.address
    for base, number, nbytes in compiled.gathers:
        block = _block(compiled, number, nbytes, before[base], _GATHER)
        kept_alive.append(block)
        bases[base] = block.address


def take_result(compiled: CompiledPlan, number: int, nbytes: int, wanted: int = 0) -> MemoryBlock:
    """Allocate a block for a result on a device of the plan, at the address `wanted` if that is free. Any context may
    be current.

    Raises:
        OutOfMemoryError: there is too little memory.
    """
    return _block(compiled, number, nbytes, wanted, _RESULT)


def _block(compiled: CompiledPlan, number: int, nbytes: int, wanted: int, purpose: str) -> MemoryBlock:
    """Allocate a block on a device of the plan, and make room for it if necessary. Any context may be current."""
    device = compiled.devices[number]
    if device.memory.parked_bytes:
        device.exchange.make_room()
    try:
        return device.memory.take(nbytes, wanted=wanted)
    except DeviceError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    with device.gpu.current():
        for make_room in (device.reclaim, free_idle_memory_of_others):
            make_room()
            try:
                return device.memory.take(nbytes)
            except DeviceError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
        raise device.out_of_memory(compiled.plan, number, nbytes, purpose)


# ---- bounds violations, read from the reports of kernels that are compiled with `checked=True` ------------------


def fail_violations(plan: Plan, launches: Sequence[Launch], reports: NDArray[np.uint8], outcome: Outcome) -> None:
    """Fail the launches that went out of bounds. A launch that depends on a failed one is not blamed: its indices may
    come from wrong results."""
    found = {id(launch): error for launch, error in violations(launches, reports)}
    if not found:
        return
    for instruction in instructions_of(plan):
        if not (outcome.abnormal and outcome.skips(instruction)) and (error := found.get(id(instruction))):
            outcome.fail(instruction, error)


def violations(launches: Sequence[Launch], reports: NDArray[np.uint8]) -> Iterator[tuple[Launch, KernelBoundsError]]:
    """Yield each launch that went out of bounds, with its error."""
    for launch, report in zip(launches, reports.view(LAYOUT), strict=True):
        if report["state"]:
            yield launch, bounds_error(launch, report)
