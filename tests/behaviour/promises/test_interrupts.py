"""Ctrl-C, finalisers, forks and the interpreter's end, at every line of dagpu that a run passes through.

A trace function stands for the user's finger: when a chosen line of dagpu is about to run, it raises SIGINT, as a
terminal would, and Python calls whatever handler is installed. Each distinct line is tried where runs begin and end,
and every few lines elsewhere. A line that several ways of running pass is tried in every twelfth of them, at least in
one, and each device begins with another. `DAGPU_DEEP=1` tries it in every second of them, and `DAGPU_EVERY_LINE=1`
tries every line in all of them.
"""

import faulthandler
import itertools
import os
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, final

import pytest
import trio
import trio.testing

from dagpu import CudaGraph, DeviceOp, NestedRunError, current_device, memcpy, ones, pipeline, zeros
from dagpu.common.critical import BOOKKEEPING, in_section
from dagpu.runtime.trio_waits import TrioWaits
from dagpu.testing import plans
from tests.behaviour.promises.interrupting import (
    DEEP,
    EVERY,
    PATIENCE,
    PLACES,
    SHAPE,
    TILE,
    Finger,
    Place,
    State,
    blocking,
    in_a_task,
    interrupt,
    lines_of,
    lines_passed,
    lines_to_try,
    nothing_under_way,
)
from tests.behaviour.promises.interrupting import cancelled as cancelled
from tests.programs.arithmetic import add, axpy


def first(state: State) -> DeviceOp[Any, Any, Any]:
    """A first run, its plan not known."""
    plans.clear()
    return state.op()


def step(x: Any, a: float) -> DeviceOp[Any, Any, Any]:
    return axpy(x.partition(TILE), a, ones(SHAPE)).first().unpartition().to_host()


def repeated(state: State) -> DeviceOp[Any, Any, Any]:
    """A call of a pipeline that has a plan, on a GPU as a graph."""
    f = pipeline(graph_from=2)(step)
    for _ in range(3):
        f(zeros(SHAPE).sync(), 1.0).sync()
    return f(zeros(SHAPE).sync(), 2.0)


def again(state: State) -> DeviceOp[Any, Any, Any]:
    """Build the same op again, with locks."""
    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).first().unpartition().to_host()
    op.sync()
    return op


def launched(state: State) -> DeviceOp[Any, Any, Any]:
    """A launch of a graph, after an update of its input."""
    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).first().unpartition()
    state.graph = op.graph()
    state.graph.update(memcpy(state.read.borrow_mut(), state.given))
    return state.graph.launch()


OPS: Final = {f.__name__: f for f in (first, repeated, again, launched)}


Ways = dict[str, Callable[[State], Callable[[], object]]]

WAYS: Final[Ways] = {
    **{name: blocking(build) for name, build in OPS.items()},
    **{f"{name} in a task": in_a_task(build) for name, build in OPS.items()},
}
FEW: Final = 1 if EVERY else 2 if DEEP else 12
"""Of the ways that pass a line, every so many-th is interrupted there."""


def interrupts(where: str, ways: Ways) -> dict[str, list[Place]]:
    """The lines at which each of these ways of running is interrupted on a device."""
    passing: dict[Place, list[str]] = {}
    for name, way in ways.items():
        for place in lines_passed(way(State())):
            passing.setdefault(place, []).append(name)
    tried: dict[str, list[Place]] = {name: [] for name in ways}
    for place in lines_to_try(passing):
        names = passing[place]
        for name in names[(place[1] + list(PLACES).index(where)) % min(len(names), FEW) :: FEW]:
            tried[name].append(place)
    return tried


def every_line(where: str, ways: Ways) -> None:
    """Press Ctrl-C at the lines that these ways of running pass, once in each run, and see what is left."""
    with PLACES[where]():
        handler = signal.getsignal(signal.SIGINT)
        for name, places in interrupts(where, ways).items():
            state = State()
            for place in places:
                state.begin()
                run = ways[name](state)
                interrupted = False
                with Finger(interrupt, place) as finger:
                    try:
                        run()
                    except KeyboardInterrupt:
                        interrupted = True
                assert interrupted == finger.pressed, place  # some lines depend on what other threads have done
                assert signal.getsignal(signal.SIGINT) is handler, place
                state.check(place)
                assert nothing_under_way(where), place
                assert (state.op().sync() == 3).all(), place


@pytest.mark.deep
@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_a_run_leaves_nothing(where: str) -> None:
    """Whatever line Ctrl-C hits, `sync()` and `trio.run` raise `KeyboardInterrupt`, never an error of trio's own; all
    is drained, given back and usable."""
    every_line(where, WAYS)


@pytest.mark.deep
@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_a_capture_leaves_nothing(where: str) -> None:
    """Whatever line Ctrl-C hits while a graph is captured or recorded, it ends like any other run."""

    def captured(state: State) -> Callable[[], object]:
        return (
            add(state.written.borrow_mut().partition(TILE), state.read.borrow(), state.given)
            .first()
            .unpartition()
            .graph
        )

    def recorded(state: State) -> Callable[[], object]:
        op = add(state.written.borrow_mut().partition(TILE), state.read.borrow(), state.given)
        stream = current_device().stream()

        def run() -> None:
            with CudaGraph.scope(stream) as scope:
                scope.record(op)

        return run

    every_line(where, {"captured": captured, "recorded": recorded})


@pytest.mark.parametrize("where", PLACES)
def test_a_second_interrupt_does_not_end_the_drain(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C again while a cancelled run is being drained: it is still drained, and one `KeyboardInterrupt` comes."""
    with PLACES[where]():
        for way in (blocking(first), in_a_task(first)):
            places = lines_of(way(State()))
            for n in range(0, len(places) - 20, 10):
                state = State()
                run = way(state)
                with Finger(interrupt, places[n], places[n + 13]) as finger, suppress(KeyboardInterrupt):
                    run()
                    assert not finger.pressed
                assert nothing_under_way(where)
                state.check(places[n])


@final
class Slow:
    """A run that is under way until `end` is called, and says so by a descriptor, as on a GPU."""

    cancellable = True

    def __init__(self, events: list[str]) -> None:
        self._reading, self._writing = os.pipe()
        self._events = events

    def poll(self, seconds: float) -> bool:
        return False

    def readable(self) -> int:
        return self._reading

    def woken(self) -> None:
        return

    def cancel(self) -> None:
        self._events.append("cancelled")

    def end(self) -> None:
        self._events.append("done")
        os.close(self._writing)


@pytest.mark.usefixtures("capfd")  # a second Ctrl-C says what a third would do
def test_a_second_interrupt_does_not_end_the_wait_for_a_descriptor() -> None:
    """The first Ctrl-C cancels what a task waits for, and the task waits on; the second does not end that either. One
    `KeyboardInterrupt` comes, once the device is done."""
    events: list[str] = []
    run: Any = Slow(events)

    @trio.lowlevel.enable_ki_protection  # so that trio hands it to the main task
    async def press_twice() -> None:
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            interrupt()
        await trio.testing.wait_all_tasks_blocked()
        run.end()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(press_twice)
            with pytest.raises(KeyboardInterrupt):
                await TrioWaits().wait_for_run(run, 0.0)
            events.append("raised")

    trio.run(main)
    assert events == ["cancelled", "done", "raised"]


@pytest.mark.parametrize("where", PLACES)
def test_a_finaliser_at_any_line_runs_its_op_or_is_refused(where: str) -> None:
    """Wherever the collector calls a finaliser that runs an op, that has its result or is refused: no deadlock."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    refused: list[str] = []
    done: list[bool] = []

    def finaliser() -> None:
        try:
            warnings.simplefilter("ignore")  # it blocks the loop, which is what it is about
            done.append(bool((ones((2,)).to_host().sync() == 1).all()))
        except NestedRunError as error:
            refused.append(str(error))

    try:
        with PLACES[where](), warnings.catch_warnings():
            for build in OPS.values():
                for way in (blocking, in_a_task):
                    run = way(build)(State())
                    with Finger(finaliser):
                        run()
            assert all(done)
            assert len(refused) > 500
            cured: SimpleQueue[DeviceOp[Any]] = SimpleQueue()
            assert "queue.SimpleQueue" in refused[0]
            cured.put(ones((2,)).to_host())
            assert (cured.get().sync() == 1).all()
    finally:
        faulthandler.cancel_dump_traceback_later()


CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "clone": lambda shared: shared.clone(),
    "reshape": lambda shared: shared.reshape((16,)),
    "try_unwrap": lambda shared: shared.try_unwrap(),
    "cache_info": lambda shared: pipeline(step).cache_info(),
    "cache_clear": lambda shared: pipeline(step).cache_clear(),
    "memory_used": lambda shared: current_device().memory_used(),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_of_a_call_leaves_no_lock(name: str) -> None:
    """Calls outside of runs that take the lock raise `KeyboardInterrupt` at whatever line Ctrl-C hits, each time that
    Python comes to it, and another thread gets the lock."""
    handler = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as other:
        for after in itertools.count():
            shared = ones(SHAPE).share().sync()
            with Finger(interrupt, after=after) as finger, suppress(KeyboardInterrupt):
                CALLS[name](shared)
                assert not finger.pressed, after
            if not finger.pressed:
                break
            assert other.submit(BOOKKEEPING.acquire, timeout=PATIENCE).result(), after
            other.submit(BOOKKEEPING.release).result()
            assert signal.getsignal(signal.SIGINT) is handler, after
            assert not in_section(), after
    assert after > 5
