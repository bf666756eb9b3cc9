"""The laws of gradients over random functions: values, differences, second derivatives, schedules, memory."""

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    ListSchedule,
    RoundRobin,
    SingleStream,
    array,
    c128,
    expr,
    f64,
    from_host,
    observe,
    pipeline,
    plan_of,
    source,
    use_device,
    zip_ops,
)
from dagpu.grad import assert_gradient, grad, gradient_of, value_and_grad, vjp
from tests.conftest import only_deep

A: Any = array
plus = expr(f64, f64)(lambda a, b: a + b)
mixed: Any = expr(f64, f64)(lambda a, b: array.where(a > b, array.sin(a) * b, a - b * b))
square = expr(f64)(lambda a: a * a)
product: Any = expr(f64, f64)(lambda a, b: a * b)
waves: Any = expr(f64, f64)(lambda a, b: (A.exp(a.to(c128) * 1j) * (b.to(c128) + 1j).conj()).imag)
pair: Any = expr(f64, f64)(lambda a, b: (a * array.sin(b), array.tanh(a) - b * b))
CALLS: list[Any] = [
    lambda p, q: A.tanh(p), lambda p, q: A.exp(A.sin(p)), mixed, plus, lambda p, q: A.matmul(p, q),
    lambda p, q: A.matmul(p, q, transpose="ab"), lambda p, q: A.softmax(p, 0), lambda p, q: A.transpose(p),
    lambda p, q: mixed(p, A.mean(q, 0, keepdims=True)), lambda p, q: product.softmax()(p, q),
    lambda p, q: plus(p, product.sum(1, keepdims=True)(p, q)), lambda p, q: A.cumsum(p, 1), lambda p, q: A.flip(p, 0),
    lambda p, q: A.concatenate([A.take(p, from_host(np.array([1, 0])), 0), A.take(q, from_host(np.array([2])), 0)]),
    lambda p, q: A.sort(p, 1), lambda p, q: A.log_softmax(q, 1), lambda p, q: plus(p, A.var(q, 1, keepdims=True)),
    lambda p, q: A.einsum("ij,kj->ik", p, q), lambda p, q: p.reshape((9,)).reshape((3, 3)), lambda p, q: A.tril(p),
    lambda p, q: A.real(A.fft2(p, norm="ortho") * A.conj(A.fft(q))), lambda p, q: A.irfft(A.rfft(p) * 0.5j, 3),
    lambda p, q: waves(p, q), lambda p, q: pair(p, q).unzip()[0], lambda p, q: plus(*pair(p, A.sum(q, 0)).unzip()),
    lambda p, q: A.abs(A.rfft(p, 4, 0) + 2j),
    lambda p, q: A.convolve(p.reshape((9,)), q.reshape((9,)), "same").reshape((3, 3)),
]  # fmt: skip
"""Functions of two 3 x 3 matrices that give one."""

programs = st.lists(
    st.tuples(st.integers(0, len(CALLS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8
)


def loss_of(steps: list[tuple[int, int, int]]) -> Any:
    """A random function of two leaves, whose values are used any number of times."""

    def loss(leaves: Any) -> Any:
        def go_on(made: list[Any], rest: list[tuple[int, int, int]]) -> Any:
            if not rest:
                return A.mean(square(made[-1]))
            (kind, first, second), *later = rest
            op = CALLS[kind](made[first % len(made)], made[second % len(made)])
            return (
                op.share().then(lambda t: go_on([*made, t], later))
                if hasattr(op, "then")
                else go_on([*made, op], later)
            )

        return go_on(list(leaves), steps)

    return loss


def up(a: Any) -> Any:
    return from_host(np.asarray(a, np.float64)).sync().share()


def leaves(seed: int = 0) -> tuple[Any, Any]:
    draws = np.random.default_rng(seed)
    return up(draws.uniform(-1, 1, (3, 3))), up(draws.uniform(-1, 1, (3, 3)))


def arrays(gradient: Any) -> list[Any]:
    return [each.to_host().sync() for each in gradient]


@settings(max_examples=6)
@given(programs, st.integers(0, 99))
def test_random_functions(steps: list[tuple[int, int, int]], seed: int) -> None:
    """A random function has its own value, to the bit, and the gradient of its central differences."""
    try_function(steps, seed)


def try_function(steps: list[tuple[int, int, int]], seed: int) -> None:
    """Hold the value and the gradient of a random function."""
    loss, given_leaves = loss_of(steps), leaves(seed)
    found, _ = value_and_grad(loss)(given_leaves).sync()
    assert found.to_host().sync().tobytes() == loss(given_leaves).sync().to_host().sync().tobytes()
    assert_gradient(loss, given_leaves)


@settings(max_examples=3)
@given(programs)
def test_second_derivatives(steps: list[tuple[int, int, int]]) -> None:
    """The gradient of a functional of a gradient is right: rules are made of functions that have rules."""
    loss = loss_of(steps[:4])
    assert_gradient(lambda p: grad(loss)(p).then(lambda g: plus(A.sum(square(g[0])), A.sum(A.sin(g[1])))), leaves(3))


@only_deep
@settings(max_examples=40)
@given(programs, st.integers(0, 9999))
def test_40_random_functions(steps: list[tuple[int, int, int]], seed: int) -> None:
    """The same over many programs."""
    try_function(steps, seed)


@settings(max_examples=8)
@given(programs, programs)
def test_linear(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> None:
    """The gradient of a sum is the sum of gradients; and it is linear in the cotangent."""
    f, g, p = loss_of(one), loss_of(other), leaves(1)
    both = arrays(grad(lambda p: zip_ops(f(p), g(p)).then(lambda r: plus(*r)))(p).sync())
    for found, first, second in zip(both, arrays(grad(f)(p).sync()), arrays(grad(g)(p).sync()), strict=True):
        np.testing.assert_allclose(found, first + second, rtol=1e-9, atol=1e-12)
    c, d = np.random.default_rng(2).standard_normal((2, 3, 3))
    results = [
        arrays([vjp(lambda x: A.tanh(A.matmul(x, p[1])), p[0], cotangent=up(k)).sync()[1]])[0] for k in (c, d, c + d)
    ]
    np.testing.assert_allclose(results[0] + results[1], results[2], rtol=1e-9, atol=1e-12)


@settings(max_examples=6)
@given(programs)
def test_bits_are_the_same_in_each_schedule(steps: list[tuple[int, int, int]]) -> None:
    """Lanes, placements, limits of memory and pipelines change no bit of a gradient, and a limit is kept."""
    op, p = value_and_grad(loss_of(steps)), leaves(4)
    expected = [each.tobytes() for each in arrays(op(p).sync()[1])]
    peak = plan_of(op(p).schedule(SingleStream())).peak_bytes
    limited = ListSchedule(1, memory_limit=peak, recompute=True)
    assert plan_of(op(p).schedule(limited)).peak_bytes <= peak
    for policy in (SingleStream(), RoundRobin(3), ListSchedule(2), ListSchedule(4), limited):
        assert [each.tobytes() for each in arrays(op(p).schedule(policy).sync()[1])] == expected
    step = pipeline(lambda first, second: op((first, second)))
    for _ in range(3):
        assert [each.tobytes() for each in arrays(step(*p).sync()[1])] == expected
    other = leaves(5)
    assert [e.tobytes() for e in arrays(step(*other).sync()[1])] == [e.tobytes() for e in arrays(op(other).sync()[1])]


def deep(p: Any, x: Any) -> Any:
    """A chain whose values the pass back reads."""

    def layer(n: int, h: Any) -> Any:
        return A.mean(square(h)) if not n else A.tanh(A.matmul(h, p)).share().then(lambda h: layer(n - 1, h))

    return layer(12, x)


def test_recomputation_changes_no_bit() -> None:
    """A chain of layers fits half of its peak by computing values again, with the same gradient."""
    draws = np.random.default_rng(0)
    p, x = up(draws.standard_normal((16, 16)) / 4), up(draws.standard_normal((256, 16)))
    op = value_and_grad(deep)
    free = plan_of(op(p, x).schedule(SingleStream()))
    policy = ListSchedule(1, memory_limit=free.peak_bytes * 6 // 10, recompute=True)
    plan = plan_of(op(p, x).schedule(policy))
    assert plan.peak_bytes <= free.peak_bytes * 6 // 10
    assert len(plan.program.instructions) > len(free.program.instructions)
    one, other = [op(p, x).schedule(each).sync()[1].to_host().sync() for each in (SingleStream(), policy)]
    assert one.tobytes() == other.tobytes()


def test_values_of_the_pass_forward_are_temporaries() -> None:
    """The outputs of the plan are the value and the gradients: no handle of the record outlives the trace."""
    p, x = up(np.eye(16)), up(np.ones((8, 16)))
    plan = plan_of(value_and_grad(deep)(p, x))
    assert sum([buffer.role.name == "OUTPUT" for buffer in plan.program.buffers]) == 2


def test_an_op_that_somebody_keeps_keeps_no_memory() -> None:
    """A function that stores the ops that it builds does not make outputs of the values that they have seen."""
    kept: list[Any] = []

    def loss(p: Any) -> Any:
        kept.append(A.tanh(A.exp(p)))
        return A.sum(kept[-1])

    plan = plan_of(value_and_grad(loss)(up(np.ones((8, 8)))))
    assert sum([buffer.role.name == "OUTPUT" for buffer in plan.program.buffers]) == 2


def test_a_feed_runs_what_the_change_reaches() -> None:
    """A change of the labels alone runs a part of the gradient, with the result of a run from scratch."""
    draws = np.random.default_rng(0)
    data, labels = source(draws.standard_normal((8, 3)), name="x"), source(draws.standard_normal((8, 3)), name="t")
    error = expr(f64, f64)(lambda y, t: (y - t) * (y - t)).mean()
    p = leaves(6)

    def loss(p: Any, x: Any, t: Any) -> Any:
        return error(A.matmul(A.tanh(A.matmul(x, p[0])), p[1]), t)

    def of(x: Any, t: Any) -> Any:
        return value_and_grad(loss)(p, x, t).then(lambda r: zip_ops(*[g.to_host() for g in r[1]]))

    async def follow() -> None:
        with use_device("host"):
            async with observe(of(data.then(from_host), labels.then(from_host))) as feed:
                await feed.next()
                labels.set(np.zeros((8, 3)))
                found = await feed.next()
                said = str(feed.explain())
        assert "source 't'" in said
        whole, part = [int(line.split(":")[2].split()[0]) for line in said.splitlines() if "instructions:" in line]
        assert part < whole
        expected = await of(from_host(data.get()), from_host(np.zeros((8, 3))))
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]

    trio.run(follow)


def test_assert_gradient_finds_a_wrong_rule() -> None:
    """A gradient that is not that of the values is said to be so, with the leaf and the element."""

    def cube(x: Any) -> Any:
        return expr(f64)(lambda a: a * a * a)(x)

    @gradient_of(cube)
    def wrong(g: Any, y: Any, x: Any) -> Any:
        return expr(f64, f64)(lambda g, x: 2 * x * x * g)(g, x)

    with pytest.raises(AssertionError, match="by leaf 0, element"):
        assert_gradient(lambda p: A.sum(wrong(p)), leaves()[0])
    with pytest.raises(TypeError, match="too coarse for differences"):
        assert_gradient(lambda p: A.sum(p), from_host(np.ones(3, np.float32)).sync().share())
