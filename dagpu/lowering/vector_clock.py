"""Vector clocks: the happens-before order of work on several lanes.

Work is numbered by one counter that grows along every lane (the index of an instruction, or of a step). The clock of
lane n has one entry for each lane m: the number of the last work of m that happens before the next work of n. The entry
is -1 if there is none, and `END` for m = n. So work `a` of lane m happens before the next work of lane n exactly when
`current[n][m] >= a`.

A clock changes only when its lane waits. The list is then replaced, never changed in place. So the clock at a piece of
work can be kept as a reference to the list that its lane had at the time.
"""

import sys
from collections.abc import Sequence
from typing import TypeAlias, final

from dagpu.lowering.plan import Record, Step, Wait

Clock: TypeAlias = list[int]

END = sys.maxsize
"""An entry of a clock that is greater than the number of any work."""


@final
class Clocks:
    """The current clock of each lane. The entries are the square of the number of lanes, which is small."""

    __slots__ = ("_first", "current")

    def __init__(self, lanes: int) -> None:
        self.current: list[Clock] = [[-1] * lanes for _ in range(lanes)]
        """The current clock of each lane, by the lane's index."""
        for lane, clock in enumerate(self.current):
            clock[lane] = END
        self._first = self.current.copy()
        """The clock of each lane before its first wait. It covers that lane alone."""

    def join(self, lane: int, other: int, at: int, clock: Clock) -> Clock:
        """Make `lane` wait for work number `at` of lane `other`, and return the new clock of `lane`. `clock` is the
        clock that `other` had at that work."""
        before = self.current[lane]
        if other == lane:
            return before
        if clock is self._first[other]:
            after = before.copy()
        else:
            # Calls of `max` take twice as long, and this line takes a tenth of the time of planning.
            after = [known if known > news else news for known, news in zip(before, clock, strict=True)]  # noqa: FURB136
        after[other] = max(before[other], at)  # clock[other] is END, yet the wait covers no later work
        self.current[lane] = after
        return after


def step_clocks(steps: Sequence[Step], lanes: int, events: int) -> list[Clock]:
    """Return, for each step of a plan, the clock of its lane when the step starts. Work is numbered by the index of the
    step.

    Each event must be recorded before it is waited for.
    """
    clocks = Clocks(lanes)
    if lanes == 1:
        return clocks.current * len(steps)
    recorded: list[tuple[int, int, Clock]] = [(-1, -1, [])] * events
    found: list[Clock] = []
    now = clocks.current
    for at, step in enumerate(steps):
        clock = now[step.lane]
        found.append(clock)
        if type(step) is Record:
            recorded[step.event] = step.lane, at, clock
        elif type(step) is Wait:
            clocks.join(step.lane, *recorded[step.event])
    return found
