"""Ops that a loop builds again: from the seventh round on, the place in the code finds the plan, and not the key."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import trio

from dagpu import empty, from_host, full, use_device, zip_ops
from dagpu.runtime.direct_call import OFTEN, VERY_OFTEN
from dagpu.runtime.plan_lookup import PlanLookup
from dagpu.testing import plans
from tests.programs.arithmetic import add, axpy, scale
from tests.support.reused_ops import no_plans_yet as no_plans_yet

S: Final = (2, 2)
ROUNDS: Final = OFTEN + 4


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[PlanLookup]:
    """The lookups of the general way, as they are made."""
    made: list[PlanLookup] = []
    bind = PlanLookup.bind

    def counted(lookup: PlanLookup) -> Any:
        made.append(lookup)
        return bind(lookup)

    monkeypatch.setattr(PlanLookup, "bind", counted)
    return made


def test_a_loop_finds_its_plan_by_its_place(lookups: list[PlanLookup]) -> None:
    """The results are those of the general way, and each run counts as a hit."""
    x = full(S, 1).share().sync()
    found = [scale(empty(S).partition(S), float(n), x).first().unpartition().to_host().sync() for n in range(ROUNDS)]
    assert [each.tolist() for each in found] == [np.full(S, n, np.float32).tolist() for n in range(ROUNDS)]
    assert len(lookups) <= OFTEN + 2
    assert plans.info().hits == ROUNDS - 1  # all but the first one


def test_a_large_op_is_found_by_its_place_after_many_runs(lookups: list[PlanLookup]) -> None:
    """Its text takes long to write. An op whose text would be still longer has none."""
    x = full(S, 1).share().sync()

    def chain(length: int) -> Any:
        op: Any = empty(S)
        for _ in range(length):
            op = scale(op.partition(S), 1.0, x).first().unpartition()
        return op.to_host()

    for length, found in ((20, True), (200, False)):
        plans.clear()
        for _ in range(VERY_OFTEN + 4 if found else OFTEN + 4):
            assert chain(length).sync().tolist() == [[1.0, 1.0], [1.0, 1.0]]
        lookups.clear()
        chain(length).sync()
        assert (not lookups) is found


def test_tasks_find_it_too(lookups: list[PlanLookup]) -> None:
    async def main() -> None:
        x = await full(S, 1).share()
        for n in range(ROUNDS):
            result = await scale(empty(S).partition(S), float(n), x).first().unpartition().to_host()
            assert result.tolist() == np.full(S, n, np.float32).tolist()

    trio.run(main)
    assert len(lookups) <= OFTEN + 2


def test_an_op_that_runs_twice_needs_no_guard_the_second_time(lookups: list[PlanLookup]) -> None:
    """The first run attaches the plan to the op, as the general way does."""
    x = full(S, 1).share().sync()
    for _ in range(ROUNDS):
        op = scale(empty(S).partition(S), 2.0, x).first().unpartition()
        one, other = op.sync(), op.sync()
        assert one.to_host().sync().tolist() == other.to_host().sync().tolist()


def test_arrays_and_moved_tensors_are_inputs_of_each_round(lookups: list[PlanLookup]) -> None:
    """An array of another shape in one round takes the general way; the rounds after it do not."""
    total: Any = full(S, 0).sync()
    expected = np.zeros(S, np.float32)
    for n in range(2 * ROUNDS):
        array = np.full(S, n % 3, np.float32)
        if n == ROUNDS:
            assert from_host(np.ones(3, np.float32)).to_host().sync().tolist() == [1.0] * 3
            lookups.clear()
        total = axpy(total.partition(S), 1.0, from_host(array)).first().unpartition().sync()
        expected += array
    assert total.to_host().sync().tolist() == expected.tolist()
    assert len(lookups) == 1  # that of the last line


def test_one_place_that_builds_two_structures(lookups: list[PlanLookup]) -> None:
    """Each has its own result, whichever came before."""
    x = full(S, 1).share().sync()

    def built(n: int) -> Any:
        parts = [scale(empty(S).partition(S), float(n), x).first().unpartition().to_host()] * 1
        if n % 2:
            parts.append(add(empty(S).partition(S), x, x).first().unpartition().to_host())
        return zip_ops(*parts)

    for n in range(2 * ROUNDS):
        first, *rest = built(n).sync()
        assert first.tolist() == np.full(S, n, np.float32).tolist()
        assert [each.tolist() for each in rest] == [[[2.0, 2.0], [2.0, 2.0]]] * (n % 2)


def test_the_current_device_decides_where_a_fresh_op_runs() -> None:
    def run(device: str) -> str:
        with use_device(device):
            return full(S, 1).sync().device.name

    assert [run(f"host:{n % 2}") for n in range(4 * ROUNDS)] == [f"host:{n % 2}" for n in range(4 * ROUNDS)]


def _push_out() -> None:
    """Store so many plans of other structures that the cache drops the oldest one."""
    for size in range(plans.info().maxsize + 1):
        full((size + 1,), 1).sync()


@pytest.mark.parametrize("forget", [plans.clear, _push_out])
def test_a_place_does_not_keep_a_plan_that_the_cache_drops(forget: Callable[[], None]) -> None:
    """The next op from there is traced."""
    x = full(S, 1).share().sync()

    def build() -> Any:
        return scale(empty(S).partition(S), 2.0, x).first().unpartition()

    for _ in range(ROUNDS):
        build().sync()
    assert plans.latest_at(build().origin) is not None
    forget()
    assert plans.latest_at(build().origin) is None
    assert build().sync().to_host().sync().tolist() == [[2.0, 2.0], [2.0, 2.0]]
