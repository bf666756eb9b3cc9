"""How to explore: which order, and what goes wrong where. `exploring` says so for the runs within it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, final

from dagpu.backends.explore.choice import Choice, Listed, Seeded
from dagpu.errors import DeviceError

SEED_VARIABLE: Final = "DAGPU_EXPLORE_SEED"


@final
class Exploration:
    """What `exploring` was asked for, and what has happened since. Its steps and choices are counted over all runs."""

    __slots__ = ("_choices", "_runs", "cancel", "cancel_at", "fail_at", "fault", "seed", "steps", "taken")

    def __init__(
        self,
        seed: int,
        choices: Sequence[int] | None,
        fail_at: int | None,
        fault: Callable[[], BaseException],
        cancel_at: int | None,
        cancel: Callable[[], None],
    ) -> None:
        self.seed = seed
        self._choices = None if choices is None else Listed(choices)
        self.fail_at = fail_at
        self.fault = fault
        self.cancel_at = cancel_at
        self.cancel = cancel
        self._runs = 0
        self.steps = 0
        """How many steps that touch memory have been done."""
        self.taken: list[int] = []
        """The lane of each step."""

    def choice(self, lanes: int) -> Choice:
        """How the next run chooses."""
        run, self._runs = self._runs, self._runs + 1
        choose = Seeded(self.seed * 1_000_003 + run, lanes) if self._choices is None else self._choices
        taken = self.taken

        def recorded(ready: Sequence[int]) -> int:
            lane = choose(ready)
            taken.append(lane)
            return lane

        return recorded

    def again(self) -> str:
        """How to have the same once more, for a message."""
        faults = ""
        if self.fail_at is not None:
            faults += f", fail_at={self.fail_at}"
        if self.cancel_at is not None:
            faults += f", cancel_at={self.cancel_at}"
        if self._choices is None:
            return f"explored with {SEED_VARIABLE}={self.seed}: exploring(seed={self.seed}{faults}) replays it exactly"
        return f"exploring(choices={self.taken}{faults}) replays it exactly"


_current: ContextVar[Exploration | None] = ContextVar("dagpu_exploration", default=None)


def current() -> Exploration:
    """That of the `with exploring(...)` around this run; else a new one, with the seed of the environment.

    Raises:
        ValueError: DAGPU_EXPLORE_SEED is no whole number.
    """
    found = _current.get()
    return Exploration(_seed(), None, None, injected, None, interrupt) if found is None else found


def injected() -> BaseException:
    """What a step fails with unless `exploring` is told otherwise."""
    return DeviceError("a failure injected by exploring(fail_at=...)")


def interrupt() -> None:
    """How a run is cancelled unless `exploring` is told otherwise: as by Ctrl-C, in `sync()`."""
    raise KeyboardInterrupt


@contextmanager
def exploring(
    *,
    seed: int | None = None,
    choices: Sequence[int] | None = None,
    fail_at: int | None = None,
    fault: Callable[[], BaseException] = injected,
    cancel_at: int | None = None,
    cancel: Callable[[], None] = interrupt,
) -> Iterator[Exploration]:
    """Within the `with` block, in this task or thread, runs on `explore` devices take this order of steps.

    A step is an allocation, a release, the beginning of an instruction or its end: whatever touches memory.

    Args:
        seed: of the order; without it DAGPU_EXPLORE_SEED, or 0. Each run takes an order of its own from it.
        choices: instead of a seed, the lane of each step, as `Exploration.taken` lists them; where the list ends, the
            lowest that may goes on.
        fail_at: the number of a step that fails, counted from 0 over all runs, with the exception `fault()`.
        cancel_at: the number of a step before which the run is held up and `cancel()` called, which must cancel it: in
            a trio task by the `cancel` of a scope around it. What it raises comes out of `sync()`.

    An exception that leaves the block has a note that says how to have the same again.

    Raises:
        ValueError: `seed` and `choices` are both given; DAGPU_EXPLORE_SEED is no whole number.
    """
    if seed is not None and choices is not None:
        raise ValueError("exploring() takes a seed or choices, not both: choices leave nothing to a seed")
    found = Exploration(_seed() if seed is None else seed, choices, fail_at, fault, cancel_at, cancel)
    token = _current.set(found)
    try:
        yield found
    except BaseException as error:
        note = found.again()
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    finally:
        _current.reset(token)


def _seed() -> int:
    said = os.environ.get(SEED_VARIABLE, "0")
    try:
        return int(said)
    except ValueError:
        raise ValueError(f"{SEED_VARIABLE}={said!r} is no whole number. Give one, such as 17.") from None
