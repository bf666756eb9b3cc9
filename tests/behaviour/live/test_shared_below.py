"""What is below a `shared()` op that two feeds observe runs once for each snapshot, also where it takes several stages,
where a closure refers to it, and where each feed reads another output of one kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    cutoff,
    empty,
    f32,
    from_host,
    kernel,
    observe,
    pipeline,
    source,
    zip_ops,
)  # fmt: skip
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_kernels import TILE, N, Op, array, flipped
from tests.behaviour.live.live_trials import same
from tests.support.gates import PATIENCE
from tests.support.marks import MARKS

pytestmark = pytest.mark.host_only("kernels' host bodies")


@kernel(
    cuda="__global__ void around(Tile<float, 1> up, Tile<float, 1> down, View<const float, 1> x)"
    " { for (auto i : up) { up[i] = x[i] + 2.0f; down[i] = x[i] - 2.0f; } }"
)
def around(up: Out[f32], down: Out[f32], x: In[f32]) -> None: ...


@around.host
def _(up: Tile[f32], down: Tile[f32], x: NDArray[f32]) -> None:
    if up.at[0].start == 0:
        MARKS.leave(100)
    up[...] = x[up.at] + f32(2)
    down[...] = x[down.at] - f32(2)


async def both(one: Op, other: Op, steps: list[tuple[Callable[[], None], list[int]]]) -> None:
    """Observe two ops. After each step, each feed has the value of a run from scratch, and the kernels and functions
    with these marks have run, all in all."""
    async with observe(one) as first, observe(other) as second:
        for number, (step, marks) in enumerate(steps):
            step()
            MARKS.clear()
            made = [await feed.next() for feed in ((first, second) if number % 2 else (second, first))]
            assert sorted(MARKS.seen()) == marks, f"step {number}"
            wanted = [await op for op in ((one, other) if number % 2 else (other, one))]
            assert all(map(same, made, wanted)), f"step {number}"


def test_a_part_with_a_function_of_the_host_runs_once() -> None:
    """A kernel, a function of the host of what it made, and a kernel of that are one shared part."""
    a = source(array(1))

    def slow(v: Any) -> Any:
        MARKS.leave(1)
        return v + f32(1)

    part: Any = flipped(flipped(a.then(from_host)).to_host().host_map(slow).then(from_host)).shared()
    steps = [(lambda: None, [1]), *[(lambda n=n: a.set(array(n)), [1]) for n in range(5, 9)]]
    trio.run(both, flipped(part).to_host(), part.to_host(), steps)


def test_a_part_that_a_closure_refers_to_runs_once() -> None:
    """A shared kernel is met in a closure alone. It runs once when its source has changed, and never when the number
    that the closure reads has; nor does the kernel that the closure adds."""
    a, n = source(tensor(1)), source(1.0)
    part = marked(1, a).shared()
    op = n.then(lambda v: marked(2, part) if v > 0 else marked(3, part)).shared().to_host()

    tensors = [tensor(number) for number in range(8)]

    def set_a(number: int) -> Callable[[], None]:
        return lambda: a.set(tensors[number])

    def set_n(number: float) -> Callable[[], None]:
        return lambda: n.set(number)

    steps = [
        (lambda: None, [1, 2]),
        (set_a(5), [1, 2]),
        (set_n(2.0), []),
        (set_a(6), [1, 2]),
        (set_n(-1.0), [3]),
        (set_a(7), [1, 3]),
    ]
    trio.run(both, op, op, steps)


def test_each_feed_reads_another_output_of_one_kernel() -> None:
    """One feed reads the first output, the other both, and each is shared: the kernel runs once."""
    a = source(array(1))
    out: Any = lambda: empty((N,)).partition(TILE)  # noqa: E731  # used twice
    up, down, _ = around(out(), out(), a.then(from_host).shared()).unzip()
    first, second = up.unpartition().shared(), down.unpartition().shared()
    steps = [(lambda: None, [100]), *[(lambda n=n: a.set(array(n)), [100]) for n in range(5, 9)]]
    trio.run(both, first.to_host(), zip_ops(first.to_host(), second.to_host()), steps)


def test_a_closure_below_a_shared_part_is_called_once() -> None:
    """A closure that builds an op of a number, one in that op, and a function of what the device made are each called
    once for what they are given, whichever feed is asked first: the other feed takes what they have returned."""
    a, n = source(tensor(1)), source(1.0)

    def outer(v: float) -> Op:
        MARKS.leave(10)
        return n.then(lambda w: inner(v + w))

    def inner(v: float) -> Op:
        MARKS.leave(11)
        return marked(1 if v > 0 else 2, a)

    def total(x: Any) -> float:
        MARKS.leave(12)
        return float(x[0])

    op = n.then(outer).shared().to_host().map(total).shared()
    tensors = [tensor(number) for number in range(8)]
    steps: list[tuple[Callable[[], None], list[int]]] = [
        (lambda: None, [1, 10, 11, 12]),
        (lambda: n.set(2.0), [10, 11]),
        (lambda: a.set(tensors[5]), [1, 12]),
        (lambda: n.set(-1.0), [2, 10, 11, 12]),
        (lambda: a.set(tensors[6]), [2, 12]),
    ]
    trio.run(both, zip_ops(op, n), op, steps)


def test_feeds_at_once_run_a_function_of_the_host_once() -> None:
    """Of two feeds that are asked at once for a part that goes through the host, one runs it while the other waits, and
    both have its value."""

    async def main() -> None:
        a = source(array(1))

        def slow(v: Any) -> Any:
            MARKS.leave(1)
            return v + f32(1)

        part: Any = flipped(flipped(a.then(from_host)).to_host().host_map(slow).then(from_host)).shared()
        async with observe(flipped(part).to_host()) as one, observe(part.to_host()) as two:
            for number in range(5):
                a.set(array(number))
                MARKS.clear()
                made: dict[Any, Any] = {}
                with trio.fail_after(PATIENCE):
                    async with trio.open_nursery() as nursery:
                        for feed in (one, two):
                            nursery.start_soon(ask, feed, made)
                assert MARKS.seen() == [1], number
                assert same(made[one], await flipped(part).to_host())
                assert same(made[two], await part.to_host())
                assert part.once.settled(), "a claim is left"

    trio.run(main)


def test_a_part_behind_a_cutoff_with_an_equal_runs_once() -> None:
    """Its value may be that of an earlier snapshot, so plain runs do not take it; another feed does that has let
    through the same value."""
    a, n = source(tensor(1)), source(1.0)
    rounded = cutoff(n.map(lambda v: float(int(v))), lambda one, other: one == other)
    part: Any = rounded.then(lambda v: marked(1 if v > 0 else 2, a)).shared()
    tensors = [tensor(number) for number in range(8)]
    steps: list[tuple[Callable[[], None], list[int]]] = [
        (lambda: None, [1]),
        (lambda: a.set(tensors[5]), [1]),
        (lambda: n.set(-2.5), [2]),
        (lambda: a.set(tensors[6]), [2]),
    ]
    trio.run(both, part.to_host(), part.to_host(), steps)


def test_a_part_in_a_call_of_a_pipeline_runs_once() -> None:
    """A `shared()` op among the arguments of a pipeline is observed as any other."""
    a = source(tensor(1))
    part: Any = marked(1, a).shared()
    tensors = [tensor(number) for number in range(8)]
    steps = [(lambda: None, [1, 2, 2]), *[(lambda n=n: a.set(tensors[n]), [1, 2, 2]) for n in range(5, 8)]]
    trio.run(both, passed_on(part).to_host(), passed_on(part).to_host(), steps)


def test_a_feed_follows_when_it_shares_another_node() -> None:
    """Of two other feeds one closes and one of another node opens between two updates of a feed: it shares that node
    instead."""
    tensors = [tensor(number) for number in range(6)]
    a = source(tensors[0])
    left, right = marked(1, a).shared(), marked(2, a).shared()

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        async with observe(left.to_host()) as first:
            await first.next()
            task_status.started()
            await closing.wait()
        closed.set()

    closing, closed = trio.Event(), trio.Event()

    async def main() -> None:
        async with observe(zip_ops(left.to_host(), right.to_host())) as feed, trio.open_nursery() as nursery:
            await nursery.start(hold)
            a.set(tensors[1])
            await feed.next()
            closing.set()
            await closed.wait()
            async with observe(right.to_host()) as second:
                await second.next()
                for number in range(2, 6):
                    a.set(tensors[number])
                    MARKS.clear()
                    await feed.next()
                    value = await second.next()
                    assert sorted(MARKS.seen()) == [1, 2], number
                    assert same(value, await right.to_host())

    trio.run(main)


async def ask(feed: Any, made: dict[Any, Any]) -> None:
    """Ask a feed for its next value."""
    made[feed] = await feed.next()


@pipeline
def passed_on(x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    """A kernel of a shared tensor."""
    given: Any = x
    return marked(2, given)


def tensor(number: float) -> Any:
    """A tensor of two elements, shared."""
    return from_host(array(number)[:2]).sync().share()
