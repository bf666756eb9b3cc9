"""The structure of ops whose values Python calls equal, and of random ops."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import zeros, zip_ops
from dagpu.testing import plans
from tests.programs.expressions import Building, Call, Change, Expr, Lent, Make, Op, bits, build
from tests.programs.strategies import shapes
from tests.support.reused_ops import pure, renumbered
from tests.unit.tracing.arguments.odd_values import FORMS, ODD, spoken, telling
from tests.unit.tracing.arguments.structure_keys import key


def outcome(op: Op) -> str:
    """Return the result of a run of an op to the last bit, or its message."""
    try:
        return spoken(zip_ops(op, zeros((1,))).sync())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- values that Python calls equal


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_equal_keys_mean_equal_runs(form: str) -> None:
    """Wherever a program may write a value: if two ops that differ in it alone have one key, then each gives, or says,
    after the other has left its plan, what it gives with no plan there."""

    def built(v: Any) -> Op | None:
        try:
            return FORMS[form](v)
        except Exception:  # refused where it is written
            return None

    def fresh() -> None:
        plans.clear()
        telling.cache_clear()

    values = [v for v in ODD if built(v) is not None]
    assert values
    alone = []
    for v in values:
        fresh()
        op = built(v)
        assert op is not None
        alone.append(outcome(op))
    for (i, v), (_, w) in permutations(enumerate(values), 2):
        op, before = built(v), built(w)
        assert op is not None
        assert before is not None
        if key(op) is not None and key(op) == key(before):
            fresh()
            outcome(before)
            assert outcome(op) == alone[i], (v, w)


# ---- random ops


@settings(max_examples=60)
@given(shapes.flatmap(pure), shapes.flatmap(pure), st.integers(1, 5))
def test_keys_of_random_ops(e: Expr, other: Expr, by: int) -> None:
    """Two ops of one description have one key, whatever their numbers and contents; of two descriptions, two."""

    def keyed(e: Expr) -> object:
        return key(build(e, Building()))

    if keyed(e) is not None:
        assert keyed(e) == keyed(renumbered(e, by))
        if by_shape(e) != by_shape(other):
            assert keyed(e) != keyed(other)


def by_shape(e: Expr) -> object:
    """A description without what may differ in one key."""
    match e:
        case Call():
            return e.kernel, e.shape, e.tile, by_shape(e.x), by_shape(e.y)
        case Change():
            return e.how, e.number if e.how == "zip last" else None, by_shape(e.x)
        case Lent(make):
            return "lent", make.shape
        case Make(shape, how, number):
            return how, shape, number if how in ("full", "linspace") else None
        case _:
            return repr(e)


@settings(max_examples=60)
@given(shapes.flatmap(pure), st.lists(st.integers(-3, 3), min_size=2, max_size=3))
def test_a_plan_found_by_structure_gives_the_same(e: Expr, steps: list[int]) -> None:
    """A loop that builds the same DAG anew, with other numbers and contents, gives what no cache gives."""

    def run(by: int) -> Any:
        return bits(build(renumbered(e, by), Building()).to_host().sync())

    fresh = []
    for by in steps:
        plans.clear()
        fresh.append(run(by))
    plans.clear()
    assert [run(by) for by in steps] == fresh
