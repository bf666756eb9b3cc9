"""Pipelines and the laws of ops: a call equals the function's own op, alone and beside other ops."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import MovedError, f32, from_host, full, ones, pipeline, value, zeros, zip_ops
from dagpu.testing import plans
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, out, scaled, shared, tensor
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.arithmetic import axpy, scale
from tests.programs.expressions import Building, Evaluation, Expr, Op, Shape2, bits, build, evaluate
from tests.programs.strategies import expressions, shapes
from tests.support.places import place


@st.composite
def programs(draw: st.DrawFn) -> tuple[Shape2, Expr]:
    """A shape, and a DAG over five inputs of that shape."""
    shape = draw(shapes)
    return shape, draw(expressions(shape, 3, (shape,) * 5, writes=False, borrows=False))


class Inputs(NamedTuple):
    """The inputs of a call: contents of three tensors, a number for a kernel, and one for a creation op."""

    contents: tuple[int, int, int]
    a: float
    n: int


inputs = st.builds(Inputs, st.tuples(*[st.integers(-5, 5)] * 3), st.sampled_from([2.0, -1.0, 0.0]), st.integers(0, 1))


def array(shape: Shape2, seed: int) -> Any:
    return ((np.arange(shape[0] * shape[1]) * 3 + seed) % 7 - 3).astype(f32).reshape(shape)


# ---- laws


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@settings(max_examples=60)
@given(programs(), st.lists(inputs, min_size=3, max_size=4))
def test_a_call_gives_what_numpy_gives(program: tuple[Shape2, Expr], calls: list[Inputs]) -> None:
    """Any DAG as a pipeline: each call gives NumPy's result for its own contents, tensors and numbers, to the bit."""
    shape, e = program

    @pipeline
    def f(t: Any, lent: Any, others: dict[str, Any], a: float, n: int) -> Op:
        ops = [
            t.share(),
            lent,
            from_host(others["array"]).on(place(0)).shared(),
            scale(out(shape), a, lent).first().unpartition().on(place(0)).shared(),
            full(shape, n).on(place(0)).shared(),
        ]
        return build(e, Building(scope=[(op if hasattr(op, "sync") else value(op), 0) for op in ops])).to_host()

    for contents, a, n in calls:
        x, y, z = (array(shape, seed) for seed in contents)
        lender = from_host(y).sync()
        found = f(from_host(x).sync(), lender.borrow(), {"array": z}, a, n).sync()
        product = np.fmod(f32(a) * y, f32(64)) + f32(0)
        assert bits(found) == bits(evaluate(e, Evaluation(scope=[x, y, z, product, np.full(shape, n, f32)])))
        assert bits(lender.to_host().sync()) == bits(y)


def test_a_call_is_the_function() -> None:
    """`p(x)` is `value(x).then(f)`: the same result, and the same arguments are used up."""

    def f(pair: tuple[Any, Any]) -> Op:
        return axpy(pair[0].partition(S), 2.0, pair[1]).first().unpartition()

    p = pipeline(f)
    x = shared(3)
    for _ in range(3):
        t, u = tensor(1), tensor(1)
        assert number_in(p((t, x)).sync()) == number_in(value((u, x)).then(f).sync()) == 7
        for used in (t, u):
            with pytest.raises(MovedError, match=r"pipeline f\(\)|value\(\)"):
                used.borrow()


# ---- pipelines and other ops


def test_a_pipeline_within_a_pipeline() -> None:
    """Its numbers and tensors are those of each call; both functions are called once."""
    inner = Calls(lambda x, a: scaled(a, x))
    outer = Calls(lambda x, a, b: added(inner(x, a), inner(x, b)))
    for k in range(3):
        assert number_in(outer(shared(1 + k), 2.0 + k, 3.0).sync()) == (1 + k) * (5 + k)
    assert (outer.count, inner.count) == (1, 2)


def test_a_pipeline_within_a_dag() -> None:
    """Beside ops of its own structure; the pipeline keeps the plan, since that keeps what the pipeline closes over."""
    w = shared(100)
    p = Calls(lambda x, a: added(scaled(a, x), w))
    for k in range(3):
        first, second = zip_ops(p(shared(1), 2.0 + k), scaled(3.0 + k, shared(k))).sync()
        assert (number_in(first), number_in(second)) == (np.fmod(102 + k, 64), (3 + k) * k)
    assert p.count == 1
    assert plans.info().misses == plans.info().currsize
    assert p.pipeline.cache_info().currsize == 1


def test_two_pipelines_in_a_dag_are_right() -> None:
    """Their plan is that of both: it is found again, and has the numbers of each call."""
    p, q = Calls(lambda x: scaled(2.0, x)), Calls(lambda x: scaled(3.0, x))
    for k in range(3):
        first, second = zip_ops(p(shared(k)), q(shared(k))).sync()
        assert (number_in(first), number_in(second)) == (2 * k, 3 * k)
    assert p.count == q.count == 1


def test_closures_around_a_call() -> None:
    """`then` and `map` after a call run anew in each run, as ever."""
    p = Calls(lambda x: scaled(2.0, x))
    seen: list[Any] = []
    for k in range(3):
        assert number_in(p(shared(k)).inspect(seen.append).sync()) == 2 * k
    assert len(seen) == 3


def test_shared_and_unzip_inside() -> None:
    """Made by the function they are its own: each call evaluates them, once."""

    def f(x: Any, a: float) -> Op:
        y = scaled(a, x).shared()
        left, right = zip_ops(added(y, y), scaled(2.0, y)).unzip()
        return added(left, right)

    p = Calls(f)
    for k in range(4):
        assert number_in(p(shared(1), float(k)).sync()) == 4 * k
    assert p.count == 1


def test_shared_outside() -> None:
    """A shared op that the function closes over is evaluated once, by the first call that needs it."""
    made: list[Any] = []
    constant = ones(S).inspect(lambda t: made.append(t.shape)).shared()
    p = Calls(lambda x: added(x, constant))
    assert [number_in(p(shared(k)).sync()) for k in range(4)] == [1, 2, 3, 4]
    assert len(made) == 1
    assert p.count == 2  # by the second call it is a constant


def test_a_component_is_taken_once() -> None:
    """`unzip` gives each component to one run, pipeline or not."""
    left, right = zip_ops(ones(S).share(), zeros(S)).unzip()
    right.sync()
    p = Calls(lambda x: added(x, left))
    assert number_in(p(shared(1)).sync()) == 2
    for _ in range(2):
        with pytest.raises(MovedError, match="taken before"):
            p(shared(1)).sync()


def test_an_owned_tensor_is_used_up() -> None:
    """A function that consumes a tensor of its own works once."""
    mine = tensor(1)
    p = Calls(lambda x: axpy(mine.partition(S), 1.0, x).first().unpartition())
    assert number_in(p(shared(1)).sync()) == 2
    with pytest.raises(MovedError):
        p(shared(1)).sync()


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
def test_host_functions_get_their_own_call() -> None:
    """A function for `host_map` may close over an argument: it sees the argument of its own call."""
    h = np.ones(S, f32)
    p = Calls(lambda x, y: from_host(y).to_host().host_map(lambda array: (array, x)))
    for s in (shared(1), shared(2)):
        assert p(s, h).sync()[1] is s
    assert p.count == 2
    q = Calls(lambda x, a: x.to_host().host_map(lambda array: float(array[0, 0])))
    assert [q(shared(k), 1.0).sync() for k in range(3)] == [0, 1, 2]
    assert q.count == 1
