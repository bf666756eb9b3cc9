"""Borrows that go where their tensor goes, or stay where it stays."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    dup,
    f32,
    value,
    zeros,
)
from tests.typing.plugin.kernels import async_total, async_vector, eat, saxpy, total, vector


class Model:
    """A model that owns the tensors that it lends."""

    def __init__(self) -> None:
        self.weights = vector()
        self.layers = [vector(), vector()]

    def lend(self) -> TensorRef[f32]:
        return self.weights.borrow()

    def lend_for_writing(self) -> TensorMut[f32]:
        return self.weights.borrow_mut()

    def lend_cut_up(self) -> Partition[TensorMut[f32]]:
        return self.weights.borrow_mut().partition((4,))

    def front(self) -> TensorRef[f32]:
        part = self.weights.slice(slice(0, 4))
        return part.reshape((2, 2))

    def download(self) -> DeviceOp[NDArray[f32], Borrowed]:
        return self.weights.borrow().to_host()

    def forward(self, x: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        return saxpy(zeros((8,)).partition((4,)), 2.0, x).then(lambda _: dup(self.weights.borrow()))

    def all(self) -> list[TensorRef[f32]]:
        return [layer.borrow() for layer in self.layers]

    @property
    def ref(self) -> TensorRef[f32]:
        return self.weights.borrow()

    def each(self) -> Iterator[TensorRef[f32]]:
        for layer in self.layers:
            yield layer.borrow()


def returned_from_a_method() -> None:
    model = Model()
    print(total(model.lend()), total(model.front()), total(model.ref), model.download().sync())


def returned_for_writing_from_a_method() -> None:
    model = Model()
    saxpy(model.lend_cut_up(), 1.0, vector()).sync()
    saxpy(model.lend_for_writing().partition((4,)), 1.0, vector()).sync()


def returned_op_from_a_method() -> None:
    model, x = Model(), vector()
    model.forward(x.borrow()).sync()
    model.forward(x.borrow()).sync()


def returned_list_from_a_method() -> None:
    model = Model()
    print([total(read) for read in model.all()], [total(read) for read in model.each()])


def returned_as_it_came() -> None:
    def same(x: TensorRef[f32]) -> TensorRef[f32]:
        return x

    def either(x: TensorRef[f32], y: TensorRef[f32], first: bool) -> TensorRef[f32]:
        return x if first else y

    a, b = vector(), vector()
    print(total(same(a.borrow())), total(either(a.borrow(), b.borrow(), first=True)))


def returned_part_of_what_came() -> None:
    def halves(x: TensorRef[f32]) -> tuple[TensorRef[f32], TensorRef[f32]]:
        return x.slice(slice(0, 4)), x.slice(slice(4, 8))

    def op(x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
        return dup(x)

    t = vector()
    low, high = halves(t.borrow())
    print(total(low), total(high), op(t.borrow()).sync().shape)


def returned_cut_up_as_it_came() -> None:
    def cut(y: TensorMut[f32]) -> Partition[TensorMut[f32]]:
        return y.partition((4,))

    t = vector()
    saxpy(cut(t.borrow_mut()), 1.0, vector()).sync()


def returned_together_with_its_tensor() -> None:
    def make() -> tuple[Tensor[f32], tuple[int, ...]]:
        t = vector()
        shape = t.borrow().shape
        return t, shape

    print(make()[1])


def returned_result_of_a_borrow() -> None:
    def download(t: Tensor[f32]) -> NDArray[f32]:
        array = t.borrow().to_host().sync()
        array += 1
        return array

    def copy(t: Tensor[f32]) -> Tensor[f32]:
        return dup(t.borrow()).sync()

    print(download(vector()), copy(vector()).shape)


def returned_tensor_after_a_borrow() -> None:
    def make() -> Tensor[f32]:
        t = vector()
        read = t.borrow()
        print(total(read))
        return t

    eat(make())


def returned_owning_op() -> None:
    def download(t: Tensor[f32]) -> DeviceOp[NDArray[f32]]:
        return t.to_host()

    def step(y: Tensor[f32], x: SharedTensor[f32]) -> DeviceOp[object]:
        return saxpy(y.partition((4,)), 1.0, x)

    s = vector().share()
    print(download(vector()).sync(), step(vector(), s).sync())


def returned_shared() -> None:
    def halves(s: SharedTensor[f32]) -> tuple[SharedTensor[f32], SharedTensor[f32]]:
        return s.clone(), s.reshape((2, 4))

    a, b = halves(vector().share())
    print(a.shape, b.shape)


def stored_for_the_length_of_a_block() -> None:
    t = vector()
    reads: list[TensorRef[f32]] = []
    reads.append(t.borrow())
    reads.extend([t.view((2, 4)), t.slice(slice(0, 4))])
    print(sum(total(read) for read in reads))


def stored_in_a_local_object() -> None:
    @dataclass
    class Request:
        source: TensorRef[f32]

    t = vector()
    request = Request(t.borrow())
    print(total(request.source))


def stored_in_a_parameter_with_its_tensor() -> None:
    class Session:
        def __init__(self, model: Model) -> None:
            self.model = model
            self.shape = model.lend().shape

        def run(self) -> float:
            return total(self.model.lend())

    print(Session(Model()).run())


def collected_from_a_parameter() -> None:
    def collect(x: TensorRef[f32], into: list[TensorRef[f32]]) -> None:
        into.append(x)
        into.append(x.slice(slice(0, 4)))

    t = vector()
    reads: list[TensorRef[f32]] = []
    collect(t.borrow(), reads)
    print(sum(total(read) for read in reads))


TABLE = vector()


def returned_borrow_of_a_global() -> TensorRef[f32]:
    return TABLE.borrow()


def reads_a_global() -> None:
    print(total(TABLE.borrow()), TABLE.shape, total(returned_borrow_of_a_global()))


def lambda_borrows_when_it_is_called() -> None:
    def reader(model: Model) -> Callable[[], float]:
        return lambda: total(model.lend())

    read = reader(Model())
    print(read(), read())


def given_to_a_generator() -> None:
    def pieces(x: TensorRef[f32]) -> Iterator[TensorRef[f32]]:
        for start in range(0, 8, 4):
            yield x.slice(slice(start, start + 4))

    t = vector()
    print([total(piece) for piece in pieces(t.borrow())])
    eat(t)


async def given_to_a_task_that_ends_first() -> None:
    t = await async_vector()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(async_total, t.borrow())
        nursery.start_soon(async_total, t.borrow())
    await t.to_host()


async def captured_by_a_task_that_ends_first() -> None:
    t = await async_vector()
    sums: list[float] = []

    async def work() -> None:
        sums.append(await async_total(t.borrow()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
    print(sums)
    await t.to_host()


async def owned_by_the_task() -> None:
    async def work(t: Tensor[f32]) -> None:
        await async_total(t.borrow())
        await t.to_host()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(work, await async_vector())


async def shared_with_tasks_that_outlive_it() -> None:
    async def work(s: SharedTensor[f32]) -> None:
        await s.to_host()

    async def start(nursery: trio.Nursery) -> None:
        s = (await async_vector()).share()
        for _ in range(2):
            nursery.start_soon(work, s)

    async with trio.open_nursery() as outer:
        await start(outer)


async def attribute_is_lent_to_a_task() -> None:
    class Server:
        def __init__(self, weights: Tensor[f32]) -> None:
            self.weights = weights

        async def start(self, nursery: trio.Nursery) -> None:
            nursery.start_soon(async_total, self.weights.borrow())

    server = Server(await async_vector())
    async with trio.open_nursery() as nursery:
        await server.start(nursery)


def value_of_a_borrow_is_run_here() -> None:
    t = vector()
    print(value(t.borrow()).sync().shape)
    eat(t)


def found_in_a_list(ts: list[Tensor[f32]]) -> TensorRef[f32] | None:
    found: Tensor[f32] | None = None
    for t in ts:
        if t.size > 4:
            found = t
    return None if found is None else found.borrow()
