"""An argument moves into a pipeline as into a kernel, and the pipeline keeps its borrows."""

from typing import Any

from dagpu import Borrowed, DeviceOp, Tensor, TensorMut, TensorRef, dup, f32, pipeline, value, zip_ops
from tests.typing.plugin.kernels import add, async_vector, eat, saxpy, scale, vector


@pipeline
def doubled(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    """2 t."""
    return scale(t.partition((4,)), 2.0).first().unpartition()


@pipeline
def measured(t: Tensor[f32]) -> DeviceOp[int]:
    """Its size; the function itself only reads it."""
    return value(t.size)


@pipeline(cache_size=4)
def copied(t: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """A copy."""
    return dup(t)


@pipeline
def written(y: TensorMut[f32], x: TensorRef[f32]) -> DeviceOp[Any, Borrowed]:
    """y += x."""
    return saxpy(y.partition((4,)), 1.0, x)


@pipeline
def spent_twice(t: Tensor[f32]) -> DeviceOp[object]:
    """A mistake inside of one."""
    return zip_ops(dup(t), dup(t))  # E: dagpu-use-after-move


def moved_into_it() -> None:
    t = vector()
    doubled(t).sync()
    print(t.shape)  # E: dagpu-use-after-move


def moved_into_it_twice() -> None:
    t = vector()
    zip_ops(doubled(t), doubled(t)).sync()  # E: dagpu-use-after-move


def moved_into_it_in_a_loop() -> None:
    t = vector()
    for _ in range(2):
        doubled(t).sync()  # E: dagpu-use-after-move


def moved_though_its_function_only_reads() -> None:
    t = vector()
    measured(t).sync()
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_name() -> None:
    t = vector()
    doubled(t=t).sync()
    t.borrow()  # E: dagpu-use-after-move


async def moved_and_awaited() -> None:
    t = await async_vector()
    await doubled(t)
    print(t.shape)  # E: dagpu-use-after-move


def mistake_inside() -> None:
    spent_twice(vector()).sync()


def built_and_dropped() -> None:
    doubled(vector())  # E: dagpu-unused-op


def run_twice() -> None:
    op = doubled(vector())
    op.sync()
    op.sync()  # E: dagpu-use-after-move


def lent_and_moved() -> None:
    t = vector()
    op = copied(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    op.sync()


def lent_for_writing_and_reading() -> None:
    t = vector()
    written(t.borrow_mut(), t.borrow()).sync()  # E: dagpu-conflicting-borrow


def lent_to_two_in_one_run() -> None:
    t, x = vector(), vector()
    write = written(t.borrow_mut(), x.borrow())
    read = copied(t.borrow())  # E: dagpu-conflicting-borrow
    zip_ops(write, read).sync()


def lent_and_returned() -> DeviceOp[Tensor[f32], Borrowed]:
    t = vector()
    return copied(t.borrow())  # E: dagpu-borrow-escape


def op_into_a_kernel_twice() -> None:
    op = doubled(vector())
    add(op.partition((4,)), vector(), op).sync()  # E: dagpu-output-partition
