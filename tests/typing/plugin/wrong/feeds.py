"""A feed outlives the block in which its flow is open: it is returned, stored, or used after the block."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from dagpu import Feed, flow
from tests.typing.plugin.kernels import yes


class Holder:
    """Keeps a feed."""

    feed: Feed[int] | None = None

    async def opened(self) -> None:
        async with flow([1]) as feed:
            self.feed = feed  # E: dagpu-feed-escape

    async def opened_into_an_attribute(self) -> None:
        async with flow([1]) as self.feed:  # E: dagpu-feed-escape
            pass


async def asked_after_its_block() -> None:
    async with flow([1, 2]) as feed:
        print(await feed.next())
    print(await feed.next())  # E: dagpu-feed-escape


async def iterated_after_its_block() -> None:
    async with flow([1, 2]) as feed:
        pass
    async for n in feed:  # E: dagpu-feed-escape
        print(n)


async def explained_after_its_block() -> None:
    async with flow([1, 2]).map(str) as feed:
        print(await feed.next())
    print(feed.explain())  # E: dagpu-feed-escape


async def asked_after_a_break() -> None:
    while True:
        async with flow([1, 2]) as feed:
            break
    print(await feed.next())  # E: dagpu-feed-escape


async def asked_in_a_branch_after_its_block() -> None:
    async with flow([1, 2]) as feed:
        pass
    if yes():
        print(await feed.next())  # E: dagpu-feed-escape


async def asked_under_another_name() -> None:
    async with flow([1, 2]) as feed:
        other = feed
    print(await other.next())  # E: dagpu-feed-escape


async def asked_from_a_list() -> None:
    feeds: list[Feed[int]] = []
    async with flow([1, 2]) as feed:
        feeds.append(feed)
    print(await feeds[0].next())  # E: dagpu-feed-escape


async def asked_by_a_closure_after_its_block() -> None:
    async with flow([1, 2]) as feed:

        async def ask() -> int:
            return await feed.next()

    print(await ask())  # E: dagpu-feed-escape


async def given_to_a_task_of_a_nursery_around_it() -> None:  # R: runs
    async def ask(feed: Feed[int]) -> None:
        print(feed.stats.values)

    async with trio.open_nursery() as nursery, flow([1, 2]) as feed:  # E: dagpu-feed-escape
        nursery.start_soon(ask, feed)


async def returned() -> None:  # R: runs
    async def opened() -> Feed[int]:
        async with flow([1]) as feed:
            return feed  # E: dagpu-feed-escape

    print((await opened()).stats.values)


async def returned_in_a_closure() -> None:  # R: runs
    async def opened() -> Callable[[], Awaitable[int]]:
        async with flow([1]) as feed:
            return lambda: feed.next()  # E: dagpu-feed-escape

    await opened()


async def yielded() -> None:  # R: runs
    async def opened() -> AsyncIterator[Feed[int]]:
        async with flow([1]) as feed:
            yield feed  # E: dagpu-feed-escape

    async for feed in opened():
        print(feed.stats.values)


async def put_into_a_list_of_the_caller() -> None:  # R: runs
    async def opened(feeds: list[Feed[int]]) -> None:
        async with flow([1]) as feed:
            feeds.append(feed)  # E: dagpu-feed-escape

    await opened([])


async def asked_by_a_bound_method() -> None:
    async with flow([1, 2]) as feed:
        ask = feed.next
    print(await ask())  # E: dagpu-feed-escape


async def asked_by_a_partial() -> None:
    async with flow([1, 2]) as feed:
        ask = partial(feed.next)
    print(await ask())  # E: dagpu-feed-escape


async def asked_by_anext() -> None:
    async with flow([1, 2]) as feed:
        print(await anext(feed))
    print(await anext(feed))  # E: dagpu-feed-escape


@asynccontextmanager
async def opened_by_a_manager() -> AsyncIterator[Feed[int]]:
    async with flow([1, 2]) as feed:
        yield feed


async def asked_after_a_manager() -> None:
    async with opened_by_a_manager() as feed:
        print(await feed.next())
    print(await feed.next())  # E: dagpu-feed-escape
