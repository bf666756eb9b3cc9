"""A feed whose closures build another op after a change: the memory that both traces know."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    batch,
    current_device,
    cutoff,
    empty,
    from_host,
    memcpy,
    observe,
    ones,
    source,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.behaviour.live.live_kernels import N, Op, array, blended, gathered
from tests.behaviour.live.live_trials import MACHINES, Trial, explored, machine, same


def run(kind: str, main: Any) -> None:
    """Run an async test on a kind of machine."""
    with machine(kind), explored(kind, 0):
        trio.run(main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_result_that_a_later_trace_keeps_is_not_written(kind: str) -> None:
    """Nor by an update that has it as an intermediate tensor, because a closure builds another op now."""

    async def main() -> None:
        flag, given, level = source(True), source(array(1)), source(1.0)

        def pick(whole: bool) -> Op:
            t = given.then(from_host).shared()
            made: Op = gathered(t).share().shared()
            return made if whole else blended(made, made, level).share()

        async with observe(flag.then(pick)) as feed:
            first: Any = await feed.next()
            flag.set(False)
            await feed.next()
            for number in range(2, 5):
                level.set(float(number))
                await feed.next()
                given.set(array(number))
                await feed.next()
                assert (await first.clone().to_host())[0] == 1.25

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_result_that_a_later_trace_has_as_an_intermediate_tensor_is_freed(kind: str) -> None:
    """Once an update has made that tensor again, the feed holds the bytes that it says it keeps, and no others."""

    async def main() -> None:
        flag, given, level = source(True), source(array(1)), source(1.0)

        def pick(whole: bool) -> Op:
            made: Op = gathered(given.then(from_host).shared()).share().shared()
            return made if whole else blended(made, made, level).share()

        before = current_device().memory_used()
        async with observe(flag.then(pick)) as feed:
            await feed.next()
            flag.set(False)
            await feed.next()
            for number in range(2, 4):
                given.set(array(number))
                await feed.next()
                assert current_device().memory_used() - before == feed.stats.kept_bytes

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_equal_tensors_of_a_later_trace_stay_two(kind: str) -> None:
    """Two kept tensors with equal contents take over memory of an earlier trace, and are written apart after that."""

    async def main() -> None:
        flag, given, level = source(True), source(array(1)), source(1.0)

        def pick(_: bool) -> Op:
            t = given.then(from_host).shared()
            return zip_ops(*[blended(gathered(t), t, level).to_host() for _ in range(3)])

        op = flag.then(pick)
        async with observe(op) as feed:
            for number in range(4):
                level.set(float(number))
                await feed.next()
                flag.set(not flag.get())
                await feed.next()
                given.set(array(number))
                assert same(await feed.next(), await op)

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_cutoff_may_compare_what_an_earlier_stage_has_made(kind: str) -> None:
    """An op that waits for data of the device has a cutoff behind it, on a tensor that depends on an earlier tensor."""

    async def main() -> None:
        given, level = source(array(1)), source(1.0)
        early = gathered(given.then(from_host).shared()).shared()
        late = early.to_host().then(lambda numbers: blended(from_host(numbers).shared(), early, 0.5))
        compared = cutoff(cutoff(late))
        op = blended(compared, early, level).to_host()
        async with observe(op) as feed:
            for number in range(3):
                assert same(await feed.next(), await op)
                level.set(number + 2.0)
                assert same(await feed.next(), await op)
                given.set(array(number))

    run(kind, main)


def test_what_a_trace_that_no_longer_fits_has_made_is_not_kept() -> None:
    """A closure gives an array of another shape after the update has taken over a new number. The tensor that was made
    of the old number is not taken for one of the new number by the next trace."""
    level, count = source(1.0), source(4)
    t = from_host(array(1)).share().shared()
    wide = count.map(lambda extent: np.ones(extent, np.float32)).then(from_host)
    trial = Trial(zip_ops(blended(t, t, level).to_host(), wide.to_host()), [level, count])
    trial.check()
    for number in range(2, 5):
        with batch():
            level.set(float(number))
            count.set(2 * number + 2)
        trial.check()


@pytest.mark.parametrize("kind", MACHINES)
def test_a_trace_keeps_what_a_change_of_another_source_needs(kind: str) -> None:
    """An array that has not changed since the trace before is a constant to this one, as its closure is not called.
    What its next change needs stays all the same, so each of its changes costs as much as the first one."""

    async def main() -> None:
        given: Any
        level: Any
        given, level = source(array(1)), source(1.0)
        kept = gathered(ones((N,)).shared())
        waits = blended(zeros((N,)).shared(), zeros((N,)).shared(), level).to_host().then(from_host)
        op = zip_ops(blended(given.then(from_host), kept, 0.5).to_host(), waits.to_host())
        ran: dict[Any, list[int]] = {given: [], level: []}
        async with observe(op) as feed:
            await feed.next()
            for number, changed in enumerate((given, level, given, level, level, given), 2):
                before = feed.stats.launched
                changed.set(array(number) if changed is given else float(number))
                assert same(await feed.next(), await op)
                ran[changed].append(feed.stats.launched - before)
        assert all(len(set(counts)) == 1 for counts in ran.values()), ran

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_later_stage_keeps_what_depends_on_less_than_its_reader(kind: str) -> None:
    """What an earlier stage has made depends on what it was made of, and not on every source: so the kernel that reads
    it alone does not run again for a change of a number that only its reader takes."""

    async def main() -> None:
        given: Any
        given, level = source(array(1)), source(1.0)
        t = given.then(from_host).shared()
        inner = blended(t, gathered(t).share(), level).share().shared()
        op = t.to_host().map(lambda x: float(x[0])).then(lambda v: blended(inner, t, v)).to_host()
        async with observe(op) as feed:
            await feed.next()
            for number in range(2, 6):
                before = feed.stats.launched
                level.set(float(number))
                assert same(await feed.next(), await op)
                assert feed.stats.launched - before == 3  # both kernels of the number, and the copy
                given.set(array(number))
                assert same(await feed.next(), await op)

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_what_a_closure_puts_into_its_op_is_freed(kind: str) -> None:
    """The op holds the tensor that the closure was given. Once it is evaluated, nothing does, though the trace goes on
    with a later stage."""

    async def main() -> None:
        given = source(array(1))
        early = given.then(from_host).then(lambda t: gathered(t.share())).to_host()
        async with observe(early.then(from_host).to_host()) as feed:
            for number in range(3):
                await feed.next()
                assert feed.stats.kept_bytes == 0
                given.set(array(number + 2))

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_what_a_later_stage_copies_to_the_host_is_freed(kind: str) -> None:
    """It is no result, though what waits for it has had it."""

    async def main() -> None:
        given = source(array(1))
        late = given.then(from_host).to_host().then(lambda numbers: gathered(from_host(numbers)))
        async with observe(late.to_host()) as feed:
            for number in range(3):
                await feed.next()
                assert feed.stats.kept_bytes == 0
                given.set(array(number + 2))

    run(kind, main)


Array = NDArray[np.float32]


def half(t: Op, a: Op) -> Op:
    """A kernel that covers memory which nothing has written."""
    return blended(t, a, 0.5)


def copied(t: Op, a: Op) -> Op:
    """A copy to memory which nothing has written, and what a kernel makes of it."""

    def copy(both: Any) -> Op:
        out, source_of = both
        return memcpy(out.borrow_mut(), source_of).then(lambda _: value(out))

    return blended(t, zip_ops(empty((N,)), a).then(copy).shared(), 0.5)


def add(both: tuple[Array, Array]) -> Array:
    """A sum of the host."""
    return both[0] + both[1]


def called(t: Op, a: Op) -> Op:
    """A function of the host, of two arrays that the device has had."""
    return zip_ops(t.to_host(), a.to_host()).host_map(add).then(from_host)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("write", [half, gathered, copied, called])
def test_a_trace_of_one_stage_keeps_what_two_have_made(kind: str, write: Callable[[Op, Op], Op]) -> None:
    """In the first trace a kernel waits for an array of constants, so the memory that it writes is of an earlier stage.
    So is what a function of the host gets. The next trace finds the array, and goes on at once: it is the same op, of
    which nothing runs for a number that no kernel reads."""

    async def main() -> None:
        given, level = source(array(1)), source(1.0)
        waits = gathered(ones((N,)).shared()).to_host().then(from_host).shared()
        op = zip_ops(write(given.then(from_host).shared(), waits).to_host(), level)
        async with observe(op) as feed:
            for number in range(2, 6):
                await feed.next()
                before = feed.stats.launched
                level.set(float(number))
                assert same(await feed.next(), await op)
                assert feed.stats.launched == before
                given.set(array(number))

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_later_stage_keeps_what_it_makes_of_a_constant(kind: str) -> None:
    """A constant that a run has made before depends on nothing, as one that the stage makes. So the kernel that reads
    it alone does not run again for a number that another kernel takes."""

    async def main() -> None:
        given, level = source(array(1)), source(1.0)
        t, constant = given.then(from_host).shared(), ones((N,)).shared()
        await constant
        inner = blended(t, gathered(constant), level).shared()
        op = t.to_host().map(lambda x: float(x[0])).then(lambda v: blended(inner, t, v)).to_host()
        async with observe(op) as feed:
            await feed.next()
            for number in range(2, 6):
                before = feed.stats.launched
                level.set(float(number))
                assert same(await feed.next(), await op)
                assert feed.stats.launched - before == 3  # both kernels of the number, and the copy

    run(kind, main)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_later_stage_keeps_what_it_makes_of_what_a_cutoff_let_through(kind: str) -> None:
    """A source gets equal contents: the kernels before the cutoff run again, and none behind it, in an update that
    traces the op."""

    async def main() -> None:
        given, other = source(array(1)), source(array(2))
        t = other.then(from_host).shared()
        cut = cutoff(gathered(given.then(from_host)).shared())
        waits = t.to_host().map(lambda x: float(x[0]))
        op = blended(t, cut, waits).shared().to_host()
        async with observe(op) as feed:
            await feed.next()
            for _ in range(4):
                before = feed.stats.launched
                given.set(array(1))
                assert same(await feed.next(), await op)
                assert feed.stats.launched - before == 3  # the upload, and the two launches for its sum

    run(kind, main)
