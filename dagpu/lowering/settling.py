"""Which of several waits it is that brings word of an earlier step."""

from dataclasses import dataclass
from typing import TypeAlias, final

from dagpu.lowering.order import Clock

Moment: TypeAlias = tuple[int, int, Clock]
"""Lane and number of a step, and what its lane's clock was."""


@final
@dataclass(slots=True)
class Group:
    """Waits of one lane, some not settled yet. `base` is the lane's clock before the first of them."""

    base: Clock
    waits: dict[int, Moment]
    unsettled: set[int]

    def credit(self, lane: int, earlier: int) -> None:
        """A step here needs step `earlier` of `lane`: settle the wait that brings it, if it is one."""
        if not self.unsettled or self.base[lane] >= earlier:
            return
        found = -1
        for wait, (other, at, clock) in self.waits.items():
            if (at if other == lane else clock[lane]) >= earlier:
                if found >= 0:
                    return
                found = wait
        self.unsettled.discard(found)
