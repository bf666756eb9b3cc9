"""The executable CUDA graphs of one plan. A run borrows one, and then a single driver call launches the run.

A graph owns none of a run's memory but what is small: page-locked memory for arrays of the host, and temporaries. Each
run allocates the rest from the pools, as a run through streams does. Nodes whose addresses differ from the graph's last
run are updated. Such updates are rare, because a run requests the addresses of the graph's last run from the pools, and
because inputs that alternate between a few addresses get a graph for each.

An executable graph must not be changed or launched while it runs. So a run keeps its graph until the run is over, and
concurrent runs have one graph each.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.buffers import CompiledPlan, RunMemory, fail_violations
from dagpu.backends.cuda.commands.command_list import Encoded, RunBuffers
from dagpu.backends.cuda.commands.transfers import CopyIn
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, RawStream
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.topology import GraphTopology, body_of, build_topology, cannot_capture, obstacle
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import array_over
from dagpu.backends.host.body_checks import is_checked
from dagpu.backends.host.failures import Outcome
from dagpu.backends.host.host_instructions import source_array
from dagpu.common.errors import CaptureError, DagpuError, DeviceError, DeviceLostError, ForeignError
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.ops.initializers import fresh_seed
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import GraphLaunch, Instruction, Launch

INSTANCES: Final = 4
"""The most executable graphs of one plan. Further concurrent runs go through streams. A few graphs are enough to keep a
busy GPU busy, and the driver takes some microseconds and some KB for every node of each."""

FEW_NODES: Final = 16
"""The most nodes that are updated for addresses that come back. For more, another graph keeps these addresses."""

SEEN: Final = 8
"""The number of sets of addresses that a plan remembers, to notice that one of them comes back."""

PROMPT_NODES: Final = 100
"""The most nodes of a graph that the thread of an event loop instantiates: the driver takes 2 to 4 us for each node."""


@final
class GraphInstances:
    """The executable graphs of one plan. Any thread may borrow one.

    Invariant: _count == len(_idle) + borrowed ones + ones under construction <= INSTANCES
    """

    def __init__(self, plan: Plan, devices: Sequence[CudaDevice]) -> None:
        self.refused: str | None = None
        """The driver's error if it refused to instantiate a graph of this plan. All its runs go through streams
        then."""
        self.own = next((lane.key for lane in plan.lanes if not isinstance(lane.key, int)), None)
        """The key of the user's stream on which the graphs are launched; None if each run takes a stream."""
        self.keeps_arenas = False
        """True if each graph keeps the memory of its temporaries, which is little, between its launches."""
        self._plan = plan
        self._devices = devices
        self._topology: GraphTopology | None = None
        self.is_small = False
        """True if the graph has few nodes."""
        self._lock = threading.Lock()
        self.idle: list[GraphExec] = []
        """The graphs that no run has borrowed. Popping and appending are atomic."""
        self._seen: deque[tuple[int, ...]] = deque(maxlen=SEEN)
        """The bases of the last runs for which many nodes were updated."""
        self._failed = False
        """True once a graph could not be instantiated, for any reason. Then idle graphs are updated instead."""
        self._count = 0
        self._prepared_first = False

    @cached_property
    def obstacle(self) -> tuple[Instruction | None, str] | None:
        """The reason why the plan cannot be one graph; see the function `obstacle`."""
        return obstacle(self._plan)

    @cached_property
    def bodies(self) -> frozenset[UserBody]:
        """The user's bodies that the plan calls."""
        found = [body_of(step.instruction) for step in self._plan.steps if isinstance(step, Execute)]
        return frozenset([body for body in found if body is not None])

    @cached_property
    def is_checked(self) -> bool:
        """True if calls of the user's bodies are checked, which a graph cannot do: runs go through streams."""
        launches = [step.instruction for step in self._plan.steps if isinstance(step, Execute)]
        return not self.is_required and any(is_checked(each) for each in launches if isinstance(each, Launch))

    @cached_property
    def is_required(self) -> bool:
        """True if the plan calls a body whose work must become part of a graph."""
        return any(body.capture == "required" for body in self.bodies)

    def check_required(self) -> None:
        """Check that the plan can be one graph if a body of it must become part of one.

        Raises:
            CaptureError: it cannot.
        """
        if self.is_required and self.obstacle is not None:
            raise cannot_capture(*self.obstacle)

    @property
    def first_is_slow(self) -> bool:
        """True if the next run would have to instantiate the first graph, and that takes long. A graph with bodies of
        the user's is not made ahead of its run: they are called with the arguments of a run alone."""
        if self._count or self._prepared_first or self.refused or self.obstacle or self.bodies:
            return False
        return sum(isinstance(step, Execute) for step in self._plan.steps) > PROMPT_NODES

    @property
    def instances(self) -> int:
        """The number of existing executable graphs."""
        return self._count

    @property
    def can_lend(self) -> bool:
        """True if `borrow` may succeed: a graph is idle, or another may be created."""
        return bool(self.idle) or self._can_make

    @property
    def are_left_out(self) -> bool:
        """True if a run that may be a graph goes through streams: `borrow` would return None, and no body must become
        part of a graph."""
        return not (self.can_lend or self.is_required)

    @property
    def _can_make(self) -> bool:
        """True if another graph may be created."""
        return not (self._count >= INSTANCES or self.refused or self.obstacle or self.is_checked)

    def find_topology(self, compiled: CompiledPlan, encoded: Encoded) -> GraphTopology:
        """Return the topology of the plan's graph. It is computed once, or twice if two threads call at the same
        time."""
        if self._topology is None:
            self._topology = build_topology(compiled, encoded)
            self.is_small = len(self._topology.nodes) <= FEW_NODES
        return self._topology

    def _with_staged(self, compiled: CompiledPlan, encoded: Encoded, staged: frozenset[int]) -> GraphTopology:
        """Return the topology of the plan's graph in which at least these bases are staged, for later graphs too."""
        with self._lock:
            if self._topology is None or not staged <= self._topology.staged:
                before = frozenset() if self._topology is None else self._topology.staged
                self._topology = build_topology(compiled, encoded, staged | before)
            return self._topology

    def prepare_first(self, compiled: CompiledPlan, encoded: Encoded) -> None:
        """Instantiate the first graph ahead of its run."""
        self._prepared_first = True
        with self._devices[0].gpu.current():
            instance = self.borrow(compiled, encoded, ())
            if instance is not None:
                try:
                    if instance.raw is None:
                        self.instantiated(instance, GraphExec.prepare)
                finally:
                    self.give_back(instance)

    def borrow_idle(self) -> GraphExec | None:
        """Return any idle graph of a plan with few nodes, without a comparison of bases; None if there is none."""
        if self.is_small:
            try:
                return self.idle.pop()  # atomic
            except IndexError:
                pass
        return None

    def borrow(self, compiled: CompiledPlan, encoded: Encoded, bases: Sequence[int]) -> GraphExec | None:
        """Return a graph for a run: the idle one with the fewest changed bases, or a new one, not instantiated yet.
        Addresses that come back get a new one if that saves the update of many nodes.

        Return None if none is available. Pass the graph to `give_back` after the run."""
        with self._lock:
            while idle := self.idle.copy():
                nearest = self._nearest(idle, bases)
                if nearest is None:
                    break
                try:
                    self.idle.remove(nearest)
                except ValueError:  # `borrow_idle`, which needs no lock, was quicker
                    continue
                return nearest
            if not (idle or self._can_make):
                return None
            self._count += 1
        try:
            topology = self.find_topology(compiled, encoded)
            return GraphExec(self._devices, topology, lambda staged: self._with_staged(compiled, encoded, staged))
        except BaseException as error:
            with self._lock:
                self._count -= 1
            if not isinstance(error, DagpuError):
                raise
            self._refuse(error)
            return None

    def _nearest(self, idle: Sequence[GraphExec], bases: Sequence[int]) -> GraphExec | None:
        """Return the one of these idle graphs with the fewest changed bases; None if the run is to have a new graph.

        The caller holds the lock.
        """
        topology = self._topology
        may_want_another = (
            topology is not None and len(topology.nodes) > FEW_NODES and self._count < INSTANCES and not self._failed
        )
        if len(idle) == 1 and not may_want_another:
            return idle[0]
        changed = [instance.changed_bases(bases) for instance in idle]
        nearest = min(range(len(idle)), key=lambda n: len(changed[n]))
        return None if may_want_another and self._wants_another(changed[nearest], bases) else idle[nearest]

    def _wants_another(self, changed: Sequence[int], bases: Sequence[int]) -> bool:
        """Return True if a run with these bases is to have a graph of its own, although one is idle: many of its nodes
        would change, and the same bases have been asked for before. A program that alternates between two
        buffers asks for both again and again. The caller holds the lock."""
        topology = self._topology
        assert topology is not None  # an idle graph was made of it
        if sum(len(topology.dependents[source]) for source in changed) <= FEW_NODES:
            return False
        wanted = tuple(bases)
        if wanted in self._seen:
            return True
        self._seen.append(wanted)
        return False

    def instantiated(self, instance: GraphExec, make: Callable[[GraphExec], object]) -> bool:
        """Call `make` to instantiate a graph. Return False if the driver refuses, or memory is short.

        Raises:
            DeviceLostError: the device is lost.
            ForeignError: a user's body does not do what its declaration says.
        """
        try:
            make(instance)
        except DagpuError as error:
            self._refuse(error)
            return False
        return True

    def refuse_capture(self, instance: GraphExec, error: CaptureError) -> None:
        """Take back a graph for whose run a user's body could not be captured. The plan goes through streams from now
        on, unless the body must become part of a graph: then this raises the error."""
        instance.broken = True
        self.give_back(instance)
        self._refuse(error)

    def _refuse(self, error: DagpuError) -> None:
        if isinstance(error, DeviceLostError | ForeignError) or (isinstance(error, CaptureError) and self.is_required):
            raise error
        self._failed = True
        if not (isinstance(error, DeviceError) and error.code == OUT_OF_MEMORY):
            self.refused = str(error)  # the error itself would keep its frames and their memory alive

    def give_back(self, instance: GraphExec) -> None:
        """Return a borrowed graph. A broken one is discarded, so that another may be created in its place."""
        if instance.raw is not None and not instance.broken:
            self.idle.append(instance)  # atomic
            return
        with self._lock:
            self._count -= 1


# ---- captured graphs: a plan with memory of its own, which other plans launch -----------------------------------


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
    def executable(self) -> int | None:
        """The CUgraphExec, if a launch needs nothing but that; None if it copies arrays of the host, or draws seeds, or
        if the driver has no functions of C."""
        raw = self._instance.raw
        return None if raw is None or self._staged or self._drawn else raw.handle

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
