"""One device's arena while buffers are put into it.

Bytes that a lane has released are kept whole, by lane and size, with the number of the step that released them: mostly
they go to a buffer of that very size next, which takes no search. A lane takes its own latest first (they may still be
in a cache), else the earliest of another lane, if its clock covers that. Only where there are none for a buffer, and
bytes of several sizes are free, does all that is free become holes, which `Space` joins and cuts.
"""

from collections import deque
from typing import TypeAlias, final

from dagpu.lowering.holes import Space
from dagpu.lowering.order import Clock

_Freed: TypeAlias = dict[int, deque[tuple[int, int]]]
"""By bytes: the step of each release and where it lies, in the order of the releases."""


@final
class Arena:
    """The bytes of one arena. Sizes given and taken are aligned."""

    __slots__ = ("_freed", "_has_freed", "_one_size", "_space")

    def __init__(self, lanes: int) -> None:
        self._space = Space(lanes)
        self._freed: list[_Freed] = [{} for _ in range(lanes)]
        self._has_freed = [False] * lanes
        """Has this lane ever released anything?"""
        self._one_size = 0
        """Of all that is free, while no hole has been made of it; -1 for several, 0 for none."""

    @property
    def top(self) -> int:
        """Where the arena ends."""
        return self._space.top

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Bytes for a buffer that `lane`, whose clock is given, allocates; their offset."""
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
        # A stream of copies in waits for nobody: no hole is for it.
        if not usable or self._one_size == nbytes:
            self._space.top += nbytes
            return self._space.top - nbytes
        self._one_size = -1
        for number, freed in enumerate(self._freed):
            self._give_all(number, freed)
        return self._space.take(lane, clock, nbytes)

    def give(self, start: int, nbytes: int, lane: int, number: int) -> None:
        """Step `number` of `lane` releases these bytes."""
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
        """Let what a lane has released become holes."""
        for nbytes, released in freed.items():
            for number, start in released:
                self._space.give(start, nbytes, lane, number)
        freed.clear()
