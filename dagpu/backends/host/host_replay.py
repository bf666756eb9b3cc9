"""One plan under way on the host: its events, its failures, its end.

Invariants, all under `_lock` where more than one thread may write:
    _happened[e]                =>  all steps before the Record of event e in its lane are done or skipped
    _done                       =>  no worker refers to the plan or its bindings any more, nor does the replay
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never, final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.common.measuring import MeasuredRun, Perform
from dagpu.backends.common.worker_threads import report_lost
from dagpu.backends.host.arrays import HostMemory, Part
from dagpu.backends.host.numpy_execution import execute
from dagpu.backends.protocol import Bindings, Failure
from dagpu.common.critical import SIGNALS_SECONDS
from dagpu.common.tracebacks import without_our_frames
from dagpu.lowering.plan import Allocate, Execute, Plan, Record, Release, Step, Wait


@final
class HostReplay:
    """Implements `dagpu.backends.protocol.Replay`; the methods beyond it are for the workers."""

    __slots__ = (
        "_arenas", "_bindings", "_blocked", "_done", "_gate", "_happened", "_lock", "_outcome", "_plan",
        "_recording", "_remaining", "_wakes",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        bindings: Bindings,
        arenas: Sequence[HostMemory],
        batches: int,
        recording: MeasuredRun | None = None,
    ) -> None:
        self._plan: Plan | None = plan
        self._bindings: Bindings | None = bindings
        self._arenas = arenas
        self._recording = recording
        self._lock = threading.Lock()
        self._happened = [False] * plan.events
        self._blocked: dict[int, list[threading.Lock]] = {}
        self._remaining = batches
        self._done = batches == 0
        self._outcome = Outcome()
        self._gate: threading.Event | None = None
        self._wakes: list[Callable[[], None]] = []
        if self._done:
            self._plan = self._bindings = None
            self._arenas = ()
            if recording is not None:
                recording.end()

    # ---- for the caller
    # ------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Is everything finished or skipped?"""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done, at most `timeout` seconds; gives back `done()`."""
        with self._lock:
            if self._done:
                return True
            gate = self._gate
            if gate is None:
                gate = self._gate = threading.Event()
        if timeout is not None:
            gate.wait(timeout)
        else:
            while not gate.wait(SIGNALS_SECONDS):
                pass
        return self._done

    def poll(self, seconds: float) -> bool:
        """Look for the end for at most so long. `sleep(0)` gives the GIL away, which the workers need."""
        deadline = time.perf_counter() + seconds
        while not self._done:
            if time.perf_counter() >= deadline:
                return False
            time.sleep(0)
        return True

    def readable(self) -> None:
        """None: the workers run Python, and call back."""
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once when done: on the worker that ends last, or here if it is done already."""
        with self._lock:
            if not self._done:
                self._wakes.append(wake)
                return
        wake()

    def cancel(self) -> None:
        """Skip what has not begun. Events are still recorded and memory is still released, so lanes go on."""
        self._outcome.cancel()

    def failures(self) -> list[Failure]:
        """Once done: what failed, in the order of the plan's steps."""
        return self._outcome.failures()

    # ---- for the workers
    # -----------------------------------------------------------------------------------------

    def play(self, steps: Sequence[Step]) -> None:
        """Do the steps of one lane, in their order. Raises nothing."""
        plan, bindings = self._plan, self._bindings
        assert plan is not None
        assert bindings is not None
        memory, outcome, arenas = bindings.memory, self._outcome, self._arenas
        buffers, offsets = plan.buffers, plan.offsets
        perform: Perform = partial(execute, outcome=outcome)
        if self._recording is not None:
            perform = self._recording.around(perform)
        for step in steps:
            match step:
                case Execute():
                    instruction = step.instruction
                    if outcome.abnormal and outcome.skips(instruction):
                        continue
                    try:
                        perform(instruction, memory)
                    except BaseException as error:  # SystemExit and the like too: a worker serves many runs
                        outcome.fail(instruction, without_our_frames(error))
                case Record():
                    self._record(step.event)
                case Wait():
                    if not self._happened[step.event]:
                        self._block(step.event)
                case Allocate():
                    offset = offsets[step.buffer]
                    if offset >= 0:  # else it is handed out, and has its own memory already
                        about = buffers[step.buffer]
                        memory[step.buffer] = Part(arenas[about.device], offset, about.nbytes)
                case Release():
                    memory[step.buffer] = None
                case _:
                    assert_never(step)

    def batch_ended(self) -> None:
        """Called once by each batch, after it has dropped its steps. The last one finishes the replay."""
        with self._lock:
            self._remaining -= 1
            if self._remaining:
                return
        assert self._plan is not None
        self._outcome.sort(self._plan)
        if self._recording is not None:
            self._recording.end()
        # Dropped before anybody learns of the end: whoever then lets go of what he holds frees it at once.
        self._plan = self._bindings = None
        self._arenas = ()
        with self._lock:
            self._done = True
            gate, wakes, self._wakes = self._gate, self._wakes, []
        if gate is not None:
            gate.set()
        for wake in wakes:
            try:
                wake()
            except BaseException:
                report_lost()

    def _record(self, event: int) -> None:
        with self._lock:
            self._happened[event] = True
            blocked = self._blocked.pop(event, ())
        for gate in blocked:
            gate.release()

    def _block(self, event: int) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if self._happened[event]:
                return
            self._blocked.setdefault(event, []).append(gate)
        gate.acquire()


@final
class Batch:
    """The steps of one plan that go to one stream, as one piece of work."""

    __slots__ = ("_replay", "_steps")

    def __init__(self, replay: HostReplay, steps: Sequence[Step]) -> None:
        self._replay = replay
        self._steps = steps

    def run(self) -> None:
        """Play them, drop them, and only then count down."""
        steps, self._steps = self._steps, ()
        try:
            self._replay.play(steps)
        finally:
            del steps
            self._replay.batch_ended()
