"""Keys of ops: equal exactly where one plan serves both, so that no run takes a plan that is not its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import (
    RoundRobin,
    Stream,
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
    memcpy,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.expressions import Op
from tests.support.places import elsewhere, place
from tests.unit.tracing.arguments.structure_keys import Colour, Pair, S, key, named, out, shared, tensor, touch


@pipeline
def anything(*arguments: Any, **named: Any) -> Op:
    """Takes all that it is given."""
    return zeros(S)


@pipeline
def another(*arguments: Any) -> Op:
    """Another pipeline with the same body as `anything`."""
    return zeros(S)


def on(op: Any, anywhere: Any) -> Any:
    """`sync_on(stream)` places an op like this."""
    return op.on(anywhere)


def let(f: Callable[..., Any], *values: Any) -> Any:
    """`f` of values that it uses more than once."""
    return f(*values)


def after_run(op: Op) -> Op:
    """An op that has run."""
    op.sync()
    return op


def claimed(op: Any) -> Op:
    """A `shared()` op that another run is computing."""
    op.once.claim(object())
    found: Op = op
    return found


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
    "a node that has run": lambda k: scale(out(), 1.0, after_run(full(S, k).shared())),
    "a node that has not run": lambda k: let(
        lambda x: zip_ops(scale(out(), 1.0, x), x), from_host(np.full(S, k, f32)).shared()
    ),
    "a component that was made": lambda k: let(
        lambda left, right: let(lambda _: right, after_run(left)), *zip_ops(full(S, k), full(S, k)).unzip()
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_memory_and_the_numbers_stand_in_no_key(name: str) -> None:
    """Memory and numbers, which each run brings, are not part of the key."""
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
    "what has run": lambda: [f(ones(S).shared()) for f in (lambda op: op, after_run)],
    "a node twice": lambda: let(
        lambda x, y: [zip_ops(*pair) for pair in ((x, x), (x, y))], *[ones(S).shared() for _ in range(2)]
    ),
    "the order of nodes": lambda: let(
        lambda x, y: [zip_ops(*uses) for uses in ((x, y, x, y), (x, y, y, x))], *[ones(S).shared() for _ in range(2)]
    ),
    "which component of an unzip": lambda: list(zip_ops(zeros(S), ones(S)).unzip()),
    "remembered values": lambda: [after_run(value(x).shared()) for x in (1, 1.0, True, "1", (1,), ((1,),), None)],
    "memory that is remembered twice": lambda: let(
        lambda x, y: [zip_ops(*pair) for pair in ((x, x), (x, y))], *[after_run(ones(S).shared()) for _ in range(2)]
    ),
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


OBJECT = object()

NO_KEY: dict[str, Callable[[], Op]] = {
    "closures": lambda: zeros(S).map(lambda t: t),
    "then": lambda: zeros(S).then(dup),
    "host_map": lambda: value(1).host_map(float),
    "shared by another run": lambda: claimed(zeros(S).shared()),
    "a component that was taken": lambda: after_run(zip_ops(zeros(S), ones(S)).unzip()[0]),
    "a remembered list": lambda: after_run(value([1]).shared()),
    "a policy": lambda: zeros(S).on(RoundRobin(2)),
    "a list in a value": lambda: value([1]),
    "an array in a value": lambda: value(X),
    "an object": lambda: anything(object()),
    "a function over an object": lambda: anything(lambda: OBJECT),
    "an op with a function": lambda: anything(zeros(S).map(lambda t: t)),
    "an op that owns a tensor": lambda: anything(value(zeros(S).sync())),
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
    """A value has a key if its containers are nested at most twenty deep; a pipeline's arguments, inside two tuples,
    at most eighteen. A value that is nested deeper has none."""
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
