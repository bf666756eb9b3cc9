"""Keys of ops: equal exactly where one plan serves both, so that no run takes a plan that is not its own."""

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

from dagpu import (
    Out,
    RoundRobin,
    Stream,
    arange,
    convert,
    current_device,
    device,
    dup,
    empty,
    eye,
    f32,
    fill,
    from_host,
    full,
    i32,
    kernel,
    linspace,
    memcpy,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.lowering.structure import inputs_of
from dagpu.runtime.kept import plans
from dagpu.standins import SymbolicNumber
from tests.arithmetic import add, axpy, scale
from tests.expressions import Building, Call, Change, Expr, Lent, Make, Number, Op, bits, build
from tests.places import elsewhere, place
from tests.strategies import shapes
from tests.test_reuse import pure

S = (2, 2)


def key(op: Op) -> object:
    """The key of an op; None where it has none."""
    inputs = inputs_of(op)
    return None if inputs is None else inputs.key


def shared(number: float = 1.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).share().sync()


def tensor(number: float = 1.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


@pipeline
def anything(*arguments: Any, **named: Any) -> Op:
    """Takes all that it is given."""
    return zeros(S)


@pipeline
def another(*arguments: Any) -> Op:
    """Likewise."""
    return zeros(S)


def on(op: Any, anywhere: Any) -> Any:
    """`sync_on(stream)` places an op like this."""
    return op.on(anywhere)


def let(f: Callable[..., Any], *values: Any) -> Any:
    """`f` of values that it uses more than once."""
    return f(*values)


# ---- what differs, and what does not


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


X, Y, Z = (np.zeros(S, f32) for _ in range(3))


SAME: dict[str, Callable[[Any], Op]] = {
    "numbers of a kernel": lambda k: scale(out(), float(k), shared()),
    "contents and addresses": lambda k: dup(shared(k)),
    "borrows of different tensors": lambda k: dup(tensor(k).borrow()),
    "owned tensors": lambda k: fill(tensor(k), 3),
    "arrays": lambda k: from_host(np.full(S, k, f32)),
    "strides of arrays": lambda k: from_host(np.zeros((4, 4), f32)[:: k + 1, : 4 // (k + 1)][:2, :2]),
    "a number of a pipeline": lambda k: anything(k, (float(k), [k], {"a": k}), Pair(k, 1), b=k),
    "handles of a pipeline": lambda k: anything(shared(k), [tensor(k)], {"x": tensor(k).borrow()}),
    "a partition": lambda k: axpy(tensor(k).borrow_mut().partition(S), 1.0, shared()),
    "the place of a value": lambda k: [lambda: value(1), lambda: value(1)][k](),
    "two of one memory": lambda k: let(lambda s: anything(s, s.clone()), shared(k)),
    "one handle twice": lambda k: let(lambda s: anything(s, s), shared(k)),
}


@pytest.mark.parametrize("name", SAME)
def test_the_memory_and_the_numbers_stand_in_no_key(name: str) -> None:
    """What a run brings itself is no part of the key."""
    op, other = (SAME[name](k) for k in (0, 1))
    assert key(op) is not None
    assert key(op) == key(other)


DIFFERENT: dict[str, Callable[[], list[Any]]] = {
    "values": lambda: [value(x) for x in (
        1, True, 1.0, f32(1), i32(1), "1", b"1", 1 + 0j, None, (1,), ((1,),), Pair(1, 2)
    )],
    "signs of zero": lambda: [value(x) for x in (0.0, -0.0, 0j, -0j, f32(0), -f32(0))],
    "a plain argument": lambda: [anything(x) for x in (
        "a", b"a", True, False, None, 1, 1.0, 1j, f32(1), f32, Colour.RED
    )],
    "an enumeration": lambda: [anything(x) for x in Colour],
    "keys of a dict": lambda: [anything({x: 1}) for x in (1, True, 1.0, "1", 0.0, -0.0)],
    "the order of a dict": lambda: [anything({"a": 1, "b": 1.0}), anything({"b": 1.0, "a": 1})],
    "containers": lambda: [anything(x) for x in (
        [1, 2], (1, 2), Pair(1, 2), {"left": 1, "right": 2}, [1, [2]], [[1], 2]
    )],
    "how arguments are passed": lambda: [anything(1), anything(a=1), anything(b=1), anything(1, 1), anything()],
    "pipelines": lambda: [anything(1), another(1)],
    "shapes": lambda: [dup(shared(shape=shape)) for shape in ((4,), (2, 2), (4, 1), (1, 4), (2, 2, 1))],
    "element types": lambda: [dup(zeros(S, dtype).sync().share()) for dtype in (f32, i32, np.float64)],
    "strides": lambda: let(lambda t: [dup(t.slice(slice(0, 4, k), slice(0, 2))) for k in (1, 2)], tensor(1, (4, 4))),
    "offsets": lambda: let(lambda t: [dup(t.slice(slice(k, k + 1))) for k in (0, 1)], tensor()),
    "sizes of blocks": lambda: [dup(tensor(shape=(k, 2)).slice(slice(0, 2))) for k in (2, 3)],
    "kinds of handles": lambda: [
        anything(x) for x in (tensor(), shared(), tensor().borrow(), tensor().borrow_mut(), tensor().partition(S))
    ],
    "tiles of one grid": lambda: [anything(tensor(shape=(5, 2)).partition((k, 2), partial=True)) for k in (3, 4)],
    "what was cut": lambda: [anything(t.partition(S)) for t in (tensor(), tensor().borrow_mut())],
    "tiles": lambda: [anything(tensor().partition(tile)) for tile in ((2, 2), (1, 2), (2, 1))],
    "devices": lambda: [dup(full(S, 1).on(there).share().sync()) for there in (place(), elsewhere())],
    "which share memory": lambda: let(
        lambda s, t: [anything(s, s), anything(s, s.clone()), anything(s, t)], shared(), shared()
    ),
    "shapes of arrays": lambda: [from_host(np.zeros(shape, f32)) for shape in ((4,), (2, 2), (4, 1))],
    "types of arrays": lambda: [from_host(np.zeros(4, dtype)) for dtype in (f32, i32)],
    "which array is which": lambda: [
        add(out(), from_host(a), from_host(b)) for a, b in ((X, X), (X, Y))
    ],
    "a bool of a kernel": lambda: [touch(out(), b, 1.0) for b in (True, False)],
    "settings of a kernel": lambda: [k(out(), 1.0, shared()) for k in (
        scale, scale.block(32), scale.grid(1, 1), scale.shared_memory(8)
    )],
    "kernels": lambda: [k(tensor().partition(S), 1.0, shared()) for k in (scale, axpy)],
    "recipes": lambda: [zeros(S), ones(S), full(S, 2), full(S, 0.0), full(S, -0.0), empty(S), arange(4), arange(5)],
    "a fill": lambda: [fill(tensor(), x) for x in (0.0, -0.0, 1)],
    "a conversion": lambda: [convert(shared(), dtype) for dtype in (i32, np.float64)],
    "copies": lambda: [dup(shared()), memcpy(tensor().borrow_mut(), shared())],
    "placements": lambda: [zeros(S), *(zeros(S).on(there) for there in (place(), elsewhere(), device(place())))],
    "streams": lambda: [on(zeros(S), current_device().stream()) for _ in range(2)],
    "streams of one name": lambda: [on(zeros(S), Stream(device(f"host:{k}"), "its name")) for k in (0, 1)],
    "built-in methods": lambda: [
        zeros(S).share(), zeros(S).reshape((4,)), zeros(S).reshape((4, 1)), zeros(S).partition(S),
        zeros(S).partition((1, 2)), zeros(S).partition((1, 2), partial=True), zeros(S).to_host(),
    ],
    "which component": lambda: [zip_ops(zeros(S), ones(S)).first(), zip_ops(zeros(S), ones(S)).last()],
    "the order of branches": lambda: [zip_ops(zeros(S), ones(S)), zip_ops(ones(S), zeros(S))],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_a_plan_depends_on_stands_in_the_key(name: str) -> None:
    """No two of these may take each other's plan."""
    ops = DIFFERENT[name]()
    keys = [key(op) for op in ops]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_the_line_stands_in_the_key() -> None:
    """Errors and plans name the places of ops: those of another place are not its own."""
    first = zeros(S)
    second = zeros(S)
    assert key(first) != key(second)


class Named(Pair):
    """A named tuple that may have more than its items."""


def named(more: int) -> Any:
    found: Any = Named(1, 2)
    if more:
        found.more = more
    return found


NO_KEY: dict[str, Callable[[], Op]] = {
    "closures": lambda: zeros(S).map(lambda t: t),
    "then": lambda: zeros(S).then(dup),
    "host_map": lambda: value(1).host_map(float),
    "shared": lambda: zeros(S).shared(),
    "unzip": lambda: zip_ops(zeros(S), ones(S)).unzip()[0],
    "a policy": lambda: zeros(S).on(RoundRobin(2)),
    "a list in a value": lambda: value([1]),
    "an array in a value": lambda: value(X),
    "an object": lambda: anything(object()),
    "a function": lambda: anything(len),
    "an op": lambda: anything(zeros(S)),
    "a subclass of int": lambda: anything(type("Count", (int,), {})(1)),
    "a subclass of str": lambda: anything(type("Text", (str,), {})("a")),
    "a subclass of dict": lambda: anything(type("Table", (dict,), {})(a=1)),
    "a subclass of tuple": lambda: anything(type("Row", (tuple,), {})((1,))),
    "a tuple with more than items": lambda: anything(named(3)),
    "a masked array": lambda: anything(np.ma.zeros(2)),
    "a key that is an object": lambda: anything({(1, 2): 1}),
    "a tile that has no hash": lambda: zeros(S).partition(([1], 2)),  # type: ignore[arg-type]  # reason: wrong on purpose
    "one op twice": lambda: let(lambda op: zip_ops(op, op), zeros(S)),
    "deep tuples": lambda: anything((((((((((((((((((((((1,),),),),),),),),),),),),),),),),),),),),)),
}


@pytest.mark.parametrize("name", NO_KEY)
def test_what_cannot_be_looked_into_has_no_key(name: str) -> None:
    """Then each run is traced."""
    assert key(NO_KEY[name]()) is None


NESTED: dict[str, Callable[[Any], Any]] = {
    "tuples": lambda inner: (inner,),
    "named tuples": lambda inner: Pair(inner, 1),
    "lists": lambda inner: [inner],
    "dicts": lambda inner: {"a": inner},
}


@pytest.mark.parametrize("name", NESTED)
def test_values_are_looked_into_up_to_a_depth(name: str) -> None:
    """Of a value, containers in twenty containers. Of a pipeline's arguments, which stand in two tuples, two less. What
    is nested deeper has no key."""
    nested: Any = 1
    for depth in range(1, 24):
        nested = NESTED[name](nested)
        assert (key(anything(nested)) is not None) == (depth <= 18)
        if "tuples" in name:  # a list or dict in a value may be changed
            assert (key(value(nested)) is not None) == (depth <= 20)


def test_a_moved_handle_has_no_key() -> None:
    """The trace says what is wrong with it."""
    lent = tensor()
    op = dup(lent.borrow())
    assert key(op) is not None
    lent.share()
    assert key(op) is None
    used = fill(tensor(), 1)
    used.sync()
    assert key(used) is None


def test_a_known_tuple_is_known_by_its_items() -> None:
    """A class of the user's with nothing more than its items does no harm."""
    assert key(anything(named(0))) == key(anything(named(0)))


# ---- values that Python calls equal


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


class Text(str):
    """A text that is equal to every text of one letter."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and len(other) == 1

    def __hash__(self) -> int:
        return hash("2")


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
    """What a run of an op gives, to the last bit, or what it says."""
    try:
        return spoken(zip_ops(op, zeros((1,))).sync())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


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


# ---- random ops


def renumbered(e: Expr, by: int) -> Expr:
    """The same structure with other numbers and other contents."""
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
