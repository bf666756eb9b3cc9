"""One plan under way on an `explore` device. Nothing goes on by itself: each call that waits for the end does the work,
on the thread that makes it."""

from collections.abc import Callable
from typing import final

from dagpu.backends.base import Bindings, Failure
from dagpu.backends.explore.exploration import Exploration
from dagpu.backends.explore.machine import Machine
from dagpu.backends.explore.script import Script
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host_work import without_our_frames
from dagpu.backends.outcome import Outcome


@final
class ExploreReplay:
    """Implements `dagpu.backends.base.Replay`.

    Invariants:
        _machine is None  <=>  done; then nothing refers to the bindings any more
        _held             =>   `cancel_at` has been reached, and nothing goes on until `cancel` or a wait
    """

    __slots__ = ("_exploration", "_held", "_machine", "_outcome", "_running", "_script", "_store", "_wakes")

    def __init__(self, script: Script, bindings: Bindings, store: PoisonedStore, exploration: Exploration) -> None:
        self._script = script
        self._store: PoisonedStore | None = store
        self._exploration = exploration
        self._outcome = Outcome()
        self._machine: Machine | None = Machine(script, store, self._outcome, exploration.choice(len(script.lanes)))
        self._held = False
        self._running = False
        self._wakes: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Is everything finished or skipped? Does one step if not, so that asking again and again ends."""
        self._run(1)
        return self._machine is None

    def wait(self, timeout: float | None = None) -> bool:
        """Run to the end. What was held up for a cancellation that did not come goes on."""
        self._run()
        self._held = False
        self._run()
        return self._machine is None

    def poll(self, seconds: float) -> bool:
        """Run to the end, unless held up for a cancellation."""
        self._run()
        return self._machine is None

    def readable(self) -> None:
        """None: there is no driver."""
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when done: at once, unless held up for a cancellation."""
        self._wakes.append(wake)
        self._run()
        self._call_wakes()

    def cancel(self) -> None:
        """Skip what has not begun, and run to the end: what has begun is published, events happen, memory goes."""
        self._outcome.cancel()
        self._held = False
        self._run()

    def failures(self) -> list[Failure]:
        """Once done: what failed, in the order of the plan's steps."""
        return self._outcome.failures()

    def _run(self, most: int = -1) -> None:
        """Do at most so many steps (-1: any number). A host function that comes back here finds a run under way."""
        if self._running:
            return
        self._running = True
        try:
            while most and not self._held and self._step():
                most -= 1
        finally:
            self._running = False
        self._call_wakes()

    def _step(self) -> bool:
        """Do one step; False at the end, and where the run is held up."""
        machine, exploration = self._machine, self._exploration
        if machine is None:
            return False
        number = exploration.steps
        if number == exploration.cancel_at and not self._outcome.cancelled and machine.can_go_on():
            exploration.cancel_at = None  # once
            self._held = True
            exploration.cancel()
            return False
        if machine.step(exploration.fault() if number == exploration.fail_at else None) < 0:
            self._finish(machine)
            return False
        exploration.steps = number + 1
        return True

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

    def _call_wakes(self) -> None:
        if self._machine is None:
            wakes, self._wakes = self._wakes, []
            for wake in wakes:
                wake()
