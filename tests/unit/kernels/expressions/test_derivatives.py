"""Derivatives of functions of elements: each operation against central differences, branches, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import Elem, GradientError, KernelArgumentError, array, expr, f32, f64, from_host, i32
from dagpu.grad import derivative
from dagpu.grad.element_derivatives import FLAT, RULES, WITHOUT
from dagpu.kernels.element import operate
from dagpu.kernels.operations import DOMAINS, OPERATIONS

F64 = np.dtype(np.float64)
STEP = 1e-6


def run(function: Callable[..., Any], *values: Any) -> Any:
    """The elements of a function of elements of f64."""
    tensors = [from_host(np.atleast_1d(np.asarray(value, np.float64))) for value in values]
    return expr(*[f64] * len(values))(function)(*tensors).to_host().sync()


def slope_by_difference(function: Callable[..., Any], by: int, *values: Any) -> Any:
    """The central difference, of second order in the step."""
    ends = [run(function, *[v + sign * STEP * (n == by) for n, v in enumerate(values)]) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * STEP)


def test_each_operation_has_a_rule_or_is_said_to_have_none() -> None:
    """Every operation of the table is in exactly one of three sets: with a rule, flat, or without a derivative."""
    with_rule = RULES.keys() - {"cast"}
    assert with_rule | FLAT | WITHOUT == OPERATIONS.keys()
    assert not with_rule & FLAT
    assert not (with_rule | FLAT) & WITHOUT


@pytest.mark.parametrize("name", [name for name in OPERATIONS if F64 in DOMAINS[OPERATIONS[name].domain]])
def test_each_operation_against_differences(name: str) -> None:
    """The rule of each operation is the slope of its values, by each operand."""
    if OPERATIONS[name].gives == "bool" or name in WITHOUT:
        pytest.skip("no float comes out, or it is refused")
    draws = np.random.default_rng(1)
    low = 1.1 if name == "acosh" else 0.15
    x, y = draws.uniform(low, low + 0.7, 16), draws.uniform(0.15, 0.9, 16)
    binary = name in RULES and len(RULES[name](*_operands())) == 2
    binary |= name == "floor_divide"
    function = (lambda a, b: operate(name, a, b)) if binary else (lambda a: operate(name, a))
    for by in range(1 + binary):
        given = (x, y) if binary else (x,)
        found = run(derivative(function, by), *given)  # type: ignore[arg-type]  # reason: one operand or two
        np.testing.assert_allclose(found, slope_by_difference(function, by, *given), rtol=2e-7, atol=1e-9)


def _operands() -> tuple[Any, Any, Any]:
    return [Elem("parameter", F64)] * 2, Elem("parameter", F64), Elem("parameter", F64)


@given(st.data())
def test_random_functions(data: st.DataObject) -> None:
    """The derivative of a random function of two elements is its central difference."""
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)
    )

    def function(a: Any, b: Any) -> Any:
        made = [a, b, a * 0.5 + b]
        for kind, first, second in steps:
            p, q = made[first % len(made)], made[second % len(made)]
            made.append(
                (p + q, p * q, p - q, array.tanh(p), array.sin(p + 0.3 * q), array.where(p > q, p * q, p - q),
                 array.exp(-p * p), array.sqrt(1 + p * p), p / (2 + q * q))[kind]
            )  # fmt: skip
        return made[-1]

    x, y = np.array([0.3, -0.7, 1.2]), np.array([-0.4, 0.9, 0.25])
    for by in (0, 1):
        found = run(derivative(function, by), x, y)
        np.testing.assert_allclose(found, slope_by_difference(function, by, x, y), rtol=1e-5, atol=1e-7)


def test_a_branch_that_is_not_taken_gives_0() -> None:
    """Where a branch would divide by 0 or take the root of a negative number, the other one's slope stands alone."""
    slope = derivative(lambda x: array.where(x > 0, array.sqrt(x) + array.log(x), 0))
    assert run(slope, [-1.0, 0.0, 1.0]).tolist() == [0.0, 0.0, 1.5]


def test_corners() -> None:
    """relu has the slope 0 at 0, two equal elements share that of their maximum, and |x| has 0 at 0."""
    assert run(derivative(lambda x: array.maximum(x, 0)), [-1.0, 0.0, 2.0]).tolist() == [0, 0, 1]
    assert run(derivative(lambda x, y: array.maximum(x, y), 1), [1.0, 2.0], [1.0, 3.0]).tolist() == [0.5, 1]
    assert run(derivative(lambda x: array.abs(x)), [-2.0, 0.0, 2.0]).tolist() == [-1, 0, 1]


def test_derivatives_of_derivatives_and_within_functions() -> None:
    """A derivative is a function of elements: it has derivatives, and other functions call it."""
    cube = derivative(derivative(lambda x: x * x * x))
    assert run(cube, [2.0]).tolist() == [12.0]
    slope = derivative(lambda x, y: x * x * y)
    assert run(lambda x: slope(x, x) + slope(x, x * x), [3.0]).tolist() == [2 * 3 * 3 + 2 * 3 * 9]


def test_a_function_without_a_slope_gives_zeros() -> None:
    """The slope of what does not depend on the parameter, or in steps alone, is 0."""
    assert run(derivative(lambda x, y: x + 0 * array.floor(y), 1), [1.0], [2.0]).tolist() == [0.0]


def test_equal_parts_are_computed_once() -> None:
    """What the function and its slope have in common is one step of the kernel."""
    made = expr(f32)(derivative(lambda x: array.exp(x) * array.exp(x)))
    assert [step.operation for step in made.traced.steps].count("exp") == 1


def test_what_is_refused_says_where() -> None:
    """An operation without a derivative, elements that are no floats, and what is no function or parameter."""
    unchecked: Any = derivative
    with pytest.raises(GradientError, match=r"derivative at .*test_derivatives.py:\d+ of <lambda>: nextafter has no"):
        expr(f32, f32)(derivative(lambda x, y: array.nextafter(x, y)))
    with pytest.raises(GradientError, match=r"floats have derivatives. Convert them: x.to\(f32\)"):
        expr(i32)(unchecked(lambda x: x * x))
    with pytest.raises(KernelArgumentError, match=r"by is 1, but <lambda> has 1 parameters. Give the number of one"):
        unchecked(lambda x: x, 1)
    with pytest.raises(KernelArgumentError, match=r"Apply it to a plain function"):
        unchecked(expr(f32)(lambda x: x))
