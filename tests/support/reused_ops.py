"""Ops for repeated runs, and a counter of the traces that the runs make."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import strategies as st

from dagpu import Partition, SharedTensor, SingleStream, Tensor, arange, empty, full, ones
from dagpu.runtime import execute
from dagpu.testing import Program, plans
from tests.programs.arithmetic import scale
from tests.programs.expressions import Call, Change, Expr, Lent, Number, Op, Shape2, bits
from tests.programs.strategies import makes


@pytest.fixture(autouse=True)
def no_plans_yet() -> None:
    """Clear the caches, so that an op finds no plan of an earlier op with the same structure."""
    plans.clear()


@final
class Count:
    """Number of runs that have made a trace."""

    def __init__(self) -> None:
        self.now = 0


@contextmanager
def traces() -> Iterator[Count]:
    """Count the traces that runs make within the `with` block."""
    count = Count()
    tracer: Any = vars(execute)["Tracer"]

    def counting(*args: Any) -> Any:
        count.now += 1
        return tracer(*args)

    with patch.object(execute, "Tracer", counting):
        yield count


def contents(result: Any) -> Any:
    """Return a result with the bits of every array and handle in it. Handles that it owns are used up."""
    if isinstance(result, tuple):
        return tuple(map(contents, result))
    if isinstance(result, Partition):
        return result.tile, result.grid, contents(result.unpartition())
    if isinstance(result, Tensor | SharedTensor):
        return type(result).__name__, bits(result.to_host().sync())
    return bits(result) if isinstance(result, np.ndarray) else result


def scaled(x: Op, by: float = 2.0, shape: Shape2 = (2, 3)) -> Op:
    """Return an op that applies a kernel to the tensor that `x` returns."""
    return scale(empty(shape).partition(shape), by, x).first().unpartition()


def twice_scaled() -> Op:
    return scaled(scaled(arange(6).reshape((2, 3))), 3.0)


@cache
def shared_input() -> Any:
    """Return an input of ones, of shape (2, 3)."""
    return ones((2, 3)).share().sync()


@cache
def lender() -> Any:
    """Return a tensor of fives, of shape (2, 3), that no test writes."""
    return full((2, 3), 5).sync()


@pytest.fixture(scope="module", autouse=True)
def let_go() -> Iterator[None]:
    """Drop all tensors before the process ends."""
    yield
    shared_input.cache_clear()
    lender.cache_clear()


@final
class Asked:
    """A policy that counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def place(self, program: Program) -> Sequence[Hashable]:
        self.times += 1
        return SingleStream().place(program)


@st.composite
def pure(draw: st.DrawFn, shape: Shape2, depth: int = 4, *, lent: bool = False) -> Expr:
    """Draw a description whose op calls no closure and keeps no result, so that repeated runs need no trace."""
    kinds = ["make"] + ["lent"] * lent + ["call", "call", "change"] * (depth > 0)
    match draw(st.sampled_from(kinds)):
        case "make":
            return draw(makes(shape).filter(lambda make: make.how != "empty"))
        case "lent":
            return Lent(draw(makes(shape).filter(lambda make: make.how != "empty")))
        case "change":
            how = draw(st.sampled_from(["zip first", "zip last", "single stream", "round robin"]))
            return Change(shape, how, draw(pure(shape, depth - 1)), draw(st.integers(-4, 4)))
        case _:
            pass
    name: Any = draw(st.sampled_from(["add", "scale", "axpy", "matmul"]))
    inner = draw(st.integers(1, 5)) if name == "matmul" else 0
    left, right = ((shape[0], inner), (inner, shape[1])) if inner else (shape, shape)
    x = draw(pure(left, depth - 1, lent=True))
    y = x if name == "scale" else draw(pure(right, depth - 1, lent=name != "axpy"))
    tile = draw(st.integers(1, shape[0])), draw(st.integers(1, shape[1]))
    return Call(shape, name, x, y, Number(draw(st.integers(-3, 3))), tile, "direct")


def renumbered(e: Expr, by: int) -> Expr:
    """Return the same structure with other numbers and other contents."""
    match e:
        case Call():
            return Call(
                e.shape, e.kernel, renumbered(e.x, by), renumbered(e.y, by), Number(e.a.number + by), e.tile, e.way
            )
        case Change():
            return Change(e.shape, e.how, renumbered(e.x, by), e.number)
        case Lent(make):
            return Lent(type(make)(make.shape, make.how, make.number + by))
        case _:
            return e
