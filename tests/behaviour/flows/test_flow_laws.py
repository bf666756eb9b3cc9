"""The laws of flows: a flow gives what the same operators give of a list, in order, whatever takes how long."""

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Flow, flow, merge, use_interpreter, value, zip_flows
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
