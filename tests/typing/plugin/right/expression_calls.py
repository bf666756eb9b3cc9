"""Element-wise functions, their reductions and the functions of `dagpu.array`, called as they may be."""

from collections.abc import Sequence
from typing import TypeVar

import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Elem,
    In,
    SharedTensor,
    Tensor,
    TensorRef,
    array,
    dup,
    empty,
    expr,
    f32,
    i64,
    ones,
    pipeline,
    source,
    spawn,
    value,
    zip_ops,
)
from tests.typing.plugin.kernels import async_vector, eat, vector

L = TypeVar("L", bound=Borrowed)

add = expr(f32, f32)(lambda x, y: x + y)
both = expr(f32, f32)(lambda x, y: (x + y, x * y))


@expr
def halves(x: Elem[f32]) -> tuple[Elem[f32], Elem[f32]]:
    return x * 0.5, x * 0.25


total = add.sum(0)


@expr
def scaled(x: Elem[f32], by: Elem[f32]) -> Elem[f32]:
    return x * by


def lent_twice() -> None:
    x = vector()
    add(x.borrow(), 1.0).sync()
    total(x.borrow(), 2.0).sync()
    array.sum(x.borrow()).sync()
    eat(x)


def shared_between_calls() -> None:
    s = vector().share()
    zip_ops(scaled(s, 1.0), total(s, s), scaled.softmax()(s, 2.0), array.amax(s)).sync()


def renamed_by_each_call() -> None:
    x = vector()
    for step in range(3):
        x = add(x, float(step)).sync()
    x = scaled(x, 2.0).then(lambda t: add(t, 1.0)).sync()
    eat(x)


def ops_renamed_by_each_call() -> None:
    op = ones((8,))
    for _ in range(3):
        op = add(op, 1.0)
    print(array.sum(op).to_host().sync())


def updated_in_place() -> None:
    x = vector()
    for _ in range(2):
        scaled.update(x.borrow_mut().partition((4,)), 2.0).sync()
    part, by = add.update(x.partition((4,)), 1).sync()
    print(by + 1.0, eat(part.unpartition()).shape)


def written_to_memory_of_its_own() -> None:
    x = vector()
    op = add.into(empty((8,)).partition((4,)), x.borrow(), source(2.0)).first().unpartition().to_host()
    print(op.sync(), x.shape)


def any_form_of_input() -> None:
    def energy(x: In[f32]) -> DeviceOp[Tensor[f32]]:
        return total(scaled(x, 2.0), 1.0)

    def joined(parts: Sequence[In[f32]]) -> DeviceOp[Tensor[f32]]:
        return array.concatenate(parts)

    energy(vector()).sync()
    joined([vector(), vector().share(), ones((8,))]).sync()


def borrows_as_its_argument_does() -> None:
    def doubled(op: DeviceOp[Tensor[f32], L]) -> DeviceOp[Tensor[f32], L]:
        return add(scaled(op, 2.0), 0.0)

    def of_reference(x: TensorRef[f32]) -> DeviceOp[NDArray[f32], Borrowed]:
        return array.sum(doubled(dup(x))).to_host()

    x = vector()
    print(of_reference(x.borrow()).sync(), doubled(ones((8,))).to_host().sync())


def arguments_by_name() -> None:
    x, many = vector(), vector().share()
    scaled(x=x, by=2.0).sync()  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names
    scaled(many, by=source(2.0)).sync()  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names
    print(scaled.sum(0)(by=2.0, x=many).to_host().sync())  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names
    part, by = scaled.update(vector().partition((4,)), by=3.0).sync()  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names
    print(by + 1.0, eat(part.unpartition()).shape)


def several_results() -> None:
    x, many = vector(), vector().share()
    total, product = both(many, 2.0).unzip()
    print(eat(total.sync()).shape, eat(product.sync()).shape)
    first, second = both(x, many).sync()
    print(eat(first).shape, eat(second).shape)
    print(halves(x=vector()).last().to_host().sync())  # pyright: ignore[reportCallIssue]  # reason: only the plugin knows the names


def numbers_of_all_kinds() -> None:
    add(vector(), 1).sync()
    add(vector(), value(2.0)).sync()
    add(vector(), value(2.0).map(lambda n: n * 2)).sync()
    add(source(3.0), vector()).sync()


def same_function_of_tensors_and_elements() -> None:
    twice = expr(f32)(lambda x: array.maximum(x * 2, 0.0))
    twice(vector()).sync()
    array.maximum(vector(), 0.0).sync()


async def spawned() -> None:
    x, s = await async_vector(), (await async_vector()).share()
    async with trio.open_nursery() as nursery:
        spawn(nursery, add(x, 1.0))
        spawn(nursery, total(s, 2.0))
        spawn(nursery, array.sum(s))
        spawn(nursery, array.sum(add(dup(s).then(dup), ones((8,)))))
        spawn(nursery, array.concatenate([s, s.clone()]))
        spawn(nursery, array.stack([dup(s), ones((8,))]))
        spawn(nursery, scaled.update((await async_vector()).partition((4,)), 2.0))
        spawn(nursery, zip_ops(array.sum(s), dup(s).then(lambda t: array.cumsum(t)).to_host()))


async def spawned_after_a_copy() -> None:
    x = await async_vector()
    copy = await dup(x.borrow())
    async with trio.open_nursery() as nursery:
        spawn(nursery, array.sum(copy))
    eat(x)


def in_a_pipeline() -> None:
    @pipeline
    def top(x: SharedTensor[f32], by: float) -> DeviceOp[tuple[NDArray[f32], NDArray[i64]]]:
        values, places = array.topk(scaled(x, by), 3).unzip()
        return zip_ops(values.to_host(), places.to_host())

    print(top(vector().share(), 2.0).sync())
