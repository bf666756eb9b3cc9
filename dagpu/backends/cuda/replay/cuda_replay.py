"""One run of a prepared plan: what it holds, how it completes, how it fails.

It is over when the last event of each lane has happened. Then everything that it held goes back: its memory to the
pools, its streams and events to the next run.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.cuda.commands.bounds_reports import blame
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import Command, CommandList
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.error_context import instructions_of, what
from dagpu.backends.cuda.commands.transfers import array_over
from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.graphs.instances import GraphExec
from dagpu.backends.cuda.replay.timing import EventTiming
from dagpu.backends.cuda.replay.wakeup import open_bell, ring
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import Bindings, Failure
from dagpu.common.errors import DeviceError, DeviceLostError
from dagpu.common.tracebacks import without_our_frames

NAP: Final = 50e-6
"""Seconds between two looks where there is nothing to block on."""


@final
class CudaReplay:
    """Implements `dagpu.backends.protocol.Replay`; the rest is for those who submit it.

    Invariants, under `lock` where more than one thread may write:
        played       =>  nothing more is submitted, and each lane has ended with its event in `ends`
        finishing    =>  the devices are done with all of it
        finished     =>  what the run held has been given back, and all its failures are known
    """

    __slots__ = (
        "__weakref__", "_release_graph", "_release_script", "actions", "bell", "compiled", "devices", "ends",
        "finished", "finishing", "graph", "held", "lock", "notifier", "outcome", "played", "puts", "raw", "script",
        "streams", "timing",
    )  # fmt: skip

    def __init__(
        self,
        compiled: CompiledPlan,
        bindings: Bindings,
        release_script: Callable[[CommandList], None],
        release_graph: Callable[[GraphExec], None],
    ) -> None:
        self.compiled = compiled
        self.devices = compiled.devices
        self._release_script = release_script
        """Gives a script back to its pool. It keeps the pool, and so the events in it, alive until the run is over."""
        self._release_graph = release_graph
        self.held = RunMemory(compiled, bindings.memory)
        self.outcome = Outcome()
        self.script: CommandList | None = None
        self.actions: Sequence[Command] = ()
        """The script's, or where the run is measured, those that measure them."""
        self.graph: GraphExec | None = None
        """What is launched instead of a script. The run has it until it is over."""
        self.timing: EventTiming | None = None
        self.puts: Sequence[int] = ()
        """What has been put into each lane after its last MARK."""
        self.streams: list[CudaStream] = []
        self.raw: list[RawStream] = []
        self.ends: list[tuple[int, RawEvent]] = []
        """The event at the end of each lane, and its device's number; once played, of those that have not ended."""
        self.lock = threading.Lock()
        self.played = False
        """Has all been submitted?"""
        self.finishing = False
        self.finished = False
        self.bell: int | None = None
        """The writing end of a pipe that somebody sleeps on, until the driver is told to close it."""
        self.notifier: CudaStream | None = None
        """The stream in which the driver closes it, if that is none of the run's own."""

    # ---- while it is submitted ----------------------------------------------------------------------------------

    def congested(self) -> bool:
        """Might the first launch block, or overtake what came before?"""
        for stream in self.streams:  # noqa: SIM110  # `any` of a generator takes twice as long
            if stream.congested():
                return True
        return False

    def begin_elsewhere(self, begin: "Callable[[CudaReplay], None]") -> None:
        """Have threads submit it. If they cannot be started, the run is over, and nothing of it has begun."""
        try:
            begin(self)
        except BaseException:
            self.let_go_of_script()
            for number, event in self.ends:
                self.devices[number].streams.give_back(event)
            self.ends.clear()
            self.outcome.cancel()
            self._finish()
            raise

    def all_played(self) -> None:
        """Nothing more will be submitted."""
        self.let_go_of_script()
        with self.lock:
            self.played = True
            awaited = self.bell is not None
        if awaited:
            with self.devices[0].gpu.current():
                ring(self)

    def failed(self, action: Command, error: BaseException) -> bool:
        """An action raised this. Is it to be done again, because it was only interrupted and the run relies on it?"""
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
            self.outcome.fail(instruction, type(ours)(f"{what(instruction)}: {ours}", ours.code))
        return False

    def graph_failed(self, graph: GraphExec, error: BaseException) -> None:
        """Writing a node of its graph, or launching it, has raised this: the graph is not used again."""
        graph.broken = True
        node, instructions = graph.touched, instructions_of(self.compiled.plan)
        blamed = instructions[0] if node is None else node.instruction
        if not isinstance(error, DeviceError):
            self.outcome.fail(blamed, without_our_frames(error))
        elif isinstance(error, DeviceLostError):
            self._lose(0, error)
        else:
            whole = f"the CUDA graph of {len(instructions)} instructions, of them {what(blamed)}"
            self.outcome.fail(blamed, type(error)(f"{whole}: {error}", error.code))

    def device_of_lane(self, lane: int) -> CudaDevice:
        """The device that a lane is on."""
        return self.devices[self.compiled.plan.lanes[lane].device]

    # ---- for those who wait ---------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Has everything happened?"""
        if self.finished:
            return True
        if not self.played:
            return False
        with self.devices[0].gpu.current():
            return self._look()

    def poll(self, seconds: float) -> bool:
        """Look for the end for at most so long."""
        if self.finished:
            return True
        with self.devices[0].gpu.current():
            return self.look_for(seconds)

    def look_for(self, seconds: float) -> bool:
        """The same, with the context current."""
        deadline = time.perf_counter() + seconds
        while not (self.played and self._look()):
            if time.perf_counter() >= deadline:
                return self.finished
        return True

    def _look(self) -> bool:
        happened = []
        try:
            with self.lock:
                ends = self.ends
                while ends and ends[-1][1].query():
                    happened.append(ends.pop())
                if ends:
                    return self.finished
        except BaseException as error:
            if not self.lost_in(error, relied_on=True):
                raise
        finally:
            for number, event in happened:
                self.devices[number].streams.give_back(event)
        self._finish()
        return self.finished

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done, at most `timeout` seconds. Other threads run meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self.played and deadline is None:
                self._synchronize()
            else:
                time.sleep(NAP)
        return True

    def _synchronize(self) -> None:
        try:
            end = self.ends[-1][1]
        except IndexError:
            return
        with self.devices[0].gpu.current():
            try:
                end.synchronize()
            except BaseException as error:
                if not self.lost_in(error, relied_on=True):
                    raise

    def readable(self) -> int | None:
        """The reading end of a pipe whose other end the driver closes; None where there are many already."""
        return open_bell(self)

    def when_done(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once done, up to some milliseconds late: for those who get no descriptor."""
        if self.done():
            wake()
        else:
            self.devices[0].watch.call(self, wake)

    def cancel(self) -> None:
        """Skip what has not been submitted."""
        self.outcome.cancel()

    def failures(self) -> list[Failure]:
        """Once done: what failed, in the order of the plan's steps."""
        if not self.finished:
            self.wait()  # it is done, but nobody has looked, or somebody is just looking
        return self.outcome.failures()

    # ---- its end --------------------------------------------------------------------------------------------------

    def lose(self, error: DeviceLostError) -> None:
        """A device of it was lost: it ends here."""
        instructions = instructions_of(self.compiled.plan)
        if instructions and not self.finished:
            self.outcome.fail(instructions[0], DeviceLostError(str(error), error.code))  # its own: it gets a traceback
        self.outcome.cancel()
        self._finish()

    def lost_in(self, error: BaseException, *, relied_on: bool = False) -> bool:
        """If this says that a device is lost, end every run on it. Of what a run relies on to end, any failure does."""
        if not isinstance(error, DeviceError) or not (relied_on or isinstance(error, DeviceLostError)):
            return False
        for device in self.devices if len(self.devices) > 1 else ():
            try:  # which of them it is: a lost one refuses every call
                with device.gpu.current():
                    device.gpu.memory_info()
            except DeviceLostError as its_own:
                device.lose(its_own, self._names())
        if all(device.lost is None for device in self.devices):
            self._lose(0, error)
        return True

    def _names(self) -> list[str]:
        return [what(each) for each in instructions_of(self.compiled.plan)]

    def _lose(self, lane: int, error: DeviceError) -> None:
        self.device_of_lane(lane).lose(error, self._names())

    def _finish(self) -> None:
        with self.lock:
            if self.finishing:
                return
            self.finishing = True
            bell, self.bell = self.bell, None
        try:
            self._look_at_reports()
            if self.outcome.abnormal:
                self.outcome.sort(self.compiled.plan)
            if self.timing is not None:
                self.timing.collect()
        finally:  # whoever looked gets what was raised; whoever waits must not wait for ever
            self._give_back(bell)

    def _give_back(self, bell: int | None) -> None:
        for stream in self.streams:
            stream.users.discard(self)
        self.let_go_of_graph()
        self.held.drop()
        if bell is not None:
            os.close(bell)  # before it counts as finished: then the watch may close what the driver has left open
        with self.lock:
            self.finished = True
            notifier = self.notifier
        for device in self.devices:  # last: who waits for the memory of what is live waits for this run too
            device.live.discard(self)
        if notifier is not None:
            self.devices[0].streams.give_back_notifier(notifier)

    def let_go_of_graph(self) -> None:
        """It runs no more, or has not been launched."""
        instance, self.graph = self.graph, None
        if instance is not None:
            self._release_graph(instance)

    def let_go_of_script(self) -> None:
        """Nothing more of it is submitted."""
        script, self.script = self.script, None
        if script is not None:
            self._release_script(script)

    def _look_at_reports(self) -> None:
        """Fail the launches that went out of bounds."""
        reports, cancelled = self.held.reports, self.outcome.cancelled
        if reports is not None and not cancelled:
            blame(self.compiled.plan, self.compiled.reports, array_over(reports, reports.nbytes), self.outcome)
        for launch in self.held.launched:
            for error in launch.violations():
                if not cancelled:
                    self.outcome.fail(launch.instruction, error)
