"""One run of a prepared plan: what it holds, how it completes, how it fails.

It is over when the last event of each lane has happened. Then everything that it held goes back: its memory to the
pools, its streams and events to the next run.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.base import Bindings, Failure
from dagpu.backends.cuda.blame import instructions_of, out_of_memory, what
from dagpu.backends.cuda.bounds import violations
from dagpu.backends.cuda.device import CudaDevice
from dagpu.backends.cuda.driver import OUT_OF_MEMORY, RawEvent, RawStream
from dagpu.backends.cuda.memory import Block
from dagpu.backends.cuda.packing import REPORT
from dagpu.backends.cuda.play import hand_over, play, play_on_threads
from dagpu.backends.cuda.prepared import PreparedPlan
from dagpu.backends.cuda.script import Action, Place, Script
from dagpu.backends.cuda.streams import CudaStream
from dagpu.backends.cuda.timing import Timing
from dagpu.backends.cuda.transfers import array_over, prompt
from dagpu.backends.cuda.watch import identity
from dagpu.backends.host_work import without_our_frames
from dagpu.backends.outcome import Outcome
from dagpu.backends.recording import recording
from dagpu.errors import DeviceError, DeviceLostError

NAP: Final = 50e-6
"""Seconds between two looks where there is nothing to block on."""

_ARENA: Final = "the temporaries of a run"
_RESULT: Final = "a result"
_GATHER: Final = "an array that is gathered on its way to the host"


def start(prepared: PreparedPlan, bindings: Bindings, spin: float) -> "CudaRun":
    """Take memory, streams and events, submit, and look for the end for at most `spin` seconds.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: a device was lost before.
    """
    devices = prepared.devices
    for device in devices:
        if device.lost is not None:
            device.refuse_if_lost()
    with devices[0].gpu.current():
        run = CudaRun(prepared, bindings)
        try:
            run.take_memory()
            run.take_streams()
        except BaseException as error:
            run.lost_in(error)
            raise
        for device in devices:
            device.live.add(run)
        if prepared.blocking or (prepared.copies_in and not all(prompt(run, copy) for copy in prepared.copies_in)):
            run.begin_elsewhere(play_on_threads)
        elif run.congested():
            run.begin_elsewhere(partial(hand_over, begin=0))
        else:
            play(run, 0)
            if spin:
                try:
                    run.look_for(spin)
                except BaseException:  # an interrupt: nobody else could wait for the run
                    run.cancel()
                    run.wait()
                    raise
    return run


@final
class CudaRun:
    """Implements `dagpu.backends.base.Replay`; the rest is for those who submit it.

    Invariants, under `_lock` where more than one thread may write:
        _played      =>  nothing more is submitted, and each lane has ended with its event in `ends`
        _finishing   =>  the devices are done with all of it
        _finished    =>  what the run held has been given back, and all its failures are known
    """

    __slots__ = (
        "__weakref__", "_bell", "_finished", "_finishing", "_kept", "_lock", "_notifier", "_played", "_reports",
        "_timing", "actions", "bases", "devices", "ends", "memory", "outcome", "prepared", "puts", "raw", "script",
        "streams",
    )  # fmt: skip

    def __init__(self, prepared: PreparedPlan, bindings: Bindings) -> None:
        self.prepared = prepared
        self.devices = prepared.devices
        self.memory = bindings.memory
        self.bases = prepared.bases()
        self.outcome = Outcome()
        self.script: Script | None = None
        self.actions: Sequence[Action] = ()
        """The script's, or where the run is measured, those that measure them."""
        self.puts = prepared.puts
        """What has been put into each lane after its last MARK."""
        self.streams: list[CudaStream] = []
        self.raw: list[RawStream] = []
        self.ends: list[tuple[int, RawEvent]] = []
        """The event at the end of each lane, and its device's number; once played, of those that have not ended."""
        self._kept: list[object] = []
        self._reports: Block | None = None
        self._timing: Timing | None = None
        self._lock = threading.Lock()
        self._played = False
        self._finishing = False
        self._finished = False
        self._bell: int | None = None
        self._notifier: CudaStream | None = None

    # ---- before it is submitted ---------------------------------------------------------------------------------

    def take_memory(self) -> None:
        """The arenas, and a block for each output and for each copy that gathers. All or nothing."""
        prepared, bases, memory = self.prepared, self.bases, self.memory
        for number, size in prepared.arenas:
            arena = self._take(number, size, _ARENA)
            self._kept.append(arena)
            bases[number] = arena.address
        for buffer, base, number, nbytes in prepared.outputs:
            block = self._take(number, nbytes, _RESULT)
            memory[buffer] = block
            bases[base] = block.address
        for base, number, nbytes in prepared.gathers:
            block = self._take(number, nbytes, _GATHER)
            self._kept.append(block)
            bases[base] = block.address
        for buffer, base in prepared.inputs:
            given = memory[buffer]
            assert isinstance(given, Block), f"{given!r} is no memory of the CUDA backend"
            bases[base] = given.address
        if prepared.reports:
            self._reports = self.devices[0].pinned.take(len(prepared.reports) * REPORT)
            array_over(self._reports, self._reports.nbytes)[...] = 0
            bases[prepared.report_base] = self._reports.address

    def _take(self, number: int, nbytes: int, purpose: str) -> Block:
        device = self.devices[number]
        if number:
            with device.gpu.current():
                return self._take_here(device, number, nbytes, purpose)
        return self._take_here(device, number, nbytes, purpose)

    def _take_here(self, device: CudaDevice, number: int, nbytes: int, purpose: str) -> Block:
        try:
            return device.memory.take(nbytes)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        device.reclaim()
        try:
            return device.memory.take(nbytes)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise out_of_memory(self.prepared.plan, device, number, nbytes, purpose) from None

    def take_streams(self) -> None:
        """A stream for each lane, an event for each lane's end, and a script with this run's addresses."""
        prepared, devices = self.prepared, self.devices
        if len(devices) == 1:
            streams = devices[0].streams
            self.streams = streams.take(prepared.keys)
            self.ends = [(0, streams.event()) for _ in prepared.keys]
        else:
            lanes = prepared.plan.lanes
            parts = []
            for number, device in enumerate(devices):
                keys = [lane.key for lane in lanes if lane.device == number]
                with device.gpu.current():
                    parts.append(iter(device.streams.take(keys) if keys else ()))
            self.streams = [next(parts[lane.device]) for lane in lanes]
            self.ends = [(lane.device, devices[lane.device].new_event()) for lane in lanes]
        self.raw = [stream.raw for stream in self.streams]
        measured = recording(prepared.plan, self.streams)
        if measured is not None:
            self._timing = Timing(measured, devices, [lane.device for lane in prepared.plan.lanes])
        self.script = script = prepared.borrow_script()
        script.aim(self.bases)
        self.actions = script.actions
        if self._timing is not None:
            self.actions, self.puts = self._timing.actions(script.actions), self._timing.puts
        for stream in self.streams:  # last: from here on the run has to end
            stream.users.add(self)

    def congested(self) -> bool:
        """Might the first launch block, or overtake what came before?"""
        for stream in self.streams:  # noqa: SIM110  # `any` of a generator takes twice as long
            if stream.congested():
                return True
        return False

    def begin_elsewhere(self, begin: "Callable[[CudaRun], None]") -> None:
        """Have threads submit it. If they cannot be started, the run is over, and nothing of it has begun."""
        try:
            begin(self)
        except BaseException:
            assert self.script is not None
            self.prepared.return_script(self.script)
            for number, event in self.ends:
                self.devices[number].streams.give_back(event)
            self.ends.clear()
            self.outcome.cancel()
            self._finish()
            raise

    # ---- while it is submitted ----------------------------------------------------------------------------------

    def all_played(self) -> None:
        """Nothing more will be submitted."""
        assert self.script is not None
        self.prepared.return_script(self.script)
        with self._lock:
            self.script = None
            self._played = True
            awaited = self._bell is not None
        if awaited:
            with self.devices[0].gpu.current():
                self._ring()

    def failed(self, action: Action, error: BaseException) -> bool:
        """An action raised this. Is it to be done again, because it was only interrupted and the run relies on it?"""
        instruction = action.instruction
        ours = self.device_of_lane(action.lane).gpu.error(error)
        again = instruction is None and isinstance(error, KeyboardInterrupt)
        if ours is None and (again or instruction is not None):
            blamed = instruction or instructions_of(self.prepared.plan)[0]
            self.outcome.fail(blamed, without_our_frames(error))
            return again
        if ours is None or isinstance(ours, DeviceLostError) or instruction is None:
            self._lose(action.lane, ours or DeviceError(str(error)))
        else:
            self.outcome.fail(instruction, type(ours)(f"{what(instruction)}: {ours}", ours.code))
        return False

    def keep(self, thing: object) -> None:
        """Keep this alive until the run is done."""
        self._kept.append(thing)

    def address(self, place: Place) -> int:
        """Where something lies in this run."""
        return self.bases[place.base] + place.offset

    def device_of_lane(self, lane: int) -> CudaDevice:
        """The device that a lane is on."""
        return self.devices[self.prepared.plan.lanes[lane].device]

    # ---- for those who wait ---------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Has everything happened?"""
        if self._finished:
            return True
        if not self._played:
            return False
        with self.devices[0].gpu.current():
            return self._look()

    def poll(self, seconds: float) -> bool:
        """Look for the end for at most so long."""
        if self._finished:
            return True
        with self.devices[0].gpu.current():
            return self.look_for(seconds)

    def look_for(self, seconds: float) -> bool:
        """The same, with the context current."""
        deadline = time.perf_counter() + seconds
        while not (self._played and self._look()):
            if time.perf_counter() >= deadline:
                return self._finished
        return True

    def _look(self) -> bool:
        happened = []
        try:
            with self._lock:
                ends = self.ends
                while ends and ends[-1][1].query():
                    happened.append(ends.pop())
                if ends:
                    return self._finished
        except BaseException as error:
            if not self.lost_in(error, relied_on=True):
                raise
        finally:
            for number, event in happened:
                self.devices[number].streams.give_back(event)
        self._finish()
        return self._finished

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done, at most `timeout` seconds. Other threads run meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._played and deadline is None:
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
        if self.devices[0].watch.crowded:
            return None
        try:
            read, write = os.pipe()
        except OSError:  # the process has too many files open
            return None
        pipe = identity(write)
        assert pipe is not None
        with self._lock:
            finishing, played = self._finishing, self._played
            if not finishing:
                self._bell = write
        if finishing:
            os.close(write)
            return read
        try:
            if played:
                with self.devices[0].gpu.current():
                    self._ring()
        except BaseException:
            os.close(read)
            raise
        self.devices[0].watch.add(self, write, pipe)
        return read

    def _ring(self) -> None:
        """Have the driver close the pipe when all lanes are at their end: in the stream itself where the run has one to
        itself, else on a stream that waits for its ends alone."""
        device = self.devices[0]
        with self._lock:  # of the driver and `_finish` one closes it
            bell, self._bell = self._bell, None
            events = [event for _, event in self.ends]
        if bell is None:
            return
        try:
            if len(self.streams) == 1 and len(self.streams[0].users) == 1:
                device.gpu.close_when_reached(self.raw[0], bell)
                return
            notifier = device.streams.take_notifier()
            for event in events:
                notifier.raw.wait_for_event(event)
            device.gpu.close_when_reached(notifier.raw, bell)
        except BaseException as error:
            os.close(bell)  # whoever sleeps on it waits for the run himself
            if device.gpu.error(error) is None:
                raise
            self.lost_in(error)
            return
        with self._lock:
            late = self._finished
            if not late:
                self._notifier = notifier
        if late:
            device.streams.give_back_notifier(notifier)

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
        if not self._finished:
            self.wait()  # it is done, but nobody has looked, or somebody is just looking
        return self.outcome.failures()

    # ---- its end --------------------------------------------------------------------------------------------------

    def lose(self, error: DeviceLostError) -> None:
        """A device of it was lost: it ends here."""
        instructions = instructions_of(self.prepared.plan)
        if instructions and not self._finished:
            self.outcome.fail(instructions[0], DeviceLostError(str(error), error.code))  # its own: it gets a traceback
        self.outcome.cancel()
        self._finish()

    def lost_in(self, error: BaseException, *, relied_on: bool = False) -> bool:
        """If this says that a device is lost, end every run on it. Of what a run relies on to end, any failure does."""
        ours = self.devices[0].gpu.error(error)
        if ours is None or not (relied_on or isinstance(ours, DeviceLostError)):
            return False
        for device in self.devices if len(self.devices) > 1 else ():
            try:  # which of them it is: a lost one refuses every call
                with device.gpu.current():
                    device.gpu.memory_info()
            except DeviceLostError as its_own:
                device.lose(its_own, self._names())
        if all(device.lost is None for device in self.devices):
            self._lose(0, ours)
        return True

    def _names(self) -> list[str]:
        return [what(each) for each in instructions_of(self.prepared.plan)]

    def _lose(self, lane: int, error: DeviceError) -> None:
        self.device_of_lane(lane).lose(error, self._names())

    def _finish(self) -> None:
        with self._lock:
            if self._finishing:
                return
            self._finishing = True
            bell, self._bell = self._bell, None
        try:
            if self._reports is not None and not self.outcome.cancelled:
                self._blame_bounds(array_over(self._reports, self._reports.nbytes))
            if self.outcome.abnormal:
                self.outcome.sort(self.prepared.plan)
            if self._timing is not None:
                self._timing.collect()
        finally:  # whoever looked gets what was raised; whoever waits must not wait for ever
            self._give_back(bell)

    def _give_back(self, bell: int | None) -> None:
        for device in self.devices:
            device.live.discard(self)
        for stream in self.streams:
            stream.users.discard(self)
        self._kept.clear()
        self._reports = None
        self.memory = []
        if bell is not None:
            os.close(bell)  # before it counts as finished: then the watch may close what the driver has left open
        with self._lock:
            self._finished = True
            notifier = self._notifier
        if notifier is not None:
            self.devices[0].streams.give_back_notifier(notifier)

    def _blame_bounds(self, reports: NDArray[np.uint8]) -> None:
        """Fail the launches that went out of bounds, but for those that only did so on another's wrong results."""
        found = {id(launch): error for launch, error in violations(self.prepared.reports, reports)}
        if not found:
            return
        outcome = self.outcome
        for instruction in instructions_of(self.prepared.plan):
            if not (outcome.abnormal and outcome.skips(instruction)) and (error := found.get(id(instruction))):
                outcome.fail(instruction, error)
