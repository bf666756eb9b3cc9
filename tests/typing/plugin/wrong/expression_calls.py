"""A tensor is used after it has moved into an element-wise function; an op that holds a borrow is spawned."""

import trio

from dagpu import DeviceOp, Elem, In, Out, Tensor, array, empty, expr, f32, foreign, spawn, zip_ops
from dagpu.interop import new
from tests.typing.plugin.kernels import async_vector, vector

add = expr(f32, f32)(lambda x, y: x + y)
both = expr(f32, f32)(lambda x, y: (x + y, x * y))
total = add.sum(0)


@expr
def scaled(x: Elem[f32], by: Elem[f32]) -> Elem[f32]:
    return x * by


@foreign
def copied(x: In[f32]) -> Tensor[f32]:
    return new(x)


@foreign
def copy_into(y: Out[f32], x: In[f32]) -> None: ...


def passed_to_a_lambda() -> None:
    x = vector()
    add(x, 1.0).sync()
    add(x, 2.0).sync()  # E: dagpu-use-after-move


def passed_to_an_annotated_function() -> None:
    x = vector()
    scaled(x, 1.0).sync()
    print(x.shape)  # E: dagpu-use-after-move


def passed_by_name() -> None:
    x = vector()
    scaled(by=2.0, x=x).sync()  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names
    scaled(x, by=1.0).sync()  # E: dagpu-use-after-move  # pyright: ignore[reportCallIssue]


def passed_twice_in_one_call() -> None:
    x = vector()
    add(x, x).sync()  # E: dagpu-use-after-move


def passed_to_two_ops() -> None:
    def both(x: Tensor[f32]) -> DeviceOp[tuple[Tensor[f32], Tensor[f32]]]:
        return zip_ops(scaled(x, 1.0), total(x, 2.0))  # E: dagpu-use-after-move

    both(vector()).sync()


def passed_to_one_of_several_results() -> None:
    x = vector()
    first, _ = both(x, 1.0).sync()
    both(first, x).sync()  # E: dagpu-use-after-move


def reduced() -> None:
    x = vector()
    total(x, 1.0).sync()
    total(x, 2.0).sync()  # E: dagpu-use-after-move


def reduced_in_place() -> None:
    x = vector()
    scaled.softmax()(x, 1.0).sync()
    scaled.sum()(x, 2.0).sync()  # E: dagpu-use-after-move


def written_elsewhere() -> None:
    x = vector()
    add.into(empty((8,)).partition((4,)), x, 1.0).sync()
    print(x.shape)  # E: dagpu-use-after-move


def read_by_an_update() -> None:
    x = vector()
    add.update(vector().partition((4,)), x).sync()
    print(x.shape)  # E: dagpu-use-after-move


def read_by_an_array_function() -> None:
    x = vector()
    array.maximum(x, 1.0).sync()
    array.sum(x).sync()  # E: dagpu-use-after-move


async def call_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, add(x.borrow(), 1.0))  # E: arg-type


async def reduction_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, total(x.borrow(), 1.0))  # E: arg-type


async def array_function_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, array.sum(x.borrow()))  # E: arg-type


async def list_spawned() -> None:
    x, y = await async_vector(), await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, array.concatenate([x.borrow(), y.borrow()]))  # E: arg-type


async def nested_call_spawned() -> None:
    x, s = await async_vector(), (await async_vector()).share()
    async with trio.open_nursery() as nursery:
        op = zip_ops(array.sum(s), scaled(array.transpose(add(x.borrow(), s)), 2.0).to_host())
        spawn(nursery, op)  # E: arg-type


async def update_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, scaled.update(x.borrow_mut().partition((4,)), 2.0))  # E: arg-type


async def write_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, scaled.into(empty((8,)).partition((4,)), x.borrow(), 2.0))  # E: arg-type


async def foreign_op_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, copied(x.borrow()))  # E: arg-type


async def foreign_write_spawned() -> None:
    x = await async_vector()
    async with trio.open_nursery() as nursery:
        spawn(nursery, copy_into(empty((8,)).partition((4,)), x.borrow()))  # E: arg-type
