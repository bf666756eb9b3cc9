"""Runs by a plan that compute `shared()` and `unzip()` nodes: failures, cancellations, runs at the same time, memory.

The kernel calls a function of the test on the host, so that a run can fail, or stop, in the middle without a closure.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio.testing

from dagpu import (
    BorrowError,
    MovedError,
    NestedRunError,
    OwnershipError,
    SharedTensor,
    current_device,
    f32,
    fill,
    ones,
    value,
    zip_ops,
)
from dagpu.ops.single_flight import Claims, Once
from dagpu.runtime import execute
from dagpu.testing import Locks, storage_of
from dagpu.tracing.signature import BoundArguments
from tests.behaviour.laws.marked_ops import Op, awaiting
from tests.behaviour.reuse.acting_kernels import ACTIONS, CALLED, acting, forked, lists
from tests.behaviour.reuse.acting_kernels import gate_of_kernel_one as gate_of_kernel_one
from tests.behaviour.reuse.acting_kernels import nothing_called as nothing_called
from tests.support.gates import PATIENCE, Gate, awaited, run
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

pytestmark = pytest.mark.host_only("kernels' host bodies")


def with_node() -> tuple[Op, Any]:
    """Return an op of two branches, and its node that computes kernel 1."""
    node: Op = acting(1).shared()
    return forked(node), node


def planned() -> None:
    """Run an op, so that later ones of its structure have a plan."""
    with patch.dict(ACTIONS, clear=True):
        with_node()[0].sync()
    CALLED.clear()


def fail() -> None:
    """Raise an error."""
    raise ValueError("on purpose")


RESULT = [[4.0] * 4, [5.0] * 4]


# ---- failures


@pytest.mark.parametrize("number", [1, 2])
def test_a_failure_is_not_remembered(number: int) -> None:
    """Wherever the run fails, the next run computes the node again; then it is remembered."""
    planned()
    ACTIONS[number] = fail
    op, node = with_node()
    with traces() as count:
        for _ in range(2):
            with pytest.raises(ValueError, match="on purpose"):
                op.sync()
            assert node.once.settled()
            assert not node.once.remembers()
        ACTIONS.clear()
        assert lists(op.sync()) == RESULT
        assert count.now == 0
    assert CALLED.count(1) == 3
    assert lists(forked(node).sync()) == RESULT
    assert CALLED.count(1) == 3


def test_a_run_that_is_refused_claims_nothing() -> None:
    """The memory that the node reads is locked. The run raises, its op keeps its tensors, and the next run succeeds."""

    def build() -> tuple[Op, Any, Any]:
        lent, owned = ones((4,)).sync(), ones((4,)).sync()
        node: Any = acting(1, value(lent.borrow())).shared()
        return zip_ops(acting(2, node), acting(3, value(owned))), node, lent

    build()[0].sync()
    op, node, lent = build()
    writer = Locks(None)
    writer.acquire({storage_of(lent): True})
    with traces() as count:
        with pytest.raises(BorrowError):
            op.sync()
        assert node.once.settled()
        writer.release()
        op.sync()
        assert count.now == 0
    assert node.once.remembers()


def test_a_component_that_is_taken_meanwhile() -> None:
    """The run raises `MovedError`, and gives back what it has taken and claimed."""

    def build() -> tuple[Op, Any, Any]:
        left, right = zip_ops(acting(1), acting(2)).unzip()
        left.sync()
        node: Any = acting(3).shared()
        return zip_ops(acting(4, node), right), node, right

    build()[0].sync()
    op, node, right = build()
    take = BoundArguments.take_leaves

    def late(bound: BoundArguments, origin: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(right.sync).result(PATIENCE)
        take(bound, origin)

    with traces() as count, patch.object(BoundArguments, "take_leaves", late), pytest.raises(MovedError, match="taken"):
        op.sync()
    assert count.now == 1  # the run of `right`, which has no work
    assert node.once.settled()
    assert not node.once.remembers()


def test_a_component_is_put_back_if_the_run_does_not_begin() -> None:
    """A component and a tensor that the run has taken are in their ops again, and the next run takes them."""

    def build() -> Op:
        left, right = zip_ops(acting(1), acting(2)).unzip()
        left.sync()
        return zip_ops(acting(3, right), fill(ones((4,)).sync(), 5))

    take = BoundArguments.take_leaves

    def late(*given: Any) -> None:
        take(*given)
        raise ValueError("on purpose")

    build().sync()
    op = build()
    with traces() as count:
        with patch.object(BoundArguments, "take_leaves", late), pytest.raises(ValueError, match="on purpose"):
            op.sync()
        found = op.sync()
    assert count.now == 0
    assert [tensor.to_host().sync().tolist() for tensor in found] == [[6.0] * 4, [5.0] * 4]


# ---- cancellation


def test_a_cancelled_run_remembers_nothing(gate: Gate) -> None:
    """It is drained first. The next run computes the node again."""
    planned()
    op, node = with_node()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, op)
            await gate.reached()
            assert not node.once.settled()
            nursery.cancel_scope.cancel()
            gate.open.set()
        assert node.once.settled()
        assert not node.once.remembers()
        assert lists(await op) == RESULT

    with traces() as count:
        run(body)
    assert count.now == 0
    assert CALLED.count(1) == 2


def test_a_waiter_takes_over_after_a_cancellation(gate: Gate) -> None:
    """Another task that needs the node waits for the run, and computes the node when the run is cancelled."""
    planned()
    op, node = with_node()
    found = []

    async def wait() -> None:
        found.append(lists(await forked(node)))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(cancelled_in, scope, op)
            await gate.reached()
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            gate.open.set()

    run(body)
    assert found == [RESULT]
    assert CALLED.count(1) == 2


async def cancelled_in(scope: trio.CancelScope, op: Op) -> None:
    """Await an op within a scope that another task cancels."""
    with scope:
        await op


# ---- at the same time


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_that_meet_at_a_node_compute_it_once(threads: int, gate: Gate) -> None:
    """One of them has the claim; the others wait for its value, and share its memory."""
    planned()
    node: Any = acting(1).shared()
    ops = [zip_ops(forked(node), node) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        results = [pool.submit(op.sync) for op in ops]
        assert gate.started.wait(PATIENCE)
        gate.open.set()
        found = [result.result(PATIENCE) for result in results]
    assert [lists(arrays) for arrays, _ in found] == [RESULT] * threads
    assert len({id(storage_of(tensor)) for _, tensor in found}) == 1
    assert CALLED.count(1) == 1


def test_two_nodes_in_two_orders_do_not_block_each_other() -> None:
    """Each run claims all its nodes or none, so that two runs never wait for each other."""
    for _ in range(20):
        left, right = acting(1).shared(), acting(2).shared()
        start = threading.Barrier(2)

        def both(*nodes: Op, start: threading.Barrier = start) -> Any:
            op = zip_ops(*[acting(3, node).to_host() for node in nodes])
            start.wait(PATIENCE)
            return lists(op.sync())

        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(both, left, right), pool.submit(both, right, left)]
            assert [each.result(PATIENCE) for each in found] == [[[5.0] * 4, [6.0] * 4], [[6.0] * 4, [5.0] * 4]]
    assert sorted(number for number in CALLED if number < 3) == [1] * 20 + [2] * 20


@pytest.mark.parametrize("how", ["complete", "failed"])
def test_a_node_that_another_run_claims_after_the_look_up(how: str) -> None:
    """The run has found a plan, and then another run computes the node: the value is used, or computed after all."""
    planned()
    op, node = with_node()
    take_all = Claims.take_all
    before: list[Op] = [node]

    def late(claims: Claims, onces: Iterable[Once]) -> bool:
        if before:
            other = before.pop()
            with ThreadPoolExecutor(1) as pool, patch.dict(ACTIONS, {1: fail} if how == "failed" else {}):
                pool.submit(other.sync).exception(PATIENCE)
        return take_all(claims, onces)

    with traces() as count, patch.object(Claims, "take_all", late):
        assert lists(op.sync()) == RESULT
    assert CALLED.count(1) == (1 if how == "complete" else 2)
    assert count.now == (2 if how == "complete" else 1)


@pytest.mark.parametrize("how", ["shared", "unzip", "unzip of a number"])
def test_a_node_that_another_run_computes_before_the_trace(how: str) -> None:
    """The key has the node as one that has not run, and the trace finds its value. The plan is not kept: the next op
    whose node has not run computes it."""

    def build() -> tuple[Op, Op]:
        if how == "shared":
            return with_node()
        if how == "unzip":
            left, right = two_parts()
            return zip_ops(acting(3, left).to_host()), right
        number, right = zip_ops(value(f32(7)), acting(1)).unzip()
        return zip_ops(number, acting(2).to_host(), acting(3).to_host()), right

    op, node = build()
    tracer: Any = vars(execute)["Tracer"]
    before: list[Op] = [node]

    def late(*arguments: Any) -> Any:
        if before:
            other = before.pop()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(other.sync).result(PATIENCE)
        return tracer(*arguments)

    with patch.object(execute, "Tracer", late):
        wanted = lists(op.sync())
    for _ in range(2):
        op, node = build()
        CALLED.clear()
        assert lists(op.sync()) == wanted
        assert sorted(CALLED) == [1, 2, 3]


def test_an_op_that_dies_before_the_trace() -> None:
    """The key has a component that an op may still take, and the trace finds that op dead. The plan is not kept: for
    the next op, the component is remembered."""
    tracer: Any = vars(execute)["Tracer"]
    parts: list[Any] = list(two_parts())

    def late(*arguments: Any) -> Any:
        del parts[1:]
        return tracer(*arguments)

    with patch.object(execute, "Tracer", late):
        parts[0].sync()
    for _ in range(2):
        left, right = two_parts()
        left.sync()
        assert right.to_host().sync().tolist() == [3.0] * 4


def two_parts() -> Any:
    """Return the components of an op of two kernels."""
    return zip_ops(acting(1), acting(2)).unzip()


def test_a_run_that_blocks_the_thread_of_the_run_is_refused(gate: Gate) -> None:
    """`sync()` in a trio task cannot wait for a node that a run of the same thread computes by a plan."""
    planned()
    op, node = with_node()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, op)
            await gate.reached()
            with pytest.warns(RuntimeWarning), pytest.raises(NestedRunError, match="same thread"):
                forked(node).sync()
            gate.open.set()

    run(body)


# ---- memory


def test_memory_comes_back() -> None:
    """A value lives as long as its node, or a handle to it. Plans keep neither. By reference counts alone."""
    where = current_device()
    gc.collect()
    gc.disable()
    try:
        before = where.memory_used()
        for _ in range(4):
            node: Any = acting(1, size=1000).shared()
            op = zip_ops(acting(2, node, 1000), node)
            made, tensor = op.sync()
            assert where.memory_used() == before + 8000
            del made, op
            assert where.memory_used() == before + 4000
            died = weakref.ref(node)
            del node
            assert died() is None
            assert where.memory_used() == before + 4000
            del tensor
            assert where.memory_used() == before
            first, second = zip_ops(acting(1, size=1000), acting(2, size=1000)).unzip()
            taken = first.sync()
            assert where.memory_used() == before + 8000
            del second, first
            assert where.memory_used() == before + 4000
            del taken
            assert where.memory_used() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("earlier", range(3))
def test_the_only_handle_can_be_unwrapped(earlier: int) -> None:
    """Clones that a run makes count as holders, as in a trace: the last one becomes the owner."""
    for _ in range(earlier):
        two_handles()
    left, right = two_handles()
    assert type(left) is type(right) is SharedTensor
    with pytest.raises(OwnershipError):
        left.try_unwrap()
    del right
    assert left.try_unwrap().to_host().sync().tolist() == [2.0] * 4


def two_handles() -> Any:
    """Return two handles to the memory of a node that is dropped."""
    node: Any = acting(1).shared()
    return zip_ops(node, node).sync()


def test_the_op_itself_runs_again() -> None:
    """A second run of the op uses the value, by a plan of that structure."""
    op, _ = with_node()
    with traces() as count:
        for _ in range(4):
            assert lists(op.sync()) == RESULT
    assert count.now == 2
    assert CALLED.count(1) == 1
    with traces() as count:
        other, _ = with_node()
        for _ in range(4):
            assert lists(other.sync()) == RESULT
    assert count.now == 0


def test_awaited_runs_share_a_plan() -> None:
    """Tasks that await ops of one structure: each computes its own node once, without a trace."""
    planned()
    with traces() as count:

        async def body() -> None:
            results: list[Any] = []
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(keep, results, awaiting(with_node()[0]))
            assert list(map(lists, results)) == [RESULT] * 6

        run(body)
    assert count.now == 0
    assert CALLED.count(1) == 6


async def keep(results: list[Any], job: Callable[[], Any]) -> None:
    """Append the result of a job."""
    results.append(await job())
