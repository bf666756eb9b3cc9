"""How much planning a better order is worth, and the search for one.

The rule: a plan is made for `runs` runs, and each run could gain at most its predicted time beyond the lower bound. So
another attempt is made as long as all attempts together take less time than these runs could gain. Of that, the k-th
attempt in a row that gains nothing leaves one part in k + 1 to be hoped for:

    attempts * seconds of an attempt <= runs * (makespan - bound) / (k + 1),

and never more than `MOST`, nor `_PATIENCE` in a row that gain nothing. The seconds of an attempt are predicted, from
the number of instructions, and not measured: so the same program gets the same plan on every machine, busy or idle. A
small DAG of short kernels gets no attempt beyond those that every plan gets, since ten of its runs gain less than one
attempt takes. A DAG of some hundred kernels of a millisecond gets ten or more, and is planned some milliseconds longer.
Guesses gain nothing: of what the runs could gain, the part of the work counts whose time is known.

The search changes the times by which longest paths are found, and so the order. Each attempt starts from the best times
so far, and changes a fifth of them by chance, from a fixed seed. On 261 placements of `benchmarks.placement` on 2, 4
and 8 devices, 64 such attempts came to 1.109, 1.451 and 1.832 times the bound on average, 64 independent ones to 1.112,
1.462 and 1.837, and 16 of these with 100 moves of one instruction to another device after them to 1.110, 1.458 and
1.841.
"""

from collections.abc import Sequence
from itertools import compress
from math import inf
from operator import neg, not_
from random import Random
from typing import Final, final

from dagpu.plans.text import duration

RUNS: Final = 10
"""The runs that a plan is made for, unless its policy says otherwise. An assumption: a plan is kept, and most ops that
run at all run again."""
MOST: Final = 64
"""The most attempts for one program. The second 32 gained 0.2 % on average on 2 devices, and 0.6 % on 8; 64 more would
have gained 0.1 %."""
_PATIENCE: Final = 24
"""The most attempts in a row that gain nothing."""
_CHANGED: Final = 0.2
"""The share of times that an attempt changes."""
_BY: Final = 0.9
"""The most by which a time is changed, as a part of it."""


@final
class Worth:
    """Counts attempts, and says whether another one is worth its time."""

    def __init__(self, runs: float, bound: float, seconds: float, known: float = 1.0) -> None:
        """`bound` is a lower bound on the makespan, `seconds` what an attempt is predicted to take, `known` the part of
        the work whose time is no guess."""
        self._runs = runs
        self._known = known
        self._bound = bound
        self._seconds = seconds
        self._gain = inf
        self._least = inf
        self._idle = 0
        """The attempts since the last one that has gained something."""
        self.attempts = 0
        """The attempts that were made so far."""

    def another(self, makespan: float, most: float = inf) -> bool:
        """Return whether another attempt is worth it, with the best makespan so far, in seconds. It is counted then.
        `most` are the seconds that a run can gain at most, if that is less than what it is above the bound."""
        if makespan < self._least:
            self._least, self._idle = makespan, 0
        self._gain = max(min(makespan - self._bound, most), 0.0) * self._known
        hope = self._runs * self._gain / (1 + self._idle)
        enough = (self.attempts + 1) * self._seconds <= hope  # false for inf * 0
        if self.attempts >= MOST or self._idle >= _PATIENCE or not enough:
            return False
        self.attempts += 1
        self._idle += 1
        return True

    def why(self) -> str:
        """Say why there was no further attempt, after `another` has returned False."""
        if not self._known:
            return "what they could gain is not known, since all times are guesses"
        if self._gain <= 1e-9 * self._bound:
            return "no other order is sooner done"
        if self.attempts >= MOST:
            return f"no more than {MOST} are made"
        if self._idle >= _PATIENCE:
            return f"the last {_PATIENCE} have gained nothing"
        if not self._runs:
            return "the plan is made for no runs"
        gain = duration(self._runs * self._gain / (1 + self._idle))
        hope = f"{self._runs:,g} run{'' if self._runs == 1 else 's'} can hope to gain {gain} by it"
        return f"one more would bring planning to {duration((self.attempts + 1) * self._seconds)}, and {hope}"


def known_part(times: Sequence[float], unknown: Sequence[bool]) -> float:
    """Return the part of the work whose time is no guess."""
    return sum(compress(times, map(not_, unknown))) / (sum(times) or 1.0)


def in_words(name: str, count: int, worth: Worth) -> str:
    """Say which of `count` attempts is the best, and why there are no more. `worth` has counted those beyond the ones
    that are always made."""
    tried = f"the best of {count} attempts" if count > 1 else "the first attempt"
    return f"{name}, {tried}: {worth.why()}"


def longest_paths(
    times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float] | None = None
) -> list[float]:
    """Return for each instruction the longest path from its start (upward rank), in seconds. `before` has its
    predecessors, which are earlier; `edges` the seconds between its end and what follows it, 0 if left out."""
    rest = list(times)
    for index in range(len(rest) - 1, -1, -1):
        length = rest[index]
        for earlier in before[index]:
            path = times[earlier] + length
            if edges is not None:
                path += edges[earlier]
            if rest[earlier] < path:
                rest[earlier] = path
    return rest


def by_length(paths: Sequence[float]) -> list[int]:
    """Return the instructions by descending length of their paths, then in program order. Where each path is longer
    than those of what follows, or as long, it is an order in which the program may run."""
    return sorted(range(len(paths)), key=list(map(neg, paths)).__getitem__)


@final
class OrderSearch:
    """Orders by longest paths over times that are changed by chance, each from the best times so far."""

    def __init__(
        self, times: Sequence[float], before: Sequence[Sequence[int]], edges: Sequence[float] | None = None
    ) -> None:
        """The arguments are those of `longest_paths`."""
        self.random = Random(0)
        """Decides what is changed; a caller may take its chances from it too."""
        self._before = before
        self._edges = edges
        self._best = list(times)
        self._tried = self._best

    def next(self) -> list[int]:
        """Return another order."""
        chance = self.random.random
        self._tried = [
            seconds * (1 + _BY * (2 * chance() - 1)) if chance() < _CHANGED else seconds for seconds in self._best
        ]
        return by_length(longest_paths(self._tried, self._before, self._edges))

    def keep(self) -> None:
        """Go on from the last order: it is no worse than the best one before it."""
        self._best = self._tried
