"""Ops and their structure's key."""

from enum import Enum
from typing import Any, NamedTuple

from dagpu import Out, empty, f32, full, kernel
from dagpu.tracing.cache_key import flatten_op
from tests.programs.expressions import Op

S = (2, 2)


def key(op: Op) -> object:
    """The key of an op; None where it has none."""
    inputs = flatten_op(op)
    return None if inputs is None else inputs.key


def shared(number: float = 1.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).share().sync()


def tensor(number: float = 1.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


class Colour(Enum):
    """Two members."""

    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


@kernel(cuda="""__global__ void touch(Tile<float, 2> y, bool b, float a) { for (auto i : y) y[i] = a; }""")
def touch(y: Out[f32], b: bool, a: float) -> None:
    """y = a; `b` does nothing."""


class Named(Pair):
    """A named tuple that may have more than its items."""


def named(more: int) -> Any:
    found: Any = Named(1, 2)
    if more:
        found.more = more
    return found


class Text(str):
    """A text that is equal to every text of one letter."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and len(other) == 1

    def __hash__(self) -> int:
        return hash("2")
