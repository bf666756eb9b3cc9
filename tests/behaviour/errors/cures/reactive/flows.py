"""Mistakes with flows, feeds and batching."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import trio
import trio.testing
from rich.console import Console

import dagpu
from dagpu import DeviceOp, Stats, batching, every, flow, merge, source, value, watch, zip_flows, zip_ops
from tests.behaviour.errors.cures.catalogue import Catalogue, anything

CATALOGUE = Catalogue()
case = CATALOGUE.add


def collected(described: Any) -> list[Any]:
    """Open a flow, and return its values."""

    async def main() -> list[Any]:
        async with described as feed:
            return [x async for x in feed]

    return trio.run(main)


def in_trio(main: Callable[[], Awaitable[Any]]) -> Any:
    return trio.run(main)


numbers: Any = flow([1, 2, 3])
"""A flow whose type is hidden, so that the mistakes pass the type checker."""


# ---- asyncio


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def one_in_the_other() -> None:
    await dagpu.in_trio(nothing)


case(
    lambda: asyncio.run(dagpu.in_trio(anything(nothing()))),
    ("Pass the async function itself, without calling it: in_trio(main)", lambda: asyncio.run(dagpu.in_trio(nothing))),
)
case(
    lambda: trio.run(one_in_the_other),
    ("Await the function there", lambda: trio.run(nothing)),
    ("or put what belongs together into one function with a nursery", lambda: asyncio.run(dagpu.in_trio(nothing))),
)


# ---- making


case(lambda: flow(anything(3)), ("Pass a list or a generator", lambda: collected(flow([3]))))
case(
    lambda: flow(anything(value(3))),
    ("Of ops, make a flow of their arguments: flow(items).run(f)", lambda: collected(flow([3]).run(value))),
)
case(lambda: flow(numbers), ("Use the flow itself, which is one already", lambda: collected(numbers)))
case(lambda: every(0), ("Write 0.01, say", lambda: collected(every(0.01).take(1))))
case(lambda: merge(), ("Pass one or more: merge(a, b)", lambda: collected(merge(numbers, numbers))))
case(
    lambda: zip_flows(numbers, anything([1])),
    ("Make one of it: flow(items)", lambda: collected(zip_flows(numbers, flow([1])))),
)


# ---- operators


case(
    lambda: collected(numbers.map(value)),
    ("Use .run(f)", lambda: collected(numbers.run(value))),
)
case(
    lambda: collected(numbers.run(lambda x: x + 1)),
    ("Return an op: value(x) makes one of a value", lambda: collected(numbers.run(lambda x: value(x + 1)))),
    (".map(f) of a flow takes a function of the host", lambda: collected(numbers.map(lambda x: x + 1))),
)
case(
    lambda: numbers.fold(value(0), lambda pair: pair),
    (
        "Write .fold(state, lambda state, x: ...)",
        lambda: collected(numbers.fold(value(0), lambda state, x: value((state, x)))),
    ),
)
case(
    lambda: collected(numbers.fold(value(0), lambda state, x: value(state + x))),
    (
        "Join two ops: zip_ops(state, output)",
        lambda: collected(numbers.fold(value(0), lambda state, x: zip_ops(value(state + x), value(x)))),
    ),
)
case(
    lambda: collected(numbers.switch(lambda x: [x])),
    ("Return one: flow(items)", lambda: collected(numbers.switch(lambda x: flow([x])))),
)


async def into_a_source() -> None:
    target = source(0)
    target.set(7)
    await numbers.into(target)


case(
    lambda: in_trio(lambda: numbers.into([])),
    ("Pass a source, or an object with a method set(x)", lambda: in_trio(into_a_source)),
)


def stopped(x: int) -> int:
    raise StopAsyncIteration(x)


def caught(x: int) -> int | None:
    try:
        return stopped(x)
    except StopAsyncIteration:
        return None


class Empty:
    """An async iterator without items, which never waits."""

    def __aiter__(self) -> "Empty":
        return self

    async def __anext__(self) -> int:
        raise StopAsyncIteration


def first_or_none(x: int) -> object:
    """Drive `anext` by hand: a function of the host cannot await."""
    try:
        anext(Empty(), None).__await__().send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the iterator never waits")


case(
    lambda: collected(numbers.map(stopped)),
    ("Catch it there", lambda: collected(numbers.map(caught))),
    ("ask for a default: await anext(iterator, None)", lambda: collected(numbers.map(first_or_none))),
)


def ended(x: int) -> int:
    raise trio.EndOfChannel(x)


def used_up() -> object:
    once = flow(x for x in range(2))
    return [collected(once), collected(once)]


case(
    lambda: collected(numbers.map(ended)),
    ("ask for a default: await anext(channel, None)", lambda: collected(numbers.map(first_or_none))),
)
case(
    used_up,
    ("Make a flow of a list", lambda: [collected(numbers), collected(numbers)]),
    ("or another one of a new iterator", lambda: [collected(flow(x for x in range(2))) for _ in range(2)]),
)


# ---- opening and asking


def opened_in_asyncio() -> object:
    async def main() -> None:
        async with numbers:
            pass

    return asyncio.run(main())


case(
    opened_in_asyncio,
    ("Open it in an async function that trio.run(...) runs", lambda: collected(numbers)),
)


def iterated() -> object:
    async def main() -> None:
        async for _ in numbers:
            pass

    return trio.run(main)


case(
    iterated,
    ("Open it: async with flow as feed, and then async for x in feed", lambda: collected(numbers)),
)


def asked(how: Callable[[], Awaitable[object]]) -> object:
    async def main() -> object:
        return await how()

    return trio.run(main)


async def opened_and_asked() -> object:
    async with numbers as feed:
        return await feed.next()


case(
    lambda: asked(lambda: numbers.next()),
    ("Open it: async with flow as feed, and then feed.next", lambda: asked(opened_and_asked)),
)


async def asked_after() -> object:
    async with numbers as feed:
        pass
    return await feed.next()


case(lambda: asked(asked_after), ("Ask it inside", lambda: asked(opened_and_asked)))


async def asked_twice() -> None:
    async with every(1).map(float) as feed, trio.open_nursery() as nursery:
        await feed.next()
        nursery.start_soon(feed.next)
        await trio.testing.wait_all_tasks_blocked()
        await feed.next()


async def opened_twice(described: Any = numbers) -> None:
    async with described as one, described as other, trio.open_nursery() as nursery:
        nursery.start_soon(one.next)
        nursery.start_soon(other.next)


async def shared_by_two() -> None:
    op = value(1).shared()
    await opened_twice(flow([1]).run(lambda _: op))


def alone(main: Callable[[], Awaitable[object]]) -> object:
    """Run, with an error out of its group."""
    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


case(
    lambda: alone(asked_twice),
    ("Open the flow twice", lambda: alone(opened_twice)),
    ("share what it computes with op.shared()", lambda: alone(shared_by_two)),
)


# ---- numbers and pictures


case(
    lambda: Stats().latency(99),
    ("Write 0.99 for the time that one value in a hundred exceeds", lambda: Stats().latency(0.99)),
)


def watched(**options: Any) -> object:
    async def main() -> None:
        async with numbers as feed:
            with watch(feed, **options):
                await feed.next()

    return trio.run(main)


def watched_closed() -> object:
    with watch(numbers):
        return None


case(
    watched_closed,
    ("Open the flow, and pass what the block gets: async with flow as feed", watched),
)
case(lambda: watched(title=3), ('Write title="frames"', lambda: watched(title="frames")))
case(
    lambda: watched(console=3),
    ("Leave it out", watched),
    ("pass rich.console.Console()", lambda: watched(console=Console())),
)


def watched_without_rich() -> object:
    with patch.dict(sys.modules, {"rich": None, "rich.console": None}):
        return watched()


case(watched_without_rich, ("Install it: pip install rich", watched))


# ---- batching


def answered(f: Callable[[tuple[int, ...]], Any], *, blocks: int = 1) -> object:
    async def main() -> object:
        async with contextlib.AsyncExitStack() as stack:
            service = batching(f, most=2)
            for _ in range(blocks):
                ask = await stack.enter_async_context(service)
            return await ask(1)

    return trio.run(main)


echo: Callable[[tuple[int, ...]], DeviceOp[tuple[int, ...]]] = value


def answered_twice() -> object:
    async def main() -> object:
        async with batching(echo, most=2) as ask, batching(echo, most=2) as other:
            return await ask(1), await other(1)

    return trio.run(main)


def answered_after() -> object:
    async def main() -> object:
        async with batching(echo, most=2) as ask:
            pass
        return await ask(1)

    return trio.run(main)


case(
    lambda: answered(lambda xs: value([])),
    ("Return one for each, in order", lambda: answered(lambda xs: value(list(xs)))),
)
case(lambda: answered(value, blocks=2), ("Call batching(...) for each block", answered_twice))
case(
    answered_after,
    ("Ask inside, and wait for the answers there", lambda: answered(value)),
)
