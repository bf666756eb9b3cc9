"""The results of a run come to the caller while the run goes on, and again after a loss."""

import asyncio
from types import SimpleNamespace
from typing import Any

from dagpu.cluster.run_state import ResultFetch


class Client:
    """A client whose values are numbers. A value that is lost raises, as Dask does."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.lose: list[Any] = []

    async def gather(self, futures: list[Any], direct: bool) -> list[int]:
        """Return the numbers of futures."""
        self.asked.append([future.number for future in futures])
        for future in self.lose:
            future.status = "cancelled"
        self.lose = []
        if any(future.status == "cancelled" for future in futures):
            raise RuntimeError("lost")
        return [future.number for future in futures]


def run_of(count: int) -> Any:
    """A run of tasks whose only values the caller gets, all of which are made."""
    futures = {(at, 0): SimpleNamespace(number=at, status="finished") for at in range(count)}

    def is_lost() -> bool:
        return any(future.status == "cancelled" for future in futures.values())

    return SimpleNamespace(
        values_of=lambda task: [(task, 0)], fetched=set(futures), kept=set(futures), futures=futures, errors={},
        lost=False, is_lost=is_lost, done=[*range(count)], tasks=[*range(count)], changed=asyncio.Event(),
        release_unused=lambda index: None,
    )  # fmt: skip


def note_done(fetch: ResultFetch, task: Any) -> None:
    """Note that a task, which is its number here, is done."""
    fetch.note_done(task)


async def settled() -> None:
    """Let the fetch go on until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_values_that_are_made_together_come_together() -> None:
    """One fetch brings all that is made when it begins, and the run needs their keys no more."""

    async def main() -> None:
        client, state = Client(), run_of(3)
        fetch = ResultFetch(client, state, direct=True)
        for task in range(3):
            note_done(fetch, task)
        await settled()
        assert client.asked == [[0, 1, 2]]
        assert fetch.is_complete()
        assert fetch.values == {(at, 0): at for at in range(3)}
        assert not state.kept

    asyncio.run(main())


def test_a_lost_value_does_not_keep_the_others() -> None:
    """Those that are there come, the run learns of the loss, and the lost one comes when it is made again."""

    async def main() -> None:
        client, state = Client(), run_of(3)
        fetch = ResultFetch(client, state, direct=True)
        client.lose = [state.futures[1, 0]]
        for task in range(3):
            note_done(fetch, task)
        await settled()
        assert state.lost
        assert fetch.values == {(0, 0): 0, (2, 0): 2}
        state.futures[1, 0] = SimpleNamespace(number=1, status="finished")
        note_done(fetch, 1)
        await settled()
        assert client.asked == [[0, 1, 2], [0, 2], [1]]
        assert fetch.is_complete()
        assert not state.errors

    asyncio.run(main())


def test_a_value_that_the_run_has_taken_back_is_no_error() -> None:
    """The run has given up a future while it was fetched."""

    async def main() -> None:
        client, state = Client(), run_of(1)
        fetch = ResultFetch(client, state, direct=True)
        client.lose = [state.futures[0, 0]]
        note_done(fetch, 0)
        del state.futures[0, 0]
        await settled()
        assert not state.errors
        assert not fetch.is_complete()

    asyncio.run(main())


def test_another_failure_of_a_fetch_ends_the_run() -> None:
    """Its error is the run's."""

    async def main() -> None:
        client, state = Client(), run_of(1)
        fetch = ResultFetch(client, state, direct=True)

        async def gather(futures: list[Any], direct: bool) -> list[int]:
            raise RuntimeError("no connection")

        client.gather = gather  # type: ignore[method-assign]  # reason: this client has lost its scheduler
        note_done(fetch, 0)
        await settled()
        assert str(state.errors[-1]) == "no connection"

    asyncio.run(main())
