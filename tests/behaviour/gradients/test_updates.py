"""Parameters that a gradient reads and that are written in place, steps, rules of one's own, and trees."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    GradientError,
    In,
    MovedError,
    Out,
    ShapeError,
    Tensor,
    Tile,
    array,
    expr,
    f32,
    f64,
    foreign,
    from_host,
    kernel,
    pipeline,
    plan_of,
    value,
    zeros,
)
from dagpu.grad import Parameterized, adam, assert_gradient, gradient_of, momentum, sgd, updated, value_and_grad
from dagpu.interop import extent
from dagpu.interop import new as new_result
from dagpu.plans.program import Launch

T = TypeVar("T")
U = TypeVar("U")
A: Any = array


@dataclass(frozen=True)
class Mlp(Parameterized[T]):
    """Two layers, and a number that is no leaf."""

    w1: T
    w2: T
    scale: float = 1.0

    def mapped(self, f: Callable[[T], U], /) -> "Mlp[U]":
        return Mlp(f(self.w1), f(self.w2), self.scale)


error: Any = expr(f32, f32)(lambda y, t: (y - t) * (y - t)).mean()
scaled: Any = expr(f32, f32)(lambda x, s: x * s)
DRAWS = np.random.default_rng(0)
WEIGHTS = [DRAWS.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 3))]
X, TARGET = [DRAWS.standard_normal(shape).astype(np.float32) for shape in ((5, 6), (5, 3))]


def up(a: Any) -> Any:
    return from_host(a).sync().share()


def loss(m: Any, x: Any, t: Any) -> Any:
    return error(scaled(A.matmul(A.tanh(A.matmul(x, m.w1)), m.w2), m.scale), t)


def owned(arrays: Any = WEIGHTS) -> Any:
    w1, w2 = [from_host(a).sync() for a in arrays]
    return Mlp(w1, w2)


def lent(model: Any) -> Any:
    return model.mapped(lambda w: w.borrow_mut())


def read(model: Any) -> Any:
    return [w.borrow().to_host().sync() for w in (model.w1, model.w2)]


def gradients(arrays: Any) -> Any:
    _, g = value_and_grad(loss)(Mlp(*map(up, arrays)), up(X), up(TARGET)).sync()
    return [g.w1.to_host().sync(), g.w2.to_host().sync()]


@pipeline
def train(m: Any, x: Any, t: Any, rate: float) -> Any:
    return updated(m, lambda m: value_and_grad(loss)(m, x, t), lambda w, g: sgd(w, g, rate))


def test_steps_in_place_are_those_of_numpy() -> None:
    """A pipeline's steps by one plan: the weights are where they were, and the bits those of the gradient apart."""
    model, arrays, (x, t) = owned(), WEIGHTS, (up(X), up(TARGET))
    for _ in range(3):
        train(lent(model), x, t, 0.1).sync()
        arrays = [w - np.float32(0.1) * g for w, g in zip(arrays, gradients(arrays), strict=True)]
        assert [a.tobytes() for a in read(model)] == [a.tobytes() for a in arrays]
    assert train.cache_info().misses == 1
    plan = plan_of(train(lent(model), x, t, 0.1))
    assert [buffer.role.name for buffer in plan.program.buffers if buffer.nbytes].count("OUTPUT") == 1


def test_a_number_of_a_tree_is_part_of_its_form() -> None:
    """A plan is for one value of what a tree has beside its leaves."""
    x, t = up(X), up(TARGET)
    step = pipeline(lambda m, x, t: value_and_grad(loss)(m, x, t))
    for scale in (1.0, 2.0, 1.0):
        model = Mlp(up(WEIGHTS[0]), up(WEIGHTS[1]), scale)
        found, g = step(model, x, t).sync()
        assert g.scale == scale
        assert found.to_host().sync() == value_and_grad(loss)(model, x, t).sync()[0].to_host().sync()


def test_momentum_and_adam_are_their_formulas() -> None:
    """Three steps of each, beside NumPy."""
    model, speeds, x, t = owned(), owned([0 * w for w in WEIGHTS]), up(X), up(TARGET)
    arrays, v = WEIGHTS, [0 * w for w in WEIGHTS]
    for _ in range(3):
        updated(
            lent(model), lambda m: value_and_grad(loss)(m, x, t), lambda w, g, v: momentum(w, g, v, 0.05), lent(speeds)
        ).sync()
        v = [np.float32(0.9) * a + g for a, g in zip(v, gradients(arrays), strict=True)]
        arrays = [w - np.float32(0.05) * a for w, a in zip(arrays, v, strict=True)]
        for found, wanted in zip(read(model), arrays, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    model, means, squares = owned(), owned([0 * w for w in WEIGHTS]), owned([0 * w for w in WEIGHTS])

    @pipeline
    def step(m: Any, a: Any, b: Any, x: Any, t: Any, count: float) -> Any:
        return updated(
            m, lambda m: value_and_grad(loss)(m, x, t), lambda w, g, a, b: adam(w, g, a, b, count, rate=0.01), a, b
        )

    arrays, m, s = WEIGHTS, [0 * w for w in WEIGHTS], [0 * w for w in WEIGHTS]
    for n in range(1, 4):
        step(lent(model), lent(means), lent(squares), x, t, float(n)).sync()
        gs = gradients(arrays)
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gs, strict=True)]
        s = [0.999 * a + 0.001 * g * g for a, g in zip(s, gs, strict=True)]
        arrays = [
            (w - 0.01 * (a / (1 - 0.9**n)) / (np.sqrt(b / (1 - 0.999**n)) + 1e-8)).astype(np.float32)
            for w, a, b in zip(arrays, m, s, strict=True)
        ]
        for found, wanted in zip(read(model), arrays, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
    assert step.cache_info().misses == 1
    plan = plan_of(step(lent(model), lent(means), lent(squares), x, t, 4.0))
    names = [each.kernel.name for each in plan.program.instructions if isinstance(each, Launch)]
    assert names.count("adam") == len(WEIGHTS)  # one launch writes a parameter and its two means


def test_the_states_of_a_step_have_the_shape_of_their_parameter() -> None:
    """A mean of another shape is refused before anything is written."""
    w, g, wrong, right = zeros((3, 4)).sync(), zeros((3, 4)).sync().share(), zeros((4,)).sync(), zeros((3, 4)).sync()
    with pytest.raises(ShapeError, match=r"outputs have the shapes \(3, 4\), \(4,\)"):
        momentum(w.borrow_mut(), g, wrong.borrow_mut(), 0.1)
    with pytest.raises(ShapeError, match="Give all of them one shape"):
        adam(w.borrow_mut(), g, right.borrow_mut(), wrong.borrow_mut(), 1.0)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_adam_of_complex_elements(dtype: Any) -> None:
    """The square is that of the absolute value, so a step turns with its gradient; sgd and momentum need no rule."""
    draws = np.random.default_rng(0)
    start, target = (draws.standard_normal((2, 5)) + 1j * draws.standard_normal((2, 5))).astype(dtype)
    real, t = start.real.dtype, from_host(target).sync().share()

    def loss(w: Any) -> Any:
        return A.sum(A.abs(w - t) ** 2)

    def run(turn: Any) -> Any:
        own = from_host(turn * start).sync()
        mean, square = zeros((5,), dtype).sync(), zeros((5,), real.type).sync()
        expected, m, s = (turn * start).astype(dtype), 0 * start, np.zeros(5, real)
        for n in range(1, 5):
            updated(
                own.borrow_mut(),
                lambda w: value_and_grad(lambda w: loss(w * (1 / turn)))(w),
                lambda w, g, m, v, n=n: adam(w, g, m, v, float(n), rate=0.1),
                mean.borrow_mut(),
                square.borrow_mut(),
            ).sync()
            g = 2 * (expected - turn * target)
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * np.abs(g) ** 2
            expected = (expected - 0.1 * (m / (1 - 0.9**n)) / (np.sqrt(s / (1 - 0.999**n)) + 1e-8)).astype(dtype)
            np.testing.assert_allclose(own.borrow().to_host().sync(), expected, rtol=2e-4, atol=1e-5)
        return own.to_host().sync()

    np.testing.assert_allclose(run(1j) / 1j, run(1.0), rtol=1e-4, atol=1e-5)
    w, speed, g = from_host(start).sync(), zeros((5,), dtype).sync(), from_host(target).sync().share()
    sgd(w.borrow_mut(), g, 0.5).sync()
    momentum(w.borrow_mut(), g, speed.borrow_mut(), 0.5).sync()
    np.testing.assert_allclose(w.to_host().sync(), start - target, rtol=1e-5, atol=1e-6)


def test_what_was_read_is_void_once_it_is_written() -> None:
    """The tensors that the gradient reads cannot be used after the step that writes them."""
    kept: list[Any] = []

    def reads(m: Any) -> Any:
        kept.append(m)
        return value_and_grad(lambda w: array.sum(w))(m)

    w = zeros((4,)).sync()
    updated(w.borrow_mut(), reads, lambda w, g: sgd(w, g, 1.0)).sync()
    assert w.to_host().sync().tolist() == [-1.0] * 4
    with pytest.raises(MovedError, match=r"the write of updated\(\)"):
        kept[0].to_host().sync()


def test_a_step_that_writes_nothing_is_refused() -> None:
    """Whether it computes elsewhere or does nothing, and also for one tensor of several: before anything runs."""
    total: Any = lambda m: A.sum(m[0] * m[1])  # noqa: E731  # reason: a function of a tree
    model: Any = [from_host(np.ones(n, np.float32)).sync() for n in (4, 4)]

    def run(step: Any) -> Any:
        return updated(tuple([w.borrow_mut() for w in model]), lambda m: value_and_grad(total)(m), step).sync()

    turns = iter((True, False))
    steps: list[Any] = [
        lambda w, g: w - 0.1 * g, lambda w, g: value(w), lambda w, g: sgd(w, g, 0.1) if next(turns) else value(w),
        lambda w, g: g.to_host().host_map(np.negative).then(from_host),
    ]  # fmt: skip
    for step in steps:
        with pytest.raises(GradientError, match=r"updated at .*test_updates.py:.*does not write.*sgd\(w, g, rate\)"):
            run(step)
        assert [w.borrow().to_host().sync().tolist() for w in model] == [[1.0] * 4] * 2
    clipped: Any = lambda w, g: g.to_host().host_map(lambda a: a.clip(-1, 1)).then(from_host)  # noqa: E731  # reason: the same
    watched: Any = lambda w: w.to_host().host_map(lambda a: float(a[0])).then(value)  # noqa: E731  # reason: the same
    run(lambda w, g: clipped(w, g).share().then(lambda g: sgd(w, g, 0.5)))
    run(lambda w, g: clipped(w, g).share().then(lambda g: sgd(w, g, 0.5)).then(watched))
    assert [w.borrow().to_host().sync().tolist() for w in model] == [[0.25] * 4] * 2


# ---- rules of one's own
@kernel(
    cuda="__global__ void cube(Tile<double, 1> y, View<const double, 1> x) { for (auto i : y) y[i] = x[i]*x[i]*x[i]; }"
)
def cube(y: Out[f64], x: In[f64]) -> None: ...


@cube.host
def _(y: Tile[f64], x: NDArray[f64]) -> None:
    y[...] = x[y.at] ** 3


twice: Any = expr(f64, f64)(lambda g, x: 2 * x * g)
slope: Any = expr(f64, f64)(lambda g, x: 3 * x * x * g)


@gradient_of(cube.new)
def _(g: Any, y: Any, x: Any) -> Any:
    return slope(g, x)


@kernel(
    cuda="""__global__ void powers(Tile<double, 1> y, Tile<double, 1> z, View<const double, 1> x) {
        for (auto i : y) y[i] = x[i] * x[i];
        for (auto i : z) z[i] = x[i] * x[i] * x[i];
    }"""
)
def powers(y: Out[f64], z: Out[f64], x: In[f64]) -> None: ...


@powers.host
def _(y: Tile[f64], z: Tile[f64], x: NDArray[f64]) -> None:
    y[...], z[...] = x[y.at] ** 2, x[z.at] ** 3


@gradient_of(powers.new)
def _(gs: Any, ys: Any, x: Any) -> Any:
    parts = [f(g, x) for f, g in zip((twice, slope), gs, strict=True) if g is not None]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


@foreign
def power(x: In[f64], n: int) -> Tensor[f64]:
    return new_result((extent(x, 0),), f64)


@power.host
def _(x: NDArray[f64], n: int, out: NDArray[f64]) -> None:
    out[...] = x**n


@gradient_of(power)
def _(g: Any, y: Any, x: Any, n: int) -> Any:
    slope: Any = expr(f64, f64, f64)(lambda g, x, n: g * n * x ** (n - 1))
    return slope(g, x, float(n)).then(lambda by_x: value((by_x, None)))


def cubed(x: Any) -> Any:
    return A.positive(cube.new((4,), (4,))(x))


@gradient_of(cubed)
def ruled(g: Any, y: Any, x: Any) -> Any:
    return slope(g, x)


def test_rules_of_kernels_foreign_ops_and_functions() -> None:
    """Each declared rule is used, also inside of other calls, and in second derivatives."""
    x = from_host(np.array([0.5, 1.0, 1.5, 2.0])).sync().share()
    assert_gradient(lambda x: A.sum(cube.new((4,), (4,))(A.sin(x))), x)
    assert_gradient(lambda x: A.sum(power(A.sin(x), 3)), x)
    assert_gradient(lambda x: A.sum(ruled(A.sin(x))), x)
    assert_gradient(lambda x: value_and_grad(lambda x: A.sum(ruled(x)))(x).then(lambda r: A.sum(A.sin(r[1]))), x)


@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)])
def test_a_rule_of_a_kernel_of_two_outputs(read: tuple[int, ...]) -> None:
    """It gets the gradient of each output, None of one that nothing reads."""
    made: Any = powers.new((4,), (4,))
    x = from_host(np.array([0.5, 1.0, 1.5, 2.0])).sync().share()

    def loss(x: Any) -> Any:
        parts = made(A.sin(x)).unzip()
        product = parts[read[0]] * 2.0 if len(read) == 1 else parts[0] * parts[1]
        return A.sum(product)

    assert_gradient(loss, x)


def test_a_kernels_rule_holds_for_its_launches() -> None:
    """A grid, a block or shared memory of a launch changes no value, so the rule is that of the kernel."""
    x = from_host(np.array([0.5, 1.0, 1.5, 2.0])).sync().share()
    for launched in (cube.grid(2), cube.block(64), cube.grid(2).block(32), cube.shared_memory(16)):
        function: Any = launched.new((4,), (2,))
        assert_gradient(partial(lambda f, x: A.sum(f(A.sin(x))), function), x)
    with pytest.raises(GradientError, match=r"kernel cube.* has a rule already"):
        gradient_of(cube.grid(2).new)(lambda g, y, x: g)


def test_a_rule_does_not_keep_what_it_does_not_read() -> None:
    """The peak of a chain whose rule reads its gradient alone is that of a few tensors; and an argument that has been
    written over may be in a rule that does not read it."""

    def straight(x: Any) -> Any:
        return expr(f64)(lambda x: x * x)(x)

    @gradient_of(straight)
    def rule(g: Any, y: Any, x: Any) -> Any:
        return A.positive(g)

    def chain(x: Any, left: int = 20) -> Any:
        return rule(x).share().then(lambda y: chain(y, left - 1)) if left else A.sum(x)

    x = from_host(np.ones(1000)).sync().share()
    assert plan_of(value_and_grad(chain)(x)).peak_bytes <= 5 * 8000
