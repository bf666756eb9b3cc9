"""Ctrl-C at every line of dagpu that a feed passes through: when it is opened, asked and closed."""

import gc
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, final

import numpy as np
import pytest
import trio

from dagpu import batch, current_device, flow, from_host, full, observe, source
from dagpu.common.critical import in_section
from dagpu.testing import storage_of
from tests.behaviour.promises.interrupting import (
    PACKAGE,
    PATIENCE,
    PLACES,
    SHAPE,
    TILE,
    Finger,
    interrupt,
    lines_of,
    nothing_under_way,
)
from tests.programs.arithmetic import axpy

EVERY_SO_MANY: Final = {
    (PACKAGE + "reactive/flows", PACKAGE + "reactive/observing"): 3,
    (PACKAGE + "reactive", PACKAGE + "ops/live"): 15,
    (PACKAGE,): 150,
}
"""Of the lines of these files, every so many-th is tried; the lines of a run are tried in test_interrupts."""


@final
class Watched:
    """An op over two sources and a tensor that it shares, and what a program does with a feed of it."""

    def __init__(self) -> None:
        self.level = source(1.0)
        self.samples = source(np.ones(SHAPE, np.float32))
        self.given = full(SHAPE, 5.0).sync().share()
        below = axpy(full(SHAPE, 0.0).partition(TILE), 1.0, self.given).first()
        self.op: Any = axpy(below, self.level, self.samples.then(from_host)).first().unpartition().to_host()
        self.interrupted = 0
        """How many calls of a feed have raised KeyboardInterrupt."""

    def due(self, found: Any) -> bool:
        """Return True if a value is that of the present sources."""
        return bool((found == 5 + self.level.get() * self.samples.get()).all())

    def change(self) -> None:
        """Change both sources."""
        with batch():
            self.level.change(lambda x: x + 1)
            self.samples.set(self.samples.get() + 1)

    async def ask(self, feed: Any) -> None:
        """Ask until a value comes. No source changes meanwhile, so that a value that is lost is never made good."""
        while True:
            try:
                found = await feed.next()
            except KeyboardInterrupt:
                self.interrupted += 1
            else:
                break
        assert self.due(found)

    async def use(self) -> None:
        """Ask by `async for`, with changes in its body, and then by `next()`."""
        async with observe(self.op) as feed:
            try:
                async for found in feed:
                    assert self.due(found)
                    if feed.stats.values == 2:
                        break
                    self.change()
            except KeyboardInterrupt:
                self.interrupted += 1
            for _ in range(2):
                self.change()
                await self.ask(feed)
            self.level.set(0.5)  # a set of sources that has no plan yet
            await self.ask(feed)
            await trio.lowlevel.checkpoint()

    async def look(self) -> None:
        """Ask another feed once."""
        async with observe(self.op) as feed:
            await self.ask(feed)


def in_trio(use: Callable[[], Awaitable[None]]) -> None:
    """Run `use` in trio. A call that waits for ever fails."""

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            await use()

    trio.run(main)


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_a_feed_leaves_it_stale(where: str) -> None:
    """Wherever Ctrl-C hits a call of a feed, the next call gives the value that is due. Wherever it hits the block,
    the block ends, nothing is locked, under way or watched, and memory is back."""
    with PLACES[where]():
        handler = signal.getsignal(signal.SIGINT)
        places = lines_of(lambda: in_trio(Watched().use), EVERY_SO_MANY)
        gc.collect()
        before = current_device().memory_used()
        caught = 0
        for place in places:
            state = Watched()
            raised = False
            with Finger(interrupt, place) as finger:
                try:
                    in_trio(state.use)
                except KeyboardInterrupt:
                    raised = True
            assert raised + state.interrupted == finger.pressed, place
            caught += state.interrupted
            assert signal.getsignal(signal.SIGINT) is handler, place
            assert not in_section(), place
            assert nothing_under_way(where), place
            lock = storage_of(state.given).lock
            assert (lock.readers, lock.writer) == (0, None), place
            assert not any(each.cell.watchers() for each in (state.level, state.samples)), place
            in_trio(state.look)
            del state
        gc.collect()
        assert current_device().memory_used() == before
        assert 0 < caught < len(places)  # some interrupts came to the calls, and some to the block


def test_an_interrupt_at_any_line_of_a_batch_leaves_it_closed() -> None:
    """Wherever Ctrl-C hits a batch of changes, all of them are made or none, and later changes are visible at once."""

    def change_both() -> None:
        with batch():
            a.set(1)
            b.set(1)

    a, b = source(0), source(0)
    with Finger() as finger:
        change_both()
    for place in finger.lines:
        a, b = source(0), source(0)
        with Finger(interrupt, place), suppress(KeyboardInterrupt):
            change_both()
        assert a.get() == b.get(), place
        b.set(5)
        with ThreadPoolExecutor(1) as other:  # another thread sees no open batch of this one
            assert other.submit(b.get).result() == 5, place


@pytest.mark.parametrize("method", ["map", "where", "flow"])
def test_an_endless_function_of_a_flow_can_be_interrupted(method: str) -> None:
    """Ctrl-C breaks into a function or an iterator of the user's at once, and the feed goes on with the next value."""
    turns = 0

    def endless(x: int) -> int:
        nonlocal turns
        while x == 1:
            turns += 1
            if turns == 3:
                interrupt()
        return x

    @final
    class Items:
        """An iterator that is endless in its first item."""

        def __init__(self) -> None:
            self.items = iter([1, 2])

        def __iter__(self) -> "Items":
            return self

        def __next__(self) -> int:
            return endless(next(self.items))

    flows = {"map": flow([1, 2]).map(endless), "where": flow([1, 2]).where(lambda x: endless(x) > 0)}
    flows["flow"] = flow(Items())

    async def main() -> None:
        async with flows[method] as feed:
            with pytest.raises(KeyboardInterrupt):
                await feed.next()
            assert turns == 3
            assert await feed.next() == 2

    trio.run(main)
