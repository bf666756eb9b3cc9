"""`batching`: which requests go together, what each task gets, and what happens when some are cancelled or fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import DeviceOp, batching, use_interpreter, value
from tests.behaviour.flows.flow_programs import SlowInterpreter, clocked, seeded_seconds


class Model:
    """Squares numbers in batches, each of which takes a second on trio's clock."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, list[int]]] = []
        """When each began, and what it had in it."""

    def __call__(self, numbers: tuple[int, ...]) -> DeviceOp[list[int]]:
        self.batches.append((trio.current_time(), list(numbers)))
        return value([number * number for number in numbers])

    @property
    def sizes(self) -> list[int]:
        return [len(numbers) for _, numbers in self.batches]


@contextmanager
def a_second_each() -> Iterator[SlowInterpreter]:
    slow = SlowInterpreter()
    with use_interpreter(slow):
        yield slow


async def at_times(model: Model, arrivals: list[float], **options: Any) -> dict[int, int]:
    """Ask for the square of each number at its time; return the answers."""
    answers: dict[int, int] = {}

    async def one(number: int, after: float) -> None:
        await trio.sleep(after)
        answers[number] = await ask(number)

    async with batching(model, **options) as ask, trio.open_nursery() as callers:
        for number, after in enumerate(arrivals, 1):
            callers.start_soon(one, number, after)
    assert ask.stats.values == len(answers)
    assert ask.stats.in_flight == 0
    return answers


def test_a_batch_goes_when_it_is_full_or_has_waited() -> None:
    """Five at once and at most four: four go at once, the fifth after its wait; with what has come until then."""
    model = Model()

    async def main() -> float:
        start = trio.current_time()
        answers = await at_times(model, [0, 0.01, 0.02, 0.03, 0.1, 0.3], most=4, within=0.5)
        assert answers == {number: number**2 for number in range(1, 7)}
        return start

    with a_second_each():
        start = clocked(main)
    assert [sorted(numbers) for _, numbers in model.batches] == [[1, 2, 3, 4], [5, 6]]
    assert [begun - start for begun, _ in model.batches] == pytest.approx([0.03, 0.6])


def test_a_batch_grows_while_there_is_no_room_to_run() -> None:
    """One at a time: what comes while the first runs goes together, as soon as that has ended."""
    model = Model()
    with a_second_each() as slow:
        clocked(lambda: at_times(model, [0.12 * x for x in range(6)], most=8, within=0.1, in_flight=1))
    assert model.sizes == [1, 5]
    assert slow.most == 1


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), max_size=15),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_each_task_gets_its_own_answer(
    arrivals: list[float], most: int, within: float, in_flight: int, seed: int
) -> None:
    """Whatever goes together: no batch is larger than it may be, and no more run at once than may."""
    model, slow = Model(), SlowInterpreter(seeded_seconds(seed))
    with use_interpreter(slow):
        answers = clocked(lambda: at_times(model, arrivals, most=most, within=within, in_flight=in_flight))
    assert answers == {number: number**2 for number in range(1, len(arrivals) + 1)}
    assert all(size <= most for size in model.sizes)
    assert sum(model.sizes) == len(arrivals)
    assert slow.most <= in_flight


def test_who_is_cancelled_leaves_its_batch() -> None:
    """Before the batch goes it is not in it; after, its answer is dropped; the others are answered."""
    model = Model()
    answered: list[int] = []

    async def main() -> None:
        async def one(number: int, patience: float) -> None:
            with trio.move_on_after(patience):
                answered.append(await ask(number))

        async with batching(model, most=8, within=0.5) as ask, trio.open_nursery() as callers:
            for number, patience in ((1, 9), (2, 0.2), (3, 1.0), (4, 9)):
                callers.start_soon(one, number, patience)

    with a_second_each():
        clocked(main)
    assert sorted(answered) == [1, 16]
    assert [sorted(numbers) for _, numbers in model.batches] == [[1, 3, 4]]


def test_a_batch_of_cancelled_requests_runs_nothing() -> None:
    """All have left: no op is made, and the next request is answered."""
    model = Model()

    async def main() -> int:
        async with batching(model, most=2, within=0.5) as ask:
            with trio.move_on_after(0.1):
                await ask(7)
            return await ask(3)

    with a_second_each():
        assert clocked(main) == 9
    assert [numbers for _, numbers in model.batches] == [[3]]


def test_a_failing_batch_fails_its_own_requests() -> None:
    """Each task with a request in the batch gets the error; the next batch is answered."""

    def failing(numbers: tuple[int, ...]) -> DeviceOp[list[int]]:
        return value(list(numbers)).map(lambda found: [1 // (number - 2) for number in found])

    async def main() -> dict[int, str]:
        got: dict[int, str] = {}

        async def one(number: int) -> None:
            try:
                got[number] = str(await ask(number))
            except ZeroDivisionError:
                got[number] = "failed"

        async with batching(failing, most=2) as ask, trio.open_nursery() as callers:
            for number in (1, 2, 3, 4):
                callers.start_soon(one, number)
                await trio.sleep(0.01 if number == 2 else 0)
        return got

    got = clocked(main)
    assert got in ({1: "failed", 2: "failed", 3: "1", 4: "0"}, {1: "-1", 2: "failed", 3: "1", 4: "0"})


def test_padding_is_dropped_and_a_missing_answer_is_an_error() -> None:
    """More answers than requests are dropped; with fewer, each request of the batch gets an error."""

    async def main(answers: list[int]) -> int:
        def answer(numbers: tuple[int, ...]) -> DeviceOp[list[int]]:
            return value(answers)

        async with batching(answer, most=2) as ask:
            return await ask(1)

    assert trio.run(main, [5, 6, 7]) == 5
    with pytest.raises(ValueError, match=r"gave 0 answers to 1 requests\. Return one for each, in order"):
        trio.run(main, [])


def test_a_block_is_open_once_at_a_time() -> None:
    """One `batching(...)` is one service: a second block inside the first is refused, one after it is not."""

    async def main() -> None:
        service = batching(Model(), most=2)
        async with service as ask:
            assert await ask(2) == 4
            with pytest.raises(trio.BusyResourceError, match="is open already"):
                await service.__aenter__()
        async with service as ask:
            assert await ask(3) == 9

    trio.run(main)
