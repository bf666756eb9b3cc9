"""What a value depends on is what its op says: the sources below it, and those of the ops that closures have returned
below it. What was read before it, or beside it, does not matter."""

from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    DeviceOp,
    SharedTensor,
    Tensor,
    batch,
    cutoff,
    dup,
    f32,
    from_host,
    observe,
    ones,
    pipeline,
    source,
    value,
    zip_ops,
)
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_kernels import N, array, blended, flipped
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same
from tests.support.gates import PATIENCE
from tests.support.marks import MARKS

pytestmark = pytest.mark.host_only("kernels' host bodies")


def test_a_shared_part_stays_when_another_source_changes() -> None:
    """Plain runs call the function behind `host_map` once, and read the other source each time."""
    calls: list[Any] = []

    def slow(v: Any) -> Any:
        calls.append(v)
        return v + f32(1)

    other = source(1.0)
    part: Any = value(array(1)).host_map(slow).shared()
    both = zip_ops(part, other)
    for number in range(4):
        other.set(float(number))
        made, seen = both.sync()
        assert made[0] == 2
        assert seen == number
    assert len(calls) == 1


def test_a_shared_part_that_a_closure_builds_depends_on_what_the_closure_returned() -> None:
    """The source that the closure has read counts, and so does the one of the op that it returned; one that the run
    read before does not."""
    calls: list[float] = []

    def noted(v: float) -> float:
        calls.append(v)
        return v

    first, chosen, inner = source(1.0), source(2.0), source(3.0)
    part = chosen.then(lambda v: inner.map(lambda w: noted(v + w))).shared()
    op = zip_ops(first, part)
    assert op.sync() == (1.0, 5.0)
    first.set(7.0)
    assert op.sync() == (7.0, 5.0)
    inner.set(4.0)
    assert op.sync() == (7.0, 6.0)
    chosen.set(3.0)
    assert op.sync() == (7.0, 7.0)
    assert calls == [5.0, 6.0, 7.0]


def test_a_shared_part_of_a_shared_part_depends_on_what_that_one_read() -> None:
    """Also where an earlier run has made the inner one."""
    first, inner, outer = source(1.0), source(2.0), source(10.0)
    below = value(0.0).host_map(lambda v: v).then(lambda v: inner.map(lambda w: v + w)).shared()
    above = zip_ops(outer, below).map(sum).shared()
    assert below.sync() == 2.0
    assert zip_ops(first, above).sync() == (1.0, 12.0)
    inner.set(3.0)
    assert zip_ops(first, above).sync() == (1.0, 13.0)


def test_shared_halves_of_an_unzipped_pair_stay_when_a_third_source_changes() -> None:
    """One of the pair came through a `host_map`. A change of its own source makes both again."""
    a, b, c = source(array(1)), source(array(2)), source(1.0)
    x = a.host_map(lambda v: v + f32(1)).then(from_host).shared()
    y = b.then(from_host).shared()
    p, q = zip_ops(flipped(x), flipped(y)).unzip()
    op = zip_ops(flipped(p).shared().to_host(), flipped(q).shared().to_host(), c)
    before = op.sync()
    c.set(2.0)
    after = op.sync()
    assert same(before[:2], after[:2])
    a.set(array(7))
    assert op.sync()[0][0] == 8


@pytest.mark.parametrize("kind", MACHINES)
def test_two_feeds_of_a_pipeline_over_a_shared_part(kind: str) -> None:
    """The call of the pipeline is shared, and so is its argument. Neither feed waits for what it claims itself, and the
    kernels run once for each value of the source."""

    @pipeline
    def again(x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
        return flipped(x)

    async def main() -> None:
        numbers = source(array(1))
        below: Any = flipped(numbers.then(from_host)).shared()
        op = again(below).shared().to_host()
        with trio.fail_after(PATIENCE):
            async with observe(op) as one, observe(op) as two:
                for number in (1, 5, 7):
                    numbers.set(array(number))
                    for feed in (one, two) if number == 5 else (two, one):
                        assert same(await feed.next(), array(number))

    with machine(kind), explored(kind, 0):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_two_feeds_of_a_constant_part(kind: str) -> None:
    """A kernel of a shared constant and of a number from a source is shared by two feeds. A third one that opens later
    finds the constant."""

    async def main() -> None:
        factor = source(2.0)
        constant = ones((N,)).then(lambda t: dup(t)).shared()
        op = blended(constant, constant, factor).shared().to_host()
        with trio.fail_after(PATIENCE):
            async with observe(op) as one, observe(op) as two:
                assert (await one.next())[0] == (await two.next())[0] == 3.5
                factor.set(3.0)
                assert (await two.next())[0] == (await one.next())[0] == 4.5
                async with observe(flipped(constant).to_host()) as three:
                    assert (await three.next())[0] == 0.0

    with machine(kind), explored(kind, 0):
        trio.run(main)


def test_a_constant_runs_once_for_all_feeds() -> None:
    """Two feeds over one shared kernel without sources, beside a source each, and a plain run."""

    async def main() -> None:
        given, other = source(tensors[2]), source(tensors[3])
        constant = marked(1, tensors[0]).shared()
        ops: list[Any] = [marked(2 + number, constant, each) for number, each in enumerate((given, other))]
        async with observe(ops[0].to_host()) as one, observe(ops[1].to_host()) as two:
            for number in range(3):
                given.set(tensors[number])
                other.set(tensors[number])
                assert (await two.next())[0] - 3 == (await one.next())[0] - 2 == number + 1
        assert (await constant.to_host())[0] == 1
        assert MARKS.seen().count(1) == 1

    tensors = [tensor(number) for number in range(4)]
    trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_cutoff_of_a_part_without_sources(kind: str) -> None:
    """Two feeds follow the source beside it."""

    async def main() -> None:
        numbers = source(array(1))
        op = zip_ops(flipped(cutoff(ones((N,)))).to_host(), numbers.then(from_host).to_host())
        async with observe(op) as one, observe(op) as two:
            for number in (1, 9):
                numbers.set(array(number))
                for feed in (one, two):
                    assert [float(each[0]) for each in await feed.next()] == [0.0, number]

    with machine(kind), explored(kind, 0):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_cutoff_that_is_met_in_a_later_stage(kind: str) -> None:
    """An earlier stage has made the tensor that it compares. Each update compares it with the one before."""

    async def main() -> None:
        a, b = source(array(1)), source(array(2))
        early = flipped(a.then(from_host)).shared()
        late = b.then(from_host).to_host().map(lambda v: float(v[0]))
        op = zip_ops(flipped(early).to_host(), late.then(lambda v: flipped(cutoff(early)).to_host()))
        async with observe(op) as feed:
            for number in range(6):
                with batch():
                    (a if number % 3 else b).set(array(number // 2, 7))
                assert same(await feed.next(), (array(1) if not number else a.get(),) * 2)

    with machine(kind), explored(kind, 0):
        trio.run(main)


def tensor(number: float) -> Any:
    """A tensor of two elements, shared."""
    return from_host(np.full(2, number, np.float32)).sync().share()
