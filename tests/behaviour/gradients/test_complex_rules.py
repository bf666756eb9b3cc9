"""Gradients by way of complex numbers, Fourier transforms and convolutions, beside central differences in f64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import GradientError, array, c64, c128, convert, expr, f64, from_host
from dagpu.grad import derivative, gradient_of, value_and_grad
from dagpu.grad.reverse import OF_COMPLEX, RULES
from tests.behaviour.gradients.complex_cases import DRAWS, cases, drawn, x, z

STEP = 1e-6
WEIGHTS = drawn(500)


def up(a: Any) -> Any:
    return from_host(np.asarray(a)).sync().share()


def weighted(y: Any) -> Any:
    """A random real functional of a tensor, whose elements are complex or real."""

    def total(t: Any) -> Any:
        weights = WEIGHTS[: t.size].reshape(t.shape)
        if t.dtype.kind == "c":
            return array.sum(array.real(t * from_host(weights)))
        return array.sum(t * from_host(weights.real.copy()))

    return y.then(total)


def assert_slope(f: Callable[..., Any], *arrays: Any) -> None:
    """The real product of the gradient and a random direction is the central difference along it."""
    ways = [drawn(*each.shape) if each.dtype.kind == "c" else DRAWS.standard_normal(each.shape) for each in arrays]
    _, gradients = value_and_grad(lambda tensors: weighted(f(*tensors)))(tuple(map(up, arrays))).sync()
    found = 0.0
    for each, g, way in zip(arrays, gradients, ways, strict=True):
        assert (g.shape, g.dtype) == (each.shape, each.dtype)
        found += float((g.to_host().sync().conj() * way).sum().real)
    ends = [
        weighted(f(*[up(each + sign * STEP * way) for each, way in zip(arrays, ways, strict=True)])).to_host().sync()
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(found, float(ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", cases)
def test_each_rule_against_differences(name: str) -> None:
    """The gradient by way of each function is that of its values, by real and by complex leaves."""
    function, *arrays = cases[name]
    assert_slope(function, *arrays)


def test_each_rule_of_complex_numbers_has_a_case() -> None:
    """A rule that says that it is right for complex numbers is tried with them, if its function takes them."""
    tried = {name.partition("_")[0] for name in cases} | set(cases)
    refused = []
    for name in sorted(OF_COMPLEX - tried - {"put_together", "combined_at_once"}):  # tests of meshes try these
        with pytest.raises((TypeError, ValueError)):  # KernelArgumentError is one: no complex elements
            assert_slope(getattr(array, name), *[z] * 2)
        refused.append(name)
    assert set(RULES) >= OF_COMPLEX
    assert not {"matmul", "fft", "sum", "take"} & set(refused)


def test_a_rule_for_real_numbers_is_refused_for_complex_ones() -> None:
    """It would be wrong in silence: the rule of a product reads no conjugates, say."""
    with pytest.raises(GradientError, match=r"prod at .*test_complex_rules.py:.*no derivative for complex numbers"):
        value_and_grad(lambda t: array.abs(array.prod(t)))(up(z)).sync()


def test_a_step_against_the_gradient_lowers_the_value() -> None:
    """The gradient by z = x + iy is d/dx + i d/dy: of abs(z) squared 2 z."""
    _, g = value_and_grad(lambda t: array.sum(array.real(t * array.conj(t))))(up(z)).sync()
    np.testing.assert_allclose(g.to_host().sync(), 2 * z)


def test_c64() -> None:
    """A spectrum in f32 has a gradient in f32: that of the power of a signal by Parseval's theorem."""
    signal = np.arange(16, dtype=np.float32)

    def power(t: Any) -> Any:
        size = array.abs(array.fft(t, norm="ortho"))
        return array.sum(size * size)

    _, g = value_and_grad(power)(up(signal)).sync()
    assert g.dtype == np.float32
    np.testing.assert_allclose(g.to_host().sync(), 2 * signal, rtol=1e-5)
    assert convert(up(signal), c64).sync().dtype == c64


def test_of_a_size_of_0() -> None:
    """abs(z) has a corner at 0, where its gradient is 0, as that of a norm."""
    _, g = value_and_grad(lambda t: array.sum(array.abs(t)))(up(np.array([0j, 3 + 4j]))).sync()
    np.testing.assert_allclose(g.to_host().sync(), [0j, 0.6 + 0.8j])


def test_derivative_by_way_of_complex_elements() -> None:
    """A real function of a real element may compute with complex ones."""
    slope = expr(f64)(derivative(lambda a: array.exp(a.to(c128) * 2j).imag))
    np.testing.assert_allclose(slope(up(x)).to_host().sync(), 2 * np.cos(2 * x))


def test_a_rule_of_ones_own_takes_complex_numbers() -> None:
    """Its author says what its gradient is."""

    def doubled(t: Any) -> Any:
        return t * 2

    rule = gradient_of(doubled)(lambda g, y, t: g * 2)
    _, g = value_and_grad(lambda t: array.sum(array.real(rule(t))))(up(z)).sync()
    assert g.to_host().sync().tolist() == np.full(z.shape, 2 + 0j).tolist()
