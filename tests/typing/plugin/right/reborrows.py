"""A tensor borrowed for writing is also read by kernels: it moves into the call, comes back, and is then written."""

import numpy as np

from dagpu import (
    Borrowed,
    CudaGraph,
    DeviceOp,
    Tensor,
    TensorMut,
    TensorRef,
    current_device,
    dup,
    empty,
    f32,
    fill,
    pipeline,
    value,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, no, saxpy, scale, total, vector, yes


def gradient_then_update() -> None:
    w, x = vector(), vector()
    g, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).unzip()
    saxpy(lent.partition((4,)), -0.1, g.unpartition()).sync()
    eat(w)
    eat(x)


def gradient_then_update_of_handles() -> None:
    w, x = vector(), vector()
    g, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).sync()
    saxpy(lent.partition((4,)), -0.1, g.unpartition()).sync()
    print(total(w.borrow()))
    eat(w)


def loop_over_the_same_loan() -> None:
    w, x = vector(), vector().share()
    lent = w.borrow_mut()
    for _ in range(3):
        g, lent, _ = add(empty((8,)).partition((4,)), lent, x).sync()
        lent = saxpy(lent.partition((4,)), -0.1, g.unpartition()).first().unpartition().sync()
    print(lent.shape)
    eat(w)


def lent_anew_in_each_round() -> None:
    def step(w: TensorMut[f32], x: TensorRef[f32]) -> DeviceOp[TensorMut[f32], Borrowed]:
        g, lent, _ = add(empty((8,)).partition((4,)), w, x).unzip()
        return saxpy(lent.partition((4,)), -0.1, g.unpartition()).first().unpartition()

    w, x = vector(), vector()
    for _ in range(3):
        step(w.borrow_mut(), x.borrow()).sync()
        print(total(w.borrow()))
    eat(w)


def one_long_op() -> None:
    w, x = vector(), vector().share()
    op: DeviceOp[TensorMut[f32], Borrowed] = value(w.borrow_mut())
    for _ in range(3):
        g, lent, _ = add(empty((8,)).partition((4,)), op, x).unzip()
        op = saxpy(lent.partition((4,)), -0.1, g.unpartition()).first().unpartition()
    op.sync()
    eat(w)


def many_readers_and_a_writer() -> None:
    w, x = vector(), vector().share()
    a, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x).unzip()
    b, _, again = add(empty((8,)).partition((4,)), x, lent).unzip()
    zip_ops(a, b, scale(again.partition((4,)), 2.0)).sync()
    eat(w)


def read_alone() -> None:
    w, x = vector(), vector()
    add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).sync()
    eat(w)
    eat(x)


def inside_then() -> None:
    w, x = vector(), vector().share()
    value(w.borrow_mut()).then(lambda lent: add(empty((8,)).partition((4,)), lent, x)).then(
        lambda made: saxpy(made[1].partition((4,)), -0.1, made[0].unpartition())
    ).sync()
    eat(w)


def lent_by_a_closure_of_its_own_tensor() -> None:
    def update(w: Tensor[f32]) -> DeviceOp[object, Borrowed]:
        g, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), vector_of_twos()).unzip()
        return saxpy(lent.partition((4,)), -0.1, g.unpartition())

    def vector_of_twos() -> DeviceOp[Tensor[f32]]:
        return empty((8,)).then(lambda t: fill(t, 2))

    vector().to_host().then(lambda _: vector_of_twos()).then(update).sync()


def read_or_written() -> None:
    w, x = vector(), vector()
    lent = w.borrow_mut()
    if yes():
        add(empty((8,)).partition((4,)), lent, x.borrow()).sync()
    else:
        scale(lent.partition((4,)), 2.0).sync()
    eat(w)


def given_back_on_one_path() -> None:
    w, x = vector(), vector()
    lent = w.borrow_mut()
    if no():
        _, lent, _ = add(empty((8,)).partition((4,)), lent, x.borrow()).sync()
    scale(lent.partition((4,)), 2.0).sync()
    eat(w)


def copied_and_read_to_the_host() -> None:
    w = vector()
    before = dup(w.borrow_mut()).sync()
    after = w.borrow_mut().to_host().sync()
    assert np.array_equal(before.to_host().sync(), after)
    flat = fill(w.borrow_mut().reshape((2, 4)), 3).sync()
    print(flat.shape)
    eat(w)


def two_tensors_in_one_call() -> None:
    a, b = vector(), vector()
    _, one, other = add(empty((8,)).partition((4,)), a.borrow_mut(), b.borrow_mut()).unzip()
    zip_ops(scale(one.partition((4,)), 2.0), scale(other.partition((4,)), 3.0)).sync()
    eat(a)
    eat(b)


@pipeline
def descent(w: TensorMut[f32], x: TensorRef[f32]) -> DeviceOp[TensorMut[f32], Borrowed]:
    g, lent, _ = add(empty((8,)).partition((4,)), w, x).unzip()
    return saxpy(lent.partition((4,)), -0.1, g.unpartition()).first().unpartition()


def through_a_pipeline() -> None:
    w, x = vector(), vector()
    for _ in range(3):
        descent(w.borrow_mut(), x.borrow()).sync()
    lent = w.borrow_mut()
    for _ in range(3):
        lent = descent(lent, x.borrow()).sync()
    eat(w)


def through_a_scope() -> None:
    w, x, g = vector(), vector(), vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        made, lent, _ = scope.record(add(g.borrow_mut().partition((4,)), w.borrow_mut(), x.borrow()))
        scope.record(saxpy(lent.partition((4,)), -0.1, made.unpartition()))
    scope.graph.launch().sync()


class Model:
    """Weights that a step reads and writes in place."""

    def __init__(self) -> None:
        self.weights = vector()

    def step(self, x: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        g, lent, _ = add(empty((8,)).partition((4,)), self.weights.borrow_mut(), x).unzip()
        return saxpy(lent.partition((4,)), -0.1, g.unpartition())


def of_a_model() -> None:
    model, x = Model(), vector()
    for _ in range(2):
        model.step(x.borrow()).sync()
    print(total(model.weights.borrow()))
