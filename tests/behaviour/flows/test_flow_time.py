"""The operators that depend on time, under a clock that jumps: latest, at_most, every, batched and switch."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import Flow, every, flow, merge, use_interpreter, value
from tests.behaviour.flows.flow_programs import (
    Broken,
    Failure,
    Producer,
    SlowInterpreter,
    clocked,
    items,
    outcomes_of,
    raise_failures,
    seeded_seconds,
)

seeds = st.integers(0, 2**16)


def gaps(*seconds: float) -> Callable[[], float]:
    """Return a function that gives these lengths of sleeps, one after another."""
    left = iter(seconds)
    return lambda: next(left)


@given(items, seeds, seeds)
def test_latest_drops_only_what_is_superseded(found: list[Any], producer: int, consumer: int) -> None:
    """The outcomes are in order, with all failures and the last value; each value missing was followed by a newer one
    before the consumer asked, and `skipped` counts them."""
    described = flow(Producer(found, seeded_seconds(producer))).map(raise_failures).latest()
    seen: list[Any] = []

    async def main() -> int:
        pause = seeded_seconds(consumer)
        async with described as feed:
            while True:
                await trio.sleep(pause())
                try:
                    seen.append(await feed.next())
                except Broken as error:
                    seen.append(Failure(error.args[0]))
                except trio.EndOfChannel:
                    return feed.stats.skipped

    skipped = clocked(main)
    left = iter(found)
    assert all(x in left for x in seen), "in order"
    assert [x for x in seen if isinstance(x, Failure)] == [x for x in found if isinstance(x, Failure)]
    assert seen[-1:] == found[-1:]
    assert len(seen) + skipped == len(found)


@given(items)
def test_latest_drops_nothing_for_a_prompt_consumer(found: list[Any]) -> None:
    """A consumer that waits for each value gets all."""
    described = flow(Producer(found, lambda: 1.0)).map(raise_failures).latest()
    assert clocked(outcomes_of, described) == found


def test_latest_gives_the_newest() -> None:
    """A consumer that sleeps gets the value that came last, and not a queue."""

    async def main() -> list[tuple[int, float]]:
        found = []
        start = trio.current_time()
        async with flow(Producer(list(range(10)), lambda: 1.0)).latest() as feed:
            for pause in (0.0, 3.5, 0.0, 4.2):
                await trio.sleep(pause)
                found.append((await feed.next(), trio.current_time() - start))
        return found

    assert clocked(main) == [(0, 1.0), (3, 4.5), (4, 5.0), (8, 9.2)]


@pytest.mark.parametrize("seed", range(10))
def test_at_most_keeps_its_distance_and_gives_the_newest(seed: int) -> None:
    """No two values come closer than the period; the last value comes; values that came meanwhile are skipped."""
    producer = Producer(list(range(40)), seeded_seconds(seed))

    async def main() -> list[tuple[int, float]]:
        async with flow(producer).at_most(0.4) as feed:
            found = [(x, trio.current_time()) async for x in feed]
            assert len(found) + feed.stats.skipped == 40
        return found

    found = clocked(main)
    assert [x for x, _ in found] == sorted({x for x, _ in found})
    assert found[-1][0] == 39
    assert all(later - earlier >= 2.5 - 1e-9 for (_, earlier), (_, later) in pairwise(found))


@given(st.lists(st.sampled_from([0.0, 0.25, 0.75, 1.0, 1.5, 3.25]), min_size=1, max_size=12))
def test_ticks_stay_on_the_grid(pauses: list[float]) -> None:
    """Each tick is a multiple of the period after the first and not in the future; no tick that is due is waited for,
    and ticks that a slow consumer misses are counted."""

    async def main() -> None:
        async with every(1.0) as feed:
            start = before = await feed.next()
            for pause in pauses:
                await trio.sleep(pause)
                asked = trio.current_time()
                tick = await feed.next()
                assert tick - start == round(tick - start)
                assert tick > before
                assert trio.current_time() == max(tick, asked)
                assert tick - asked < 1.0 + 1e-9
                before = tick
            assert feed.stats.skipped == round(before - start) - len(pauses)

    clocked(main)


@given(st.lists(st.sampled_from([0.0, 0.2, 0.6, 1.0, 1.7]), max_size=20), st.integers(1, 4))
def test_a_batch_goes_when_it_is_full_or_has_waited(seconds: list[float], most: int) -> None:
    """The tuples are those of a list of arrival times: full, or what came within a second of the first."""
    times, now = [], 0.0
    for gap in seconds:
        now += gap + 0.01  # no two at once, and none at the very end of a wait
        times.append(now)
    expected: list[list[int]] = []
    begun = -9.0
    for number, arrival in enumerate(times):
        if not expected or len(expected[-1]) == most or arrival >= begun + 1.005:
            expected.append([])
            begun = arrival
        expected[-1].append(number)
    gap_of = gaps(*[gap + 0.01 for gap in seconds])
    described = flow(Producer(list(range(len(seconds))), gap_of)).batched(most, within=1.005)
    assert [list(batch) for batch in clocked(outcomes_of, described)] == expected


def test_a_batch_that_fails_gives_what_came_before_first() -> None:
    """The values before a failure come as a batch, then the error, then the rest."""
    found = [1, 2, Failure(3), 4]
    described = flow(Producer(found)).map(raise_failures).batched(9, within=5.0)
    assert clocked(outcomes_of, described) == [(1, 2), Failure(3), (4,)]


def test_merge_waits_for_no_flow_in_particular() -> None:
    """A slow flow holds up no fast one: all flows are asked at once, and each value comes as soon as it is there."""

    async def main() -> list[tuple[str, float]]:
        slow, fast = flow(Producer(["s", "s"], lambda: 10.0)), flow(Producer(["f"] * 3, lambda: 4.0))
        start = trio.current_time()
        async with merge(slow, fast) as feed:
            found = [(await feed.next(), trio.current_time() - start)]
            await trio.sleep(8)  # meanwhile, one more value comes, and nothing is asked for
            return found + [(x, trio.current_time() - start) async for x in feed]

    assert clocked(main) == [("f", 4.0), ("s", 12.0), ("f", 16.0), ("f", 20.0), ("s", 22.0)]


def test_switch_closes_the_flow_before() -> None:
    """A new value cancels the runs of the flow before it, which are drained before the next flow begins."""
    slow = SlowInterpreter(lambda: 2.0)

    def searched(x: str) -> Flow[str]:
        assert slow.running == 0
        return flow([x + "1", x + "2"]).run(value, in_flight=2)

    async def main() -> list[tuple[str, float]]:
        start = trio.current_time()
        async with flow(Producer(["a", "b", "c"], gaps(1.0, 1.0, 3.0))).switch(searched) as feed:
            return [(x, trio.current_time() - start) async for x in feed]

    with use_interpreter(slow):
        assert clocked(main) == [("b1", 4.0), ("b2", 4.0), ("c1", 7.0), ("c2", 7.0)]
    assert slow.cancelled == 2
    assert slow.most == 2


def test_switch_drops_what_nobody_took() -> None:
    """A value of a closed flow that the consumer did not take is skipped; one that it was given is not."""

    async def main() -> tuple[list[str], int]:
        described = flow(Producer(["a", "b"], gaps(1.0, 4.0))).switch(lambda x: every(1.0).map(lambda _: x).take(9))
        async with described as feed:
            found = []
            with trio.move_on_after(1.5):
                found.append(await feed.next())
            await trio.sleep(5)
            found += [await feed.next(), await feed.next()]
            return found, feed.stats.skipped

    found, _ = clocked(main)
    assert found == ["a", "b", "b"]


@pytest.mark.parametrize("fails", [False, True])
def test_switch_hands_out_nothing_stale_and_loses_no_error(fails: bool) -> None:
    """A consumer asks, and leaves before the inner flow has its value. When the next flow begins, that value is of a
    closed flow: it is skipped. If it is an error, it is raised all the same, and the flow goes on."""

    def inner(x: str) -> Flow[Any]:
        made = flow(Producer(["a"], lambda: 1.0)) if x == "a" else flow([x + "1", x + "2"])
        return made.map(lambda y: raise_failures(Failure(7)) if fails and y == "a" else y)

    async def main() -> tuple[list[Any], int]:
        async with flow(Producer(["a", "b"], gaps(1.0, 4.0))).switch(inner) as feed:
            found: list[Any] = []
            with trio.move_on_after(1.5):
                found.append(await feed.next())
            await trio.sleep(5)  # the value of "a" comes at 2, and "b" at 5
            while len(found) < 2 + fails:
                try:
                    found.append(await feed.next())
                except Broken as error:
                    found.append(Failure(error.args[0]))
            return found, feed.stats.skipped

    assert clocked(main) == (([Failure(7), "b1", "b2"], 0) if fails else (["b1", "b2"], 1))


@pytest.mark.parametrize("inner", [True, False])
def test_switch_raises_errors_in_their_place(inner: bool) -> None:
    """An error of the values, of the function and of the inner flow is raised, and the flow goes on."""

    def made(x: int) -> Flow[int]:
        if x == 1 and not inner:
            raise Broken(x)
        return flow([x]).map(lambda y: raise_failures(Failure(y)) if inner and y == 1 else y)

    described = flow(Producer([0, 1, 2], lambda: 1.0)).switch(made)
    assert clocked(outcomes_of, described) == [0, Failure(1), 2]


def test_switch_wants_a_flow() -> None:
    """A function that returns something else is refused, with the place of `switch`."""
    wrong: Any = lambda x: [x]  # noqa: E731  # reason: its type is wrong
    with pytest.raises(TypeError, match=rf"switch at {__file__}:\d+: the result of f is \[1\], but a flow is wanted"):
        clocked(outcomes_of, flow([1]).switch(wrong))
