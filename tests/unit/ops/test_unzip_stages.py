"""Components of an `unzip` that need different numbers of stages: whichever is taken first, the source runs once.

A stage ends where a closure needs data of the host. All small combinations are tried: what the two components are, how
the source is built around them, and how they are taken.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from dagpu import DeviceOp, ShapeError, Tensor, dup, from_host, use_device, value, zeros, zip_ops
from dagpu.ops.compose import Unzip
from tests.behaviour.laws.marked_ops import PATIENCE, marked
from tests.simulated.cuda import installed
from tests.support.marks import MARKS

Op = DeviceOp[Any, Any, Any]


@pytest.fixture(autouse=True)
def no_marks() -> None:
    MARKS.clear()


def noted(number: int) -> Callable[[Any], Any]:
    """A function for `host_map` that leaves a mark and gives its argument."""

    def f(x: Any) -> Any:
        MARKS.leave(number)
        return x

    return f


LEAVES: dict[str, Callable[[int], Op]] = {
    "a number": lambda n: value(float(n)),
    "a tensor": marked,
    "an array": lambda n: marked(n).to_host(),
    "a result of the host": lambda n: value(float(n)).host_map(noted(n)),
    "through the host": lambda n: marked(n).to_host().then(from_host),
    "through the host twice": lambda n: marked(n).to_host().then(from_host).then(dup).to_host().map(np.copy),
}
"""A component with the number `n` in it; all but the first leave the mark `n` when they run."""


def plain(a: Op, b: Op) -> tuple[Op, Op]:
    """The components of a zip."""
    left, right = zip_ops(a, b).unzip()
    return left, right


def of_shared(a: Op, b: Op) -> tuple[Op, Op]:
    """Components that are remembered elsewhere as well."""
    return plain(a.shared(), b.shared())


def then_shared(a: Op, b: Op) -> tuple[Op, Op]:
    """Each component shared, as a program does that uses one twice."""
    left, right = plain(a, b)
    return left.shared(), right.shared()


def nested(a: Op, b: Op) -> tuple[Op, Op]:
    """An unzip of a zip of the components of another."""
    return plain(*plain(a, b))


def of_a_closure(a: Op, b: Op) -> tuple[Op, Op]:
    """The tuple itself comes a stage later."""
    left, right = value(0).host_map(int).then(lambda _: zip_ops(a, b)).unzip(2)
    return left, right


def half_nested(a: Op, b: Op) -> tuple[Op, Op]:
    """One component of an inner unzip within the source of an outer one, the other beside it."""
    inner, right = plain(a, b)
    left, _ = zip_ops(inner, value(0).host_map(int)).unzip()
    return left, right


BUILT = (plain, of_shared, then_shared, nested, of_a_closure, half_nested)


def pair(op: Op) -> tuple[Op, Op]:
    """`unzip(2)`."""
    parts: Any = op.unzip(2)
    return parts[0], parts[1]


def number_of(result: Any) -> float:
    """The number in a component."""
    array = result.to_host().sync() if hasattr(result, "to_host") else result
    return float(np.ravel(array)[0])


def in_threads(left: Op, right: Op) -> tuple[Any, Any]:
    """Both at the same time."""
    both = threading.Barrier(2)

    def run(op: Op) -> Any:
        both.wait(PATIENCE)
        return op.sync()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(run, left), pool.submit(run, right)
        return first.result(PATIENCE), second.result(PATIENCE)


def in_tasks(left: Op, right: Op) -> tuple[Any, Any]:
    """Both at the same time, in two tasks of one loop."""
    found: dict[Op, Any] = {}

    async def run(op: Op) -> None:
        found[op] = await op

    async def both() -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, left)
                nursery.start_soon(run, right)

    trio.run(both)
    return found[left], found[right]


TAKEN: dict[str, Callable[[Op, Op], tuple[Any, Any]]] = {
    "left first": lambda left, right: (left.sync(), right.sync()),
    "right first": lambda left, right: (right.sync(), left.sync())[::-1],
    "together": lambda left, right: zip_ops(left, right).sync(),
    "in threads": in_threads,
    "in tasks": in_tasks,
}


def check_all(build: Callable[[Op, Op], tuple[Op, Op]], take: Callable[[Op, Op], tuple[Any, Any]]) -> None:
    """Every pair of leaves, so built and so taken: right values, and each leaf has run once."""
    for (name, a), (other, b) in product(LEAVES.items(), repeat=2):
        MARKS.clear()
        results = take(*build(a(3), b(5)))
        assert tuple(map(number_of, results)) == (3.0, 5.0), (name, other)
        marks = [n for n, kind in ((3, name), (5, other)) if kind != "a number"]
        assert Counter(MARKS.seen()) == Counter(marks), (name, other)


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("build", BUILT)
def test_components_of_any_stages_are_taken_in_any_order(build: Callable[[Op, Op], tuple[Op, Op]], taken: str) -> None:
    """Whatever the components are and however they are taken, each is right and the source has run once."""
    check_all(build, TAKEN[taken])


@pytest.mark.host_only("they run on devices of their own")
@pytest.mark.parametrize("taken", ["right first", "together"])
@pytest.mark.parametrize("build", BUILT)
def test_components_of_any_stages_on_other_devices(build: Callable[[Op, Op], tuple[Op, Op]], taken: str) -> None:
    """Components of any stages also work on the explore device and on a simulated GPU."""
    with use_device("explore:0"):
        check_all(build, TAKEN[taken])
    with installed(0, 1):
        check_all(build, TAKEN[taken])


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_stage_that_does_not_end_well_is_not_remembered(how: str, taken: int) -> None:
    """The first run fails, or is cancelled, in the later stage of one component: the next runs evaluate the source
    anew, and both components come."""
    entered, release = threading.Event(), threading.Event()
    first = True

    def f(array: Any) -> Any:
        nonlocal first
        if first:
            first = False
            entered.set()
            if how == "fails":
                raise ValueError("the first time")
            assert release.wait(PATIENCE)
        return array

    parts = plain(marked(1).to_host().host_map(f).then(from_host), marked(2))

    async def cancelled() -> None:
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await parts[taken]

            nursery.start_soon(run)
            assert await trio.to_thread.run_sync(entered.wait, PATIENCE)
            nursery.cancel_scope.cancel()
            release.set()

    if how == "fails":
        with pytest.raises(ValueError, match="the first time"):
            parts[taken].sync()
    else:
        trio.run(cancelled)
    assert [number_of(parts[index].sync()) for index in (taken, 1 - taken)] == [1.0 + taken, 2.0 - taken]
    marks = Counter(MARKS.seen())
    assert marks[1] == 2
    assert marks[2] == 2 or (how, marks[2]) == ("is cancelled", 1)  # a kernel that had not begun by then never begins


def test_a_component_that_nobody_can_take_runs_all_the_same() -> None:
    """The source runs whole, whether or not somebody still holds the op of the other component."""
    calls: list[float] = []
    right = plain(marked(1).to_host().host_map(lambda a: calls.append(float(a[0]))), marked(2))[1]
    assert number_of(right.sync()) == 2.0
    assert calls == [1.0]


def test_no_component_is_left_claimed() -> None:
    """After a run has ended, another thread does not wait for any component that the run has begun."""
    left, right = plain(marked(1).to_host().then(from_host), marked(2))
    right.sync()
    assert isinstance(left, Unzip)
    assert left.split.once.owner is None
    assert left.split.once.remembers()


@pytest.mark.parametrize("made", [(), (1,), (1, 2, 3), [1], 4, "ab", None])
def test_the_number_of_components_is_checked_when_they_come(made: Any) -> None:
    """A tuple of another length than `unzip(n)` says is refused, in the same words, whether it is there when the op is
    traced or comes in a later stage."""
    said = []
    for op in (value(0).map(lambda _: made), value(0).host_map(lambda _: made)):
        part, _ = pair(op)
        with pytest.raises(
            ShapeError, match=r"unzip\(2\).*(Say unzip\([13]\)|Let the op return a tuple of 2)\."
        ) as caught:
            part.sync()
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_component_may_be_a_list() -> None:
    """The items of a list are components as those of a tuple are, in the first stage and in a later one."""
    for op in (value(0).map(lambda _: [1, 2]), value(0).host_map(lambda _: [1, 2])):
        left, right = pair(op)
        assert (right.sync(), left.sync()) == (2, 1)


def test_a_component_of_a_later_stage_is_owned() -> None:
    """It is a `Tensor` like any other, and is taken once."""
    left, right = zip_ops(zeros((2,)).to_host().then(from_host), zeros((2,))).unzip()
    assert isinstance(right.sync(), Tensor)
    assert isinstance(left.sync(), Tensor)
