"""The laws of flows: a flow gives what the same operators give of a list, in order, whatever takes how long."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Feed, Flow, flow, merge, use_interpreter, value, zip_flows
from tests.behaviour.flows.flow_programs import (
    Broken,
    Chain,
    Failure,
    Producer,
    SlowInterpreter,
    chains,
    clocked,
    items,
    op_of,
    outcomes_of,
    raise_failures,
    seeded_seconds,
)

many = settings(max_examples=150)
seeds = st.integers(0, 2**16)


@many
@given(chains, items, seeds)
def test_a_flow_equals_its_list(chain: Chain, found: list[Any], seed: int) -> None:
    """Values, their order, and each failure in its place are those of the list, for producers, ops and consumers of any
    speed."""
    producer = Producer(found, seeded_seconds(seed))
    described = chain.of_flow(flow(producer).map(raise_failures))
    with use_interpreter(SlowInterpreter(seeded_seconds(seed + 1))):
        assert clocked(outcomes_of, described) == chain.of_list(found)
        assert clocked(lambda: outcomes_of(described, pause=seeded_seconds(seed + 2))) == chain.of_list(found)


@many
@given(chains, items)
def test_a_flow_of_a_list_equals_its_list(chain: Chain, found: list[Any]) -> None:
    """The same, where nothing takes time and the iterable is a list."""
    described = chain.of_flow(flow(found).map(raise_failures))
    assert trio.run(outcomes_of, described) == chain.of_list(found)


@given(items, seeds, st.integers(1, 5))
def test_an_unordered_run_loses_and_invents_nothing(found: list[Any], seed: int, in_flight: int) -> None:
    """Without order, the outcomes are those of the ordered run."""

    def described(*, ordered: bool) -> Flow[int]:
        producer = Producer(found, seeded_seconds(seed))
        return flow(producer).map(raise_failures).run(lambda x: op_of(x, 3), in_flight=in_flight, ordered=ordered)

    with use_interpreter(SlowInterpreter(seeded_seconds(seed + 1))):
        unordered = clocked(outcomes_of, described(ordered=False))
        assert sorted(unordered, key=repr) == sorted(clocked(outcomes_of, described(ordered=True)), key=repr)


def test_an_unordered_run_hands_out_what_is_complete() -> None:
    """The first op takes longest, and its result comes last."""
    seconds = iter([3.0, 1.0, 2.0])
    with use_interpreter(SlowInterpreter(lambda: next(seconds))):
        described = flow("abc").run(value, in_flight=3, ordered=False)
        assert clocked(outcomes_of, described) == ["b", "c", "a"]


@given(st.lists(items, min_size=1, max_size=4), seeds)
def test_merge_gives_all_values_each_flow_in_order(lists: list[list[Any]], seed: int) -> None:
    """Each flow's outcomes are in their order, and none is lost or invented."""
    tagged = [[(number, x) for x in found] for number, found in enumerate(lists)]

    def raise_tagged(x: tuple[int, Any]) -> tuple[int, Any]:
        if isinstance(x[1], Failure):
            raise Broken(x)
        return x

    flows = [flow(Producer(found, seeded_seconds(seed + at))).map(raise_tagged) for at, found in enumerate(tagged)]
    merged: list[Any] = [x.number if isinstance(x, Failure) else x for x in clocked(outcomes_of, merge(*flows))]
    for number, found in enumerate(tagged):
        assert [x for x in merged if x[0] == number] == found
    assert len(merged) == sum(map(len, tagged))


@given(st.lists(st.lists(st.integers(), max_size=6), min_size=1, max_size=4), seeds)
def test_zip_flows_is_zip(lists: list[list[int]], seed: int) -> None:
    """The tuples are those of `zip`, up to the end of the shortest."""
    flows = [flow(Producer(found, seeded_seconds(seed + at))) for at, found in enumerate(lists)]
    zipped: Any = zip_flows
    assert clocked(outcomes_of, zipped(*flows)) == list(zip(*lists, strict=False))


@given(items, seeds)
def test_into_sets_each_value(found: list[Any], seed: int) -> None:
    """Values arrive at the target in order; the first failure is raised after the values before it."""

    class Target:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def set(self, x: int) -> None:
            self.seen.append(x)

    target = Target()
    described = flow(Producer(found, seeded_seconds(seed))).map(raise_failures)
    first = next((at for at, x in enumerate(found) if isinstance(x, Failure)), None)
    if first is None:
        clocked(described.into, target)
    else:
        with pytest.raises(Broken):
            clocked(described.into, target)
    assert target.seen == found[:first]


def test_a_flow_may_be_opened_again_and_at_once() -> None:
    """Each opening begins at the start of a list; two tasks may have the flow open, and one task twice."""
    described = flow(range(4)).run(value, in_flight=2)

    async def main() -> None:
        found: list[list[int]] = []

        async def consume() -> None:
            found.append(await outcomes_of(described))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            nursery.start_soon(consume)
        async with described as one, described as other:
            assert [await one.next(), await other.next(), await one.next()] == [0, 0, 1]
        assert found == [[0, 1, 2, 3]] * 2

    trio.run(main)


def test_after_the_end_comes_the_end() -> None:
    """`next` raises `EndOfChannel` each time, after any operator."""

    async def main(described: Flow[Any]) -> None:
        async with described as feed:
            async for _ in feed:
                pass
            for _ in range(3):
                with pytest.raises(trio.EndOfChannel, match="has no more values"):
                    await feed.next()

    start = flow([1, 2, 3])
    for described in (
        start,
        flow(Producer([1, 2])),
        start.run(value),
        start.fold(value(0), lambda s, x: value((s, x))),
        start.batched(2),
        start.window(2),
        start.take(2),
        start.latest(),
        start.switch(lambda x: flow([x])),
        merge(start, start),
        zip_flows(start, start),
    ):
        trio.run(main, described)


@pytest.mark.parametrize("kind", [trio.EndOfChannel, StopAsyncIteration])
@pytest.mark.parametrize("where", ["map", "where", "run", "closure", "items", "async items", "switch", "merge"])
def test_an_error_that_means_the_end_is_another_error(where: str, kind: type[Exception]) -> None:
    """A function that lets `EndOfChannel` or `StopAsyncIteration` out does not end the feed of its consumer: `next` and
    `async for` raise an error that names it, in the place of its value, and the call after that goes on."""
    if where == "async items" and kind is StopAsyncIteration:
        pytest.skip("it is the end of an async iterator")

    def work(x: int) -> int:
        if x == 1:
            raise kind
        return x

    start = flow(range(4))
    described: Flow[Any] = {
        "map": lambda: start.map(work),
        "where": lambda: start.where(lambda x: work(x) >= 0),
        "run": lambda: start.run(lambda x: value(work(x))),
        "closure": lambda: start.run(lambda x: value(x).map(work)),
        "items": lambda: flow(map(work, range(4))),
        "async items": lambda: flow(Fails(work)),
        "switch": lambda: start.fold(value(0), lambda s, x: value((s, x))).take(1).switch(lambda _: start.map(work)),
        "merge": lambda: merge(start.map(work)),
    }[where]()

    async def main() -> None:
        for ask in (next_of, anext) if where != "items" else (next_of,):
            async with described as feed:
                assert await ask(feed) == 0
                with pytest.raises(RuntimeError, match=rf"raised (trio\.)?{kind.__name__}, which .* takes for the end"):
                    await ask(feed)
                assert [x async for x in feed] == [2, 3]

    trio.run(main)


async def next_of(feed: Feed[Any]) -> Any:
    return await feed.next()


class Fails:
    """An async iterator over four numbers, of which each goes through a function."""

    def __init__(self, work: Callable[[int], int]) -> None:
        self._work = work
        self._next = 0

    def __aiter__(self) -> "Fails":
        return Fails(self._work)

    async def __anext__(self) -> int:
        await trio.lowlevel.checkpoint()
        self._next += 1
        if self._next > 4:
            raise StopAsyncIteration
        return self._work(self._next - 1)


async def ticks() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@pytest.mark.parametrize("kind", ["generator", "async generator", "channel", "async generator that was left"])
def test_a_flow_over_an_iterator_that_has_ended_says_so(kind: str) -> None:
    """Its values come once. A feed that is opened later has an error in their place, with a cure, and then ends."""

    async def main() -> None:
        send, receive = trio.open_memory_channel[int](3)
        for number in range(3):
            send.send_nowait(number)
        send.close()
        found: Any = {"generator": (x for x in range(3)), "channel": receive}.get(kind) or ticks()
        described: Flow[int] = flow(found)
        async with described as feed:
            if kind == "async generator that was left":
                assert await feed.next() == 0
            else:
                assert [x async for x in feed] == [0, 1, 2]
        for again in (described, described.map(lambda x: x)):
            async with again as feed:
                with pytest.raises(RuntimeError, match=r"made at .* has no more items: .* Make a flow of a list"):
                    await feed.next()
                with pytest.raises(trio.EndOfChannel):
                    await feed.next()

    trio.run(main)


def test_an_iterator_goes_on_where_the_feed_before_it_left_it() -> None:
    """Also one that has ended and has an item again, such as a file that grows; and a list begins again."""
    queue = [0, 1, 2, 3]
    growing = flow(Growing(queue))

    async def main() -> None:
        async with growing as feed:
            assert [await feed.next(), await feed.next()] == [0, 1]
        async with growing as feed:
            assert [x async for x in feed] == [2, 3]
        queue.append(4)
        async with growing as feed:
            assert [x async for x in feed] == [4]
        for _ in range(2):
            async with flow([1, 2]) as feed:
                assert [x async for x in feed] == [1, 2]

    trio.run(main)


class Growing:
    """An iterator over what is in a list."""

    def __init__(self, items: list[int]) -> None:
        self._items = items

    def __iter__(self) -> "Growing":
        return self

    def __next__(self) -> int:
        if not self._items:
            raise StopIteration
        return self._items.pop(0)


def test_a_fold_ends_with_the_step_that_fails() -> None:
    """The outputs before it, its error, and then the end: the state moved into the step, and is lost."""

    def step(state: int, x: int) -> Any:
        if x == 2:
            raise Broken(x)
        return value((state + x, state))

    assert trio.run(outcomes_of, flow(range(5)).fold(value(10), step)) == [10, 10, Failure(2)]


def test_a_step_must_give_a_pair() -> None:
    """A step whose op has another result is refused, with the place of `fold`."""
    described: Any = flow([1]).fold(value(0), lambda s, x: value(s + x))  # type: ignore[arg-type]  # reason: it is the mistake

    with pytest.raises(TypeError, match="a tuple of the next state and an output is wanted"):
        trio.run(outcomes_of, described)
