"""How a task waits for a replay: first a turn for the other tasks, then a look, then sleep."""

import os
from typing import Any, final

import pytest
import trio

from dagpu.runtime.waiting import TrioWaits


@final
class Watched:
    """A replay that is done at the look of this number, and that writes down what is asked of it."""

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
    """Return what happens while a task waits for a replay that is done at the look of this number."""
    events: list[str] = []
    replay: Any = Watched(events, done_at, cancellable)

    async def main() -> None:
        instrument = Turns(events, trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(instrument)
        await TrioWaits().wait_for_replay(replay, 0.5)
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


def test_a_replay_that_can_be_cancelled_is_looked_at_first() -> None:
    """A cancellation reaches it at once, and not after a turn of the other tasks. Each wait has a turn all the same."""
    assert events_of_a_wait(1, cancellable=True) == ["look for 0.5", "suspended", "over"]
    assert events_of_a_wait(2, cancellable=True) == ["look for 0.5", "asleep", "suspended", "over"]


def test_a_wait_that_is_dropped_in_its_turn_cancels_the_replay() -> None:
    """No loop resumes it, so it waits for the replay by blocking."""
    events: list[str] = []
    replay: Any = Watched(events, 1)
    waiting = TrioWaits().wait_for_replay(replay, 0.5)

    async def main() -> None:
        waiting.send(None)
        waiting.close()

    trio.run(main)
    assert events == ["cancelled"]


def test_a_cancellation_in_the_turn_comes_after_the_replay() -> None:
    """The turn itself raises nothing. A sleep does, after it has cancelled the replay and waited for its end."""
    events: list[str] = []
    replay: Any = Watched(events, 2)

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(trio.Cancelled):
                await TrioWaits().wait_for_replay(replay, 0.5)
            events.append("raised")

    trio.run(main)
    assert events == ["look for 0.5", "asleep", "cancelled", "raised"]
