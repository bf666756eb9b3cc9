"""Cancelled runs: what ends, what goes on, and what is given back."""

import gc

import pytest
import trio
from numpy.typing import NDArray
from trio.testing import wait_all_tasks_blocked

from dagpu import In, MovedError, Out, SingleStream, Tile, current_device, dup, f32, kernel, ones, value, zip_ops
from tests.support.gates import GATES, Gate, add, awaited, run
from tests.support.gates import gate as gate


@kernel(cuda="__global__ void hold(Tile<float, 1> y, View<const float, 1> x, int gate) {}")
def hold(y: Out[f32], x: In[f32], gate: int) -> None:
    """y += x, once gate number `gate` is open. On the host alone: no kernel of a GPU waits for Python."""


@hold.host
def _(y: Tile[f32], x: NDArray[f32], gate: int) -> None:
    GATES[gate](None)
    y[...] += x[y.at]


def test_cancellation_drains_what_is_under_way(gate: Gate) -> None:
    """`Cancelled` is raised only after the body that was running has ended; what had not begun never does."""
    ran: list[int] = []
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    # One stream, so the second call cannot have begun while the first stands at the gate.
    op = zip_ops(ones((64,)).host_map(gate), value(1).host_map(ran.append)).schedule(SingleStream())

    async def child() -> None:
        try:
            await op
        except trio.Cancelled:
            assert gate.ended == 1
            ran.append(-1)
            raise

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await gate.reached()
            nursery.cancel_scope.cancel()
            for _ in range(10):  # the drain holds up nobody but the task that was cancelled
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
            assert ran == []
            gate.open.set()
        assert ran == [-1]
        first, _ = await op
        assert first.shape == (64,)
        assert ran == [-1, 1]

    run(body)
    gc.collect()
    assert where.memory_used() == before


def test_a_run_cancelled_before_it_began_keeps_its_handles() -> None:
    """Nothing was submitted, so the op owns what it owned, and may be run again."""
    t = ones((4,)).sync()
    op = dup(t).to_host()

    async def body() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        assert (await op).tolist() == [1.0] * 4
        with pytest.raises(MovedError):
            await op

    run(body)


def test_a_run_that_failed_or_was_cancelled_midway_drops_its_handles(gate: Gate) -> None:
    """Once submitted, they are gone: the op says so when it is run again, and the memory is free."""
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    added = add(ones((4,)).sync().partition((4,)), ones((4,)))
    op = zip_ops(added, value(0).host_map(gate))
    assert where.memory_used() == before + 16

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, op)
            await gate.reached()
            nursery.cancel_scope.cancel()
            gate.open.set()
        with pytest.raises(MovedError, match="a run of the op that owned it"):
            await op

    run(body)
    gc.collect()
    assert where.memory_used() == before


def test_a_cancelled_run_does_not_stop_one_that_waits_for_it(gate: Gate) -> None:
    """The value of `shared()` is made by one run; if that is cancelled, the one that waits makes it itself."""
    made: list[int] = []

    def make(x: int) -> int:
        made.append(x)
        gate(x)
        return x + 1

    op = value(1).host_map(make).shared()
    got: list[int] = []

    async def waiter() -> None:
        got.append(await op)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def first() -> None:
                with scope:
                    await op

            nursery.start_soon(first)
            await gate.reached()
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
            scope.cancel()
            gate.open.set()
        assert (made, got, scope.cancelled_caught) == ([1, 1], [2], True)
        assert await op == 2
        assert made == [1, 1]

    run(body)


@pytest.mark.host_only("kernels' host bodies")
def test_a_kernel_body_that_runs_is_drained_too(gate: Gate) -> None:
    """Cancelled while a kernel's body stands in the middle: it goes on to its end, and the tensor it writes is free."""
    t = ones((4,)).sync()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, hold(t.borrow_mut().partition((4,)), ones((4,)), 0))
            await gate.reached()
            nursery.cancel_scope.cancel()
            gate.open.set()
        assert gate.ended == 1

    run(body)
    assert t.to_host().sync().tolist() == [2.0] * 4
