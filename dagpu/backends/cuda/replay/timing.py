"""Measuring a run on GPUs: an event with timing before and after each instruction, in its stream.

The run's actions are replaced by ones that record them; the script itself stays as it is, for runs that nobody
measures. Times are counted from an event that is recorded in an idle stream before the run, where the host's clock is
read as well. A GPU's clock ticks every half microsecond or so (cuEventElapsedTime).
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
from dagpu.lowering.program import Instruction

ENTRIES = 3
"""What a measured instruction puts into its stream: itself, and two events. It counts towards a full queue."""


@final
class EventTiming:
    """The events of one run. Its threads may add to it at once."""

    def __init__(self, recording: MeasuredRun, devices: Sequence[CudaDevice], device_of_lane: Sequence[int]) -> None:
        self._recording = recording
        self._devices = devices
        self._device_of_lane = device_of_lane
        self._taken: list[tuple[CudaDevice, TimingEvent]] = []
        self._spans: list[tuple[Instruction, int, TimingEvent, TimingEvent]] = []
        self._starts: list[tuple[TimingEvent, float]] = []
        """Of each device an event that has happened, and when: seconds of `time.perf_counter`."""
        try:
            for device in devices:
                self._starts.append(self._start(device))
        except BaseException:
            self._let_go()
            raise
        self.puts = [0] * len(device_of_lane)
        """Entries put into each lane after its last MARK."""

    def _start(self, device: CudaDevice) -> tuple[TimingEvent, float]:
        with device.gpu.current():
            event = self._take(device)
            idle = device.streams.take_notifier()
            try:
                event.record(idle.raw)
                event.synchronize()
                return event, time.perf_counter()
            finally:
                device.streams.give_back_notifier(idle)

    def _take(self, device: CudaDevice) -> TimingEvent:
        event = device.streams.timing_event()
        self._taken.append((device, event))
        return event

    def actions(self, plain: Sequence[Command], launch: Callable[[int], None]) -> list[Command]:
        """The same actions, measured, and with a MARK wherever so many entries have come together. `launch` makes the
        launch of a number."""
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
            self.puts[action.lane] += ENTRIES
            if self.puts[action.lane] >= MARK_EVERY:
                found.append(Command(Kind.MARK, action.lane, None, self.puts[action.lane]))
                self.puts[action.lane] = 0
        return found

    def _measured(self, action: Command, instruction: Instruction, launch: Callable[[int], None]) -> Do:
        """What the action does, between two events. The device's context is current."""
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
        """The devices are done: tell the recording, and give the events back. On a lost device there is nothing to
        tell."""
        if all(device.lost is None for device in self._devices):
            try:
                for instruction, number, begin, end in self._spans:
                    base, when = self._starts[number]
                    with self._devices[number].gpu.current():
                        times = begin.time_since(base), end.time_since(base)
                    self._recording.add(instruction, when + times[0] * 1e-3, when + times[1] * 1e-3)
            except DeviceError:
                pass  # a driver that fails here has failed the run as well
        self._let_go()

    def _let_go(self) -> None:
        """The events are free, unless their device is lost, and the recording has all that it will get."""
        for device, event in self._taken:
            if device.lost is None:
                device.streams.give_back_timing(event)
        self._spans, self._taken = [], []
        self._recording.end()
