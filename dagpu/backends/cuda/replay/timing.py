"""Measures a run on GPUs, with a timing event before and after each instruction in its stream.

The run's commands are replaced by ones that record the events. The command list itself does not change, so other runs
are not measured. Times are relative to an event that is recorded in an idle stream before the run, when the host's
clock is read as well. A GPU's clock has a resolution of about half a microsecond (cuEventElapsedTime).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import final

from dagpu.backends.common.measuring import MeasuredRun
from dagpu.backends.cuda.commands.command_list import Command, Do, Kind, RunBuffers
from dagpu.backends.cuda.driver.driver_protocol import RawStream, TimingEvent
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import MARK_EVERY
from dagpu.common.errors import DeviceError
from dagpu.plans.program import Instruction

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
