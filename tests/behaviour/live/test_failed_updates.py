"""Behind an update that failed or was cancelled, the next one runs what that one did not complete, and nothing else."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import batch, cutoff, from_host, observe, source, zip_ops
from tests.programs.feeds.counted_functions import (
    RUNS,
    N,
    Op,
    PlannedError,
    blend,
    first,
    halve,
    new,
    noted,
    soften,
)  # fmt: skip
from tests.support.gates import PATIENCE

pytestmark = pytest.mark.host_only("kernels' host bodies")

UPDATES = (0, 1, 9)
"""How many updates there are before the one that fails: that is the first, one of the general way, or a direct call."""


def halved(number: int, a: Any) -> Op:
    """A tensor of kernel `number`."""
    return first(halve(new(), number, a))


async def check_failure(op: Op, change: Callable[[int], object], before: int, failing: str, again: set[str]) -> None:
    """Ask a feed of an op so often, let the function `failing` fail in the next update, and hold what runs in the one
    after that against `again`, its value against a run's."""
    async with observe(op) as feed:
        for number in range(before):
            await feed.next()
            change(number)
        RUNS.take()
        RUNS.failing = failing
        with trio.fail_after(PATIENCE):
            with pytest.raises(PlannedError):
                await feed.next()
            ran = RUNS.take()
            assert ran[failing] == 1
            value: Any = await feed.next()
        assert set(RUNS.take()) == again
        for made, wanted in zip(value, await op, strict=True):
            np.testing.assert_array_equal(made, wanted)
        change(before)  # the update after that is like any other
        value = await feed.next()
        assert set(RUNS.take()) >= again
        for made, wanted in zip(value, await op, strict=True):
            np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("before", UPDATES)
def test_a_kernel_that_failed_runs_again_alone(before: int) -> None:
    """Others that read the same source had been completed, one of them by then, one after it."""
    given = source(np.zeros(N, np.float32))
    t = given.then(from_host).shared()
    op = zip_ops(*[halved(number, t).to_host() for number in (1, 2, 3)])
    trio.run(check_failure, op, lambda n: given.set(np.full(N, n, np.float32)), before, "kernel 2", {"kernel 2"})


@pytest.mark.parametrize("before", UPDATES)
def test_of_kernels_that_read_a_number_the_one_that_failed_runs_again(before: int) -> None:
    """A number alone changes, so the update is made again by the call of the one before."""
    given, level = source(np.ones(N, np.float32)), source(0.0)
    t = given.then(from_host).shared()
    op = zip_ops(*[first(blend(new(), number, t, t, level)).to_host() for number in (1, 2)])
    trio.run(check_failure, op, lambda n: level.set(n + 1.0), before, "kernel 1", {"kernel 1"})


@pytest.mark.parametrize("before", UPDATES)
def test_what_comes_before_a_cutoff_is_kept_if_a_kernel_behind_it_fails(before: int) -> None:
    """And what else comes behind it."""
    given = source(np.zeros(N, np.float32))
    through = cutoff(halved(1, given.then(from_host)))
    op = zip_ops(halved(2, through).to_host(), halved(3, through).to_host())
    trio.run(check_failure, op, lambda n: given.set(np.full(N, n + 1, np.float32)), before, "kernel 3", {"kernel 3"})


@pytest.mark.parametrize("before", UPDATES)
def test_a_closure_that_failed_is_called_again_alone(before: int) -> None:
    """The closures before it in the same update are not called again."""
    level = source(0.0)
    op = zip_ops(*[level.map(noted(f"map {number}", lambda v: np.float32(v))) for number in (1, 2)])
    trio.run(check_failure, op, lambda n: level.set(n + 1.0), before, "map 2", {"map 2"})


@pytest.mark.parametrize("before", UPDATES)
def test_a_kernel_that_was_completed_before_a_cancellation_does_not_run_again(before: int) -> None:
    """The update is cancelled while the kernel behind it is at its first tile: that one runs again, all of it."""
    given = source(np.zeros(N, np.float32))
    kept = halved(1, given.then(from_host)).share().shared()
    op = zip_ops(kept, first(soften(new(2), 2, kept)).to_host())

    async def main() -> None:
        async with observe(op) as feed:
            for number in range(before):
                await feed.next()
                given.set(np.full(N, number, np.float32))
            RUNS.take()
            with trio.fail_after(PATIENCE):
                with trio.CancelScope() as scope:
                    token = trio.lowlevel.current_trio_token()
                    RUNS.failing = "kernel 2"
                    RUNS.on_failing = lambda: trio.from_thread.run_sync(scope.cancel, trio_token=token)
                    await feed.next()
                assert scope.cancelled_caught
                assert RUNS.take() == {"kernel 1": 1, "kernel 2": 1}
                value: Any = await feed.next()
            assert RUNS.take() == {"kernel 2": 4}
            np.testing.assert_array_equal(value[1], (await op)[1])

    trio.run(main)


def test_a_shared_part_of_an_update_that_failed_serves_others() -> None:
    """A feed and a run that need it do not make it again."""
    given = source(np.zeros(N, np.float32))
    shared = halved(1, given.then(from_host)).shared()

    async def main() -> None:
        async with (
            observe(zip_ops(shared, halved(2, shared).to_host())) as one,
            observe(shared.to_host()) as other,
        ):
            await one.next()
            await other.next()
            given.set(np.ones(N, np.float32))
            RUNS.take()
            RUNS.failing = "kernel 2"
            with pytest.raises(PlannedError):
                await one.next()
            assert RUNS.take() == {"kernel 1": 1, "kernel 2": 1}
            np.testing.assert_array_equal(await shared.to_host(), np.full(N, 1.5, np.float32))
            np.testing.assert_array_equal(await other.next(), np.full(N, 1.5, np.float32))
            assert not RUNS.take()
            await one.next()
            assert RUNS.take() == {"kernel 2": 1}

    trio.run(main)


@given(
    shape=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), min_size=1, max_size=10),
    steps=st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(0, 14)), min_size=1, max_size=8),
)
def test_no_closure_is_called_again_for_what_it_has_completed(
    shape: list[tuple[int, int, bool]], steps: list[tuple[set[int], int]]
) -> None:
    """However often updates fail, and whatever changes in between: each closure is called only for an argument that
    differs from the one for which it has last returned."""
    sources = [source((number, 0)) for number in range(3)]
    completed: dict[int, Any] = {}
    values: dict[Any, int] = {}
    calls, failing = Counter[int](), [-1]

    def closure(number: int) -> Callable[[Any], Any]:
        def call(given: Any) -> Any:
            assert completed.get(number) != given, f"closure {number} has returned for this"
            calls[number] += 1
            if number == failing[0]:
                raise PlannedError(str(number))
            completed[number] = given
            return number, values.setdefault((number, given), len(values))

        return call

    pool: list[Any] = [*sources]
    for number, (one, other, is_cut) in enumerate(shape):
        made = zip_ops(pool[one % len(pool)], pool[other % len(pool)]).map(closure(number))
        pool.append(cutoff(made) if is_cut else made.shared())
    op = zip_ops(*pool)  # it reads all sources

    async def main() -> None:
        async with observe(op) as feed:
            await feed.next()
            for revision, (changed, fails) in enumerate(steps):
                with batch():
                    for each in changed:
                        sources[each].set((each, revision + 1))
                failing[0] = fails
                calls.clear()
                if not changed:
                    continue
                try:
                    await feed.next()
                except PlannedError:
                    continue
                assert all(count == 1 for count in calls.values()), calls
            failing[0] = -1
            with batch():
                for number, given in enumerate(sources):
                    given.set((number, len(steps) + 1))
            made = await feed.next()
            completed.clear()
            assert made == await op

    trio.run(main)
