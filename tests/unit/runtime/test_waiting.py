"""How a task waits for a run: first a turn for the other tasks, then a look, then sleep."""

import os
from itertools import count
from typing import Any, final

import pytest
import trio

from dagpu.runtime.trio_waits import TrioWaits
from dagpu.runtime.waits import LONGEST, Pace


@final
class Watched:
    """A run that is done at the look of this number, and that writes down what is asked of it."""

    def __init__(self, events: list[str], done_at: int, cancellable: bool = False) -> None:
        self._events = events
        self._left = done_at
        self.cancellable = cancellable

    def poll(self, seconds: float) -> bool:
        self._events.append(f"look for {seconds:g}")
        self._left -= 1
        return self._left <= 0

    def readable(self) -> int:
        self._events.append("asleep")
        reading, writing = os.pipe()
        os.close(writing)
        return reading

    def done(self) -> bool:
        return True

    def woken(self) -> None:
        return

    def cancel(self) -> None:
        self._events.append("cancelled")


@final
class Turns(trio.abc.Instrument):
    """Writes down each time that a task suspends, so that the others have a turn."""

    def __init__(self, events: list[str], task: trio.lowlevel.Task) -> None:
        self._events = events
        self._task = task

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._events.append("suspended")


def events_of_a_wait(done_at: int, cancellable: bool = False) -> list[str]:
    """Return what happens while a task waits for a run that is done at the look of this number."""
    events: list[str] = []
    run: Any = Watched(events, done_at, cancellable)

    async def main() -> None:
        instrument = Turns(events, trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(instrument)
        await TrioWaits().wait_for_run(run, 0.5)
        trio.lowlevel.remove_instrument(instrument)
        events.append("over")

    trio.run(main)
    return events


def test_other_tasks_have_their_turn_before_the_first_look() -> None:
    """So the device works meanwhile; if it is done at the first look, nothing more is awaited."""
    assert events_of_a_wait(1) == ["suspended", "look for 0.5", "over"]


def test_a_task_sleeps_only_after_it_has_looked() -> None:
    """A descriptor is opened for a run that is under way still."""
    assert events_of_a_wait(2) == ["suspended", "look for 0.5", "asleep", "suspended", "over"]


def test_a_run_that_can_be_cancelled_is_looked_at_first() -> None:
    """A cancellation reaches it at once, and not after a turn of the other tasks. Each wait has a turn all the same."""
    assert events_of_a_wait(1, cancellable=True) == ["look for 0.5", "suspended", "over"]
    assert events_of_a_wait(2, cancellable=True) == ["look for 0.5", "asleep", "suspended", "over"]


def test_a_wait_that_is_dropped_in_its_turn_cancels_the_run() -> None:
    """No loop resumes it, so it waits for the run by blocking."""
    events: list[str] = []
    run: Any = Watched(events, 1)
    waiting = TrioWaits().wait_for_run(run, 0.5)

    async def main() -> None:
        waiting.send(None)
        waiting.close()

    trio.run(main)
    assert events == ["cancelled"]


def test_a_cancellation_in_the_turn_comes_after_the_run() -> None:
    """The turn itself raises nothing. A sleep does, after it has cancelled the run and waited for its end."""
    events: list[str] = []
    run: Any = Watched(events, 2)

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(trio.Cancelled):
                await TrioWaits().wait_for_run(run, 0.5)
            events.append("raised")

    trio.run(main)
    assert events == ["look for 0.5", "asleep", "cancelled", "raised"]


@final
class Short:
    """A run that is done at the look of this number after the first, and that counts the looks."""

    def __init__(self, done_at: int, cancellable: bool = False) -> None:
        self._left = done_at
        self.cancellable = cancellable
        self.asleep = False

    def poll(self, seconds: float) -> bool:
        del seconds
        return False

    def done(self) -> bool:
        self._left -= 1
        return self._left <= 0

    def readable(self) -> int:
        self.asleep = True
        reading, writing = os.pipe()
        os.close(writing)
        return reading

    def woken(self) -> None:
        return

    def cancel(self) -> None:
        return


async def turns_of_others(run: Short, pace: Pace | None) -> int:
    """Wait for a run, and return the number of turns that another task had meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        waited: Any = run
        await TrioWaits(has_yielded=True).wait_for_run(waited, 0.0, pace)
        nursery.cancel_scope.cancel()
    return turns


@pytest.fixture(name="still_clock")
def fixture_still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still for those who poll."""
    monkeypatch.setattr("dagpu.runtime.waits.perf_counter", lambda: 0.0)


def paced(seconds: float) -> Pace:
    """Return a pace of which the last run took this number of seconds."""
    pace = Pace()
    pace.seconds = seconds
    return pace


def test_a_run_that_is_known_to_be_short_is_looked_at_between_the_turns_of_others(still_clock: None) -> None:
    """Each look comes after a turn of the other tasks, and no descriptor is opened."""
    run = Short(9)
    assert trio.run(turns_of_others, run, paced(LONGEST)) >= 6
    assert not run.asleep


@pytest.mark.parametrize("pace", [None, Pace(), paced(2 * LONGEST)], ids=["none", "unknown", "long"])
def test_a_task_sleeps_on_a_run_that_is_not_known_to_be_short(pace: Pace | None) -> None:
    """A run that has not been waited for before counts as long. How long it took is noted."""
    run = Short(1)
    trio.run(turns_of_others, run, pace)
    assert run.asleep
    assert pace is None or pace.seconds < float("inf")


def test_a_run_that_can_be_cancelled_is_slept_on() -> None:
    """A cancellation reaches it at once, and not after a look."""
    run = Short(1, cancellable=True)
    trio.run(turns_of_others, run, paced(LONGEST))
    assert run.asleep


def test_a_run_that_takes_longer_than_expected_is_slept_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling ends after twice the time that the last run took."""
    monkeypatch.setattr("dagpu.runtime.waits.perf_counter", count(0.0).__next__)  # a second between two looks
    run = Short(1 << 60)
    trio.run(turns_of_others, run, paced(LONGEST))
    assert run.asleep


def test_one_run_at_a_time_is_polled_in_turns(still_clock: None) -> None:
    """The second one sleeps: looks of many would slow down each other."""
    first, second = Short(3), Short(3)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for run in (first, second):
                waited: Any = run
                nursery.start_soon(TrioWaits(has_yielded=True).wait_for_run, waited, 0.0, paced(LONGEST))

    trio.run(main)
    assert sorted([first.asleep, second.asleep]) == [False, True]
    third = Short(3)
    trio.run(turns_of_others, third, paced(LONGEST))
    assert not third.asleep, "the place is free again"
