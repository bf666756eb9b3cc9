"""`Pace`: how long the awaited runs of a plan take, and the polling of those that are short, between other tasks.

A task that sleeps on a run is woken by the driver, through a thread and a pipe. On an H200 that takes 100 to 200 us
longer than a look at the stream, which is most of a run of some hundred microseconds. Timers of an event loop are exact
to a millisecond, so a task cannot sleep until shortly before the end either. So a task polls a run that is known to be
short, and gives the other tasks their turn before each look.
"""

from time import perf_counter
from typing import Final, final

from trio.lowlevel import cancel_shielded_checkpoint

from dagpu.backends.protocol import Run

LONGEST: Final = 2e-3
"""Seconds: the longest run that is polled in turns. A wake-up takes a twentieth of it."""

_LATE: Final = 50e-6
"""Seconds for which a run is polled beyond twice the time that the last one took."""

_TAKEN: Final[list[float]] = [0.0]
"""The time until which one run of the process is polled in turns. Others sleep meanwhile: each of many would be slowed
down by the looks of all others, and a pipe wakes each alone. At that time the next may be polled, also if a Ctrl-C has
ended the polling before its last line."""


@final
class Pace:
    """How long the awaited runs of one plan take."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = float("inf")
        """Seconds for which the last awaited run was waited for that did not end at once; infinity before."""

    async def poll_in_turns(self, run: Run) -> bool:
        """Poll a run that is expected to be short, and give the other tasks their turn before each look. Return True if
        it is over; False if the task is to sleep."""
        now = perf_counter()
        if self.seconds > LONGEST or now < _TAKEN[0]:
            return False
        deadline = _TAKEN[0] = now + 2 * self.seconds + _LATE
        try:
            while perf_counter() < deadline:
                await cancel_shielded_checkpoint()
                if run.done():
                    return True
        finally:
            _TAKEN[0] = 0.0
        return False
