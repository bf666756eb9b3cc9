"""Pipelines that are called with sources: one plan for all values, and the value of the instant of each run."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import expr, f32, from_host, full, observe, pipeline, source, zip_ops
from tests.simulated.each_device import PLACES
from tests.simulated.each_device import where as where

pytestmark = pytest.mark.filterwarnings("error")


@expr(f32, f32)
def scaled(x: Any, a: Any) -> Any:
    return x * a


def nested(x: Any, pair: Any, by: float, y: Any) -> Any:
    """x * pair[0] * pair[1] * by, and y: sources, numbers and tensors in any order."""
    return zip_ops(scaled(scaled(scaled(x, pair[0]), pair[1]), by), scaled(y, 1.0))


def tensor(number: float, size: int = 3) -> Any:
    return full((size,), number).sync()


@pytest.mark.parametrize("place", ["here", pytest.param("simulated GPU", marks=pytest.mark.host_only("its own"))])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_call_reads_its_sources(place: str, data: st.DataObject) -> None:
    """Whatever was set before, and whichever arguments are sources, the result is that of the values."""
    numbers = st.integers(1, 4)
    with ExitStack() as stack:
        stack.enter_context(PLACES[place]())
        step = pipeline(nested)
        a, b, x = source(1.0), source(2.0), source(tensor(1.0))
        for _ in range(data.draw(st.integers(1, 5))):
            values = [float(data.draw(numbers)) for _ in range(5)]
            a.set(values[0])
            b.set(values[1])
            x.set(tensor(values[2]))
            first: Any = data.draw(st.sampled_from([a, values[0]]))
            second: Any = data.draw(st.sampled_from([b, a, values[1]]))
            given_x: Any = x if data.draw(st.booleans()) else tensor(values[2])
            given_y: Any = x if data.draw(st.booleans()) else tensor(values[3])
            found, other = step(given_x, (first, second), values[4], given_y).sync()
            wanted = values[2] * values[0] * (values[0] if second is a else values[1]) * values[4]
            assert_array_equal(found.to_host().sync(), np.full(3, wanted, f32))
            assert_array_equal(other.to_host().sync(), np.full(3, values[2] if given_y is x else values[3], f32))


def test_one_plan_serves_all_values(where: Any) -> None:
    """The function is called once; a tensor or array of another shape gets a plan of its own."""
    counted: list[None] = []

    @pipeline
    def step(x: Any, a: Any) -> Any:
        counted.append(None)
        return scaled(x, a)

    a, x = source(1.0), source(tensor(1.0))
    for number in range(5):
        a.set(float(number))
        x.set(tensor(number + 1.0))
        assert_array_equal(step(x, a).to_host().sync(), np.full(3, number * (number + 1), f32))
    assert len(counted) == 1
    x.set(tensor(2.0, 5))
    assert_array_equal(step(x, a).to_host().sync(), np.full(5, 8, f32))
    assert len(counted) == 2


def test_arrays_and_other_values(where: Any) -> None:
    """An array is copied as the run finds it; a text or a tuple gets a plan for each value."""

    @pipeline
    def step(x: Any, kind: Any) -> Any:
        return zip_ops(x.then(from_host), kind).then(lambda both: scaled(both[0], 2.0 if both[1] == ("a", 1) else 3.0))

    x, kind = source(np.zeros(2, f32)), source(("a", 1))
    for number in range(4):
        x.set(np.full(2, number, f32))
        kind.set(("a", number % 2))
        found = step(x, kind).to_host().sync()
        assert_array_equal(found, np.full(2, number * (2.0 if number % 2 else 3.0), f32))


def test_a_feed_of_a_pipeline_over_sources(where: Any) -> None:
    """It has the values of all revisions."""
    step, a, seen = pipeline(scaled), source(1.0), []
    x = tensor(3.0).share()

    async def main() -> None:
        async with observe(step(x, a).to_host()) as feed:
            async for array in feed:
                seen.append(float(array[0]))
                if len(seen) == 3:
                    return
                a.set(len(seen) + 1.0)

    trio.run(main)
    assert seen == [3.0, 6.0, 9.0]
