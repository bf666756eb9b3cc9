"""One plan under way on an `explore` device. Nothing goes on by itself: each call that waits for the end does the work,
on the thread that makes it, and that of other runs under way there, as the exploration chooses."""

import os
import threading
from collections.abc import Callable
from typing import final

from dagpu.backends.base import Bindings, Failure
from dagpu.backends.explore.exploration import Exploration
from dagpu.backends.explore.machine import Machine
from dagpu.backends.explore.script import Script
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.outcome import Outcome
from dagpu.tracebacks import without_our_frames


@final
class ExploreReplay:
    """Implements `dagpu.backends.base.Replay`, and `UnderWay`.

    Invariants:
        _machine is None  <=>  over; then nothing refers to the bindings any more
        done              =>   over; `_unseen` looks later, or once somebody has waited
        held              =>   `cancel_at` has been reached, and nothing goes on until `cancel` or a wait
        in exploration.under_way  <=>  not done
    """

    __slots__ = (
        "_exploration", "_machine", "_open", "_outcome", "_script", "_store", "_unseen", "_wakes", "held", "lanes",
        "thread",
    )  # fmt: skip

    def __init__(self, script: Script, bindings: Bindings, store: PoisonedStore, exploration: Exploration) -> None:
        self._script = script
        self._store: PoisonedStore | None = store
        self._exploration = exploration
        self._outcome = Outcome()
        self.lanes = len(script.lanes)
        self.thread = threading.get_ident()
        self.held = False
        self._machine: Machine | None = Machine(script, store, self._outcome, exploration.begin(self))
        self._unseen = exploration.lateness()
        """How many looks still find it under way once it is over."""
        self._open = -1
        """The end of a pipe whose other end becomes readable when this one is closed."""
        self._wakes: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Is everything finished or skipped? Does one step if not, so that asking again and again ends."""
        self._run(1)
        return self._look()

    def wait(self, timeout: float | None = None) -> bool:
        """Run to the end. What was held up for a cancellation that did not come goes on."""
        self._run()
        self.held = False
        self._run()
        if self._machine is not None:
            return False
        self._unseen = 0
        return True

    def poll(self, seconds: float) -> bool:
        """Run to the end, unless held up for a cancellation. For no seconds at all: do nothing, so that other tasks
        may submit runs that are under way together with this one."""
        if seconds > 0:
            self._run()
        return self._look()

    def _look(self) -> bool:
        if self._machine is None and self._unseen:
            self._unseen -= 1
            return False
        return self._machine is None

    def readable(self) -> int:
        """Readable at once: by the time a loop gives it a turn, its other tasks have had theirs. The work is done by
        whoever asks for the failures first. Where a cancellation is to come, the work is done here up to that point,
        and it is readable after that."""
        readable, self._open = os.pipe()
        if self._exploration.cancel_at is not None:
            self._run()
        if not self.held:
            self._close()
        return readable

    def when_done(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when done: at once, unless held up for a cancellation."""
        self._wakes.append(wake)
        self._run()
        self._call_wakes()

    def cancel(self) -> None:
        """Skip what has not begun, and run to the end: what has begun is published, events happen, memory goes."""
        self._outcome.cancel()
        self.held = False
        self._run()

    def failures(self) -> list[Failure]:
        """What failed, in the order of the plan's steps; before that, run to the end."""
        self.wait()
        return self._outcome.failures()

    def _run(self, most: int = -1) -> None:
        """Do at most so many steps (-1: any number), of any run whose turn it is, but none once this one is done."""
        exploration, here = self._exploration, threading.get_ident()
        if here in exploration.running:
            return
        exploration.running.add(here)
        try:
            while most and not self.held and self._machine is not None:
                exploration.next(self).step()
                most -= 1
        finally:
            exploration.running.discard(here)

    def step(self) -> None:
        """Do one step, or come to the end, or be held up."""
        machine, exploration = self._machine, self._exploration
        assert machine is not None
        number = exploration.steps
        if number == exploration.cancel_at and not self._outcome.cancelled and machine.can_go_on():
            exploration.cancel_at = None  # once
            self.held = True
            exploration.cancel()
        elif machine.step(exploration.fault() if number == exploration.fail_at else None) < 0:
            self._finish(machine)
        else:
            exploration.steps = number + 1

    def _finish(self, machine: Machine) -> None:
        stuck, blocked = machine.stuck(), machine.blocked()
        if stuck is not None and blocked is not None:
            self._outcome.fail(blocked, stuck)
        self._outcome.sort(self._script.plan)
        note = self._exploration.again()
        for failed in self._outcome.errors():
            error = without_our_frames(failed)
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        assert self._store is not None
        self._store.close()
        self._machine = self._store = None
        self._exploration.end(self)
        self._close()
        self._call_wakes()

    def _close(self) -> None:
        if self._open >= 0:
            os.close(self._open)
            self._open = -1

    def _call_wakes(self) -> None:
        if self._machine is None:
            wakes, self._wakes = self._wakes, []
            for wake in wakes:
                wake()
