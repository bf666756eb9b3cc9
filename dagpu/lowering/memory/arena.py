"""The arena of one device, while buffers are placed in it.

A released block is kept whole, by lane and size, with the number of the step that released it: the next buffer usually
has the same size, and then no search is needed. A lane first takes its own latest block, which may still be in a cache,
else the earliest block of another lane whose release its clock covers. Only if there is no such block, and blocks of
several sizes are free, do all free blocks become holes, which `FreeList` merges and splits.
"""

from collections import deque
from typing import TypeAlias, final

from dagpu.lowering.memory.free_list import FreeList
from dagpu.lowering.vector_clock import Clock

_Freed: TypeAlias = dict[int, deque[tuple[int, int]]]
"""Free blocks of one lane by size: step of the release and offset, in the order of the releases."""


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
