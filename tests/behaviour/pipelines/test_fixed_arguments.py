"""Arguments of pipelines that are constants of a plan (slices, sets, frozen dataclasses, functions), and ops."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import DeviceOp, Pipeline, array, dup, expr, f32, from_host, ones, pipeline, source, zip_ops

Op = DeviceOp[Any, Any, Any]
scaled = expr(f32, f32)(lambda x, a: x * a)
X = np.arange(1, 5, dtype=np.float32)
factor = 2.0
"""A global variable that functions below read."""


@dataclass(frozen=True)
class Setting:
    """A value of the user's."""

    number: float
    inner: Any = None
    derived: float = field(init=False, default=1.0)

    @cached_property
    def doubled(self) -> float:
        return 2 * self.number


@dataclass(frozen=True, slots=True)
class Slotted:
    """One with slots."""

    number: float


class Color(Enum):
    RED = 1
    BLUE = 2


def times(a: float, b: float) -> float:
    return a * b


def described(a: Any) -> float:
    """A number that depends on all that a function can see of an argument."""
    if callable(a):
        return float(a(1.5))
    if isinstance(a, Setting | Slotted):
        return a.number + (described(a.inner) if isinstance(a, Setting) and a.inner is not None else 0)
    if isinstance(a, slice):
        return float(sum(X[a])) if a.step != 0 else 0.0
    if isinstance(a, range):
        return float(sum(a) + 7 * len(a) + 100 * a.step)
    if isinstance(a, set | frozenset | tuple | list):
        return float(sum((number + 1) * described(item) for number, item in enumerate(a)))
    if isinstance(a, Enum):
        return float(a.value)
    return float(a)


def counted() -> tuple[Pipeline[Any, Any], list[int]]:
    """A pipeline of an array and one argument, and its traces."""
    traces: list[int] = []

    @pipeline
    def multiplied(x: Any, a: Any) -> Op:
        traces.append(1)
        return scaled(from_host(x), described(a)).to_host()

    return multiplied, traces


numbers = st.sampled_from([0.5, 2.0, -0.0, 0.0, 3.0])
whole = st.integers(-3, 3)
makers: st.SearchStrategy[Callable[[], Any]] = st.deferred(
    lambda: st.one_of(
        numbers.map(lambda n: lambda: Setting(n)),
        numbers.map(lambda n: lambda: Slotted(n)),
        st.tuples(numbers, makers).map(lambda p: lambda: Setting(p[0], p[1]())),
        st.sampled_from(Color).map(lambda c: lambda: c),
        st.tuples(whole, whole, st.sampled_from([1, 2, -1])).map(lambda p: lambda: slice(*p)),
        st.tuples(whole, whole, st.sampled_from([1, 2, -1])).map(lambda p: lambda: range(*p)),
        st.lists(whole, max_size=4).map(lambda p: lambda: set(p)),
        st.lists(numbers, max_size=4).map(lambda p: lambda: frozenset(p)),
        numbers.map(lambda n: lambda: lambda v: v * n),
        numbers.map(lambda n: lambda: lambda v, by=n: v * by),
        numbers.map(lambda n: lambda: partial(times, n)),
        numbers.map(lambda n: lambda: partial(operator.mul, n)),
        st.sampled_from([math.sqrt, math.exp, float, abs]).map(lambda f: lambda: f),
        st.lists(makers, max_size=2).map(lambda p: lambda: tuple([each() for each in p])),
    )
)
"""Functions that make an argument, an equal one each time they are called."""


@given(st.lists(makers, min_size=1, max_size=3))
def test_an_equal_argument_finds_the_plan(found: list[Callable[[], Any]]) -> None:
    """Key, guard and stand-ins agree: the second call and all later ones with an equal argument trace nothing, also
    where others come in between; and each gives what a fresh trace and NumPy give."""
    multiplied, traces = counted()
    for make in found:
        multiplied(X, make()).sync()
    before = len(traces)
    for _ in range(3):
        for make in found:
            for _ in range(2):
                result = multiplied(X, make()).sync()
                fresh, _ = counted()
                np.testing.assert_array_equal(result, fresh(X, make()).sync())
                np.testing.assert_array_equal(result, X * np.float32(described(make())))
    assert len(traces) == before
    assert multiplied.cache_info().hits >= 6 * len(found)


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "numbers of a dataclass": (lambda: Setting(2.0), lambda: Setting(3.0)),
    "a whole number and a float": (lambda: Setting(2), lambda: Setting(2.0)),
    "a sign": (lambda: Setting(0.0), lambda: Setting(-0.0)),
    "classes": (lambda: Setting(2.0), lambda: Slotted(2.0)),
    "slices": (lambda: slice(0, 2), lambda: slice(0, 3)),
    "equal ranges": (lambda: range(0, 3, 2), lambda: range(0, 4, 2)),
    "closures": (lambda: closing_over(2.0), lambda: closing_over(3.0)),
    "defaults": (lambda: with_default(2.0), lambda: with_default(3.0)),
    "partials": (lambda: partial(times, 2.0), lambda: partial(times, 3.0)),
    "functions": (lambda: math.sqrt, lambda: math.exp),
    "sets": (lambda: {1, 2}, lambda: frozenset((1, 2))),
}


def closing_over(number: float) -> Callable[[float], float]:
    return lambda v: v * number


def with_default(number: float) -> Callable[[float], float]:
    return lambda v, by=number: v * by  # type: ignore[misc]  # reason: a default is the point


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_value_has_another_plan(name: str) -> None:
    """Two values that a trace can tell apart are traced once each, and none is taken for the other."""
    multiplied, traces = counted()
    for _ in range(3):
        for make in DIFFERENT[name]:
            np.testing.assert_array_equal(multiplied(X, make()).sync(), X * np.float32(described(make())))
    assert len(traces) == 2


def test_what_can_change_is_read_again() -> None:
    """A set that has changed in place, a global variable and a variable that a function closes over: the result is that
    of now."""
    global factor
    multiplied, _ = counted()
    held, number = {1, 2}, 2.0

    def reads_global(v: float) -> float:
        return v * helper()

    def reads_variable(v: float) -> float:
        return v * number

    before = factor
    try:
        for step in range(4):
            number, factor = float(step), float(10 * step)
            held.add(step + 10)
            for a in (held, reads_global, reads_variable, partial(times, number)):
                for _ in range(2):
                    np.testing.assert_array_equal(multiplied(X, a).sync(), X * np.float32(described(a)))
    finally:
        factor = before


def helper() -> float:
    return factor


@pytest.mark.filterwarnings("ignore:.*by which no plan can be found:RuntimeWarning")
def test_what_holds_an_object_has_no_plan() -> None:
    """A closure over a list, a dataclass with an array or an attribute of its own: traced in each run, and right."""
    multiplied, traces = counted()
    box = [2.0]
    extended = Setting(2.0)
    object.__setattr__(extended, "more", 1)
    for a in (lambda v: v * box[0], Setting(1.0, lambda v: v * box[0] * len(box)), extended):
        for step in range(3):
            box[0] = float(step)
            np.testing.assert_array_equal(multiplied(X, a).sync(), X * np.float32(described(a)))
    assert len(traces) >= 9 - 1


@pytest.mark.filterwarnings("ignore:.*by which no plan can be found:RuntimeWarning")
def test_a_cached_property_is_no_state() -> None:
    """A dataclass finds its plan before and after one is computed."""
    multiplied, traces = counted()
    for step in range(4):
        a = Setting(2.0)
        if step % 2:
            assert a.doubled == 4
        np.testing.assert_array_equal(multiplied(X, a).sync(), 2 * X)
    assert len(traces) == 1


# ---- ops


@pipeline
def read_twice(x: Any, op: Any) -> Op:
    """An op that the function uses twice."""
    return zip_ops(from_host(x).to_host(), op.to_host(), op.to_host())


ARGUMENTS: dict[str, Callable[[Any], Op]] = {
    "a source": lambda s: s.then(from_host).shared(),
    "constant": lambda s: ones((4,)).shared(),
    "a kernel": lambda s: scaled(from_host(X), 3.0).shared(),
    "an array": lambda s: from_host(X).shared(),
    "a kernel of a source": lambda s: scaled(s.then(from_host), 3.0).shared(),
    "a copy of one": lambda s: dup(array.cumsum(s.then(from_host).shared())).shared(),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("new", [True, False])
def test_an_op_as_an_argument(kind: str, new: bool) -> None:
    """`shared()` ops, also over a source that is set: the plan is found, whether the op is made anew or is the same."""
    read_twice.cache_clear()
    samples = source(X)
    op = ARGUMENTS[kind](samples)
    for step in range(6):
        samples.set(X * step)
        op = ARGUMENTS[kind](samples) if new else op
        _, one, other = read_twice(X, op).sync()
        np.testing.assert_array_equal(one, ARGUMENTS[kind](samples).to_host().sync())
        np.testing.assert_array_equal(one, other)
    assert read_twice.cache_info().misses <= 2
    assert read_twice.cache_info().hits >= 4


@pytest.mark.parametrize("f", [array.sum, array.softmax, array.cumsum, np.mean, math.sqrt], ids=lambda f: f.__name__)
def test_a_function_of_a_library(f: Any) -> None:
    """dagpu's own functions and NumPy's are arguments as the user's are."""
    traces: list[int] = []

    @pipeline
    def model(x: Any, g: Any) -> Op:
        traces.append(1)
        return (g(from_host(x)) if g.__module__.startswith("dagpu") else scaled(from_host(x), float(g(4.0)))).to_host()

    wanted = (f(from_host(X)) if f.__module__.startswith("dagpu") else scaled(from_host(X), float(f(4.0)))).to_host()
    for _ in range(4):
        np.testing.assert_array_equal(model(X, f).sync(), wanted.sync())
    assert len(traces) == 1


@pytest.mark.parametrize("first", [operator.itemgetter(0), operator.methodcaller("pop", 0)], ids=["item", "method"])
def test_a_getter_of_operator(first: Any) -> None:
    """As an argument, and as the function of a map or host_map in a pipeline."""
    traces: list[int] = []

    @pipeline
    def model(x: Any, get: Any) -> Op:
        traces.append(1)
        a = float(get([2.0, 3.0]))
        found, other = (scaled(from_host(x), a).to_host() for _ in range(2))
        return zip_ops(found.map(operator.itemgetter(1)), other.host_map(operator.itemgetter(2)))

    for _ in range(4):
        assert model(X, first).sync() == (2 * X[1], 2 * X[2])
    assert len(traces) == 1
    assert model(X, operator.itemgetter(1)).sync() == (3 * X[1], 3 * X[2])
    assert len(traces) == 2


def test_an_index() -> None:
    """Slices with an ellipsis are a constant, as slices alone are."""
    traces: list[int] = []

    @pipeline
    def cut(x: Any, where: Any) -> Op:
        traces.append(1)
        return scaled(from_host(x), float(len(where))).to_host()

    for _ in range(4):
        np.testing.assert_array_equal(cut(X, (slice(0, 2), ...)).sync(), 2 * X)
    assert len(traces) == 1


def test_numbers_beside_an_op() -> None:
    """The inputs of an op, and the numbers before and after it, are told apart in each call."""

    @pipeline
    def mixed(a: float, op: Any, b: float, again: Any, c: float) -> Op:
        return zip_ops(scaled(op, a).to_host(), scaled(again, b).to_host(), scaled(op, c).to_host())

    for a, b, c, d in [(1.0, 2.0, 3.0, 4.0), (2.0, 3.0, 5.0, 7.0), (-1.0, 0.5, 0.25, 8.0), (3.0, 1.0, 2.0, 9.0)]:
        shared = scaled(from_host(X * d), d).shared()
        found = mixed(a, shared, b, scaled(from_host(X), a), c).sync()
        expected = (X * d * d * a, X * a * b, X * d * d * c)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert mixed.cache_info()[:2] == (3, 1)
