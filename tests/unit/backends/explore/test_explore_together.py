"""Runs that are under way at the same time on an explore device."""

from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    BorrowError,
    RoundRobin,
    SharedTensor,
    StreamInterpreter,
    TensorMut,
    TensorRef,
    arange,
    i32,
    ones,
    use_device,
    use_interpreter,
    zeros,
)
from dagpu.testing import Exploration, Locks, exploring
from tests.programs.named_dags import Op
from tests.programs.named_kernels import affine, gather
from tests.unit.backends.explore.explored_runs import HERE, used


async def together(*ops: Op) -> list[Any]:
    """Await each op in a separate task. Return for each its result, or the error that it raises."""
    found: list[Any] = [None] * len(ops)

    async def one(number: int, op: Op) -> None:
        try:
            found[number] = await op
        except BorrowError as error:
            found[number] = error

    async with trio.open_nursery() as nursery:
        for number, op in enumerate(ops):
            nursery.start_soon(one, number, op)
    return found


def changes_of_run(taken: list[int], lanes: int) -> int:
    """Return how often two equal runs with the same number of lanes have taken turns while both were in progress."""
    second = [lane >= lanes for lane in taken]
    return sum(one != other for one, other in pairwise(second))


def test_runs_of_two_tasks_take_turns() -> None:
    """Two runs that read one tensor that is lent and one that is shared go on step by step in turns, in many orders,
    and each gives the right bits; the choices of one such exploration give it again."""

    def reading(lent: TensorRef[i32], shared: SharedTensor[i32]) -> Op:
        branches = [affine(zeros((8,), i32).partition((8,)), lent, k, 1).first().unpartition() for k in (2, 3)]
        joined = gather(branches[0].partition((8,)), branches[1]).first().unpartition()
        return gather(joined.partition((8,)), shared).first().unpartition().to_host()

    async def both(explored: AbstractContextManager[Exploration]) -> Exploration:
        lent, shared = await arange(8, i32), (await ones((8,), i32)).share()
        ops = [reading(lent.borrow(), shared), reading(lent.borrow(), shared)]
        with explored as found:
            for result in await together(*ops):
                np.testing.assert_array_equal(5 * np.arange(8, dtype=i32) + i32(3), result)
        return found

    orders, turns, before = set(), 0, used()
    with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(2))):
        for seed in range(30):
            found = trio.run(both, exploring(seed=seed))
            orders.add(tuple(found.taken))
            turns = max(turns, changes_of_run(found.taken, 2))
        again = trio.run(both, exploring(choices=found.taken))
    assert found.taken == again.taken
    assert len(orders) > 20
    assert turns > 10
    assert used() == before


def adding_to(total: TensorMut[i32]) -> Op:
    """Adds 1 to a tensor of the caller's."""
    return gather(total.partition((8,)), ones((8,), i32)).last().map(lambda _: None)


def totals(seed: int) -> tuple[int, int]:
    """Run two ops at once that add 1 to one tensor. Return the final contents, and the number of refused runs."""

    async def main() -> tuple[int, int]:
        total = await zeros((8,), i32)
        with exploring(seed=seed):
            one = adding_to(total.borrow_mut())
            other = adding_to(total.borrow_mut())  # type: ignore[dagpu-conflicting-borrow]  # reason: the mistake to be seen
            ends = await together(one, other)
        return int((await total.to_host())[0]), sum(isinstance(end, BorrowError) for end in ends)

    with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(2))):
        return trio.run(main)


def test_of_two_runs_that_write_one_tensor_the_second_is_refused() -> None:
    """While the first is under way; nothing of it is done, so no sum is lost."""
    assert {totals(seed) for seed in range(20)} == {(1, 1)}


def test_a_lock_left_out_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were runs not kept apart by their locks, some order of their steps would lose one of the two sums: what goes
    wrong between two runs is found, too."""
    monkeypatch.setattr(Locks, "acquire", lambda _self, _wanted: None)
    assert {totals(seed) for seed in range(40)} == {(1, 0), (2, 0)}
