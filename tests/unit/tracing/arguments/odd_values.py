"""Values that Python calls equal and a trace does not, and the places where a program may write a value."""

import struct
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np

from dagpu import arange, convert, eye, f32, fill, full, i32, linspace, pipeline, value, zeros, zip_ops
from dagpu.handles.symbolic import SymbolicNumber
from tests.programs.arithmetic import scale
from tests.programs.expressions import Op
from tests.unit.tracing.arguments.structure_keys import Colour, S, Text, out, shared, tensor, touch


class Same(type):
    """A metaclass whose classes are all equal."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Same)

    def __hash__(cls) -> int:
        return 1


class One(metaclass=Same):
    """A class."""


class Two(metaclass=Same):
    """Another, which is equal to it."""


class Always(Enum):
    """Members that are equal to each other."""

    LEFT = 1
    RIGHT = 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Always)

    def __hash__(self) -> int:
        return 1


class LeftPair(NamedTuple):
    """A named tuple."""

    only: Any


class RightPair(NamedTuple):
    """Another of the same items."""

    only: Any


PAYLOAD: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0123))[0]
"""Not a number, and not the NaN that Python makes."""

ODD: Final[list[Any]] = [
    2, 2.0, 2 + 0j, "2", b"2", Text("2"), Text("3"), f32(2), i32(2), np.int64(2), np.float64(2), np.bool_(True),
    Fraction(2), Decimal(2), 1, 1.0, True, 0, 0.0, -0.0, False, 0j, -0j, f32(0), -f32(0), np.float64("nan"),
    float("nan"), -float("nan"), PAYLOAD, complex(0, PAYLOAD), complex(0, -PAYLOAD),
    None, One, Two, int, float, np.float32, Always.LEFT, Always.RIGHT, Colour.RED, np.dtype("q"),
    np.dtype("l"), np.dtype(">i8"),
    np.dtype("i8", metadata={"a": 1}), np.dtype("i4,i4"), np.dtype("i4,i4", align=True), (2,), (2.0,), (True,),
    LeftPair(2), RightPair(2), [2], {2: 2}, {2.0: 2}, 1 << 70,
]  # fmt: skip
"""Many of these are equal to others of them, and no two are the same to a trace."""


def spoken(x: Any) -> str:
    """All that can be told of a value."""
    if isinstance(x, tuple | list):
        return f"{type(x).__name__}[{', '.join(map(spoken, x))}]"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{spoken(key)}: {spoken(item)}' for key, item in x.items())}}}"
    if isinstance(x, np.dtype):
        return f"dtype {x.char} {x.str} {x.metadata} {x.isalignedstruct}"
    if isinstance(x, np.ndarray):
        return f"{x.dtype} {x.shape} {x.tobytes().hex()}"
    if hasattr(x, "to_host"):
        return f"{type(x).__name__} {spoken(x.to_host().sync())}"
    if hasattr(x, "tile"):
        return f"Partition {x.tile} {x.grid} {spoken(x.unpartition())}"
    kind = type(x).__name__
    if kind == SymbolicNumber.__name__:  # among a pipeline's arguments, where isinstance tells its type
        kind = "int" if isinstance(x, int) else "float"
    if isinstance(x, float | complex):
        return f"{kind} {struct.pack('<dd', x.real, x.imag).hex()}"
    return f"{kind} {x!r}"


@pipeline
def telling(*arguments: Any, **named: Any) -> Op:
    """Says all that can be told of its arguments."""
    return zip_ops(zeros(S), value(spoken((arguments, named))))


FORMS: Final[dict[str, Callable[[Any], Op]]] = {
    "a value": value,
    "in a tuple": lambda v: value((v, 1)),
    "a tile": lambda v: zeros((4,)).partition((v,)),
    "a tile itself": lambda v: zeros((4,)).partition(v),
    "partial": lambda v: zeros((3,)).partition((2,), partial=v),
    "a shape": lambda v: zeros((4,)).reshape((v, 2)),
    "a new shape": lambda v: zeros((v, 2)),
    "a constant": lambda v: full(S, v),
    "a constant of integers": lambda v: full(S, v, i32),
    "what fills": lambda v: fill(tensor(), v),
    "the end of a range": arange,
    "the end of a line": lambda v: linspace(0, v, 3),
    "how many": lambda v: linspace(0, 1, v),
    "columns": lambda v: eye(2, v),
    "an element type": lambda v: zeros(S, v),
    "a conversion": lambda v: convert(shared(), v),
    "a number of a kernel": lambda v: scale(out(), v, shared()).first(),
    "a truth of a kernel": lambda v: touch(out(), v, 1.0).first(),
    "a lazy number": lambda v: scale(out(), value(v), shared()).first(),
    "an argument": telling,
    "an argument in a list": lambda v: telling([v]),
    "an argument by name": lambda v: telling(a=v),
    "a key of a dict": lambda v: telling({v: 1}),
    "a place": lambda v: zeros(S).on(v),
    "the elements of an array": lambda v: telling(np.zeros(2, v).dtype),
    "an array": lambda v: telling(np.zeros(S, v)),
}
"""Where a program may write a value."""
