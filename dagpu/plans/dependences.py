"""Dependences between the instructions of a program, by whole buffers, and the graph that list scheduling uses."""

from collections.abc import Sequence
from operator import neg
from typing import Final, final

from dagpu.plans.cost_model import COMPUTE, ENGINE_OF, ENGINES, PEER_IN, peer_of, without_engines
from dagpu.plans.program import CopyDtoD, Program

ANYWHERE: Final = -1
"""Pool of an instruction that another policy places, on an unknown stream: it starts as soon as it is ready."""


@final
class Dependences:
    """Dependence graph of a program, with the time and the pool of each instruction.

    Each engine of a device has a *pool* of streams.
    """

    def __init__(
        self,
        program: Program,
        times: list[float],
        own: Sequence[bool] | None = None,
        *,
        ports: int = 1,
        unknown: Sequence[bool] | None = None,
    ) -> None:
        """`own` says for each instruction whether the policy places it; None if it places all. `ports` is that of the
        links between devices."""
        self.times = times
        """Seconds of each instruction."""
        self.unknown = [False] * len(times) if unknown is None else unknown
        """For each instruction, whether it may take much longer than that."""
        self.count = count = len(times)
        self.devices = len(program.devices)
        self.ports = ports
        """Number of copies between devices that a device sends at once, and that it receives at once."""
        self.pool: list[int] = []
        """The pool of each instruction; `ANYWHERE` if another policy places it."""
        self.sender: dict[int, int] = {}
        """For each copy between two devices, the device that it comes from."""
        without = without_engines(program.devices)
        for index, instruction in enumerate(program.instructions):
            engine = ENGINE_OF.get(type(instruction), COMPUTE)
            if engine and without[instruction.device]:
                engine = COMPUTE
            if type(instruction) is CopyDtoD and (peer := peer_of(instruction, program.buffers)) >= 0:
                engine, self.sender[index] = PEER_IN, peer
            is_own = own is None or own[index]
            self.pool.append(instruction.device * ENGINES + engine if is_own else ANYWHERE)
        self.after: list[list[int]] = [[] for _ in range(count)]
        """For each instruction, its direct successors; most transitive ones are left out."""
        self.producers = [0] * count
        """Number of direct predecessors of each instruction."""
        self.leaves_of: dict[int, list[int]] = {}
        """For an instruction, the leaves that are held back for it."""
        self.feeds: dict[int, list[int]] = {}
        """For an instruction, its consumers that have leaves held back."""
        self.gate: dict[int, int] = {}
        """For an instruction with leaves held back, the number of its other producers."""
        self.rest: list[float] = []
        """For each instruction, the seconds of the longest path from its start."""
        self.work: dict[int, float] = {}
        """For each pool that has work, the sum of its seconds."""
        self._connect(program)
        self._measure()

    def _connect(self, program: Program) -> None:
        """Fill in `after`, `producers`, and the tables of leaves."""
        after, producers = self.after, self.producers
        for index, found in enumerate(program.accesses.predecessors):
            if not found:
                continue
            before = found
            if len(found) > 1:
                before = list(dict.fromkeys(found))
                self._hold_back(index, before)
            producers[index] = len(before)
            for earlier in before:
                after[earlier].append(index)

    def _hold_back(self, index: int, before: list[int]) -> None:
        """Note the leaves among the producers `before` of an instruction: they wait until the others start.

        A leaf belongs to its first consumer. A copy is not a leaf, because it has a stream of its own to run ahead on.
        """
        leaves: list[int] = []
        others: list[int] = []
        for earlier in before:
            if self.producers[earlier]:
                others.append(earlier)
            elif not self.after[earlier] and self.pool[earlier] % ENGINES == COMPUTE:
                leaves.append(earlier)
        if leaves and others:
            self.leaves_of[index] = leaves
            self.gate[index] = len(others)
            for earlier in others:
                self.feeds.setdefault(earlier, []).append(index)

    def _measure(self) -> None:
        """Fill in `rest` and `work`."""
        work = dict.fromkeys(sorted(set(self.pool) - {ANYWHERE}), 0.0)
        for pool, seconds in zip(self.pool, self.times, strict=True):
            if pool >= 0:
                work[pool] += seconds
        self.work = work
        rest = self.rest = self.times.copy()
        after = self.after
        for index in range(self.count - 1, -1, -1):
            longest = 0.0
            for later in after[index]:
                if rest[later] > longest:
                    longest = rest[later]
            rest[index] += longest

    def bounds(self, streams: int) -> tuple[float, float]:
        """Return a lower bound on every makespan, and Graham's upper bound on that of list scheduling, in seconds.

        The lower bound is the larger of the critical path and the largest work of a pool, shared out over its streams.
        The upper bound applies Graham's argument to several pools. At any moment either the longest chain proceeds, or
        the pool that it needs is full. So it is the sum of the pools' shares and of the part (1 - 1 / `streams`) of the
        critical path.
        """
        path = lower = max(self.rest, default=0.0)
        upper = path * (1 - (0.0 if ANYWHERE in self.pool else 1 / streams))
        for pool, total in self.work.items():
            share = total / streams_of(pool, streams, self.ports)
            lower = max(lower, share)
            upper += share
        return lower, upper

    def by_path(self) -> list[int]:
        """Return the instructions sorted by descending `rest`, then in program order."""
        return sorted(range(self.count), key=list(map(neg, self.rest)).__getitem__)


def streams_of(pool: int, streams: int, ports: int = 1) -> int:
    """Return the number of streams of a pool: `streams` for kernels, one for each of the `ports` of a link, and one for
    the copies from the host and for those to it."""
    engine = pool % ENGINES
    return streams if engine == COMPUTE else ports if engine == PEER_IN else 1
