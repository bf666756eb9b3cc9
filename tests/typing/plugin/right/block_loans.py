"""What `lend` and `lend_mut` lend for a block is used inside it, and copies leave it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import Tensor, TensorRef, dup, f32, lend, lend_mut, lent_out
from tests.typing.plugin.kernels import eat, saxpy, scale, total, vector


def numbers(count: int) -> NDArray[f32]:
    return np.ones(count, f32)


def lent_out_right() -> None:
    t = vector()
    with lent_out(t.borrow()) as x:
        print(x.shape)
    eat(t)


def copied() -> None:
    def copy_of(a: NDArray[f32]) -> Tensor[f32]:
        with lend(a) as r:
            return dup(r).sync()

    eat(copy_of(numbers(8)))


def contents_returned() -> None:
    def contents(a: NDArray[f32]) -> Any:
        with lend(a) as r:
            return r.to_host().sync()

    print(contents(numbers(8)))


def size_of_it() -> None:
    with lend(numbers(8)) as r:
        n = r.size
    print(n)


def lent_for_each_round() -> None:
    a = numbers(8)
    for _ in range(3):
        with lend(a) as r:
            print(total(r))
        with lend_mut(a) as w:
            scale(w.partition((4,)), 2.0).sync()


def name_used_again() -> None:
    with lend(numbers(8)) as r:
        print(r.shape)
    t = vector()
    r = t.borrow()
    print(r.shape)


def deleted_after_the_block() -> None:
    with lend(numbers(8)) as r:
        print(r.shape)
    del r


def list_cleared_after_the_block() -> None:
    kept: list[TensorRef[f32]] = []
    with lend(numbers(8)) as r:
        kept.append(r)
        print(kept[0].shape)
    kept.clear()
    print(len(kept))


def several_at_once() -> None:
    with lend(numbers(8)) as x, lend_mut(numbers(8)) as y:
        saxpy(y.partition((4,)), 2.0, x).sync()


def in_a_generator() -> None:
    def each(a: NDArray[f32]) -> Iterator[TensorRef[f32]]:
        with lend(a) as r:
            yield r

    for r in each(numbers(8)):
        print(r.shape)


def in_a_context_manager() -> None:
    @contextlib.contextmanager
    def opened() -> Iterator[TensorRef[f32]]:
        with lend(numbers(8)) as r:
            yield r

    with opened() as r:
        print(total(r))
