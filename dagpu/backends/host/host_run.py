"""One run of a plan on the host: its events, its failures and its end.

Invariants. State that several threads may write is written under `_lock`.
    _happened[e]                =>  all steps before the Record of event e in its lane are done or skipped
    _done                       =>  neither a worker nor the run refers to the plan or its memory any more
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never, final

from dagpu.backends.host.arrays import ArenaRange, HostMemory
from dagpu.backends.host.failures import Outcome
from dagpu.backends.host.measuring import KernelTimes, MeasuredRun, Perform
from dagpu.backends.host.numpy_execution import execute
from dagpu.backends.host.worker_threads import WorkerStream, enqueue, report_lost
from dagpu.backends.protocol import Failure
from dagpu.common.critical import SIGNALS_SECONDS
from dagpu.common.places import without_our_frames
from dagpu.plans.plan import Allocate, Execute, Plan, Record, Release, Step, Wait
from dagpu.plans.program import Instruction


@final
class HostRun:
    """Implements `dagpu.backends.protocol.Run`. Its other methods are called by the workers."""

    __slots__ = (
        "_arenas", "_blocked", "_done", "_gate", "_happened", "_lock", "_memory", "_outcome", "_plan", "_recording",
        "_remaining", "_wakes",
    )  # fmt: skip
    is_launch: bool = False

    def __init__(
        self,
        plan: Plan,
        memory: list[object],
        arenas: Sequence[HostMemory],
        batches: int,
        recording: MeasuredRun | KernelTimes | None = None,
    ) -> None:
        self._plan: Plan | None = plan
        self._memory: list[object] | None = memory
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
            self._plan = self._memory = None
            self._arenas = ()
            if recording is not None:
                recording.end()

    # ---- for the caller
    # ------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Return True if all instructions are finished or skipped."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is done, for at most `timeout` seconds. Return `done()`."""
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
        """Poll for the end for at most `seconds`. `sleep(0)` releases the GIL, which the workers need."""
        deadline = time.perf_counter() + seconds
        while not self._done:
            if time.perf_counter() >= deadline:
                return False
            time.sleep(0)
        return True

    def succeeds(self, seconds: float) -> bool:
        """Poll as `poll` does. Return True if all instructions are finished, without a failure."""
        return self.poll(seconds) and not self._outcome.abnormal

    @property
    def cancellable(self) -> bool:
        """True until the run is done: a cancelled launch stops between two tiles."""
        return not self._done

    def readable(self) -> None:
        """Return None: the workers run Python, so they call the functions of `when_done`."""
        return

    def woken(self) -> None:
        """Do nothing."""

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when done: on the last worker to finish, or in this call if the run is done already."""
        with self._lock:
            if not self._done:
                self._wakes.append(wake)
                return
        wake()

    def cancel(self) -> None:
        """Skip instructions that have not begun. Events are still recorded and memory is released, so lanes go on."""
        self._outcome.cancel()

    def failures(self) -> list[Failure]:
        """Return the failures in the order of the plan's steps, and drop them. Valid once the run is done."""
        return self._outcome.failures()

    def spoilt(self) -> frozenset[int] | None:
        """Return the buffers that were not completed. Valid once the run is done."""
        return self._outcome.spoilt()

    # ---- for the workers
    # -----------------------------------------------------------------------------------------

    def run_steps(self, steps: Sequence[Step]) -> None:
        """Execute the steps of one stream, in their order. Raises nothing."""
        plan, memory, outcome, arenas = self._plan, self._memory, self._outcome, self._arenas
        assert plan is not None
        assert memory is not None
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
                    except BaseException as error:  # also SystemExit and similar ones: a worker serves many runs
                        self.fail(instruction, error)
                case Record():
                    self._record(step.event)
                case Wait():
                    if not self._happened[step.event]:
                        self._block(step.event)
                case Allocate():
                    offset = offsets[step.buffer]
                    if offset >= 0:  # a buffer without an offset has its own memory already
                        about = buffers[step.buffer]
                        memory[step.buffer] = ArenaRange(arenas[about.device], offset, about.nbytes)
                case Release():
                    memory[step.buffer] = None
                case _:
                    assert_never(step)

    def fail(self, instruction: Instruction, error: BaseException) -> None:
        """Record the failure of an instruction; what depends on it is skipped."""
        self._outcome.fail(instruction, without_our_frames(error))

    def batch_ended(self) -> None:
        """Count an ended batch, and finish the run with the last one. A batch calls it after dropping its steps."""
        with self._lock:
            self._remaining -= 1
            if self._remaining:
                return
        assert self._plan is not None
        self._outcome.sort(self._plan)
        if self._recording is not None and (type(self._recording) is MeasuredRun or not self._outcome.abnormal):
            self._recording.end()
        # Dropped before any waiter sees the end: a waiter that then drops its references frees the memory at once.
        self._plan = self._memory = None
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
    """The steps of a run in one stream, as one piece of work."""

    __slots__ = ("_run", "_steps")

    def __init__(self, run: HostRun, steps: Sequence[Step]) -> None:
        self._run = run
        self._steps = steps

    def run(self) -> None:
        """Execute the steps, drop them, and then count this batch as ended."""
        steps, self._steps = self._steps, ()
        try:
            self._run.run_steps(steps)
        finally:
            del steps
            self._run.batch_ended()


def run_batches(
    plan: Plan,
    arenas: Sequence[HostMemory],
    work: Mapping[WorkerStream, Sequence[Step]],
    memory: list[object],
    recording: MeasuredRun | KernelTimes | None = None,
) -> HostRun:
    """Start a run of a plan, whose steps are executed in these streams."""
    run = HostRun(plan, memory, arenas, len(work), recording)
    enqueue({stream: Batch(run, steps) for stream, steps in work.items()})
    return run
