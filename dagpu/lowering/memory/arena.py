"""The arena of one device, while buffers are placed in it.

A released block is kept whole, by lane and size, with the number of the step that released it: the next buffer usually
has the same size, and then no search is needed. A lane first takes its own latest block, which may still be in a cache,
else the earliest block of another lane whose release its clock covers. Only if there is no such block, and blocks of
several sizes are free, do all free blocks become holes, which `FreeList` merges and splits.

A hole is a range of free bytes with the release that freed it, as a lane and the number of a step. A lane may use the
hole once its clock covers that step. Neighbouring holes of one lane are merged, with the later of the two releases.
"""

from bisect import bisect_left, insort
from collections import deque
from heapq import heappop, heappush
from typing import Final, TypeAlias, final

from dagpu.lowering.vector_clock import Clock

_Freed: TypeAlias = dict[int, deque[tuple[int, int]]]
"""Free blocks of one lane by size: step of the release and offset, in the order of the releases."""

SEARCH: Final = 8
"""Number of sizes of holes that are tried on each lane before bytes are taken elsewhere."""


_Hole: TypeAlias = tuple[int, int, int]
"""Size in bytes, and the lane and the step of the release."""


@final
class FreeList:
    """The free bytes of one arena, and the lanes that may use them. All sizes are multiples of the alignment.

    Invariants:
        holes do not overlap, and none reaches beyond `top`
        _ends[start + nbytes] == start          for each hole
        (number, start) in _heaps[lane][nbytes] for each hole, and nbytes in _sizes[lane], which is sorted
    An entry of a heap whose hole has gone or changed is deleted when it comes to the top.
    """

    def __init__(self, lanes: int) -> None:
        self.top = 0
        """Size of the arena so far: the end of its last block."""
        self._holes: dict[int, _Hole] = {}
        self._ends: dict[int, int] = {}
        self._sizes: list[list[int]] = []
        self._heaps: list[dict[int, list[tuple[int, int]]]] = []
        for _ in range(lanes):
            self._sizes.append([])
            self._heaps.append({})

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Take bytes for a buffer that `lane` allocates while its clock is `clock`, and return their offset."""
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
        """Add bytes that step `number` of `lane` has released, merged with neighbouring holes of that lane."""
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
        """Return size and start of the smallest hole of `lane` that its steps up to `known` have freed, if any."""
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
        """Take bytes where no hole is large enough: from several neighbouring holes, or by extending the arena.

        The arena is extended from the usable holes at its end, by the bytes that are missing.
        """
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
        """Return whether a hole starts there that a lane with this clock may use."""
        hole = self._holes.get(start)
        return hole is not None and clock[hole[1]] >= hole[2]

    def _join(self, start: int, clock: Clock, nbytes: int) -> int:
        """Take bytes from this hole and its usable neighbours, and return the offset; -1 if these are too small."""
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
        """Take the first bytes of a hole, and leave the rest as a hole."""
        hole = self._remove(start)
        if hole[0] > nbytes:
            self._add(start + nbytes, (hole[0] - nbytes, hole[1], hole[2]))

    def _clear(self, start: int, end: int) -> None:
        """Remove all holes of a range that consists of holes."""
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


@final
class Arena:
    """The bytes of one arena. All sizes are multiples of the alignment."""

    __slots__ = ("_freed", "_has_freed", "_one_size", "_space")

    def __init__(self, lanes: int) -> None:
        self._space = FreeList(lanes)
        self._freed: list[_Freed] = [{} for _ in range(lanes)]
        self._has_freed = [False] * lanes
        """For each lane, whether it has released a block."""
        self._one_size = 0
        """Common size of all released blocks while there are no holes; 0 for no blocks, -1 for several sizes."""

    @property
    def top(self) -> int:
        """Size of the arena so far: the end of its last block."""
        return self._space.top

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Take bytes for a buffer that `lane` allocates while its clock is `clock`, and return their offset."""
        own = self._freed[lane].get(nbytes)
        if own:
            return own.pop()[1]
        usable = False
        for known, some, freed in zip(clock, self._has_freed, self._freed, strict=True):
            if some and known >= 0:
                usable = True
                there = freed.get(nbytes)
                if there and there[0][0] <= known:
                    return there.popleft()[1]
        # The stream of copies from the host waits for no other lane, so it may use no hole.
        if not usable or self._one_size == nbytes:
            self._space.top += nbytes
            return self._space.top - nbytes
        self._one_size = -1
        for number, freed in enumerate(self._freed):
            self._give_all(number, freed)
        return self._space.take(lane, clock, nbytes)

    def give(self, start: int, nbytes: int, lane: int, number: int) -> None:
        """Give bytes back that step `number` of `lane` releases."""
        self._has_freed[lane] = True
        if nbytes != self._one_size:
            self._one_size = -1 if self._one_size else nbytes
        freed = self._freed[lane]
        there = freed.get(nbytes)
        if there is None:
            freed[nbytes] = deque(((number, start),))
        else:
            there.append((number, start))

    def _give_all(self, lane: int, freed: _Freed) -> None:
        """Turn all blocks that a lane has released into holes."""
        for nbytes, released in freed.items():
            for number, start in released:
                self._space.give(start, nbytes, lane, number)
        freed.clear()
