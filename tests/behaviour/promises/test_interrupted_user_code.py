"""Ctrl-C in functions of the user: host bodies, closures and finalisers."""

import signal
import threading
from collections.abc import Callable
from math import inf
from typing import Any, Final, final

import pytest
import trio
import trio.testing

from dagpu import DeviceOp, ones, value, zeros
from dagpu.backends.host import host_run
from dagpu.common.critical import in_section
from dagpu.runtime import trio_waits
from tests.behaviour.promises.interrupting import (
    PATIENCE,
    SHAPE,
    TILE,
    Finger,
    State,
    at_first,
    began,
    blocking,
    in_a_task,
    interrupt,
    tiles,
)
from tests.behaviour.promises.interrupting import cancelled as cancelled
from tests.programs.arithmetic import add


@pytest.mark.parametrize("way", [blocking, in_a_task])
def test_an_endless_closure_can_be_interrupted(way: Any) -> None:
    """Ctrl-C breaks into a closure at once: it is the user's code, and holds nothing of the run's."""
    state = State()
    turns = 0

    def endless(handle: Any) -> Any:
        nonlocal turns
        while True:
            turns += 1
            if turns == 3:
                interrupt()

    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).map(endless)
    with pytest.raises(KeyboardInterrupt):
        way(lambda _: op)(state)()
    assert turns == 3
    state.check(None)


@final
class Chain:
    """An op of many closures, each of which builds the next; it owns a tensor."""

    LENGTH: Final = 40

    def __init__(self, between: Callable[[int], None] = lambda _: None) -> None:
        self.called = 0
        self._between = between
        self.op: DeviceOp[Any, Any, Any] = value(ones(SHAPE).sync()).then(self._next)

    def _next(self, tensor: Any) -> DeviceOp[Any, Any, Any]:
        self.called += 1
        self._between(self.called)
        kept = value(tensor).map(lambda t: t)
        return kept.to_host() if self.called >= self.LENGTH else kept.then(self._next)

    def check(self, called: int) -> None:
        """Check that `calls` closures were called, and that the op still owns its handles and can be run."""
        assert self.called == called
        self._between = lambda _: None
        assert (self.op.sync() == 1).all()


@pytest.mark.parametrize("way", [blocking, in_a_task])
def test_an_interrupt_between_two_closures_is_raised_at_the_next(way: Any) -> None:
    """Ctrl-C that comes in dagpu's own code, in the middle of a long trace, is not held until the trace ends: no other
    closure is called, and the op has its tensor back."""
    chain = Chain()
    pressed = False

    def press() -> None:
        nonlocal pressed
        if chain.called and in_section() and not pressed:
            pressed = True
            interrupt()

    run = way(lambda _: chain.op)(State())
    with Finger(press), pytest.raises(KeyboardInterrupt):
        run()
    assert pressed
    chain.check(called=1)


def test_other_tasks_have_turns_between_the_closures_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that takes long pauses before a closure: the loop runs other tasks, which may cancel it."""
    monkeypatch.setattr(trio_waits, "TURN_SECONDS", 0.0)
    chain = Chain()
    seen: set[int] = set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chain_in_task, nursery.cancel_scope)
            while chain.called < chain.LENGTH // 2:
                seen.add(chain.called)
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    async def chain_in_task(scope: trio.CancelScope) -> None:
        with pytest.raises(trio.Cancelled):
            await chain.op
        assert scope.cancel_called
        await trio.lowlevel.checkpoint()

    trio.run(main)
    assert len(seen) > chain.LENGTH // 8
    assert chain.called < chain.LENGTH
    chain.check(called=chain.called)


def test_a_trace_whose_task_is_cancelled_calls_no_other_closure() -> None:
    """A cancellation is seen at the next closure, however short the trace has been."""
    scope = trio.CancelScope()
    chain = Chain(lambda called: scope.cancel() if called == 3 else None)

    async def main() -> None:
        with scope:
            await chain.op
        assert scope.cancelled_caught

    trio.run(main)
    chain.check(called=3)


@pytest.mark.parametrize("as_graph", [False, True])
@pytest.mark.parametrize("here", [False, True])
def test_an_interrupt_stops_a_launch_between_two_tiles(
    cancelled: threading.Event, here: bool, as_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host the tile that is being computed is finished, and no other of the launch is begun, by a worker or by
    the thread that waits."""
    monkeypatch.setattr(host_run, "SHORT_SECONDS", inf if here else 0.0)
    main = threading.get_ident()
    y = zeros((64,)).sync()

    def made() -> DeviceOp[Any, Any, Any]:
        return tiles(y.borrow_mut().partition((1,)), 1)

    made().sync()
    op = made()
    if as_graph:
        op = op.graph().launch()
    began.clear()

    def press() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        assert cancelled.wait(PATIENCE)

    at_first.append(press)
    with pytest.raises(KeyboardInterrupt):
        op.sync()
    assert len(began) == 1
    tiles(y.borrow_mut().partition((1,)), 2).sync()
    assert len(began) == 65


def test_a_cancellation_stops_a_launch_between_two_tiles(cancelled: threading.Event) -> None:
    """A cancelled trio scope stops a launch between two tiles."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            at_first.append(lambda: trio.from_thread.run_sync(scope.cancel, trio_token=token))
            await tiles(zeros((64,)).partition((1,)), 1)
        assert scope.cancelled_caught

    trio.run(main)
    assert cancelled.is_set()
    assert len(began) == 1
