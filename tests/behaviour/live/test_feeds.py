"""Feeds of observed ops: the newest snapshot, whole batches, failures and cancellations made good, nothing left."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DeviceOp,
    SharedTensor,
    Source,
    UpdateError,
    batch,
    current_device,
    cutoff,
    from_host,
    observe,
    ones,
    source,
    value,
    zip_ops,
)
from dagpu.testing import exploring
from tests.behaviour.live.live_kernels import array, blended, flipped, gathered
from tests.behaviour.live.live_trials import (
    MACHINES,
    Changes,
    Recipe,
    changes,
    explored,
    machine,
    recipes,
    same,
    stirs,
    trial_of,
)

Op = DeviceOp[Any, Any, Any]


def run(kind: str, main: Any, seed: int = 0) -> None:
    """Run an async test on a kind of machine."""
    with machine(kind, seed), explored(kind, seed):
        trio.run(main)


# ---- values


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=15)
@given(recipe=recipes(cutoffs=True), steps=changes(), seed=st.integers(0, 9))
def test_a_feed_gives_what_a_run_from_scratch_gives(kind: str, recipe: Recipe, steps: Changes, seed: int) -> None:
    """The first value and each later one have the bits of `await op`; `check=True` finds no difference."""

    async def main() -> None:
        trial = trial_of(recipe)
        async with observe(trial.op, check=True) as feed:
            assert same(await feed.next(), await trial.op)
            for number, which in enumerate(steps):
                if stirs(trial, which, number):
                    assert same(await feed.next(), await trial.op)

    run(kind, main, seed)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_feed_gives_the_newest_value_alone(kind: str) -> None:
    """Of several changes between two values asked for, the last one counts, and the others are skipped."""

    async def main() -> None:
        level = source(0.0)
        async with observe(blended(ones((8,)).share().shared(), ones((8,)).share().shared(), level).to_host()) as feed:
            await feed.next()
            for number in range(5):
                level.set(number + 1.0)
            assert (await feed.next())[0] == 6.5
            assert (feed.stats.values, feed.stats.skipped) == (2, 4)

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_batch_is_seen_whole(kind: str) -> None:
    """While a thread sets pairs in batches, a feed and plain runs see no pair torn, none going back, and the last."""

    async def main() -> None:
        a, b = source(0), source(0)
        pair = zip_ops(a, b)
        last = 300

        def set_pairs() -> None:
            for number in range(1, last + 1):
                with batch():
                    a.set(number)
                    b.set(-number)

        async with trio.open_nursery() as nursery, observe(pair) as feed:
            nursery.start_soon(trio.to_thread.run_sync, set_pairs)
            seen = 0
            async for x, y in feed:
                assert x == -y >= seen
                p, q = await pair
                assert p == -q >= x
                seen = x
                if seen == last:
                    break

    with machine(kind):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_numbers_that_change_together_often_give_each_value(kind: str) -> None:
    """Also once their update has a direct call, which a feed begins again for a number that changes alone."""

    async def main() -> None:
        low, high = source(0.0), source(1.0)
        t = from_host(array(2)).share().shared()
        async with observe(blended(blended(t, t, low), t, high).to_host()) as feed:
            for number in range(10):
                with batch():
                    low.set(2.0 * number)
                    high.set(number + 0.5)
                assert (await feed.next())[0] == (3 + 2 * number) / 2 + 2 + number + 0.5
            low.set(2.0)
            assert (await feed.next())[0] == 5 / 2 + 2 + 9.5

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_batches_of_two_threads_are_seen_whole(kind: str) -> None:
    """While two threads set the same pair in batches, a feed sees no pair torn, none of a thread going back, and last
    of all the pair that is left."""

    async def main() -> None:
        a, b, over = source((0, 0)), source((0, 0)), source(False)
        both_run = threading.Barrier(2)

        def set_pairs(thread: int) -> None:
            both_run.wait()
            for number in range(1, 201):
                with batch():
                    a.set((thread, number))
                    b.set((thread, number))

        async def set_all() -> None:
            async with trio.open_nursery() as threads:
                for thread in (0, 1):
                    threads.start_soon(trio.to_thread.run_sync, set_pairs, thread)
            over.set(True)

        async with trio.open_nursery() as nursery, observe(zip_ops(a, b, over)) as feed:
            nursery.start_soon(set_all)
            seen = [0, 0]
            async for x, y, ended in feed:
                thread, number = x
                assert x == y
                assert number >= seen[thread]
                seen[thread] = number
                if ended:
                    break
        assert x == a.get() == b.get()
        assert number == 200

    with machine(kind):
        trio.run(main)


def test_sets_without_a_checkpoint_between_them_are_seen_together() -> None:
    """A task that sets two sources, one after the other, wakes a waiting feed once, with both values."""

    async def main() -> None:
        a, b = source(0), source(0)
        seen: list[Any] = []

        async def watch(task_status: Any) -> None:
            async with observe(zip_ops(a, b)) as feed:
                seen.append(await feed.next())
                task_status.started()
                seen.append(await feed.next())

        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            await trio.testing.wait_all_tasks_blocked()
            a.set(1)
            b.set(2)
        assert seen == [(0, 0), (1, 2)]

    trio.run(main)


def test_a_batch_that_fails_changes_nothing() -> None:
    """An exception in the block leaves all sources as they were; an inner block that fails drops its own changes."""
    a, b = source(1), source(2)

    def set_and_fail(given: Source[int], x: int) -> None:
        with batch():
            given.set(x)
            raise KeyError(x)

    with pytest.raises(KeyError):
        set_and_fail(a, 5)
    assert (a.get(), a.revision) == (1, 0)
    with batch():
        a.set(7)
        with pytest.raises(KeyError):
            set_and_fail(b, 9)
        assert (a.get(), b.get(), a.revision) == (7, 2, 0)
    assert (a.get(), b.get(), a.revision, b.revision) == (7, 2, 1, 0)


def test_a_batch_holds_up_no_other_thread() -> None:
    """While one thread has a batch open, another one sets a source, and its change is visible at once."""
    a = source(1)
    with batch():
        a.set(2)
        other = threading.Thread(target=a.set, args=(3,))
        other.start()
        other.join()
        assert a.get() == 2
        assert value(None).then(lambda _: a).sync() == 3
    assert a.get() == 2


def test_change_loses_no_change_of_another_thread() -> None:
    """`change` from several threads at once: each of them counts."""
    a = source(0)

    def add() -> None:
        for _ in range(200):
            a.change(lambda x: x + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (a.get(), a.revision) == (800, 800)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_result_is_not_written_again(kind: str) -> None:
    """A tensor that a feed has handed out keeps its contents through later updates, and cannot be taken over."""

    async def main() -> None:
        level = source(1.0)
        async with observe(blended(ones((8,)).share().shared(), ones((8,)).share().shared(), level)) as feed:
            first: SharedTensor[Any] = await feed.next()
            level.set(2.0)
            second = await feed.next()
            assert ((await first.to_host())[0], (await second.to_host())[0]) == (2.5, 3.5)
            with pytest.raises(Exception, match="still held"):
                second.try_unwrap()

    run(kind, main)


def test_a_source_of_a_tensor_gives_immutable_versions() -> None:
    """A tensor moves in and is shared; each version lives as long as somebody has a handle to it."""
    given = source(from_host(array(1)).sync())
    first = given.get()
    given.set(from_host(array(2)).sync())
    assert (given.revision, first.to_host().sync()[0], given.then(lambda t: t.to_host()).sync()[0]) == (1, 1.0, 2.0)
    assert first.try_unwrap().to_host().sync()[0] == 1.0


def test_a_source_of_an_array_copies_it() -> None:
    """The caller goes on writing to its own array; what `get` returns is read-only."""
    mine = array(1, 2)
    given = source(mine)
    mine[0] = 9
    assert given.get()[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        given.get()[0] = 5


def test_equal_values_are_no_change() -> None:
    """A number, a text or a truth value that equals the present one changes nothing; `equal` extends this to others."""
    level, close = source(1.0), source(1.0, equal=lambda a, b: abs(a - b) < 0.5)
    level.set(1.0)
    close.set(1.25)
    assert (level.revision, close.revision, close.get()) == (0, 0, 1.0)
    level.set(-0.0)
    level.set(0.0)
    close.set(2.0)
    assert (level.revision, close.revision) == (2, 1)


def test_a_feed_of_an_op_without_sources_ends() -> None:
    """It has one value: nothing can change it."""

    async def main() -> None:
        async with observe(value(3)) as feed:
            assert [x async for x in feed] == [3]
            with pytest.raises(trio.EndOfChannel):
                await feed.next()

    trio.run(main)


# ---- failures and cancellations


@settings(max_examples=60)
@given(recipe=recipes(most=5, cutoffs=True), which=st.sets(st.integers(0, 4), min_size=1), step=st.integers(0, 14))
def test_a_failed_update_is_made_good(recipe: Recipe, which: set[int], step: int) -> None:
    """After a fault at any step of an update, or of the first one, the next value is right."""

    async def main() -> None:
        trial = trial_of(recipe)
        async with observe(trial.op) as feed:
            for number in range(2):
                if not stirs(trial, which, number + 1) and number:
                    continue
                try:
                    with exploring(seed=step, fail_at=step):
                        await feed.next()
                except Exception as error:  # the fault, or a block in which too little ran for one
                    if "njected" not in str(error) and "no order was explored" not in str(error):
                        raise
                else:
                    continue
                with exploring(seed=step):
                    stirs(trial, which, number + 7)
                    assert same(await feed.next(), await trial.op)

    with machine("explore"):
        trio.run(main)


@settings(max_examples=60)
@given(recipe=recipes(most=5, cutoffs=True), which=st.sets(st.integers(0, 4), min_size=1), step=st.integers(0, 14))
def test_a_cancelled_next_loses_no_value(recipe: Recipe, which: set[int], step: int) -> None:
    """However far an update has come when it is cancelled, the next call returns the value."""

    async def main() -> None:
        trial = trial_of(recipe)
        async with observe(trial.op) as feed:
            for number in range(2):
                if not stirs(trial, which, number + 1) and number:
                    continue
                with (
                    trio.CancelScope() as scope,
                    explored("explore", step),
                    exploring(seed=step, cancel_at=step, cancel=scope.cancel),
                ):
                    await feed.next()
                if scope.cancelled_caught:
                    with exploring(seed=step):
                        assert same(await feed.next(), await trial.op)

    with machine("explore"):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_closure_that_fails_leaves_the_feed_usable(kind: str) -> None:
    """Its error comes out of `next()` with its type and place, and the next value is right."""

    async def main() -> None:
        divisor = source(1)
        op = zip_ops(divisor.map(lambda d: 6 // d), ones((8,)).to_host().map(lambda a: float(a.sum())))
        async with observe(op) as feed:
            assert await feed.next() == (6, 8.0)
            divisor.set(0)
            with pytest.raises(ZeroDivisionError) as caught:
                await feed.next()
            assert any("the closure of .map at" in note for note in caught.value.__notes__)
            divisor.set(2)
            assert await feed.next() == (3, 8.0)

    run(kind, main)


def test_a_closure_that_reads_a_global_is_found() -> None:
    """`check=True` names the op and the source when an update differs from a run from scratch."""
    secret = [1.0]

    async def main() -> None:
        level, other = source(1.0), source(2.0)
        op = zip_ops(level.map(lambda x: x * secret[0]), other)
        async with observe(op, check=True) as feed:
            assert await feed.next() == (1.0, 2.0)
            secret[0] = 5.0
            other.set(3.0)
            with pytest.raises(UpdateError, match=r"test_feeds.py:\d+ differs .* at revision 1 of <source at"):
                await feed.next()

    trio.run(main)


# ---- nothing left over


@pytest.mark.parametrize("kind", MACHINES)
def test_nothing_is_left_after_the_block(kind: str) -> None:
    """Memory, and what wakes the feed, are as before it was opened, however its last update ended."""

    async def main() -> None:
        given, level = source(array(1, 2)), source(1.0)

        def op() -> Op:
            t = given.then(from_host).shared()
            return blended(cutoff(gathered(t)), flipped(t).share().shared(), level)

        used = current_device().memory_used()
        for cancelled in (False, True):
            async with observe(op()) as feed:
                for number in range(3):
                    given.set(array(number))
                    level.set(float(number))
                    await feed.next()
                assert current_device().memory_used() > used
                if cancelled:
                    level.set(7.0)
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await feed.next()
            del feed
            assert current_device().memory_used() == used
            assert given.cell.watchers() == level.cell.watchers() == []

    with machine(kind):
        if kind == "explore":
            with exploring(seed=1):
                trio.run(main)
        else:
            trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_memory_is_flat_over_many_updates(kind: str) -> None:
    """After 300 updates of changing parts, a feed holds the memory that it held after the first few, and no objects."""

    async def main() -> None:
        given, level, whole = source(array(1, 2)), source(1.0), source(1)
        t = given.then(from_host).shared()
        op = zip_ops(blended(cutoff(gathered(t)), t, level), whole.map(lambda n: n + 1)).map(
            lambda pair: (pair[0].share(), pair[1])
        )
        async with observe(op) as feed:

            async def updates(count: int) -> tuple[int, int]:
                for number in range(count):
                    if number % 3 == 0:
                        given.set(array(number % 7))
                    level.set(float(number))
                    if number % 2:
                        whole.set(number)
                    await feed.next()
                gc.collect()
                return current_device().memory_used(), len(gc.get_objects())

            await updates(30)
            memory, objects = await updates(30)
            later_memory, later_objects = await updates(300)
            assert later_memory == memory
            assert later_objects - objects < 100

    with machine(kind):
        if kind == "explore":
            with exploring(seed=1):
                trio.run(main)
        else:
            trio.run(main)


def test_two_feeds_of_one_op_are_independent() -> None:
    """Each sees every state that it asks for, and one that ends leaves the other alone."""

    async def main() -> None:
        level: Source[float] = source(1.0)
        observed = observe(level.map(lambda x: 2 * x))
        async with observed as first:
            async with observed as second:
                assert (await first.next(), await second.next()) == (2.0, 2.0)
                level.set(3.0)
                assert await second.next() == 6.0
            level.set(4.0)
            assert await first.next() == 8.0

    trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_shared_runs_once_for_each_snapshot(kind: str) -> None:
    """Outside feeds, what `shared()` remembers of sources serves all runs until one of its own sources changes."""
    with machine(kind), explored(kind, 0):
        given, other = source(array(1)), source(1.0)
        calls: list[float] = []

        def noted(x: float) -> float:
            calls.append(x)
            return x

        t: Op = blended(from_host(array(4)), from_host(array(2)), given.map(lambda a: noted(float(a[0])))).shared()
        for expected, new in [(5.0, None), (5.0, None), (7.0, array(3)), (7.0, None)]:
            if new is not None:
                given.set(new)
            other.set(other.get() + 1)
            assert zip_ops(t.to_host(), other).sync()[0][0] == np.float32(expected)
        assert calls == [1.0, 3.0]
