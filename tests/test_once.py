"""`Shared` and the source of an `unzip` run exactly once: in whatever order and in however many runs they are
consumed, and however many tasks and threads ask at the same time. Only what succeeded is remembered.

Runs are counted by the kernels themselves, which leave a mark in `MARKS`, and by the functions of `host_map`.
"""

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations
from operator import add
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    MovedError,
    NestedRunError,
    Out,
    OwnershipError,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    StreamInterpreter,
    Tile,
    current_device,
    dup,
    f32,
    from_host,
    kernel,
    ones,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.marks import DEVICE_MARK, MARKS

Op = DeviceOp[Any, Any, Any]
POLICIES: list[SchedulingPolicy] = [SingleStream(), RoundRobin(4)]
ORDERS = tuple(permutations(range(3)))

MARK = (
    DEVICE_MARK
    + """
__global__ void mark(Tile<float, 1> out, int number, View<const float, 1> x, View<const float, 1> y, long long marks) {
    leave_mark(marks, number);
    for (auto i : out) out[i] = x[i] + y[i] + float(number);
}
"""
)


@kernel(cuda=MARK)
def mark(out: Out[f32], number: int, x: In[f32], y: In[f32], marks: int) -> None:
    """out = x + y + number, and a mark."""


@mark.host
def _(out: Tile[f32], number: int, x: NDArray[f32], y: NDArray[f32], _: int) -> None:
    MARKS.leave(number)
    out[...] = x + y + f32(number)


@pytest.fixture(autouse=True)
def no_marks() -> None:
    MARKS.clear()


def marked(number: int, x: Op | None = None, y: Op | None = None) -> Op:
    """A tensor of two elements; its kernel leaves `number` in `MARKS`."""
    one, other = (zeros((2,)) if op is None else op for op in (x, y))
    return mark(zeros((2,)).partition((2,)), number, one, other, MARKS.address).first().unpartition()


def run_all(ops: list[Op], *, together: bool) -> list[Any]:
    """Run ops one after the other, or all in one run."""
    return list(zip_ops(*ops).sync()) if together else [op.sync() for op in ops]


# ---- once, in every order


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_shared_runs_once_in_every_order(order: tuple[int, ...], together: bool) -> None:
    """Three consumers, in any order, in one run or three: the source runs once, and each gets its value."""
    source: Op = marked(7).shared()
    consumers = [source.to_host(), source.then(dup).to_host(), marked(1, source, source).to_host()]
    results = run_all([consumers[i] for i in order], together=together)
    assert [float(array[0]) for array in results] == [[7.0, 7.0, 15.0][i] for i in order]
    assert sorted(MARKS.seen()) == [1, 7]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_unzip_runs_its_source_once_in_every_order(order: tuple[int, ...], together: bool) -> None:
    """Three components of one source, in any order, in one run or three: it runs once."""
    parts: Any = zip_ops(marked(1), marked(2), marked(3).to_host()).unzip()
    consumers = [parts[0].to_host(), parts[1].to_host(), parts[2]]
    results = run_all([consumers[i] for i in order], together=together)
    assert [float(array[0]) for array in results] == [i + 1.0 for i in order]
    assert sorted(MARKS.seen()) == [1, 2, 3]


@pytest.mark.parametrize("order", ORDERS)
def test_unzip_of_a_launch_runs_it_once(order: tuple[int, ...]) -> None:
    """The arguments that a launch gives back are taken one by one, across runs."""
    out, number, x, *_ = mark(zeros((2,)).partition((2,)), 5, ones((2,)), ones((2,)), MARKS.address).unzip()
    consumers: list[DeviceOp[Any]] = [out.unpartition().to_host(), x.to_host(), number]
    results = [consumers[i].sync() for i in order]
    assert [float(np.ravel(result)[0]) for result in results] == [[7.0, 1.0, 5.0][i] for i in order]
    assert MARKS.seen() == [5]


def test_only_one_component_is_ever_taken() -> None:
    """A component that nobody takes changes nothing: the source has run once when the node dies."""
    first, _ = zip_ops(marked(1), marked(2)).unzip()
    assert float(first.to_host().sync()[0]) == 1.0
    assert sorted(MARKS.seen()) == [1, 2]


def test_shared_in_shared() -> None:
    """Of nested `shared()` ops each runs once, whichever is asked first."""
    inner: Op = marked(1).shared()
    outer: Op = marked(2, inner, inner).shared()
    assert float(outer.to_host().sync()[0]) == 4.0
    assert float(inner.to_host().sync()[0]) == 1.0
    assert float(marked(3, outer, inner).to_host().sync()[0]) == 8.0
    assert MARKS.seen() == [1, 2, 3]


@pytest.mark.parametrize("order", ORDERS)
def test_a_diamond_in_an_unzip_in_a_diamond(order: tuple[int, ...]) -> None:
    """A diamond whose bottom is unzipped, both parts of which are shared into another: each runs once."""
    top: Op = marked(1).shared()
    left, right = zip_ops(marked(2, top), marked(3, top)).unzip()
    left, right = left.shared(), right.shared()
    low, high = zip_ops(marked(4, left, right), marked(5, right, left)).unzip()
    ends = [low.to_host(), high.to_host(), marked(6, left, top).to_host()]
    results = [ends[i].sync() for i in order]
    assert [float(array[0]) for array in results] == [[11.0, 12.0, 10.0][i] for i in order]
    assert sorted(MARKS.seen()) == [1, 2, 3, 4, 5, 6]


@st.composite
def shared_nodes(draw: st.DrawFn) -> tuple[list[Op], list[set[int]]]:
    """Ops made of earlier ones, shared whole, as a component, or by way of the host; and what each is made of."""
    nodes: list[Op] = []
    parents: list[set[int]] = []
    for number in range(draw(st.integers(1, 8))):
        above = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        op = marked(number, *[nodes[i] for i in above])
        match draw(st.integers(0, 3)):
            case 0:
                op = zip_ops(op, value(number)).unzip()[0].shared()
            case 1:
                op = op.to_host().then(from_host).shared()
            case 2:
                op = op.shared().then(dup).shared()
            case _:
                op = op.shared()
        nodes.append(op)
        parents.append(set(above))
    return nodes, parents


@settings(max_examples=60)
@given(shared_nodes(), st.data())
def test_every_node_of_a_random_dag_runs_once(drawn: tuple[list[Op], list[set[int]]], data: st.DataObject) -> None:
    """Consumed in any order and grouping, what is reached has run once, all else never."""
    MARKS.clear()
    nodes, parents = drawn
    wanted = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=6))
    with use_interpreter(StreamInterpreter(policy=data.draw(st.sampled_from(POLICIES)))):
        while wanted:
            cut = data.draw(st.integers(1, len(wanted)))
            run_all([nodes[i].to_host() for i in wanted[:cut]], together=data.draw(st.booleans()))
            reached = _closure(set(wanted[:cut]), parents) | set(MARKS.seen())
            wanted = wanted[cut:]
            assert Counter(MARKS.seen()) == Counter(reached)


@settings(max_examples=40)
@given(shared_nodes(), st.data())
def test_every_node_runs_once_whoever_asks_at_the_same_time(
    drawn: tuple[list[Op], list[set[int]]], data: st.DataObject
) -> None:
    """Consumers of one DAG in concurrent tasks, or in threads, or in both: still once, and with no deadlock."""
    MARKS.clear()
    nodes, parents = drawn
    wanted = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=8))
    half = data.draw(st.integers(0, len(wanted)))
    ops = [nodes[i].to_host() for i in wanted]
    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(op.sync) for op in ops[:half]]
        results = trio.run(gather, [awaiting(op) for op in ops[half:]], lambda: None)
        results = [thread.result() for thread in threads] + results
    assert Counter(MARKS.seen()) == Counter(_closure(set(wanted), parents))
    again = run_all([nodes[i].to_host() for i in wanted], together=True)
    assert [array.tolist() for array in results] == [array.tolist() for array in again]


def _closure(found: set[int], parents: list[set[int]]) -> set[int]:
    todo = list(found)
    while todo:
        for parent in parents[todo.pop()] - found:
            found.add(parent)
            todo.append(parent)
    return found


def test_planning_remembers_nothing() -> None:
    """`explain` claims what it traces and lets go of it: the run afterwards is the first."""
    shared: Op = marked(1).shared()
    part, _ = zip_ops(marked(2, shared), value(0)).unzip()
    assert "mark" in part.explain()
    assert MARKS.seen() == []
    part.sync()
    assert MARKS.seen() == [1, 2]
    assert "mark" not in shared.then(dup).explain()


# ---- taken once


def test_a_component_is_taken_once() -> None:
    """Taking a component again, in the same run or a later one, is a `MovedError` that says `.shared()`."""
    first, second = zip_ops(marked(1), marked(2)).unzip()
    first.sync()
    with pytest.raises(MovedError, match=r"taken before.*\.shared\(\)"):
        first.sync()
    with pytest.raises(MovedError, match=r"\.shared\(\)"):
        zip_ops(second, second.to_host()).sync()
    assert float(second.to_host().sync()[0]) == 2.0
    assert sorted(MARKS.seen()) == [1, 2]


def test_sharing_owned_handles_in_a_tuple_is_refused() -> None:
    """Only one bare `Tensor` can be shared whole; the cure is `unzip` first, and it works."""
    pair: Op = zip_ops(ones((2,)), zeros((2,)))
    with pytest.raises(OwnershipError, match=r"unzip\(\) first"):
        pair.shared().sync()
    first, _ = [op.shared() for op in pair.unzip()]
    assert zip_ops(first.to_host(), first.to_host()).sync()[1][0] == 1.0


# ---- failures


class Failing:
    """A function for `host_map` that raises in its first `times` calls."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"call {self.calls}")
        return x


@pytest.mark.parametrize("how", ["shared", "unzip"])
def test_a_failure_is_not_remembered(how: str) -> None:
    """The next run evaluates again, and its success is remembered."""
    f = Failing(2)
    source: Op = value(1).host_map(f)
    op: Op = source.shared() if how == "shared" else source.map(lambda x: (x, 2)).unzip(2)[0]
    for call in (1, 2):
        with pytest.raises(ValueError, match=f"call {call}"):
            op.sync()
    assert op.sync() == 1
    assert f.calls == 3


@pytest.mark.parametrize("where", ["map", "then"])
def test_a_closure_that_fails_is_called_again(where: str) -> None:
    """The same for a closure that raises while tracing: nothing has run, nothing is remembered."""
    f = Failing(1)
    source: Op = marked(1)
    shared: Op = (source.map(f) if where == "map" else source.then(lambda t: value(f(t)))).shared()
    with pytest.raises(ValueError, match="call 1"):
        shared.sync()
    assert MARKS.seen() == []
    assert float(shared.to_host().sync()[0]) == 1.0
    assert MARKS.seen() == [1]


def test_a_failure_in_another_branch_is_no_failure_of_the_shared() -> None:
    """After a failed run, what a later run remembers is complete: never a value of the run that failed."""
    shared: Op = marked(1).shared()
    with pytest.raises(ValueError, match="call 1"):
        zip_ops(shared.to_host(), value(0).host_map(Failing(9))).sync()
    assert float(shared.to_host().sync()[0]) == 1.0


def test_handles_that_a_failed_run_owned_are_gone() -> None:
    """Whoever evaluates a source again whose handles went down with a run gets a `MovedError`."""
    tensor = ones((2,)).sync()
    shared: Op = zip_ops(value(tensor), value(0).host_map(Failing(1))).first().shared()
    with pytest.raises(ValueError, match="call 1"):
        shared.sync()
    with pytest.raises(MovedError):
        shared.sync()


# ---- at the same time


PATIENCE = 30.0
"""Seconds after which a thread that never gets anywhere fails its test."""


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


async def gather(jobs: list[Callable[[], Any]], meanwhile: Callable[[], Any]) -> list[Any]:
    """Results of jobs that run at the same time, errors too. The first begins; once it waits, the others begin; once
    all of them wait, `meanwhile` is called. (trio starts tasks in random order.)"""
    results: list[Any] = [None] * len(jobs)

    async def one(index: int) -> None:
        try:
            results[index] = await jobs[index]()
        except Exception as error:
            results[index] = error

    async with trio.open_nursery() as nursery:
        for index in range(len(jobs)):
            nursery.start_soon(one, index)
            if index == 0:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        meanwhile()
    return results


def awaiting(op: Op) -> Callable[[], Any]:
    async def run() -> Any:
        return await op

    return run


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
    """The same for a value of the host."""

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
