"""The result of an op is checked as the argument in its place: what a direct argument may not be, it may not be."""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import DagpuError, Tensor, array, expr, f32, foreign, ones, pipeline, plan_of, source, value
from dagpu.interop import new
from dagpu.kernels.annotations import In
from tests.simulated.each_device import where as where

add: Any = expr(f32, f32)(lambda x, y: x + y)
anyhow: Any = array
A: Final = np.arange(3, dtype=f32)


@foreign
def copied(x: In[f32]) -> Tensor[f32]:
    return new(x)


@copied.host
def _(x: Any, out: Any) -> None:
    out[...] = x


def t() -> Any:
    return ones((3,))


def tile() -> Any:
    return ones((3,)).partition((3,))


CALLS: Final[dict[str, Callable[[Any], Any]]] = {
    "expression": lambda x: add(t(), x),
    "its only tensor": lambda x: add(x, 1.0),
    "into": lambda x: add.into(tile(), t(), x),
    "update": lambda x: add.update(tile(), x),
    "reduced": lambda x: add.sum()(t(), x),
    "softmax of it": lambda x: add.softmax()(t(), x),
    "array.sum": lambda x: anyhow.sum(x),
    "array.maximum": lambda x: anyhow.maximum(t(), x),
    "array.take": lambda x: anyhow.take(t(), x),
    "foreign": lambda x: anyhow_copied(x),
}
anyhow_copied: Any = copied


def refused(run: Callable[[], object]) -> str:
    """Return the message of a call that is refused, without lines."""
    with pytest.raises(DagpuError) as caught:
        run()
    return re.sub(r":\d+", "", str(caught.value))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("given", [A, np.arange(4, dtype=f32)], ids=["of the shape", "of another"])
def test_an_op_of_an_array_is_refused_as_the_array(where: Any, name: str, given: Any) -> None:
    """In the trace, before anything is computed, with the words that the array itself gets."""
    call = CALLS[name]
    direct = refused(lambda: call(given))
    assert "Bring it to the device: from_host(array)" in direct
    assert "test_results_as_arguments" in direct
    for op in (value(given), source(given), value(1).map(lambda _: given)):
        assert refused(lambda op=op: plan_of(call(op))) == direct  # type: ignore[misc]  # reason: mypy has no type for a default


@pytest.mark.parametrize("name", ["expression", "into", "update", "reduced", "softmax of it", "array.maximum"])
def test_an_op_of_a_number_is_that_number(where: Any, name: str) -> None:
    """With the results and the plan of the number itself."""

    def run(x: Any) -> Any:
        op = CALLS[name](x)
        return op.first().unpartition() if name in ("into", "update") else op

    expected = run(2.5).to_host().sync()
    for op in (value(2.5), source(2.5), value(1.5).map(lambda x: x + 1)):
        assert_array_equal(run(op).to_host().sync(), expected)
    plans = [plan_of(run(x)) for x in (2.5, value(2.5))]
    kinds = [sorted(type(step).__name__ for step in plan.steps) for plan in plans]
    assert (kinds[0], plans[0].peak_bytes) == (kinds[1], plans[1].peak_bytes)
    steps = [pipeline(lambda x, f=f: run(f(x)).to_host()) for f in (lambda x: x, value)]
    for number in (2.5, 3.5, 2.5):
        assert_array_equal(*[step(number).sync() for step in steps])
    assert steps[0].cache_info() == steps[1].cache_info()


def test_ops_of_numbers_alone_are_refused(where: Any) -> None:
    assert refused(lambda: add(value(1.0), value(2.0)).sync()) == refused(lambda: add(1.0, 2.0))
    assert refused(lambda: anyhow.sum(value(1.0)).sync()) == refused(lambda: anyhow.sum(1.0))
