"""Functions of this file that take a tensor by value and leave it whole: their bodies say so, as a run does."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import pytest
import trio

from dagpu import (
    Borrowed,
    BorrowError,
    DeviceOp,
    MovedError,
    ShapeError,
    Tensor,
    TensorRef,
    dup,
    f32,
    ones,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, async_vector, eat, saxpy, scale, total, vector, yes

Weights = tuple[Tensor[f32], Tensor[f32]]


def measure(t: Tensor[f32]) -> int:
    """Reads it."""
    return t.size


def norm(t: Tensor[f32]) -> float:
    """Lends it."""
    return total(t.borrow()) / measure(t)


def double(t: Tensor[f32]) -> None:
    """Lends it for writing."""
    scale(t.borrow_mut().partition((4,)), 2.0).sync()


def report(name: str, t: Tensor[f32]) -> None:
    """Reads it on one path, and lends it on another."""
    if yes():
        print(name, t.shape)
    else:
        print(name, norm(t))


async def lend(t: Tensor[f32]) -> None:
    """Lends it to a run."""
    await zip_ops(t.borrow().to_host(), dup(t.borrow()))


def forward(model: Weights, x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """Lends both of what it is given together."""
    w, b = model
    sums: DeviceOp[Tensor[f32], Borrowed] = add(zeros((8,)).partition((4,)), w.borrow(), x).first().unpartition()
    return saxpy(sums.partition((4,)), 1.0, b.borrow()).first().unpartition()


def measured_often() -> None:
    t = vector()
    print(measure(t), measure(t), norm(t))
    eat(t)


def measured_in_a_loop() -> None:
    t = vector()
    for _ in range(3):
        double(t)
        report("t", t)
    eat(t)


def measured_by_name() -> None:
    t = vector()
    report(t=t, name="t")
    report("t", t)


async def lent_often() -> None:
    t = await async_vector()
    await lend(t)
    await lend(t)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lend, t)
        nursery.start_soon(lend, t)
    await t.to_host()


def model_is_lent_often() -> None:
    model = vector(), vector()
    x = vector()
    for _ in range(2):
        forward(model, x.borrow()).sync()
    print(model[0].shape)


class Meter:
    """Measures, and keeps numbers alone."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.size = t.size

    def add(self, t: Tensor[f32]) -> None:
        self.size += measure(t)

    @staticmethod
    def rank(t: Tensor[f32]) -> int:
        return t.ndim


def measured_by_methods() -> None:
    t = vector()
    meter = Meter(t)
    meter.add(t)
    meter.add(t)
    print(meter.size, Meter.rank(t), t.shape)


def measured_by_a_nested_function() -> None:
    def look(t: Tensor[f32]) -> int:
        return t.ndim + measure(t)

    t = vector()
    print(look(t), look(t))
    eat(t)


def measured_by_recursion() -> None:
    def depth(t: Tensor[f32], left: int) -> int:
        return t.ndim if left == 0 else depth(t, left - 1)

    t = vector()
    print(depth(t, 3))
    eat(t)


def windows(t: Tensor[f32]) -> Iterator[float]:
    """Lends parts of it, one after the other."""
    for start in range(0, t.size, 4):
        yield total(t.slice(slice(start, start + 4)))


def measured_by_a_generator() -> None:
    t = vector()
    print(list(windows(t)), sum(windows(t)))
    for part in windows(t):
        print(part, t.shape)
    eat(t)


def by_default(t: Tensor[f32], how: Callable[[Tensor[f32]], object] = measure) -> object:
    """Hands it to whatever it is told."""
    return how(t)


def handed_on_to_a_callback() -> None:
    print(by_default(vector()), by_default(vector(), norm), by_default(vector(), eat))


class Base:
    """Reads; others may do more."""

    def look(self, t: Tensor[f32]) -> int:
        return t.size


class Reader(Base):
    """Reads more."""

    def look(self, t: Tensor[f32]) -> int:
        return super().look(t) + measure(t)


def measured_by_an_override() -> None:
    t = vector()
    for reader in (Base(), Reader()):
        print(reader.look(t))
    eat(t)


@lru_cache
def squared(n: int) -> int:
    """No tensor at all."""
    return n * n


def measured_into_a_cached_function() -> None:
    t = vector()
    print(squared(t.size), squared(measure(t)))
    eat(t)


# ---- mistakes on purpose


def use_after_move_is_expected() -> None:
    t = vector()
    eat(t)
    with pytest.raises(MovedError):
        print(t.shape)


def use_after_move_is_caught() -> None:
    t = vector()
    eat(t)
    try:
        t.borrow()
    except MovedError as error:
        print(error)
    else:
        raise AssertionError("a moved tensor was lent")


def conflict_is_expected() -> None:
    x, y = vector(), ones((8,)).sync()
    with pytest.raises(BorrowError):
        zip_ops(saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow()), dup(x.borrow())).sync()
    eat(x)


def refusal_is_expected() -> None:
    t = vector()
    with pytest.raises(ShapeError):
        t.reshape((3, 3))
    eat(t)
