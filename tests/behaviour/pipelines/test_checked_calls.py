"""`@pipeline(check=True)`: each call is compared with a run from scratch."""

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import UpdateError, f32, from_host, ones, pipeline, rand, source, use_device, zeros, zip_ops
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, scaled, shared, tensor
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import installed

GAIN: list[float] = [1.0]
"""What functions of the tests below read although it is no argument."""


@pytest.fixture(autouse=True)
def the_same_gain() -> None:
    GAIN[:] = [1.0]


def differs() -> Any:
    return pytest.raises(
        UpdateError,
        match=r"<pipeline .* at .*\.py:\d+>, called at .*\.py:\d+, differs from a run from scratch: a function of it "
        "reads what it is not given.* Make what it reads an argument",
    )


def test_a_global_that_changes_is_found() -> None:
    """The call that would have a stale result raises, with the pipeline, the place and the cure; without the check it
    has that result."""
    plain, checked = (Calls(lambda x: scaled(GAIN[0], x).to_host(), check=check) for check in (False, True))
    for p in (plain, checked):
        assert [p(shared(2)).sync()[0, 0] for _ in range(3)] == [2, 2, 2]
    GAIN[0] = 3.0
    assert plain(shared(2)).sync()[0, 0] == 2
    for _ in range(2):
        with differs():
            checked(shared(2)).sync()
    GAIN[0] = 1.0
    assert checked(shared(2)).sync()[0, 0] == 2


def test_a_captured_array_that_is_replaced_is_found() -> None:
    """Also one that is closed over, and in a task."""
    held = [np.ones(S, f32)]
    p = pipeline(check=True)(lambda x: added(from_host(x), from_host(held[0])).to_host())
    x = np.ones(S, f32)

    async def main() -> None:
        assert (await p(x))[0, 0] == 2
        held[0] = np.full(S, 5, f32)
        with differs():
            await p(x)

    trio.run(main)


def test_what_is_written_is_compared_too() -> None:
    """A tensor that is lent for writing is written once by each call, and what the call wrote is compared."""
    p = pipeline(check=True)(lambda m: axpy(m.partition(S), GAIN[0], ones(S)).map(lambda _: None))
    w = tensor()
    for n in range(1, 4):
        p(w.borrow_mut()).sync()
        assert number_in(w) == n
    GAIN[0] = 2.0
    with differs():
        p(w.borrow_mut()).sync()


def test_arguments_that_move_are_used_up_once() -> None:
    """An owned tensor, a partition of one, a borrow, an array and a number: the results are those of an unchecked
    pipeline."""

    def f(t: Any, out: Any, lent: Any, x: Any, k: Any) -> Any:
        return zip_ops(axpy(out, k, t).first().unpartition(), added(lent, from_host(x)).to_host())

    plain, checked = pipeline(f), pipeline(check=True)(f)
    lender = tensor(7)
    for k in range(4):
        results = []
        for p in (plain, checked):
            owned = tensor(1)
            x = np.full(S, k, f32)
            made, array = p(owned, zeros(S).partition(S).sync(), lender.borrow(), x, float(k)).sync()
            results.append((number_in(made), array.tobytes()))
            with pytest.raises(Exception, match=r"was moved by pipeline f\(\)"):
                owned.borrow()
        assert results[0] == results[1]


def test_the_first_of_two_values_of_a_source_is_not_compared_with_the_second() -> None:
    """A source among the arguments may change at any time; a call reads one value of it."""
    level = source(1.0)
    p = pipeline(check=True)(lambda x, s: scaled(s, x).to_host())
    for n in range(4):
        level.set(float(n))
        assert p(shared(2), level).sync()[0, 0] == 2 * n


def test_random_numbers_need_a_seed() -> None:
    """With one they are the same in both runs; without one they differ, and the cure says so."""
    seeded = pipeline(check=True)(lambda x: added(x, rand(S, seed=3)))
    for _ in range(3):
        seeded(shared()).sync()
    unseeded = pipeline(check=True)(lambda x: added(x, rand(S)))
    with pytest.raises(UpdateError, match="and give random numbers a seed"):
        unseeded(shared()).sync()


def test_a_part_of_another_op_is_traced_with_it() -> None:
    """No plan of such an op is kept, so it is never stale."""
    p = Calls(lambda x: scaled(GAIN[0], x), check=True)
    for gain in (1.0, 3.0):
        GAIN[0] = gain
        assert zip_ops(p(shared(2)).to_host(), ones(S)).first().sync()[0, 0] == 2 * gain
    assert p.count == 2


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0])), min_size=1, max_size=6))
def test_a_call_raises_exactly_where_an_unchecked_one_is_stale(calls: list[tuple[int, float]]) -> None:
    """Whatever a function reads, and in whatever order it changes: on the host and on a simulated GPU."""
    for place in (use_device("host"), installed(seed=2)):
        with place:
            plain, checked = (Calls(lambda x: scaled(GAIN[0], x).to_host(), check=check) for check in (False, True))
            for number, gain in calls:
                GAIN[0] = gain
                stale = plain(shared(number)).sync()[0, 0] != number * gain
                try:
                    assert checked(shared(number)).sync()[0, 0] == number * gain
                except UpdateError:
                    assert stale
                else:
                    assert not stale
