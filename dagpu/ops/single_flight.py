"""`Once`, the remembered value of a `Shared` or `Unzip`: computed at most once, by one run at a time (single-flight).

A run claims values by its `Claims`: the trace of a plain run, the run of a plan, and the update of a feed alike. The
states and their transitions, all under the lock:

    EMPTY --claim--> CLAIMED --publish--> DONE
                     CLAIMED --abandon--> EMPTY        (the run failed or was cancelled: nothing is remembered)

A run that finds the value CLAIMED by another one registers a wake-up, and tries again when that is called. A claim does
not survive a fork: the child process does not have the thread of the run that made the claim.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import get_ident
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, final

from dagpu.common.critical import BOOKKEEPING, count_forks

Claim = Literal["claimed", "done", "busy"]
NOTHING: Final = object()
once_numbers: Final = itertools.count()
"""The numbers of `Once` objects. Each is larger than all before it."""


@final
class Once:
    """A remembered value that at most one run computes at a time (single-flight)."""

    __slots__ = ("_claimed_after", "_waiting", "made_for", "number", "owner", "value")

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self.number = next(once_numbers)
        """The number of this `Once`. One that is created later has a larger number."""
        self.owner: object = None
        """The `Claims` of the run that is computing the value; None if there is none."""
        self._claimed_after = 0
        """The number of forks of the process before `owner` claimed the value."""
        self.value: Any = NOTHING
        self.made_for: Mapping[Any, int] = {}
        """The sources on which the value depends, each with the revision for which it was made."""

    def claim(self, run: object) -> Claim:
        """Claim the value ("claimed"), unless it is complete ("done") or claimed by another run ("busy")."""
        with BOOKKEEPING:
            if self.value is not NOTHING:
                return "done"
            if not self.settled():
                return "busy"
            self.owner, self._claimed_after = run, count_forks()
            return "claimed"

    def publish(self, value: Any, made_for: Mapping[Any, int] = MappingProxyType({})) -> None:
        """Remember the complete value, release the claim, and wake the runs that wait. `made_for` has the sources on
        which the value depends, with their revisions."""
        self._settle(value, made_for)

    def offer(self, value: Any) -> None:
        """Remember a value that depends on no source, unless there is one, or another run is making it."""
        with BOOKKEEPING:
            if self.value is NOTHING and self.settled():
                self.value, self.made_for = value, {}

    def remembered(self) -> tuple[Any, Mapping[Any, int]]:
        """Return the value, `NOTHING` if there is none, and the sources on which it depends, with their revisions."""
        with BOOKKEEPING:
            return self.value, self.made_for

    def find(self, is_stale: "IsStale") -> tuple[Any, Mapping[Any, int]]:
        """Return what `remembered` does, or `NOTHING` for a value of sources that `is_stale`, which is forgotten."""
        value, made_for = self.remembered()
        if value is NOTHING or (made_for and is_stale(made_for)):
            self.expire(value)
            return NOTHING, {}
        return value, made_for

    def expire(self, value: Any) -> None:
        """Forget this value, which is of another snapshot of its sources. Another value stays."""
        with BOOKKEEPING:
            if self.value is value:
                self.value = NOTHING

    def abandon(self) -> None:
        """Release the claim without a value, and wake the runs that wait: the run has failed or was cancelled."""
        self._settle(NOTHING, self.made_for)

    def _settle(self, value: Any, made_for: Mapping[Any, int]) -> None:
        with BOOKKEEPING:
            self.value, self.made_for, self.owner = value, made_for, None
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def remembers(self) -> bool:
        """True if the value is complete and remembered."""
        return self.value is not NOTHING

    def settled(self) -> bool:
        """True if no run is computing the value now."""
        return self.owner is None or self._claimed_after != count_forks()

    def when_settled(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as no run is computing the value; at once if none is."""
        with BOOKKEEPING:
            if not self.settled():
                self._waiting.append(wake)
                return
        wake()


IsStale: TypeAlias = Callable[[Mapping[Any, int]], bool]
"""Returns true if a run cannot use a value that was made for these revisions of sources."""


@final
@dataclass(slots=True, eq=False)
class Claims:
    """The values that one run computes for all runs. It owns their claims, until it publishes or abandons each."""

    _held: dict[Once, None] = field(default_factory=dict)
    thread: int = field(default_factory=get_ident)
    """The thread that drives the run. Code that blocks this thread must not wait for the run."""

    def take(self, once: Once, is_stale: IsStale) -> tuple[Claim, Any, Mapping[Any, int]]:
        """Return the value that is remembered ("done"), with its sources and their revisions; or claim it, also again
        ("claimed"), unless another run has ("busy"). A value of sources that `is_stale` is forgotten."""
        while True:
            value, made_for = once.find(is_stale)
            if value is not NOTHING:
                return "done", value, made_for
            claim = self._claim(once)
            if claim != "done":
                return claim, NOTHING, {}

    def take_all(self, onces: Iterable[Once]) -> bool:
        """Claim all of these values. Return false, without a claim, if one of them is complete or claimed by another
        run."""
        if all(self._claim(once) == "claimed" for once in onces):
            return True
        self.abandon()
        return False

    def _claim(self, once: Once) -> Claim:
        claim: Claim = "claimed" if once in self._held else once.claim(self)
        if claim == "claimed":
            self._held[once] = None
        return claim

    def publish(self, once: Once, value: Any, made_for: Mapping[Any, int]) -> None:
        """Give a value that is claimed and made to other runs and to the next run; see `Once.publish`."""
        once.publish(value, made_for)
        del self._held[once]

    def abandon(self) -> None:
        """Give up the claims of the values that were not made: another run may make them."""
        while self._held:
            once, _ = self._held.popitem()
            if once.owner is self:  # an interrupt may have come after it was published
                once.abandon()


def exchange_item(remembered: list[Any], index: int, new: Any) -> Any:
    """Replace the item `index` of a remembered list by `new`, and return the old one. Runs do this atomically."""
    with BOOKKEEPING:
        old, remembered[index] = remembered[index], new
    return old
