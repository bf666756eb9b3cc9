"""`ListSchedule`: places and orders a program by running it, in a cost model, on the streams that there are.

List scheduling: whenever a stream is free and something is ready, something starts. What is ready goes by rank:

1. The first attempt ranks by program order. A trace goes depth first, so this finishes one branch before it
   begins the next, and holds little memory. It stands if it comes within `_GOOD` of the lower bound.
2. The second ranks by the longest path that remains (critical path first), and the faster of the two stands.
3. In both of these a *leaf* (something with no producer, such as the `zeros` of the next step of a loop) is held back
   until the other producers of what takes it have started: sooner, it would only hold memory. Where that is too slow,
   a third attempt does not, and stands if that pays.

In all, an instruction whose one follower has no other producer hands its stream on to that follower: a chain stays
on one stream, with no wait.

With chains taken as single tasks, list scheduling on m equal machines is within 2 - 1/m of max(critical path,
work / m): R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969). Holding leaves
back is no part of his argument, so where his bound is passed, the third attempt stands if it is any faster.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import neg
from typing import Final, TypeAlias, final

from dagpu.lowering.cost import COMPUTE, ENGINES, UPLOAD, CostModel, engine_of
from dagpu.lowering.policies import check_limit, owned_by
from dagpu.lowering.program import Program

_GOOD: Final = 1.05
"""Of the lower bound: a schedule that is as fast as this needs no further attempt. Also by how much one that holds more
memory has to be faster."""

_ANYWHERE: Final = -1
"""The pool of what another policy places, on a stream that is not known here: it starts as soon as it can."""

_Arranged: TypeAlias = tuple[Sequence[Hashable], Sequence[int] | None]


@final
@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Critical path first, over `streams` streams of each device; the default policy.

    Kernels, fills and host calls run on streams 0 to `streams - 1`. Where a program is more than one chain, copies
    from the host have stream `streams` to themselves, and copies to the host the one after it, so that they overlap
    with the rest. Work goes on where one of its producers ran, if that is free.

    `costs` says how long instructions take: `CostModel().declare({"gemm": 3e-5})` where you know better.
    """

    streams: int = 4
    costs: CostModel = field(default_factory=CostModel)
    memory_limit: int | None = None
    """Bytes that a run may take beyond its inputs: streams are given up until it fits."""

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise ValueError(
                f"ListSchedule(streams={self.streams}) has no stream to place work on; "
                "give at least 1 (the default is 4)"
            )
        check_limit(self.memory_limit, "ListSchedule")

    def place(self, program: Program) -> Sequence[Hashable]:
        return self.arrange(program)[0]

    def arrange(self, program: Program) -> _Arranged:
        """The lane key of each instruction, and the order in which the instructions start; None for program order.

        Each instruction stands after all that it depends on. Time: O(n log n), with a small constant before the log.
        """
        if _is_chain(program):
            return (0,) * len(program.instructions), None
        graph = _Graph(program, self.costs.times(program), owned_by(program, self))
        lower, graham = graph.bounds(self.streams)
        best = _Run(graph, self.streams, list(range(graph.count)), hold_back=True)
        if best.makespan > _GOOD * lower:
            ranked = graph.by_path()
            other = _Run(graph, self.streams, ranked, hold_back=True)
            if other.makespan < best.makespan:
                best = other
            if graph.gate and best.makespan > _GOOD * lower:
                other = _Run(graph, self.streams, ranked, hold_back=False)
                if other.makespan <= min(best.makespan, max(graham, best.makespan / _GOOD)):
                    best = other
        return best.keys, best.order


def _is_chain(program: Program) -> bool:
    """Does each instruction take up what the one before has written, all on one device? Gives up at the first that
    does not."""
    if len(set(program.policy_of)) > 1:
        return False
    before: tuple[int, ...] | None = None
    device = program.instructions[0].device if program.instructions else 0
    for instruction in program.instructions:
        writes = instruction.writes
        if before is not None:
            if instruction.device != device:
                return False
            for buffer in before:
                if buffer in instruction.reads or buffer in writes:
                    break
            else:
                return False
        before = writes
    return True


@final
class _Graph:
    """What depends on what, by whole buffers, and where it may run."""

    __slots__ = ("after", "count", "devices", "feeds", "gate", "leaves_of", "pool", "producers", "rest", "times")

    def __init__(self, program: Program, times: list[float], owned: list[bool]) -> None:
        self.times = times
        self.count = count = len(times)
        self.devices = len(program.devices)
        all_owned = all(owned)
        self.pool = [
            i.device * ENGINES + engine_of(i) if all_owned or owned[policy] else _ANYWHERE
            for i, policy in zip(program.instructions, program.policy_of, strict=True)
        ]
        self.after: list[list[int]] = [[] for _ in range(count)]
        """The instructions that depend on each one, directly; without those that only follow from others, mostly."""
        self.producers = [0] * count
        """How many instructions each depends on, directly."""
        self.leaves_of: dict[int, list[int]] = {}
        """The leaves that are held back for an instruction."""
        self.feeds: dict[int, list[int]] = {}
        """The instructions with leaves that an instruction is a producer of."""
        self.gate: dict[int, int] = {}
        """How many such producers an instruction with leaves has."""
        self.rest: list[float] = []
        self._connect(program)
        self._measure()

    def _connect(self, program: Program) -> None:
        after, producers = self.after, self.producers
        writer = [-1] * len(program.buffers)
        readers: list[list[int]] = [[] for _ in program.buffers]  # since the last write
        for index, instruction in enumerate(program.instructions):
            before = [writer[buffer] for buffer in instruction.reads if writer[buffer] >= 0]
            for buffer in instruction.writes:
                # Readers lie after the last write: where there are any, they stand for it.
                if readers[buffer]:
                    before.extend(readers[buffer])
                    readers[buffer] = []
                elif writer[buffer] >= 0:
                    before.append(writer[buffer])
                writer[buffer] = index
            for buffer in instruction.reads:
                if writer[buffer] != index:
                    readers[buffer].append(index)
            if before:
                if len(before) > 1:
                    before = list(dict.fromkeys(before))
                    self._hold_back(index, before)
                producers[index] = len(before)
                for earlier in before:
                    after[earlier].append(index)

    def _hold_back(self, index: int, before: list[int]) -> None:
        """Note which of the producers `before` of an instruction are leaves that wait for the others to start.

        A leaf belongs to the first that takes it. Copies are no leaves: they have a stream to run ahead on.
        """
        producers, pool = self.producers, self.pool
        leaves = [leaf for leaf in before if not producers[leaf] and not self.after[leaf] and pool[leaf] % ENGINES == 0]
        if leaves:
            others = [earlier for earlier in before if producers[earlier]]
            if others:
                self.leaves_of[index] = leaves
                self.gate[index] = len(others)
                for earlier in others:
                    self.feeds.setdefault(earlier, []).append(index)

    def _measure(self) -> None:
        """`rest`: for each instruction, the seconds of the longest path from its start."""
        rest = self.rest = self.times.copy()
        after = self.after
        for index in range(self.count - 1, -1, -1):
            longest = 0.0
            for later in after[index]:
                if rest[later] > longest:
                    longest = rest[later]
            rest[index] += longest

    def bounds(self, streams: int) -> tuple[float, float]:
        """What no schedule can beat, and what list scheduling never passes; seconds.

        The first: the critical path, or what one pool has to do, shared out over its streams. The second: Graham's
        argument with several pools. At any moment either the longest chain goes on, or the pool that it needs is
        full; so it is the sum of the pools' shares, and of the path what a pool's other streams leave over.
        """
        work: dict[int, float] = {}
        for pool, seconds in zip(self.pool, self.times, strict=True):
            if pool != _ANYWHERE:
                work[pool] = work.get(pool, 0.0) + seconds
        shares = [total / (streams if pool % ENGINES == COMPUTE else 1) for pool, total in work.items()]
        path = max(self.rest, default=0.0)
        alone = 0.0 if _ANYWHERE in self.pool else 1 / streams
        return max([path, *shares]), sum(shares) + path * (1 - alone)

    def by_path(self) -> list[int]:
        """The instructions by falling `rest`, then in program order."""
        return sorted(range(self.count), key=list(map(neg, self.rest)).__getitem__)


@final
class _Run:
    """One attempt: the program run in the model. `ranked` holds the instructions, the first to go first."""

    __slots__ = (
        "_events", "_gate", "_graph", "_idle", "_missing", "_rank", "_ranked", "_ready", "_toward", "_unbound", "keys",
        "makespan", "order",
    )  # fmt: skip

    def __init__(self, graph: _Graph, streams: int, ranked: list[int], *, hold_back: bool) -> None:
        self._graph = graph
        self._ranked = ranked
        self._rank = [0] * graph.count
        for rank, index in enumerate(ranked):
            self._rank[index] = rank
        self._missing = graph.producers.copy()
        self._gate = graph.gate.copy() if hold_back else {}
        self._toward = [-1] * graph.count
        """The place in `order` of the latest producer in the same pool."""
        self._events: list[tuple[float, int]] = []
        """When what is under way ends, with its place in `order`."""
        self._ready: list[list[int]] = [[] for _ in range(graph.devices * ENGINES)]
        """For each pool a heap of ranks."""
        self._idle = [_streams_of(pool % ENGINES, streams) for pool in range(graph.devices * ENGINES)]
        """For each pool its free streams; the last to come free is the next to be taken, so that few are used."""
        self._unbound: list[int] = []
        """What is ready and belongs to no pool."""
        self.keys = [0] * graph.count
        self.order: list[int] = []
        self.makespan = self._run()

    def _run(self) -> float:
        """Seconds until all is done."""
        gated = {leaf for index in self._gate for leaf in self._graph.leaves_of[index]}
        for index, producers in enumerate(self._missing):
            if not producers and index not in gated:
                self._offer(index)
        used = sorted({pool for pool in self._graph.pool if pool != _ANYWHERE})
        events, now = self._events, 0.0
        while True:
            while self._unbound:
                self._start(self._unbound.pop(), 0, now)
            for pool in used:
                if self._ready[pool] and self._idle[pool]:
                    self._dispatch(pool, now)
            if not events:
                return now
            now = events[0][0]
            while events and events[0][0] <= now:
                self._finish(heappop(events)[1], now)

    def _offer(self, index: int) -> None:
        """It is ready."""
        pool = self._graph.pool[index]
        if pool == _ANYWHERE:
            self._unbound.append(index)
        else:
            heappush(self._ready[pool], self._rank[index])

    def _start(self, index: int, key: int, now: float) -> None:
        graph = self._graph
        heappush(self._events, (now + graph.times[index], len(self.order)))
        self.order.append(index)
        self.keys[index] = key
        if self._gate and index in graph.feeds:
            for fed in graph.feeds[index]:
                self._gate[fed] -= 1
                if not self._gate[fed]:
                    for leaf in graph.leaves_of[fed]:
                        self._offer(leaf)

    def _finish(self, position: int, now: float) -> None:
        """Free its stream, or go on with it."""
        graph = self._graph
        index = self.order[position]
        pool, followers = graph.pool[index], graph.after[index]
        missing, toward = self._missing, self._toward
        for later in followers:
            missing[later] -= 1
            if graph.pool[later] == pool:
                if toward[later] < position:
                    toward[later] = position
                if graph.producers[later] == 1 == len(followers):
                    self._start(later, self.keys[index], now)
                    return
            if not missing[later]:
                self._offer(later)
        if pool != _ANYWHERE:
            self._idle[pool].append(self.keys[index])

    def _dispatch(self, pool: int, now: float) -> None:
        """Start as much of what is ready as there are free streams: by rank, and then each where it fits best."""
        ready, idle = self._ready[pool], self._idle[pool]
        ranked, toward, order, keys = self._ranked, self._toward, self.order, self.keys
        while ready and idle:
            elsewhere: list[int] = []
            for _ in range(min(len(ready), len(idle))):
                index = ranked[heappop(ready)]
                producer = toward[index]
                if producer >= 0 and (key := keys[order[producer]]) in idle:
                    idle.remove(key)
                    self._start(index, key, now)
                else:
                    elsewhere.append(index)
            for index in elsewhere:
                self._start(index, idle.pop(), now)


def _streams_of(engine: int, streams: int) -> list[int]:
    """The keys of the streams of a pool, the first to be used last."""
    if engine == COMPUTE:
        return list(range(streams - 1, -1, -1))
    return [streams if engine == UPLOAD else streams + 1]
