"""`GraphExec`, an executable CUDA graph of a plan: it is instantiated by its first run, and updated for later ones.

A graph owns none of a run's memory but what is small: page-locked memory for arrays from the host, and the temporaries
of a plan that asks for that. Each run allocates the rest from the pools, as a run through streams does. Nodes whose
addresses differ from the graph's last run are updated.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

from dagpu.backends.cuda.commands.command_list import NOWHERE
from dagpu.backends.cuda.commands.library_calls import BodyInGraph, LibraryCall, refused_capture
from dagpu.backends.cuda.commands.transfers import StagedArrays
from dagpu.backends.cuda.driver.driver_protocol import (
    OUT_OF_MEMORY,
    CapturedNode,
    CopyNode,
    FillNode,
    GraphNode,
    IfNode,
    KernelLaunch,
    KernelUpdates,
    RawGraph,
)
from dagpu.backends.cuda.graphs.topology import CommandNode, ConditionalNode, GraphTopology, LaunchTemplate, Node
from dagpu.backends.cuda.kernels.fill_and_copy import Memcpy
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.compiled import READER, teach
from dagpu.common.errors import DeviceError, DeviceLostError

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
        "_devices",
        "_mapped",
        "_retired",
        "_stage",
        "_staging",
        "_topology",
        "_updates",
        "arenas",
        "broken",
        "failed_node",
        "nodes",
        "parameters",
        "raw",
        "staged_arrays",
    )  # fmt: skip

    def __init__(
        self,
        devices: Sequence[CudaDevice],
        topology: GraphTopology,
        stage: Callable[[frozenset[int]], GraphTopology] | None = None,
    ) -> None:
        """`devices` are those of the plan; the graph is launched in streams of the first. `stage(bases)` returns the
        topology in which operands of users' bodies are staged that are counted from these bases; None if no address
        changes."""
        self._devices = devices
        self._topology = topology
        self._stage = stage
        self._staging: list[MemoryBlock] = []
        """The memory of the operands that are staged."""
        self._bodies: dict[LibraryCall, BodyInGraph] = {}
        """The places of the user's bodies in this graph, with the memory that their work needs."""
        self.parameters = topology.parameters.copy()
        """The parameters of the kernels' nodes, with the bases and numbers for which all nodes are written."""
        self._mapped: list[object] = []
        """What `Pool.mapped` was for each device when the copies between devices were last set."""
        self.staged_arrays = StagedArrays()
        """The memory through which small arrays of the host pass."""
        self._updates: dict[tuple[int, ...], _Updates] = {}
        """The prepared updates, by the sources that have changed; see `Relocations`."""
        self.raw: RawGraph | None = None
        """The driver's graph; None until it is instantiated."""
        self._retired = devices[0].retired.watch(self, None)
        """Registration with the device's queue of retired graphs. When this object is dropped, no run uses the raw
        graph any more, and it may be destroyed."""
        self.arenas: list[MemoryBlock] = []
        """The memory of temporaries, if it stays between launches and there has been one."""
        self.nodes: Any = None
        """The nodes of `raw` for the compiled reader; false if it cannot update them, None if that is not known yet."""
        self.broken = False
        """True if an update or a launch has failed."""
        self.failed_node: Node | None = None
        """The node whose update failed, if any."""

    def update_nodes(self, bases: Sequence[int], memory: Sequence[object]) -> RawGraph:
        """Update the nodes whose addresses, or numbers in the cells of this memory, differ, and return the driver's
        graph. Instantiate it first if that has not been done. Any context may be current, or none."""
        topology, raw = self._topology, self.raw
        if topology.staging:
            if not self._staging:
                self._staging = self._taken(topology.staging)
            bases = [*bases, *[block.address for block in self._staging]]
        if topology.crossed:
            self._forget_mappings()
        changed = self.parameters.relocate(bases, memory)
        if raw is not None and self._stage is not None and not topology.movable.isdisjoint(changed):
            staged = self._with_staging(raw, topology.movable.intersection(changed), bases, memory)
            if staged is not None:
                return staged
        if raw is None:
            with self._devices[0].gpu.current():
                raw = self._instantiated(lambda node: self._node(node, bases, memory))
            self.raw = self._retired.resource = raw
            return raw
        if not changed:
            return raw
        with self._devices[0].gpu.current():  # without it the driver of CUDA 13.0 ends the process
            return self._updated(raw, tuple(changed), bases, memory)

    def describe_nodes(self) -> None:
        """Describe the nodes for the compiled reader, which updates those of kernels, and of copies within the memory
        of devices. Python updates the nodes if one of another kind depends on a source that has changed, and if memory
        was mapped since copies between devices were set; see `_forget_mappings`."""
        raw, topology = self.raw, self._topology
        assert raw is not None
        self.nodes = False
        if topology.bodies:
            return
        found, places = raw.node_addresses(), self.parameters.places()
        if found is None or places is None:
            return
        by_python = set[int]()
        for number, node in enumerate(topology.nodes):
            if isinstance(node, CommandNode) and number in found.copies:
                command = node.command
                assert isinstance(command, Memcpy)
                target, source = found.copies[number]
                places[command.out_base][1].append((target, command.out_offset))
                places[command.source_base][1].append((source, command.source_offset))
            elif not isinstance(node, LaunchTemplate):
                by_python.add(number)
        sources = tuple(
            (*place, [(node,) for node in nodes], source in topology.movable or not by_python.isdisjoint(nodes))
            for source, (place, nodes) in enumerate(zip(places, topology.dependents, strict=True))
        )
        bases, crossing = len(self.parameters.bases), self._devices if topology.crossed else ()
        mapped = tuple([(each.memory, seen) for each, seen in zip(crossing, self._mapped, strict=False)])
        held = found.kept_alive, self.parameters.texts
        self.nodes = READER.Nodes(found.executable, found.context, found.nodes, sources, bases, mapped, held)

    def refuse_node(self, number: int) -> None:
        """Note that the driver has refused the update of a node."""
        self.failed_node = self._topology.nodes[number]

    def _forget_mappings(self) -> None:
        """Let the copies between devices be set again if memory was mapped since they were set.

        Such a node is bound to the mappings of its addresses at that time. If other memory is mapped there, its launch
        ends with CUresult 719, also where source and target have the same addresses as before. Nodes within one device
        are bound to addresses alone. (Tried on two H200s, driver 580.159, CUDA 13.0.)
        """
        mapped = [device.memory.mapped for device in self._devices]
        if mapped != self._mapped:
            bases = self.parameters.bases
            for base in self._topology.crossed:
                bases[base] = NOWHERE
            self._mapped, self.nodes = mapped, None

    def _updated(
        self, raw: RawGraph, changed: tuple[int, ...], bases: Sequence[int], memory: Sequence[object]
    ) -> RawGraph:
        """Update the nodes that depend on the sources `changed`, and return the driver's graph."""
        topology = self._topology
        kernels, others = self._updates.get(changed) or self._prepared_updates(raw, changed)
        current: int | None = None
        try:
            for number, node in others:
                current = number
                made = self._node(node, bases, memory)
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
            staging = self._taken(topology.staging)
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

    def _taken(self, sizes: Sequence[tuple[int, int]]) -> list[MemoryBlock]:
        """Take a block of each of these sizes from the pool of its device."""
        found: list[MemoryBlock] = []
        for number, nbytes in sizes:
            with self._devices[number].gpu.current():
                found.append(self._devices[number].memory.take(nbytes))
        return found

    def _node(self, node: CommandNode, bases: Sequence[int], memory: Sequence[object]) -> GraphNode:
        """Return the node of a command for these bases, and for the numbers in the cells of this memory."""
        command = node.command
        if not isinstance(command, LibraryCall):
            return command.node(bases)
        body, place = command.body, None
        if body is not None:
            place = self._bodies.get(command)
            if place is None:
                place = self._bodies[command] = BodyInGraph(command, body, self._devices[node.device])
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
        commands = [node.command for node in nodes if isinstance(node, CommandNode)]
        bodies = [each for each in commands if isinstance(each, LibraryCall) and each.body is not None]
        if bodies and not isinstance(error, DeviceLostError) and error.code != OUT_OF_MEMORY:
            raise refused_capture(bodies, str(error).rstrip(".")) from error

    def _made_again(self, before: RawGraph, bases: Sequence[int], memory: Sequence[object]) -> RawGraph:
        """Return a new graph for these bases in the place of `before`, which cannot be updated."""
        with self._devices[0].gpu.current():
            raw = self._instantiated(lambda node: self._node(node, bases, memory))
            self.raw = self._retired.resource = raw
            self.nodes = None
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
            elif isinstance(node, CommandNode):
                others.append((number, node))
        if len(self._updates) >= CHANGES:
            self._updates.clear()
        updates = self._updates[changed] = _Updates(raw.prepare_updates(kernels), others)
        return updates

    def keep_arenas(self, sizes: Sequence[tuple[int, int]]) -> list[MemoryBlock]:
        """Take memory for temporaries of these devices and sizes, which stays between launches, and return it."""
        taken = [self._devices[number].memory.take(size, is_counted=False) for number, size in sizes]
        self.arenas = taken
        return taken

    def prepare(self) -> None:
        """Instantiate the graph before its first run, with placeholder addresses. The context must be current."""
        device, nodes = self._devices[0], self._topology.nodes
        most = max([node.command.nbytes for node in nodes if isinstance(node, CommandNode)], default=0)
        # The driver looks up the memory of a copy's addresses: they have to be real ones.
        blocks = self._taken([(number, most) for number in range(len(self._devices))])
        there = device.pinned.take(most)

        def placeholder(node: CommandNode) -> GraphNode:
            made = self._node(node, self.parameters.bases, ())
            return _moved(made, blocks[node.target].address, blocks[node.device].address, there.address)

        self.raw = self._retired.resource = self._instantiated(placeholder)
        idle = device.streams.take_exclusive()
        try:
            self.raw.upload(idle.raw)
        finally:
            device.streams.give_back_exclusive(idle)

    def _instantiated(self, with_addresses: Callable[[CommandNode], GraphNode]) -> RawGraph:
        topology, texts = self._topology, self.parameters.texts
        gpu, gpus = self._devices[0].gpu, [device.gpu for device in self._devices]

        def made(node: Node) -> GraphNode:
            if isinstance(node, LaunchTemplate):
                return node.node(texts[node.launch])
            return IfNode() if isinstance(node, ConditionalNode) else with_addresses(node)

        sites = [gpus[node.device] for node in topology.nodes] if len(gpus) > 1 else ()
        try:
            nodes = list(zip(map(made, topology.nodes), topology.needs, strict=True))
            return gpu.make_graph(nodes, sites, topology.bodies)
        except DeviceError as error:
            self._blame_bodies(topology.nodes, error)
            raise

    def abandon(self) -> None:
        """Leave the driver's graph alone for ever: its last launch may never end. It is not used again."""
        self.broken = True
        self._retired.resource = None

    def changed_bases(self, bases: Sequence[int]) -> list[int]:
        """Return the numbers of these bases that differ from the nodes' bases. A base of 0 is not known yet, and does
        not count."""
        pairs = zip(bases, self.parameters.bases, strict=False)
        return [number for number, (base, mine) in enumerate(pairs) if base != mine and base != 0]


def _moved(node: GraphNode, written: int, read: int, host: int) -> GraphNode:
    """Return the same node at these addresses of device memory, which it writes or reads, and of page-locked memory."""
    assert not isinstance(node, KernelLaunch | IfNode)
    if isinstance(node, CapturedNode):
        return replace(node, addresses=(written,) * len(node.addresses), scratch=written)
    if isinstance(node, FillNode):
        return replace(node, address=written)
    target, source = host if node.kind == "out" else written, host if node.kind == "in" else read
    return replace(node, target=target, source=source)


teach(graph_exec=GraphExec)
