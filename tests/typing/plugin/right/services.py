"""Classes and tasks around tensors: pools, models, servers, streams."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    empty,
    f32,
    from_host,
    full,
    ones,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, gemm, saxpy, scale, total, vector

T = TypeVar("T")


def scaled(a: float, x: Tensor[f32] | SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    """A pipeline of one kernel, for an input that nobody has lent."""
    result: DeviceOp[Tensor[f32]] = saxpy(zeros((8,)).partition((4,)), a, x).first().unpartition()
    return result


class Pool:
    """Buffers of one size, lent out and given back."""

    def __init__(self, count: int) -> None:
        self._free = [empty((8,)).sync() for _ in range(count)]

    def take(self) -> Tensor[f32]:
        return self._free.pop()

    def give(self, t: Tensor[f32]) -> None:
        self._free.append(t)

    def __len__(self) -> int:
        return len(self._free)


def pool_of_buffers() -> None:
    pool = Pool(2)
    for _ in range(5):
        buffer = pool.take()
        try:
            scale(buffer.borrow_mut().partition((4,)), 2.0).sync()
        finally:
            pool.give(buffer)
    print(len(pool))


class Cell:
    """A recurrent cell: its state moves through each step."""

    def __init__(self) -> None:
        self.state = zeros((8,)).sync()
        self.weights = vector().share()

    def step(self, x: Tensor[f32]) -> TensorRef[f32]:
        mixed = saxpy(self.state.partition((4,)), 0.5, x).first()
        self.state = saxpy(mixed, 0.1, self.weights).first().unpartition().sync()
        return self.state.borrow()

    def reset(self) -> Tensor[f32]:
        last, self.state = self.state, zeros((8,)).sync()
        return last


def recurrent_network() -> None:
    cell = Cell()
    for _ in range(4):
        print(total(cell.step(vector())))
    eat(cell.reset())
    print(total(cell.step(vector())))


class Mlp:
    """Layers in a list; forward borrows them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.layers = [full((n, m), 0.5).sync() for n, m in pairwise(sizes)]

    def forward(self, x: DeviceOp[Tensor[f32]]) -> DeviceOp[Tensor[f32], Borrowed]:
        h: DeviceOp[Tensor[f32], Borrowed] = x
        for layer in self.layers:
            h = gemm(empty((4, layer.shape[1])).partition((2, 2)), h, layer.borrow()).first().unpartition()
        return h

    def state(self) -> dict[str, NDArray[f32]]:
        return {f"layer {i}": layer.borrow().to_host().sync() for i, layer in enumerate(self.layers)}

    def load(self, state: dict[str, NDArray[f32]]) -> None:
        self.layers = [from_host(array).sync() for array in state.values()]


def multi_layer_perceptron() -> None:
    model = Mlp([4, 6, 4])
    print(model.forward(ones((4, 4))).to_host().sync())
    model.load(model.state())
    print(model.forward(ones((4, 4))).to_host().sync())


class Server:
    """Answers requests with one model, several at a time."""

    def __init__(self, weights: SharedTensor[f32], limit: int) -> None:
        self.weights = weights
        self.limit = trio.CapacityLimiter(limit)
        self.served = 0

    async def answer(self, array: NDArray[f32]) -> NDArray[f32]:
        async with self.limit:
            result = await scaled_by(self.weights, from_host(array)).to_host()
            self.served += 1
            return result


def scaled_by(weights: SharedTensor[f32], x: DeviceOp[Tensor[f32]]) -> DeviceOp[Tensor[f32]]:
    """weights + x."""
    return add(empty((8,)).partition((4,)), weights, x).first().unpartition()


async def server() -> None:
    server = Server(await ones((8,)).share(), 2)
    answers: list[NDArray[f32]] = []

    async def client(number: int) -> None:
        answers.append(await server.answer(np.full(8, number, np.float32)))

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(client, number)
    print(server.served, sorted(float(answer[0]) for answer in answers))


async def stream_processor() -> None:
    async def source(channel: trio.MemorySendChannel[Tensor[f32]]) -> None:
        async with channel:
            for number in range(3):
                await channel.send(await full((8,), float(number)))

    async def double(
        incoming: trio.MemoryReceiveChannel[Tensor[f32]], outgoing: trio.MemorySendChannel[Tensor[f32]]
    ) -> None:
        async with incoming, outgoing:
            async for t in incoming:
                p, *_ = await scale(t.partition((4,)), 2.0)
                await outgoing.send(p.unpartition())

    raw_in, raw_out = trio.open_memory_channel[Tensor[f32]](1)
    done_in, done_out = trio.open_memory_channel[Tensor[f32]](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source, raw_in)
        nursery.start_soon(double, raw_out, done_in)
        async with done_out:
            async for t in done_out:
                print(await t.to_host())


async def overlapped_batches() -> None:
    async with trio.open_nursery() as nursery:
        results = []
        for number in range(3):
            batch = await full((8,), float(number))
            results.append(spawn(nursery, scaled(2.0, batch).to_host()))
        print([await result for result in results])


async def share_instead_of_lending() -> None:
    weights = await ones((8,))
    shared = weights.share()
    async with trio.open_nursery() as nursery:
        results = [spawn(nursery, scaled(a, shared.clone()).to_host()) for a in (2.0, 3.0)]
        twofold, threefold = [await result for result in results]
    print(twofold, threefold)
    results.clear()
    owned = shared.try_unwrap()
    await saxpy(owned.borrow_mut().partition((4,)), 1.0, ones((8,)))
    print(await owned.to_host())


def writes_where_it_is_told() -> None:
    def write_into(out: TensorMut[f32], x: TensorRef[f32]) -> None:
        saxpy(out.partition((4,)), 1.0, x).sync()

    buffers = [zeros((8,)).sync() for _ in range(2)]
    x = vector()
    for buffer in buffers:
        write_into(buffer.borrow_mut(), x.borrow())
    write_into(x.borrow_mut(), buffers[0].borrow())
    print(total(x.borrow()))


def swaps_what_two_names_hold() -> None:
    best, candidate = vector(), vector()
    for number in range(3):
        scale(candidate.borrow_mut().partition((4,)), float(number)).sync()
        if total(candidate.borrow()) > total(best.borrow()):
            best, candidate = candidate, best
    print(total(best.borrow()))


def command_line() -> None:
    def main(arguments: Sequence[str]) -> int:
        t = vector()
        match list(arguments):
            case ["double", *_]:
                scale(t.borrow_mut().partition((4,)), 2.0).sync()
            case ["share"]:
                print(t.share().shape)
                return 0
            case ["cut", tile] if tile.isdigit():
                print(t.partition((int(tile),)).grid)
                return 0
            case _:
                print("usage: double | share | cut N")
                return 2
        print(t.to_host().sync())
        return 0

    print([main(words) for words in (["double"], ["share"], ["cut", "4"], [])])


def value_in_a_pipeline() -> None:
    a, b = zip_ops(value(2.0), value(3.0)).map(lambda pair: (pair[1], pair[0])).sync()
    scale(zeros((8,)).partition((4,)), value(a + b)).sync()
