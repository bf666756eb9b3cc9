"""Cancellation: a cancelled `next` loses no value, and a block that is left at any step leaves nothing behind."""

import contextlib
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Flow,
    SharedTensor,
    Tensor,
    batching,
    current_device,
    dup,
    every,
    f32,
    flow,
    from_host,
    merge,
    ones,
    use_interpreter,
    value,
    zip_flows,
    zip_ops,
)
from tests.behaviour.flows.flow_programs import (
    Broken,
    Chain,
    Failure,
    Producer,
    SlowInterpreter,
    chains,
    clocked,
    items,
    raise_failures,
    seeded_seconds,
)
from tests.simulated.each_device import where as where
from tests.support.gates import add

# ---- a cancelled next ------------------------------------------------------------------------------------------------


async def impatient(described: Flow[Any], seed: int) -> list[Any]:
    """Return the outcomes of a flow to a consumer that often loses its patience, and asks again."""
    numbers, found = random.Random(seed), list[Any]()
    async with described as feed:
        while True:
            with trio.move_on_after(numbers.choice((0.0, 0.25, 0.5, 1.0, 2.0, 9.0))):
                try:
                    found.append(await feed.next())
                except Broken as error:
                    found.append(Failure(error.args[0]))
                except trio.EndOfChannel:
                    return found


@settings(max_examples=150)
@given(chains, items, st.integers(0, 2**16), st.booleans())
def test_a_cancelled_next_loses_nothing(chain: Chain, found: list[Any], seed: int, patient: bool) -> None:
    """Values, order and failures are those of the list, however often the consumer is cancelled."""
    producer: Any = Producer(found, seeded_seconds(seed)) if patient else found
    described = chain.of_flow(flow(producer).map(raise_failures))
    with use_interpreter(SlowInterpreter(seeded_seconds(seed + 1))):
        assert clocked(impatient, described, seed + 2) == chain.of_list(found)


@pytest.mark.parametrize("seed", range(20))
def test_a_cancelled_next_of_timed_stages_loses_nothing(seed: int) -> None:
    """`merge`, `batched` with a limit and `switch` hand out each value once, too."""
    numbers = list(range(12))
    merged = merge(flow(Producer(numbers, seeded_seconds(seed))), flow(Producer(numbers, seeded_seconds(seed + 1))))
    assert sorted(clocked(impatient, merged, seed)) == sorted(numbers * 2)
    batched = flow(Producer(numbers, seeded_seconds(seed))).batched(3, within=1.0)
    assert [x for batch in clocked(impatient, batched, seed) for x in batch] == numbers
    switched = flow([0]).switch(lambda _: flow(Producer(numbers, seeded_seconds(seed))))
    assert clocked(impatient, switched, seed) == numbers
    zipped = zip_flows(flow(Producer(numbers, seeded_seconds(seed))), flow(Producer(numbers, seeded_seconds(seed + 1))))
    assert clocked(impatient, zipped, seed) == list(zip(numbers, numbers, strict=True))


def test_a_cancelled_tick_is_not_lost() -> None:
    """The first tick, too, comes when it is asked for again at once; later ones stay on the grid."""

    async def main() -> list[float]:
        async with every(1.0) as feed:
            with trio.CancelScope() as scope:
                scope.cancel()
                await feed.next()
            start = trio.current_time()
            found = [await feed.next() - start]
            with trio.move_on_after(0.5):
                await feed.next()
            return [*found, await feed.next() - start]

    assert clocked(main) == [0.0, 1.0]


# ---- a block that is left at any step ------------------------------------------------------------------------------


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the given step of trio's loop."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self._left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self.scope.cancel()


FLOWS: dict[str, Callable[[Flow[int]], Flow[Any]]] = {
    "run": lambda f: f.run(lambda x: value(x).map(lambda y: y + 1), in_flight=3),
    "unordered": lambda f: f.run(value, in_flight=3, ordered=False),
    "fold": lambda f: f.fold(value(0), lambda s, x: value((s + x, s))),
    "latest": lambda f: f.run(value).latest(),
    "switch": lambda f: f.switch(lambda x: flow(range(x)).run(value)),
    "merge": lambda f: merge(f.run(value), flow(range(3))),
    "batched": lambda f: f.run(value).batched(2, within=1.0),
    "zip": lambda f: zip_flows(f.run(value), flow(range(3))),
}


@pytest.mark.parametrize("name", FLOWS)
def test_a_block_left_at_any_step_leaves_nothing(name: str) -> None:
    """Cancelled before each step of the loop in turn, the block ends, its generators are closed and no op runs."""

    async def generated() -> AsyncIterator[int]:
        slow.running += 1
        try:
            for x in range(4):
                await trio.lowlevel.checkpoint()
                yield x
        finally:
            slow.running -= 1

    async def main(instrument: CancelAt) -> bool:
        with instrument.scope:
            async with FLOWS[name](flow(generated())) as feed:
                async for _ in feed:
                    pass
        assert slow.running == 0
        return instrument.scope.cancelled_caught

    slow = SlowInterpreter(lambda: 0.0)
    for step in range(2, 200):
        instrument = CancelAt(step)
        with use_interpreter(slow):
            cancelled = trio.run(main, instrument, instruments=[instrument])
        if not cancelled:
            break
    assert step > 15
    assert not cancelled


def changed(weights: SharedTensor[f32], x: NDArray[f32]) -> DeviceOp[Tensor[f32]]:
    result: DeviceOp[Tensor[f32]] = add(dup(weights).partition((8,)), from_host(x)).first().unpartition()
    return result


def summed(state: Tensor[f32], x: Tensor[f32]) -> DeviceOp[tuple[Tensor[f32], NDArray[f32]]]:
    new: DeviceOp[Tensor[f32]] = add(value(state).partition((8,)), x).first().unpartition()
    return new.share().shared().then(lambda t: zip_ops(dup(t), t.to_host()))


def test_flows_compute_on_each_kind_of_device(where: Any) -> None:
    """Results of `run` go on into `fold` on the device; they are those of NumPy, and no memory is left."""
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 9, 8).astype(f32) for _ in range(7)]
    gc.collect()
    before = current_device().memory_used()
    weights = ones((8,)).share().sync()

    async def main() -> list[Any]:
        described = flow(arrays).run(lambda x: changed(weights, x), in_flight=3).fold(ones((8,)), summed)
        async with described as feed:
            return [x async for x in feed]

    found = trio.run(main)
    expected = np.cumsum([x + 1 for x in arrays], axis=0) + 1
    np.testing.assert_array_equal(np.array(found), expected)
    assert weights.try_unwrap() is not None
    gc.collect()
    assert current_device().memory_used() == before


def test_a_block_left_at_any_step_gives_back_memory_and_handles(where: Any) -> None:
    """Cancelled before any step of the loop, the runs are drained: nothing is locked, and memory is what it was."""
    arrays = [np.full(8, x, f32) for x in range(4)]
    gc.collect()
    before = current_device().memory_used()

    async def main(instrument: CancelAt, weights: SharedTensor[f32]) -> None:
        with instrument.scope:
            described = flow(arrays).run(lambda x: changed(weights, x), in_flight=3).fold(ones((8,)), summed)
            async with described as feed:
                async for _ in feed:
                    pass

    for step in range(1, 90, 4):
        weights = ones((8,)).share().sync()
        instrument = CancelAt(step)
        trio.run(main, instrument, weights, instruments=[instrument])
        gc.collect()
        own = weights.try_unwrap()
        assert own is not None
        assert add(own.borrow_mut().partition((8,)), ones((8,))).sync() is not None
        del own, weights
        gc.collect()
        assert current_device().memory_used() == before


# ---- the body of the block -----------------------------------------------------------------------------------------


def test_an_error_of_the_body_comes_out_alone() -> None:
    """It is not in a group, and what is in flight is cancelled and drained."""
    slow = SlowInterpreter()

    async def main() -> None:
        async with flow(range(9)).run(value, in_flight=4) as feed:
            await feed.next()
            raise KeyError("mine")

    with use_interpreter(slow), pytest.raises(KeyError, match="mine"):
        clocked(main)
    assert slow.running == 0
    assert slow.begun == 5


def test_an_iterable_that_cannot_begin_opens_nothing() -> None:
    """Its error is raised where the flow is opened, as itself, and the flow's tasks have ended."""

    class Unplugged:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no camera")

    async def main() -> None:
        async with merge(flow([1]).run(value).latest(), flow(Unplugged())):
            raise AssertionError("the block is not entered")

    with pytest.raises(OSError, match="no camera"):
        trio.run(main)


def test_an_error_of_an_item_comes_out_of_the_loop_alone() -> None:
    """The error of an item that ends an `async for` leaves the block as itself, with the user's frames only."""

    async def main() -> None:
        async with flow(range(9)).map(lambda x: 1 // (3 - x)).run(value, in_flight=4) as feed:
            async for _ in feed:
                pass

    with pytest.raises(ZeroDivisionError) as caught:
        trio.run(main)
    files = {str(entry.path) for entry in caught.traceback}
    assert not [file for file in files if "/dagpu/reactive/" in file]


def test_a_cancelled_request_leaves_its_batch_and_the_block_drains() -> None:
    """Tasks that wait for an answer when the block of `batching` ends get `ClosedResourceError`."""
    closed: list[int] = []

    def echo(numbers: tuple[int, ...]) -> DeviceOp[tuple[int, ...]]:
        return value(numbers)

    async def main() -> None:
        async def one(number: int) -> None:
            with contextlib.suppress(trio.ClosedResourceError):
                await ask(number)
            closed.append(number)

        async with trio.open_nursery() as nursery:
            async with batching(echo, most=2, in_flight=1) as ask:
                for number in range(5):
                    nursery.start_soon(one, number)
                await trio.sleep(1.5)
            with pytest.raises(trio.ClosedResourceError, match="is over"):
                await ask(1)

    slow = SlowInterpreter()
    with use_interpreter(slow):
        clocked(main)
    assert sorted(closed) == [0, 1, 2, 3, 4]
    assert slow.running == 0
