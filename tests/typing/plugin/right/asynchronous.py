"""Tasks, nurseries, queues, generators and time limits as programs on trio use them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    OperationCancelled,
    Pending,
    SharedTensor,
    Tensor,
    dup,
    f32,
    from_host,
    ones,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, async_eat, async_total, async_vector, eat, saxpy, vector


async def awaited_once() -> None:
    t = await async_vector()
    print(t.shape, await t.to_host())


async def awaited_one_after_the_other() -> None:
    y, x = await async_vector(), (await async_vector()).share()
    p, _, _ = await saxpy(y.partition((4,)), 1.0, x)
    p, _, _ = await saxpy(p, 2.0, x)
    print(await p.unpartition().to_host())


async def awaited_in_a_loop() -> None:
    y, x = await zip_ops(zeros((8,)), ones((8,)))
    for _ in range(3):
        await saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())
    print(await y.to_host())


async def awaited_together() -> None:
    a, b = await zip_ops(zeros((8,)), ones((8,)))
    first, second = await zip_ops(a.to_host(), b.to_host())
    print(first, second)


async def spawned() -> None:
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, ones((8,)).to_host())
        print(await pending, await pending)


async def spawned_with_an_owned_tensor() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        print(await spawn(nursery, t.to_host()))


async def spawned_and_left_to_itself() -> None:
    async with trio.open_nursery() as nursery:
        spawn(nursery, ones((8,)))
        _ = spawn(nursery, value(1))


async def spawned_in_a_loop() -> None:
    s = (await async_vector()).share()
    async with trio.open_nursery() as nursery:
        results = [spawn(nursery, add(zeros((8,)).partition((4,)), s, s)) for _ in range(3)]
        for result in results:
            out, *_ = await result
            print(out.grid)


async def spawned_from_fresh_tensors() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            t = await async_vector()
            spawn(nursery, t.to_host())


async def one_step_ahead() -> None:
    async with trio.open_nursery() as nursery:
        upcoming: Pending[Tensor[f32]] = spawn(nursery, ones((8,)))
        for number in range(3):
            batch = await upcoming
            if number < 2:
                upcoming = spawn(nursery, ones((8,)))
            await async_eat(batch)


async def cancelled() -> None:
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, ones((8,)))
        pending.cancel()
        try:
            await pending
        except OperationCancelled:
            print("cancelled", pending.done())


async def tasks_that_own() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(async_eat, await async_vector())


async def tasks_that_share() -> None:
    s = (await async_vector()).share()

    async def work(number: int) -> None:
        await saxpy(zeros((8,)).partition((4,)), float(number), s)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number)
    print(s.shape)


async def task_moves_a_capture_once() -> None:
    t = await async_vector()

    async def work() -> None:
        await t.to_host()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


async def tasks_with_results() -> None:
    results: dict[int, NDArray[f32]] = {}

    async def work(number: int, t: Tensor[f32]) -> None:
        results[number] = await t.to_host()

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number, await async_vector())
    print(results)


async def queue() -> None:
    async def produce(channel: trio.MemorySendChannel[Tensor[f32]]) -> None:
        async with channel:
            for _ in range(3):
                t = await async_vector()
                await channel.send(t)

    send, receive = trio.open_memory_channel[Tensor[f32]](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce, send)
        async with receive:
            async for t in receive:
                await async_eat(t)


Request: TypeAlias = tuple[NDArray[f32], trio.MemorySendChannel[NDArray[f32]]]


async def queue_of_requests_and_replies() -> None:
    async def serve(weights: Tensor[f32], requests: trio.MemoryReceiveChannel[Request]) -> None:
        async with requests:
            async for array, reply in requests:
                out: NDArray[f32] = await (
                    add(zeros((8,)).partition((4,)), from_host(array), weights.borrow()).first().unpartition().to_host()
                )
                await reply.send(out)

    requests, incoming = trio.open_memory_channel[Request](4)
    replies, answers = trio.open_memory_channel[NDArray[f32]](4)
    async with trio.open_nursery() as nursery, replies, answers:
        nursery.start_soon(serve, await async_vector(), incoming)
        async with requests:
            for _ in range(3):
                await requests.send((np.ones(8, np.float32), replies))
        for _ in range(3):
            print(await answers.receive())


async def under_a_time_limit() -> None:
    t = await async_vector()
    with trio.move_on_after(60) as scope:
        await async_total(t.borrow())
    if not scope.cancelled_caught:
        await t.to_host()


async def retried() -> None:
    y, x = await zip_ops(zeros((8,)), ones((8,)))
    for attempt in range(3):
        try:
            await saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())
            if attempt < 1:
                raise RuntimeError("for a test")
            break
        except RuntimeError:
            await trio.lowlevel.checkpoint()
    await y.to_host()


async def generator_of_batches() -> None:
    async def batches(count: int) -> AsyncGenerator[Tensor[f32], None]:
        for _ in range(count):
            t = await async_vector()
            yield t

    async with aclosing(batches(3)) as source:
        async for batch in source:
            print(batch.shape)
            await async_eat(batch)


async def comprehension() -> None:
    print([await async_eat(await async_vector()) for _ in range(3)])


async def context_manager() -> None:
    @asynccontextmanager
    async def scratch() -> AsyncGenerator[Tensor[f32], None]:
        t = await async_vector()
        print("taken")
        yield t
        print("given back")

    async with scratch() as t:
        await async_total(t.borrow())


async def callback() -> None:
    async def with_tensor(use: Callable[[Tensor[f32]], Awaitable[object]]) -> None:
        await use(await async_vector())

    await with_tensor(async_eat)


async def gathered() -> None:
    async def collect(*ops: DeviceOp[NDArray[f32]]) -> list[NDArray[f32]]:
        results: list[NDArray[f32]] = []
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, op) for op in ops]
            for each in pending:
                results.append(await each)  # noqa: PERF401  # awaiting one after the other is what is shown
        return results

    a, b = await async_vector(), await async_vector()
    print(await collect(a.to_host(), b.to_host()))


async def events() -> None:
    ready = trio.Event()
    box: list[Tensor[f32]] = []

    async def produce() -> None:
        box.append(await async_vector())
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await ready.wait()
        await async_eat(box.pop())


async def lock_around_a_tensor() -> None:
    lock, y = trio.Lock(), await async_vector()
    x = (await async_vector()).share()

    async def work() -> None:
        async with lock:
            await saxpy(y.borrow_mut().partition((4,)), 1.0, x)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    assert await async_total(y.borrow()) == 32


async def finally_with_an_await() -> None:
    t = await async_vector()
    try:
        await async_total(t.borrow())
    finally:
        with trio.CancelScope(shield=True):
            await t.to_host()


def generator_yields_each_once() -> None:
    def batches(count: int) -> Iterator[Tensor[f32]]:
        for _ in range(count):
            t = vector()
            print(t.shape)
            yield t

    for batch in batches(3):
        eat(batch)


def generator_that_delegates() -> None:
    def one() -> Iterator[Tensor[f32]]:
        yield vector()

    def many() -> Iterator[Tensor[f32]]:
        yield from one()
        yield from [vector(), vector()]

    for t in many():
        eat(t)


def generator_of_windows() -> None:
    def windows(tensors: Iterator[SharedTensor[f32]]) -> Iterator[tuple[SharedTensor[f32], SharedTensor[f32]]]:
        last = next(tensors)
        for t in tensors:
            yield last, t
            last = t

    for a, b in windows(vector().share() for _ in range(3)):
        add(zeros((8,)).partition((4,)), a, b).sync()


async def copy_goes_one_way_the_tensor_the_other() -> None:
    t = await async_vector()
    copy = await dup(t.borrow())
    async with trio.open_nursery() as nursery:
        spawn(nursery, copy.to_host())
        spawn(nursery, t.to_host())
