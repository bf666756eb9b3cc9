"""Captured graphs: a plan with memory of its own, which other plans launch."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.failures import Outcome
from dagpu.backends.common.host_instructions import source_array
from dagpu.backends.cuda.commands.bounds_reports import fail_violations
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import Encoded, RunBuffers
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.transfers import CopyIn
from dagpu.backends.cuda.driver.driver_protocol import RawStream
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.graphs.obstacles import cannot_capture
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import array_over
from dagpu.common.errors import CaptureError
from dagpu.common.places import describe
from dagpu.ops.initializers import fresh_seed
from dagpu.plans.plan import Plan
from dagpu.plans.program import GraphLaunch, Launch


@final
class CapturedGraph:
    """An executable graph with all memory that its nodes refer to. Its nodes are written once, except seeds that dagpu
    draws for each launch.

    Only one launch may be under way at a time.
    """

    __slots__ = ("_drawn", "_instance", "_launches", "_memory", "_plan", "_staged", "devices", "staged_bytes")

    def __init__(self, compiled: CompiledPlan, instance: GraphExec, memory: RunMemory, staged: "Staged") -> None:
        self.devices: Sequence[CudaDevice] = compiled.devices
        """The devices that work on it. It may be launched in the streams of any of them."""
        self.staged_bytes = sum(target.nbytes for _, target in staged)
        """Bytes that each launch copies on the host."""
        self._plan: Plan = compiled.plan
        self._drawn = self._plan.seed_cells
        self._launches: Sequence[Launch] = compiled.reports
        self._instance = instance
        self._memory = memory
        self._staged = staged

    def launch(self, stream: RawStream) -> None:
        """Copy the current contents of the host's arrays to page-locked memory, and launch the graph. The context of
        the stream must be current."""
        bound = self._memory.bound
        for device in self.devices:
            if device.exchange.arrivals:
                device.exchange.delay_run(bound, (stream,))
        for copy, target in self._staged:
            np.copyto(target, source_array(copy.instruction, bound))
        if self._drawn:
            for cell in self._drawn:
                bound[cell] = fresh_seed()
            with self.devices[0].gpu.current() if len(self.devices) > 1 else nullcontext():
                self._instance.update_nodes(self._memory.bases, bound)
        assert self._instance.raw is not None
        self._instance.raw.launch(stream)

    @property
    def cannot_fail(self) -> bool:
        """True if no kernel of the graph reports a violation of bounds."""
        return self._memory.reports is None

    def violations(self) -> Iterator[BaseException]:
        """Yield the errors of the last launch's checked kernels, and reset the reports. The launch must be over."""
        block = self._memory.reports
        if block is None:
            return
        reports, outcome = array_over(block, block.nbytes), Outcome()
        fail_violations(self._plan, self._launches, reports, outcome)
        reports[...] = 0
        for failure in outcome.failures():
            yield failure.error


Staged = list[tuple[CopyIn, NDArray[Any]]]
"""Copies from arrays that are not page-locked, each with its page-locked staging array of the same shape and element
type."""


def capture(compiled: CompiledPlan, encoded: Encoded, graphs: GraphInstances, bound: list[object]) -> CapturedGraph:
    """Instantiate a plan as a graph that is bound to these buffers and cells permanently; see `Prepared.freeze`.

    It allocates missing outputs and results, and puts them into `bound`.

    Raises:
        CaptureError: the plan cannot be a CUDA graph.
    """
    if graphs.obstacle is not None:
        raise cannot_capture(*graphs.obstacle)
    for device in compiled.devices:
        device.refuse_if_lost()
    device = compiled.devices[0]
    with device.gpu.current():
        device.destroy_retired()
        instance = GraphExec(compiled.devices, graphs.find_topology(compiled, encoded))
        memory = RunMemory(compiled, bound)
        memory.allocate(instance.parameters.bases)
        memory.allocate_host_memory(instance.parameters.bases, instance.staged_arrays)
        for copy_out in compiled.copies_out:
            array = bound[copy_out.instruction.out.buffer]
            assert isinstance(array, np.ndarray)
            if array.nbytes and not device.gpu.is_pinned(array):
                raise CaptureError(
                    f"to_host at {describe(copy_out.instruction.origin)}: its result is in ordinary memory, and a CUDA "
                    "graph copies only to page-locked memory. Allow more of it (DAGPU_PINNED_BYTES), or take the "
                    "to_host out of the captured op."
                )
        instance.update_nodes(memory.bases, bound)
    memory.bound = list(bound)  # the caller may change its own list
    return CapturedGraph(compiled, instance, memory, _staged(memory))


def _staged(memory: RunMemory) -> Staged:
    found: Staged = []
    for copy, array in memory.locked:
        source = source_array(copy.instruction, memory.bound)
        if array is not source:
            found.append((copy, array.view(source.dtype).reshape(source.shape)))
    return found


@final
@dataclass(frozen=True, slots=True)
class LaunchGraph:
    """Launches a captured graph as part of a run."""

    instruction: GraphLaunch
    frozen: CapturedGraph

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        buffers.launched.append(self)  # the run keeps it alive, and reads its reports at the end
        self.frozen.launch(stream)

    def violations(self) -> Iterator[BaseException]:
        """Return the errors of the graph's checked kernels, and reset the reports. The run must be over."""
        return self.frozen.violations()
