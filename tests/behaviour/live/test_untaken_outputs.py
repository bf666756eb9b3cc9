"""A component of `unzip()` that no op takes in an update: its kernel runs for the others alone. Beside it is a part
with a closure that waits for the device, so each update traces the op, and a later stage may take the component."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from dagpu import from_host, observe, ones, source, zip_ops
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same
from tests.programs.feeds.counted_functions import RUNS, N, Op, constant, first, flip, halve, new, split, three
from tests.programs.feeds.feed_trials import array_of

pytestmark = pytest.mark.host_only("kernels' host bodies")

SPLIT, HALVE, FLIP = 1, 2, 3
"""The numbers of kernels."""


def halved(a: Any, number: int = HALVE) -> Op:
    return first(halve(new(), number, a))


def flipped(a: Any) -> Op:
    return first(flip(new(), FLIP, a))


def components(a: Any) -> list[Op]:
    """The two outputs of one kernel."""
    return [each.unpartition() for each in split(new(), new(), SPLIT, a).unzip()[:2]]


def waiting(a: Op) -> Op:
    """The array of a tensor, through a closure that waits for it."""
    return a.to_host().then(lambda array: from_host(array).to_host())


def names(*numbers: int) -> set[str]:
    return {f"kernel {number}" for number in numbers}


def run(kind: str, build: Callable[[], Op], *steps: tuple[Any, Any, set[str]]) -> None:
    """Observe an op, change a source in each step, and hold each value against that of a new op, and the kernels that
    have run against those of the step."""

    async def main() -> None:
        async with observe(build()) as feed:
            value = await feed.next()
            for at, (changed, content, kernels) in enumerate(steps):
                assert same(value, await build()), f"after {at} changes"
                RUNS.take()
                changed.set(content)
                value = await feed.next()
                assert set(RUNS.take()) == kernels, f"after {at + 1} changes"
            assert same(value, await build())

    with machine(kind), explored(kind, 0):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("start", [lambda: ones((N,)), constant])
def test_a_kernel_of_constants_runs_once(kind: str, start: Callable[[], Op]) -> None:
    """What is made of one component is remembered, so the next trace leaves the component alone."""
    a = source(array_of(1))

    def build() -> Op:
        one, other = components(start().shared())
        return zip_ops(halved(a.then(from_host), 4).to_host(), halved(one).shared().to_host(), waiting(other))

    run(kind, build, *[(a, array_of(number), names(4)) for number in (2, 3, 4)])


@pytest.mark.parametrize("kind", MACHINES)
def test_a_component_that_a_closure_lets_go_is_not_made(kind: str) -> None:
    """Once the closure takes something else; and it is made when the closure takes the component again."""
    a, b = source(array_of(1)), source(1)

    def build() -> Op:
        given = a.then(from_host).shared()
        one, other = components(given)
        chosen = b.then(lambda v: halved(one) if v > 0 else flipped(given))
        return zip_ops(chosen.to_host(), waiting(other))

    again = names(SPLIT, HALVE)
    run(kind, build, (b, 2, set()), (b, -1, names(FLIP)), (b, -2, set()), (b, 1, again), (a, array_of(2), again))


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("how", ["read", "handed out"])
def test_a_component_that_a_later_stage_takes_is_made_once(kind: str, how: str) -> None:
    """A closure takes it first; then one does that waits for the device, when an earlier stage has left it out."""
    a, b, c = source(array_of(1)), source(1), source(array_of(5))

    def build() -> Op:
        beside = c.then(from_host).shared()
        one, other = components(a.then(from_host).shared())
        early = b.then(lambda v: halved(one) if v > 0 else flipped(beside))
        late = b.then(lambda v: flipped(beside) if v > 0 else halved(one) if how == "read" else one)
        waits = beside.to_host().then(lambda _: late)
        return zip_ops(early.to_host(), waiting(other), waits.to_host())

    read = names(HALVE) if how == "read" else set[str]()
    run(
        kind, build,
        (b, -1, names(SPLIT)),
        (b, -2, set()),
        (c, array_of(6), names(FLIP)),
        (a, array_of(2), names(SPLIT) | read),
        (b, 1, set() if how == "read" else names(SPLIT, HALVE)),
    )  # fmt: skip


@pytest.mark.parametrize("kind", MACHINES)
def test_two_components_that_a_later_stage_takes_are_made_by_one_run(kind: str) -> None:
    """The kernel makes all of its outputs, so the second one is there when it is taken."""
    a, b, c = source(array_of(1)), source(1), source(array_of(5))

    def build() -> Op:
        beside = c.then(from_host).shared()
        one, other, third, *_ = three(new(), new(), new(), SPLIT, a.then(from_host).shared(), beside).unzip()
        both = [each.unpartition() for each in (one, other)]
        early = b.then(lambda v: zip_ops(*[halved(each).to_host() for each in both]) if v > 0 else b)
        late = b.then(lambda v: b if v > 0 else zip_ops(*[each.to_host() for each in both]))
        return zip_ops(early, waiting(third.unpartition()), beside.to_host().then(lambda _: late))

    run(kind, build, (b, -1, names(SPLIT)), (b, -2, set()), (a, array_of(2), names(SPLIT)), (b, 1, names(SPLIT, HALVE)))
