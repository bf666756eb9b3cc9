"""Ctrl-C while an open flow starts its tasks, at every line of trio that starts one: the block of the flow ends."""

import signal
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest
import trio
from trio._core import _run as trio_loop

from dagpu import DeviceOp, Flow, batching, flow, merge, value
from dagpu.common.places import is_ours
from tests.behaviour.promises.interrupting import PATIENCE

STARTS = trio_loop.Runner.spawn_impl.__code__
EVERY = 3
"""Of the lines, every so many-th is tried."""


class Pressed:
    """Presses Ctrl-C at the line of this number among those that start tasks of dagpu."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.done = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        above = frame.f_back and frame.f_back.f_back
        if frame.f_code is not STARTS or above is None or not is_ours(above.f_code.co_filename):
            return None
        return self._line

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and not self.done:
            self._left -= 1
            if self._left < 0:
                self.done = True
                signal.raise_signal(signal.SIGINT)
        return self._line


def answered(batch: tuple[int, ...]) -> DeviceOp[tuple[int, ...], Any, Any]:
    return value(batch)


async def slowly() -> AsyncIterator[int]:
    for number in range(4):
        yield number


def runs(items: Any = range(6)) -> Flow[int]:
    return flow(items).run(lambda number: value(number), in_flight=2)


FLOWS: dict[str, Callable[[], Flow[Any]]] = {
    "run": runs,
    "latest": lambda: runs().latest(),
    "at_most": lambda: runs().at_most(1e6),
    "merge": lambda: merge(runs(), runs()),
    "switch": lambda: runs().switch(lambda number: runs(range(number))),
    "merge of latest": lambda: merge(runs().latest(), runs(slowly()).latest()),
    "async items": lambda: runs(slowly()),
    "switch in switch": lambda: flow([1]).switch(lambda _: runs().switch(lambda _: runs(slowly()).latest())),
}


def interrupted(errors: BaseException) -> bool:
    """Return True if this is a Ctrl-C, alone or as the only part of a group."""
    while isinstance(errors, BaseExceptionGroup) and len(errors.exceptions) == 1:
        errors = errors.exceptions[0]
    return isinstance(errors, KeyboardInterrupt)


def pressed_everywhere(main: Callable[[], Any]) -> int:
    """Run a program again and again, with a Ctrl-C at each of the lines. Return the number of Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presses = 0

    async def bounded() -> None:
        with trio.fail_after(PATIENCE):
            await main()

    try:
        while True:
            press = Pressed(presses * EVERY)
            sys.settrace(press)
            try:
                trio.run(bounded)
            except BaseException as error:
                if not interrupted(error):
                    raise
            finally:
                sys.settrace(None)
            if not press.done:
                return presses
            presses += 1
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.host_only("it is about tasks, and the same on each device")
@pytest.mark.parametrize("kind", FLOWS)
def test_a_block_ends_whenever_ctrl_c_comes_as_it_starts_a_task(kind: str) -> None:
    """Each task that is known to a nursery is scheduled, so the nursery ends: with KeyboardInterrupt, or as ever where
    the program is over before that is raised."""

    async def main() -> None:
        async with FLOWS[kind]() as feed:
            async for _ in feed:
                pass

    assert pressed_everywhere(main) >= 10


@pytest.mark.host_only("it is about tasks, and the same on each device")
def test_a_service_ends_whenever_ctrl_c_comes_as_it_starts_a_task() -> None:
    """The same for `batching`."""

    async def main() -> None:
        async with batching(answered, most=2) as ask:
            assert [await ask(number) for number in range(3)] == [0, 1, 2]

    assert pressed_everywhere(main) >= 10


@pytest.mark.host_only("it is about tasks, and the same on each device")
@pytest.mark.parametrize("where", ["run", "switch", "map", "items", "async items", "fold"])
def test_a_function_of_the_users_is_interrupted_at_once(where: str) -> None:
    """Also one that a task of dagpu calls, and that would never end."""

    def endless(_x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("Ctrl-C did not end the function")

    async def endless_items() -> AsyncIterator[int]:
        endless(0)
        yield 0

    described: dict[str, Callable[[], Flow[Any]]] = {
        "run": lambda: flow([1]).run(endless),
        "fold": lambda: flow([1]).fold(value(0), lambda _, x: endless(x)),
        "switch": lambda: flow([1]).switch(endless),
        "map": lambda: flow([1]).map(endless).latest(),
        "items": lambda: flow(map(endless, [1])).latest(),
        "async items": lambda: flow(endless_items()).latest(),
    }

    async def main() -> None:
        async with described[where]() as feed:
            await feed.next()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(BaseException) as caught:  # noqa: PT011  # alone or in a group
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted(caught.value)
