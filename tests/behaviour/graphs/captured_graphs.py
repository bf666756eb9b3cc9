"""Ops, arrays and random DAGs that the tests of captured graphs share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dagpu import In, Out, Tile, empty, f32, full, kernel
from dagpu.testing import storage_of
from tests.programs.arithmetic import axpy, scale
from tests.programs.expressions import Op

S = (2, 2)
CURES = {
    "memory": "tensors that were made before, and lent: t.borrow(), t.borrow_mut().partition(tile)",
    "host": "Leave to_host() and host_map() to an op that runs after the launch",
}
"""What the two kinds of ops that no graph can take are told."""
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


def tensor(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def shared(number: float = 0.0) -> Any:
    return full(S, number).share().sync()


def scaled(by: float, x: Any) -> Op:
    return scale(out(), by, x).first().unpartition()


def adds(y: Any, a: float, x: Any) -> Op:
    """y += a * x, of a tensor that is lent."""
    return axpy(y.borrow_mut().partition(S), a, x)


def number_in(handle: Any) -> float:
    """The first element of a tensor, which stays alive."""
    if isinstance(handle, np.ndarray):
        return float(handle.flat[0])
    borrowed = handle.borrow() if hasattr(handle, "borrow") else handle
    return float(borrowed.to_host().sync().flat[0])


def unlocked(*handles: Any) -> bool:
    return all((storage_of(h).lock.writer, storage_of(h).lock.readers) == (None, 0) for h in handles)


@contextmanager
def held(t: Any) -> Iterator[None]:
    """A run that writes this tensor is under way."""
    op = waits_for_it(t.borrow_mut().partition(S)).map(lambda _: None)
    GO.clear()
    BUSY.clear()
    thread = threading.Thread(target=op.sync)
    thread.start()
    try:
        assert BUSY.wait(PATIENCE)
        yield
    finally:
        GO.set()
        thread.join(PATIENCE)


@kernel(cuda="__global__ void waits_for_it(Tile<float, 2> y) { for (auto i : y) y[i] += 0; }")
def waits_for_it(y: Out[f32]) -> None:
    """Does nothing, until told to go on."""


@waits_for_it.host
def _(y: Tile[f32]) -> None:
    BUSY.set()
    assert GO.wait(PATIENCE)


GO, BUSY = threading.Event(), threading.Event()


@kernel(cuda="__global__ void may_fail(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = x[i]; }")
def may_fail(y: Out[f32], x: In[f32]) -> None:
    """y = x, unless TOLD is set."""


@may_fail.host
def _(y: Tile[f32], x: Any) -> None:
    if TOLD.is_set():
        raise ArithmeticError("as told")
    y[...] = x[y.at]


TOLD = threading.Event()


@contextmanager
def failing() -> Iterator[None]:
    """`may_fail` fails."""
    TOLD.set()
    try:
        yield
    finally:
        TOLD.clear()


def copied(y: Any, x: Any) -> Op:
    return may_fail(y.borrow_mut().partition(S), x).map(lambda _: None)
