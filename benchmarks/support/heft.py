"""HEFT and PEFT, from their papers, for devices that are alike: what placements of ours are held against.

- HEFT: H. Topcuoglu, S. Hariri and M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
  heterogeneous computing", IEEE TPDS 13, 2002. Tasks by descending upward rank, in which an edge counts as long as it
  takes between two processors; each on the processor where it ends first, if need be in a gap between two others
  (insertion).
- PEFT: H. Arabnejad and J. G. Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost
  table", IEEE TPDS 25, 2014. Ready tasks by the mean of their optimistic costs; each on the processor with the least
  sum of its end and its optimistic cost there. The costs of a task are the same on all processors that are alike.

Neither knows that copies share a link. A schedule is compared by what the cost model makes of its order and devices.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import final


@final
@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule of tasks on processors."""

    order: list[int]
    """The tasks by their begins."""
    processors: list[int]
    """For each task, its processor."""
    makespan: float
    """Seconds until everything is done, by the paper's own model."""


def heft(times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float], count: int) -> ListedSchedule:
    """Return the schedule of HEFT on `count` processors. `edges` has for each task the seconds in which its result is
    sent to another processor."""
    rank = _ranks(times, before, edges)
    ranked = sorted(range(len(times)), key=lambda task: (-rank[task], task))
    slots = _Slots(times, before, edges, count)
    for task in ranked:
        slots.put(task)
    return slots.schedule(rank)


def peft(times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float], count: int) -> ListedSchedule:
    """Return the schedule of PEFT on `count` processors; the arguments are those of `heft`.

    The optimistic cost of a task is the longest path behind it, each successor on the processor that is best for it: of
    processors that are alike, the same one, where nothing is sent.
    """
    rest = _ranks(times, before, [0.0] * len(times))
    cost = [path - own for path, own in zip(rest, times, strict=True)]
    after: list[list[int]] = [[] for _ in times]
    for task, found in enumerate(before):
        for earlier in found:
            after[earlier].append(task)
    missing = list(map(len, before))
    ready = [(-cost[task], task) for task, count_before in enumerate(missing) if not count_before]
    heapify(ready)
    slots = _Slots(times, before, edges, count)
    while ready:
        _, task = heappop(ready)
        slots.put(task)
        for later in after[task]:
            missing[later] -= 1
            if not missing[later]:
                heappush(ready, (-cost[later], later))
    return slots.schedule(rest)


def _ranks(times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float]) -> list[float]:
    """Return for each task the longest path from its begin, edges included. Tasks come after their predecessors."""
    rank = list(times)
    for task in range(len(rank) - 1, -1, -1):
        for earlier in before[task]:
            rank[earlier] = max(rank[earlier], times[earlier] + edges[earlier] + rank[task])
    return rank


@final
class _Slots:
    """A schedule under construction, with the gaps between the tasks of each processor."""

    def __init__(
        self, times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float], count: int
    ) -> None:
        self._times = times
        self._before = before
        self._edges = edges
        self._taken: list[list[tuple[float, float, int]]] = [[] for _ in range(count)]
        """For each processor the begin, end and number of its tasks, sorted."""
        self._begin = [0.0] * len(times)
        self._end = [0.0] * len(times)
        self._processor = [-1] * len(times)

    def put(self, task: int) -> None:
        """Put a task on the processor where it ends first."""
        best, chosen = float("inf"), 0
        for processor, taken in enumerate(self._taken):
            ready = 0.0
            for earlier in self._before[task]:
                sent = 0.0 if self._processor[earlier] == processor else self._edges[earlier]
                ready = max(ready, self._end[earlier] + sent)
            begin = self._gap(taken, ready, self._times[task])
            if begin < best:
                best, chosen = begin, processor
        self._begin[task], self._end[task] = best, best + self._times[task]
        self._processor[task] = chosen
        insort(self._taken[chosen], (best, self._end[task], task))

    @staticmethod
    def _gap(taken: list[tuple[float, float, int]], ready: float, seconds: float) -> float:
        """Return the first time from `ready` on at which a processor is idle for so long."""
        begin = ready
        for start, end, _ in taken:
            if start - begin >= seconds:
                return begin
            begin = max(begin, end)
        return begin

    def schedule(self, rank: Sequence[float]) -> ListedSchedule:
        """Return the schedule. Of tasks that begin at once, the one with the longer path comes first."""
        order = sorted(range(len(self._times)), key=lambda task: (self._begin[task], -rank[task], task))
        return ListedSchedule(order, self._processor, max(self._end, default=0.0))
