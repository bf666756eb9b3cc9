"""Pipelines in loops, on loans, in classes, and with what is no tensor."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Pipeline,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    dup,
    empty,
    f32,
    from_host,
    pipeline,
    zip_ops,
)
from tests.typing.plugin.kernels import add, async_vector, eat, saxpy, scale, total, vector


@pipeline
def doubled(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    """2 t."""
    return scale(t.partition((4,)), 2.0).first().unpartition()


@pipeline
def summed(x: SharedTensor[f32], y: SharedTensor[f32]) -> DeviceOp[NDArray[f32]]:
    """x + y."""
    return add(empty(x.shape).partition((4,)), x, y).first().unpartition().to_host()


@pipeline(cache_size=4, graph_from=None)
def copied(t: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """A copy."""
    return dup(t)


@pipeline
def written(y: TensorMut[f32], x: TensorRef[f32], rate: float) -> DeviceOp[Any, Borrowed]:
    """y += rate x."""
    return saxpy(y.partition((4,)), rate, x)


@pipeline
def uploaded(array: NDArray[f32], model: tuple[SharedTensor[f32], float]) -> DeviceOp[Tensor[f32]]:
    """An array, moved by a model."""
    weights, rate = model
    return saxpy(from_host(array).partition((4,)), rate, weights).first().unpartition()


def called_once() -> None:
    eat(doubled(vector()).sync())


def called_in_a_loop() -> None:
    t = vector()
    for _ in range(3):
        t = doubled(t).sync()
    assert total(t.borrow()) == 64


async def awaited() -> None:
    t = await async_vector()
    t = await doubled(t)
    print(await t.to_host())


def composed() -> None:
    op = doubled(vector()).then(doubled).then(lambda t: t.to_host())
    print(op.sync())


def called_on_shared_tensors() -> None:
    x, y = vector().share(), vector().share()
    for _ in range(3):
        print(summed(x, y).sync(), summed(y, x).sync(), summed(x, x).sync())


def called_on_loans() -> None:
    y, x = vector(), vector()
    for number in range(3):
        written(y.borrow_mut(), x.borrow(), 1 / (number + 1)).sync()
        copy = copied(y.borrow()).sync()
        print(total(copy.borrow()), total(y.borrow()))
    eat(y)
    eat(x)


def called_on_loans_of_one_tensor() -> None:
    t = vector()
    a, b = zip_ops(copied(t.borrow()), copied(t.borrow())).sync()
    eat(t)
    eat(a)
    eat(b)


def called_on_arrays_and_numbers() -> None:
    array, model = np.ones(8, np.float32), (vector().share(), 0.5)
    for _ in range(2):
        eat(uploaded(array, model).sync())
        eat(uploaded(array=array, model=model).sync())


def kept_in_a_class() -> None:
    class Stage:
        def __init__(self, step: Pipeline[[Tensor[f32]], Tensor[f32]]) -> None:
            self.step = step
            self.state = vector()

        def run(self) -> None:
            self.state = self.step(self.state).sync()

    stage = Stage(doubled)
    stage.run()
    stage.run()
    print(total(stage.state.borrow()), doubled.cache_info())


def chosen_at_run_time() -> None:
    steps = {"double": doubled}
    t = vector()
    for name in ("double", "double"):
        t = steps[name](t).sync()
    eat(t)
