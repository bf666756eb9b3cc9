"""`spawn` in bulk and in detail: no hang, no leak, whatever fails or is cancelled, and whenever. Nothing sleeps."""

import gc
import random
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from dagpu import (
    BorrowError,
    MovedError,
    OperationCancelled,
    Pending,
    Tensor,
    current_device,
    dup,
    from_host,
    full,
    memcpy,
    ones,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.support.gates import GATES, Gate, add, boom, noting, run
from tests.support.handle_cases import line
from tests.support.places import place

MANY = 1000


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    """After each test memory is back where it was, and threads and files are no more than a warm pool's."""
    where = current_device()
    trio.run(_warm)
    gc.collect()
    memory, threads, files = where.memory_used(), threading.active_count(), _open_files()
    yield
    gc.collect()
    assert where.memory_used() == memory
    # trio's own worker threads come and go; those that run ops are a pool that `_warm` has filled.
    assert len(_workers()) <= 64
    assert threading.active_count() <= threads + 64
    assert _open_files() <= files + 2  # of trio's, if a loop is collected late


async def _warm() -> None:
    """Run on both places that the tests take: the first use of a GPU opens files of the driver."""
    await zip_ops(*[zeros((1,)).on(place(at % 2)) for at in range(16)])


def _workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dagpu-")]


def _open_files() -> int:
    here = Path("/proc/self/fd")
    return len(list(here.iterdir())) if here.exists() else 0


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, at any depth; for any other exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


# ---- in bulk


def test_a_thousand_spawns() -> None:
    """All give their results, through device work and back."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = [
                spawn(nursery, add(full((8,), n).partition((4,)), ones((8,))).first().unpartition().to_host())
                for n in range(MANY)
            ]
            for n, one in enumerate(pending):
                assert (await one).tolist() == [n + 1.0] * 8
        assert all(one.done() for one in pending)

    run(body)


def test_a_thousand_spawns_of_one_shared_op() -> None:
    """It runs once, and all get the value."""
    made: list[int] = []
    source = value(3).host_map(noting(made, 3)).shared()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, source.map(lambda x: x + 1)) for _ in range(MANY)]
        assert [await one for one in pending] == [4] * MANY

    run(body)
    assert made == [3]


def test_cancelling_a_thousand_spawns_at_once() -> None:
    """The nursery ends, with all work drained and all memory back; the next run is right."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, dup(t).to_host()) for t in [await zeros((4,)) for _ in range(20)]]
            pending += [spawn(nursery, ones((64,)).to_host()) for _ in range(MANY)]
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert all(one.done() for one in pending)
        assert (await ones((2,)).to_host()).tolist() == [1.0, 1.0]

    run(body)


@pytest.mark.parametrize("seed", range(4))
def test_cancellation_and_exceptions_at_random_points(seed: int) -> None:
    """Of 250 ops on one borrowed tensor, some fail and some are cancelled between any two checkpoints.

    The others are right.

        Locks are given back each time: at the end the tensor may be written.
    """
    rng = random.Random(seed)
    t = from_host(np.arange(8, dtype=np.float32)).sync()
    shared = ones((8,)).shared()
    outcome: dict[int, str] = {}

    async def child(number: int, scope: trio.CancelScope) -> None:
        kind = rng.choice(["host", "device", "fail", "shared", "staged"])
        ops: dict[str, Any] = {
            "host": value(number).host_map(lambda x: np.full(8, x)),
            "device": zip_ops(dup(t.borrow()), zeros((32,))).first().to_host(),
            "fail": zip_ops(ones((128,)), dup(t.borrow()).to_host().host_map(boom)),
            "shared": shared.to_host(),
            "staged": t.borrow().to_host().map(lambda a: a + 1).then(from_host).to_host(),
        }
        right = {"host": np.full(8, number), "device": np.arange(8), "shared": np.ones(8), "staged": np.arange(8) + 1}
        outcome[number] = "cancelled"
        with scope:
            try:
                got = await ops[kind]
            except KeyError:
                assert kind == "fail"
                outcome[number] = "failed"
            else:
                assert got.tolist() == right[kind].tolist()
                outcome[number] = "right"

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            scopes = [trio.CancelScope() for _ in range(250)]
            for number, scope in enumerate(scopes):
                nursery.start_soon(child, number, scope)
                if rng.random() < 0.5:
                    await trio.lowlevel.checkpoint()
                for victim in rng.sample(scopes, 2):
                    if rng.random() < 0.15:
                        victim.cancel()
        await memcpy(t.borrow_mut(), await ones((8,)))

    run(body)
    assert len(outcome) == 250
    assert set(outcome.values()) == {"right", "failed", "cancelled"}
    assert t.to_host().sync().tolist() == [1.0] * 8


@settings(max_examples=25)
@given(
    failing=st.sets(st.integers(0, 11)),
    cancelled=st.sets(st.integers(0, 11)),
    steps=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_any_mixture_of_ends(failing: set[int], cancelled: set[int], steps: list[int]) -> None:
    """Each `Pending` says how its own op ended; a failure ends the nursery, and nothing is left behind."""
    pending: list[Pending[Any]] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            for number, step in enumerate(steps):
                op = zip_ops(zeros((16,)), value(number).host_map(boom if number in failing else abs))
                pending.append(spawn(nursery, op.last()))
                for _ in range(step):
                    await trio.lowlevel.checkpoint()
                if number in cancelled:
                    pending[-1].cancel()

    failed: set[int] = set()
    try:
        run(body)
    except* KeyError as group:
        failed = {cast(int, leaf.args[0]) for leaf in leaves(group)}
    assert failed <= failing
    if not failed and not cancelled:
        assert not failing

    async def after() -> None:
        for number, one in enumerate(pending):
            assert one.done()
            try:
                assert await one == number
            except KeyError:
                assert number in failed
            except OperationCancelled:
                assert number in cancelled or failed

    run(after)


# ---- Pending


def test_spawn_goes_on_at_once_and_await_gives_the_value() -> None:
    """`spawn` runs nothing by itself; `done` says when it has; awaiting again gives the same value."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, value(2).map(lambda x: x + 1))
            assert not pending.done()
            assert await pending == 3
            assert pending.done()
            assert await pending == 3
            assert "done" in repr(pending)

    run(body)


def test_two_spawned_ops_overlap() -> None:
    """While the first stands in the middle of its work, the second is done."""
    GATES[0] = Gate()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            first = spawn(nursery, ones((4,)).host_map(GATES[0]).map(lambda _: "first"))
            await GATES[0].reached()
            second = spawn(nursery, zeros((4,)).on(place(1)).to_host())
            assert (await second).tolist() == [0.0] * 4
            assert not first.done()
            GATES[0].open.set()
            assert await first == "first"

    run(body)


def test_a_value_that_owns_handles_is_given_once() -> None:
    """The second to await is told so, and the cure; what a first got is its own."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, zip_ops(zeros((2,)), value(1)))
            t, one = await pending
            assert isinstance(t, Tensor)
            assert one == 1
            with pytest.raises(MovedError) as caught:
                await pending
            for part in ("was awaited before", "owns handles", ".shared()", __file__):
                assert part in str(caught.value)
            again = spawn(nursery, zeros((2,)).shared())
            assert (await again).shape == (await again).shape == (2,)

    run(body)


def test_a_pending_keeps_nothing_that_was_taken() -> None:
    """A result that owns handles is its taker's alone: when he lets go of it, it is gone."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, zip_ops(zeros((2,)), ones((3,))))
            result = await pending
            tensors = [weakref.ref(tensor) for tensor in result]
            assert all(ref() is not None for ref in tensors)
            del result
            assert [ref() for ref in tensors] == [None, None]
            assert pending.done()

    run(body)


def test_a_pending_can_be_awaited_by_many() -> None:
    """All get the value, whenever they come."""
    GATES[0] = Gate()
    got: list[int] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, value(5).host_map(GATES[0]))

            async def waiter() -> None:
                got.append(await pending)

            for _ in range(5):
                nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
            assert got == []
            GATES[0].open.set()
        assert got == [5] * 5

    run(body)


def test_a_failure_fails_the_nursery_and_the_pending() -> None:
    """Like any child's; awaiting the `Pending` later raises the same error."""
    pending: list[Pending[Any]] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending.append(spawn(nursery, value(1).host_map(boom)))
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        run(body)
    (error,) = leaves(caught.value)
    assert isinstance(error, KeyError)

    async def after() -> None:
        for _ in range(2):
            with pytest.raises(KeyError) as again:
                await pending[0]
            assert again.value is error

    run(after)


def test_a_cancelled_pending_raises_operation_cancelled() -> None:
    """`cancel` ends it alone; whoever awaits it gets `OperationCancelled`, with where and the cure."""
    ran: list[int] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, value(1).host_map(ran.append))
            built = line(1)
            other = spawn(nursery, value(2))
            pending.cancel()
            with pytest.raises(OperationCancelled) as caught:
                await pending
            assert built in str(caught.value)
            assert "was cancelled before it was done. Run it again" in str(caught.value)
            assert pending.done()
            assert await other == 2
            other.cancel()  # too late: it does nothing
            assert await other == 2

    run(body)
    assert ran == []


@pytest.mark.parametrize("how", ["pending", "nursery"])
def test_a_pending_is_cancelled_midway(how: str) -> None:
    """Work in progress is drained first. Then the `Pending` is done, and reports that it was cancelled."""
    gate = GATES[0] = Gate()
    pending: list[Pending[Any]] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending.append(spawn(nursery, zip_ops(ones((4,)), value(0).host_map(gate)).first()))
            await gate.reached()
            if how == "pending":
                pending[0].cancel()
            else:
                nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            assert not pending[0].done()
            gate.open.set()
        assert gate.ended == 1
        with pytest.raises(OperationCancelled):
            await pending[0]

    run(body)


SOURCE: list[Any] = []
"""What a copy below reads: made in the loop, where `sync` would warn."""

BORROWING: list[Callable[[Any], Any]] = [
    lambda t: value(t.borrow()),
    lambda t: dup(t.borrow()),
    lambda t: dup(t.slice(slice(1))).to_host(),
    lambda t: t.view((2, 2)).to_host(),
    lambda t: memcpy(t.borrow_mut(), SOURCE[0]),
    lambda t: value((1, {"k": [t.borrow_mut()]})),
    lambda t: zip_ops(value(1), add(t.borrow_mut().partition((4,)), ones((4,))).first().shared()),
    lambda t: add(zeros((4,)).partition((4,)), t.borrow()).unzip()[0].map(str),
    lambda t: value(t.borrow()).on(place(0)),
]


@pytest.mark.parametrize("build", BORROWING, ids=range(len(BORROWING)))
def test_spawn_refuses_an_op_that_borrows(build: Callable[[Any], Any]) -> None:
    """The task may outlive the loan: BorrowError at the call, naming both places, and nothing is started."""

    async def body() -> None:
        t = await from_host(np.arange(4, dtype=np.float32))
        SOURCE[:] = [(await zeros((4,))).share()]
        async with trio.open_nursery() as nursery:
            op = build(t)
            with pytest.raises(BorrowError) as caught:
                spawn(nursery, op)
            said = str(caught.value)
            assert f"spawn at {line(2)} of an op that holds Tensor" in said
            assert re.search(rf"borrowed at {re.escape(__file__)}:\d+", said)
            assert "share() the tensor" in said
            assert not nursery.child_tasks
        assert t.shape == (4,)
        SOURCE.clear()

    run(body)


def test_spawn_takes_owned_and_shared_tensors() -> None:
    """A tensor that moves into the op, or is shared, may go with the task."""

    async def body() -> None:
        t = await ones((4,))
        shared = (await ones((4,))).share()
        async with trio.open_nursery() as nursery:
            first = spawn(nursery, add(t.partition((4,)), shared).first().unpartition().to_host())
            second = spawn(nursery, dup(shared).to_host())
            assert (await first).tolist() == [2.0] * 4
            assert (await second).tolist() == [1.0] * 4
        with pytest.raises(MovedError):
            t.borrow()

    run(body)
