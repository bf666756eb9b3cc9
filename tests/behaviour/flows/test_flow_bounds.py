"""Back-pressure: how much is pulled and in flight, and that nothing is pulled that nobody asks for."""

import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dagpu import Flow, empty, flow, merge, plan_of, use_interpreter, value, zeros, zip_flows
from tests.behaviour.flows.flow_programs import (
    Broken,
    Failure,
    Producer,
    SlowInterpreter,
    clocked,
    op_of,
    raise_failures,
    seeded_seconds,
)

PASSING: dict[str, Callable[[Flow[Any]], Flow[Any]]] = {
    "nothing": lambda f: f,
    "map": lambda f: f.map(lambda x: x),
    "where": lambda f: f.where(lambda x: True),
    "take": lambda f: f.take(50),
    "merge": lambda f: merge(f, flow(())),
    "zip": lambda f: zip_flows(f, flow(range(100))),
}
"""Operators that need one pull for each value."""


@given(st.integers(1, 5), st.integers(0, 12), st.booleans(), st.integers(0, 2**16))
def test_at_most_so_many_are_in_flight(in_flight: int, asked: int, ordered: bool, seed: int) -> None:
    """At each moment the items pulled are at most those handed out and `in_flight` more; as many ops run at once."""
    producer = Producer(list(range(20)), seeded_seconds(seed))
    slow = SlowInterpreter(seeded_seconds(seed + 1))
    pause = seeded_seconds(seed + 2)

    async def main() -> None:
        async with flow(producer).run(lambda x: op_of(x, 20), in_flight=in_flight, ordered=ordered) as feed:
            assert producer.pulled == 0
            for handed_out in range(1, asked + 1):
                await feed.next()
                assert producer.pulled <= handed_out + in_flight
                assert feed.stats.in_flight <= in_flight
                await trio.sleep(pause())
                assert producer.pulled <= handed_out + in_flight
                assert feed.stats.values == handed_out
        assert slow.running == 0

    with use_interpreter(slow):
        clocked(main)
    assert slow.most <= in_flight
    assert slow.begun <= asked + in_flight


def test_as_many_are_in_flight_as_may_be() -> None:
    """With enough items, all permits are used: four ops of a second each take a second together."""
    slow = SlowInterpreter()

    async def main() -> float:
        start = trio.current_time()
        async with flow(range(8)).run(value, in_flight=4) as feed:
            assert [x async for x in feed] == list(range(8))
        return trio.current_time() - start

    with use_interpreter(slow):
        assert clocked(main) == 2.0
    assert slow.most == 4


@given(st.lists(st.one_of(st.integers(0, 30), st.integers(0, 9).map(Failure)), max_size=12), st.integers(1, 3))
def test_failed_items_give_back_their_permits(found: list[Any], in_flight: int) -> None:
    """However many items fail, the others are run, and no permit is left taken."""

    async def main() -> int:
        async with flow(found).map(raise_failures).run(lambda x: op_of(x, 1), in_flight=in_flight) as feed:
            for _ in found:
                with contextlib.suppress(Broken):
                    await feed.next()
            with pytest.raises(trio.EndOfChannel):
                await feed.next()
            return feed.stats.in_flight

    assert trio.run(main) == 0


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_nothing_is_pulled_that_nobody_asked_for(name: str, asynchronous: bool) -> None:
    """An open flow pulls nothing by itself, and one item for each value."""
    pulled: list[int] = []

    def pull() -> Iterator[int]:
        for x in range(20):
            pulled.append(x)
            yield x

    async def pull_later() -> AsyncIterator[int]:
        for x in pull():
            await trio.lowlevel.checkpoint()
            yield x

    async def main() -> None:
        items: Any = pull_later() if asynchronous else pull()
        async with PASSING[name](flow(items)) as feed:
            await trio.testing.wait_all_tasks_blocked()
            assert pulled == []
            for count in range(1, 4):
                await feed.next()
                await trio.testing.wait_all_tasks_blocked()
                assert pulled == list(range(count))

    trio.run(main)


@pytest.mark.parametrize("runs", [True, False])
def test_values_that_are_left_out_let_other_tasks_run(runs: bool) -> None:
    """A producer that never waits, and of which nothing is kept, does not block the loop."""
    said: list[bool] = []

    async def say() -> None:
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        said.append(True)

    async def main() -> int:
        described = flow(range(100_000)).where(lambda x: bool(said))
        async with trio.open_nursery() as nursery, described.run(value) if runs else described as feed:
            nursery.start_soon(say)
            return await feed.next()
        raise AssertionError("the block has returned")

    assert trio.run(main) < 1_000


def test_a_fold_keeps_ahead_by_its_permits() -> None:
    """Steps run one at a time, and `in_flight` of them ahead of the consumer."""
    slow = SlowInterpreter()
    producer = Producer(list(range(9)))

    async def main() -> None:
        async with flow(producer).fold(value(0), lambda s, x: value((s + x, s)), in_flight=3) as feed:
            assert await feed.next() == 0
            await trio.sleep(100)
            assert producer.pulled == 4
            assert feed.stats.in_flight == 3

    with use_interpreter(slow):
        clocked(main)
    assert slow.most == 1


def test_a_memory_budget_holds_up_items() -> None:
    """With memory for two and a half plans, two items run at once; each counts until its result is handed out."""
    op = zeros((64,)).to_host()
    peak = plan_of(op).peak_bytes
    assert peak >= 64 * 4
    slow = SlowInterpreter()

    async def main(memory: int, expected: int) -> None:
        slow.most = 0
        described = flow(range(6)).run(lambda x: zeros((64,)).to_host(), in_flight=4, memory=memory)
        async with described as feed:
            assert len([x async for x in feed]) == 6
        assert slow.most == expected

    with use_interpreter(slow):
        clocked(main, peak * 5 // 2, 2)
        clocked(main, peak * 4, 4)
        clocked(main, 1, 1)  # each is larger than the budget, and runs alone


def test_a_failed_item_gives_back_its_memory() -> None:
    """An op that fails holds no bytes of the budget once its error is raised."""

    def op(x: int) -> Any:
        return empty((64,)).to_host().map(lambda _: 1 // x)

    async def main() -> list[Any]:
        found: list[Any] = []
        async with flow([1, 0, 0, 1]).run(op, in_flight=4, memory=300) as feed:
            while len(found) < 4:
                try:
                    found.append(await feed.next())
                except ZeroDivisionError:
                    found.append(None)
        return found

    assert trio.run(main) == [1, None, None, 1]


async def blocks_of(described: Flow[Any], warm: int) -> tuple[int, int]:
    """Return the numbers of blocks of memory after `warm` values, and after the last."""
    async with described as feed:
        for _ in range(warm):
            await feed.next()
        gc.collect()
        before = sys.getallocatedblocks()
        async for _ in feed:
            pass
        gc.collect()
        return before, sys.getallocatedblocks()


def test_memory_is_flat_over_many_items() -> None:
    """100,000 items leave nothing: the memory after them is that after the first 2,000 values."""
    described = flow(range(100_000)).map(lambda x: x + 1).window(2).where(lambda pair: pair[0] % 10 == 0)
    before, after = trio.run(blocks_of, described.run(lambda pair: value(pair[1]), in_flight=3), 2_000)
    assert after - before < 1_000


@pytest.mark.parametrize("name", ["latest", "merge", "batched", "zip", "switch", "fold"])
def test_each_stage_is_flat_over_many_items(name: str) -> None:
    """No stage holds more after 8,000 items than after 2,000 values."""
    stages: dict[str, Callable[[Flow[int]], Flow[Any]]] = {
        "latest": lambda f: f.latest(),
        "merge": lambda f: merge(f, f),
        "batched": lambda f: f.batched(3, within=1.0),
        "zip": lambda f: zip_flows(f, f),
        "switch": lambda f: flow([0]).switch(lambda _: f),
        "fold": lambda f: f.fold(value(0), lambda s, x: value((s + x, x))),
    }
    before, after = trio.run(blocks_of, stages[name](flow(range(8_000))), 2_000)
    assert after - before < 1_000


def test_outcomes_of_a_slow_consumer_are_counted() -> None:
    """The share of the time that each side waited, the latencies and the rate are those of the clock."""

    async def main() -> None:
        async with flow(range(4)).run(value, in_flight=1) as feed:
            for _ in range(4):
                await feed.next()
                await trio.sleep(3)
        # 1 s for each op: the first is waited for, the others run while the consumer sleeps
        assert feed.stats.waiting == pytest.approx((1 / 10, 9 / 10))
        assert feed.stats.rate == pytest.approx(1 / 3)
        assert feed.stats.latency(0.0) == pytest.approx(1.0)
        assert feed.stats.latency(1.0) == pytest.approx(3.0)
        assert feed.stats.values == 4

    with use_interpreter(SlowInterpreter()):
        clocked(main)
