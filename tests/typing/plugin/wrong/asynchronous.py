"""Moves across `await`, in tasks, in generators and in asynchronous loops."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import trio

from dagpu import DeviceOp, Tensor, dup, f32, spawn, value, zeros, zip_ops
from tests.typing.plugin.kernels import async_eat, async_total, async_vector, eat, saxpy, vector, yes


async def awaited_and_used() -> None:
    t = await async_vector()
    await t.to_host()
    print(t.shape)  # E: dagpu-use-after-move


async def awaited_twice() -> None:
    t = await async_vector()
    await t.to_host()
    await t.to_host()  # E: dagpu-use-after-move


async def moved_into_an_awaited_call() -> None:
    t = await async_vector()
    await async_eat(t)
    await async_total(t.borrow())  # E: dagpu-use-after-move


async def moved_into_a_kernel() -> None:
    y, x = await async_vector(), await async_vector()
    await saxpy(y.partition((4,)), 1.0, x)
    print(y.shape)  # E: dagpu-use-after-move


async def moved_in_a_loop_of_awaits() -> None:
    y, x = await async_vector(), await async_vector()
    for _ in range(2):
        await saxpy(y.borrow_mut().partition((4,)), 1.0, x)  # E: dagpu-use-after-move


async def moved_before_a_checkpoint() -> None:
    t = await async_vector()
    copy = dup(t)
    await trio.lowlevel.checkpoint()
    print(t.shape)  # E: dagpu-use-after-move
    await copy


async def moved_into_a_spawned_op() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, t.to_host())
        print(t.shape)  # E: dagpu-use-after-move
        await pending


async def moved_into_two_spawned_ops() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, dup(t))
        spawn(nursery, dup(t))  # E: dagpu-use-after-move


async def moved_into_spawned_ops_in_a_loop() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            spawn(nursery, t.to_host())  # E: dagpu-use-after-move


async def moved_into_a_task() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(async_eat, t)
    print(t.shape)  # E: dagpu-use-after-move


async def moved_into_two_tasks() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(async_eat, t)
        nursery.start_soon(async_eat, t)  # E: dagpu-use-after-move


async def captured_by_a_task() -> None:
    t = await async_vector()

    async def work() -> None:
        await t.to_host()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
    print(t.shape)  # E: dagpu-use-after-move


async def captured_by_two_tasks() -> None:
    t = await async_vector()

    async def work() -> None:
        await t.to_host()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)  # E: dagpu-use-after-move


async def moved_in_an_async_with() -> None:
    t = await async_vector()
    async with trio.open_nursery():
        await async_eat(t)
    print(t.shape)  # E: dagpu-use-after-move


async def moved_under_a_time_limit() -> None:
    t = await async_vector()
    with trio.move_on_after(60):
        await async_eat(t)
    print(t.shape)  # E: dagpu-use-after-move


async def moved_in_an_async_for() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        yield 0
        yield 1

    t = await async_vector()
    async with aclosing(numbers()) as source:
        async for number in source:
            print(number, await async_eat(t))  # E: dagpu-use-after-move


async def variable_of_an_async_for() -> None:
    async def batches() -> AsyncGenerator[Tensor[f32], None]:
        yield await async_vector()

    async with aclosing(batches()) as source:
        async for batch in source:
            await async_eat(batch)
            print(batch.shape)  # E: dagpu-use-after-move


async def in_an_async_comprehension() -> None:
    t = await async_vector()
    print([await async_eat(t) for _ in range(2)])  # E: dagpu-use-after-move


async def cancelled_and_used() -> None:
    t = await async_vector()
    with trio.CancelScope() as scope:
        scope.cancel()
        await async_eat(t)
    print(t.shape)  # E: dagpu-use-after-move


async def moved_in_a_handler() -> None:
    t = await async_vector()
    try:
        if yes():
            raise RuntimeError("for a test")
    except RuntimeError:
        await async_eat(t)
    await dup(t)  # E: dagpu-use-after-move


async def zipped_with_itself() -> None:
    t = await async_vector()
    await zip_ops(dup(t), dup(t))  # E: dagpu-use-after-move


async def unpacked_result() -> None:
    a, b = await zip_ops(zeros((8,)), zeros((8,)))
    await async_eat(a)
    print(b.shape, a.shape)  # E: dagpu-use-after-move


async def result_of_a_pending() -> None:
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, zeros((8,)))
        t = await pending
        await async_eat(t)
        print(t.shape)  # E: dagpu-use-after-move


def generator_yields_what_it_moved() -> None:
    def batches() -> Iterator[Tensor[f32]]:
        t = vector()
        eat(t)
        yield t  # E: dagpu-use-after-move

    for batch in batches():
        print(batch.shape)


def generator_uses_what_it_yielded() -> None:
    def batches() -> Iterator[Tensor[f32]]:
        t = vector()
        yield t
        print(t.shape)  # E: dagpu-use-after-move

    for batch in batches():
        eat(batch)


def generator_yields_the_same_twice() -> None:
    def batches() -> Iterator[Tensor[f32]]:
        t = vector()
        for _ in range(2):
            yield t  # E: dagpu-use-after-move

    for batch in batches():
        eat(batch)


def generator_yields_from_a_list() -> None:
    def batches() -> Iterator[Tensor[f32]]:
        t = vector()
        yield from [t]
        yield t  # E: dagpu-use-after-move

    for batch in batches():
        eat(batch)


async def sent_into_a_queue() -> None:
    taken = trio.Event()

    async def producer(channel: trio.MemorySendChannel[Tensor[f32]]) -> None:
        t = await async_vector()
        await channel.send(t)
        await taken.wait()
        print(t.shape)  # E: dagpu-use-after-move

    send, receive = trio.open_memory_channel[Tensor[f32]](1)
    async with send, receive, trio.open_nursery() as nursery:
        nursery.start_soon(producer, send)
        await async_eat(await receive.receive())
        taken.set()


async def op_built_from_a_moved_handle() -> None:
    def doubled(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        return dup(t)

    t = await async_vector()
    await doubled(t)
    await value(t)  # E: dagpu-use-after-move
