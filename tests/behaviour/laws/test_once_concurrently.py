"""`Shared` and the source of an `unzip`: concurrent runs share one run of them, and the last reader frees the value."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import add
from typing import Any

import pytest
import trio
import trio.testing

from dagpu import (
    NestedRunError,
    OwnershipError,
    current_device,
    ones,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.behaviour.laws.marked_ops import PATIENCE, Failing, Op, awaiting, gather, marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.support.marks import MARKS


class Held:
    """A function for `host_map` that stops in its first `stops` calls until it is released."""

    def __init__(self, fail: int = 0) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.f = Failing(fail)

    def __call__(self, x: Any) -> Any:
        self.entered.set()
        self.release.wait()
        return self.f(x)


# ---- at the same time


@pytest.mark.parametrize("count", [2, 20])
def test_tasks_that_meet_at_a_shared_run_it_once(count: int) -> None:
    """One task evaluates, all others wait for its result, and all get it."""
    held = Held()
    shared: Op = value(5).host_map(held).shared()
    jobs = [awaiting(shared.map(partial(add, i))) for i in range(count)]
    assert trio.run(gather, jobs, held.release.set) == [5 + i for i in range(count)]
    assert held.f.calls == 1


def test_tasks_that_meet_at_an_unzip_run_it_once() -> None:
    """Each of them takes another component of one source."""
    held = Held()
    parts: Any = zip_ops(value(1).host_map(held), marked(2).to_host(), marked(3)).unzip()
    jobs = [awaiting(parts[0]), awaiting(parts[1]), awaiting(parts[2].to_host())]
    one, two, three = trio.run(gather, jobs, held.release.set)
    assert (one, float(two[0]), float(three[0])) == (1, 2.0, 3.0)
    assert sorted(MARKS.seen()) == [2, 3]
    assert held.f.calls == 1


@pytest.mark.parametrize("failures", [1, 3])
def test_waiters_take_over_after_a_failure(failures: int) -> None:
    """Whoever evaluates gets the error; the next of those that wait evaluates itself, until it succeeds."""
    held = Held(failures)
    shared: Op = value(5).host_map(held).shared()
    results = trio.run(gather, [awaiting(shared) for _ in range(6)], held.release.set)
    assert sum(isinstance(result, ValueError) for result in results) == failures
    assert results.count(5) == 6 - failures
    assert held.f.calls == failures + 1


def test_a_waiter_that_uses_it_twice_takes_over() -> None:
    """The waiting run reaches the shared op in several branches; it evaluates once all the same."""
    held = Held(1)
    shared: Op = value(5).host_map(held).shared()
    twice: Op = zip_ops(shared, shared.map(lambda x: x + 1), shared)
    results = trio.run(gather, [awaiting(shared), awaiting(twice)], held.release.set)
    assert isinstance(results[0], ValueError)
    assert results[1] == (5, 6, 5)
    assert held.f.calls == 2


def test_waiters_take_over_after_a_cancellation() -> None:
    """A cancelled evaluation is drained, and not remembered: one that waits evaluates anew."""
    held = Held()
    shared: Op = value(5).host_map(held).shared()
    scope = trio.CancelScope()

    async def cancelled() -> Any:
        with scope:
            await shared
        return "cancelled"

    def cancel() -> None:
        assert held.entered.wait(PATIENCE)  # what has not begun is skipped
        scope.cancel()
        held.release.set()

    assert trio.run(gather, [cancelled, awaiting(shared)], cancel) == ["cancelled", 5]
    assert held.f.calls == 2


def test_a_waiter_that_is_cancelled_leaves_the_others_alone() -> None:
    """It goes at once, while the evaluation that it waited for goes on."""
    held = Held()
    shared: Op = value(5).host_map(held).shared()
    scope, gone = trio.CancelScope(), trio.Event()

    async def cancelled() -> Any:
        with scope:
            await shared
        gone.set()
        return "cancelled"

    async def releaser() -> None:
        await gone.wait()
        held.release.set()

    jobs = [awaiting(shared), cancelled, awaiting(shared), releaser]
    assert trio.run(gather, jobs, scope.cancel) == [5, "cancelled", 5, None]
    assert held.f.calls == 1


def test_runs_that_want_two_shareds_in_opposite_orders_both_end() -> None:
    """No deadlock: what a run holds it finishes without what it waits for."""
    held = Held()
    a = value(1).host_map(held).map(lambda x: x).host_map(Failing(0)).shared()
    b = value(2).host_map(held).map(lambda x: x).host_map(Failing(0)).shared()
    jobs = [awaiting(a.then(lambda x: b.map(lambda y: (x, y)))), awaiting(b.then(lambda y: a.map(lambda x: (x, y))))]
    jobs += [awaiting(zip_ops(a, b)), awaiting(zip_ops(b, a).map(lambda p: (p[1], p[0])))]
    assert trio.run(gather, jobs, held.release.set) == [(1, 2)] * 4
    assert held.f.calls == 2


@pytest.mark.parametrize("failures", [0, 2])
def test_threads_that_meet_at_a_shared_run_it_once(failures: int) -> None:
    """Threads that call `sync()`: one evaluates, the others wait; failures go to those who made them."""
    count, f = 8, Failing(failures)
    shared: Op = marked(1).to_host().host_map(f).shared()
    barrier = threading.Barrier(count)

    def run(_: int) -> Any:
        barrier.wait()
        try:
            return float(shared.sync()[0])
        except ValueError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(run, range(count)))
    assert results.count(1.0) == count - failures
    assert f.calls == failures + 1


def test_a_task_waits_for_a_thread() -> None:
    """A trio task and a plain thread meet at one shared op."""
    held = Held()
    shared: Op = value(5).host_map(held).shared()
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(shared.sync)
        held.entered.wait()
        assert trio.run(gather, [awaiting(shared)] * 2, held.release.set) == [5, 5]
        assert thread.result() == 5
    assert held.f.calls == 1


@pytest.mark.filterwarnings("ignore:sync.. at:RuntimeWarning")
def test_sync_that_would_block_its_own_thread_is_refused() -> None:
    """`sync()` in a task, of what another task of that thread is making: an error in place of a deadlock."""
    held = Held()
    shared: Op = value(5).host_map(held).shared()

    def block() -> None:
        try:
            with pytest.raises(NestedRunError, match="Use await"):
                shared.sync()
        finally:
            held.release.set()

    assert trio.run(gather, [awaiting(shared)], block) == [5]


def test_a_thread_that_takes_over_still_waits_for_others() -> None:
    """It uses the op twice, takes it over, and finds that the op needs what a third run is making: it waits."""
    held = Held()
    lower: Op = value(5).host_map(held).shared()
    upper: Op = lower.map(lambda x: x + 1).shared()
    somebody = object()
    assert upper.once.claim(somebody) == "claimed"  # type: ignore[attr-defined]  # reason: a run stands for this
    with ThreadPoolExecutor(2) as pool:
        third = pool.submit(lower.sync)
        held.entered.wait()
        waiter = pool.submit(zip_ops(upper, upper).sync)
        while not upper.once._waiting:  # type: ignore[attr-defined]  # reason: the same  # noqa: SLF001  # the order of the threads depends on it
            threading.Event().wait(0.001)
        upper.once.abandon()  # type: ignore[attr-defined]  # reason: the same
        while not waiter.done() and not lower.once._waiting:  # type: ignore[attr-defined]  # reason: the same  # noqa: SLF001  # the order of the threads depends on it
            threading.Event().wait(0.001)
        held.release.set()
        assert (third.result(), waiter.result()) == (5, (6, 6))


# ---- how long it remembers


def test_a_shared_tensor_dies_with_its_node() -> None:
    """The memory goes when the node and the last handle have gone, whichever goes last."""
    where = current_device()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    shared: Op = ones((1000,)).shared()
    handle = shared.sync()
    assert where.memory_used() - before >= 4000
    del shared
    assert where.memory_used() - before >= 4000
    del handle
    assert where.memory_used() == before
    shared = ones((1000,)).shared()
    shared.sync()
    del shared
    assert where.memory_used() == before


def test_components_not_taken_die_with_their_node() -> None:
    """An unzip remembers what was not taken, no longer than its ops live."""
    where = current_device()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    first, second = zip_ops(ones((1000,)), zeros((1000,))).unzip()
    first.sync()
    assert where.memory_used() - before >= 4000
    del first, second
    assert where.memory_used() == before


def test_a_remembered_object_dies_with_its_node() -> None:
    """A host value that a node remembers dies with the node."""

    class Thing:
        pass

    shared: Op = value(0).host_map(lambda _: Thing()).shared()
    thing = weakref.ref(shared.sync())
    assert thing() is shared.sync()
    del shared
    assert thing() is None


def test_try_unwrap_once_the_node_is_gone() -> None:
    """While the node remembers it, a shared tensor has two owners; afterwards one."""
    shared: Op = ones((2,)).shared()
    handle = shared.sync()
    with pytest.raises(OwnershipError, match=r"shared\(\) op"):
        handle.try_unwrap()
    del shared
    assert handle.try_unwrap().to_host().sync()[0] == 1.0
