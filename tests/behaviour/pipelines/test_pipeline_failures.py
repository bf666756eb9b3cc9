"""Pipelines: calls that fail, and calls that run at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import trio

from dagpu import (
    BorrowError,
    MovedError,
    Out,
    Tile,
    device,
    f32,
    fill,
    from_host,
    full,
    kernel,
    ones,
    pipeline,
    spawn,
    use_device,
    zip_ops,
)
from dagpu.handles import move_handle, restore_state
from dagpu.ops.base import RUNNER
from dagpu.runtime import direct_call
from dagpu.runtime.execute import execute_now
from dagpu.testing import Locks, exploring, live_state, storage_of
from dagpu.tracing.signature import BoundArguments
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, scaled, shared, tensor, unlocked
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.behaviour.promises.interrupting import Finger, interrupt
from tests.programs.arithmetic import axpy
from tests.programs.expressions import Op

PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


FAIL = """__global__ void fails_below(Tile<float, 2> y, float a) { for (auto i : y) y[i] += a; }"""


@kernel(cuda=FAIL)
def fails_below(y: Out[f32], a: float) -> None:
    """y += a, which fails for a < 0."""


@fails_below.host
def _(y: Tile[f32], a: float) -> None:
    if a < 0:
        raise ArithmeticError(f"a = {a}")
    y[...] += a


# ---- failures


@pytest.mark.host_only("the kernel's host body fails")
def test_a_call_that_fails_once_submitted_has_used_up_its_arguments() -> None:
    """In the first call and in later ones; the next call is well, and nothing stays locked."""
    p = Calls(lambda t, x, a: zip_ops(fails_below(t.partition(S), a).first().unpartition(), scaled(1.0, x)))
    x = shared(1)
    for a in (-1.0, 1.0, -1.0, 2.0):
        op = p(tensor(1), x, a)
        if a > 0:
            assert number_in(op.sync()[0]) == 1 + a
        else:
            with pytest.raises(ArithmeticError, match=f"a = {a}"):
                op.sync()
            with pytest.raises(MovedError):
                op.sync()
        assert unlocked(x)
    assert p.count == 1


@pytest.mark.parametrize("before", [0, 2])
def test_a_call_that_fails_before_keeps_its_arguments(before: int) -> None:
    """A lock in the way, a number that does not fit: the same op runs when that is mended."""
    p = pipeline(lambda t, x, a: axpy(t.partition(S), a, x).first().unpartition())
    for _ in range(before):
        p(tensor(), shared(1), 1.0).sync()
    lent = tensor(2)
    op = p(tensor(1), lent.borrow(), 3.0)
    for _ in range(before):
        p(tensor(), lent.borrow(), 1.0).sync()
    writer = Locks(None)
    writer.acquire({storage_of(lent): True})
    for _ in range(2):
        with pytest.raises(BorrowError):
            op.sync()
    writer.release()
    assert number_in(op.sync()) == 7
    assert unlocked(lent)


@pytest.mark.parametrize("before", [0, 2])
def test_a_call_that_is_cancelled_before_keeps_its_arguments(before: int) -> None:
    """Nothing was submitted: the op may be awaited again."""
    p = pipeline(lambda t, x: axpy(t.partition(S), 3.0, x).first().unpartition())
    for _ in range(before):
        p(tensor(), shared(1)).sync()
    x = shared(2)
    op = p(tensor(1), x)

    async def body() -> float:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        assert unlocked(x)
        return float((await (await op).to_host())[0, 0])

    assert trio.run(body) == 7


@pytest.mark.parametrize("before", [0, 2])
def test_a_call_that_is_interrupted_before_keeps_its_arguments(before: int) -> None:
    """A Ctrl-C while the plan is looked up submits nothing: the op may be run again."""
    p = pipeline(lambda t, x: axpy(t.partition(S), 3.0, x).first().unpartition())
    for _ in range(before):
        p(tensor(), shared(1)).sync()
    x = shared(2)
    op = p(tensor(1), x)
    code = execute_now.__code__
    first = sorted({line for _, _, line in code.co_lines() if line is not None})[1]
    with Finger(interrupt, (code.co_filename, first)) as finger, pytest.raises(KeyboardInterrupt):
        RUNNER.value.run_sync(op)  # what sync() calls, unless the compiled reader serves the call
    assert finger.pressed
    assert unlocked(x)
    assert number_in(op.sync()) == 7


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_all_arguments_come_back(before: int, how: str) -> None:
    """If nothing was submitted, every tensor, partition and loan among the arguments belongs to the op again, not only
    the first or the last. The op can be run.
    """
    p = pipeline(
        lambda t, cut, m, u: zip_ops(
            axpy(t.partition(S), 1.0, ones(S)).first(),
            axpy(cut, 1.0, ones(S)).first(),
            axpy(m.partition(S), 1.0, ones(S)).first(),
            axpy(u.partition(S), 1.0, ones(S)).first(),
        )
    )

    def call(lender: Any) -> Op:
        return p(tensor(1), tensor(2).partition(S), lender.borrow_mut(), tensor(4))

    for _ in range(before):
        call(tensor(3)).sync()
    lender = tensor(3)
    op = call(lender)

    async def body() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught

    if how == "cancelled":
        trio.run(body)
    else:
        reader = Locks(None)
        reader.acquire({storage_of(lender): False})
        with pytest.raises(BorrowError):
            op.sync()
        reader.release()
    assert unlocked(lender)
    assert [number_in(cut.unpartition()) for cut in op.sync()[:2]] == [2, 3]
    assert number_in(lender) == 4


@pytest.mark.parametrize("before", range(3))
def test_a_run_uses_up_an_argument_that_no_kernel_uses(before: int) -> None:
    """A run takes a tensor that its function ignores, with a plan and without: the next run of the op is refused."""
    p = pipeline(lambda _t: ones(S))
    for _ in range(before):
        p(tensor()).sync()
    op = p(tensor())
    assert number_in(op.sync()) == 1
    with pytest.raises(MovedError, match="a run of the op that owned it"):
        op.sync()


@pytest.mark.parametrize("before", [1, 2])
def test_a_lost_race_for_one_argument_gives_back_the_others(before: int) -> None:
    """Another thread takes one of the tensors of a call while that begins: the call is refused, and gives back those
    that it had taken by then, from the first to the last."""
    p = pipeline(lambda t, u, v: zip_ops(fill(t, 1), fill(u, 2), fill(v, 3)))
    for _ in range(before):
        p(tensor(), tensor(), tensor()).sync()
    op = p(tensor(), tensor(), tensor())
    (held, _) = op.source.content  # type: ignore[attr-defined]  # reason: the call of a pipeline
    gone: list[Any] = []

    def move() -> None:
        if not gone:
            gone.append(live_state(held[2]))
            move_handle(held[2], "another thread", None)

    at: AbstractContextManager[object]
    if before == 1:
        take = BoundArguments.take_leaves

        def late(*arguments: Any) -> None:
            move()
            take(*arguments)

        at = patch.object(BoundArguments, "take_leaves", late)
    else:
        begin = direct_call.begin_run

        def late_again(*arguments: Any) -> bool:
            move()
            return begin(*arguments)

        at = patch.object(direct_call, "begin_run", late_again)
    with at, pytest.raises(MovedError, match="another thread"):
        op.sync()
    restore_state(held[2], gone[0])
    assert [number_in(t) for t in op.sync()] == [1, 2, 3]


@pytest.mark.host_only("it runs on a device of its own")
@pytest.mark.parametrize("before", [0, 2])
def test_cancelled_at_each_step(before: int) -> None:
    """Wherever a call is cancelled, its arguments are gone, its locks are back, and so is its memory."""
    where = device("explore:0")
    p = pipeline(lambda t, x, a: axpy(t.partition(S), a, x).first().unpartition().then(lambda t: scaled(2.0, t)))
    with use_device(where):
        x = shared(2)
        for _ in range(before):
            p(tensor(), x, 1.0).sync()
        used = where.memory_used()
        for step in range(100):

            async def body(step: int = step) -> tuple[bool, float]:
                result = None
                with trio.CancelScope() as scope, exploring(cancel_at=step, cancel=scope.cancel) as order:
                    result = await p(await full(S, 1), x, 3.0)
                ended = 0.0 if result is None else float((await result.to_host())[0, 0])
                assert scope.cancelled_caught == (result is None)
                return order.steps < step, ended

            past_the_end, result = trio.run(body)
            assert result in (0, 14)
            assert unlocked(x)
            assert where.memory_used() == used
            if past_the_end:
                break
        assert result == 14
        assert step > 8


GATE = """__global__ void meets(Tile<float, 2> y, float a) { for (auto i : y) y[i] += a; }"""


@kernel(cuda=GATE)
def meets(y: Out[f32], a: float) -> None:
    """y += a, once two calls have come here."""


@meets.host
def _(y: Tile[f32], a: float) -> None:
    MEETING.wait(PATIENCE)
    y[...] += a


MEETING = threading.Barrier(2)


# ---- several at once


@pytest.mark.host_only("the kernel's host body waits for another call")
@pytest.mark.parametrize("before", [0, 1])
def test_calls_overlap(before: int) -> None:
    """Two calls of one pipeline are under way at once, the first calls included; each has its own result."""
    p = pipeline(lambda t, a: meets(t.partition(S), a).first().unpartition().to_host())

    async def body(first: float) -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, p(await full(S, 10), first + k)) for k in range(2)]
            return [(await each)[0, 0] for each in pending]

    for k in range(before + 1):
        assert trio.run(body, float(k)) == [10 + k, 11 + k]


def test_many_calls_in_flight() -> None:
    """Each gets the result of its own arguments, in whatever order they end."""
    p = Calls(lambda x, h, a: added(scaled(a, x), from_host(h)).to_host())
    x = shared(1)

    async def body() -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, p(x, np.full(S, k, f32), float(k % 3))) for k in range(24)]
            return [(await each)[0, 0] for each in pending]

    for _ in range(2):
        assert trio.run(body) == [k + k % 3 for k in range(24)]
    assert unlocked(x)


def test_calls_from_threads() -> None:
    """First calls included: no thread gets another's result."""
    p = pipeline(lambda x, h, a: added(scaled(a, x), from_host(h)).to_host())
    x = shared(1)
    start = threading.Barrier(4)

    def some(number: int) -> list[float]:
        start.wait(PATIENCE)
        return [p(x, np.full(S, k, f32), float(number)).sync()[0, 0] for k in range(12)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(some, range(4)))
    assert found == [[number + k for k in range(12)] for number in range(4)]
    assert p.cache_info().currsize == 1
