"""`shared()` in several feeds: its value is computed once for each snapshot, by the feed that needs it first, and freed
when the last of them is done with it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DagpuError, Source, current_device, from_host, observe, source, use_device, zip_ops
from dagpu.testing import exploring
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_kernels import Op, array, blended, flipped
from tests.behaviour.live.live_trials import MACHINES, Changes, Recipe, changes, machine, recipes, same, stirs, trial_of
from tests.behaviour.live.live_trials import explored as any_order
from tests.support.gates import PATIENCE
from tests.support.marks import MARKS

pytestmark = pytest.mark.host_only("kernels' host bodies")

KINDS = ("host", "simulated")


def tensor(number: float) -> Any:
    """A tensor of two elements, shared."""
    return from_host(np.full(2, number, np.float32)).sync().share()


def numbers(result: Any) -> list[float]:
    """The first elements of a result's arrays."""
    return [float(each[0]) for each in result]


def ran(number: int) -> int:
    """How often the kernel with this mark has run."""
    return MARKS.seen().count(number)


@pytest.mark.parametrize("kind", KINDS)
def test_two_feeds_compute_a_node_once_for_each_snapshot(kind: str) -> None:
    """Of two open feeds of ops around one node, the one that is asked first computes it, for both and for plain
    runs; what each adds to it, each computes."""

    async def main() -> None:
        given, other = source(tensors[0]), source(tensors[0])
        node = marked(1, given).shared()
        plain = marked(4, node).to_host()
        first, second = marked(2, node).to_host(), marked(3, node, other).to_host()
        async with observe(first) as one, observe(second) as two:
            for number, each in enumerate(tensors):
                given.set(each)
                MARKS.clear()
                feeds = [(one, 3.0), (two, 4.0 + other.revision)]
                for feed, wanted in feeds if number % 2 else reversed(feeds):
                    assert (await feed.next())[0] == number + wanted
                assert (await plain)[0] == number + 5.0
                assert (ran(1), ran(2), ran(3)) == (1, 1, 1)
            other.set(tensors[1])
            MARKS.clear()
            assert (await two.next())[0] == 3 + 5.0
            assert MARKS.seen() == [3]

    with machine(kind):
        tensors = [tensor(number) for number in range(4)]
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_that_opens_later_shares(kind: str) -> None:
    """From the update on in which the other feed knows of it, both use one value, and still do while a third opens
    and closes."""

    async def main() -> None:
        given = source(tensors[0])
        node = marked(1, given).shared()
        async with observe(marked(2, node).to_host()) as one:
            await one.next()
            async with observe(marked(3, node).to_host()) as two:
                await two.next()
                for number in (1, 2):
                    given.set(tensors[number])
                    MARKS.clear()
                    async with observe(node.to_host()) as three:
                        assert (await three.next())[0] == number + 1
                        assert ((await one.next())[0], (await two.next())[0]) == (number + 3, number + 4)
                    assert ran(1) == 1
            given.set(tensors[3])
            assert (await one.next())[0] == 6.0

    with machine(kind):
        tensors = [tensor(number) for number in range(4)]
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_that_opens_late_shares_with_one_that_repeats_an_update(kind: str) -> None:
    """A feed whose last updates were all of one number, and by a direct call, still notices that another feed observes
    a node of its op now: from then on one of them alone computes the node."""

    async def main() -> None:
        level, t = source(0.0), from_host(array(2)).share().shared()
        node = blended(t, t, level).shared()
        async with observe(flipped(node).to_host()) as one:
            for number in range(10):
                level.set(float(number))
                assert (await one.next())[0] == 1 - (3 + number)
            async with observe(blended(node, t, 1.0).to_host()) as two:
                await two.next()
                for number in range(3):
                    level.set(float(number))
                    before = one.stats.launched + two.stats.launched
                    assert (await one.next())[0] == 1 - (3 + number)
                    assert (await two.next())[0] == (3 + number) / 2 + 3
                    assert one.stats.launched + two.stats.launched == before + 5  # the node, and two for each feed

    with machine(kind):
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_below_each_other_are_each_computed_once(kind: str) -> None:
    """So is a node that depends on another one and on a second source: each is made again only if its own sources have
    changed."""

    async def main() -> None:
        given, other = source(tensors[0]), source(tensors[0])
        below = marked(1, given).shared()
        node = marked(2, below, other).shared()
        async with (
            observe(marked(3, node).to_host()) as one,
            observe(marked(4, node, below).to_host()) as two,
            observe(marked(5, below).to_host()) as three,
        ):
            for feed in (one, two, three):
                await feed.next()
            assert MARKS.seen().count(1) == MARKS.seen().count(2) == 1
            MARKS.clear()
            other.set(tensors[5])
            assert (await two.next())[0] == (0 + 1) + 5 + 2 + (0 + 1) + 4
            assert (await one.next())[0] == (0 + 1) + 5 + 2 + 3
            assert Counter(MARKS.seen()) == {2: 1, 3: 1, 4: 1}
            MARKS.clear()
            given.set(tensors[1])
            assert (await three.next())[0] == 2 + 5
            assert (await two.next())[0] == 2 + 5 + 2 + 2 + 4
            assert (await one.next())[0] == 2 + 5 + 2 + 3
            assert Counter(MARKS.seen()) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}

    with machine(kind):
        tensors = [tensor(number) for number in range(6)]
        trio.run(main)


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("first", "second", "feed 0", "feed 1", "feed 2", "plain", "reopen")), st.booleans()),
        max_size=14,
    )
)
def test_feeds_in_any_order_have_the_newest_values(steps: list[tuple[str, bool]]) -> None:
    """With three feeds, plain runs and changes in any order, also where feeds close and open: each value is that of the
    newest revisions. While the first two feeds are open and no feed opens, each node runs once for its revisions."""

    async def main() -> None:
        first, second = source(tensors[0]), source(tensors[0])
        below = marked(1, first).shared()
        node = marked(2, below, second).shared()
        ops: list[Any] = [marked(3, node).to_host(), marked(4, node, below).to_host(), below.to_host()]
        made: set[tuple[int, int]] = set()

        def wanted(index: int) -> float:
            x, y = first.revision % 4 + 1, second.revision % 4
            return float([x + y + 5, 2 * x + y + 6, x][index])

        async with observe(ops[0]) as zero, observe(ops[1]) as one:
            feeds: list[Any] = [zero, one]
            for feed in feeds:
                await feed.next()
            seen = [(0, 0), (0, 0)]
            MARKS.clear()
            for name, third in steps:
                if name in ("first", "second"):
                    changed = first if name == "first" else second
                    changed.set(tensors[(changed.revision + 1) % 4])
                elif name == "plain":
                    assert (await ops[third])[0] == wanted(third)
                elif name == "reopen":
                    reopened: Any = observe(ops[2 * third])
                    async with reopened as passing:
                        assert (await passing.next())[0] == wanted(2 * third)
                else:
                    index = int(name[-1]) % 2
                    state = first.revision, second.revision
                    if state != seen[index]:
                        seen[index] = state
                        made.add(state)
                        assert (await feeds[index].next())[0] == wanted(index)
            if not any(name in ("plain", "reopen") for name, _ in steps):
                assert ran(2) == len(made)
                assert ran(1) <= len({a for a, _ in made})

    tensors = [tensor(number) for number in range(4)]
    MARKS.clear()
    trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=25)
@given(recipe=recipes(cutoffs=True), steps=changes(), turns=st.integers(0, 255), seed=st.integers(0, 9))
def test_feeds_of_random_ops_have_the_values_of_runs_from_scratch(
    kind: str, recipe: Recipe, steps: Changes, turns: int, seed: int
) -> None:
    """Two feeds of one op whose nodes are all shared, asked in any order after any changes: each value has the bits of
    a run from scratch."""

    async def main() -> None:
        trial = trial_of(recipe)
        async with observe(trial.op) as one, observe(trial.op) as two:
            feeds = [one, two]
            values = [await feed.next() for feed in feeds]
            assert same(values[0], values[1])
            for number, which in enumerate(steps):
                if stirs(trial, which, number):
                    first = turns >> number & 1
                    values[first] = await feeds[first].next()
                    if turns >> number + 4 & 1 or number == len(steps) - 1:
                        values[1 - first] = await feeds[1 - first].next()
                        assert same(values[0], values[1])
                    assert same(values[first], await trial.op)

    with machine(kind, seed), any_order(kind, seed):
        trio.run(main)


def test_closures_of_a_shared_node_are_called_once() -> None:
    """`shared()` of host values: each closure below it is called once for each snapshot, whichever feed is asked."""
    calls: list[tuple[str, int]] = []

    def noted(name: str) -> Any:
        def call(x: Any) -> Any:
            calls.append((name, x))
            return x + 1

        return call

    async def main() -> None:
        given, other = source(1), source(0)
        node: Op = given.map(noted("early")).map(noted("late")).shared()
        async with observe(node.map(noted("one"))) as one, observe(zip_ops(node, other).map(lambda p: p)) as two:
            for number in (1, 5, 9):
                given.set(number)
                assert await two.next() == (number + 2, other.get())
                assert await one.next() == number + 3
                assert calls == [("early", number), ("late", number + 1), ("one", number + 2)]
                calls.clear()
                other.set(number)
                assert await two.next() == (number + 2, number)
                assert not calls

    trio.run(main)


def test_a_feed_waits_for_the_one_that_computes_the_node() -> None:
    """Two tasks ask two feeds at once: one computes the node, the other waits for its value, and each has its own."""

    async def main() -> None:
        given = source(tensors[0])
        node = marked(1, given).shared()
        async with observe(marked(2, node).to_host()) as one, observe(marked(3, node).to_host()) as two:
            results: dict[int, float] = {}

            async def ask(index: int, feed: Any) -> None:
                results[index] = float((await feed.next())[0])

            for number, each in enumerate(tensors):
                given.set(each)
                MARKS.clear()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask, 0, one)
                    nursery.start_soon(ask, 1, two)
                assert results == {0: number + 3, 1: number + 4}
                assert ran(1) == 1

    tensors = [tensor(number) for number in range(3)]
    trio.run(main)


def test_feeds_of_two_threads_share() -> None:
    """Feeds in two loops of trio, each in its own thread, see whole values of the newest revision while a third thread
    sets the source; after the last change both have its value."""
    tensors = [tensor(number) for number in range(30)]
    given = source(tensors[0])
    node = marked(1, given).shared()
    opened = threading.Barrier(3)

    def follow(mark: int) -> list[float]:
        seen: list[float] = []

        async def main() -> None:
            async with observe(marked(mark, node).to_host()) as feed:
                seen.append((await feed.next())[0] - mark - 1)
                opened.wait(PATIENCE)
                while seen[-1] != len(tensors) - 1:
                    seen.append((await feed.next())[0] - mark - 1)

        trio.run(main)
        return seen

    with ThreadPoolExecutor(2) as pool:
        followers = [pool.submit(follow, mark) for mark in (2, 3)]
        opened.wait(PATIENCE)
        for each in tensors[1:]:
            given.set(each)
        for follower in followers:
            seen = follower.result(PATIENCE)
            assert seen == sorted(set(seen))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 1])
def test_a_node_of_one_feed_keeps_nothing_for_others(kind: str, first: int) -> None:
    """When one of two feeds closes, what the node has published is freed, whichever of them has made it, though the
    node and the other feed go on. After that one the node has nothing."""

    async def main() -> None:
        given = source(tensors[0])
        node = marked(1, given).shared()
        used = current_device().memory_used()
        async with observe(marked(2, node)) as alone:
            await alone.next()
            given.set(tensors[1])
            await alone.next()
            lone = current_device().memory_used()
        del alone
        assert current_device().memory_used() == used
        async with observe(marked(2, node)) as one:
            async with observe(marked(2, node)) as two:
                for feed in (one, two) if first == 0 else (two, one):
                    await feed.next()
                del two, feed
                assert current_device().memory_used() > lone
            given.set(tensors[0])
            await one.next()
            assert current_device().memory_used() == lone
        del one
        assert current_device().memory_used() == used
        del node

    with machine(kind):
        tensors = [tensor(number) for number in range(2)]
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_freed_with_the_last_feed(kind: str) -> None:
    """A snapshot's value is freed when both feeds have gone on to a newer one, and the newest one with the last feed;
    what a program holds of it stays."""

    async def main() -> None:
        given = source(tensors[0])
        node = marked(1, given).shared()
        used = current_device().memory_used()
        levels: list[int] = []
        async with observe(marked(2, node)) as one, observe(marked(3, node)) as two:
            for each in tensors:
                given.set(each)
                await one.next()
                await two.next()
                levels.append(current_device().memory_used())
            assert len(set(levels[1:])) == 1
            held = await node
        del one, two
        assert (await held.clone().to_host())[0] == len(tensors)
        del held
        assert current_device().memory_used() == used

    with machine(kind):
        tensors = [tensor(number) for number in range(6)]
        trio.run(main)


@contextmanager
def explored(seed: int, step: int | None = None, cancel: Callable[[], None] | None = None) -> Iterator[None]:
    """Explore one order of the runs in the block, if there are any, with a fault or a cancellation at a step."""
    try:
        if cancel is not None:
            with exploring(seed=seed, cancel_at=step, cancel=cancel):
                yield
        else:
            with exploring(seed=seed, fail_at=step):
                yield
    except DagpuError as error:
        if "no order was explored" not in str(error):
            raise


@contextmanager
def may_fail() -> Iterator[None]:
    """Suppress the fault that the exploration of an order has injected."""
    try:
        yield
    except Exception as error:
        if "njected" not in str(error):
            raise


@settings(max_examples=60)
@given(step=st.integers(0, 20), cancel=st.booleans(), seed=st.integers(0, 5))
def test_a_feed_that_fails_leaves_the_node_to_the_other(step: int, cancel: bool, seed: int) -> None:
    """If the feed that computes the node fails at any step, or is cancelled, the other one computes it, and the first
    makes its own value good."""

    async def main() -> None:
        given = source(old)
        node: Any = marked(1, given).shared()
        async with observe(marked(2, node).to_host()) as one, observe(marked(3, node).to_host()) as two:
            with exploring(seed=seed):
                await one.next()
                await two.next()
            given.set(new)
            with trio.CancelScope() as scope, may_fail(), explored(seed, step, scope.cancel if cancel else None):
                await one.next()
            for feed, mark in (two, 3), (one, 2):
                with explored(seed):
                    made = 7.0 + 1 + mark
                    assert feed is one or (await feed.next())[0] == made
                    if feed is one and one.stats.values == 1:
                        assert (await feed.next())[0] == made
            assert one.stats.values == two.stats.values == 2
            assert node.once.owner is None

    with use_device("explore:0"):
        with exploring(seed=seed):
            old, new = tensor(0), tensor(7)
        trio.run(main)


def test_a_check_does_not_share() -> None:
    """The run from scratch that `check=True` compares with computes the node itself."""

    async def main() -> None:
        given: Source[int] = source(1)
        calls: list[int] = []

        def noted(x: int) -> int:
            calls.append(x)
            return x

        node: Any = given.map(noted).shared()
        async with observe(node, check=True) as one, observe(node) as two:
            assert await one.next() == await two.next() == 1
            assert len(calls) == 2

    trio.run(main)


def test_a_limit_for_memory_holds_with_two_feeds() -> None:
    """A feed with `memory=` keeps no node of another feed that would not fit."""

    async def main() -> None:
        given = source(tensors[0])
        node = marked(1, given).shared()
        op = marked(2, node)
        async with observe(op, memory=8) as one, observe(marked(3, node)) as two:
            for number in range(3):
                given.set(tensors[number])
                assert (await (await one.next()).to_host())[0] == number + 3
                assert one.stats.kept_bytes <= 8
                assert (await (await two.next()).to_host())[0] == number + 4

    tensors = [tensor(number) for number in range(3)]
    trio.run(main)
