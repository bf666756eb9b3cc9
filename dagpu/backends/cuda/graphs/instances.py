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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple, final

from dagpu.backends.common.checks.checked_bodies import is_checked
from dagpu.backends.cuda.commands.command_list import Encoded
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.staging import StagedArrays
from dagpu.backends.cuda.driver.driver_protocol import (
    OUT_OF_MEMORY,
    CapturedNode,
    CopyNode,
    FillNode,
    GraphNode,
    KernelLaunch,
    KernelUpdates,
    RawGraph,
)
from dagpu.backends.cuda.graphs.topology import (
    CommandNode,
    GraphCommand,
    GraphTopology,
    LaunchTemplate,
    Node,
    build_topology,
)
from dagpu.backends.cuda.libraries.library_calls import BodyInGraph, LibraryCall, refused_capture
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import CaptureError, DagpuError, DeviceError, DeviceLostError, ForeignError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import UserBody
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import GraphLaunch, HostCall, Instruction, Launch

INSTANCES: Final = 4
"""The most executable graphs of one plan. Further concurrent runs go through streams. A few graphs are enough to keep a
busy GPU busy, and the driver takes some microseconds and some KB for every node of each."""

FEW_NODES: Final = 16
"""The most nodes that are updated for addresses that come back. For more, another graph keeps these addresses."""

SEEN: Final = 8
"""The number of sets of addresses that a plan remembers, to notice that one of them comes back."""

PROMPT_NODES: Final = 100
"""The most nodes of a graph that the thread of an event loop instantiates: the driver takes 2 to 4 us for each node."""

CHANGES: Final = 8
"""The most sets of sources for which a graph has prepared updates. A plan's sources change in few combinations."""


@final
class _Updates(NamedTuple):
    """The updates of a graph's nodes after a change of certain sources."""

    kernels: KernelUpdates
    others: list[tuple[int, CommandNode]]
    """The copies, memsets and calls of libraries, each with its number."""


@final
class GraphExec:
    """An executable graph, and the bases and numbers for which its nodes are written. One run at a time owns it."""

    __slots__ = (
        "__weakref__",
        "_bodies",
        "_device",
        "_retired",
        "_stage",
        "_staging",
        "_topology",
        "_updates",
        "arenas",
        "broken",
        "failed_node",
        "parameters",
        "raw",
        "staged_arrays",
    )  # fmt: skip

    def __init__(
        self,
        device: CudaDevice,
        topology: GraphTopology,
        stage: Callable[[frozenset[int]], GraphTopology] | None = None,
    ) -> None:
        """`stage(bases)` returns the topology in which operands of users' bodies are staged that are counted from these
        bases; None if no address changes."""
        self._device = device
        self._topology = topology
        self._stage = stage
        self._staging: list[MemoryBlock] = []
        """The memory of the operands that are staged."""
        self._bodies: dict[LibraryCall, BodyInGraph] = {}
        """The places of the user's bodies in this graph, with the memory that their work needs."""
        self.parameters = topology.parameters.copy()
        """The parameters of the kernels' nodes, with the bases and numbers for which all nodes are written."""
        self.staged_arrays = StagedArrays()
        """The memory through which small arrays of the host pass."""
        self._updates: dict[tuple[int, ...], _Updates] = {}
        """The prepared updates, by the sources that have changed; see `Relocations`."""
        self.raw: RawGraph | None = None
        """The driver's graph; None until it is instantiated."""
        self._retired = device.retired.watch(self, None)
        """Registration with the device's queue of retired graphs. When this object is dropped, no run uses the raw
        graph any more, and it may be destroyed."""
        self.arenas: list[object] = []
        """The memory of temporaries, if it stays between launches and there has been one."""
        self.broken = False
        """True if an update or a launch has failed."""
        self.failed_node: Node | None = None
        """The node whose update failed, if any."""

    def update_nodes(self, bases: Sequence[int], memory: Sequence[object]) -> RawGraph:
        """Update the nodes whose addresses, or numbers in the cells of this memory, differ, and return the driver's
        graph. Instantiate it first if that has not been done. The context must be current."""
        topology, raw = self._topology, self.raw
        if topology.staging:
            if not self._staging:
                self._staging = [self._device.memory.take(nbytes) for nbytes in topology.staging]
            bases = [*bases, *[block.address for block in self._staging]]
        changed = self.parameters.relocate(bases, memory)
        if raw is not None and self._stage is not None and not topology.movable.isdisjoint(changed):
            staged = self._with_staging(raw, topology.movable.intersection(changed), bases, memory)
            if staged is not None:
                return staged
        if raw is None:
            self.raw = self._retired.resource = raw = self._instantiated(lambda each: self._node(each, bases, memory))
            return raw
        if not changed:
            return raw
        kernels, others = self._updates.get(tuple(changed)) or self._prepared_updates(raw, tuple(changed))
        current: int | None = None
        try:
            for number, node in others:
                current = number
                made = self._node(node.command, bases, memory)
                if type(made) is CopyNode:
                    raw.update_copy(number, made)
                elif type(made) is FillNode:
                    raw.update_fill(number, made)
                elif type(made) is CapturedNode and not self._captured(raw, number, made):
                    return self._made_again(raw, bases, memory)
            current = None  # the kernels' nodes say themselves which of them was refused
            kernels.apply()
        except BaseException:
            refused = kernels.refused if current is None else current
            self.failed_node = None if refused is None else topology.nodes[refused]
            raise
        return raw

    def _with_staging(
        self, raw: RawGraph, moved: frozenset[int], bases: Sequence[int], memory: Sequence[object]
    ) -> RawGraph | None:
        """Return a new graph in which the small operands of users' bodies are staged that have moved from these bases.
        Return None if there is too little memory to stage them."""
        assert self._stage is not None
        topology = self._stage(self._topology.staged | moved)
        held = self._bodies, self._staging  # the graph before has them until it is destroyed
        try:
            staging = [self._device.memory.take(nbytes) for nbytes in topology.staging]
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            self._stage = None
            return None
        own = bases[: len(bases) - len(self._staging)]
        self._topology, self._staging, self._bodies = topology, staging, {}
        self.parameters = topology.parameters.copy()
        bases = [*own, *[block.address for block in staging]]
        self.parameters.relocate(bases, memory)
        found = self._made_again(raw, bases, memory)
        del held
        return found

    def _node(self, command: GraphCommand, bases: Sequence[int], memory: Sequence[object]) -> GraphNode:
        """Return the node of a command for these bases, and for the numbers in the cells of this memory."""
        if not isinstance(command, LibraryCall):
            return command.node(bases)
        body, place = command.body, None
        if body is not None:
            place = self._bodies.get(command)
            if place is None:
                place = self._bodies[command] = BodyInGraph(command, body, self._device)
        return command.node(bases, memory, place)

    def _captured(self, raw: RawGraph, number: int, made: CapturedNode) -> bool:
        """Put a new capture of a library's work in the place of a node. Return False if the driver refuses.

        Raises:
            CaptureError: a user's body cannot be captured.
        """
        try:
            return raw.update_captured(number, made)
        except DeviceError as error:
            self._blame_bodies([self._topology.nodes[number]], error)
            raise

    def _blame_bodies(self, nodes: Sequence[Node], error: DeviceError) -> None:
        """Raise a `CaptureError` if the error can come from a user's body that is captured for one of these nodes."""
        commands = [node.command for node in nodes if not isinstance(node, LaunchTemplate)]
        bodies = [each for each in commands if isinstance(each, LibraryCall) and each.body is not None]
        if bodies and not isinstance(error, DeviceLostError) and error.code != OUT_OF_MEMORY:
            raise refused_capture(bodies, str(error).rstrip(".")) from error

    def _made_again(self, before: RawGraph, bases: Sequence[int], memory: Sequence[object]) -> RawGraph:
        """Return a new graph for these bases in the place of `before`, which cannot be updated."""
        raw = self._instantiated(lambda command: self._node(command, bases, memory))
        self.raw = self._retired.resource = raw
        self._updates.clear()
        before.destroy()
        return raw

    def _prepared_updates(self, raw: RawGraph, changed: tuple[int, ...]) -> "_Updates":
        """Prepare the updates after a change of these sources, and remember them."""
        topology = self._topology
        kernels: list[int] = []
        others: list[tuple[int, CommandNode]] = []
        for number in sorted(set().union(*[topology.dependents[source] for source in changed])):
            node = topology.nodes[number]
            if isinstance(node, LaunchTemplate):
                kernels.append(number)
            else:
                others.append((number, node))
        if len(self._updates) >= CHANGES:
            self._updates.clear()
        updates = self._updates[changed] = _Updates(raw.prepare_updates(kernels), others)
        return updates

    def keep_arenas(self, sizes: Sequence[tuple[int, int]]) -> list[object]:
        """Take memory for temporaries of these devices and sizes, which stays between launches, and return it."""
        taken: list[object] = [self._device.memory.take(size, is_counted=False) for _, size in sizes]
        self.arenas = taken
        return taken

    def prepare(self) -> None:
        """Instantiate the graph before its first run, with placeholder addresses. The context must be current."""
        device, nodes = self._device, self._topology.nodes
        sizes = [node.command.nbytes for node in nodes if not isinstance(node, LaunchTemplate)]
        # The driver looks up the memory of a copy's addresses: they have to be real ones.
        here, there = device.memory.take(max(sizes, default=0)), device.pinned.take(max(sizes, default=0))

        def placeholder(command: GraphCommand) -> GraphNode:
            return _moved(self._node(command, self.parameters.bases, ()), here.address, there.address)

        self.raw = self._retired.resource = self._instantiated(placeholder)
        idle = device.streams.take_exclusive()
        try:
            self.raw.upload(idle.raw)
        finally:
            device.streams.give_back_exclusive(idle)

    def _instantiated(self, with_addresses: Callable[[GraphCommand], GraphNode]) -> RawGraph:
        topology, texts = self._topology, self.parameters.texts

        def made(node: Node) -> GraphNode:
            if isinstance(node, LaunchTemplate):
                return node.node(texts[node.launch])
            return with_addresses(node.command)

        try:
            return self._device.gpu.make_graph(list(zip(map(made, topology.nodes), topology.needs, strict=True)))
        except DeviceError as error:
            self._blame_bodies(topology.nodes, error)
            raise

    def changed_bases(self, bases: Sequence[int]) -> list[int]:
        """Return the numbers of these bases that differ from the nodes' bases. A base of 0 is not known yet, and does
        not count."""
        pairs = zip(bases, self.parameters.bases, strict=False)
        return [number for number, (base, mine) in enumerate(pairs) if base != mine and base != 0]


def _moved(node: GraphNode, device: int, host: int) -> GraphNode:
    """Return the same node at these addresses of device memory and of page-locked memory."""
    assert not isinstance(node, KernelLaunch)
    if isinstance(node, CapturedNode):
        return replace(node, addresses=(device,) * len(node.addresses), scratch=device)
    if isinstance(node, FillNode):
        return replace(node, address=device)
    target, source = host if node.kind == "out" else device, host if node.kind == "in" else device
    return replace(node, target=target, source=source)


def obstacle(plan: Plan) -> tuple[Instruction | None, str] | None:
    """Return the reason why a plan cannot be one graph: the instruction that prevents it, if there is one, and the
    cause with its cure. None if the plan can be one graph."""
    for step in plan.steps:
        if isinstance(step, Execute):
            instruction = step.instruction
            if isinstance(instruction, HostCall):
                return instruction, "it calls a function of the host. Take the host_map out of the captured op"
            if isinstance(instruction, GraphLaunch):
                return instruction, "it launches a graph itself. Launch both, one after the other"
            body = body_of(instruction)
            if body is not None and body.capture == "never":
                return instruction, 'it is declared with capture="never". Declare it with @foreign(capture="auto")'
            if len(plan.devices) > 1 and plan.lanes[step.lane].device:
                here, there = plan.devices[0], plan.devices[plan.lanes[step.lane].device]
                return instruction, f"it is on {there}, and others are on {here}. Use one device"
    if len(plan.devices) > 1:
        return None, f"it uses memory of {len(plan.devices)} devices. Use one"
    if len({lane.key for lane in plan.lanes if not isinstance(lane.key, int)}) > 1:
        return None, "it is on several streams of your own, and a graph is launched on one stream. Use only one of them"
    return None


def cannot_capture(instruction: Instruction | None, why: str) -> CaptureError:
    """Return the error for a plan that cannot be one graph. The arguments are those that `obstacle` returns."""
    where = f" at {describe(instruction.origin)}" if instruction is not None else ""
    what = f"{type(instruction).__name__}{where}" if instruction is not None else "the op"
    return CaptureError(f"{what} cannot be part of a CUDA graph: {why}.")


def body_of(instruction: Instruction) -> UserBody | None:
    """Return the user's body that an instruction calls; None if it calls none."""
    body = instruction.kernel.library if isinstance(instruction, Launch) else None
    return body if isinstance(body, UserBody) else None


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
        self._device = devices[0]
        self._topology: GraphTopology | None = None
        self._is_small = False
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
    def _can_make(self) -> bool:
        """True if another graph may be created."""
        return not (self._count >= INSTANCES or self.refused or self.obstacle or self.is_checked)

    def find_topology(self, compiled: CompiledPlan, encoded: Encoded) -> GraphTopology:
        """Return the topology of the plan's graph. It is computed once, or twice if two threads call at the same
        time."""
        if self._topology is None:
            self._topology = build_topology(compiled, encoded)
            self._is_small = len(self._topology.nodes) <= FEW_NODES
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
        with self._device.gpu.current():
            instance = self.borrow(compiled, encoded, ())
            if instance is not None:
                try:
                    if instance.raw is None:
                        self.instantiated(instance, GraphExec.prepare)
                finally:
                    self.give_back(instance)

    def borrow_idle(self) -> GraphExec | None:
        """Return any idle graph of a plan with few nodes, without a comparison of bases; None if there is none."""
        if self._is_small:
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
            return GraphExec(self._device, topology, lambda staged: self._with_staged(compiled, encoded, staged))
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
