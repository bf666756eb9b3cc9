"""Coroutines of `Feed.next` that are asked wrongly, or from within, and clocks that interrupt them.

What a mistaken program does with one is refused as by a coroutine of Python, and the feed goes on.
"""

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, Final, final

import pytest
import trio
import trio.abc
import trio.testing
from outcome import Value

from dagpu import observe, source
from dagpu.testing import storage_of
from tests.compiled.feeds.worlds import OFTEN, Asked, add_case, scaled, tensor, watched
from tests.compiled.worlds import Case, World, case, told, when_called

# ---- more than once


def told_step(w: World, act: Callable[[], Any]) -> None:
    """Make a step of a coroutine, and note how it ends."""
    try:
        given = act()
    except StopIteration as stop:
        w.note("end", told(stop.value))
    except BaseException as error:
        w.note(type(error).__name__, str(error))
    else:
        w.note(getattr(given, "__name__", type(given).__name__))


async def warm(asked: Asked, number: Any) -> None:
    """Make updates until the compiled reader makes them, and change the source once more."""
    await asked.times(OFTEN + 2, lambda n: number.set(n + 100.0))
    number.set(5.0)


@case(serves=4)
def a_coroutine_that_is_awaited_twice(w: World) -> Any:
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        for ask in (asked.feed.next, asked.feed.__anext__):
            await warm(asked, number)
            coroutine: Any = ask()
            asked.note(await coroutine)
            for _ in range(2):
                try:
                    w.note(told(await coroutine))
                except RuntimeError as error:
                    w.note(str(error))
            coroutine.close()

    return watched(w, scaled(number, given), script)


@case(serves=4)
def values_by_anext(w: World) -> Any:
    """With a default Python asks what it awaits for its steps once more before each step."""
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        await warm(asked, number)
        asked.note(await anext(asked.feed))
        for value in (6.0, 60.0):
            number.set(value)
            asked.note(await anext(asked.feed, None))
        number.set(61.0)
        async for found in asked.feed:
            asked.note(found)
            if number.get() > 61:
                break
            number.set(62.0)

    return watched(w, scaled(number, given), script)


@case(serves=4)
def a_coroutine_that_two_tasks_await(w: World) -> Any:
    """Only one of them gets the value, also if the device works meanwhile."""
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        async def attempt(coroutine: Any) -> None:
            try:
                found.append(str(told(await coroutine)))
            except RuntimeError as error:
                found.append(str(error))

        await warm(asked, number)
        found: list[str] = []
        begun: Any = asked.feed.next()
        begun.send(None)
        await attempt(begun)
        told_step(w, lambda: begun.send(Value(None)))
        await warm(asked, number)
        w.calls.null_hold()
        waits: Any = asked.feed.next()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, waits)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(attempt, waits)
            await trio.testing.wait_all_tasks_blocked()
            w.calls.null_release()
        w.note(found)
        await asked.next_after(lambda: number.set(6.0))

    return watched(w, scaled(number, given), script)


@case(serves=4)
def steps_before_and_after_an_update(w: World) -> Any:
    """What a finished coroutine says, and what `throw` takes."""
    number, given = source(1.0), source(tensor())
    throws: list[tuple[Any, ...]] = [
        (), (ValueError,), (ValueError, "text"), (ValueError("thrown"),), (ValueError, ValueError("thrown")),
        (ValueError("thrown"), "text"), (5,), (ValueError, None, None, None),
    ]  # fmt: skip
    ends: list[Callable[[Any], Any]] = [
        lambda steps: steps.send(None),
        lambda steps: steps.close(),
        *[lambda steps, each=each: steps.throw(*each) for each in throws],
    ]

    async def script(asked: Asked) -> None:
        for count in range(3):
            for end in ends:
                await warm(asked, number)
                coroutine: Any = asked.feed.next()
                if count:
                    told_step(w, partial(coroutine.send, None))
                if count > 1:
                    told_step(w, partial(coroutine.send, Value(None)))
                if count != 1 or end is not ends[0]:
                    told_step(w, partial(end, coroutine))
                    told_step(w, partial(coroutine.throw, KeyError("more")))
                coroutine.close()

    return watched(w, scaled(number, given), script)


@case(serves=4)
def an_update_whose_end_has_no_memory(w: World) -> Any:
    """The compiled reader leaves its end to Python, where an error comes first. The next task may ask the feed."""
    number, given = source(1.0), source(tensor())

    def fail() -> None:
        raise MemoryError

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        for end in (WITHIN["gets an error"], WITHIN["is closed"]):
            await warm(asked, number)
            coroutine: Any = asked.feed.next()
            coroutine.send(None)
            with suppress(MemoryError, KeyError), when_called("_go_on", fail):
                end(coroutine)
            del coroutine
            w.note(w.lock_of(given.get()), len(w.device.live))
            number.set(6.0)
            w.note(told(await asked.feed.next()))

    return watched(w, scaled(number, given), script)


@case(serves=4)
def stats_that_a_program_has_changed(w: World) -> Any:
    """A feed's stats are another object, or lack a number: from before an update on, or from within it on, when
    Python's reader has them already."""
    number, given = source(1.0), source(tensor())
    changes: list[Callable[[Any], object]] = [
        lambda feed: setattr(feed, "stats", None),
        lambda feed: setattr(feed, "stats", "text"),
        lambda feed: delattr(feed, "stats"),
        lambda feed: delattr(feed.stats, "values"),
    ]

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        feed: Any = asked.feed
        for change, is_within in product(changes, (False, True)):
            await warm(asked, number)
            before, values = feed.stats, feed.stats.values
            coroutine: Any = feed.next()
            try:
                if is_within:
                    coroutine.send(None)
                change(feed)
                coroutine.send(Value(None) if is_within else None)
                coroutine.send(Value(None))
            except (AttributeError, TypeError, StopIteration) as error:
                w.note(is_within or type(error).__name__)
            coroutine.close()
            feed.stats, before.values = before, values

    return watched(w, scaled(number, given), script)


# ---- from within


@final
class Clock(trio.abc.Clock):
    """A clock of trio that does something the next time but so many that it is asked."""

    def __init__(self) -> None:
        self._time = 0.0
        self._left = 0
        self._act: Callable[[], object] | None = None

    def set(self, left: int, act: Callable[[], object] | None) -> None:
        self._left, self._act = left, act

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        self._time += 1e-4
        self._left -= 1
        if self._act is not None and self._left < 0:
            act, self._act = self._act, None
            act()
        return self._time

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return max(0.0, min(0.01, deadline - self._time))


ASKED: Final = 3
"""How often an update asks the clock: as it begins, as it is over, and as its value is handed over."""


def disturbed(left: int, act: Callable[[Any], object], *, interrupts: bool = False) -> Case:
    """The clock does something in an update, once it has been asked so often. Its value is made, or made again."""

    def run(w: World) -> Any:
        number, given = source(1.0), source(tensor())
        w.is_steady = False
        clock, found = Clock(), list[Any]()

        async def main() -> None:
            async with observe(scaled(number, given)) as feed:
                for n in range(OFTEN + 2):
                    number.set(n + 100.0)
                    await feed.next()
                number.set(5.0)
                coroutine: Any = feed.next()
                value: Any = None
                clock.set(left, lambda: act(coroutine))
                try:
                    coroutine.send(None)
                    coroutine.send(Value(None))
                except StopIteration as stop:
                    value = stop.value
                except KeyboardInterrupt:
                    found.append("interrupted")
                clock.set(0, None)
                coroutine.close()
                try:
                    for _ in range(3):  # trio raises it in a checkpoint
                        await trio.lowlevel.checkpoint()
                except KeyboardInterrupt:
                    found.append("interrupted")
                lock = storage_of(given.get()).lock
                found.append([lock.writer is None, lock.readers, len(w.device.live)])
                with trio.fail_after(1):
                    value = await feed.next() if value is None else value
                found.append([told(value), w.driver.parameters().hex()[48:56]])
                if not interrupts:
                    found.append(feed.stats.values)
                number.set(6.0)
                found.append(told(await feed.next()))

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            trio.run(main, clock=clock)
        finally:
            signal.signal(signal.SIGINT, before)
        return found

    return run


def refused(act: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a function that asks a coroutine which is running, and is refused."""

    def ask(coroutine: Any) -> None:
        with pytest.raises(ValueError, match="coroutine already executing"):
            act(coroutine)

    return ask


WITHIN: Final[dict[str, Callable[[Any], object]]] = {
    "is asked": lambda steps: steps.send(None),
    "gets an error": lambda steps: steps.throw(KeyError),
    "is closed": lambda steps: steps.close(),
}


for _left, (_name, _act) in product(range(ASKED), WITHIN.items()):
    add_case(f"a coroutine that {_name} in call {_left + 1} of the clock", disturbed(_left, refused(_act)), 4)
for _left in range(ASKED):
    _press = disturbed(_left, lambda _: signal.raise_signal(signal.SIGINT), interrupts=True)
    add_case(f"Ctrl-C in call {_left + 1} of the clock", _press, 4)
