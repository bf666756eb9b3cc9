"""One run of a prepared plan: its resources, its completion, its failures.

The run is over when the last event of each lane is complete; one launch of a graph in a stream of its own needs no
event, and is over when that stream is idle. Then the run returns its memory, streams and events to the pools.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, final

from dagpu.backends.cuda.commands.buffers import CompiledPlan, RunMemory, fail_violations
from dagpu.backends.cuda.commands.command_list import (
    Command,
    CommandList,
    CommandListPool,
    Do,
    Kind,
    RunBuffers,
    describe_instruction,
    has_assert,
    instructions_of,
)
from dagpu.backends.cuda.driver.driver_protocol import ASSERT, EXIT_GUARD, RawEvent, RawStream, TimingEvent
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.resources.cuda_device import CudaDevice, identity, lose_devices
from dagpu.backends.cuda.resources.pools import array_over
from dagpu.backends.cuda.resources.streams import MARK_EVERY, CudaStream
from dagpu.backends.host.failures import Outcome
from dagpu.backends.host.measuring import MeasuredRun
from dagpu.backends.protocol import Failure
from dagpu.common.errors import DeviceError, DeviceLostError
from dagpu.common.places import without_our_frames
from dagpu.plans.program import Instruction

# ---- measures a run on GPUs, with a timing event before and after each instruction in its stream ----------------
# The run's commands are replaced by ones that record the events. The command list itself does not change, so other runs
# are not measured. Times are relative to an event that is recorded in an idle stream before the run, when the host's
# clock is read as well. A GPU's clock has a resolution of about half a microsecond (cuEventElapsedTime).


ENTRIES = 3
"""The entries that a measured instruction adds to its stream: itself, and two events. They count towards a full
queue."""


@final
class EventTiming:
    """The timing events of one run. The run's threads may add events at the same time."""

    def __init__(self, recording: MeasuredRun, devices: Sequence[CudaDevice], device_of_lane: Sequence[int]) -> None:
        self._recording = recording
        self._devices = devices
        self._device_of_lane = device_of_lane
        self._taken: list[tuple[CudaDevice, TimingEvent]] = []
        self._spans: list[tuple[Instruction, int, TimingEvent, TimingEvent]] = []
        self._starts: list[tuple[TimingEvent, float]] = []
        """For each device a complete event, and its time in seconds of `time.perf_counter`."""
        try:
            for device in devices:
                self._starts.append(self._start(device))
        except BaseException:
            self._release_events()
            raise
        self.unmarked = [0] * len(device_of_lane)
        """For each lane the number of entries after its last MARK."""

    def _start(self, device: CudaDevice) -> tuple[TimingEvent, float]:
        with device.gpu.current():
            event = self._take(device)
            idle = device.streams.take_exclusive()
            try:
                event.record(idle.raw)
                event.synchronize()
                return event, time.perf_counter()
            finally:
                device.streams.give_back_exclusive(idle)

    def _take(self, device: CudaDevice) -> TimingEvent:
        event = device.streams.take_timing_event()
        self._taken.append((device, event))
        return event

    def actions(self, plain: Sequence[Command], launch: Callable[[int], None]) -> list[Command]:
        """Return measuring versions of the commands, with a MARK after every `MARK_EVERY` entries of a lane. `launch`
        submits the launch of a number."""
        found: list[Command] = []
        for action in plain:
            if action.kind is Kind.MARK:
                continue
            if action.instruction is None:
                found.append(action)
                continue
            kind = Kind.DO if action.kind is Kind.LAUNCH else action.kind
            measured = self._measured(action, action.instruction, launch)
            found.append(Command(kind, action.lane, action.instruction, measured))
            self.unmarked[action.lane] += ENTRIES
            if self.unmarked[action.lane] >= MARK_EVERY:
                found.append(Command(Kind.MARK, action.lane, None, self.unmarked[action.lane]))
                self.unmarked[action.lane] = 0
        return found

    def _measured(self, action: Command, instruction: Instruction, launch: Callable[[int], None]) -> Do:
        """Return a function that submits a command between two timing events. The device's context must be current."""
        do, number = action.a, self._device_of_lane[action.lane]
        mark, name = self._recording.mark, self._recording.name_of(instruction)

        def measured(buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
            begin, end = self._take(device), self._take(device)
            begin.record(stream)
            with nullcontext() if mark is None else mark(name):
                if action.kind is Kind.LAUNCH:
                    launch(do)
                else:
                    do(buffers, device, stream)
            end.record(stream)
            self._spans.append((instruction, number, begin, end))

        return measured

    def collect(self) -> None:
        """Pass the times to the recording, and return the events to the pool. The devices must have completed the run.
        A lost device has no times."""
        if all(device.lost is None for device in self._devices):
            try:
                for instruction, number, begin, end in self._spans:
                    base, when = self._starts[number]
                    with self._devices[number].gpu.current():
                        times = begin.time_since(base), end.time_since(base)
                    self._recording.add(instruction, when + times[0] * 1e-3, when + times[1] * 1e-3)
            except DeviceError:
                pass  # a driver error here has failed the run as well
        self._release_events()

    def _release_events(self) -> None:
        """Return the events, except those of a lost device, and end the recording."""
        for device, event in self._taken:
            if device.lost is None:
                device.streams.give_back_timing(event)
        self._spans, self._taken = [], []
        self._recording.end()


# ---- one run ----------------------------------------------------------------------------------------------------


NAP: Final = 50e-6
"""Seconds between two polls while the run has no event to wait for."""

PROMPT: Final = 1e-3
"""Seconds for which a thread polls a run on several devices without naps, since many of these runs are short."""


FLAWLESS: Final = Outcome()
"""The outcome of every run that is polled by its stream: nothing fails in it. Nobody changes it."""


@final
class CudaRun:
    """One run of a prepared plan. Implements `dagpu.backends.protocol.Run`; the other methods are for submission.

    It ends with the events after its lanes. One graph in a stream that no other run uses needs none: it is over when
    the stream is idle. Such a run is *polled*, and most are over at the first look, so it has none of the rest. One
    thread *claims* it, by taking it out of `device.live`: to end it, or to have it end with an event.

    Invariants, under `lock` where more than one thread may write:
        submitted    =>  everything is submitted, and each lane ends with its event in `ends`, or the run is polled
        finishing    =>  the devices have completed the run
        finished     =>  the run's resources have been returned, and all its failures are known
    """

    polled: RawStream | None = None
    """The stream whose idleness is the end of the run; None for a run that ends with events."""
    command_list: CommandList | None = None
    actions: Sequence[Command] = ()
    """The commands to submit: the command list's own, or measuring ones if the run is measured."""
    guards: Sequence[tuple[CudaDevice, CudaStream]] = ()
    """For a graph over several devices, an exclusive stream of each further device, in which the end of the run is
    waited for: the device refuses to say whether it has come when it is lost."""
    timing: EventTiming | None = None
    unmarked: Sequence[int] = ()
    """For each lane the number of instructions after its last MARK."""
    streams: Sequence[CudaStream] = ()
    raw: Sequence[RawStream] = ()
    is_launch: bool = False
    outcome = FLAWLESS
    """What has failed; see `FLAWLESS`."""
    submitted = False
    """True once everything is submitted."""
    finishing = False
    finished = False
    wakeup_fd: int | None = None
    """The write end of a pipe on which a task sleeps; None once the driver has been told to close it."""
    tells_its_end = False
    """True once the driver is to close the pipe after the end of a stream that no other run uses."""
    notifier: CudaStream | None = None
    """The stream in which the driver closes the pipe, if it is not a stream of the run."""

    def __init__(
        self,
        compiled: CompiledPlan,
        command_lists: CommandListPool,
        graphs: GraphInstances | None = None,
        graph: GraphExec | None = None,
        exclusive: CudaStream | None = None,
        kept: Sequence[object] = (),
    ) -> None:
        """`kept` is what the run keeps alive, unless `end_by_events` gets it as a `RunMemory`."""
        self.compiled = compiled
        self.devices = compiled.devices
        self._command_lists = command_lists
        """The pool of the command list. This reference keeps it, and so its events, alive until the run is over."""
        self.graphs = graphs
        self.graph = graph
        """The graph of `graphs` that was launched instead of a command list. The run owns it until it is over."""
        self.exclusive = exclusive
        """The stream that the run returns to the pool of exclusive streams when it is over, if it uses one."""
        self._kept = kept

    def end_by_events(self, buffers: RunMemory | None = None) -> None:
        """Give the run what it needs unless it is polled by its stream. `buffers` has all memory of the run."""
        if buffers is None:
            buffers = RunMemory(self.compiled, [], [])
            buffers.kept_alive += self._kept
        self._kept = ()
        self.buffers = buffers
        self.outcome = Outcome()
        self.ends: list[tuple[int, RawEvent]] = []
        """The event at the end of each lane, and its device's number. Once `submitted`, only those of lanes that
        have not ended."""
        self.lock = threading.Lock()

    # ---- submission ---------------------------------------------------------------------------------------------

    def congested(self) -> bool:
        """Return True if the first launch might block, or overtake an earlier run."""
        for stream in self.streams:  # noqa: SIM110  # `any` of a generator takes twice as long
            if stream.congested():
                return True
        return False

    def submit_elsewhere(self, begin: "Callable[[CudaRun], None]") -> None:
        """Call `begin` to have worker threads submit the run. If they cannot be started, end the run; nothing was
        submitted."""
        try:
            begin(self)
        except BaseException:
            self.return_command_list()
            for number, event in self.ends:
                self.devices[number].streams.give_back(event)
            self.ends.clear()
            self.outcome.cancel()
            self._finish()
            raise

    def finish_submission(self) -> None:
        """Mark the run as submitted, and have the driver wake a task that sleeps on it."""
        self.return_command_list()
        with self.lock:
            self.submitted = True
            awaited = self.wakeup_fd is not None
        if awaited:
            with self.devices[0].gpu.current():
                self._signal_when_done()

    def failed(self, action: Command, error: BaseException) -> bool:
        """Record the error that a command raised. Return True if the command must be repeated: it was interrupted, and
        the run depends on it."""
        instruction = action.instruction
        again = instruction is None and isinstance(error, KeyboardInterrupt)
        ours = error if isinstance(error, DeviceError) else None
        if ours is None and (again or instruction is not None):
            blamed = instruction or instructions_of(self.compiled.plan)[0]
            self.outcome.fail(blamed, without_our_frames(error))
            return again
        if ours is None or isinstance(ours, DeviceLostError) or instruction is None:
            self._lose(action.lane, ours or DeviceError(str(error)))
        else:
            self.outcome.fail(instruction, type(ours)(f"{describe_instruction(instruction)}: {ours}", ours.code))
        return False

    def poll_stream(self, stream: CudaStream) -> None:
        """Follow the run, which has been launched in this stream. No other run uses it, nor any other device."""
        self.polled, self.submitted, self.is_launch = stream.raw, True, True
        self._become_live()

    def _become_live(self) -> None:
        """Have the loss of the device end the run, also if it was lost before, unless another thread has ended it."""
        device = self.devices[0]
        device.live.add(self)
        if self.finished:
            device.live.discard(self)
        elif device.lost is not None:
            self.lose(device.lost)

    def graph_failed(self, graph: GraphExec, error: BaseException) -> None:
        """Record the error that an update or a launch of the run's graph raised. The graph is not used again."""
        graph.broken = True
        self.outcome.lose_track()
        node, instructions = graph.failed_node, instructions_of(self.compiled.plan)
        blamed = instructions[0] if node is None else node.instruction
        if not isinstance(error, DeviceError):
            self.outcome.fail(blamed, without_our_frames(error))
        elif isinstance(error, DeviceLostError):
            self.mark_lost(error)
        else:
            whole = f"the CUDA graph of {len(instructions)} instructions, among them {describe_instruction(blamed)}"
            self.outcome.fail(blamed, type(error)(f"{whole}: {error}", error.code))

    def device_of_lane(self, lane: int) -> CudaDevice:
        """Return the device of a lane."""
        return self.devices[self.compiled.plan.lanes[lane].device]

    # ---- waiting --------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Poll the run, and return True if it is over."""
        if self.finished:
            return True
        if not self.submitted:
            return False
        with self.devices[0].gpu.current():
            return self._look()

    def poll(self, seconds: float) -> bool:
        """Poll the run for at most this number of seconds. Return True if it is over."""
        if self.finished:
            return True
        with self.devices[0].gpu.current():
            return self.poll_in_context(seconds)

    def succeeds(self, seconds: float) -> bool:
        """Poll the run as `poll` does. Return True if it is over without a failure."""
        if self.polled is not None and not (self.finished or EXIT_GUARD.begun or self.devices[0].gpu.needs_context):
            EXIT_GUARD.inside.append(None)  # the first look, without the two calls that make a context current
            try:
                self._look()
            finally:
                EXIT_GUARD.inside.pop()
        return (self.finished or self.poll(seconds)) and not self.outcome.abnormal

    def poll_in_context(self, seconds: float) -> bool:
        """Poll the run for at most this number of seconds. Return True if it is over. The context must be current."""
        deadline = time.perf_counter() + seconds
        while not (self.submitted and self._look()):
            if time.perf_counter() >= deadline:
                return self.finished
        return True

    def _look(self, *, is_over: bool = False) -> bool:
        """Look once for the ends that have not come, unless it is known that the run `is_over`, and return True if it
        is."""
        polled = self.polled  # one read: another thread may record an event
        if polled is not None:
            try:
                if polled.query():
                    self._end_polled()
            except BaseException as error:
                if not self.mark_lost(error, needs=0):
                    raise
            return self.finished
        happened = []
        asked = 0
        try:
            with self.lock:
                ends = self.ends
                while ends:
                    asked, event = ends[-1]
                    if not (is_over or event.query()):
                        break
                    happened.append(ends.pop())
                if ends:
                    if len(self.devices) > 1:  # a device that is lost refuses, and others may wait for it for ever
                        for asked, event in ends:  # noqa: B007  # it says whose query has failed
                            event.query()
                    return self.finished
        except BaseException as error:
            if not self.mark_lost(error, needs=asked):
                raise
        finally:
            for number, event in happened:
                self.devices[number].streams.give_back(event)
        self._finish()
        return self.finished

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is over, at most `timeout` seconds. Return True if it is over. Other threads run
        meanwhile."""
        begin = time.monotonic()
        deadline = None if timeout is None else begin + timeout
        while not self.done():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if not self.submitted:
                time.sleep(NAP)
            elif len(self.devices) > 1:  # one of them may be lost, for which the others would wait
                time.sleep(NAP if now > begin + PROMPT else 0)
            elif deadline is None:
                self._synchronize()
            else:
                time.sleep(NAP)
        return True

    def _synchronize(self) -> None:
        asked, polled = 0, self.polled
        try:
            asked, end = (0, polled) if polled is not None else self.ends[-1]
        except IndexError:
            return
        with self.devices[0].gpu.current():
            try:
                end.synchronize()
            except BaseException as error:
                if not self.mark_lost(error, needs=asked):
                    raise

    @property
    def cancellable(self) -> bool:
        """True until everything is submitted."""
        return not self.submitted

    def readable(self) -> int | None:
        """Return the read end of a pipe whose write end the driver closes when the run is over; None if there are too
        many pipes, or the driver refuses."""
        device = self.devices[0]
        if self.polled is not None and not self._record_end():
            return None
        if device.watchdog.pipes_exhausted:
            return None
        try:
            read, write = os.pipe()
        except OSError:  # the process has too many files open
            return None
        pipe = identity(write)
        assert pipe is not None
        with self.lock:
            finishing, submitted = self.finishing, self.submitted
            if not finishing:
                self.wakeup_fd = write
        if finishing:
            os.close(write)
            return read
        try:
            if submitted:
                with device.gpu.current():
                    self._signal_when_done()
        except BaseException:
            os.close(read)
            raise
        device.watchdog.add(self, write, pipe)
        return read

    def _record_end(self) -> bool:
        """Record an event after the graph of a polled run, and have the run end with that: the pipe is closed after it,
        so the task that wakes finds the run over. Return False if the driver refuses, or another thread ends the
        run."""
        device, polled = self.devices[0], self.polled
        if polled is None or not self._claim():
            return polled is None
        try:
            with device.gpu.current():
                end = device.streams.take_event()
                try:
                    end.record(polled)
                except BaseException:
                    device.streams.give_back(end)
                    raise
            self.end_by_events()
            self.ends, self.polled = [(0, end)], None
        except DeviceError as error:
            self._become_live()
            self.mark_lost(error)
            return False
        except BaseException:
            self._become_live()
            raise
        self._become_live()
        return True

    def _claim(self) -> bool:
        """Return True for the one thread that may end a polled run, or have it end with an event."""
        try:
            self.devices[0].live.remove(self)  # atomic
        except KeyError:
            return False
        return True

    def _signal_when_done(self) -> None:
        """Have the driver close the pipe when all lanes have ended. Everything must be submitted.

        The driver closes it in the run's stream if the run alone uses one, else in a stream that waits for all ends.
        """
        device = self.devices[0]
        with self.lock:  # either the driver or the run's end closes it
            wakeup_fd, self.wakeup_fd = self.wakeup_fd, None
            events = [event for _, event in self.ends]
        if wakeup_fd is None:
            return
        try:
            own = self.exclusive
            if own is None and len(self.streams) == 1 and len(self.streams[0].users) == 1:
                own = self.streams[0]
            if own is not None:
                device.gpu.close_when_reached(own.raw, wakeup_fd)
                self.tells_its_end = own is self.exclusive and len(self.devices) == 1
                return
            notifier = device.streams.take_exclusive()
            for event in events:
                notifier.raw.wait_for_event(event)
            device.gpu.close_when_reached(notifier.raw, wakeup_fd)
        except BaseException as error:
            os.close(wakeup_fd)  # this wakes the task, which waits for the run itself
            if not isinstance(error, DeviceError):
                raise
            self.mark_lost(error)
            return
        with self.lock:
            late = self.finished
            if not late:
                self.notifier = notifier
        if late:
            device.streams.give_back_exclusive(notifier)

    def woken(self) -> None:
        """Finish the run without a look if its pipe was closed by the driver, which calls no host function in a context
        with an error; else `failures` polls the events."""
        if self.tells_its_end and self.devices[0].lost is None:
            self._look(is_over=True)

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over, up to some milliseconds late. It is the alternative to `readable`."""
        if self.done():
            wake()
        else:
            self.devices[0].watchdog.call(self, wake)

    def cancel(self) -> None:
        """Skip all instructions that are not submitted yet."""
        outcome = self.outcome
        if outcome is not FLAWLESS:
            outcome.cancel()

    def failures(self) -> list[Failure]:
        """Return the failures of the run, in the order of the plan's steps. The run must be over."""
        if not self.finished:
            self.wait()  # it is over, but not polled yet, or another thread is polling it
        return self.outcome.failures()

    def spoilt(self) -> frozenset[int] | None:
        """Return the buffers that were not completed; None if that is not known. The run must be over."""
        return self.outcome.spoilt()

    # ---- end ------------------------------------------------------------------------------------------------------

    def lose(self, error: DeviceLostError) -> None:
        """End the run with this error, because one of its devices is lost."""
        if self.polled is not None:
            if not self._claim():  # another thread ends it, or is about to see that the device is lost
                return
            self.end_by_events()
        instructions = instructions_of(self.compiled.plan)
        self.outcome.lose_track()
        if instructions and not self.finished:
            self.outcome.fail(instructions[0], DeviceLostError(str(error), error.code))  # own traceback
        self.outcome.cancel()
        self.polled = None  # now that others find the failure
        self._finish()

    def mark_lost(self, error: BaseException, *, needs: int | None = None) -> bool:
        """Mark a device as lost, and end every run on it, if `error` says that it is lost. Return True then.

        With `needs`, the run cannot end without the call that failed, which was one of its device with this number: any
        DeviceError counts as the loss of that device.
        """
        if not isinstance(error, DeviceError) or (needs is None and not isinstance(error, DeviceLostError)):
            return False
        lose_devices(self.devices, error, self._names(error), needs or 0)
        return True

    def _names(self, error: DeviceError) -> list[str]:
        """Return the instructions that this error may be of: after a failed assert the kernels that have one."""
        found = instructions_of(self.compiled.plan)
        asserting = [each for each in found if has_assert(each)] if error.code == ASSERT else []
        return [describe_instruction(each) for each in asserting or found]

    def _lose(self, lane: int, error: DeviceError) -> None:
        self.device_of_lane(lane).lose(error, self._names(error))

    def _end_polled(self) -> None:
        """Return what a polled run holds, whose stream is idle, unless another thread does. It is `_finish` without
        all that such a run does not have, which takes a third of the time."""
        device = self.devices[0]
        try:
            device.live.remove(self)  # as `_claim` does, without a call
        except KeyError:
            return
        try:
            if self.polled is None:  # an event has been recorded meanwhile
                self._look(is_over=True)
                return
            self.finishing = True
            if self.graphs is not None and self.graph is not None:
                self.graphs.idle.append(self.graph)  # as `give_back` does: it is neither new nor broken
            self._kept = ()
            if self.exclusive is not None:
                device.streams.exclusive.append(self.exclusive)
        finally:  # whatever interrupts this, other threads must not wait for ever
            self.finished = True

    def _finish(self) -> None:
        """Return what the run holds, unless another thread does."""
        with self.lock:
            if self.finishing:
                return
            self.finishing, wakeup_fd, self.wakeup_fd = True, self.wakeup_fd, None
        try:
            try:
                self._read_reports()
                if self.outcome.abnormal:
                    self.outcome.sort(self.compiled.plan)
                if self.timing is not None:
                    self.timing.collect()
            finally:  # the polling thread gets the error
                self._give_back(wakeup_fd)
        finally:  # whatever interrupts this, other threads must not wait for ever
            with self.lock:
                self.finished = True
            for device in self.devices:  # last: a thread that waits for the memory of live runs waits for this run too
                device.live.discard(self)
        if len(self.devices) == 1 or not self._is_stuck():
            for device, stream in self.guards:
                device.streams.give_back_exclusive(stream)
            for own in (self.notifier, self.exclusive):
                if own is not None:
                    self.devices[0].streams.give_back_exclusive(own)

    def _give_back(self, wakeup_fd: int | None) -> None:
        for stream in self.streams:
            stream.users.discard(self)
        if self.graph is not None and self._is_stuck():
            self.graph.abandon()
        self.return_graph()
        self.buffers.release()
        if wakeup_fd is not None:
            os.close(wakeup_fd)  # before `finished`: then the watchdog may close a pipe that the driver has left open

    def _is_stuck(self) -> bool:
        """True if one of several devices is lost: the work of the others may wait for it for ever."""
        return len(self.devices) > 1 and any(device.lost is not None for device in self.devices)

    def return_graph(self) -> None:
        """Return the run's graph. It must be complete, or not launched."""
        instance, self.graph = self.graph, None
        if instance is not None and self.graphs is not None:
            self.graphs.give_back(instance)

    def return_command_list(self) -> None:
        """Return the run's command list. Nothing more of it may be submitted."""
        command_list, self.command_list = self.command_list, None
        if command_list is not None:
            self._command_lists.give_back(command_list)

    def _read_reports(self) -> None:
        """Fail the launches that went out of bounds. Of a cancelled run nobody knows which did."""
        reports, cancelled = self.buffers.reports, self.outcome.cancelled
        if cancelled and (reports is not None or self.buffers.launched):
            self.outcome.lose_track()
        if reports is not None and not cancelled:
            fail_violations(
                self.compiled.plan, self.compiled.reports, array_over(reports, reports.nbytes), self.outcome
            )
        for launch in self.buffers.launched:
            for error in launch.violations():
                if not cancelled:
                    self.outcome.fail(launch.instruction, error)
                    self.outcome.lose_track()  # what follows it has run
