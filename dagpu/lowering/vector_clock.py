"""Vector clocks: the happens-before order of work on several lanes.

Work is numbered by one counter that grows along every lane (the index of an instruction, or of a step). A lane's clock
holds, for each lane, the number of the last work of that lane that happens before the first lane's next work: -1 for
none, `END` for the lane itself. So work `a` of lane `m` happens before the next work of lane `n` exactly when
`of[n][m] >= a`.

A clock changes only when a lane waits. Then the list is replaced, and never changed in place. So the clock at a
piece of work can be kept as a reference to the list that its lane had at the time.
"""

import sys
from collections.abc import Sequence
from typing import TypeAlias, final

from dagpu.lowering.plan import Record, Step, Wait

Clock: TypeAlias = list[int]

END = sys.maxsize
"""Greater than any number of work."""


@final
class Clocks:
    """The current clock of each lane. Memory is the square of the number of lanes, which is small."""

    __slots__ = ("_first", "of")

    def __init__(self, lanes: int) -> None:
        self.of: list[Clock] = [[-1] * lanes for _ in range(lanes)]
        """The clock of each lane."""
        for lane, clock in enumerate(self.of):
            clock[lane] = END
        self._first = self.of.copy()
        """The clock of each lane before its first wait, which covers the lane itself alone."""

    def join(self, lane: int, other: int, at: int, clock: Clock) -> Clock:
        """Make `lane` wait for work `at` of lane `other`, whose clock was `clock` then; return its new clock."""
        before = self.of[lane]
        if other == lane:
            return before
        if clock is self._first[other]:
            after = before.copy()
        else:
            # Calls of `max` take twice as long, and this is a tenth of planning.
            after = [known if known > news else news for known, news in zip(before, clock, strict=True)]  # noqa: FURB136
        after[other] = max(before[other], at)  # clock[other] is END, but later work of `other` is not covered
        self.of[lane] = after
        return after


def step_clocks(steps: Sequence[Step], lanes: int, events: int) -> list[Clock]:
    """Return, for each step of a plan, the clock of its lane when the step starts; work is numbered by steps.

    Each event must be recorded before it is waited for.
    """
    clocks = Clocks(lanes)
    if lanes == 1:
        return clocks.of * len(steps)
    recorded: list[tuple[int, int, Clock]] = [(-1, -1, [])] * events
    found: list[Clock] = []
    now = clocks.of
    for at, step in enumerate(steps):
        clock = now[step.lane]
        found.append(clock)
        if type(step) is Record:
            recorded[step.event] = step.lane, at, clock
        elif type(step) is Wait:
            clocks.join(step.lane, *recorded[step.event])
    return found
