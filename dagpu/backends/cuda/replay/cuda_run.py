"""One run of a prepared plan: its resources, its completion, its failures.

The run is over when the last event of each lane is complete. Then it returns its memory, streams and events to the
pools.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.cuda.commands.bounds_reports import fail_violations
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import Command, CommandList
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.error_context import describe_instruction, instructions_of
from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.replay.timing import EventTiming
from dagpu.backends.cuda.replay.wakeup import open_wakeup_pipe, signal_when_done
from dagpu.backends.cuda.resources.cuda_device import CudaDevice, lose_devices
from dagpu.backends.cuda.resources.pools import array_over
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import Failure
from dagpu.common.errors import DeviceError, DeviceLostError
from dagpu.common.places import without_our_frames

NAP: Final = 50e-6
"""Seconds between two polls while the run has no event to wait for."""

PROMPT: Final = 1e-3
"""Seconds for which a thread polls a run on several devices without naps, since many of these runs are short."""


@final
class CudaRun:
    """One run of a prepared plan. Implements `dagpu.backends.protocol.Run`; the other methods are for submission.

    Invariants, under `lock` where more than one thread may write:
        submitted    =>  everything is submitted, and each lane ends with its event in `ends`
        finishing    =>  the devices have completed the run
        finished     =>  the run's resources have been returned, and all its failures are known
    """

    __slots__ = (
        "__weakref__", "_release_command_list", "_release_graph", "actions", "buffers", "command_list", "compiled",
        "devices", "ends", "exclusive", "finished", "finishing", "graph", "guards", "lock", "notifier", "outcome",
        "raw", "streams", "submitted", "timing", "unmarked", "wakeup_fd",
    )  # fmt: skip

    def __init__(
        self,
        compiled: CompiledPlan,
        buffers: RunMemory,
        release_command_list: Callable[[CommandList], None],
        release_graph: Callable[[GraphExec], None],
    ) -> None:
        self.compiled = compiled
        self.devices = compiled.devices
        self._release_command_list = release_command_list
        """Returns a command list to its pool. This reference keeps the pool, and so its events, alive until the run is
        over."""
        self._release_graph = release_graph
        self.buffers = buffers
        self.outcome = Outcome()
        self.command_list: CommandList | None = None
        self.actions: Sequence[Command] = ()
        """The commands to submit: the command list's own, or measuring ones if the run is measured."""
        self.graph: GraphExec | None = None
        """The graph that was launched instead of a command list. The run owns it until it is over."""
        self.exclusive: CudaStream | None = None
        """The stream that the run returns to the pool of exclusive streams when it is over, if it uses one."""
        self.guards: list[tuple[CudaDevice, CudaStream]] = []
        """For a graph over several devices, an exclusive stream of each further device, in which the end of the run is
        waited for: the device refuses to say whether it has come when it is lost."""
        self.timing: EventTiming | None = None
        self.unmarked: Sequence[int] = ()
        """For each lane the number of instructions after its last MARK."""
        self.streams: list[CudaStream] = []
        self.raw: list[RawStream] = []
        self.ends: list[tuple[int, RawEvent]] = []
        """The event at the end of each lane, and its device's number. Once `submitted`, only those of lanes that
        have not ended."""
        self.lock = threading.Lock()
        self.submitted = False
        """True once everything is submitted."""
        self.finishing = False
        self.finished = False
        self.wakeup_fd: int | None = None
        """The write end of a pipe on which a task sleeps; None once the driver has been told to close it."""
        self.notifier: CudaStream | None = None
        """The stream in which the driver closes the pipe, if it is not a stream of the run."""

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
                signal_when_done(self)

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
            return self._poll_ends()

    def poll(self, seconds: float) -> bool:
        """Poll the run for at most this number of seconds. Return True if it is over."""
        if self.finished:
            return True
        with self.devices[0].gpu.current():
            return self.poll_in_context(seconds)

    def succeeds(self, seconds: float) -> bool:
        """Poll the run as `poll` does. Return True if it is over without a failure."""
        return self.poll(seconds) and not self.outcome.abnormal

    def poll_in_context(self, seconds: float) -> bool:
        """Poll the run for at most this number of seconds. Return True if it is over. The context must be current."""
        deadline = time.perf_counter() + seconds
        while not (self.submitted and self._poll_ends()):
            if time.perf_counter() >= deadline:
                return self.finished
        return True

    def _poll_ends(self) -> bool:
        happened = []
        asked = 0
        try:
            with self.lock:
                ends = self.ends
                while ends:
                    asked, event = ends[-1]
                    if not event.query():
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
        try:
            asked, end = self.ends[-1]
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
        many pipes."""
        return open_wakeup_pipe(self)

    def woken(self) -> None:
        """Do nothing: `failures` polls the events."""

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over, up to some milliseconds late. It is the alternative to `readable`."""
        if self.done():
            wake()
        else:
            self.devices[0].watchdog.call(self, wake)

    def cancel(self) -> None:
        """Skip all instructions that are not submitted yet."""
        self.outcome.cancel()

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
        instructions = instructions_of(self.compiled.plan)
        self.outcome.lose_track()
        if instructions and not self.finished:
            self.outcome.fail(instructions[0], DeviceLostError(str(error), error.code))  # own traceback
        self.outcome.cancel()
        self._finish()

    def mark_lost(self, error: BaseException, *, needs: int | None = None) -> bool:
        """Mark a device as lost, and end every run on it, if `error` says that it is lost. Return True then.

        With `needs`, the run cannot end without the call that failed, which was one of its device with this number: any
        DeviceError counts as the loss of that device.
        """
        if not isinstance(error, DeviceError) or (needs is None and not isinstance(error, DeviceLostError)):
            return False
        lose_devices(self.devices, error, self._names(), needs or 0)
        return True

    def _names(self) -> list[str]:
        return [describe_instruction(each) for each in instructions_of(self.compiled.plan)]

    def _lose(self, lane: int, error: DeviceError) -> None:
        self.device_of_lane(lane).lose(error, self._names())

    def _finish(self) -> None:
        with self.lock:
            if self.finishing:
                return
            self.finishing = True
            wakeup_fd, self.wakeup_fd = self.wakeup_fd, None
        try:
            self._read_reports()
            if self.outcome.abnormal:
                self.outcome.sort(self.compiled.plan)
            if self.timing is not None:
                self.timing.collect()
        finally:  # the polling thread gets the error; waiting threads must not wait for ever
            self._give_back(wakeup_fd)

    def _give_back(self, wakeup_fd: int | None) -> None:
        for stream in self.streams:
            stream.users.discard(self)
        # When one of several devices is lost, the work of the others may wait for it for ever.
        stuck = len(self.devices) > 1 and any(device.lost is not None for device in self.devices)
        if stuck and self.graph is not None:
            self.graph.abandon()
        self.return_graph()
        self.buffers.release()
        if wakeup_fd is not None:
            os.close(
                wakeup_fd
            )  # before `finished`: after that, the watchdog may close a pipe that the driver has left open
        with self.lock:
            self.finished = True
            notifier = self.notifier
        for device in self.devices:  # last: a thread that waits for the memory of live runs waits for this run too
            device.live.discard(self)
        idle = [
            *self.guards,
            *[(self.devices[0], stream) for stream in (notifier, self.exclusive) if stream is not None],
        ]
        for device, stream in () if stuck else idle:
            device.streams.give_back_exclusive(stream)

    def return_graph(self) -> None:
        """Return the run's graph. It must be complete, or not launched."""
        instance, self.graph = self.graph, None
        if instance is not None:
            self._release_graph(instance)

    def return_command_list(self) -> None:
        """Return the run's command list. Nothing more of it may be submitted."""
        command_list, self.command_list = self.command_list, None
        if command_list is not None:
            self._release_command_list(command_list)

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
