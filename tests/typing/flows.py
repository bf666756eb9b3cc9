"""Checked, not run: the element types of flows and feeds, and what the operators refuse with no plugin."""

from collections.abc import AsyncIterator
from typing import Any, assert_type

import trio
from numpy.typing import NDArray

from dagpu import (
    Ask,
    Borrowed,
    DeviceOp,
    Feed,
    Flow,
    SharedTensor,
    Stats,
    Tensor,
    TensorRef,
    batching,
    every,
    f32,
    flow,
    from_host,
    merge,
    pipeline,
    value,
    watch,
    zeros,
    zip_flows,
    zip_ops,
)


@pipeline
def model(a: NDArray[f32]) -> DeviceOp[NDArray[f32]]:
    return from_host(a).to_host()


def softened(a: NDArray[f32]) -> DeviceOp[Tensor[f32]]:
    return from_host(a)


def step(state: Tensor[f32], a: NDArray[f32]) -> DeviceOp[tuple[Tensor[f32], int]]:
    return zip_ops(value(state), value(1))


def trail(state: SharedTensor[f32], t: Tensor[f32]) -> DeviceOp[tuple[SharedTensor[f32], NDArray[f32]]]:
    return zip_ops(value(state), value(t).to_host())


def classified(batch: tuple[NDArray[f32], ...]) -> DeviceOp[list[int]]:
    return value([0 for _ in batch])


async def making(frames: AsyncIterator[NDArray[f32]], numbers: trio.MemoryReceiveChannel[int]) -> None:
    """Flows of iterables of both kinds, of ticks, and of flows."""
    assert_type(flow(frames), Flow[NDArray[f32]])
    assert_type(flow(numbers), Flow[int])
    assert_type(flow(["a"]), Flow[str])
    assert_type(every(0.5), Flow[float])
    assert_type(merge(flow([1]), flow([2])), Flow[int])
    assert_type(zip_flows(flow([1]), flow(["a"])), Flow[tuple[int, str]])
    assert_type(zip_flows(flow([1]), flow(["a"]), every(1)), Flow[tuple[int, str, float]])
    one = flow([1])
    assert_type(zip_flows(one, one, one, one, one, one, one, one), Flow[tuple[int, int, int, int, int, int, int, int]])


async def operating(frames: Flow[NDArray[f32]]) -> None:
    """Each operator's element type follows from its function's."""
    assert_type(frames.map(len), Flow[int])
    assert_type(frames.where(lambda x: x.size > 1), Flow[NDArray[f32]])
    assert_type(frames.take(3), Flow[NDArray[f32]])
    assert_type(frames.window(3, step=2), Flow[tuple[NDArray[f32], ...]])
    assert_type(frames.run(model, in_flight=3), Flow[NDArray[f32]])
    assert_type(frames.run(softened, memory=1 << 20, ordered=False), Flow[Tensor[f32]])
    assert_type(frames.fold(zeros((4,)), step), Flow[int])
    assert_type(frames.run(softened).fold(zeros((4,)).share(), trail, in_flight=2), Flow[NDArray[f32]])
    assert_type(frames.latest().at_most(30), Flow[NDArray[f32]])
    assert_type(frames.batched(8, within=0.01), Flow[tuple[NDArray[f32], ...]])
    assert_type(flow([1]).switch(lambda n: flow(["a"] * n)), Flow[str])
    wider: Flow[object] = frames  # a flow is read: covariant
    assert wider is not None


async def opening(frames: Flow[NDArray[f32]]) -> None:
    """A feed is iterated over, or asked."""
    async with frames as feed:
        assert_type(feed, Feed[NDArray[f32]])
        assert_type(await feed.next(), NDArray[f32])
        assert_type(feed.stats, Stats)
        assert_type(feed.stats.waiting, tuple[float, float])
        assert_type(feed.stats.latency(0.99), float)
        assert_type(feed.explain(), str)
        with watch(feed, total=3, title="frames"):
            async for frame in feed:
                assert_type(frame, NDArray[f32])


async def asking(image: NDArray[f32]) -> None:
    """The answer is an item of what the op results in."""
    async with batching(classified, most=8, within=0.01, in_flight=2) as ask:
        assert_type(ask, Ask[NDArray[f32], int])
        assert_type(await ask(image), int)
        assert_type(ask.stats, Stats)
        await ask("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Numbers:
    """Takes numbers, like a source of them."""

    def set(self, x: int, /) -> None: ...


def refused_ops(numbers: Flow[int], held: TensorRef[f32], lent: DeviceOp[int, Borrowed]) -> None:
    """An op that borrows, another argument or another result is refused where the flow is described."""
    numbers.run(lambda i: held.to_host())  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    numbers.run(lambda i: lent)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    numbers.run(model)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.run(lambda i: i)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    numbers.fold(1, lambda s, i: value((s, i)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.fold(zeros((4,)), step)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.fold(lent, lambda s, i: value((s, i)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.map(model)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.switch(lambda i: [i])  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    merge(numbers, [1])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    flow(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def refused_flows(numbers: Flow[int], texts: Flow[str], any_flow: Flow[Any]) -> None:
    """A flow that is not open has no values, and a target takes its own type."""
    async for _ in numbers:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    for _ in numbers:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    await numbers  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    numbers.next()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await numbers.into(Numbers())
    await texts.into(Numbers())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await any_flow.into(Numbers())
    narrow: Flow[bool] = numbers  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    assert narrow is not None
