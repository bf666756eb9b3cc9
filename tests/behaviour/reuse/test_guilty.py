"""A run that needs no trace refuses everything that a trace refuses, with the same error in the same words.

Each entry builds an op twice at one place: with inputs that are as they should be, and with others that are not. The
innocent one runs first, and leaves its plan for all that have its structure.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dagpu import (
    CudaGraph,
    In,
    MovedError,
    Out,
    Tile,
    device,
    dup,
    empty,
    f32,
    f64,
    fill,
    from_host,
    full,
    kernel,
    memcpy,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import Locks, plans, storage_of
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.expressions import Op
from tests.support.places import place
from tests.support.reused_ops import traces

S = (2, 2)
PAIR = """
__global__ void pair(Tile<float, 2> a, Tile<float, 2> b, View<const float, 2> x) { for (auto i : a) a[i] = x[i]; }
"""


@kernel(cuda=PAIR)
def pair(a: Out[f32], b: Out[f32], x: In[f32]) -> None:
    """a = x; b is left alone."""


@pair.host
def _(a: Tile[f32], b: Tile[f32], x: Any) -> None:
    a[...] = x[a.at]


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    plans.clear()
    yield
    plans.clear()
    HELD.clear()


HELD: list[Any] = []
"""What an entry needs to be kept alive: graphs, locks."""


def held(what: Any) -> Any:
    HELD.append(what)
    return what


def tensor(number: float = 1.0, shape: tuple[int, ...] = S, dtype: Any = f32) -> Any:
    return full(shape, number, dtype).sync()


def shared(number: float = 1.0) -> Any:
    return full(S, number).share().sync()


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


def written_by_a_graph() -> Any:
    """A tensor that the launches of a graph write."""
    graph: CudaGraph[Any] = held(scale(out(), 2.0, held(tensor()).borrow()).first().unpartition().graph())
    return graph.take_output()


def moved_away(handle: Any, how: Callable[[Any], Any]) -> Any:
    """A handle whose memory is gone by the time that its op runs; the op is built by then."""
    LATER.append(lambda: how(handle))
    return handle


LATER: list[Callable[[], Any]] = []
"""What happens between building an op and running it."""


def lost() -> Any:
    """A tensor whose run has failed."""
    seen: list[Any] = []

    def fail(pair: Any) -> Any:
        raise ArithmeticError(pair)

    with pytest.raises(ArithmeticError):
        zip_ops(ones(S).share().inspect(seen.append), value(0).host_map(fail)).sync()
    return seen[0]


def locked(handle: Any, *, exclusive: bool) -> Any:
    """A handle to what another run is using."""
    locks = Locks(None)
    locks.acquire({storage_of(handle): exclusive})
    HELD.append(locks)
    return handle


@pipeline
def sharing(t: Any) -> Op:
    """Gives its argument shared."""
    return value(t.share())


@pipeline
def scaling(x: Any, a: Any) -> Op:
    """a * x."""
    return scale(out(), a, x).first().unpartition()


@pipeline
def adding(y: Any, x: Any) -> Op:
    """y += x."""
    return axpy(y.partition(S), 1.0, x)


@pipeline
def lazily(x: Any, a: Any) -> Op:
    """a * x, `a` by way of an op."""
    return scale(out(), value(a), x).first().unpartition()


@pipeline
def cutting(x: Any, tile: Any) -> Op:
    """Its argument in tiles."""
    return value(x.partition(tile))


@pipeline
def copying(array: Any) -> Op:
    """Its argument on the device."""
    return from_host(array)


@pipeline
def filling(a: Any, dtype: Any) -> Op:
    """Return as many elements as a tensor of two by two has."""
    return full(S, a, dtype)


def either(guilty: bool, wrong: Any, right: Any) -> Any:
    return wrong if guilty else right


CLASH: dict[str, Callable[[bool], Op]] = {
    # handles: alive, on memory that is there, and nobody else's
    "share of what a graph writes": lambda g: value(written_by_a_graph() if g else tensor()).share(),
    "share of that in a pipeline": lambda g: sharing(written_by_a_graph() if g else tensor()),
    "share of that, reshaped": lambda g: value(written_by_a_graph() if g else tensor()).reshape((4,)).share(),
    "share of that, cut": lambda g: value(
        (written_by_a_graph() if g else tensor()).partition(S)
    ).unpartition().share(),
    "a shared tensor that was unwrapped": lambda g: dup(
        moved_away(shared(), lambda s: HELD.append(s.try_unwrap())) if g else shared()
    ),
    "a borrow of what has moved": lambda g: dup(
        moved_away(held(tensor()), lambda t: HELD.append(t.share())).borrow() if g else held(tensor()).borrow()
    ),
    "a loan of what has moved": lambda g: fill_loan(
        moved_away(held(tensor()), lambda t: HELD.append(t.share())) if g else held(tensor())
    ),
    "memory that was lost": lambda g: dup(lost() if g else shared()),
    "what another run writes": lambda g: dup(locked(shared(), exclusive=True) if g else shared()),
    "writing what another run reads": lambda g: fill_loan(
        locked(held(tensor()), exclusive=False) if g else held(tensor())
    ),
    # two uses of one memory
    "reading what is written": lambda g: two(g, lambda t, u: zip_ops(
        axpy(value(t.borrow_mut().partition(S)), 1.0, ones(S)), dup(u.borrow())
    )),
    "writing twice": lambda g: two(g, lambda t, u: zip_ops(
        axpy(value(t.borrow_mut().partition(S)), 1.0, ones(S)), axpy(value(u.borrow_mut().partition(S)), 1.0, ones(S))
    )),
    "an output that is an input": lambda g: two(g, lambda t, u: axpy(
        value(t.borrow_mut().partition(S)), 1.0, value(u.borrow())
    )),
    "an output that is an input of a pipeline": lambda g: two(g, lambda t, u: adding(t.borrow_mut(), u.borrow())),
    "two outputs on one memory": lambda g: two(g, lambda t, u: pair(
        value(t.borrow_mut().partition(S)), value(u.borrow_mut().partition(S)), ones(S)
    )),
    "one op twice": lambda g: twice(g, [zeros(S) for _ in range(2)]),
    # kinds, element types, ranks, grids
    "a tensor for an output": lambda g: axpy(value(tensor() if g else tensor().partition(S)), 1.0, ones(S)),
    "a partition for an input": lambda g: axpy(out(), 1.0, value(tensor().partition(S) if g else tensor())),
    "an element type": lambda g: axpy(zeros(S).partition(S), 1.0, value(tensor(1, S, f64 if g else f32))),
    "a rank": lambda g: axpy(zeros(S).partition(S), 1.0, value(tensor(1, (4,) if g else S))),
    "grids that differ": lambda g: pair(
        value(tensor().partition(S)), value(tensor().partition((1, 2) if g else S)), ones(S)
    ),
    "two devices": lambda g: add(
        value(full(S, 1).on(place(0)).sync().partition(S)), value(full(S, 1).on(place(int(g))).sync()),
        full(S, 1).on(place(0)),
    ),
    "to_host of a partition": lambda g: value(tensor().partition(S) if g else tensor()).to_host(),
    "partition of what is shared": lambda g: value(shared() if g else tensor()).partition(S),
    "partition of a partition": lambda g: value(tensor().partition(S) if g else tensor()).partition(S),
    "unpartition of what is whole": lambda g: value(tensor() if g else tensor().partition(S)).unpartition(),
    "share of what is shared": lambda g: value(shared() if g else tensor()).share(),
    "share of a borrow": lambda g: value(held(tensor()).borrow() if g else tensor()).share(),
    "reshape of what has gaps": lambda g: value(
        held(tensor(1, (2, 4))).slice(slice(0, 2), slice(0, 2)) if g else held(tensor()).borrow()
    ).reshape((4,)).to_host(),
    # tiles and shapes: (2.0,) equals (2,) in Python
    "a tile of a float": lambda g: zeros(S).partition((either(g, 2.0, 2), 2)),
    "a tile of a text": lambda g: zeros((4,)).partition(either(g, "4", (4,))),
    "a tile that does not divide": lambda g: zeros((4,)).partition((either(g, 3, 2),)),
    "a tile of nothing": lambda g: zeros((4,)).partition((either(g, 0, 2),)),
    "a tile that does not divide in a pipeline": lambda g: cutting(tensor(), (either(g, 3, 2), 2)),
    "a tile of a float in a pipeline": lambda g: cutting(tensor(), (either(g, 2.0, 2), 2)),
    "a shape of floats": lambda g: zeros(S).reshape((either(g, 4.0, 4),)),
    "a shape of another size": lambda g: zeros(S).reshape((either(g, 5, 4),)),
    "a shape with nothing to divide": lambda g: zeros(S).reshape((either(g, 2.0, 2), 2)),
    # numbers and arrays
    "a number that is too large": lambda g: scaling(shared(), either(g, 1e60, 1.0)),
    "a number of another type": lambda g: lazily(shared(), either(g, 1 << 2000, 3)),
    "a number by way of an op": lambda g: lazily(shared(), either(g, 1e60, 1.0)),
    "a text for a number": lambda g: scale(out(), value(either(g, "1", 1.0)), shared()),
    "a truth for a number": lambda g: scale(out(), value(either(g, True, 1)), shared()),
    "an array for a number": lambda g: scaling(shared(), either(g, np.ones(1, f32), 1.0)),
    "a constant that does not fit": lambda g: filling(either(g, 1e60, 1), np.int32),
    "a constant of another type": lambda g: filling(either(g, 1j, 1), np.int32),
    "an array of objects": lambda g: copying(np.zeros(S, either(g, object, f32))),
    "an array of another byte order": lambda g: copying(np.zeros(S, either(g, ">f4", "<f4"))),
    "a list for an array": lambda g: copying(either(g, [[1.0]], np.zeros(S, f32))),
    # places
    "a device that is not there": lambda g: zeros(S).on(either(g, "host:999999", place(0))),
    "a stream of another device": lambda g: fill(tensor(), 3).on(stream_of(place(int(g)))),
}  # fmt: skip
"""An op whose run is refused where it is guilty, and whose structure is that of one that is not."""
OWN_CACHE = frozenset(("a stream of another device",))
"""These run anew each time: no cache keeps a stream of the user's."""


def fill_loan(t: Any) -> Op:
    """Writes what is lent."""
    return memcpy(t.borrow_mut(), ones(S).share().sync())


def twice(same: bool, ops: list[Op]) -> Op:
    """Two ops side by side, or one of them twice."""
    return zip_ops(ops[0], ops[0] if same else ops[1])


def two(same: bool, build: Callable[[Any, Any], Op]) -> Op:
    """An op over two tensors, or twice the same one."""
    t = held(tensor())
    return build(t, t if same else held(tensor()))


def stream_of(name: str) -> Any:
    """A stream of a device."""
    return device(name).stream()


def run(name: str, guilty: bool) -> str | None:
    """Return the error of a run; None if it succeeds."""
    try:
        op = CLASH[name](guilty)
        op = zip_ops(op, zeros((1,)))  # work of its own: a run with none leaves no plan
        for happens in LATER:
            happens()
        op.sync()
    except Exception as error:
        text = re.sub(r"0x[0-9a-f]+", "", str(error))
        return f"{type(error).__name__}: {text}"
    else:
        return None
    finally:
        LATER.clear()


@pytest.mark.parametrize("name", CLASH)
def test_a_plan_that_is_there_lets_nothing_pass(name: str) -> None:
    """After three innocent runs the guilty op fails as it does on its own, and leaves the innocent one well."""
    if place(0) == place(1) and name in ("two devices", "a stream of another device"):
        pytest.skip("needs two devices")
    said = run(name, guilty=True)
    assert said is not None
    plans.clear()
    HELD.clear()
    for pipe in (sharing, scaling, adding, lazily, cutting, copying, filling):
        pipe.cache_clear()
    assert [run(name, guilty=False) for _ in range(2)] == [None] * 2
    with traces() as count:
        assert run(name, guilty=False) is None
    assert count.now == (name in OWN_CACHE)  # so there is a plan to be found
    assert run(name, guilty=True) == said
    HELD.clear()
    assert run(name, guilty=False) is None


def test_a_graph_whose_input_has_moved_is_refused() -> None:
    """A launch takes the plan of earlier launches, and holds what was lent to the graph against where it is now."""
    x = tensor()
    graph = scale(out(), 2.0, x.borrow()).first().unpartition().graph()

    def launch() -> str | None:
        try:
            zip_ops(graph.launch(), zeros((1,))).sync()
        except MovedError as error:
            return str(error)
        return None

    fresh = scale(out(), 2.0, x.borrow()).first().unpartition().graph()
    assert [launch() for _ in range(2)] == [None] * 2
    with traces() as count:
        assert launch() is None
    assert count.now == 0
    moved = x.share()
    said = launch()
    assert said is not None
    assert "was moved by share()" in said
    graph = fresh  # it has no plan yet
    wanted = launch()
    assert wanted is not None
    assert re.sub(r"test_guilty.py:\d+", "", said) == re.sub(r"test_guilty.py:\d+", "", wanted)
    assert moved.to_host().sync().tolist() == [[1, 1], [1, 1]]
