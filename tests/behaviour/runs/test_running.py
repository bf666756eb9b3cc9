"""The ways of running an op: `sync`, `await` and threads, inside a trio loop and outside."""

import gc
import re
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

import dagpu
from dagpu import (
    NestedRunError,
    RoundRobin,
    SingleStream,
    current_device,
    device,
    dup,
    from_host,
    full,
    ones,
    plan_of,
    use_device,
    value,
    zeros,
    zip_ops,
)
from tests.support.gates import PATIENCE, Gate, add, awaited, boom, noting, run
from tests.support.gates import gate as gate
from tests.support.handle_cases import line
from tests.support.places import place

# ---- the ways of running


def test_every_way_of_running_gives_the_same() -> None:
    """`await`, `sync`, `sync_on`, `schedule` and `on` change where an op runs, never what it gives."""
    op = add(zeros((4,)).partition((2,)), ones((4,))).first().unpartition().to_host()
    here, there = device(place(0)), place(1)
    for way in (op, op.schedule(SingleStream()), op.schedule(RoundRobin(2)), op.on(there), op.on(here)):
        assert way.sync().tolist() == [1.0] * 4
        stream = (device(there) if there in devices_of(way) else here).stream()
        assert way.sync_on(stream).tolist() == [1.0] * 4

        async def body(way: Any = way) -> None:
            assert (await way).tolist() == [1.0] * 4

        run(body)


@pytest.mark.parametrize("spin", ["0", "20", "2000"])
def test_completion_by_spinning_and_by_sleeping(spin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a wait spins before it sleeps, the result is the same."""
    monkeypatch.setenv("DAGPU_SPIN_US", spin)
    assert zeros((3,)).to_host().sync().tolist() == [0.0] * 3

    async def body() -> None:
        for _ in range(20):
            assert (await zeros((3,)).to_host()).tolist() == [0.0] * 3

    run(body)


def test_a_spin_time_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable's name, what it holds, and an example."""
    monkeypatch.setenv("DAGPU_SPIN_US", "soon")
    with pytest.raises(ValueError, match=re.escape("DAGPU_SPIN_US='soon' is not a number of microseconds")):
        value(1).sync()


@pytest.mark.parametrize(
    "op", [value(3), value(3).map(str), zip_ops(value(1), value(2)), zeros((2,)), ones((2,)).to_host()], ids=range(5)
)
def test_await_is_a_checkpoint(op: Any) -> None:
    """With device work and without: it lets others run, and sees a cancellation."""

    async def body() -> None:
        with assert_checkpoints():
            await op
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        with assert_checkpoints():
            await op

    run(body)


def test_a_remembered_value_is_a_checkpoint_too() -> None:
    """The fast path of `shared()` on its second run."""
    op = zeros((2,)).shared()

    async def body() -> None:
        await op
        with assert_checkpoints():
            await op

    run(body)


def test_handles_that_a_run_returns_are_complete() -> None:
    """Their data is there: another loop, thread or stream may read it at once."""
    t = trio.run(lambda: awaited(full((4,), 7)))
    assert t.to_host().sync_on(current_device().stream()).tolist() == [7.0] * 4


def devices_of(op: "dagpu.DeviceOp[Any, Any, Any]") -> set[str]:
    return set(plan_of(op).devices)


# ---- the loop, and threads


def test_a_long_run_never_holds_up_the_loop(gate: Gate) -> None:
    """While a body blocks, other tasks pass any number of checkpoints, and runs of their own."""
    passed = 0

    async def other() -> None:
        nonlocal passed
        for _ in range(500):
            await trio.lowlevel.checkpoint()
            passed += 1
        for _ in range(10):
            await zeros((4,)).on(place(1))
        assert gate.ended == 0
        gate.open.set()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await ones((4,)).host_map(gate)
            assert passed == 500

    run(body)


def test_concurrent_runs_overlap() -> None:
    """Two runs of one op each meet in the middle: neither stands behind the other on a stream."""
    meet = threading.Barrier(2)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(awaited, value(number).host_map(lambda _: meet.wait(2.0)))

    run(body)


def test_sync_in_a_task_warns_once_for_each_call_site() -> None:
    """A RuntimeWarning that points at the user's line; the result is right nevertheless."""

    async def body() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                assert value(1).sync() == 1
                here = line(1)
            assert value(2).sync() == 2
        first = caught[0]
        assert (first.category, f"{first.filename}:{first.lineno}") == (RuntimeWarning, here)
        assert len(caught) == 2
        assert f"sync() at {here} in a trio task blocks every other task" in str(caught[0].message)
        assert "Use await." in str(caught[0].message)

    run(body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(1).sync() == 1


def test_sync_that_would_wait_for_its_own_thread_is_refused(gate: Gate) -> None:
    """A task makes a `shared()` value; another, in the same thread, may not block for it: nobody would finish it."""
    op = value(1).host_map(gate).shared()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, op)
            await gate.reached()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                with pytest.raises(NestedRunError, match=re.escape("Use await here")):
                    op.map(str).sync()
            gate.open.set()
        assert await op.map(str) == "1"

    run(body)


def test_sync_in_another_thread_waits_for_a_shared_value(gate: Gate) -> None:
    """Threads and loops mix: one makes the value, the other gets it."""
    made: list[int] = []
    op = value(1).host_map(gate).map(noting(made, 5)).shared()

    async def body() -> None:
        got: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, op)
            await gate.reached()

            async def elsewhere() -> None:
                got.append(await trio.to_thread.run_sync(op.sync))

            nursery.start_soon(elsewhere)
            await wait_all_tasks_blocked()
            gate.open.set()
        assert (got, made) == ([5], [1])

    run(body)


@pytest.mark.parametrize("attach", ["map", "then", "inspect", "host_map"])
def test_a_run_inside_a_run_is_refused(attach: str) -> None:
    """`sync` and `await` in a closure or `host_map` are NestedRunError, and the outer run ends with it."""
    for inner in (lambda _: value(1).sync(), lambda _: value(1).__await__().send(None), lambda _: value(1).explain()):
        with pytest.raises(NestedRunError, match=re.escape("Return the op from .then instead")) as caught:
            getattr(value(0), attach)(inner).sync()
        assert f"{__file__}:{inner.__code__.co_firstlineno}" in str(caught.value)
    assert value(1).sync() == 1


def test_runs_in_many_threads_at_once() -> None:
    """Plain threads may run ops side by side; each gets its own."""
    got: dict[int, float] = {}

    def work(number: int) -> None:
        with use_device(place(number % 2)):
            got[number] = float(full((8,), number).to_host().sync().sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == {number: 8.0 * number for number in range(16)}


def test_planning_runs_nothing_and_takes_nothing() -> None:
    """`plan_of` and `explain` leave the op its handles, and its `shared()` parts unmade."""
    ran: list[int] = []
    t = from_host(np.ones(4, np.float32)).sync()
    op = zip_ops(dup(t).to_host(), value(1).host_map(ran.append).shared())
    assert current_device().name in op.explain()
    assert plan_of(op).peak_bytes >= 16
    assert ran == []
    assert op.sync()[0].tolist() == [1.0] * 4
    assert ran == [1]


def test_a_failed_run_gives_its_memory_back_without_the_collector() -> None:
    """The error that it raised keeps nothing of it, once the error itself is gone."""
    where = current_device()
    op = zip_ops(ones((1000,)), zeros((3,)).to_host().host_map(boom))
    gc.collect()
    before = where.memory_used()

    async def in_a_task() -> None:
        try:
            await op
        except KeyError:
            return
        raise AssertionError("it should have failed")

    gc.disable()
    try:
        with pytest.raises(KeyError):
            op.sync()
        assert where.memory_used() == before
        trio.run(in_a_task)
        assert where.memory_used() == before
    finally:
        gc.enable()
