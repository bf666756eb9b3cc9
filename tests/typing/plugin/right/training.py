"""Training loops: borrows for each step, models that move through steps, schedules, checkpoints, early stopping."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Partition,
    Pending,
    SharedTensor,
    Tensor,
    TensorRef,
    dup,
    empty,
    f32,
    from_host,
    memcpy,
    ones,
    randn,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, saxpy, scale, split, total, vector

Floats: TypeAlias = NDArray[np.float32]
Weights: TypeAlias = tuple[Tensor[f32], Tensor[f32]]


def data(count: int = 3) -> Iterator[Floats]:
    """Some batches, on the host."""
    for number in range(count):
        yield np.full(8, number, np.float32)


def gradient(w: TensorRef[f32], x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """Return the gradient: the sum of both, in place of a real model."""
    return add(empty((8,)).partition((4,)), w, x).first().unpartition()


def plain_loop() -> None:
    w = zeros((8,)).sync()
    for batch in data():
        x = from_host(batch).sync()
        g = gradient(w.borrow(), x.borrow()).sync()
        saxpy(w.borrow_mut().partition((4,)), -0.1, g).sync()
    print(w.to_host().sync())


def loop_in_one_op() -> None:
    w = zeros((8,)).sync()
    for batch in data():
        step = from_host(batch).then(lambda x: gradient(w.borrow(), x.borrow()))
        g = step.sync()
        saxpy(w.borrow_mut().partition((4,)), -0.1, g).sync()
    eat(w)


def loop_with_momentum() -> None:
    w, v = zip_ops(zeros((8,)), zeros((8,))).sync()
    for batch in data():
        x = from_host(batch).sync()
        g = gradient(w.borrow(), x.borrow()).sync()
        scale(v.borrow_mut().partition((4,)), 0.9).sync()
        saxpy(v.borrow_mut().partition((4,)), 1.0, g).sync()
        saxpy(w.borrow_mut().partition((4,)), -0.1, v.borrow()).sync()
    eat(w)
    eat(v)


def loop_of_moving_weights() -> None:
    def step(w: Tensor[f32], x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
        return saxpy(w.partition((4,)), -0.1, x).first().unpartition()

    w = zeros((8,)).sync()
    for batch in data():
        x = from_host(batch).share().sync()
        w = step(w, x).sync()
    eat(w)


def loop_of_a_moving_model() -> None:
    def step(model: Weights, x: SharedTensor[f32]) -> DeviceOp[Weights]:
        w, b = model
        new_w = saxpy(w.partition((4,)), -0.1, x).first().unpartition()
        new_b = saxpy(b.partition((4,)), -0.1, x).first().unpartition()
        return zip_ops(new_w, new_b)

    model = zip_ops(zeros((8,)), zeros((8,))).sync()
    for batch in data():
        model = step(model, from_host(batch).share().sync()).sync()
    w, b = model
    print(w.shape, b.shape)


def epochs_and_batches() -> None:
    w = zeros((8,)).sync()
    losses: list[float] = []
    for epoch in range(2):
        for batch in data():
            x = from_host(batch).sync()
            saxpy(w.borrow_mut().partition((4,)), -0.1 / (epoch + 1), x).sync()
        losses.append(total(w.borrow()))
    print(losses, w.shape)


def early_stopping() -> None:
    w, best = zeros((8,)).sync(), zeros((8,)).sync()
    record = float("inf")
    for batch in data():
        x = from_host(batch).sync()
        saxpy(w.borrow_mut().partition((4,)), -0.1, x).sync()
        loss = total(w.borrow())
        if loss < record:
            record = loss
            memcpy(best.borrow_mut(), w.borrow()).sync()
        elif loss > 2 * abs(record):
            break
    eat(best)


def checkpoints() -> None:
    w = zeros((8,)).sync()
    saved: list[Floats] = []
    for number, batch in enumerate(data()):
        saxpy(w.borrow_mut().partition((4,)), -0.1, from_host(batch)).sync()
        if number % 2 == 0:
            saved.append(w.borrow().to_host().sync())
    w = from_host(saved[0]).sync()
    eat(w)


def exponential_average() -> None:
    w, average = vector(), vector()
    for batch in data():
        saxpy(w.borrow_mut().partition((4,)), -0.1, from_host(batch)).sync()
        scale(average.borrow_mut().partition((4,)), 0.9).sync()
        saxpy(average.borrow_mut().partition((4,)), 0.1, w.borrow()).sync()
    w, average = average, w
    print(total(w.borrow()) - total(average.borrow()))


def accumulated_gradients() -> None:
    w = zeros((8,)).sync()
    sums: Tensor[f32] | None = None
    for number, batch in enumerate(data(4)):
        x = from_host(batch).sync()
        if sums is None:
            sums = zeros((8,)).sync()
        saxpy(sums.borrow_mut().partition((4,)), 1.0, x).sync()
        if number % 2:
            saxpy(w.borrow_mut().partition((4,)), -0.1, sums).sync()
            sums = None
    eat(w)


def dictionary_of_parameters() -> None:
    parameters = {name: zeros((8,)).sync() for name in ("w1", "b1", "w2", "b2")}
    for batch in data():
        x = from_host(batch).share().sync()
        for parameter in parameters.values():
            saxpy(parameter.borrow_mut().partition((4,)), -0.1, x).sync()
    state = {name: parameter.borrow().to_host().sync() for name, parameter in parameters.items()}
    print({name: array.sum() for name, array in state.items()})


def all_updates_in_one_run() -> None:
    parameters = [zeros((8,)).sync() for _ in range(3)]
    for batch in data():
        x = from_host(batch).share().sync()
        zip_ops(*(saxpy(p.borrow_mut().partition((4,)), -0.1, x) for p in parameters)).sync()
    print([total(p.borrow()) for p in parameters])


@dataclass
class Parameter:
    """Weights with their velocity."""

    weights: Tensor[f32] = field(default_factory=vector)
    velocity: Tensor[f32] = field(default_factory=vector)

    def step(self, g: TensorRef[f32], rate: float = 0.1, momentum: float = 0.9) -> None:
        scale(self.velocity.borrow_mut().partition((4,)), momentum).sync()
        saxpy(self.velocity.borrow_mut().partition((4,)), 1.0, g).sync()
        saxpy(self.weights.borrow_mut().partition((4,)), -rate, self.velocity.borrow()).sync()

    def step_in_one_op(self, g: SharedTensor[f32], rate: float = 0.1) -> None:
        speed = saxpy(self.velocity.partition((4,)), 1.0, g).first().unpartition()
        both = saxpy(self.weights.partition((4,)), -rate, speed)
        new, _, old = both.unzip()
        self.weights, self.velocity = zip_ops(new.unpartition(), old).sync()


class Optimizer:
    """Steps all parameters of a model."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters
        self.steps = 0

    def step(self, gradients: list[Tensor[f32]]) -> None:
        for parameter, g in zip(self.parameters, gradients, strict=True):
            parameter.step(g.borrow())
        self.steps += 1


def optimizer() -> None:
    optimizer = Optimizer([Parameter(), Parameter()])
    for _ in range(3):
        optimizer.step([vector(), vector()])
    print(optimizer.steps, [total(p.weights.borrow()) for p in optimizer.parameters])


def parameter_steps_in_one_op() -> None:
    parameter, g = Parameter(), vector().share()
    for _ in range(3):
        parameter.step_in_one_op(g)
    print(total(parameter.weights.borrow()))


async def prefetched() -> None:
    w = await zeros((8,))
    batches = list(data())
    async with trio.open_nursery() as nursery:
        upcoming: Pending[Tensor[f32]] = spawn(nursery, from_host(batches[0]))
        for number in range(len(batches)):
            x = await upcoming
            if number + 1 < len(batches):
                upcoming = spawn(nursery, from_host(batches[number + 1]))
            await saxpy(w.borrow_mut().partition((4,)), -0.1, x)
    print(await w.to_host())


async def prepared_on_a_thread() -> None:
    def load(number: int) -> Floats:
        return np.full(8, number, np.float32)

    w = await zeros((8,))
    for number in range(3):
        x = await value(number).host_map(load).then(from_host)
        await saxpy(w.borrow_mut().partition((4,)), -0.1, x)
    await w.to_host()


async def evaluated_while_it_trains() -> None:
    w = await zeros((8,))
    results: list[float] = []

    async def evaluate(copy: Tensor[f32]) -> None:
        results.append(float((await copy.to_host()).sum()))

    async with trio.open_nursery() as nursery:
        for batch in data():
            await saxpy(w.borrow_mut().partition((4,)), -0.1, from_host(batch))
            nursery.start_soon(evaluate, await dup(w.borrow()))
    print(results, w.shape)


def replicas() -> None:
    start = randn((8,), seed=1).share().sync()
    copies = [dup(start).sync() for _ in range(2)]
    for batch in data():
        x = from_host(batch).share().sync()
        for copy in copies:
            saxpy(copy.borrow_mut().partition((4,)), -0.1, x).sync()
    sums = zeros((8,)).sync()
    for copy in copies:
        saxpy(sums.borrow_mut().partition((4,)), 0.5, copy).sync()
    print(total(sums.borrow()))


def frozen_and_trained_part() -> None:
    frozen = vector().share()
    trained = vector()
    for _ in range(3):
        out = add(zeros((8,)).partition((4,)), frozen, trained.borrow()).first().unpartition().sync()
        saxpy(trained.borrow_mut().partition((4,)), -0.1, out).sync()
    thawed = frozen.try_unwrap()
    eat(thawed)


def losses_on_the_device() -> None:
    losses = zeros((8,)).sync().partition((4,))
    for batch in data():
        losses = saxpy(losses, 1.0, from_host(batch)).sync()[0]
    print(losses.unpartition().to_host().sync().mean())


def clipped_gradients() -> None:
    low, high = vector().partition((4,)), vector().partition((4,))
    for _ in range(2):
        low, high, _ = split(low, high, ones((8,))).sync()
    eat(low.unpartition())
    eat(high.unpartition())


def layers_forward_and_backward() -> None:
    layers = [vector() for _ in range(3)]
    activations: list[Tensor[f32]] = [vector()]
    for layer in layers:
        out = add(zeros((8,)).partition((4,)), layer.borrow(), activations[-1].borrow()).first().unpartition().sync()
        activations.append(out)
    g = activations.pop()
    for layer in reversed(layers):
        x = activations.pop()
        saxpy(layer.borrow_mut().partition((4,)), -0.1, g.borrow()).sync()
        saxpy(g.borrow_mut().partition((4,)), 1.0, x).sync()
    print(total(g.borrow()), len(activations))


def output_buffer_is_reused() -> None:
    out: Partition[Tensor[f32]] = empty((8,)).sync().partition((4,))
    for batch in data():
        x = from_host(batch).share().sync()
        out, _, _ = add(out, x, x).sync()
    print(out.unpartition().to_host().sync())
