"""A kernel that calls a function of the test on the host, so that a run can fail, or stop, in the middle without a
closure."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, kernel, ones, zeros, zip_ops
from tests.behaviour.laws.marked_ops import Op
from tests.support.gates import Gate

CALLED: list[int] = []
"""The numbers of the kernels that have run."""
ACTIONS: dict[int, Callable[[], object]] = {}
"""For the number of a kernel, the function that it calls."""


@kernel(cuda="__global__ void act(Tile<float, 1> y, View<const float, 1> x, int number) {}")
def act(y: Out[f32], x: In[f32], number: int) -> None:
    """y += x + number, after a call of the test's function. On the host alone: no kernel of a GPU waits for Python."""


@act.host
def _(y: Tile[f32], x: NDArray[f32], number: int) -> None:
    CALLED.append(number)
    ACTIONS.get(number, int)()
    y[...] += x[y.at] + f32(number)


def acting(number: int, x: Op | None = None, size: int = 4) -> Op:
    return act(zeros((size,)).partition((size,)), ones((size,)) if x is None else x, number).first().unpartition()


@pytest.fixture(autouse=True)
def nothing_called() -> Iterator[None]:
    """Forget what earlier tests called."""
    CALLED.clear()
    yield
    ACTIONS.clear()


@pytest.fixture(name="gate")
def gate_of_kernel_one() -> Iterator[Gate]:
    """Return a gate in kernel 1. It is opened at the end, so that no thread of a failed test remains."""
    gate = Gate()
    ACTIONS[1] = lambda: gate(None)
    yield gate
    gate.open.set()


def forked(node: Op) -> Op:
    """Return an op with two branches that start from a node."""
    return zip_ops(acting(2, node).to_host(), acting(3, node).to_host())


def lists(result: Any) -> list[list[float]]:
    return [array.tolist() for array in result]
