"""The exact maximum of bytes that can be alive at once in a plan: a lower bound for the size of any arena.

A state of an execution is a set of finished steps, closed under happens-before. The bytes alive in it are those of its
allocations minus those of its releases. The heaviest such set is a maximum closure, which a minimum cut determines
(J.-C. Picard, "Maximal Closure of a Graph and Applications to Combinatorial Problems", 1976). The flow consists of
reused bytes: from each release to the allocations that come after it in every execution.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import final

from dagpu.testing import ALIGNMENT, Allocate, Execute, Plan, Record, Release, Role, Wait

_ENDLESS = 1 << 62


def most_alive(plan: Plan, device: int = 0) -> int:
    """Return the most bytes of temporaries that any execution holds on a device at once.

    Sizes are rounded up to `ALIGNMENT`. Two buffers count once if one is written over the other in place.
    """
    written_over, over = _in_place(plan)
    network, taken = _Network(2 + len(plan.steps)), 0
    last: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for node, step in enumerate(plan.steps, 2):
        if step.lane in last:
            network.connect(node, last[step.lane], _ENDLESS)
        last[step.lane] = node
        match step:
            case Record():
                recorded[step.event] = node
            case Wait():
                network.connect(node, recorded[step.event], _ENDLESS)
            case Allocate() if _counts(plan, step.buffer, device) and step.buffer not in over:
                network.connect(0, node, _size(plan, step.buffer))
                taken += _size(plan, step.buffer)
            case Release() if _counts(plan, step.buffer, device) and step.buffer not in written_over:
                network.connect(node, 1, _size(plan, step.buffer))
            case _:
                pass
    return taken - network.flow()


def _counts(plan: Plan, buffer: int, device: int) -> bool:
    return plan.buffers[buffer].device == device and plan.buffers[buffer].role is Role.TEMPORARY


def _size(plan: Plan, buffer: int) -> int:
    return -(-plan.buffers[buffer].nbytes // ALIGNMENT) * ALIGNMENT


def _in_place(plan: Plan) -> tuple[set[int], set[int]]:
    """Return the buffers that are overwritten in place, and those written over them, by their offsets in the plan."""
    sources: set[int] = set()
    outs: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Execute):
            for out in step.instruction.writes:
                for source in step.instruction.reads:
                    shared = plan.offsets[source] == plan.offsets[out] >= 0 and plan.buffers[out].nbytes
                    if shared and source != out and plan.buffers[source].nbytes:
                        sources.add(source)
                        outs.add(out)
    return sources, outs


@final
@dataclass(slots=True)
class _Network:
    """Maximum flow from node 0 to node 1, by Dinic's algorithm."""

    nodes: int
    to: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)
    edges: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.edges = [[] for _ in range(self.nodes)]

    def connect(self, one: int, other: int, room: int) -> None:
        """Add an edge with capacity `room`, and its reverse with capacity 0."""
        for start, end, capacity in ((one, other, room), (other, one, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.room.append(capacity)

    def flow(self) -> int:
        """Return the maximum flow."""
        total = 0
        while (level := self._levels())[1] >= 0:
            tried = [0] * self.nodes
            while (sent := self._send(level, tried)) > 0:
                total += sent
        return total

    def _levels(self) -> list[int]:
        level = [-1] * self.nodes
        level[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                if self.room[edge] and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[node] + 1
                    queue.append(self.to[edge])
        return level

    def _send(self, level: list[int], tried: list[int]) -> int:
        """Send flow along one shortest path. Iterative, because a path may be as long as the plan."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self.edges[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if self.room[edge] and level[self.to[edge]] == level[node] + 1:
                    break
                tried[node] += 1
            else:
                if not path:
                    return 0
                node = self.to[path.pop() ^ 1]
                tried[node] += 1
                continue
            path.append(edge)
            node = self.to[edge]
        sent = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= sent
            self.room[edge ^ 1] += sent
        return sent
