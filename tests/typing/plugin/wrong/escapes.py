"""Borrows of a local tensor that leave the function. A run never fails for it: a borrow keeps its tensor alive."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from dagpu import (
    Borrowed,
    DeviceOp,
    Partition,
    Tensor,
    TensorMut,
    TensorRef,
    dup,
    f32,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import async_total, async_vector, saxpy, vector, yes

Op = DeviceOp[Any, Borrowed]


def returned_borrow() -> TensorRef[f32]:
    t = vector()
    return t.borrow()  # E: dagpu-borrow-escape


def returned_loan() -> TensorMut[f32]:
    t = vector()
    return t.borrow_mut()  # E: dagpu-borrow-escape


def returned_partition() -> Partition[TensorMut[f32]]:
    t = vector()
    return t.borrow_mut().partition((4,))  # E: dagpu-borrow-escape


def returned_view() -> TensorRef[f32]:
    t = vector()
    return t.view((2, 4))  # E: dagpu-borrow-escape


def returned_slice() -> TensorRef[f32]:
    t = vector()
    return t.slice(slice(0, 4)).reshape((2, 2))  # E: dagpu-borrow-escape


def returned_op() -> Op:
    t = vector()
    return t.borrow().to_host()  # E: dagpu-borrow-escape


def returned_copy() -> Op:
    t = vector()
    return dup(t.borrow())  # E: dagpu-borrow-escape


def returned_kernel_call() -> Op:
    y, x = vector(), vector()
    return saxpy(y.partition((4,)), 1.0, x.borrow())  # E: dagpu-borrow-escape


def returned_output() -> Op:
    y = vector()
    return saxpy(y.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-borrow-escape


def returned_value() -> Op:
    t = vector()
    return value((t.borrow(), 1))  # E: dagpu-borrow-escape


def returned_composition() -> Op:
    t = vector()
    op = t.borrow().to_host().map(lambda array: array.sum())
    return zip_ops(op, zeros((8,)))  # E: dagpu-borrow-escape


def returned_through_a_variable() -> TensorRef[f32]:
    t = vector()
    read = t.borrow()
    same = read
    print(same.shape)
    return same  # E: dagpu-borrow-escape


def returned_on_one_path() -> TensorRef[f32] | None:
    t = vector()
    if yes():
        return t.borrow()  # E: dagpu-borrow-escape
    return None


def returned_in_a_tuple() -> tuple[TensorRef[f32], int]:
    t = vector()
    return t.borrow(), 1  # E: dagpu-borrow-escape


def returned_in_a_list() -> list[TensorRef[f32]]:
    t = vector()
    reads = [t.borrow()]
    reads.append(t.borrow())
    return reads  # E: dagpu-borrow-escape


def returned_in_a_comprehension() -> list[TensorRef[f32]]:
    t = vector()
    return [t.borrow() for _ in range(2)]  # E: dagpu-borrow-escape


def returned_in_a_dictionary() -> dict[str, TensorRef[f32]]:
    t = vector()
    return {"weights": t.borrow()}  # E: dagpu-borrow-escape


def returned_by_a_conditional_expression() -> TensorRef[f32] | None:
    t = vector()
    return t.borrow() if yes() else None  # E: dagpu-borrow-escape


def returned_from_a_with_block() -> TensorRef[f32]:
    t = vector()
    with memoryview(b""):
        return t.borrow()  # E: dagpu-borrow-escape


def returned_from_a_try_block() -> TensorRef[f32]:
    t = vector()
    try:
        return t.borrow()  # E: dagpu-borrow-escape
    finally:
        print("done")


def returned_by_a_function_that_owns_it() -> None:
    def front(t: Tensor[f32]) -> TensorRef[f32]:
        return t.slice(slice(0, 4))  # E: dagpu-borrow-escape

    print(front(vector()).shape)


def returned_by_a_function_that_lends_it_on() -> None:
    def front(x: TensorRef[f32]) -> TensorRef[f32]:
        return x.slice(slice(0, 4))

    def body() -> TensorRef[f32]:
        t = vector()
        return front(t.borrow())  # E: dagpu-borrow-escape

    print(body().shape)


async def returned_by_a_coroutine() -> Op:
    t = await async_vector()
    return t.borrow().to_host()  # E: dagpu-borrow-escape


class Keeper:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.read: TensorRef[f32] | None = None
        self.ops: list[Op] = []
        self.named: dict[str, TensorRef[f32]] = {}

    def keep_a_borrow(self) -> None:
        t = vector()
        self.read = t.borrow()  # E: dagpu-borrow-escape

    def keep_an_op(self) -> None:
        t = vector()
        self.ops.append(t.borrow().to_host())  # E: dagpu-borrow-escape

    def keep_under_a_name(self) -> None:
        t = vector()
        self.named["t"] = t.borrow()  # E: dagpu-borrow-escape

    def keep_what_it_owned(self, t: Tensor[f32]) -> None:
        self.read = t.borrow()  # E: dagpu-borrow-escape


def stored_in_an_attribute() -> None:
    Keeper().keep_a_borrow()


def appended_to_an_attribute() -> None:
    Keeper().keep_an_op()


def stored_under_a_key_of_an_attribute() -> None:
    Keeper().keep_under_a_name()


def stored_by_a_method_that_owned_it() -> None:
    Keeper().keep_what_it_owned(vector())


def stored_in_an_attribute_of_a_parameter(keeper: Keeper = Keeper()) -> None:  # noqa: B008
    t = vector()
    keeper.read = t.borrow()  # E: dagpu-borrow-escape


def appended_to_a_parameter() -> None:
    def collect(reads: list[TensorRef[f32]]) -> None:
        t = vector()
        reads.append(t.borrow())  # E: dagpu-borrow-escape

    collect([])


def extended_a_parameter() -> None:
    def collect(ops: list[Op]) -> None:
        t = vector()
        ops.extend([t.borrow().to_host()])  # E: dagpu-borrow-escape

    collect([])


def set_in_a_parameter() -> None:
    def collect(reads: dict[str, TensorRef[f32]]) -> None:
        t = vector()
        reads["t"] = t.borrow()  # E: dagpu-borrow-escape

    collect({})


KEPT: list[TensorRef[f32]] = []


def appended_to_a_global() -> None:
    t = vector()
    KEPT.append(t.borrow())  # E: dagpu-borrow-escape


last: TensorRef[f32] | None = None


def stored_in_a_global() -> None:
    global last
    t = vector()
    last = t.borrow()  # E: dagpu-borrow-escape


def stored_in_a_nonlocal() -> None:
    read: TensorRef[f32] | None = None

    def fetch() -> None:
        nonlocal read
        t = vector()
        read = t.borrow()  # E: dagpu-borrow-escape

    fetch()
    print(read)


@dataclass
class Request:
    """Work to be done later."""

    source: TensorRef[f32]


def returned_in_a_dataclass() -> Request:
    t = vector()
    return Request(t.borrow())  # E: dagpu-borrow-escape


def returned_by_a_lambda_that_captures_it() -> Callable[[], float]:
    t = vector()
    read = t.borrow()
    return lambda: float(read.size)  # E: dagpu-borrow-escape


def returned_pieces() -> list[TensorRef[f32]]:
    t = vector()
    pieces = [t.slice(slice(start, start + 4)) for start in (0, 4)]
    pieces.reverse()
    return pieces  # E: dagpu-borrow-escape


async def given_to_a_task_that_outlives_it() -> None:
    async def start(nursery: trio.Nursery) -> None:
        t = await async_vector()
        nursery.start_soon(async_total, t.borrow())  # E: dagpu-borrow-escape

    async with trio.open_nursery() as outer:
        await start(outer)


async def captured_by_a_task_that_outlives_it() -> None:
    async def start(nursery: trio.Nursery) -> None:
        t = await async_vector()
        read = t.borrow()

        async def work() -> None:
            await read.to_host()

        nursery.start_soon(work)  # E: dagpu-borrow-escape

    async with trio.open_nursery() as outer:
        await start(outer)


async def sent_to_another_task() -> None:
    async def producer(channel: trio.MemorySendChannel[TensorRef[f32]]) -> None:
        t = await async_vector()
        await channel.send(t.borrow())  # E: dagpu-borrow-escape

    send, receive = trio.open_memory_channel[TensorRef[f32]](1)
    async with send, receive, trio.open_nursery() as nursery:
        nursery.start_soon(producer, send)
        await async_total(await receive.receive())


def made_when_it_is_needed() -> TensorRef[f32] | None:
    made: Tensor[f32] | None = None
    for _ in range(2):
        if made is None:
            made = vector()
        return made.borrow()  # E: dagpu-borrow-escape
    return None
