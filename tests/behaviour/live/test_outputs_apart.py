"""Memory that a later trace takes over is that of the same value: the outputs of one kernel are two values, and so are
the results of one function that is given the same things in another order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import In, Out, Tile, empty, f32, from_host, kernel, observe, source, zip_ops
from tests.behaviour.live.live_kernels import TILE, N, Op, array, flipped
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same

pytestmark = pytest.mark.host_only("kernels' host bodies")


@kernel(
    cuda="__global__ void around(Tile<float, 1> up, Tile<float, 1> down, View<const float, 1> x)"
    " { for (auto i : up) { up[i] = x[i] + 2.0f; down[i] = x[i] - 2.0f; } }"
)
def around(up: Out[f32], down: Out[f32], x: In[f32]) -> None: ...


@around.host
def _(up: Tile[f32], down: Tile[f32], x: NDArray[f32]) -> None:
    up[...] = x[up.at] + f32(2)
    down[...] = x[down.at] - f32(2)


def out() -> Any:
    return empty((N,)).partition(TILE)


async def follow(build: Callable[[], Op], *changed: Any) -> None:
    """Observe an op, and hold each value against a new op's while these sources change in turn."""
    async with observe(build()) as feed:
        for number in range(5):
            assert same(await feed.next(), await build()), f"after {number} changes"
            changed[number % len(changed)].set(array(20 + number, 3))


@pytest.mark.parametrize("kind", MACHINES)
def test_the_outputs_of_one_kernel_stay_apart(kind: str) -> None:
    """Beside them is a part with a closure that needs data from the device: the op is traced in each update, and what
    has not changed is found again by what makes it."""

    def build() -> Op:
        up, down, _ = around(out(), out(), b.then(from_host).shared()).unzip()
        first, second = flipped(up.unpartition()).shared(), flipped(down.unpartition()).shared()
        beside = flipped(a.then(from_host)).to_host().map(lambda v: v + np.float32(3)).shared()
        return zip_ops(first.to_host(), second.to_host(), flipped(second).to_host(), beside)

    with machine(kind), explored(kind, 0):
        a, b = source(array(1)), source(array(10, 1))
        trio.run(follow, build, a, a, b)


@pytest.mark.parametrize("kind", ["host", "explore"])
def test_a_function_of_the_host_is_told_apart_by_the_order_of_its_arguments(kind: str) -> None:
    """One function is given the same two arrays in both orders."""

    def less(pair: Any) -> Any:
        return pair[0] - np.float32(2) * pair[1]

    def build() -> Op:
        x, y = (flipped(each.then(from_host)).shared() for each in (a, b))
        first, second = zip_ops(x.to_host(), y.to_host()).unzip()
        pairs = zip_ops(second, first), zip_ops(x.to_host(), y.to_host())
        one, other = (each.host_map(less).then(from_host).shared() for each in pairs)
        beside = flipped(c.then(from_host)).to_host().map(lambda v: v + np.float32(3)).shared()
        return zip_ops(flipped(one).to_host(), flipped(other).to_host(), beside)

    with machine(kind), explored(kind, 0):
        a, b, c = source(array(1)), source(array(10, 1)), source(array(5))
        trio.run(follow, build, c, c, a)
