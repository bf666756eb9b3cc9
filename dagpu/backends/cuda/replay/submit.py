"""Submitting a run: its graph is launched, or its actions go to the driver one by one, in the plan's order.

Mostly the thread that starts the run does it all. Two things can hold that thread up, and then others go on:

- A stream's queue is full (the driver would block): one thread submits the rest, in the plan's order, and waits where
  it has to.
- The plan calls functions of the host, or stages large arrays: each lane is played by a thread of its own, and a lane
  that waits for another's event first waits for that to be recorded.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, Final, final

from dagpu.backends.common.worker_threads import enqueue
from dagpu.backends.cuda.commands.command_list import Command, Kind
from dagpu.backends.cuda.driver.driver_protocol import LAUNCH
from dagpu.backends.cuda.replay.cuda_replay import CudaReplay
from dagpu.backends.cuda.resources.cuda_device import CudaDevice

# As names of this module they cost one look-up each, in a loop that runs for every launch.
_LAUNCH: Final = Kind.LAUNCH
_RECORD: Final = Kind.RECORD
_WAIT: Final = Kind.WAIT
_DO: Final = Kind.DO
_HOST: Final = Kind.HOST
_MARK: Final = Kind.MARK


def play(run: CudaReplay, begin: int, patient: bool = False) -> None:
    """Submit all from an action on. `patient` says that this thread may wait. The first device's context is current."""
    assert run.script is not None
    actions, launches, events = run.actions, run.script.launches.each, run.script.events
    raw, outcome, buffers = run.raw, run.outcome, run.held
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
                    run.streams[lane].put(a)
                    if _handed_over(run, lane, number + 1, patient):
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
    run.all_played()


def play_graph(run: CudaReplay) -> None:
    """Launch the run's graph. The context is current."""
    graph = run.graph
    assert graph is not None
    try:
        if not run.outcome.abnormal:
            graph.aim(run.held.bases, run.held.bound)
            graph.launch(run.raw[0])
    except BaseException as error:
        run.graph_failed(graph, error)
    _end_lanes(run, (0,))
    run.all_played()


def _leave(entered: AbstractContextManager[object] | None) -> None:
    if entered is not None:
        entered.__exit__(None, None, None)


def _handed_over(run: CudaReplay, lane: int, begin: int, patient: bool) -> bool:
    """See that a lane's stream is not full: by waiting, or where this thread may not, by handing over the rest."""
    stream = run.streams[lane]
    if not patient:
        if not stream.full():
            return False
        try:
            hand_over(run, begin)
        except RuntimeError:  # no thread can be started: better late than not at all
            pass
        else:
            return True
    stream.drain()
    return False


def _device_before(run: CudaReplay, begin: int) -> CudaDevice:
    """The device that the actions before this one have switched to."""
    switches = [action.a for action in islice(run.actions, begin) if action.kind is Kind.SWITCH] if begin else ()
    return run.devices[switches[-1] if switches else 0]


def hand_over(run: CudaReplay, begin: int) -> None:
    """Have another thread submit the rest: here the next launch might block the loop."""
    device = _device_before(run, begin)

    def go_on() -> None:
        try:
            with run.devices[0].gpu.current(), device.gpu.current():
                try:
                    for stream in run.streams:
                        stream.drain()
                except BaseException as error:
                    run.failed(Command(_RECORD, 0), error)
                if run.graph is not None:
                    play_graph(run)
                else:
                    play(run, begin, patient=True)
        finally:
            let_others_pass()

    def let_others_pass() -> None:
        for stream in run.streams:
            stream.behind.discard(run)

    for stream in run.streams:
        stream.behind.add(run)
    try:
        enqueue({run.streams[0].worker: _Work(go_on)})
    except BaseException:  # there is no thread for it
        let_others_pass()
        raise


def play_on_threads(run: CudaReplay) -> None:
    """Each lane on the thread of its stream. All are enqueued at once, in one order for all runs, so that two runs that
    share streams cannot wait for each other."""
    assert run.script is not None
    lanes: dict[Any, list[int]] = {}
    for lane, stream in enumerate(run.streams):
        lanes.setdefault(stream.worker, []).append(lane)
    threads = _Threads(run, len(lanes))
    enqueue({worker: _Work(partial(threads.play, mine)) for worker, mine in lanes.items()})


@final
class _Threads:
    """The threads that play one run."""

    def __init__(self, run: CudaReplay, count: int) -> None:
        assert run.script is not None
        self._run = run
        self._script = run.script
        self._recorded = [threading.Event() for _ in run.script.events]
        self._left = count
        self._lock = threading.Lock()

    def play(self, lanes: list[int]) -> None:
        """The part of the plan that one thread plays."""
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
                        # Even where it failed: a lane that waits for it may be one that this one waits for later.
                        self._recorded[action.a].set()
                _end_lanes(run, lanes)
        finally:
            for action in actions:
                if action.kind is _RECORD:
                    self._recorded[action.a].set()  # whatever came of it: the others go on
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                run.all_played()

    def _act(self, action: Command) -> None:
        run, events = self._run, self._script.events
        raw, kind, instruction = run.raw[action.lane], action.kind, action.instruction
        if kind is _RECORD:
            events[action.a].record(raw)
        elif kind is _WAIT:
            self._recorded[action.a].wait()
            raw.wait_for_event(events[action.a])
        elif kind is _MARK:
            stream = run.streams[action.lane]
            stream.put(action.a)
            stream.drain()
        elif run.outcome.abnormal and instruction is not None and run.outcome.skips(instruction):
            return
        elif kind is _LAUNCH:
            self._script.launch(action.a)
        else:
            action.a(run.held, run.device_of_lane(action.lane), raw)


def _end_lanes(run: CudaReplay, lanes: Sequence[int]) -> None:
    """Put an event at the end of each of these lanes."""
    for lane in lanes:
        number, event = run.ends[lane]
        again = True
        while again:
            again = False
            try:
                with run.devices[number].gpu.current() if number else _nothing:
                    event.record(run.raw[lane])
                    run.streams[lane].put(run.puts[lane])
            except BaseException as error:
                again = run.failed(Command(_RECORD, lane), error)


_nothing: Final = nullcontext()


@final
class _Work:
    """A function, as work for a stream's thread."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def run(self) -> None:
        """Call it, and let go of it."""
        function, self._function = self._function, None
        assert function is not None
        function()
