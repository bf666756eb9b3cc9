"""How to explore: which order, and what goes wrong where. `exploring` says so for the runs within it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Final, Protocol, final

from dagpu.backends.explore.choice import Choice, Listed, Seeded
from dagpu.env_vars import EXPLORE_SEED
from dagpu.errors import DagpuError, DeviceError

AT_ONCE: Final = 64
"""How many runs take turns, those that were submitted first; later ones have theirs when one of these is done."""


class UnderWay(Protocol):
    """A run that has been submitted and is not done, as an exploration sees it."""

    @property
    def lanes(self) -> int: ...

    @property
    def thread(self) -> int:
        """Where it was submitted: nobody else's steps are done for another thread."""
        ...

    @property
    def held(self) -> bool:
        """Does it wait to be cancelled?"""
        ...

    def step(self) -> None:
        """Do one step, or come to the end, or be held up."""
        ...


@final
class Exploration:
    """What `exploring` was asked for, and what has happened since. Its steps and choices are counted over all runs.

    Runs that are under way at the same time take turns: the lanes of all of them may go on, as those of one may.
    """

    __slots__ = (
        "_choices", "_runs", "_turns", "cancel", "cancel_at", "fail_at", "fault", "running", "seed", "steps", "taken",
        "under_way",
    )  # fmt: skip

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
        self._turns = Seeded(seed, AT_ONCE)
        self.fail_at = fail_at
        self.fault = fault
        self.cancel_at = cancel_at
        self.cancel = cancel
        self._runs = 0
        self.running: set[int] = set()
        """The threads that are doing steps. A host function that comes back here finds its own among them."""
        self.under_way: list[UnderWay] = []
        """In the order in which they were submitted."""
        self.steps = 0
        """How many steps that touch memory have been done."""
        self.taken: list[int] = []
        """The lane of each step; lanes of runs that were under way together are numbered through, in their order."""

    @property
    def explored(self) -> bool:
        """Has any run taken its order from here?"""
        return self._runs > 0

    def begin(self, run: UnderWay) -> Choice:
        """A run is under way from now on; how it chooses among its lanes."""
        number, self._runs = self._runs, self._runs + 1
        choose = Seeded(self.seed * 1_000_003 + number, run.lanes)
        choices, taken = self._choices, self.taken
        self.under_way.append(run)

        def recorded(ready: Sequence[int]) -> int:
            first = self._first_lane(run)
            lane = choose(ready) if choices is None else choices([first + lane for lane in ready]) - first
            taken.append(first + lane)
            return lane

        return recorded

    def inside(self, lanes: int) -> Choice:
        """How a plan chooses that is launched as a whole, in one step of a run: by the seed alone, so that the step is
        one choice in any list of them."""
        number, self._runs = self._runs, self._runs + 1
        return Seeded(self.seed * 1_000_003 + number, lanes)

    def lateness(self) -> int:
        """How many looks at the run that began last miss its end, by the seed: the end of work on a real device is seen
        some time after it. None where choices are listed, which stand for steps alone."""
        if self._choices is not None:
            return 0
        return Random(self.seed * 1_000_003 + self._runs).choice((0, 0, 1, 3))

    def end(self, run: UnderWay) -> None:
        """A run is done."""
        self.under_way.remove(run)

    def next(self, asked: UnderWay) -> UnderWay:
        """Whose turn it is for a step, when somebody waits for `asked`, which is not held."""
        runs = [run for run in self.under_way if run is asked or (run.thread == asked.thread and not run.held)]
        if len(runs) == 1:
            return asked
        if self._choices is None:
            return runs[self._turns(range(min(len(runs), AT_ONCE)))]
        lane = self._choices.coming
        return next((r for r in runs if 0 <= lane - self._first_lane(r) < r.lanes), asked)

    def _first_lane(self, run: UnderWay) -> int:
        return sum(other.lanes for other in self.under_way[: self.under_way.index(run)])

    def again(self) -> str:
        """How to have the same once more, for a message."""
        faults = ""
        if self.fail_at is not None:
            faults += f", fail_at={self.fail_at}"
        if self.cancel_at is not None:
            faults += f", cancel_at={self.cancel_at}"
        if self._choices is None:
            asked = f"{EXPLORE_SEED.name}={self.seed}"
            return f"explored with {asked}: exploring(seed={self.seed}{faults}) replays it exactly"
        return f"exploring(choices={self.taken}{faults}) replays it exactly"


_current: ContextVar[Exploration | None] = ContextVar("dagpu_exploration", default=None)


def current() -> Exploration:
    """That of the `with exploring(...)` around this run; else a new one, with the seed of the environment.

    Raises:
        ValueError: DAGPU_EXPLORE_SEED is no whole number.
    """
    found = _current.get()
    return Exploration(EXPLORE_SEED.get(), None, None, injected, None, interrupt) if found is None else found


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

    A step is an allocation, a release, the beginning of an instruction or its end: whatever touches memory. It chooses
    no device, since a run may be sent to one in several ways: `use_device("explore:0")`, `op.on("explore:0")`, an
    interpreter. A block in which no run came to an `explore` device is an error.

    Runs of several tasks of one trio loop within the block take turns, step by step, in that order too. Which task trio
    lets go first is not chosen here.

    Args:
        seed: of the order; without it DAGPU_EXPLORE_SEED, or 0. Each run takes an order of its own from it, and how
            late its end is seen by those who only look.
        choices: instead of a seed, the lane of each step, as `Exploration.taken` lists them; where the list ends, the
            lowest that may goes on.
        fail_at: the number of a step that fails, counted from 0 over all runs, with the exception `fault()`.
        cancel_at: the number of a step before which the run is held up and `cancel()` called, which must cancel it: in
            a trio task by the `cancel` of a scope around it. What it raises comes out of `sync()`.

    An exception that leaves the block has a note that says how to have the same again.

    Raises:
        DagpuError: at the end of the block: nothing in it ran on an `explore` device.
        ValueError: `seed` and `choices` are both given; DAGPU_EXPLORE_SEED is no whole number.
    """
    if seed is not None and choices is not None:
        raise ValueError("exploring() takes a seed or choices, not both: choices leave nothing to a seed")
    found = Exploration(EXPLORE_SEED.get() if seed is None else seed, choices, fail_at, fault, cancel_at, cancel)
    token = _current.set(found)
    try:
        yield found
    except BaseException as error:
        note = found.again()
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    else:
        if not found.explored:
            raise DagpuError(
                "exploring(): nothing within the block ran on an explore device, so no order was explored. Put "
                'use_device("explore:0") around it, and run the ops within it.'
            )
    finally:
        _current.reset(token)
