"""One device's arena while buffers are put into it: which bytes are free, and for which lanes.

A hole is free bytes and the release that freed them, as a lane and the number of a step. A lane may use the hole once
its clock covers that step. Neighbouring holes of one lane are one hole, with the later of the two releases.

Invariants:
    holes do not overlap, and none reaches beyond `top`
    _ends[start + nbytes] == start          for each hole
    (number, start) in _heaps[lane][nbytes] for each hole, and nbytes in _sizes[lane], which is sorted
What lies in a heap and is no hole of that number any more is thrown out when it is met.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import Final, TypeAlias, final

from dagpu.lowering.order import Clock

SEARCH: Final = 8
"""How many sizes of holes are looked at on each lane before bytes are taken elsewhere."""


_Hole: TypeAlias = tuple[int, int, int]
"""Bytes, and the lane and number of the release."""


@final
class Space:
    """The bytes of one arena. Sizes given and taken are aligned."""

    def __init__(self, lanes: int) -> None:
        self.top = 0
        """Where the arena ends."""
        self._holes: dict[int, _Hole] = {}
        self._ends: dict[int, int] = {}
        self._sizes: list[list[int]] = [[] for _ in range(lanes)]
        self._heaps: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(lanes)]

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Bytes for a buffer that `lane`, whose clock is given, allocates; their offset."""
        if not self._holes:
            self.top += nbytes
            return self.top - nbytes
        best = self._fit(lane, clock[lane], nbytes)
        if best is None or best[0] != nbytes:
            for other, sizes in enumerate(self._sizes):
                if sizes and other != lane and clock[other] >= 0:
                    found = self._fit(other, clock[other], nbytes)
                    if found is not None and (best is None or found[0] < best[0]):
                        best = found
        if best is not None:
            self._carve(best[1], nbytes)
            return best[1]
        return self._span(clock, nbytes)

    def give(self, start: int, nbytes: int, lane: int, number: int) -> None:
        """Step `number` of `lane` has released these bytes: a hole, together with its neighbours of that lane."""
        holes = self._holes
        after = holes.get(start + nbytes)
        if after is not None and after[1] == lane:
            self._remove(start + nbytes)
            number, nbytes = max(number, after[2]), nbytes + after[0]
        before = self._ends.get(start)
        if before is not None and holes[before][1] == lane:
            more, _, earlier = self._remove(before)
            number, start, nbytes = max(number, earlier), before, nbytes + more
        self._add(start, (nbytes, lane, number))

    def _fit(self, lane: int, known: int, nbytes: int) -> tuple[int, int] | None:
        """Size and start of the smallest hole of `lane`, freed by step `known` of it at the latest."""
        sizes, heaps, holes = self._sizes[lane], self._heaps[lane], self._holes
        at = bisect_left(sizes, nbytes)
        looked = 0
        while at < len(sizes) and looked < SEARCH:
            heap = heaps[sizes[at]]
            while heap:
                number, start = heap[0]
                hole = holes.get(start)
                if hole == (sizes[at], lane, number):
                    break
                heappop(heap)
            else:
                del heaps[sizes[at]]
                del sizes[at]
                continue
            if number <= known:
                return sizes[at], start
            at += 1
            looked += 1
        return None

    def _span(self, clock: Clock, nbytes: int) -> int:
        """No hole is large enough: neighbouring ones together, or those before the arena's end and what is missing."""
        for lane, sizes in enumerate(self._sizes if len(self._sizes) > 1 else ()):
            for size in sizes[: -SEARCH - 1 : -1]:
                heap = self._heaps[lane][size]
                if heap and self._usable(heap[0][1], clock):
                    found = self._join(heap[0][1], clock, nbytes)
                    if found >= 0:
                        return found
        start = self.top
        while (before := self._ends.get(start, -1)) >= 0 and self._usable(before, clock):
            start = before
        missing = nbytes - (self.top - start)
        self._clear(start, self.top)
        self.top += missing
        return start

    def _usable(self, start: int, clock: Clock) -> bool:
        hole = self._holes.get(start)
        return hole is not None and clock[hole[1]] >= hole[2]

    def _join(self, start: int, clock: Clock, nbytes: int) -> int:
        """Take bytes out of this hole and its neighbours that are usable; -1 where they are too few together."""
        last = end = start
        while end - start < nbytes and self._usable(end, clock):
            last, end = end, end + self._holes[end][0]
        if end - start >= nbytes:
            rest = self._holes[last]
            self._clear(start, end)
            if end > start + nbytes:
                self._add(start + nbytes, (end - start - nbytes, rest[1], rest[2]))
            return start
        while end - start < nbytes and (before := self._ends.get(start, -1)) >= 0 and self._usable(before, clock):
            start = before
        if end - start < nbytes:
            return -1
        rest = self._holes[start]
        self._clear(start, end)
        if end > start + nbytes:
            self._add(start, (end - start - nbytes, rest[1], rest[2]))
        return end - nbytes

    def _carve(self, start: int, nbytes: int) -> None:
        """Take the first bytes of a hole."""
        hole = self._remove(start)
        if hole[0] > nbytes:
            self._add(start + nbytes, (hole[0] - nbytes, hole[1], hole[2]))

    def _clear(self, start: int, end: int) -> None:
        while start < end:
            start += self._remove(start)[0]

    def _add(self, start: int, hole: _Hole) -> None:
        nbytes, lane, number = hole
        self._holes[start] = hole
        self._ends[start + nbytes] = start
        heap = self._heaps[lane].get(nbytes)
        if heap is None:
            self._heaps[lane][nbytes] = [(number, start)]
            insort(self._sizes[lane], nbytes)
        else:
            heappush(heap, (number, start))

    def _remove(self, start: int) -> _Hole:
        hole = self._holes.pop(start)
        del self._ends[start + hole[0]]
        return hole
