"""Executable graphs of a simulated GPU.

The parameters of a node are copied when it is added or set, as by the driver: later writes have no effect.
The simulator is stricter than the driver: a graph may not be changed or destroyed while a launch of it is pending.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, final

from dagpu.backends.cuda.driver.driver_protocol import (
    CapturedNode,
    CopyNode,
    FillNode,
    GraphNode,
    KernelLaunch,
    RawStream,
)
from dagpu.common.errors import DeviceError
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import GraphRun, Record

DEVICE: Final = {"in": (False, True), "out": (True, False), "within": (True, True)}
"""For each kind of copy: True if its source, and if its target, is on the device."""


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
        self, gpu: SimulatedGpu, nodes: Sequence[tuple[GraphNode, Sequence[int]]], gpus: Sequence[SimulatedGpu]
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
        for number, (node, needs) in enumerate(nodes):
            if len(set(needs)) < len(needs) or not all(0 <= other < number for other in needs):
                gpu.machine.problem(f"node {number} is put after {needs}")
            act = self._act(number, node)  # outside of the call: a body that is captured may wait for other threads
            with gpu.call(_ADD[type(node)]):
                self._acts.append(act)
        with gpu.call("cuGraphInstantiate"):
            gpu.graphs += 1
            self._alive = True

    def prepare_updates(self, nodes: Sequence[int]) -> SimulatedUpdates:
        return SimulatedUpdates(self._update_kernel, nodes)

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
                self._gpu.machine.graphs.append(GraphRun(self._users, acts, self._needs, end))

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
            lie: list[int] = []
            for address, device in zip((node.source, node.target), DEVICE[node.kind], strict=True):
                found = gpu.machine.find(address, node.nbytes)
                if not node.nbytes or found is None or (found[2] >= 0) is not device:
                    raise gpu.refused("cuGraphAddMemcpyNode", 1)
                lie.append(found[2])
            if gpu.index not in lie or self._lie.setdefault(number, lie) != lie:
                raise gpu.refused("cuGraphAddMemcpyNode", 1)
            return lambda: gpu.copied(node.target, node.source, node.nbytes)
        found = gpu.machine.find(node.address, node.width * node.count)
        if not node.count or found is None or found[2] != gpu.index:
            raise gpu.refused("cuGraphAddMemsetNode", 1)
        return lambda: gpu.filled(node.address, node.width, node.value, node.count)


_ADD: Final = {
    KernelLaunch: "cuGraphAddKernelNode", CopyNode: "cuGraphAddMemcpyNode", FillNode: "cuGraphAddMemsetNode",
    CapturedNode: "cuGraphAddChildGraphNode",
}  # fmt: skip
