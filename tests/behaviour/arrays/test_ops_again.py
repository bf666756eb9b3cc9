"""Functions of several launches are ops like any other: they run again, are planned once, and follow sources."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import trio
from numpy.testing import assert_array_equal

from dagpu import array, f32, from_host, observe, pipeline, source
from dagpu.testing import plans
from tests.simulated.each_device import where as where

VALUES: Final = np.random.default_rng(3).permutation(5000).astype(f32).reshape(4, 1250)

FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "argmax": array.argmax,
    "argmax of rows": lambda x: array.argmax(x, 1),
    "cumsum": array.cumsum,
    "cumsum of rows": lambda x: array.cumsum(x, 1),
    "softmax": array.softmax,
    "sort": array.sort,
    "argsort": array.argsort,
    "topk": lambda x: array.topk(x, 3).first(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_op_of_several_launches_runs_again(where: Any, name: str) -> None:
    """The same op, one more of its structure, and a pipeline of it all give the result, from one plan each."""
    call = FUNCTIONS[name]
    expected = call(from_host(VALUES)).to_host().sync()
    op = call(from_host(VALUES)).to_host()
    for _ in range(3):
        assert_array_equal(op.sync(), expected)
    before = plans.info()
    for _ in range(4):
        assert_array_equal(call(from_host(VALUES)).to_host().sync(), expected)
    assert plans.info().misses == before.misses + 1  # for this place in the program
    step = pipeline(call)
    shared = from_host(VALUES).sync().share()
    for _ in range(4):
        assert_array_equal(step(shared).to_host().sync(), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_op_of_several_launches_follows_a_source(where: Any, name: str) -> None:
    """A feed has the result for each value of the source."""
    call = FUNCTIONS[name]
    values = source(VALUES)

    async def main() -> None:
        async with observe(call(values.then(from_host)).to_host(), check=True) as feed:
            for array_now in (VALUES, VALUES[::-1].copy(), VALUES + 1):
                values.set(array_now)
                assert_array_equal(await feed.next(), await call(from_host(array_now)).to_host())

    trio.run(main)
