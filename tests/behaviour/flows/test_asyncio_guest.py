"""`in_trio`: functions of trio's in a program of asyncio."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import trio
import trio.lowlevel

from dagpu import flow, in_trio, observe, source


async def two_values(first: int) -> list[int]:
    number = source(first)
    found = []
    async with observe(number) as feed:
        found.append(await feed.next())
        number.set(first + 1)
        found.append(await feed.next())
    return found


def test_it_returns_the_result() -> None:
    """With arguments, one after the other, and with the errors of the function as they are."""

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("mine")

    async def main() -> None:
        assert await in_trio(two_values, 1) == [1, 2]
        with pytest.raises(KeyError, match="mine"):
            await in_trio(fails)
        assert await in_trio(two_values, 3) == [3, 4]

    asyncio.run(main())


def test_asyncio_goes_on_meanwhile() -> None:
    """Both loops run in one thread: one waits for what the other does."""

    async def main() -> None:
        told = asyncio.Event()
        answer = trio.Event()

        async def asks() -> str:
            told.set()
            await answer.wait()
            return "answered"

        async def answers() -> None:
            await told.wait()
            answer.set()

        found, _ = await asyncio.gather(in_trio(asks), answers())
        assert found == "answered"

    asyncio.run(main())


def test_a_cancellation_cancels_the_function_and_waits_for_its_end() -> None:
    """A second cancellation does not cut that short."""
    ended: list[str] = []

    async def sleeps() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
            ended.append("drained")

    async def main() -> None:
        task = asyncio.ensure_future(in_trio(sleeps))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["drained"]
        assert await in_trio(two_values, 7) == [7, 8]

    asyncio.run(main())


def test_a_second_loop_of_trio_is_refused() -> None:
    """With the place and the cure: beside another one, and inside of one."""
    refused = re.compile(
        r"in_trio at .*test_asyncio_guest.py:\d+: trio runs in this thread already. Await the function"
    )

    async def main() -> None:
        first, second = in_trio(two_values, 1), in_trio(two_values, 2)
        found = await asyncio.gather(first, second, return_exceptions=True)
        assert found[0] == [1, 2]
        assert isinstance(found[1], RuntimeError)
        assert refused.match(str(found[1]))

    asyncio.run(main())

    async def inside() -> None:
        with pytest.raises(RuntimeError, match=refused):
            await in_trio(two_values, 1)

    trio.run(inside)


@pytest.mark.parametrize("kind", ["next", "iteration", "flow"])
def test_a_cancellation_leaves_the_block_of_a_feed(kind: str) -> None:
    """It is an error of asyncio's, as around any function of trio's: the waits of feeds and flows are left, and no
    coroutine that waits is closed on the way. Before Python 3.13, to clear the frame of one closes it."""
    left: list[str] = []
    asked = asyncio.Event()

    async def asks() -> None:
        try:
            if kind == "flow":
                async with flow(never()) as feed:
                    asked.set()
                    await feed.next()
            async with observe(source(1.0)) as values:
                await values.next()
                asked.set()
                if kind == "iteration":
                    async for _ in values:
                        pass
                await values.next()
        finally:
            left.append("left")

    async def main() -> None:
        task = asyncio.ensure_future(in_trio(asks))
        for _ in range(200):
            await asyncio.sleep(0)
        assert asked.is_set()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left == ["left"]

    asyncio.run(main())


async def never() -> AsyncIterator[float]:
    await trio.sleep_forever()
    yield 0.0
