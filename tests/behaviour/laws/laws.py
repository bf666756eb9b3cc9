"""The laws of ops: equations between ops that hold whatever the ops are, on every policy, blocking and under trio.

Two ops are equal if their runs give the same bits. An op is used up by its run where it owns handles, so each side is
built anew from one description. A module that imports the laws and `equal` names its policies in a fixture `policy`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    RoundRobin,
    SharedTensor,
    SingleStream,
    StreamInterpreter,
    Tensor,
    from_host,
    use_interpreter,
    value,
    zip_ops,
)  # fmt: skip
from tests.programs.expressions import Array, Building, Expr, Make, Op, bits, build
from tests.programs.strategies import descriptions, expressions, makes, shapes
from tests.support.places import place

Compare: TypeAlias = Callable[[Op, Op], None]
Arrow: TypeAlias = Callable[[Tensor[Any]], Op]


def contents(result: Any) -> Any:
    """A result with the bits of every array and handle in it."""
    if isinstance(result, tuple):
        return tuple(map(contents, result))
    if isinstance(result, Tensor | SharedTensor):
        return type(result).__name__, bits(result.to_host().sync())
    return bits(result) if isinstance(result, np.ndarray) else result


@pytest.fixture(params=["sync", "trio"], scope="module")
def equal(request: pytest.FixtureRequest, policy: Any) -> Compare:
    """Asserts that two ops give the same bits."""

    async def together(left: Op, right: Op) -> tuple[Any, Any]:
        return await left, await right

    def compare(left: Op, right: Op) -> None:
        with use_interpreter(StreamInterpreter(policy=policy)):
            if request.param == "trio":
                a, b = trio.run(together, left, right)
            else:
                a, b = left.sync(), right.sync()
        assert contents(a) == contents(b)

    return compare


@st.composite
def arrows(draw: st.DrawFn, count: int) -> tuple[Make, list[Callable[[Building], Arrow]]]:
    """Draw a start, and `count` functions from a tensor to an op that may use the tensor any number of times."""
    shape = draw(shapes)
    start = draw(makes(shape))
    found: list[Callable[[Building], Arrow]] = []
    for _ in range(count):
        before, shape = shape, draw(st.one_of(st.just(shape), shapes))
        body = draw(expressions(shape, 3, (before,), borrows=False))
        found.append(lambda b, body=body: _arrow(body, b))  # type: ignore[misc]  # reason: mypy has no type for a default
    return start, found


def _arrow(body: Expr, b: Building) -> Arrow:
    def arrow(t: Tensor[Any]) -> Op:
        return build(body, Building(b.lenders, b.written, [(value(t.share()), 0)]))

    return arrow


HOST_FUNCTIONS: list[Callable[[Array], Array]] = [
    lambda a: a + 1, lambda a: a * 2, np.negative, np.transpose, np.ravel, np.copy,
]  # fmt: skip
HANDLE_FUNCTIONS: list[Callable[[Tensor[Any]], Tensor[Any]]] = [
    lambda t: t, lambda t: t.reshape((t.size,)), lambda t: t.reshape((1, t.size)), lambda t: t.reshape((t.size, 1)),
    lambda t: t.partition((1,) * t.ndim).unpartition(), lambda t: t.share().try_unwrap(),
]  # fmt: skip

few = settings(max_examples=12)


@few
@given(descriptions)
def test_map_of_identity_changes_nothing(equal: Compare, e: Expr) -> None:
    """`op.map(id) == op`."""
    equal(build(e, b := Building()).map(lambda x: x), build(e, b))


@few
@given(descriptions, st.sampled_from(HANDLE_FUNCTIONS), st.sampled_from(HANDLE_FUNCTIONS))
def test_maps_over_handles_compose(equal: Compare, e: Expr, f: Callable[[Any], Any], g: Callable[[Any], Any]) -> None:
    """`op.map(f).map(g) == op.map(g . f)`, with handles of a run that is under way."""
    equal(build(e, b := Building()).map(f).map(g), build(e, b).map(lambda x: g(f(x))))


@few
@given(descriptions, st.sampled_from(HOST_FUNCTIONS), st.sampled_from(HOST_FUNCTIONS))
def test_maps_over_host_data_compose(equal: Compare, e: Expr, f: Callable[[Any], Any], g: Callable[[Any], Any]) -> None:
    """`op.map(f).map(g) == op.map(g . f)`, with arrays that have arrived; `host_map` gives the same."""
    equal(build(e, b := Building()).to_host().map(f).map(g), build(e, b).to_host().map(lambda x: g(f(x))))
    equal(build(e, b).to_host().host_map(f).host_map(g), build(e, b).to_host().host_map(lambda x: g(f(x))))
    equal(build(e, b).to_host().host_map(f).map(g), build(e, b).to_host().map(f).host_map(g))


@few
@given(arrows(1))
def test_value_is_a_left_unit_of_then(equal: Compare, drawn: Any) -> None:
    """`value(x).then(f) == f(x)`."""
    start, (f,) = drawn
    one, other = start.op().on(place(0)).sync(), start.op().on(place(0)).sync()
    equal(value(one).then(f(b := Building())), f(b)(other))


@few
@given(descriptions)
def test_value_is_a_right_unit_of_then(equal: Compare, e: Expr) -> None:
    """`op.then(value) == op`, for handles and for host data."""
    equal(build(e, b := Building()).then(value), build(e, b))
    equal(build(e, b).to_host().then(value), build(e, b).to_host())


@few
@given(arrows(2))
def test_then_is_associative(equal: Compare, drawn: Any) -> None:
    """`op.then(f).then(g) == op.then(lambda x: f(x).then(g))`."""
    start, (f, g) = drawn
    b = Building()
    equal(start.op().then(f(b)).then(g(b)), start.op().then(lambda x: f(b)(x).then(g(b))))


@few
@given(arrows(2))
def test_then_is_associative_over_host_data(equal: Compare, drawn: Any) -> None:
    """`then` is associative also if each step waits for host data: there are three stages either way."""
    start, (f, g) = drawn
    b = Building()

    def through(h: Arrow) -> Callable[[Array], Op]:
        return lambda array: from_host(array).then(h).to_host()

    left = start.op().to_host().then(through(f(b))).then(through(g(b)))
    equal(left, start.op().to_host().then(lambda x: through(f(b))(x).then(through(g(b)))))


@few
@given(descriptions, descriptions, st.booleans())
def test_zip_of_unzip_changes_nothing(equal: Compare, e1: Expr, e2: Expr, hosted: bool) -> None:
    """`zip_ops(*zip_ops(a, b).unzip()) == zip_ops(a, b)`; with one component of host data too."""

    def pair(b: Building) -> Op:
        left = build(e1, b)
        return zip_ops(left.to_host() if hosted else left, build(e2, b))

    equal(zip_ops(*pair(b := Building()).unzip()), pair(b))


@few
@given(descriptions, descriptions)
def test_unzip_then_zip_backwards_swaps(equal: Compare, e1: Expr, e2: Expr) -> None:
    """Components may be taken in any order: only the order of the result differs."""
    first, second = zip_ops(build(e1, b := Building()), build(e2, b)).unzip()
    equal(zip_ops(second, first), zip_ops(build(e2, b), build(e1, b)))


@few
@given(descriptions)
def test_shared_twice_is_shared_once(equal: Compare, e: Expr) -> None:
    """`op.shared().shared() == op.shared()`, and each of several consumers sees the same value."""
    b = Building()
    shared = build(e, b).shared()
    equal(zip_ops(shared, shared.shared()), zip_ops(*[build(e, b).share() for _ in range(2)]))
    equal(shared, build(e, b).share())


@few
@given(descriptions)
def test_placement_changes_nothing(equal: Compare, e: Expr) -> None:
    """`op.schedule(p) == op.on(p) == op`."""
    b = Building()
    equal(build(e, b).schedule(RoundRobin(2)), build(e, b))
    equal(build(e, b).on(SingleStream()), build(e, b))
