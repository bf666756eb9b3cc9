"""Gradients of expressions of several results, and of several arguments: one kernel computes those of all arguments."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import array, c128, expr, f64, from_host, i64, plan_of, source, zip_ops
from dagpu.grad import assert_gradient, grad, value_and_grad
from dagpu.plans.program import Launch

A: Any = array
product: Any = expr(f64, f64)(lambda a, b: a * b)
plus: Any = expr(f64, f64)(lambda a, b: a + b)
polar: Any = expr(f64, f64)(lambda r, t: (r * array.cos(t), r * array.sin(t)))
parts: Any = expr(f64, f64)(lambda a, b: (a * b, (a * 8).to(i64), a > b, b))


def up(a: Any) -> Any:
    return from_host(np.asarray(a, np.float64)).sync().share()


def leaves(*shapes: tuple[int, ...]) -> Any:
    draws = np.random.default_rng(len(shapes))
    return tuple([up(draws.uniform(0.5, 1.5, shape)) for shape in shapes])


def total(op: Any) -> Any:
    """A functional of both results of an op."""
    first, second = op.unzip()
    return A.sum(product(A.exp(first), A.sin(second)))


def launches(op: Any) -> Counter[str]:
    """The number of launches of each kernel."""
    return Counter([each.kernel.name for each in plan_of(op).program.instructions if isinstance(each, Launch)])


@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((4,), (1,)), ((4,), ()), ((2, 1), (2, 3))]
)
def test_all_results_reach_all_arguments(shapes: Any) -> None:
    """Broadcast or not, the gradient is that of central differences, and so is its gradient."""
    given = leaves(*shapes)
    assert_gradient(lambda p: total(polar(*p)), given)
    assert_gradient(lambda p: grad(lambda q: total(polar(*q)))(p).then(lambda g: plus(A.sum(g[0]), A.sum(g[1]))), given)


def test_some_results_are_used() -> None:
    """Without a gradient for a result it adds nothing; whole numbers and bools have none."""
    given = leaves((3, 4), (3, 4))
    for number in (0, 1):
        assert_gradient(lambda p, number=number: A.sum(polar(*p).unzip()[number]), given)  # type: ignore[misc]  # reason: mypy has no type for a default
    assert_gradient(lambda p: A.sum(parts(*p).unzip()[0]), given)
    found = grad(lambda p: A.sum(parts(*p).unzip()[3]))(given).sync()
    assert [g.to_host().sync().sum() for g in found] == [0, 12]


def test_numbers_among_the_arguments() -> None:
    """A number has no gradient; a source of one may change."""
    (x,) = leaves((3, 4))
    assert_gradient(lambda r: total(polar(r, 2.0)), x)
    assert_gradient(lambda t: total(polar(source(2.0), t)), x)


def test_complex_results() -> None:
    """A real loss of complex results."""
    turned: Any = expr(f64, f64)(lambda a, b: ((a.to(c128) * 1j + b.to(c128)), a.to(c128) * b.to(c128)))

    def loss(p: Any) -> Any:
        first, second = turned(*p).unzip()
        return A.sum(A.abs(first * A.conj(second)))

    assert_gradient(loss, leaves((3, 4), (3, 4)))


def test_one_launch_computes_the_gradients_of_all_arguments() -> None:
    """Those that are not summed; each of the others is summed by the kernel that computes it."""
    three: Any = expr(f64, f64, f64)(lambda a, b, c: a * b * array.exp(c))
    found = launches(value_and_grad(lambda p: A.sum(three(*p)))(leaves((8, 4), (8, 4), (8, 4))))
    assert found == {"expression": 1, "sum": 1, "d_expression": 1}
    found = launches(value_and_grad(lambda p: A.sum(three(*p)))(leaves((8, 4), (8, 4), (4,))))
    assert found == {"expression": 1, "sum": 1, "d_expression": 1, "d_expression_c_sum": 1}


def test_the_bits_are_those_of_each_argument_alone() -> None:
    """The gradient by one argument does not depend on which others are asked for."""
    a, b = leaves((30, 4), (30, 4))
    for call in (product, lambda a, b: polar(a, b).last(), lambda a, b: polar(a, b).first()):
        loss = lambda p, call=call: A.sum(A.exp(call(*p)))  # noqa: E731  # reason: a loop over functions
        both = [g.to_host().sync().tobytes() for g in grad(loss)((a, b)).sync()]
        first = grad(lambda a, loss=loss: loss((a, b)))(a).sync().to_host().sync().tobytes()
        second = grad(lambda b, loss=loss: loss((a, b)))(b).sync().to_host().sync().tobytes()
        assert both == [first, second]


def polynomials() -> st.SearchStrategy[Any]:
    """Functions of two elements."""
    return st.recursive(
        st.sampled_from([lambda a, b: a, lambda a, b: b, lambda a, b: a - 0.5]),
        lambda f: st.builds(_combined, st.sampled_from(("add", "multiply", "minus")), f, f),
        max_leaves=6,
    )


def _combined(how: str, f: Any, g: Any) -> Any:
    functions: dict[str, Any] = {
        "add": lambda a, b: f(a, b) + g(a, b),
        "multiply": lambda a, b: f(a, b) * g(a, b),
        "minus": lambda a, b: f(a, b) - 2 * g(b, a),
    }
    return functions[how]


@settings(max_examples=15)
@given(st.lists(polynomials(), min_size=2, max_size=4))
def test_random_forests(forest: list[Any]) -> None:
    """Results that share parts, in any order, some of them arguments as they are."""
    call: Any = expr(f64, f64)(lambda a, b: tuple([f(a, b) for f in forest]))

    def loss(p: Any) -> Any:
        made = call(*p).unzip()
        return zip_ops(*[A.mean(A.tanh(each)) for each in made]).then(lambda means: A.sum(A.stack(means)))

    assert_gradient(loss, leaves((2, 3), (2, 3)))
