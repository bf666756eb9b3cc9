"""The same op run again: its plan is used again, and nobody can tell but by the clock.

Avoided traces are counted, never timed: `traces` counts the tracers that runs make.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    MovedError,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    arange,
    dup,
    empty,
    eye,
    f32,
    fill,
    from_host,
    ones,
    rand,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.runtime import plan_lookup
from dagpu.testing import plans
from tests.programs.arithmetic import add, scale
from tests.programs.expressions import Building, Evaluation, Expr, Op, bits, build
from tests.programs.expressions import evaluate as evaluated
from tests.programs.strategies import descriptions, shapes
from tests.support.places import place
from tests.support.reused_ops import contents, lender, pure, scaled, shared_input, traces, twice_scaled
from tests.support.reused_ops import let_go as let_go
from tests.support.reused_ops import no_plans_yet as no_plans_yet


def both(x: Op) -> Op:
    """One branch for each of two policies."""
    return zip_ops(scaled(x).on(SingleStream()), zeros((2,)).schedule(RoundRobin(2)))


ARRAY = np.arange(6, dtype=f32).reshape(2, 3)


REUSABLE: dict[str, Callable[[], Op]] = {
    "zeros": lambda: zeros((3,)),
    "empty": lambda: empty((3,)),
    "eye": lambda: eye(3),
    "reshape": lambda: arange(6).reshape((2, 3)),
    "reshape by a list": lambda: arange(6).reshape([2, 3]),  # type: ignore[arg-type]  # reason: it works
    "chain": twice_scaled,
    "all arguments of a kernel": lambda: scale(empty((2, 3)).partition((1, 3)), 2.0, value(shared_input())),
    "partition": lambda: zeros((4, 4)).partition((2, 2)),
    "share": lambda: ones((2,)).share(),
    "zip": lambda: zip_ops(ones((2,)), zip_ops(zeros((3,)), value((1, "a", None)))),
    "last": lambda: zip_ops(ones((2,)), twice_scaled()).last(),
    "to_host": lambda: twice_scaled().to_host(),
    "to_host beside a tensor": lambda: zip_ops(zip_ops(twice_scaled().to_host(), value(1)), ones((2,))),
    "two stages": lambda: zip_ops(from_host(ARRAY).to_host(), ones((2,))).first(),
    "from_host": lambda: scaled(from_host(ARRAY)),
    "one array twice": lambda: add(empty((2, 3)).partition((1, 1)), from_host(ARRAY), from_host(ARRAY)).first(),
    "from_host strided": lambda: from_host(ARRAY[:, ::2]),
    "shared input": lambda: (
        add(empty((2, 3)).partition((2, 3)), shared_input(), value(shared_input())).first().unpartition()
    ),
    "shared result": lambda: zip_ops(value(shared_input()), scaled(value(shared_input()))),
    "borrowed input": lambda: scaled(value(lender().borrow())),
    "borrowed slice": lambda: dup(lender().slice(slice(1, 2))),
    "dup": lambda: dup(shared_input()),
    "a lazy number": lambda: scale(empty((2, 3)).partition((2, 3)), value(3.0), shared_input()).first().unpartition(),
    "placed": lambda: twice_scaled().on(place(1)),
    "policies": lambda: both(arange(6).reshape((2, 3))),
}


@pytest.mark.parametrize("name", REUSABLE)
def test_a_second_run_needs_no_trace(name: str) -> None:
    """One trace for three runs; each gives what an op that is built anew gives."""
    op = REUSABLE[name]()
    with traces() as count:
        results = [op.sync() for _ in range(3)]
    assert count.now == 1
    wanted = contents(REUSABLE[name]().sync())
    assert [contents(result) for result in results] == [wanted] * 3


@pytest.mark.parametrize("name", REUSABLE)
def test_a_second_await_needs_no_trace(name: str) -> None:
    """A second `await` in a trio task makes no trace; each `await` is a checkpoint."""

    async def body() -> list[Any]:
        found = []
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                found.append(await op)
        return found

    op = REUSABLE[name]()
    with traces() as count:
        results = trio.run(body)
    assert count.now == 1
    wanted = contents(REUSABLE[name]().sync())
    assert [contents(result) for result in results] == [wanted] * 3


NUMBERS = [1.0]
TUPLE = (1, 2.0, "three")

NOT_REUSABLE: dict[str, Callable[[], Op]] = {
    "then": lambda: ones((2,)).then(dup),
    "map": lambda: zip_ops(ones((2,)), zeros((1,))).map(lambda p: p[0]),
    "inspect": lambda: ones((2,)).inspect(lambda t: None),
    "host_map": lambda: value(1).host_map(float),
    "host_map at the end": lambda: ones((2,)).to_host().host_map(lambda a: a + 1),
    "a list": lambda: zip_ops(ones((2,)), value(NUMBERS)),
    "a lazy number from the device": lambda: scale(
        empty((2, 3)).partition((2, 3)), ones((1,)).to_host().map(lambda a: float(a[0])), shared_input()
    ).first(),
}


@pytest.mark.parametrize("name", NOT_REUSABLE)
def test_what_a_second_trace_might_see_otherwise_is_traced(name: str) -> None:
    """Closures, what can be changed in place, what waits for host data: one trace for each run."""
    op = NOT_REUSABLE[name]()
    with traces() as count:
        results = [op.sync() for _ in range(2)]
    assert count.now == 2
    assert [contents(result) for result in results] == [contents(NOT_REUSABLE[name]().sync())] * 2


def test_closures_are_called_in_each_run() -> None:
    """Closures are called in each run, because their results may change from run to run."""
    sizes = iter((1, 2, 3))
    op = value(None).then(lambda _: zeros((next(sizes),)))
    assert [op.sync().shape for _ in range(3)] == [(1,), (2,), (3,)]


def test_a_list_in_a_value_is_the_op_s_own() -> None:
    """Whoever runs the `Value` itself gets a copy: what he changes reaches no other run."""
    held: Any = value([1.0, 2.0])
    op = scale(empty((2, 3)).partition((2, 3)), held.first(), shared_input()).first().unpartition().to_host()
    before = op.sync()
    held.sync()[0] = 3.0
    assert (before[0, 0], op.sync()[0, 0]) == (1.0, 1.0)


def test_a_plain_value_is_the_same_object() -> None:
    """In the second run as in the first."""
    op = zip_ops(value(TUPLE), value(shared_input()), zeros((1,)))
    for _ in range(2):
        plain, shared, _ = op.sync()
        assert plain is TUPLE
        assert shared is shared_input()


def test_results_of_different_runs_share_no_memory() -> None:
    """A change of one result affects neither the other results nor later runs."""
    op = zip_ops(twice_scaled(), twice_scaled().share(), twice_scaled().partition((1, 3)))
    wanted = contents(op.sync())
    first, second, third = op.sync(), op.sync(), op.sync()
    for result in (first, third):
        fill(result[0], 9).sync()
        fill(result[1].try_unwrap(), 9).sync()
        fill(result[2].unpartition(), 9).sync()
    assert contents(second) == wanted
    assert contents(op.sync()) == wanted


def test_a_result_is_owned_like_any_other() -> None:
    """A handle that a repeated run gives moves, borrows and complains as the first run's did."""
    op = zeros((3,))
    said = []
    for t in (op.sync(), op.sync()):
        assert t.borrow().to_host().sync().tolist() == [0, 0, 0]
        t.share()
        with pytest.raises(MovedError) as caught:
            t.borrow()
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert f"made at {__file__}" in said[1]


def test_random_numbers_without_a_seed_differ() -> None:
    """A seed is drawn for each run, also where the run needs no trace."""
    op = rand((16,)).to_host()
    with traces() as count:
        assert len({bits(op.sync()) for _ in range(4)}) == 4
    assert count.now == 1


# ---- random ops


@given(shapes.flatmap(pure), st.sampled_from([SingleStream(), RoundRobin(3)]), st.booleans())
def test_a_random_op_is_traced_once_and_gives_the_same(e: Expr, policy: Any, to_host: bool) -> None:
    """Three runs, one trace, and each time what NumPy gives, whatever becomes of the other results."""
    plans.clear()
    b = Building()
    with use_interpreter(StreamInterpreter(policy=policy)):
        op = build(e, b).to_host() if to_host else build(e, b)
        with traces() as count:
            results: list[Any] = [op.sync() for _ in range(3)]
        assert count.now == 1
        if not to_host:
            fill(results[1], 17).sync()
            del results[1]
    wanted = bits(evaluated(e, Evaluation()))
    assert [bits(r if to_host else r.to_host().sync()) for r in results] == [wanted] * len(results)


def forget(*_arguments: object) -> None:
    """Stands for looking up what earlier runs have left."""


def outcomes(e: Expr, *, reuse: bool) -> list[Any]:
    """Return the outcomes of three runs of one op: bits, or the kind of error, and the contents of written tensors."""
    b = Building()
    op = build(e, b).to_host()
    found: list[Any] = []
    kept = nullcontext() if reuse else patch.multiple(plan_lookup, _attached_plans=forget, _cache_of=forget)
    with kept:
        for _ in range(3):
            try:
                found.append(bits(op.sync()))
            except DagpuError as error:
                found.append(type(error))
    return found + [bits(tensor.to_host().sync()) for tensor in b.written]


@given(descriptions)
def test_nobody_can_tell(e: Expr) -> None:
    """Any op at all, closures and writes included, behaves in three runs as it would without anything being kept."""
    plans.clear()
    assert outcomes(e, reuse=True) == outcomes(e, reuse=False)
