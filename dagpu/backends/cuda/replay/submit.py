"""Submits a run's commands to the driver one by one, in the plan's order, or follows a graph that was launched.

Usually the thread that starts the run submits all of it. In two cases that thread might block, and worker threads
continue:

- A stream's queue is full (the driver would block): one thread submits the rest, in the plan's order, and blocks when
necessary.
- The plan calls functions of the host, or stages large arrays: a thread of its own submits each lane. Before a lane
waits for the event of another lane, its thread waits until that event is recorded.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, Final, final

from dagpu.backends.cuda.commands.command_list import Command, Kind
from dagpu.backends.cuda.driver.driver_protocol import LAUNCH, RawEvent
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.host.worker_threads import enqueue
from dagpu.common.errors import DeviceError

# As names of this module they cost one look-up each in the loop over all launches.
_LAUNCH: Final = Kind.LAUNCH
_RECORD: Final = Kind.RECORD
_WAIT: Final = Kind.WAIT
_DO: Final = Kind.DO
_HOST: Final = Kind.HOST
_MARK: Final = Kind.MARK


def submit_commands(run: CudaRun, begin: int, may_block: bool = False) -> None:
    """Submit all commands from number `begin` on. With `may_block`, this thread may block. The first device's context
    must be current."""
    assert run.command_list is not None
    actions, launches, events = run.actions, run.command_list.launches.each, run.command_list.events
    raw, outcome, buffers = run.raw, run.outcome, run.buffers
    here = _device_before(run, begin)
    entered: AbstractContextManager[object] | None = None
    number = begin
    while True:
        try:
            for number, action in enumerate(islice(actions, begin, None) if begin else actions, begin):
                kind, lane, instruction, a = action
                if outcome.abnormal and instruction is not None and outcome.skips(instruction):
                    continue
                if kind is _LAUNCH:
                    if code := launches[a]():
                        raise run.devices[0].gpu.refused(LAUNCH, code)
                elif kind is _RECORD:
                    events[a].record(raw[lane])
                elif kind is _WAIT:
                    raw[lane].wait_for_event(events[a])
                elif kind is _DO or kind is _HOST:
                    a(buffers, here, raw[lane])
                elif kind is _MARK:
                    run.streams[lane].count_entries(a)
                    if _rest_is_submitted_elsewhere(run, lane, number + 1, may_block):
                        _leave(entered)
                        return
                else:
                    leaving, entered = entered, None
                    _leave(leaving)
                    here = run.devices[a]
                    entering = here.gpu.current()
                    entering.__enter__()
                    entered = entering
            break
        except BaseException as error:
            begin = number if run.failed(actions[number], error) else number + 1
    _leave(entered)
    _end_lanes(run, range(len(raw)))
    run.finish_submission()


def follow_launch(run: CudaRun, stream: CudaStream, end: RawEvent | None = None) -> None:
    """Follow a run that has been launched by one call in this stream, or whose launch has failed. `end` is the event
    that was recorded after the launch; None to record one. The context must be current."""
    device = run.devices[0]
    run.streams, run.raw, run.unmarked = [stream], [stream.raw], (1,)
    stream.users.add(run)
    for used in run.devices:
        used.live.add(run)
    if end is not None:
        run.ends = [(0, end)]
    for used in run.devices:
        if used.lost is not None:  # by another run. To find that out by a call would lose each run inside another
            run.lose(used.lost)
            run.finish_submission()
            return
    again = end is None
    while again:
        again = False
        try:
            run.ends = [(0, device.streams.take_event())]
        except BaseException as refused:
            again = run.failed(Command(_RECORD, 0), refused)
    if run.ends and end is None:
        _end_lanes(run, (0,))
    if run.ends and len(run.devices) > 1:
        _guard_devices(run)
    run.finish_submission()


def _guard_devices(run: CudaRun) -> None:
    """Let each further device of a graph's run wait for the end of the run, which the first device records."""
    end = run.ends[0][1]
    number = 0
    try:
        for number, device in enumerate(run.devices[1:], 1):
            with device.gpu.current():
                stream = device.streams.take_exclusive()
                run.guards = (*run.guards, (device, stream))
                event = device.streams.take_event()
                stream.raw.wait_for_event(end)
                event.record(stream.raw)
                run.ends.append((number, event))
    except DeviceError as error:
        run.mark_lost(error, needs=number)
    except BaseException as error:  # an interrupt: the run goes on, and is as good as lost without a guard
        run.failed(Command(_RECORD, 0), error)


def _leave(entered: AbstractContextManager[object] | None) -> None:
    if entered is not None:
        entered.__exit__(None, None, None)


def _rest_is_submitted_elsewhere(run: CudaRun, lane: int, begin: int, may_block: bool) -> bool:
    """Wait until a lane's stream is not full, or have another thread submit the rest if this thread must not block.
    Return True in the second case."""
    stream = run.streams[lane]
    if not may_block:
        if not stream.full():
            return False
        try:
            submit_rest_on_thread(run, begin)
        except DeviceError:  # no thread can be started: block instead
            pass
        else:
            return True
    stream.drain()
    return False


def _device_before(run: CudaRun, begin: int) -> CudaDevice:
    """Return the device that is current before the command of number `begin`."""
    switches = [action.a for action in islice(run.actions, begin) if action.kind is Kind.SWITCH] if begin else ()
    return run.devices[switches[-1] if switches else 0]


def submit_rest_on_thread(run: CudaRun, begin: int) -> None:
    """Have another thread submit the rest: the next launch might block this thread, which may run an event loop."""
    device = _device_before(run, begin)

    def submit_rest() -> None:
        try:
            with run.devices[0].gpu.current(), device.gpu.current():
                try:
                    for stream in run.streams:
                        stream.drain()
                except BaseException as error:
                    run.failed(Command(_RECORD, 0), error)
                submit_commands(run, begin, may_block=True)
        finally:
            release_streams()

    def release_streams() -> None:
        for stream in run.streams:
            stream.still_submitting.discard(run)

    for stream in run.streams:
        stream.still_submitting.add(run)
    try:
        enqueue({run.streams[0].worker: _Work(submit_rest)})
    except BaseException:  # no thread can be started
        release_streams()
        raise


def submit_on_threads(run: CudaRun) -> None:
    """Submit each lane on the worker thread of its stream. The work is enqueued at once, in one order for all runs, so
    that two runs with common streams cannot deadlock."""
    assert run.command_list is not None
    lanes: dict[Any, list[int]] = {}
    for lane, stream in enumerate(run.streams):
        lanes.setdefault(stream.worker, []).append(lane)
    threads = _Threads(run, len(lanes))
    enqueue({worker: _Work(partial(threads.submit_commands, mine)) for worker, mine in lanes.items()})


@final
class _Threads:
    """The threads that submit one run."""

    def __init__(self, run: CudaRun, count: int) -> None:
        assert run.command_list is not None
        self._run = run
        self._command_list = run.command_list
        self._recorded = [threading.Event() for _ in run.command_list.events]
        self._left = count
        self._lock = threading.Lock()

    def submit_commands(self, lanes: list[int]) -> None:
        """Submit the commands of these lanes, on one thread."""
        run, mine = self._run, set(lanes)
        actions = [action for action in run.actions if action.lane in mine and action.kind is not Kind.SWITCH]
        try:
            with run.device_of_lane(lanes[0]).gpu.current():
                for action in actions:
                    again = True
                    while again:
                        again = False
                        try:
                            self._act(action)
                        except BaseException as error:
                            again = run.failed(action, error)
                    if action.kind is _RECORD:
                        # Even if the record failed: a lane that waits for it may be one for which this lane waits
                        # later.
                        self._recorded[action.a].set()
                _end_lanes(run, lanes)
        finally:
            for action in actions:
                if action.kind is _RECORD:
                    self._recorded[action.a].set()  # even after an error: the other threads go on
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                run.finish_submission()

    def _act(self, action: Command) -> None:
        run, events = self._run, self._command_list.events
        raw, kind, instruction = run.raw[action.lane], action.kind, action.instruction
        if kind is _RECORD:
            events[action.a].record(raw)
        elif kind is _WAIT:
            self._recorded[action.a].wait()
            raw.wait_for_event(events[action.a])
        elif kind is _MARK:
            stream = run.streams[action.lane]
            stream.count_entries(action.a)
            stream.drain()
        elif run.outcome.abnormal and instruction is not None and run.outcome.skips(instruction):
            return
        elif kind is _LAUNCH:
            self._command_list.launch(action.a)
        else:
            action.a(run.buffers, run.device_of_lane(action.lane), raw)


def _end_lanes(run: CudaRun, lanes: Sequence[int]) -> None:
    """Record an event at the end of each of these lanes."""
    for lane in lanes:
        number, event = run.ends[lane]
        again = True
        while again:
            again = False
            try:
                with run.devices[number].gpu.current() if number else _nothing:
                    event.record(run.raw[lane])
                    run.streams[lane].count_entries(run.unmarked[lane])
            except BaseException as error:
                again = run.failed(Command(_RECORD, lane), error)


_nothing: Final = nullcontext()


@final
class _Work:
    """A function as work for a worker thread. It runs once."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def run(self) -> None:
        """Call the function, and release it."""
        function, self._function = self._function, None
        assert function is not None
        function()
