"""The settings and the state of an exploration: the order of steps, and injected faults. `exploring` sets them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Final, Protocol, final

from dagpu.backends.explore.machine import Choice, Listed, Seeded
from dagpu.common.env_vars import EXPLORE_SEED
from dagpu.common.errors import DagpuError, DeviceError

AT_ONCE: Final = 64
"""Number of runs that take turns, those submitted first. Later ones join when one of these is done."""


class UnderWay(Protocol):
    """A run that has been submitted and is not done: the interface that an exploration uses."""

    @property
    def lanes(self) -> int: ...

    @property
    def device_of_lane(self) -> Sequence[int]: ...

    @property
    def thread(self) -> int:
        """The thread that submitted the run. A thread executes only its own runs while it waits for another run."""
        ...

    @property
    def held(self) -> bool:
        """True while the run waits to be cancelled."""
        ...

    def step(self) -> None:
        """Do one step, finish the run, or hold it until it is cancelled."""
        ...


@final
class Exploration:
    """The arguments of `exploring`, and the state since then. Steps and choices are counted over all runs.

    Runs that are in progress at the same time take turns: the next step may belong to any lane of any of them.
    """

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
        """The threads that are executing steps. A host function that waits for a run finds its own thread here."""
        self.under_way: list[UnderWay] = []
        """The runs in progress, in the order in which they were submitted."""
        self.steps = 0
        """Number of steps done so far; a step touches memory."""
        self.taken: list[int] = []
        """The lane of each step. The lanes of runs in progress at the same time are numbered consecutively."""

    @property
    def explored(self) -> bool:
        """True if at least one run has taken its order from this exploration."""
        return self._runs > 0

    def begin(self, run: UnderWay) -> Choice:
        """Add a run in progress. Return the choice among its lanes."""
        number, self._runs = self._runs, self._runs + 1
        choose = Seeded(self.seed * 1_000_003 + number, run.lanes, run.device_of_lane)
        choices, taken = self._choices, self.taken
        self.under_way.append(run)

        def recorded(ready: Sequence[int]) -> int:
            first = self._first_lane(run)
            lane = choose(ready) if choices is None else choices([first + lane for lane in ready]) - first
            taken.append(first + lane)
            return lane

        return recorded

    def choose_within_step(self, lanes: int) -> Choice:
        """Return the choice for a plan that is launched as a whole, in one step of a run. It uses the seed alone, so
        that the step is one choice in a list of choices."""
        number, self._runs = self._runs, self._runs + 1
        return Seeded(self.seed * 1_000_003 + number, lanes)

    def lateness(self) -> int:
        """Return the number of polls that miss the end of the last begun run, drawn from the seed.

        On a real device, the host also sees the end of work with a delay. The number is 0 for listed choices, which
        contain steps only.
        """
        if self._choices is not None:
            return 0
        return Random(self.seed * 1_000_003 + self._runs).choice((0, 0, 1, 3))

    def end(self, run: UnderWay) -> None:
        """Remove a run that is done."""
        self.under_way.remove(run)

    def next(self, asked: UnderWay) -> UnderWay:
        """Return the run whose turn it is to do a step, while a caller waits for `asked`, which is not held."""
        runs = [run for run in self.under_way if run is asked or (run.thread == asked.thread and not run.held)]
        if len(runs) == 1:
            return asked
        if self._choices is None:
            return runs[self._turns(range(min(len(runs), AT_ONCE)))]
        lane = self._choices.coming
        return next((r for r in runs if 0 <= lane - self._first_lane(r) < r.lanes), asked)

    def _first_lane(self, run: UnderWay) -> int:
        return sum(other.lanes for other in self.under_way[: self.under_way.index(run)])

    def replay_hint(self) -> str:
        """Return a note for messages that says how to replay this exploration."""
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
    """Return the exploration of the innermost `with exploring(...)`, or a new one with the seed of the environment.

    Raises:
        ValueError: DAGPU_EXPLORE_SEED is not a whole number.
    """
    found = _current.get()
    return Exploration(EXPLORE_SEED.get(), None, None, injected, None, interrupt) if found is None else found


def injected() -> BaseException:
    """Return the default error of an injected failure."""
    return DeviceError("a failure injected by exploring(fail_at=...)")


def interrupt() -> None:
    """Cancel a run in the default way: as by Ctrl-C in `sync()`."""
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

    A step touches memory: it is an allocation, a release, the beginning of an instruction or its end. `exploring` does
    not choose a device, because a run may be sent to one in several ways: `use_device("explore:0")`,
    `op.on("explore:0")`, an interpreter. A block in which no run used an `explore` device is an error.

    Runs of several tasks of one trio loop within the block take turns, step by step, in that order too. The order in
    which trio schedules the tasks is not chosen here.

    Args:
        seed: seed of the order; without it DAGPU_EXPLORE_SEED, or 0. For each run it determines an order, and the
            delay after which a poll sees the end of the run.
        choices: instead of a seed, the lane of each step, as `Exploration.taken` lists them. After the end of the list,
            the lowest lane that is ready does the next step.
        fail_at: the number of a step that fails, counted from 0 over all runs, with the exception `fault()`.
        cancel_at: the number of a step before which the run is held and `cancel()` is called. That must cancel the run:
            in a trio task by the `cancel` of a scope around it. `sync()` raises the exception that `cancel()` raises.

    An exception that leaves the block has a note that says how to replay the block.

    Raises:
        DagpuError: at the end of the block: nothing in it ran on an `explore` device.
        ValueError: `seed` and `choices` are both given; DAGPU_EXPLORE_SEED is not a whole number.
    """
    if seed is not None and choices is not None:
        raise ValueError("exploring() takes a seed or choices, not both: choices leave nothing to a seed")
    found = Exploration(EXPLORE_SEED.get() if seed is None else seed, choices, fail_at, fault, cancel_at, cancel)
    token = _current.set(found)
    try:
        yield found
    except BaseException as error:
        note = found.replay_hint()
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
