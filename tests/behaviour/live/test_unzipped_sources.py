"""`unzip()` of an op over sources: its components are those of the run's snapshot, in plain runs and in feeds."""

from collections import Counter
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DeviceOp,
    MovedError,
    SharedTensor,
    Source,
    Tensor,
    f32,
    from_host,
    observe,
    pipeline,
    source,
    value,
    zip_ops,
)
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_kernels import Op, array, flipped, gathered
from tests.behaviour.live.live_trials import machine
from tests.support.marks import MARKS

pytestmark = pytest.mark.host_only("kernels' host bodies")

KINDS = ("host", "simulated")


@pipeline
def two_of(x: SharedTensor[f32]) -> DeviceOp[tuple[Tensor[f32], Tensor[f32]]]:
    return zip_ops(flipped(x), gathered(x))


def halves(given: Source[Any]) -> tuple[Op, Op]:
    """The components of a pair of tensors over a source, each shared."""
    first, second = zip_ops(marked(1, given), marked(2, given)).unzip(2)
    return first.shared(), second.shared()


def tensor(number: float) -> Any:
    """A tensor of two elements, shared."""
    return from_host(array(number)[:2]).sync().share()


def numbers(result: Any) -> list[float]:
    """The first elements of a result's arrays."""
    return [float(each[0]) for each in result]


@pytest.mark.parametrize("kind", KINDS)
def test_components_follow_the_source(kind: str) -> None:
    """After `set`, a plain run computes the pair again, once, and a feed has the same values."""
    with machine(kind):
        tensors = [tensor(number) for number in range(4)]
        given = source(tensors[0])
        first, second = halves(given)
        op = zip_ops(first.to_host(), second.to_host())
        for number, each in enumerate(tensors):
            given.set(each)
            MARKS.clear()
            assert numbers(op.sync()) == numbers(op.sync()) == [number + 1, number + 2]
            assert sorted(MARKS.seen()) == [1, 2]

        async def main() -> None:
            async with observe(op) as feed:
                for number, each in enumerate(tensors):
                    given.set(each)
                    assert numbers(await feed.next()) == numbers(await op) == [number + 1, number + 2]

        trio.run(main)


@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(("set", "other", "first", "second", "both")), max_size=12))
def test_components_of_one_snapshot(steps: list[str]) -> None:
    """In any order of runs that use one component, the other, or both, and of changes of the pair's source and of
    another one, each value is that of the newest revision, and the pair is made at most once for each."""
    given, other = source(0), source(0)
    calls: Counter[int] = Counter()

    def pair(x: int) -> tuple[int, int]:
        calls[x] += 1
        return x + 1, x + 2

    parts = given.map(pair).unzip(2)
    first, second = (part.map(lambda x: x).shared() for part in parts)
    wholes = {"first": first, "second": second, "both": zip_ops(first, second)}
    for number, step in enumerate(steps):
        if step == "set":
            given.set(number + 1)
        elif step == "other":
            other.set(number + 1)
        else:
            x = given.get()
            wanted = {"first": x + 1, "second": x + 2, "both": (x + 1, x + 2)}[step]
            assert zip_ops(wholes[step], other).sync() == (wanted, other.get())
    assert max(calls.values(), default=0) <= 1


def test_a_component_is_taken_once_for_each_snapshot() -> None:
    """A component that is not shared belongs to the run that takes it; after `set` there is another one."""
    given = source(tensor(1))
    first, second = zip_ops(marked(1, given), marked(2, given)).unzip(2)
    op = zip_ops(first.to_host(), second.to_host())
    assert numbers(op.sync()) == [2, 3]
    with pytest.raises(MovedError, match="taken before"):
        op.sync()
    given.set(tensor(5))
    assert numbers(op.sync()) == [6, 7]


def test_a_run_that_fails_puts_its_component_back() -> None:
    """A component that a run takes and that another snapshot has replaced meanwhile is not put into the new pair."""
    given = source(1)
    first, second = given.map(lambda x: (x, 10 * x)).unzip(2)
    assert first.sync() == 1

    def change(_: int) -> Op:
        raise KeyError(0)

    failing = second.map(lambda x: x).then(lambda x: value(x).map(lambda _: change(0)))
    with pytest.raises(KeyError):
        failing.sync()
    assert second.sync() == 10
    given.set(2)
    assert (first.sync(), second.sync()) == (2, 20)


@pytest.mark.filterwarnings("ignore:.*by which no plan can be found:RuntimeWarning")
def test_components_that_wait_for_another_run_are_remembered_when_they_are_made() -> None:
    """Both halves of what a pipeline gives are taken before they exist: the call waits for a tensor that the op beside
    it makes. They are remembered once they are made, for the sources that they depend on."""
    given, other = source(array(1)), source(array(5))
    loaded = given.then(from_host).shared()
    below: Any = gathered(loaded).shared()
    first, second = two_of(below).unzip(2)
    on_host = other.host_map(lambda x: -x)
    op = zip_ops(gathered(below).to_host(), on_host, first.shared().to_host(), second.shared().to_host())
    for number in range(3):
        given.set(array(number))
        below_now = 1 + number / 4
        wanted = [1 + below_now / 4, -5, 1 - below_now, 1 + below_now / 4]
        assert numbers(op.sync()) == numbers(op.sync()) == wanted
