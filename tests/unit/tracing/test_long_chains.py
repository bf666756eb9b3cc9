"""Long chains, deep nests and wide zips of ops: nothing meets the recursion limit, or the end of the stack."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from dagpu import value, zeros, zip_ops
from tests.unit.tracing.traced_ops import Op, bump, bumped

LONG = 20_000


def long_maps(length: int) -> Op:
    op: Op = value(0)
    for _ in range(length):
        op = op.map(lambda x: x + 1)
    return op


def long_thens(length: int) -> Op:
    op: Op = value(0)
    for _ in range(length):
        op = op.then(lambda x: value(x + 1))
    return op


def long_launches(length: int) -> Op:
    op = zeros((2,)).partition((2,))
    for _ in range(length // 2):
        op = bump(op, 1.0).first()
    return op.unpartition().to_host().map(lambda a: int(a[0]) * 2)


def long_lazy_numbers(length: int) -> Op:
    number: Op = value(1.0)
    for _ in range(length // 2):
        number = number.inspect(lambda x: None).map(lambda x: x)
    return bumped(zeros((2,)), number).to_host().map(lambda a: int(a[0]) * length)


def long_nested_thens(length: int) -> Op:
    """A closure gives an op with a closure that gives an op ..., so deep."""

    def step(x: int) -> Op:
        return value(x + 1).then(step) if x < length else value(x)

    return value(0).then(step)


def long_mixture(length: int) -> Op:
    op: Op = value(0)
    for _ in range(length // 5):
        op = zip_ops(op, value(4)).shared().unzip()[0].on("host:0").map(lambda x: x + 5)
    return op


LONG_CHAINS = [long_maps, long_thens, long_launches, long_lazy_numbers, long_nested_thens, long_mixture]


@pytest.mark.parametrize("build", LONG_CHAINS)
def test_a_long_chain_meets_no_recursion_limit(build: Callable[[int], Op]) -> None:
    """20,000 ops, twenty times the limit, are built, drawn, planned, printed, run and dropped."""
    op = build(LONG)
    assert repr(op).startswith("<")
    assert op.to_dot().endswith("}")
    assert op.explain().startswith("Plan:")
    assert op.sync() == LONG
    del op
    gc.collect()


@pytest.mark.parametrize("build", LONG_CHAINS)
def test_a_long_chain_is_dropped_unrun(build: Callable[[int], Op]) -> None:
    """Five times that, dropped by the garbage collector without ever having been run: in C there is no such limit, but
    a stack that has an end."""
    op = build(5 * LONG)
    holder: list[Any] = [op]
    holder.append(holder)
    del op, holder
    gc.collect()


def test_a_long_chain_of_stages() -> None:
    """1,000 stages, one after the other: the cost of a stage does not grow with those before it."""
    op: Op = value(0)
    for _ in range(1_000):
        op = op.host_map(lambda x: x + 1)
    assert op.map(lambda x: x).sync() == 1_000


def test_a_long_chain_that_waits_is_suspended_and_resumed() -> None:
    """10,000 maps behind host data that is still to come."""
    op: Op = value(0).host_map(lambda x: x)
    for _ in range(10_000):
        op = op.map(lambda x: x + 1)
    assert op.sync() == 10_000


def nested_zips(op: Op) -> int:
    """Return the depth of the tuple of 10,000 nested zips."""
    for _ in range(10_000):
        op = zip_ops(op)
    result, depth = op.sync(), 0
    while result:
        (result,), depth = result, depth + 1
    return depth


def test_zips_nested_deep() -> None:
    """A zip of a zip of a zip ..., 10,000 deep, is traced and dropped."""
    assert nested_zips(value(0)) == 10_000


def test_zips_nested_deep_over_host_data_to_come() -> None:
    """Deeply nested zips also work if the innermost value is still being computed during the trace."""
    assert nested_zips(value(0).host_map(lambda x: x)) == 10_000


def test_a_wide_zip() -> None:
    """100,000 branches side by side."""
    assert zip_ops(*[value(i) for i in range(100_000)]).map(sum).sync() == sum(range(100_000))
