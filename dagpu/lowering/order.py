"""Vector clocks: which work lies before which, over a few lanes.

Work is numbered by one counter that grows along every lane (the index of an instruction, or of a step). A
lane's clock holds, for each lane, the last number of that lane that lies before whatever the first lane does
next: -1 for none, `END` for itself. So work `a` of lane `m` lies before the next work of lane `n` exactly
when `of[n][m] >= a`.

A clock changes only where a lane waits, and is then replaced, never changed in place: the clock of a piece of
work is a reference to the list that was its lane's at the time, and costs nothing to keep.
"""

import sys
from collections.abc import Sequence
from typing import TypeAlias, final

from dagpu.lowering.plan import Record, Step, Wait

Clock: TypeAlias = list[int]

END = sys.maxsize
"""Later than any number."""


@final
class Clocks:
    """The clock of each lane, in `of`. Memory is the square of the number of lanes, which are few."""

    __slots__ = ("_first", "of")

    def __init__(self, lanes: int) -> None:
        self.of: list[Clock] = [[-1] * lanes for _ in range(lanes)]
        for lane, clock in enumerate(self.of):
            clock[lane] = END
        self._first = self.of.copy()
        """The clock of each lane before its first wait: it knows of itself alone, as the stream of copies in does."""

    def join(self, lane: int, other: int, at: int, clock: Clock) -> Clock:
        """`lane` waits for number `at` of lane `other`, whose clock was `clock` then. Gives its new clock."""
        before = self.of[lane]
        if other == lane:
            return before
        if clock is self._first[other]:
            after = before.copy()
        else:
            # Calls of `max` take twice as long, and this is a tenth of planning.
            after = [known if known > news else news for known, news in zip(before, clock, strict=True)]  # noqa: FURB136
        after[other] = max(before[other], at)  # clock[other] is END: `other` may have gone on since
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
        lane = step.lane
        found.append(now[lane])
        if type(step) is Record:
            recorded[step.event] = lane, at, now[lane]
        elif type(step) is Wait:
            clocks.join(lane, *recorded[step.event])
    return found
