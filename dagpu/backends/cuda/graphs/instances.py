"""The CUDA graphs of one plan: executable graphs that its runs borrow, so that one call of the driver launches a run.

A graph owns no memory of the run: that comes out of the pools for every run, as it does for a run through streams. What
lies elsewhere than in the graph's last run is written into the nodes concerned; as the pools are asked for what it had
then, that is mostly nothing.

An executable graph is neither changed nor launched while it runs. So a run keeps the one it borrowed until it is over,
and runs that are under way at once have one each.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, final

from dagpu.backends.cuda.commands.command_list import Encoded
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY, CopyNode, FillNode, GraphNode, RawGraph, RawStream
from dagpu.backends.cuda.graphs.topology import GraphCommand, GraphTopology, LaunchTemplate, Node, blueprint
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.common.errors import DagpuError, DeviceError, DeviceLostError
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import GraphLaunch, HostCall, Instruction

INSTANCES: Final = 4
"""Executable graphs of one plan: runs that are under way at once beyond these go through streams. On a busy GPU a few
keep it busy, and each takes the driver some microseconds and some KB for every node."""

PROMPT_NODES: Final = 100
"""A larger graph is not instantiated by a thread that must not be held up: the driver takes 2 to 4 us for each node."""


@final
class GraphExec:
    """An executable graph, and what its nodes are written for. One run at a time has it."""

    __slots__ = ("__weakref__", "_blueprint", "_device", "_parameters", "_retired", "broken", "raw", "touched")

    def __init__(self, device: CudaDevice, drawn: GraphTopology) -> None:
        self._device = device
        self._blueprint = drawn
        self._parameters = drawn.parameters.copy()
        self.raw: RawGraph | None = None
        """None until it is instantiated."""
        self._retired = device.retired.watch(self, None)
        """Whoever launched it has let go of it, so it does not run: the raw graph may be destroyed."""
        self.broken = False
        """Did something fail while it was written, or launched?"""
        self.touched: Node | None = None
        """The node that could not be written."""

    def aim(self, bases: Sequence[int], memory: Sequence[object]) -> None:
        """Write these addresses, and the numbers in the cells of this memory, into the nodes where they differ.
        Instantiates it if that has not been done. The context is current."""
        drawn, raw = self._blueprint, self.raw
        changed = self._parameters.aim(bases, memory)
        if raw is None:
            self.raw = self._retired.belongs = self._instantiated(lambda command: command.node(bases))
            return
        if not changed:
            return
        concerned = drawn.concerned
        numbers: Sequence[int] = concerned[changed[0]]
        if len(changed) > 1:
            numbers = sorted(set().union(*[concerned[source] for source in changed]))
        nodes, update_kernel, number = drawn.nodes, raw.update_kernel, 0
        try:
            for number in numbers:
                node = nodes[number]
                if type(node) is LaunchTemplate:
                    update_kernel(number)
                    continue
                made = node.command.node(bases)
                if type(made) is CopyNode:
                    raw.update_copy(number, made)
                else:
                    raw.update_fill(number, made)
        except BaseException:
            self.touched = nodes[number]
            raise

    def launch(self, stream: RawStream) -> None:
        """Launch it. The context is current."""
        assert self.raw is not None
        self.raw.launch(stream)

    def prepare(self) -> None:
        """Instantiate it before there is a run to aim it at. The context is current."""
        device, nodes = self._device, self._blueprint.nodes
        sizes = [node.command.nbytes for node in nodes if not isinstance(node, LaunchTemplate)]
        # The driver looks up what the addresses of copies belong to: they have to be real ones.
        here, there = device.memory.take(max(sizes, default=0)), device.pinned.take(max(sizes, default=0))

        def placeholder(command: GraphCommand) -> GraphNode:
            return _moved(command.node(self._parameters.bases), here.address, there.address)

        self.raw = self._retired.belongs = self._instantiated(placeholder)
        idle = device.streams.take_notifier()
        try:
            self.raw.upload(idle.raw)
        finally:
            device.streams.give_back_notifier(idle)

    def _instantiated(self, with_addresses: Callable[[GraphCommand], GraphNode]) -> RawGraph:
        drawn, texts = self._blueprint, self._parameters.texts

        def made(node: Node) -> GraphNode:
            if isinstance(node, LaunchTemplate):
                return node.node(texts[node.launch])
            return with_addresses(node.command)

        return self._device.gpu.make_graph(list(zip(map(made, drawn.nodes), drawn.needs, strict=True)))

    def far(self, bases: Sequence[int]) -> int:
        """How many of these bases, where they are known, are others than its nodes were written for."""
        return sum(base != 0 and base != mine for base, mine in zip(bases, self._parameters.bases, strict=False))

    @property
    def bases(self) -> Sequence[int]:
        """What its nodes are written for."""
        return self._parameters.bases


def _moved(node: CopyNode | FillNode, device: int, host: int) -> GraphNode:
    """The same node on other memory: at these addresses of device memory and of page-locked memory."""
    if isinstance(node, FillNode):
        return replace(node, address=device)
    target, source = host if node.kind == "out" else device, host if node.kind == "in" else device
    return replace(node, target=target, source=source)


def obstacle(plan: Plan) -> tuple[Instruction | None, str] | None:
    """Why a plan cannot be one graph: the instruction in the way, if it is one, and what to do. None if it can."""
    for step in plan.steps:
        if isinstance(step, Execute):
            instruction = step.instruction
            if isinstance(instruction, HostCall):
                return instruction, "it calls a function of the host. Take the host_map out of what is captured"
            if isinstance(instruction, GraphLaunch):
                return instruction, "it launches a graph itself. Launch both, one after the other"
            if len(plan.devices) > 1 and plan.lanes[step.lane].device:
                here, there = plan.devices[0], plan.devices[plan.lanes[step.lane].device]
                return instruction, f"it is on {there}, and others are on {here}. Use one device"
    if len(plan.devices) > 1:
        return None, f"it uses memory of {len(plan.devices)} devices. Use one"
    if len({lane.key for lane in plan.lanes if not isinstance(lane.key, int)}) > 1:
        return None, "it is on several streams of your own, and a graph is launched on one. Use one of them"
    return None


@final
class GraphInstances:
    """The instances of one plan. Any thread may borrow one.

    Invariant: _count == len(_idle) + those that runs have + those that are being made  <=  INSTANCES
    """

    def __init__(self, plan: Plan, devices: Sequence[CudaDevice]) -> None:
        self.refused: str | None = None
        """Why the driver instantiates no graph of this plan: then all its runs go through streams."""
        own = (number for number, lane in enumerate(plan.lanes) if not isinstance(lane.key, int))
        self.lane = next(own, 0)
        """The lane on whose stream a graph is launched."""
        self._plan = plan
        self._device = devices[0]
        self._blueprint: GraphTopology | None = None
        self._lock = threading.Lock()
        self._idle: list[GraphExec] = []
        self._count = 0
        self._prepared_first = False

    @cached_property
    def obstacle(self) -> tuple[Instruction | None, str] | None:
        """Why the plan cannot be one graph."""
        return obstacle(self._plan)

    @property
    def slow(self) -> bool:
        """Would the next run with a graph take long to instantiate it?"""
        if self._count or self._prepared_first or self.refused or self.obstacle:
            return False
        return sum(isinstance(step, Execute) for step in self._plan.steps) > PROMPT_NODES

    @property
    def instances(self) -> int:
        """How many there are."""
        return self._count

    @property
    def left(self) -> bool:
        """Is there an instance for one more run, or may there be?"""
        return bool(self._idle) or not (self._count >= INSTANCES or self.refused or self.obstacle)

    def draw(self, compiled: CompiledPlan, written: Encoded) -> GraphTopology:
        """The nodes of the plan. Two threads that come at once may do this twice."""
        if self._blueprint is None:
            self._blueprint = blueprint(compiled, written)
        return self._blueprint

    def prepare_first(self, compiled: CompiledPlan, written: Encoded) -> None:
        """Instantiate the first one ahead."""
        self._prepared_first = True
        with self._device.gpu.current():
            instance = self.borrow(compiled, written, ())
            if instance is not None:
                try:
                    if instance.raw is None:
                        self.instantiated(instance, GraphExec.prepare)
                finally:
                    self.give_back(instance)

    def borrow(self, compiled: CompiledPlan, written: Encoded, bases: Sequence[int]) -> GraphExec | None:
        """An instance for a run: the idle one that is nearest, or a new one, not instantiated yet; None where the
        run has to do without. Give it back."""
        with self._lock:
            idle = self._idle
            if idle:
                nearest = min(range(len(idle)), key=lambda n: idle[n].far(bases)) if len(idle) > 1 else 0
                return idle.pop(nearest)
            if not self.left:
                return None
            self._count += 1
        try:
            return GraphExec(self._device, self.draw(compiled, written))
        except BaseException as error:
            with self._lock:
                self._count -= 1
            if not isinstance(error, DagpuError):
                raise
            self._refuse(error)
            return None

    def instantiated(self, instance: GraphExec, make: Callable[[GraphExec], None]) -> bool:
        """Have `make` instantiate it. False if the driver refuses, or has no room.

        Raises:
            DeviceLostError: the device was lost meanwhile.
        """
        try:
            make(instance)
        except DagpuError as error:
            self._refuse(error)
            return False
        return True

    def _refuse(self, error: DagpuError) -> None:
        if isinstance(error, DeviceLostError):
            raise error
        if not (isinstance(error, DeviceError) and error.code == OUT_OF_MEMORY):
            self.refused = str(error)  # an error would keep the frames that it came through, and their memory

    def give_back(self, instance: GraphExec) -> None:
        """Whoever had it is done with it. If it is good for nothing there may be another in its place."""
        with self._lock:
            if instance.raw is None or instance.broken:
                self._count -= 1
            else:
                self._idle.append(instance)
