"""Calls of expressions on every kind of device: broadcasting, layouts, memory of the user's, plans and graphs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagpu import (
    Elem,
    KernelArgumentError,
    MovedError,
    ShapeError,
    SharedTensor,
    array,
    bf16,
    dup,
    expr,
    f32,
    f64,
    from_host,
    full,
    i32,
    ones,
    pipeline,
    plan_of,
    value,
    zeros,
    zip_ops,
)
from dagpu.tracing.cache_key import flatten_op
from tests.behaviour.arrays.array_places import cut, steps
from tests.programs.graph_trials import graph_calls
from tests.simulated.each_device import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

blend = expr(f32, f32)(lambda x, a: array.where(x > 0, a * x + 1, array.sqrt(array.maximum(-x, 0.5))))
axpy = expr(f32, f32, f32)(lambda y, a, x: y + a * x)
double = expr(f32)(lambda x: x * 2)


def blended(x: Any, a: Any) -> Any:
    x, a = np.asarray(x, f32), np.asarray(a, f32)
    return np.where(x > 0, a * x + f32(1), np.sqrt(np.maximum(-x, f32(0.5))))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


@settings(max_examples=20)
@given(st.permutations("yax"), st.integers(0, 3), st.integers(0, 99))
def test_arguments_by_name_are_those_by_position(order: list[str], first: int, seed: int) -> None:
    """In any order, after any number of arguments by position; of reductions and of writes to a partition too."""
    y, x = (from_host(numbers(3, 4, seed=seed + n)).sync() for n in range(2))
    given = {"y": y.borrow(), "a": 2.5, "x": x.borrow()}
    positions = tuple(given.values())[:first]
    names: Any = {name: given[name] for name in order if name not in "yax"[:first]}
    call: Any = axpy
    expected = call(*given.values()).to_host().sync()
    assert call(*positions, **names).to_host().sync().tobytes() == expected.tobytes()
    assert call.sum(1)(*positions, **names).to_host().sync().shape == (3,)
    out = call.into(zeros((3, 4)).partition((3, 4)), *positions, **names).first().unpartition().to_host().sync()
    assert out.tobytes() == expected.tobytes()
    if first:
        call.update(y.borrow_mut().partition((3, 4)), a=2.5, x=x.borrow()).map(lambda _: None).sync()
        assert y.to_host().sync().tobytes() == expected.tobytes()


def test_wrong_arguments_by_name() -> None:
    """A refused call moves nothing. A pipeline of an expression checks them in its call."""
    anyhow: Any = axpy
    t, call = ones((3,)).sync(), pipeline(anyhow)
    for names in ({"a": 1.0}, {"a": 1.0, "x": t, "z": 1.0}, {"y": t, "a": 1.0, "x": 2.0}):
        with pytest.raises(KernelArgumentError, match=r"it takes \(y, a, x\)\. .* by position or by name"):
            anyhow(t, **names)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        call(t, 1.0)
    other = from_host(numbers(3)).sync().share()
    assert call(t, 1.0, x=other).to_host().sync().tolist() == (1 + numbers(3)).tolist()


def test_a_choice_of_two_numbers_is_of_f32(where: Any) -> None:
    """As `full` without an element type; in an expression of another type it is converted, and of tensors too."""
    x = np.array([-1.0, 2.0, np.nan])
    sign = expr(f64)(lambda x: array.where(x > 0, 1.5, -0.0))
    found = sign(from_host(x)).to_host().sync()
    assert (found.dtype, found.tobytes()) == (np.dtype(f32), np.array([-0.0, 1.5, -0.0], f32).tobytes())
    scaled = expr(f64)(lambda x: array.where(x > 0, 1, 0).to(f64) * 1e300)
    assert scaled(from_host(x)).to_host().sync().tolist() == [0, 1e300, 0]
    op = array.where(from_host(x > 0), 1.5, -0.0)
    assert op.to_host().sync().tobytes() == found.tobytes()


# ---- shapes


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, of up to four axes."""
    out = draw(st.lists(st.integers(0, 5), max_size=4))
    found = []
    for _ in range(2):
        kept = draw(st.integers(0, len(out)))
        found.append(tuple(draw(st.sampled_from((n, n, 1))) for n in out[len(out) - kept :]))
    return found[0], found[1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes(), st.lists(st.tuples(steps, steps, steps, steps), min_size=2, max_size=2))
def test_shapes_broadcast_as_in_numpy(where: Any, pair: Any, ranges: Any) -> None:
    """Of dense and of strided arguments, with axes of extent 0 and 1, and without axes."""
    x, a = (cut(numbers(*s, seed=n), r[: len(s)]) for n, (s, r) in enumerate(zip(pair, ranges, strict=True)))
    try:
        expected = blended(x.array, a.array)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            blend(x.lent(), a.lent())
        return
    np.testing.assert_array_equal(blend(x.lent(), a.lent()).to_host().sync(), expected, strict=True)


def test_large_arrays_are_computed_in_parts(where: Any) -> None:
    """Rows longer than a part, many short rows, and a vector."""
    for shape in ((3, 70_000), (40_000, 3), (2, 3, 66_000), (200_000,)):
        x, a = numbers(*shape), numbers(shape[-1], seed=1)
        np.testing.assert_array_equal(blend(from_host(x), from_host(a)).to_host().sync(), blended(x, a), strict=True)


def test_numbers_and_tensors_are_told_apart(where: Any) -> None:
    """Each argument may be either, in any call."""
    x, a = numbers(3, 4), numbers(4, seed=1)
    assert (blend(from_host(x), 2.5).to_host().sync() == blended(x, 2.5)).all()
    assert (blend(-1.5, from_host(a)).to_host().sync() == blended(f32(-1.5), a)).all()
    tenth: Any = np.float32(0.1)
    assert (blend(from_host(x), tenth).to_host().sync() == blended(x, f32(0.1))).all()


def test_an_op_whose_shape_only_a_run_shows(where: Any) -> None:
    """The call is built in the trace of the run; a result that is a number counts as a number."""
    x = numbers(3, 4)
    t = from_host(x).then(lambda t: value(t.reshape((4, 3))))
    two: Any = value(2.0).host_map(lambda n: n)
    assert (blend(t, two).to_host().sync() == blended(x.reshape(4, 3), 2.0)).all()
    out = zeros((3, 4)).then(lambda t: value(t)).partition((1, 4))
    found = blend.into(out, from_host(x), 1.0).first().unpartition().to_host().sync()
    assert (found == blended(x, 1.0)).all()


def test_halves_round_after_each_operation(where: Any) -> None:
    """bf16 has 8 bits: 256 + 1 is 256, and then 256 - 256 is 0."""

    @expr
    def lost(x: Elem[bf16]) -> Elem[bf16]:
        return (x + 1) - x

    assert lost(full((3,), 256, bf16)).to_host().sync().tolist() == [0, 0, 0]


# ---- ownership


def test_what_a_call_takes(where: Any) -> None:
    """A tensor moves, a shared one and a borrow do not, and a refused call moves nothing."""
    own, other = ones((4,)).sync(), ones((3,)).sync()
    with pytest.raises(ShapeError, match=r"\(4,\), \(3,\)"):
        blend(own, other)
    many = other.share()
    assert double(own.borrow()).to_host().sync().tolist() == [2] * 4
    assert double(many).to_host().sync().tolist() == [2] * 3
    assert double(many).to_host().sync().tolist() == [2] * 3
    op = double(own)
    with pytest.raises(MovedError, match=r"moved by being passed to expression test_expression_calls\.py:"):
        double(own)
    assert op.to_host().sync().tolist() == [2] * 4


def test_a_result_may_be_where_its_input_was() -> None:
    """A chain of expressions over a tensor that moves needs memory for one result, not for each."""
    one, four = (plan_of(op.to_host()).peak_bytes for op in (chain(1), chain(4)))
    assert four == one


def chain(count: int) -> Any:
    op: Any = from_host(numbers(1000))
    for _ in range(count):
        op = double(op)
    return op


# ---- memory of the user's


def test_into_writes_a_partition(where: Any) -> None:
    """All of the tensor, cut into tiles that need not divide it; the result has the arguments."""
    y, x = zeros((5, 7)).sync(), from_host(numbers(7)).sync().share()
    out, given, a = blend.into(y.borrow_mut().partition((2, 3), partial=True), x, 2.0).sync()
    assert (out.tile, type(given), a) == ((2, 3), SharedTensor, 2.0)
    out.unpartition()
    del out, given
    assert (y.to_host().sync() == np.broadcast_to(blended(numbers(7), 2.0), (5, 7))).all()
    with pytest.raises(ShapeError, match=r"do not broadcast to the output's \(2,\)"):
        blend.into(zeros((2,)).partition((2,)), x, 1.0)
    with pytest.raises(ShapeError, match="to the output's"):
        blend.into(zeros((1,)).partition((1,)), x, 1.0)


def test_update_changes_a_partition_in_place(where: Any) -> None:
    """The first parameter is the old element."""
    w, g = from_host(numbers(6, 4)).sync(), from_host(numbers(4, seed=1)).sync().share()
    for _ in range(3):
        axpy.update(w.borrow_mut().partition((4, 4), partial=True), -0.1, g).map(lambda r: None).sync()
    expected = numbers(6, 4)
    for _ in range(3):
        expected = expected + f32(-0.1) * numbers(4, seed=1)
    np.testing.assert_array_equal(w.to_host().sync(), expected, strict=True)


def test_the_parts_of_an_unzip_have_known_layouts(where: Any) -> None:
    """Those of a launch and of `zip_ops`: a call with them is checked at once, and its own parts can be counted."""
    x, y = from_host(numbers(6, 4)).sync(), from_host(numbers(6, 4, seed=1)).sync()
    out, _, gradient = axpy.update(x.partition((4, 4), partial=True), 0.5, y).unzip()
    with pytest.raises(ShapeError, match="to the output's"):
        axpy.update(zeros((5,)).partition((5,)), 0.5, zip_ops(ones((6, 4)), ones((1,))).unzip()[0])
    again, _, read = axpy.update(out, 2.0, gradient).unzip()
    found, same = zip_ops(again.unpartition().to_host(), read.to_host()).sync()
    expected = numbers(6, 4) + f32(0.5) * numbers(6, 4, seed=1)
    np.testing.assert_array_equal(found, expected + f32(2.0) * numbers(6, 4, seed=1), strict=True)
    np.testing.assert_array_equal(same, numbers(6, 4, seed=1), strict=True)


# ---- plans, pipelines, graphs


def test_a_pipeline_varies_numbers_and_addresses(where: Any) -> None:
    """One plan and, on a GPU, one graph, whose nodes get the new numbers and addresses."""

    @pipeline
    def p(x: Any, a: float) -> Any:
        return zip_ops(axpy(x, a, blend(x, a)).to_host(), double(x).to_host())

    for k in range(5):
        x = from_host(numbers(4, 3, seed=k)).sync().share()
        found, other = p(x, 0.5 + k).sync()
        n = numbers(4, 3, seed=k)
        assert (other == n * 2).all()
        np.testing.assert_array_equal(found, n + f32(0.5 + k) * blended(n, 0.5 + k), strict=True)


def test_a_number_of_a_pipeline_needs_no_other_plan(where: Any) -> None:
    """The number is an argument of the kernel."""
    p = pipeline(lambda x, a: blend(x, a).to_host())
    x = from_host(numbers(4, 3)).sync().share()
    for k in range(6):
        assert (p(x, 0.5 + k).sync() == blended(numbers(4, 3), 0.5 + k)).all()
    assert p.cache_info()[:2] == (5, 1)
    if where is not None and hasattr(where, "gpus"):
        made, launched, changed = graph_calls(where)
        assert (made, launched) == (1, 5)
        assert changed >= 4


def test_plain_ops_that_differ_in_numbers_have_one_plan(where: Any) -> None:
    """Also of chains: the shapes are seen without a closure."""
    x = from_host(numbers(4, 3)).sync().share()
    with traces() as count:
        for k in range(4):
            found = axpy(blend(x, 1.0 + k), 2.0, from_host(numbers(3))).to_host().sync()
            assert (found == blended(numbers(4, 3), 1.0 + k) + f32(2) * numbers(3)).all()
    assert count.now == 1
    assert flatten_op(double(x)) is not None


def test_a_graph_of_an_expression(where: Any) -> None:
    """Captured, launched again after its input has changed."""
    x = from_host(numbers(6)).sync()
    graph = double(x.borrow()).graph()
    double.update(x.borrow_mut().partition((6,))).map(lambda r: None).sync()
    out = graph.take_output()
    graph.launch().sync()
    assert (dup(out.borrow()).to_host().sync() == numbers(6) * 4).all()


def test_the_function_is_called_once() -> None:
    """At the declaration; numbers from outside are constants from then on."""
    calls = []
    factor = 2

    @expr(i32)
    def scaled(x: Elem[i32]) -> Elem[i32]:
        calls.append(1)
        return x * factor

    factor = 3
    assert scaled(ones((3,), i32)).to_host().sync().tolist() == [2, 2, 2]
    assert scaled(ones((3, 2), i32)).to_host().sync().tolist() == [[2, 2]] * 3
    assert calls == [1]
    assert factor == 3
