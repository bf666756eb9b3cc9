"""The memory of `Shared` and `Unzip`: a value that is made at most once, by one run at a time.

States and how they change, always under the lock:

    EMPTY --claim--> CLAIMED --publish--> DONE
                     CLAIMED --abandon--> EMPTY        (the run failed or was cancelled: nothing is remembered)

A run that finds it CLAIMED leaves a wake-up, and tries again when that is called. A claim does not survive a fork: the
child does not have the thread that would keep it.
"""

import itertools
from collections.abc import Callable
from typing import Any, Final, Literal, final

from dagpu.common.critical import BOOKKEEPING, forks

Claim = Literal["claimed", "done", "busy"]
NOTHING: Final = object()
_numbers = itertools.count()


@final
class Once:
    """A remembered value, made single-flight."""

    __slots__ = ("_claimed_after", "_waiting", "number", "owner", "value")

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self.number = next(_numbers)
        """Later ones have larger numbers."""
        self.owner: object = None
        """The run that is making the value."""
        self._claimed_after = 0
        """The number of forks before `owner` claimed it."""
        self.value: Any = NOTHING

    def claim(self, run: object) -> Claim:
        """Claim the value ("claimed"), unless it is complete ("done") or claimed by another run ("busy")."""
        with BOOKKEEPING:
            if self.value is not NOTHING:
                return "done"
            if not self.settled():
                return "busy"
            self.owner, self._claimed_after = run, forks()
            return "claimed"

    def publish(self, value: Any) -> None:
        """The value is complete: remember it."""
        self._settle(value)

    def abandon(self) -> None:
        """The run that claimed it will not make it."""
        self._settle(NOTHING)

    def _settle(self, value: Any) -> None:
        with BOOKKEEPING:
            self.value, self.owner = value, None
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def exchange(self, index: int, new: Any) -> Any:
        """Put `new` into the remembered list at `index`, and give what was there: atomic between runs."""
        with BOOKKEEPING:
            old, self.value[index] = self.value[index], new
        return old

    def remembers(self) -> bool:
        """True if the value is complete and remembered."""
        return self.value is not NOTHING

    def settled(self) -> bool:
        """True if no run is making the value now."""
        return self.owner is None or self._claimed_after != forks()

    def when_settled(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, as soon as no run is making the value; at once if none is."""
        with BOOKKEEPING:
            if not self.settled():
                self._waiting.append(wake)
                return
        wake()


def newest() -> int:
    """A number larger than that of any `Once` so far, and smaller than that of any later one."""
    return next(_numbers)
