"""The structure of ops whose values Python calls equal, and of random ops."""

import struct
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import arange, convert, eye, f32, fill, full, i32, linspace, pipeline, value, zeros, zip_ops
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.runtime.plan_cache import plans
from tests.programs.arithmetic import scale
from tests.programs.expressions import Building, Call, Change, Expr, Lent, Make, Number, Op, bits, build
from tests.programs.strategies import shapes
from tests.support.reused_ops import pure
from tests.unit.lowering.arguments.structure_keys import Colour, S, Text, key, out, shared, tensor, touch


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

ODD: list[Any] = [
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


FORMS: dict[str, Callable[[Any], Op]] = {
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


def outcome(op: Op) -> str:
    """Return the result of a run of an op to the last bit, or its message."""
    try:
        return spoken(zip_ops(op, zeros((1,))).sync())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- values that Python calls equal


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_equal_keys_mean_equal_runs(form: str) -> None:
    """Wherever a program may write a value: if two ops that differ in it alone have one key, then each gives, or says,
    after the other has left its plan, what it gives with no plan there."""

    def built(v: Any) -> Op | None:
        try:
            return FORMS[form](v)
        except Exception:  # refused where it is written
            return None

    def fresh() -> None:
        plans.clear()
        telling.cache_clear()

    values = [v for v in ODD if built(v) is not None]
    assert values
    alone = []
    for v in values:
        fresh()
        op = built(v)
        assert op is not None
        alone.append(outcome(op))
    for (i, v), (_, w) in permutations(enumerate(values), 2):
        op, before = built(v), built(w)
        assert op is not None
        assert before is not None
        if key(op) is not None and key(op) == key(before):
            fresh()
            outcome(before)
            assert outcome(op) == alone[i], (v, w)


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


# ---- random ops


@settings(max_examples=60)
@given(shapes.flatmap(pure), shapes.flatmap(pure), st.integers(1, 5))
def test_keys_of_random_ops(e: Expr, other: Expr, by: int) -> None:
    """Two ops of one description have one key, whatever their numbers and contents; of two descriptions, two."""

    def keyed(e: Expr) -> object:
        return key(build(e, Building()))

    if keyed(e) is not None:
        assert keyed(e) == keyed(renumbered(e, by))
        if by_shape(e) != by_shape(other):
            assert keyed(e) != keyed(other)


def by_shape(e: Expr) -> object:
    """A description without what may differ in one key."""
    match e:
        case Call():
            return e.kernel, e.shape, e.tile, by_shape(e.x), by_shape(e.y)
        case Change():
            return e.how, e.number if e.how == "zip last" else None, by_shape(e.x)
        case Lent(make):
            return "lent", make.shape
        case Make(shape, how, number):
            return how, shape, number if how in ("full", "linspace") else None
        case _:
            return repr(e)


@settings(max_examples=60)
@given(shapes.flatmap(pure), st.lists(st.integers(-3, 3), min_size=2, max_size=3))
def test_a_plan_found_by_structure_gives_the_same(e: Expr, steps: list[int]) -> None:
    """A loop that builds the same DAG anew, with other numbers and contents, gives what no cache gives."""

    def run(by: int) -> Any:
        return bits(build(renumbered(e, by), Building()).to_host().sync())

    fresh = []
    for by in steps:
        plans.clear()
        fresh.append(run(by))
    plans.clear()
    assert [run(by) for by in steps] == fresh
