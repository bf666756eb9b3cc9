"""Choices among ready lanes: an exploration chooses the lane of each step by a seed or from a list."""

import random
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, final

from dagpu.common.errors import PlanError

_FIXED: Final = 1 / 16
"""Probability that a seed keeps its priorities for the whole run. It is small, as only lanes! such orders exist."""
_SLOWEST: Final = 5
"""Other priorities last for 1 to 2**_SLOWEST steps on average; the exponent is uniformly distributed."""
_SLOW: Final = 1 / 2
"""Probability that a device is held, whenever that is drawn."""
_HELD: Final = 7
"""A device is held for 1 to 2**_HELD steps; the exponent is uniformly distributed."""


class Choice(Protocol):
    """Chooses the lane of the next step among the ready lanes. At least one lane is ready."""

    def __call__(self, ready: Sequence[int]) -> int: ...


@final
class Seeded:
    """Chooses by random priorities of the lanes, which are redrawn from time to time.

    A missing wait shows only if one lane runs far ahead of another. A fair choice at each step hardly ever does that.
    So the seed also determines how long priorities last. This follows Burckhardt et al., A Randomized Scheduler with
    Probabilistic Guarantees of Finding Bugs (ASPLOS 2010), where a race between two steps shows with a probability of
    at least 1 / lanes in a run with fixed priorities.
    """

    __slots__ = ("_devices", "_left", "_number", "_priority", "_random", "_rate", "_slow")

    def __init__(self, seed: int, lanes: int, devices: Sequence[int] = ()) -> None:
        """`devices` has the device of each lane. If there are several, one of them is slow from time to time: all its
        lanes are held for 1 to 2**_HELD steps, unless no other lane is ready."""
        self._random = random.Random(seed).random
        self._devices = devices
        self._number = len({*devices})
        self._slow, self._left = -1, 0
        self._rate = 0.0 if self._random() < _FIXED else 2.0 ** (-_SLOWEST * self._random())
        self._priority = [self._random() for _ in range(lanes)]

    def __call__(self, ready: Sequence[int]) -> int:
        if self._number > 1:
            ready = self._without_slow(ready)
        if len(ready) == 1:
            return ready[0]
        if self._random() < self._rate:
            draw = self._random
            self._priority = [draw() for _ in self._priority]
        return max(ready, key=self._priority.__getitem__)

    def _without_slow(self, ready: Sequence[int]) -> Sequence[int]:
        """Return the ready lanes without those of the slow device; all of them if there are no others."""
        if not self._left:
            draw, found = self._random, sorted({*self._devices})
            self._slow = found[int(draw() * len(found))] if draw() < _SLOW else -1
            self._left = int(2.0 ** (_HELD * draw()))
        self._left -= 1
        return [lane for lane in ready if self._devices[lane] != self._slow] or ready


@final
class Listed:
    """Chooses the lanes of a list, one for each step, and the lowest ready lane after the end of the list."""

    __slots__ = ("_lanes", "_taken")

    def __init__(self, lanes: Iterable[int]) -> None:
        self._lanes = tuple(lanes)
        self._taken = 0

    @property
    def coming(self) -> int:
        """The lane of the next step; -1 at the end of the list."""
        return self._lanes[self._taken] if self._taken < len(self._lanes) else -1

    def __call__(self, ready: Sequence[int]) -> int:
        lane = self.coming
        if lane < 0:
            return min(ready)
        self._taken += 1
        if lane not in ready:
            raise PlanError(
                f"choices[{self._taken - 1}] is lane {lane}, which may not go on there: it is at its end or waits for "
                f"an event. Those that may: {sorted(ready)}. Choices belong to the plan they were made for."
            )
        return lane
