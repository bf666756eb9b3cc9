"""Finds the one `Wait` of a group that orders an earlier step before the next step of its lane."""

from dataclasses import dataclass
from typing import TypeAlias, final

from dagpu.lowering.vector_clock import Clock

Moment: TypeAlias = tuple[int, int, Clock]
"""Lane and number of a step, and the clock of its lane at that step."""


@final
@dataclass(slots=True)
class WaitGroup:
    """Waits of one lane, some of which are not yet proved to be needed."""

    base: Clock
    """Clock of the lane before the first of the waits."""
    waits: dict[int, Moment]
    """For each wait, by its step, the record of its event."""
    unsettled: set[int]
    """Waits that are not yet proved to be needed."""

    def credit(self, lane: int, earlier: int) -> None:
        """Settle the wait that orders step `earlier` of `lane` before this lane's next step, if exactly one does."""
        if not self.unsettled or self.base[lane] >= earlier:
            return
        found = -1
        for wait, (other, at, clock) in self.waits.items():
            if (at if other == lane else clock[lane]) >= earlier:
                if found >= 0:
                    return
                found = wait
        self.unsettled.discard(found)
