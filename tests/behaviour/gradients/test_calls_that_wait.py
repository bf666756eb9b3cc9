"""Gradients where the trace pauses: calls that wait for a length of the device, beside others and within them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import array, expr, f64, from_host, observe, pipeline, source, use_device, value, zip_ops
from dagpu.grad import assert_gradient, grad, gradient_of, stop_gradient, value_and_grad

A: Any = array
VALUES = np.array([1.0, 2.0, -3.0, 4.0])
OTHER = np.array([1.0, 2.0, 2.0, 4.0])
times = expr(f64, f64)(lambda a, b: a * b)


def up(a: Any) -> Any:
    return from_host(np.asarray(a)).sync().share()


def waited(x: Any) -> Any:
    """The same values, after they have been on the host."""
    return x.to_host().then(from_host)


y, FIRST, SECOND = up(OTHER), up([True, False]), up([False, True])
CONSTANTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "before an operator": (lambda x: A.sum(A.unique(y)) * A.sum(x * x), 7 * 2 * VALUES),
    "behind an operator": (lambda x: A.sum(x * x) * A.sum(A.unique(y)), 7 * 2 * VALUES),
    "both": (lambda x: A.sum(A.unique(y)) * A.sum(x) * A.sum(A.compress(y > 1.5, y)), 56 + 0 * VALUES),
    "a value of the first stage": (lambda x: A.sum(A.exp(x)) + A.sum(A.unique(y)), np.exp(VALUES)),
    "within the arguments": (lambda x: A.sum(A.take(x, A.nonzero(y == 2.0).first()) * 3.0), 3.0 * (OTHER == 2)),
    "places of the leaf": (lambda x: A.sum(A.take(x * x, A.nonzero(x < 0).first())), [0, 0, -6, 0]),
    "a mask of the leaf": (lambda x: A.sum(A.compress(x > 1.5, y)) + A.sum(x * 3.0), 3 + 0 * VALUES),
    "two that wait in turn": (
        lambda x: A.sum(x * x) * A.sum(A.unique(A.compress(y > 1.5, y))) + A.sum(A.unique(y)) * A.sum(x),
        6 * 2 * VALUES + 7,
    ),
    "its first argument comes later": (lambda x: A.sum(waited(y) * x), OTHER),
    "its last argument comes later": (lambda x: A.sum(x * waited(y)), OTHER),
    "arguments of two stages": (lambda x: A.sum(times(waited(waited(y) * 2.0), waited(y)) * x), 2 * OTHER**2),
    "a function of the host": (
        lambda x: A.sum(x * x) * y.to_host().host_map(np.cumsum).then(from_host).then(A.amax),
        18 * VALUES,
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_waits_is_a_constant(name: str) -> None:
    """A call that waits and that no leaf flows into changes nothing of the gradient of what stands beside it."""
    function, expected = CONSTANTS[name]
    _, g = value_and_grad(function)(up(VALUES)).sync()
    np.testing.assert_allclose(g.to_host().sync(), np.asarray(expected))


LEAVES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: A.sum(A.compress(x > 1.5, x)),
    "before an operator": lambda x: A.sum(A.compress(x > 1.5, x * x)) * A.sum(A.sin(x)),
    "behind an operator": lambda x: A.sum(A.sin(x)) * A.sum(A.compress(x > 1.5, x * x)),
    "of another one": lambda x: A.sum(A.exp(A.compress(y == 2.0, A.compress(x > -5.0, x * x)))),
    "nothing is left": lambda x: A.sum(A.compress(x > 9.0, x)) + A.sum(x),
    "rows": lambda x: A.sum(A.exp(A.compress(FIRST, x.reshape((2, 2)), 0))),
    "columns": lambda x: A.sum(A.exp(A.compress(SECOND, x.reshape((2, 2)), 1)) * 2.0),
}


@pytest.mark.parametrize("name", LEAVES)
def test_compress_without_a_size(name: str) -> None:
    """What is chosen gets the gradient, and the rest 0, of the first order and of the second."""
    assert_gradient(LEAVES[name], up(VALUES))
    assert_gradient(lambda x: grad(LEAVES[name])(x).then(lambda g: A.sum(g * g)), up(VALUES))


def test_unique_has_none() -> None:
    """A leaf that flows into a call without a rule is refused by its name, wherever it stands."""
    for function in (lambda x: A.sum(A.unique(x)) + A.sum(x), lambda x: A.sum(x * x) + A.sum(A.unique(x))):
        with pytest.raises(Exception, match=r"array.unique at .*test_calls_that_wait.py:\d+ has no derivative"):
            value_and_grad(function)(up(VALUES)).sync()


def test_a_rule_of_a_function_that_waits() -> None:
    """Its rule covers what it does in all of its stages, and nothing of what stands beside it."""

    def above(x: Any) -> Any:
        return A.mean(x).to_host().then(lambda m: array.where(x > float(m), x * x, 0.0))

    @gradient_of(above)
    def rule(g: Any, y: Any, x: Any) -> Any:
        return array.where(x > 1.0, 2.0 * x * g, 0.0)

    expected = np.where(VALUES > 1, 2 * VALUES, 0)
    _, g = value_and_grad(lambda x: A.sum(rule(x)) + A.sum(x * x))(up(VALUES)).sync()
    np.testing.assert_allclose(g.to_host().sync(), expected + 2 * VALUES)
    _, g = value_and_grad(lambda x: A.sum(x * x) + A.sum(rule(x)) + A.sum(A.compress(x > 1.5, x)))(up(VALUES)).sync()
    np.testing.assert_allclose(g.to_host().sync(), expected + 2 * VALUES + (VALUES > 1.5))


def test_a_gradient_within_a_function_with_a_rule() -> None:
    """The calls of the inner gradient belong to the outer function, whose rule covers them."""

    def slope(x: Any) -> Any:
        return grad(lambda x: A.sum(x * x * x) * A.sum(A.unique(y)))(x)

    @gradient_of(slope)
    def rule(g: Any, y: Any, x: Any) -> Any:
        return g * 42.0 * x

    _, g = value_and_grad(lambda x: A.sum(x) + A.sum(rule(x)))(up(VALUES)).sync()
    np.testing.assert_allclose(g.to_host().sync(), 42 * VALUES + 1)


def test_two_gradients_beside_each_other() -> None:
    """Each follows its own calls, while the other one waits."""
    x = up(VALUES)
    first = value_and_grad(lambda x: A.sum(A.compress(x > 1.5, x * x)))(x)
    second = value_and_grad(lambda x: A.sum(A.sin(x)) * A.sum(A.unique(y)))(x)
    third = value_and_grad(lambda x: A.sum(A.cos(x)))(x)
    found = [each.to_host().sync() for _, each in zip_ops(first, second, third).sync()]
    expected = [2 * VALUES * (VALUES > 1.5), 7 * np.cos(VALUES), -np.sin(VALUES)]
    np.testing.assert_allclose(np.array(found), np.array(expected))


def test_what_a_later_stage_reads_is_followed() -> None:
    """A kernel of a stage without any recorded call is refused, and makes no 0."""
    with pytest.raises(Exception, match=r"to_host\(\) at .*test_calls_that_wait.py:\d+ reads what is differentiated"):
        value_and_grad(lambda x: value(0).then(lambda _: waited(waited(y).then(lambda _: value(x)))).then(A.sum))(
            up(VALUES)
        ).sync()


def test_pipelines_and_feeds() -> None:
    """The gradient of what waits is right in a pipeline, which is traced in each call, and in a feed."""

    def loss(x: Any, t: Any) -> Any:
        return A.sum(A.compress(t > 1.5, x * x)) * A.sum(A.unique(t))

    def expected(x: Any, t: Any) -> Any:
        return 2 * x * (t > 1.5) * np.unique(t).sum()

    step = pipeline(lambda x, t: value_and_grad(loss)(x, t))
    others = [OTHER, OTHER + 1, -OTHER]
    with pytest.warns(RuntimeWarning, match="traced again"):
        found = [step(up(VALUES), up(other)).sync()[1] for other in others]
    for g, other in zip(found, others, strict=True):
        np.testing.assert_allclose(g.to_host().sync(), expected(VALUES, other))
    data, x = source(OTHER, name="t"), up(VALUES)

    def observed(t: Any) -> Any:
        return value_and_grad(loss)(x, t).then(lambda r: r[1].to_host())

    async def follow() -> None:
        with use_device("host"):
            async with observe(data.then(lambda a: from_host(a).share().then(observed))) as feed:
                for other in others:
                    data.set(other)
                    np.testing.assert_allclose(await feed.next(), expected(VALUES, other))

    trio.run(follow)


def test_a_stopped_leaf() -> None:
    """What is stopped may go into anything that waits."""
    _, g = value_and_grad(lambda x: A.sum(x * x) * A.sum(A.unique(stop_gradient(x))))(up(VALUES)).sync()
    np.testing.assert_allclose(g.to_host().sync(), 4 * 2 * VALUES)
