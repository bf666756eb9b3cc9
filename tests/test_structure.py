"""Keys of ops: equal exactly where one plan serves both, so that no run takes a plan that is not its own."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    Out,
    RoundRobin,
    arange,
    convert,
    current_device,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    i32,
    kernel,
    memcpy,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.lowering.structure import inputs_of
from dagpu.runtime.kept import plans
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
