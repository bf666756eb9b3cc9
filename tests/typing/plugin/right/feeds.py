"""Feeds that are asked in their blocks, and what may be used of them after."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from dagpu import DeviceOp, Feed, flow, observe, source, value


async def first_of(feed: Feed[int]) -> int:
    return await feed.next()


async def show(feed: Feed[int]) -> None:
    async for n in feed:
        print(n)


async def asked() -> int:
    async with flow([1, 2]) as feed:
        return await feed.next()


async def iterated_and_left() -> None:
    async with flow([1, 2]) as feed:
        async for n in feed:
            if n == 1:
                break
        print(await feed.next())


async def numbers_after_the_block() -> None:
    async with flow([1, 2]) as feed:
        last = await feed.next()
    print(feed.stats.values, feed.origin, last)


async def passed_to_a_function_that_is_awaited() -> None:
    async with flow([1, 2]) as feed:
        last = await first_of(feed)
    print(last)


async def given_to_a_task_of_a_nursery_inside() -> None:
    async with flow([1, 2]) as feed, trio.open_nursery() as nursery:
        nursery.start_soon(show, feed)


async def given_to_a_task_of_a_nursery_opened_after_it() -> None:
    async with flow([1, 2]) as feed, trio.open_nursery() as nursery:
        nursery.start_soon(show, feed)


async def asked_by_a_closure_in_a_task() -> None:
    async with flow([1, 2]) as feed:

        async def ask() -> None:
            print(await feed.next())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)


async def beside_a_nursery_with_other_tasks() -> None:
    async with trio.open_nursery() as nursery, flow([1, 2]) as feed:
        nursery.start_soon(trio.sleep, 0)
        print(await feed.next())


async def opened_again() -> None:
    numbers = flow([1, 2])
    for _ in range(2):
        async with numbers as feed:
            print(await feed.next())
    async with numbers as feed:
        print(await feed.next())


async def values_kept() -> list[int]:
    found: list[int] = []
    async with flow([1, 2]) as feed:
        found.append(await feed.next())
        found.extend([n async for n in feed])
    return found


async def ops_kept() -> None:
    ops: list[DeviceOp[int]] = []
    async with flow([value(1), value(2)]) as feed:
        ops.append(await feed.next())
        ops += [op async for op in feed]
    print([await op for op in ops])


async def name_used_again() -> None:
    async with flow([1]) as feed:
        print(await feed.next())
    async with observe(source(1)) as feed:
        print(await feed.next())


async def error_caught_around_the_block() -> None:
    try:
        async with flow([1]) as feed:
            print(await feed.next(), await feed.next())
    except trio.EndOfChannel:
        print(feed.stats.values)  # pyright: ignore[reportPossiblyUnboundVariable]  # reason: flow() opens without one


async def opened_by_a_context_manager_of_ones_own() -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Feed[int]]:
        async with flow([1, 2]) as feed:
            yield feed

    async with opened() as numbers:
        print(await numbers.next())


async def returned_for_its_numbers_after_the_block() -> None:
    async def watched() -> Feed[int]:
        async with flow([1, 2]) as feed:
            await feed.next()
        return feed

    print((await watched()).stats.values)


async def asked_later_in_the_block() -> None:
    async with flow([1, 2, 3]) as feed:
        ask, bound = feed.next, partial(feed.next)
        print(await ask(), await bound(), await anext(feed))


@asynccontextmanager
async def given_on(feed: Feed[int]) -> AsyncIterator[Feed[int]]:
    print(feed.stats.values)
    yield feed


async def manager_in_the_block() -> None:
    async with flow([1, 2]) as feed:
        async with given_on(feed) as same:
            print(await same.next())
        print(await feed.next())
