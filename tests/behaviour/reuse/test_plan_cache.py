"""The plans that are kept: after failures, by runs at the same time, and for how long."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import trio

from dagpu import (
    Out,
    StreamInterpreter,
    Tile,
    current_device,
    dup,
    empty,
    f32,
    kernel,
    memcpy,
    ones,
    spawn,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.runtime.loaded_plan import LoadedPlan
from dagpu.testing import plans, storage_of
from tests.support.reused_ops import Asked, contents, scaled, shared_input, traces, twice_scaled
from tests.support.reused_ops import let_go as let_go
from tests.support.reused_ops import no_plans_yet as no_plans_yet

PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


# ---- several runs at once, and runs that do not end well


def test_runs_at_once_in_trio() -> None:
    """Any number of tasks run one op: each gets a result of its own."""
    op = twice_scaled()
    wanted = contents(twice_scaled().sync())

    async def body() -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, op) for _ in range(20)]
            return [await each for each in pending]

    results = trio.run(body)
    assert len({id(storage_of(result)) for result in results}) == 20
    assert [contents(result) for result in results] == [wanted] * 20


def test_runs_at_once_on_threads() -> None:
    """Runs of one op on several threads at the same time give the right results, the first runs included."""
    op = zip_ops(twice_scaled(), scaled(value(shared_input())).to_host())
    start = threading.Barrier(8)

    def some() -> list[Any]:
        start.wait(PATIENCE)
        return [contents(op.sync()) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(some) for _ in range(8)]
        found = [result for future in futures for result in future.result(PATIENCE)]
    assert found == [found[0]] * 160
    assert len(op._plans) == 1  # noqa: SLF001  # no public call shows it


FAIL = """
__global__ void fails_when_told(Tile<float, 1> y, float a) { for (auto i : y) y[i] = a; }
"""


@kernel(cuda=FAIL)
def fails_when_told(y: Out[f32], a: float) -> None:
    """y = a, unless TOLD is set."""


@fails_when_told.host
def _(y: Tile[f32], a: float) -> None:
    if TOLD.is_set():
        raise ArithmeticError("as told")
    y[...] = a


TOLD = threading.Event()


@pytest.mark.host_only("the kernel's host body fails")
@pytest.mark.parametrize("fails", [(0,), (1,), (0, 1, 3)])
def test_a_failure_is_not_remembered(fails: tuple[int, ...]) -> None:
    """A run after a failed one gives what it would have given, and leaves no lock behind."""
    out = fails_when_told(empty((4,)).partition((2,)), 3.0).first().unpartition()
    op = zip_ops(out, scaled(value(shared_input()))).last()
    wanted = contents(scaled(value(shared_input())).sync())
    with traces() as count:
        for number in range(5):
            try:
                if number in fails:
                    TOLD.set()
                    with pytest.raises(ArithmeticError, match="as told"):
                        op.sync()
                else:
                    assert contents(op.sync()) == wanted
            finally:
                TOLD.clear()
    assert count.now == 1
    assert storage_of(shared_input()).lock.readers == 0


@pytest.mark.parametrize("before", [0, 1])
def test_a_cancelled_run_leaves_the_op_as_it_was(before: int) -> None:
    """Cancelled before anything is submitted: nothing runs, no lock is left, and the next run is well."""
    op = scaled(value(shared_input())).to_host()
    for _ in range(before):
        op.sync()

    async def body() -> tuple[bool, Any]:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert storage_of(shared_input()).lock.readers == 0
        return scope.cancelled_caught, await op

    with traces() as count:
        cancelled, result = trio.run(body)
    assert cancelled
    assert result[0, 0] == 2
    assert count.now == (0 if before else 2)


# ---- what is kept


def test_memory_goes_with_the_results() -> None:
    """An op that has run keeps no device memory: not of its results, nor of inputs that were moved and dropped."""
    here = current_device()
    gc.collect()
    before = here.memory_used()
    shared = ones((1 << 16,)).share().sync()
    op = dup(shared)
    for _ in range(3):
        op.sync()
    assert here.memory_used() == before + (1 << 18)
    tensor = shared.try_unwrap()
    del tensor
    assert here.memory_used() == before


@pytest.mark.parametrize("before", [0, 2])
def test_a_result_does_not_keep_what_it_was_made_of(before: int) -> None:
    """Inputs that were lent, shared or moved in go when they are dropped, while the result lives on; by reference
    counts alone, whether the run was traced or took the plan of an earlier one."""
    here = current_device()
    gc.collect()
    gc.disable()
    try:
        empty_handed = here.memory_used()

        def run() -> Any:
            lent, written = ones((2, 3)).sync(), zeros((2, 3)).sync()
            shared, moved = ones((2, 3)).share().sync(), ones((2, 3)).sync()
            op = zip_ops(
                scaled(value(lent.borrow())), scaled(value(shared)), scaled(value(moved)),
                memcpy(written.borrow_mut(), shared),
            )  # fmt: skip
            return op.sync()[:3], scaled(value(lent.borrow())).then(dup).sync()

        for _ in range(before):
            run()
        results = run()
        assert here.memory_used() == empty_handed + 4 * 24
        del results
        assert here.memory_used() == empty_handed
    finally:
        gc.enable()


def test_a_result_is_no_hidden_holder() -> None:
    """A `SharedTensor` of a repeated run can be unwrapped: the op keeps no handle to it."""
    op = ones((3,)).share()
    op.sync()
    assert op.sync().try_unwrap().to_host().sync().tolist() == [1, 1, 1]


def test_what_is_kept_dies_with_the_op() -> None:
    """By reference counting alone: an op and its plan form no cycle."""
    gc.collect()
    gc.disable()
    try:
        policy = Asked()
        with use_interpreter(StreamInterpreter(policy=policy)):
            op: Any = scaled(value(shared_input()))
            op.sync()
            op.sync()
        assert sum(type(found) is LoadedPlan and found.settings.policy is policy for found in gc.get_objects()) == 1
        del op
        assert not any(type(found) is LoadedPlan and found.settings.policy is policy for found in gc.get_objects())
    finally:
        gc.enable()


def test_an_op_keeps_the_plan_that_another_op_of_its_structure_has_made() -> None:
    """So its next run asks no cache: one trace serves them, even after the caches have been cleared."""
    wanted = contents(twice_scaled().sync())
    op = twice_scaled()
    with traces() as count:
        results = [op.sync()]
        plans.clear()
        results.append(op.sync())
    assert count.now == 0
    assert list(map(contents, results)) == [wanted] * 2


def test_an_op_stays_frozen() -> None:
    """The state that runs keep is not in a field of the op, so users cannot set it by mistake."""
    op: Any = zeros((1,))
    op.sync()
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        op._plans = ()  # noqa: SLF001  # no public call shows it
    assert op._plans  # noqa: SLF001  # no public call shows it
