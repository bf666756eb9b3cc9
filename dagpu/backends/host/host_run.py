"""One run of a plan on the host, its events, its failures and its end; and the ways to start one: on worker threads, or
by the thread that waits for it.

To hand a run to a worker, and to wake up at its end, takes as long as NumPy takes for a megabyte. Without that, most of
the time of a small run is that between the calls of NumPy. So each instruction is made ready once, as a function of the
run's memory, and a run makes no object of its own unless an instruction fails. A thread that waits for a worker blocks
on one lock: polling would keep the GIL, and on one core the core, from the worker.

Invariants of a run. State that several threads may write is written under `_lock`.
    _happened[e]                =>  all steps before the Record of event e in its lane are done or skipped
    _done                       =>  neither a worker nor the run refers to the plan or its memory any more
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Final, Protocol, TypeAlias, assert_never, final

import numpy as np

from dagpu.backends.host.arrays import NO_MEMORY, Account, ArenaRange, HostMemory
from dagpu.backends.host.failures import Outcome, no_room, out_of_memory
from dagpu.backends.host.measuring import KernelTimes, MeasuredRun, Perform, current_recorder
from dagpu.backends.host.numpy_execution import execute, generated_call
from dagpu.backends.host.plan_devices import streams_by_device
from dagpu.backends.host.worker_threads import WorkerStream, enqueue, process, report_lost
from dagpu.backends.protocol import COMPLETED, Failure, Run
from dagpu.common.critical import SIGNALS_SECONDS, deferred_interrupt, enter_user_code, restore_section
from dagpu.common.env_vars import MEASURE
from dagpu.common.places import without_our_frames
from dagpu.plans.cost_model import DEFAULT_COSTS
from dagpu.plans.memory import describe_peak
from dagpu.plans.plan import Allocate, Execute, Plan, Record, Release, Step, Wait
from dagpu.plans.program import HOST, GraphLaunch, HostCall, Instruction, Launch, Role

# ---- one run


@final
class LastRun:
    """How long the last run of a plan took, or may be expected to take."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        """Seconds; infinity if that is not known, or if the run failed or was cancelled."""

    @property
    def is_short(self) -> bool:
        """True if the thread that waits for the next run may execute it."""
        return self.seconds <= SHORT_SECONDS

    def note(self, began: float, outcome: Outcome) -> None:
        """Note the time of a run that began at this time of `perf_counter`, and ends now."""
        self.seconds = inf if outcome.abnormal else time.perf_counter() - began


@final
class HostRun:
    """Implements `dagpu.backends.protocol.Run`. Its other methods are called by the workers."""

    __slots__ = (
        "_arenas", "_blocked", "_done", "_gate", "_happened", "_last", "_lock", "_memory", "_outcome", "_plan",
        "_recording", "_remaining", "_wakes",
    )  # fmt: skip
    is_launch: bool = False

    def __init__(
        self,
        plan: Plan,
        memory: list[object],
        arenas: Sequence[HostMemory],
        batches: int,
        recording: MeasuredRun | KernelTimes | None = None,
        last: LastRun | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """A run of so many batches: of one, if `last` is to have its time. It may have had an `outcome` before."""
        self._plan: Plan | None = plan
        self._memory: list[object] | None = memory
        self._arenas = arenas
        self._recording = recording
        self._lock = threading.Lock()
        self._happened = [False] * plan.events
        self._blocked: dict[int, list[threading.Lock]] = {}
        self._remaining = batches
        self._done = batches == 0
        self._outcome = Outcome() if outcome is None else outcome
        self._last = last
        self._gate: threading.Lock | None = None
        """Held until the run is done, once a thread waits for it. An event takes three times as long."""
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
                gate = threading.Lock()
                gate.acquire()
                self._gate = gate
        if timeout is not None:
            _pass(gate, timeout)
        else:
            while not self._done:  # also if an exception kept another thread from passing the gate on
                _pass(gate, SIGNALS_SECONDS)
        return self._done

    def poll(self, seconds: float) -> bool:
        """Block as `wait` does: a thread that polls has the GIL, and perhaps the core, that the workers need."""
        return self._done or (seconds > 0 and self.wait(min(seconds, threading.TIMEOUT_MAX)))

    def succeeds(self, seconds: float) -> bool:
        """Wait as `poll` does. Return True if all instructions are finished, without a failure."""
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
        buffers, offsets, last, began = plan.buffers, plan.offsets, self._last, time.perf_counter()
        perform: Perform = partial(execute, outcome=outcome, plan=plan)
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
        if last is not None:
            last.note(began, outcome)

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
            gate.release()
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


def _pass(gate: threading.Lock, seconds: float) -> None:
    """Wait for at most so many seconds until a gate is open, and leave it open for other threads."""
    if gate.acquire(timeout=seconds):
        gate.release()


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
    last: LastRun | None = None,
) -> HostRun:
    """Start a run of a plan, whose steps are executed in these streams: in one, if `last` is to have its time."""
    run = HostRun(plan, memory, arenas, len(work), recording, last)
    enqueue({stream: Batch(run, steps) for stream, steps in work.items()})
    return run


# ---- the ways to start one

PROMPT_BYTES: Final = 1 << 24
"""The bytes that all instructions of a run read and write, up to which the thread that waits for it executes it: a few
milliseconds of work."""

BESIDE_BYTES: Final = 1 << 17
"""The same for a plan of several lanes, which workers would execute beside each other: work that takes less time than
to hand the lanes to them."""

SHORT_SECONDS: Final = 1e-3
"""Seconds: the most that the last run of a plan took, if the thread that waits for the next one is to execute it, with
bodies of the user's. To hand that to a worker takes at most a tenth. While a body computes in C, no signal handler is
called."""

MEASURED_RUNS: Final = 3
"""Runs of a plan in which host bodies are measured. The first call of a body may do what no later one does."""


class StreamsOfDevice(Protocol):
    """The part of a device's driver that starts use."""

    def streams(self, keys: Sequence[Hashable]) -> list[WorkerStream]:
        """Return a stream for each lane of a plan, given the lanes' keys."""
        ...


@final
class RunRoom:
    """Allocates the memory that runs of a plan need beyond their inputs."""

    __slots__ = ("_accounts", "_outputs", "_plan")

    def __init__(self, plan: Plan, accounts: Sequence[Account]) -> None:
        self._plan = plan
        self._accounts = accounts
        self._outputs = [
            (number, buffer.device, buffer.nbytes)
            for number, buffer in enumerate(plan.buffers)
            if buffer.role is Role.OUTPUT and buffer.device != HOST
        ]

    def take(self, memory: list[object]) -> list[HostMemory]:
        """Give memory to the outputs that have none. Return the arenas.

        Raises:
            OutOfMemoryError: there is too little memory.
        """
        arenas = [
            self._take(device, nbytes) if nbytes else NO_MEMORY for device, nbytes in enumerate(self._plan.arena_bytes)
        ]
        for number, device, nbytes in self._outputs:
            if memory[number] is None:
                memory[number] = self._take(device, nbytes)
        return arenas

    def _take(self, device: int, nbytes: int) -> HostMemory:
        try:
            return HostMemory(self._accounts[device], nbytes)
        except MemoryError:
            plan = self._plan
            raise out_of_memory(
                f"{no_room(plan.devices[device], nbytes)}. A run takes {plan.peak_bytes:,} bytes; "
                f"alive at the peak: {describe_peak(plan, device)}"
            ) from None


@final
class ThreadedPlan:
    """Starts runs on the workers of streams: the way that is left to every run. A `Strategy`."""

    __slots__ = ("_last", "_plan", "_room", "_streams", "_unmeasured")

    def __init__(
        self, plan: Plan, drivers: Sequence[StreamsOfDevice], room: RunRoom, last: LastRun | None = None
    ) -> None:
        """The starts of a plan. `last` is to have the times of its runs, and there is one lane then."""
        self._last = last
        self._plan = plan
        self._room = room
        self._streams: Callable[[], list[WorkerStream]]
        """Returns the stream of each lane, for one run."""
        if len(drivers) == 1:
            self._streams = partial(drivers[0].streams, [lane.key for lane in plan.lanes])
        else:
            self._streams = partial(
                streams_by_device, plan.lanes, len(drivers), lambda number, keys: drivers[number].streams(keys)
            )
        self._unmeasured = MEASURED_RUNS if MEASURE.get() and DEFAULT_COSTS.guesses(plan) else 0
        """The number of runs to come whose bodies are measured."""

    def start(self, memory: list[object], _spin: float) -> Run:
        """Start a run.

        Raises:
            OutOfMemoryError: there is too little memory; the run has not begun.
        """
        plan, recorder = self._plan, current_recorder()
        arenas = self._room.take(memory)
        streams = self._streams()
        work = by_stream(plan.steps, streams)
        measured: MeasuredRun | KernelTimes | None = None
        if recorder is not None:
            measured = recorder.begin(plan, streams)
        elif self._unmeasured:
            self._unmeasured -= 1
            measured = KernelTimes(plan)
        return run_batches(plan, arenas, work, memory, measured, self._last if measured is None else None)


_quiet: Final[list[Context]] = []
"""Contexts in which NumPy ignores floating-point errors, and in which no thread is. To enter one takes a twentieth of
the time of `np.errstate`, which sets the same context variable."""


def _quiet_context() -> Context:
    """Return a context in which NumPy ignores floating-point errors, and which nothing else uses."""
    try:
        return _quiet.pop()
    except IndexError:
        made = Context()
        made.run(np.seterr, all="ignore")
        return made


_Cut: TypeAlias = tuple[int, BaseException | None]
"""The number of the step that failed, with its error, or during which the run was cancelled."""


@final
class PromptPlan:
    """Runs a plan by the thread that waits, if it `is_prompt`, or `is_lone` and its last run was short. No lane waits
    for another one, since the plan's order of steps is one in which they may be executed. A `Strategy`."""

    __slots__ = ("_calls", "_last", "_plan", "_ranges", "_released", "_room", "_steps")

    def __init__(self, plan: Plan, room: RunRoom, last: LastRun | None = None) -> None:
        """A plan that is not `is_prompt` has a `last`."""
        self._plan = plan
        self._room = room
        self._last = last
        self._steps = [number for number, step in enumerate(plan.steps) if type(step) is Execute]
        """For each call, the number of its step."""
        call_of = _call_of if last is None else partial(partial, execute, plan=plan)
        self._calls: list[Callable[..., None]] = [
            call_of(step.instruction) for step in plan.steps if type(step) is Execute
        ]
        """Functions of the run's memory; of its outcome too, in a plan that has a `last`."""
        self._ranges = [
            (step.buffer, plan.buffers[step.buffer].device, plan.offsets[step.buffer], plan.buffers[step.buffer].nbytes)
            for step in plan.steps
            if type(step) is Allocate and plan.offsets[step.buffer] >= 0
        ]
        """For each buffer in an arena, its number, its device, its offset and its size."""
        self._released = [step.buffer for step in plan.steps if type(step) is Release]

    def start(self, memory: list[object], _spin: float) -> Run | None:
        """Run the plan to its end. Return None, without any effect, if runs are recorded, or if the process is about to
        end.

        Raises:
            OutOfMemoryError: there is too little memory; the run has not begun.
        """
        if current_recorder() is not None or process.over:
            return None
        arenas = self._room.take(memory)
        for buffer, device, offset, nbytes in self._ranges:
            memory[buffer] = ArenaRange(arenas[device], offset, nbytes)
        if self._last is None:
            context = _quiet_context()
            run = context.run(self._run, memory, arenas)
            _quiet.append(context)
        else:
            run = self._call_user(memory, arenas, self._last)
        if run is None:
            for buffer in self._released:
                memory[buffer] = None
        return run or COMPLETED

    def _call_user(self, memory: list[object], arenas: Sequence[HostMemory], last: LastRun) -> HostRun | None:
        """Run the plan as a worker does: in a copy of this thread's context, with ops refused. A Ctrl-C cancels it.
        Return as `_run` does."""
        outcome, hold, began, before = Outcome(), deferred_interrupt(), time.perf_counter(), enter_user_code()
        try:
            if hold is not None:
                hold.set_cancel(outcome.cancel)
            return copy_context().run(self._run, memory, arenas, outcome)
        finally:
            if hold is not None:
                hold.set_cancel(None)
            restore_section(before)
            last.note(began, outcome)

    def _run(
        self, memory: list[object], arenas: Sequence[HostMemory], outcome: Outcome | None = None
    ) -> HostRun | None:
        """Execute the steps. Return a run if one has failed, after those that do not depend on it, or if the run was
        cancelled; None if all are done. Without an outcome a run is not cancelled."""
        cut = self._execute(memory, outcome)
        if cut is None:
            return None
        number, error = cut
        run = HostRun(self._plan, memory, arenas, 1, outcome=outcome)
        step = self._plan.steps[number]
        assert type(step) is Execute
        if error is not None:
            run.fail(step.instruction, error)
        Batch(run, self._plan.steps[number + 1 :]).run()
        return run

    def _execute(self, memory: list[object], outcome: Outcome | None) -> _Cut | None:
        """Execute the steps up to one that fails, or during which the run is cancelled. Return which; None if all are
        done. Without an outcome a run is not cancelled."""
        done, given = 0, () if outcome is None else (outcome,)
        try:
            for call in self._calls:
                call(memory, *given)
                if outcome is not None and outcome.abnormal:
                    return self._steps[done], None
                done += 1
        except BaseException as error:  # as on a worker: it is a failure of the run, which goes on
            return self._steps[done], error
        return None


def is_prompt(plan: Plan) -> bool:
    """Return True if the thread that waits for a run may execute it: its lanes are no streams of the user's, and it
    calls no code of the user's and is over soon."""
    instructions = [step.instruction for step in plan.steps if type(step) is Execute]
    return (
        all(isinstance(lane.key, int) for lane in plan.lanes)
        and all(map(_calls_no_user, instructions))
        and sum(plan.buffers[number].nbytes for each in instructions for number in (*each.reads, *each.writes))
        <= (PROMPT_BYTES if len(plan.lanes) == 1 else BESIDE_BYTES)
    )


def is_lone(plan: Plan) -> bool:
    """Return True if the thread that waits for a run may execute it if it is short: it has one lane, no stream of the
    user's, and calls only bodies of kernels. Functions of `host_map` need a worker, and graphs have their own."""
    instructions = [step.instruction for step in plan.steps if type(step) is Execute]
    return (
        len(plan.lanes) == 1
        and isinstance(plan.lanes[0].key, int)
        and not any(isinstance(each, HostCall | GraphLaunch) for each in instructions)
    )


def _calls_no_user(instruction: Instruction) -> bool:
    """Return True if an instruction calls no function of the user's."""
    if isinstance(instruction, Launch):
        return instruction.kernel.host.generated is not None
    return not isinstance(instruction, HostCall | GraphLaunch)


def _call_of(instruction: Instruction) -> Callable[[list[object]], None]:
    """Return the function that executes an instruction on the memory of a run."""
    return generated_call(instruction) if isinstance(instruction, Launch) else partial(execute, instruction)


def by_stream(steps: Sequence[Step], streams: Sequence[WorkerStream]) -> dict[WorkerStream, Sequence[Step]]:
    """Return the steps of each stream, in the plan's order. Streams without steps are left out.

    Lanes that share a stream are merged. In the plan's order every Record comes before its Waits, so no stream can wait
    for itself.
    """
    if len(streams) == 1:
        return {streams[0]: steps} if steps else {}
    parts: dict[WorkerStream, list[Step]] = {stream: [] for stream in streams}
    put = [parts[stream].append for stream in streams]
    for step in steps:
        put[step.lane](step)
    return {stream: part for stream, part in parts.items() if part}
