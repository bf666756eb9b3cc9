"""Executable graphs of a simulated GPU.

The parameters of a node are copied when it is added or set, as by the driver: later writes have no effect. The body of
a conditional node runs if the condition that kernels have set in this launch is not 0.
The simulator is stricter than the driver: a graph may not be changed or destroyed while a launch of it is pending.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from struct import pack_into
from typing import Any, Final, final

from dagpu.common.errors import DeviceError
from dagpu.testing import CapturedNode, CopyNode, FillNode, GraphNode, IfNode, KernelLaunch, RawStream
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Record

DEVICE: Final = {"in": (False, True), "out": (True, False), "within": (True, True)}
"""For each kind of copy: True if its source, and if its target, is on the device."""


@final
@dataclass(frozen=True, slots=True)
class Body:
    """The body of a conditional node of a graph."""

    condition: int
    """The handle of the condition."""
    nodes: list[int]


@final
class GraphRun:
    """One launch of a graph in progress. Its nodes run in any order that their dependences allow."""

    def __init__(
        self,
        gpus: "Sequence[SimulatedGpu]",
        acts: Sequence[Callable[[], None]],
        needs: Sequence[Sequence[int]],
        end: Record,
        bodies: Mapping[int, Body],
    ) -> None:
        self.gpus = gpus
        """The GPUs that it uses. When one of them is lost, it makes no more progress."""
        self.end = end
        self._acts = acts
        self._bodies = bodies
        self._machine = gpus[0].machine
        for body in bodies.values():
            self._machine.conditions[body.condition] = 0
        self._body_of = {node: number for number, body in bodies.items() for node in body.nodes}
        self._open: dict[int, int] = {}
        """For each conditional node whose body runs, the number of its nodes that are not over."""
        self._needs = needs
        self._left = [len(each) for each in needs]
        self._after: list[list[int]] = [[] for _ in needs]
        for node, each in enumerate(needs):
            for other in each:
                self._after[other].append(node)
        self._ready = [node for node, each in enumerate(needs) if not each and node not in self._body_of]
        self._count = len(needs) - len(self._body_of)

    def step(self, choose: random.Random) -> None:
        """Run one node, or end the launch."""
        if self._ready:
            node = self._ready.pop(choose.randrange(len(self._ready)))
            body = self._bodies.get(node)
            if body is None:
                self._acts[node]()
                self._over(node)
            else:
                self._decide(node, body)
        if not self._count:
            self.end.done = True

    def _decide(self, node: int, body: Body) -> None:
        """Run the body of a conditional node, or leave it out."""
        runs = bool(self._machine.conditions[body.condition])
        self._machine.decisions.append(runs)
        if not runs or not body.nodes:
            self._over(node)
            return
        self._open[node] = len(body.nodes)
        self._count += len(body.nodes)
        self._ready += [each for each in body.nodes if not self._needs[each]]

    def _over(self, node: int) -> None:
        """Make ready what has waited for a node, and end the conditional node whose body it was the last of."""
        self._count -= 1
        for other in self._after[node]:
            self._left[other] -= 1
            if not self._left[other]:
                self._ready.append(other)
        around = self._body_of.get(node, -1)
        if around >= 0:
            self._open[around] -= 1
            if not self._open[around]:
                self._over(around)


@final
class SimulatedUpdates:
    """Implements `KernelUpdates`."""

    def __init__(self, update: Callable[[int], None], nodes: Sequence[int]) -> None:
        self._update = update
        self._nodes = nodes
        self.refused: int | None = None

    def apply(self) -> None:
        for node in self._nodes:
            self.refused = node
            self._update(node)
        self.refused = None


@final
class SimulatedGraph:
    """Implements `RawGraph`. Each node works in the context of one GPU."""

    def __init__(
        self,
        gpu: SimulatedGpu,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: Sequence[SimulatedGpu],
        bodies: Sequence[int],
    ) -> None:
        self._gpu = gpu
        self._gpus = list(gpus)
        self._users = list(dict.fromkeys([gpu, *gpus]))
        """The GPUs that a launch uses."""
        self._nodes = [node for node, _ in nodes]
        self._needs = [tuple(needs) for _, needs in nodes]
        self._lie: dict[int, list[int]] = {}
        """For each copy the devices of its source and its target, which an update may not change; -1 for the host."""
        self._acts: list[Callable[[], None]] = []
        self._pending = 0
        self._latest: Record | None = None
        self._alive = False
        inside = list(bodies) or [-1] * len(nodes)
        self._bodies: dict[int, Body] = {}
        """The bodies of the conditional nodes."""
        for number, (node, _) in enumerate(nodes):
            if isinstance(node, IfNode):
                with gpu.call("cuGraphConditionalHandleCreate"):
                    members = [each for each, body in enumerate(inside) if body == number]
                    self._bodies[number] = Body(gpu.machine.new_condition(), members)
        for number, (node, needs) in enumerate(nodes):
            if len(set(needs)) < len(needs) or not all(0 <= other < number for other in needs):
                gpu.machine.problem(f"node {number} is put after {needs}")
            if any(inside[other] != inside[number] for other in needs) or inside[number] >= number:
                gpu.machine.problem(f"node {number} is put after {needs}, which are not in the same graph")
            if isinstance(node, KernelLaunch) and node.decides >= 0:
                pack_into("<Q", node.parameters, 0, self._bodies[node.decides].condition)
            act = self._act(number, node)  # outside of the call: a body that is captured may wait for other threads
            with gpu.call(_ADD[type(node)]):
                self._acts.append(act)
        with gpu.call("cuGraphInstantiate"):
            gpu.graphs += 1
            self._alive = True

    def prepare_updates(self, nodes: Sequence[int]) -> SimulatedUpdates:
        return SimulatedUpdates(self._update_kernel, nodes)

    @property
    def handle(self) -> None:
        return None

    def node_addresses(self) -> None:
        return None

    def _update_kernel(self, node: int) -> None:
        kernel = self._nodes[node]
        assert isinstance(kernel, KernelLaunch)
        self._set("cuGraphExecKernelNodeSetParams", node, kernel)

    def update_copy(self, node: int, to: CopyNode) -> None:
        before = self._nodes[node]
        assert isinstance(before, CopyNode)
        assert (before.kind, before.nbytes) == (to.kind, to.nbytes)
        self._set("cuGraphExecMemcpyNodeSetParams", node, to)

    def update_fill(self, node: int, to: FillNode) -> None:
        before = self._nodes[node]
        assert isinstance(before, FillNode)
        assert (before.width, before.value, before.count) == (to.width, to.value, to.count)
        self._set("cuGraphExecMemsetNodeSetParams", node, to)

    def update_captured(self, node: int, to: CapturedNode) -> bool:
        assert isinstance(self._nodes[node], CapturedNode)
        act = self._act(node, to)  # an error of the library is raised
        try:
            with self._gpu.call("cuGraphExecChildGraphNodeSetParams"):
                self._check("changed")
        except DeviceError:
            return False
        self._nodes[node], self._acts[node] = to, act
        return True

    def upload(self, stream: RawStream) -> None:
        with self._gpu.call("cuGraphUpload"):
            self._check("uploaded")

    def launch(self, stream: Any) -> None:
        with stream.gpu.call("cuGraphLaunch"):
            self._check("launched", while_pending=True)
            if stream.gpu not in self._users and not any(stream.gpu.index in lie for lie in self._lie.values()):
                self._gpu.machine.problem("a graph is launched in a stream of a device that it does not use")
            for gpu in self._users:
                gpu.refuse_if_lost("cuGraphLaunch")
            end, acts = Record(), list(self._acts)

            def begin() -> None:
                self._gpu.machine.graphs.append(GraphRun(self._users, acts, self._needs, end, self._bodies))

            def over() -> None:
                self._pending -= 1

            # Launches of one graph run one after the other, in whatever streams they are.
            stream.put(begin, needs=self._latest, takes_room=True)
            stream.put(over, needs=end)
            self._latest = end
            self._pending += 1

    def destroy(self) -> None:
        with self._gpu.call("cuGraphExecDestroy"):
            self._check("destroyed")
            self._alive = False
            self._gpu.graphs -= 1

    def _set(self, call: str, number: int, node: GraphNode) -> None:
        with self._gpu.call(call):
            self._check("changed")
            self._nodes[number] = node
            self._acts[number] = self._act(number, node)

    def _check(self, what: str, *, while_pending: bool = False) -> None:
        if not self._alive:
            self._gpu.machine.problem(f"a graph is {what} after it was destroyed")
        if self._pending and not while_pending:
            self._gpu.machine.problem(f"a graph is {what} while it runs")

    def _act(self, number: int, node: GraphNode) -> Callable[[], None]:
        gpu = self._gpus[number]
        if isinstance(node, IfNode):
            return _decided_by_the_run
        if isinstance(node, KernelLaunch):
            if node.function.handle.gpu is not gpu:
                gpu.machine.problem("a kernel's node is in another context than the kernel")
            act: Callable[[], None] = node.function.handle.act(node)
            return act
        if isinstance(node, CapturedNode):
            with nullcontext() if gpu is self._gpu else gpu.current():
                enqueued = gpu.captured(node)

            def child() -> None:
                for each in enqueued:
                    each()

            return child
        if isinstance(node, CopyNode):
            return self._copy(number, node)
        found = gpu.machine.find(node.address, node.width * node.count)
        if not node.count or found is None or found[2] != gpu.index:
            raise gpu.refused("cuGraphAddMemsetNode", 1)
        return lambda: gpu.filled(node.address, node.width, node.value, node.count)

    def _copy(self, number: int, node: CopyNode) -> Callable[[], None]:
        """Return the act of a copy. One between two devices fails if other memory has been mapped at its addresses
        since the node was set, as with the driver."""
        gpu = self._gpus[number]
        lie: list[int] = []
        mapped: list[object] = []
        for address, device in zip((node.source, node.target), DEVICE[node.kind], strict=True):
            found = gpu.machine.find(address, node.nbytes)
            if not node.nbytes or found is None or (found[2] >= 0) is not device:
                raise gpu.refused("cuGraphAddMemcpyNode", 1)
            lie.append(found[2])
            mapped.append(found[0])
        if gpu.index not in lie or self._lie.setdefault(number, lie) != lie:
            raise gpu.refused("cuGraphAddMemcpyNode", 1)
        if lie[0] == lie[1] or -1 in lie:
            return lambda: gpu.copied(node.target, node.source, node.nbytes)

        def between_devices() -> None:
            now = [gpu.machine.find(address, node.nbytes) for address in (node.source, node.target)]
            if [found and found[0] for found in now] == mapped:
                gpu.copied(node.target, node.source, node.nbytes)
            else:
                gpu.lose(719)

        return between_devices


def _decided_by_the_run() -> None:
    """Do nothing: a conditional node has no work but its body."""


_ADD: Final = {
    KernelLaunch: "cuGraphAddKernelNode", CopyNode: "cuGraphAddMemcpyNode", FillNode: "cuGraphAddMemsetNode",
    CapturedNode: "cuGraphAddChildGraphNode", IfNode: "cuGraphAddNode",
}  # fmt: skip
