"""Random DAGs against an independent evaluation in NumPy: bit for bit the same, whatever the schedule."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import RoundRobin, SchedulingPolicy, SingleStream, plan_of
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Building, Expr, bits, build
from tests.programs.strategies import descriptions, policies


@settings(max_examples=200)
@given(descriptions, policies)
def test_a_run_gives_what_numpy_gives(e: Expr, policy: SchedulingPolicy) -> None:
    """Whatever the DAG and the policy, the result and all that is written outside are NumPy's, to the bit."""
    assert run(e, policy) == expected(e)


@settings(max_examples=50)
@given(descriptions, policies)
def test_await_gives_what_numpy_gives(e: Expr, policy: SchedulingPolicy) -> None:
    """In a trio task the result and all that is written outside are NumPy's, to the bit."""
    assert run(e, policy, under_trio=True) == expected(e)


@settings(max_examples=40)
@given(descriptions)
def test_every_policy_gives_the_same_bits(e: Expr) -> None:
    """A schedule decides when and where, never what."""
    every: list[SchedulingPolicy] = [SingleStream(), *map(RoundRobin, range(1, 5))]
    results = [run(e, policy) for policy in every]
    assert all(result == results[0] for result in results)


@settings(max_examples=40)
@given(descriptions, st.booleans())
def test_planning_changes_nothing(e: Expr, twice: bool) -> None:
    """`plan_of` and `explain` leave an op as it was: its run gives what it gives without them."""
    b = Building()
    op = build(e, b).to_host()
    plan_of(op)
    if twice:
        assert op.explain()
    assert [bits(op.sync()), *[bits(tensor.to_host().sync()) for tensor in b.written]] == expected(e)
