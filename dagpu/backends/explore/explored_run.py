"""One run of a plan on an `explore` device, and one of a captured graph within a step of such a run.

A run makes no progress by itself. A call that waits for its end executes its steps on the calling thread, together with
the steps of the thread's other runs in progress, in the order that the exploration chooses.
"""

import os
import threading
from collections.abc import Callable
from typing import final

from dagpu.backends.explore.exploration import Exploration, current
from dagpu.backends.explore.machine import Machine, Script
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host.failures import Outcome
from dagpu.backends.protocol import Failure
from dagpu.common.places import add_note, without_our_frames


@final
class ExploreRun:
    """Implements `dagpu.backends.protocol.Run`, and `UnderWay`.

    Invariants:
        _machine is None  <=>  over; then nothing refers to the run's memory any more
        done              =>   over; it follows `_unseen` polls later, or with the first wait
        held              =>   `cancel_at` has been reached; the run makes no progress until `cancel` or a wait
        in exploration.under_way  <=>  not done
    """

    __slots__ = (
        "_exploration", "_machine", "_open", "_outcome", "_script", "_store", "_unseen", "_wakes", "device_of_lane",
        "held", "lanes", "thread",
    )  # fmt: skip
    is_launch: bool = False

    def __init__(self, script: Script, store: PoisonedStore, exploration: Exploration) -> None:
        self._script = script
        self._store: PoisonedStore | None = store
        store.seed = exploration.seed
        self._exploration = exploration
        self._outcome = Outcome()
        self.lanes = len(script.lanes)
        self.device_of_lane = [lane.device for lane in script.plan.lanes]
        self.thread = threading.get_ident()
        self.held = False
        self._machine: Machine | None = Machine(script, store, self._outcome, exploration.begin(self))
        self._unseen = exploration.lateness()
        """Number of polls that still report the run as not done after its end."""
        self._open = -1
        """The writing end of a pipe, or -1. Closing it makes the other end readable."""
        self._wakes: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Return True if the run is done. Do one step before, so that repeated calls come to the end."""
        self._run(1)
        return self._report_done()

    def wait(self, timeout: float | None = None) -> bool:
        """Run to the end, even if the run is held for a cancellation that has not come."""
        self._run()
        self.held = False
        self._run()
        if self._machine is not None:
            return False
        self._unseen = 0
        return True

    def poll(self, seconds: float) -> bool:
        """Run to the end, unless held for a cancellation, and return True if done.

        For 0 seconds, execute nothing, so that other tasks may submit runs that are in progress together with this one.
        """
        if seconds > 0:
            self._run()
        return self._report_done()

    def succeeds(self, seconds: float) -> bool:
        """Poll as `poll` does. Return True if all instructions are finished, without a failure."""
        return self.poll(seconds) and not self._outcome.abnormal

    def _report_done(self) -> bool:
        if self._machine is None and self._unseen:
            self._unseen -= 1
            return False
        return self._machine is None

    @property
    def cancellable(self) -> bool:
        """True until the run is executed."""
        return self._machine is not None

    def readable(self) -> int:
        """Return a file descriptor that is readable at once.

        An event loop handles it after its other tasks have had their turn. The first caller that asks for the failures
        then executes the run. If a cancellation is to be injected, this call executes the run up to that point, and the
        descriptor becomes readable after the cancellation.
        """
        readable, self._open = os.pipe()
        if self._exploration.cancel_at is not None:
            self._run()
        if not self.held:
            self._close()
        return readable

    def woken(self) -> None:
        """Do nothing."""

    def when_done(self, wake: Callable[[], None]) -> None:
        """Run to the end and call `wake`. If the run is held for a cancellation, `wake` is called after that."""
        self._wakes.append(wake)
        self._run()
        self._call_wakes()

    def cancel(self) -> None:
        """Skip instructions that have not begun, and run to the end: publish the others, record events, free memory."""
        self._outcome.cancel()
        self.held = False
        self._run()

    def failures(self) -> list[Failure]:
        """Run to the end. Return the failures in the order of the plan's steps."""
        self.wait()
        return self._outcome.failures()

    def spoilt(self) -> frozenset[int] | None:
        """Run to the end. Return the buffers that were not completed."""
        self.wait()
        return self._outcome.spoilt()

    def _run(self, most: int = -1) -> None:
        """Do at most `most` steps (-1: any number) of the runs whose turn it is, until this run is over or held."""
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
        """Do one step, finish the run, or hold it until it is cancelled."""
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
            self._outcome.lose_track()
        self._outcome.sort(self._script.plan)
        note = self._exploration.replay_hint()
        for failed in self._outcome.errors():
            error = without_our_frames(failed)
            add_note(error, note)
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


@final
class RunWithinStep:
    """One run of a captured graph, which is launched in one step of another run. It has its own order of steps.
    Implements `dagpu.backends.host.host_instructions.Launched`."""

    __slots__ = ("_machine", "_outcome", "_plan")

    def __init__(self, script: Script, store: PoisonedStore) -> None:
        self._plan = script.plan
        self._outcome = Outcome()
        self._machine = Machine(script, store, self._outcome, current().choose_within_step(len(script.lanes)))

    def cancel(self) -> None:
        """Skip instructions that have not begun."""
        self._outcome.cancel()

    def wait(self) -> None:
        """Run to the end.

        Raises:
            PlanError: a lane waits forever.
        """
        self._machine.run()
        stuck = self._machine.stuck()
        if stuck is not None:
            raise stuck
        self._outcome.sort(self._plan)

    def failures(self) -> list[Failure]:
        """Return the failures in the order of the plan's steps. Valid after `wait`."""
        return self._outcome.failures()
