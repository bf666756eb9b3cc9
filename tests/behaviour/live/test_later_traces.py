"""A feed whose closures build another op after a change: the memory that both traces know."""

from typing import Any

import numpy as np
import pytest
import trio

from dagpu import batch, current_device, cutoff, from_host, observe, source, zip_ops
from tests.behaviour.live.live_kernels import Op, array, blended, gathered
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
