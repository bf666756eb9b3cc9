"""Borrows are locks for the length of a run."""

import warnings
from typing import Any

import pytest
import trio

import dagpu
from dagpu import BorrowError, Out, Tile, current_device, dup, f32, kernel, ones, value, zeros, zip_ops
from tests.support.gates import GATES, Gate, Noting, add, awaited, noting, reading, run
from tests.support.gates import gate as gate


def writing(t: Any) -> Any:
    """An op that writes to `t`, lent, in a run that then stops at gate 0."""
    written = add(t.borrow_mut().partition((4,)), ones((4,))).first().unpartition()
    return written.to_host().host_map(GATES[0])


def refused(t: Any, *, reads: bool) -> str:
    """Runs an op on the lent `t` that must be refused before its other branch is launched; what it says."""
    ran: list[int] = []
    part: Any = dup(t.borrow()) if reads else add(t.borrow_mut().partition((4,)), ones((4,)))
    with pytest.raises(BorrowError) as caught:
        zip_ops(value(1).host_map(ran.append), part.map(lambda _: None)).sync()
    assert ran == []
    return str(caught.value)


def test_readers_share_and_a_writer_is_refused(gate: Gate) -> None:
    """Any number of runs read a tensor at once; one that would write it meanwhile is a BorrowError at its start."""
    t = ones((4,)).sync()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, reading(t))
            await gate.reached()
            # A stream of its own, or it would stand behind the other run.
            assert (await dup(t.borrow()).to_host().schedule(Noting(9))).tolist() == [1.0] * 4
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                said = refused(t, reads=False)
            assert f"wants to write a tensor of 16 bytes on {current_device().name} that is being read" in said
            assert said.count(__file__) == 2
            assert "Await that run first" in said
            gate.open.set()

    run(body)
    add(t.borrow_mut().partition((4,)), ones((4,))).sync()
    assert t.to_host().sync().tolist() == [2.0] * 4


def test_a_writer_excludes_all_others(gate: Gate) -> None:
    """While a run writes a lent tensor, another that reads or writes it is refused, and may come again later."""
    t = ones((4,)).sync()
    late = add(t.borrow_mut().partition((4,)), ones((4,))).map(lambda _: None)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, writing(t))
            await gate.reached()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert "wants to read" in refused(t, reads=True)
                assert "that is being written" in refused(t, reads=False)
            with pytest.raises(BorrowError):
                await late
            gate.open.set()
        await late  # refused before anything was submitted, so it owns its handles still

    run(body)
    assert t.to_host().sync().tolist() == [3.0] * 4


def test_what_is_lent_for_writing_is_alone_while_it_is_only_read(gate: Gate) -> None:
    """A run that reads a `TensorMut` holds it alone from its start, for it may write it later: another that would read
    or write the tensor meanwhile is refused."""
    t = ones((4,)).sync()
    read = add(zeros((4,)).partition((4,)), value(t.borrow_mut()))
    late = zip_ops(read.map(lambda _: None), value(0).host_map(GATES[0]))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, late)
            await gate.reached()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    assert "that is being written" in refused(t, reads=True)
                    assert "that is being written" in refused(t, reads=False)
            finally:
                gate.open.set()

    run(body)
    assert t.to_host().sync().tolist() == [1.0] * 4


@pytest.mark.parametrize("end", ["success", "failure", "cancellation"])
def test_locks_are_released_however_a_run_ends(end: str, gate: Gate) -> None:
    """After success, failure and cancellation the tensor may be lent again."""
    t = ones((4,)).sync()

    def fail(_: object) -> None:
        raise RuntimeError("as planned")

    async def body() -> None:
        op = writing(t)
        if end == "failure":
            gate.open.set()
            with pytest.raises(RuntimeError, match="as planned"):
                await op.host_map(fail)
        elif end == "success":
            gate.open.set()
            await op
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(awaited, op)
                await gate.reached()
                nursery.cancel_scope.cancel()
                gate.open.set()
        await add(t.borrow_mut().partition((4,)), ones((4,)))

    run(body)
    assert t.to_host().sync().tolist() == [3.0] * 4


def staged(t: Any, ran: list[Any]) -> Any:
    """An op that lends `t` for writing, but only once a number has come from the host."""
    number = value(1).host_map(noting(ran, 2.0))
    return scale(t.borrow_mut().partition((4,)), number)


@kernel(cuda="__global__ void scale(Tile<float, 1> y, float by) { for (auto i : y) y[i] *= by; }")
def scale(y: Out[f32], by: dagpu.Lazy[float]) -> None:
    """y *= by."""


@scale.host
def _(y: Tile[f32], by: float) -> None:
    y[...] *= by


def test_a_borrow_that_a_later_stage_uses_is_locked_at_the_start(gate: Gate) -> None:
    """The op shows it, so its conflict is found before anything is launched."""
    t = ones((4,)).sync()
    ran: list[Any] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited, reading(t))
            await gate.reached()
            try:
                with pytest.raises(BorrowError):
                    await staged(t, ran).schedule(Noting(9))
            finally:
                gate.open.set()
        assert ran == []

    run(body)


def test_two_stages_of_one_op_conflict_as_its_branches_do() -> None:
    """One part reads a lent tensor, a later stage of another writes it: BorrowError."""
    t = ones((4,)).sync()
    with pytest.raises(BorrowError):
        zip_ops(dup(t.borrow()), staged(t, [])).sync()
