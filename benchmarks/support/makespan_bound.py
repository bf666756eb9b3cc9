"""A lower bound on the makespan of a program in a cost model; benchmarks and tests compare schedules with it.

Every instruction has a *head*, the time before which it cannot start, and a *tail*, the time that has to follow it.
Both begin as longest paths. They grow by two limits that a path does not show: copies of one direction run one at a
time, and a device runs at most one instruction on each stream at once. If one pool of m streams executes a set S, the
last instruction of S ends no sooner than

    (least head of S) + (seconds of S) / m,       and then its tail has to follow.

So an instruction that needs all of S starts no sooner than that, plus the shortest of the paths from S to it. This is
the bound of J. Carlier for one machine ("The one-machine sequencing problem", European Journal of Operational Research
11, 1982), extended to m streams. The sets S that are tried consist of the instructions with the longest tails, or of
those with the latest heads.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.plans.cost_model import CostModel
from dagpu.plans.list_schedule import Dependences, streams_of
from dagpu.plans.program import Program

_Seconds: TypeAlias = NDArray[np.float64]

LARGEST: Final = 2_048
"""Most instructions of a program for which heads and tails count pools; that takes time in the square of them."""


@final
@dataclass(frozen=True, slots=True)
class MakespanBound:
    """Lower bounds on the makespan of every schedule of a program, in seconds of the cost model."""

    critical_path: float
    """Length of the longest chain of instructions that depend on each other."""
    work: float
    """Largest work of one device's streams (shared out evenly over them), or of one of its two copy engines."""
    between: float
    """Largest sum of head, work (shared out like that) and tail over the tried parts of that work; at least `work`."""

    @property
    def seconds(self) -> float:
        """The largest of the bounds."""
        return max(self.critical_path, self.between)


def lower_bound(program: Program, costs: CostModel, streams: int) -> MakespanBound:
    """Compute the bound for `streams` streams on each device, and one copy engine for each direction.

    In a program of more than `LARGEST` instructions, heads and tails are longest paths alone.
    """
    on = Dependences(program, costs.times(program), ports=costs.links.peer.ports)
    times: _Seconds = np.array(on.times, dtype=np.float64)
    before: list[list[int]] = [[] for _ in on.after]
    for index, later in enumerate(on.after):
        for follower in later:
            before[follower].append(index)
    last = on.count - 1
    mirrored = [[last - follower for follower in later] for later in reversed(on.after)]
    pools = {pool: np.flatnonzero(np.array(on.pool) == pool) for pool in on.work}
    shares = {pool: streams_of(pool, streams, on.ports) for pool in on.work}
    heads = _heads(before, times, [(shares[pool], found) for pool, found in pools.items()])
    tails = _heads(mirrored, times[::-1], [(shares[pool], last - found[::-1]) for pool, found in pools.items()])[::-1]
    between = max([_least(heads[m], times[m], tails[m], shares[p]) for p, m in pools.items()], default=0.0)
    path = max(on.rest, default=0.0)
    work = max([seconds / shares[pool] for pool, seconds in on.work.items()], default=0.0)
    return MakespanBound(path, work, max(between, float((heads + times + tails).max(initial=0.0))))


def _heads(before: list[list[int]], times: _Seconds, pools: "list[tuple[int, NDArray[Any]]]") -> _Seconds:
    """Return the head of each instruction, in seconds. `before` holds its direct predecessors."""
    count = len(times)
    heads: _Seconds = np.zeros(count)
    ways = [_Ways(members, times) for _, members in pools] if count <= LARGEST else []
    for index in range(count):
        head = max([heads[earlier] + times[earlier] for earlier in before[index]], default=0.0)
        for (streams, members), way in zip(pools, ways, strict=False):
            there, paths = way.to(index, before[index])
            found = members[there]
            head = max(head, _least(heads[found], times[found], paths, streams))
        heads[index] = head
    return heads


@final
class _Ways:
    """Longest path from the end of each instruction of one pool to the end of each instruction; -inf if none."""

    def __init__(self, members: "NDArray[Any]", times: _Seconds) -> None:
        self._place = {int(member): place for place, member in enumerate(members)}
        self._times = times
        self._to_end: _Seconds = np.full((len(times), len(members)), -math.inf)

    def to(self, index: int, before: list[int]) -> tuple["NDArray[Any]", _Seconds]:
        """Return the places in the pool of all that an instruction needs, and the paths from their ends to its start.

        Must be called for each instruction of the program, in order. `before` holds its direct predecessors.
        """
        paths = self._to_end[index]
        for earlier in before:
            np.maximum(paths, self._to_end[earlier], out=paths)
        there = np.flatnonzero(paths > -math.inf)
        found = paths[there]
        paths += self._times[index]
        if index in self._place:
            paths[self._place[index]] = 0.0
        return there, found


def _least(heads: _Seconds, times: _Seconds, tails: _Seconds, streams: int) -> float:
    """Return the least time until all of a set and its tails are done: the largest bound over the tried parts."""
    if not len(heads):
        return 0.0
    order = np.argsort(-tails, kind="stable")
    by_tail = np.minimum.accumulate(heads[order]) + np.cumsum(times[order]) / streams + tails[order]
    order = np.argsort(-heads, kind="stable")
    by_head = heads[order] + np.cumsum(times[order]) / streams + np.minimum.accumulate(tails[order])
    return float(max(by_tail.max(), by_head.max()))
