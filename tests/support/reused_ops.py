"""Ops that are run again, and a count of the traces that this takes."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import strategies as st

from dagpu import Partition, SharedTensor, SingleStream, Tensor, arange, empty, full, ones
from dagpu.lowering.program import Program
from dagpu.runtime import execute
from dagpu.runtime.plan_cache import plans
from tests.programs.arithmetic import scale
from tests.programs.expressions import Call, Change, Expr, Lent, Number, Op, Shape2, bits
from tests.programs.strategies import makes


@pytest.fixture(autouse=True)
def no_plans_yet() -> None:
    """Whatever ran before has left nothing that an op of the same structure would find."""
    plans.clear()


@final
class Count:
    """How many runs have made a trace."""

    def __init__(self) -> None:
        self.now = 0


@contextmanager
def traces() -> Iterator[Count]:
    """Counts the traces that runs make within the `with` block."""
    count = Count()
    tracer: Any = vars(execute)["Tracer"]

    def counting(*args: Any) -> Any:
        count.now += 1
        return tracer(*args)

    with patch.object(execute, "Tracer", counting):
        yield count


def contents(result: Any) -> Any:
    """A result with the bits of every array and handle in it; what it owns is used up."""
    if isinstance(result, tuple):
        return tuple(map(contents, result))
    if isinstance(result, Partition):
        return result.tile, result.grid, contents(result.unpartition())
    if isinstance(result, Tensor | SharedTensor):
        return type(result).__name__, bits(result.to_host().sync())
    return bits(result) if isinstance(result, np.ndarray) else result


def scaled(x: Op, by: float = 2.0, shape: Shape2 = (2, 3)) -> Op:
    """A kernel over an op that yields a tensor."""
    return scale(empty(shape).partition(shape), by, x).first().unpartition()


def twice_scaled() -> Op:
    return scaled(scaled(arange(6).reshape((2, 3))), 3.0)


@cache
def shared_input() -> Any:
    """Ones, of shape (2, 3)."""
    return ones((2, 3)).share().sync()


@cache
def lender() -> Any:
    """Fives, of shape (2, 3), that nobody writes."""
    return full((2, 3), 5).sync()


@pytest.fixture(scope="module", autouse=True)
def let_go() -> Iterator[None]:
    """Leave no tensor behind for the end of the process."""
    yield
    shared_input.cache_clear()
    lender.cache_clear()


@final
class Asked:
    """A policy that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def place(self, program: Program) -> Sequence[Hashable]:
        self.times += 1
        return SingleStream().place(program)


@st.composite
def pure(draw: st.DrawFn, shape: Shape2, depth: int = 4, *, lent: bool = False) -> Expr:
    """A description whose op calls no closure and remembers nothing, so that its trace can be spared."""
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
