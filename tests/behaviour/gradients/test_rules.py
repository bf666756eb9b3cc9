"""The rule of each function of arrays, beside central differences in f64; by reflection none is forgotten."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import GradientError, array, bf16, convert, dup, empty, expr, f32, f64, from_host, zip_ops
from dagpu.grad import assert_gradient, grad, value_and_grad
from dagpu.grad.reverse import CONSTANT, RULES
from dagpu.grad.rules import REFUSED
from tests.behaviour.gradients.complex_cases import cases as of_complex

A: Any = array
DRAWS = np.random.default_rng(0)
WEIGHTS = DRAWS.standard_normal(500)
STEP = 1e-6

x: Any = DRAWS.uniform(0.2, 0.9, (3, 4))
w: Any = DRAWS.uniform(0.2, 0.9, (4, 5))
b: Any = DRAWS.uniform(0.2, 0.9, 4)
x0 = x
X3: Any = DRAWS.standard_normal((2, 3, 4))
Y3: Any = DRAWS.standard_normal((2, 4, 5))


def up(a: Any) -> Any:
    return from_host(np.asarray(a)).sync().share()


def places(*numbers: int) -> Any:
    return from_host(np.array(numbers, np.int64))


product = expr(f64, f64)(lambda a, b: a * b)
difference = expr(f64, f64)(lambda a, b: a - b)
rf: Any = expr(f64, f64)(lambda a, b: a * a * b)


def weighted(y: Any) -> Any:
    """A random linear functional of a tensor."""
    return y.then(lambda t: array.sum(product(t, from_host(WEIGHTS[: t.size].reshape(t.shape)))))


def assert_slope(f: Callable[..., Any], *arrays: Any) -> None:
    """The gradient along a random direction is the central difference along it."""
    ways = [DRAWS.standard_normal(each.shape) for each in arrays]
    _, gradients = value_and_grad(lambda tensors: weighted(f(*tensors)))(tuple(map(up, arrays))).sync()
    found = sum([float((g.to_host().sync() * way).sum()) for g, way in zip(gradients, ways, strict=True)])
    ends = [
        weighted(f(*[up(each + sign * STEP * way) for each, way in zip(arrays, ways, strict=True)])).to_host().sync()
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(found, float(ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-7)


cases: dict[str, Any] = {}
ALONE = """abs acos asin asinh atan atanh ceil cos cosh erf exp expm1 floor log log1p log2 log10 positive rint sign sin
sinh sqrt tan tanh trunc"""
for n in ALONE.split():
    cases[n] = (lambda x, n=n: getattr(A, n)(x), x)
cases["acosh"] = (lambda x: A.acosh(x), x + 1.1)
for n in ["atan2", "copysign", "hypot", "logaddexp", "maximum", "minimum", "pow"]:
    cases[n] = (lambda x, b, n=n: getattr(A, n)(x, b), x, b)
    cases[n + "_num"] = (lambda x, n=n: getattr(A, n)(x, 0.5), x)
cases["where"] = (lambda x, b: A.where(from_host(x0 > 0.5), x, b), x, b)
x0 = x
cases["where1"] = (lambda b: A.where(from_host(x0 > 0.5), 1.0, b), b)
cases["clip"] = (lambda x: A.clip(x, 0.3, 0.7), x)
cases["clip1"] = (lambda x: A.clip(x, None, 0.7), x)
cases["clipt"] = (lambda x, b: A.clip(x, b, 0.7), x, b)
for n in [
    "sum",
    "mean",
    "prod",
    "norm",
    "amin",
    "amax",
    "var",
    "std",
    "nansum",
    "nanprod",
    "nanmean",
    "nanmin",
    "nanmax",
]:
    for ax in (None, 0, (0, 1), -1):
        cases[f"{n}{ax}"] = (lambda x, n=n, ax=ax: getattr(A, n)(x, ax), x)
    cases[n + "k"] = (lambda x, n=n: getattr(A, n)(x, 1, keepdims=True), x)
cases["var1"] = (lambda x: A.var(x, 1, ddof=1), x)
for n in ["softmax", "log_softmax", "logsumexp", "cumsum", "sort"]:
    for ax in (0, 1):
        cases[f"{n}{ax}"] = (lambda x, n=n, ax=ax: getattr(A, n)(x, ax), x)
for n in ["cumsum", "sort", "logsumexp", "flip"]:
    cases[f"{n}None"] = (lambda x, n=n: getattr(A, n)(x, None), x)
for ta in ("", "a"):
    for tb in ("", "b"):
        cases["matmul" + ta + tb] = (
            lambda p, q, t=ta + tb: A.matmul(p, q, transpose=t),
            X3.swapaxes(1, 2).copy() if ta else X3,
            Y3.swapaxes(1, 2).copy() if tb else Y3,
        )
        cases["matmulB" + ta + tb] = (
            lambda p, q, t=ta + tb: A.matmul(p, q, transpose=t),
            X3.swapaxes(1, 2).copy() if ta else X3,
            w.T.copy() if tb else w,
        )
cases["mv"] = (lambda p, q: A.matmul(p, q), x, b)
cases["vm"] = (lambda p, q: A.matmul(p, q), b, w)
cases["vv"] = (lambda p, q: A.matmul(p, q), b, b * 2)
cases["bv"] = (lambda p, q: A.matmul(p, q), X3, b)
cases["einsum"] = (lambda p, q: A.einsum("bij,bjk->bik", p, q), X3, Y3)
cases["einsum3"] = (lambda p, q, s: A.einsum("bij,bjk,j->ki", p, q, s), X3, Y3, b)
cases["einsum1"] = (lambda p: A.einsum("bij->ji", p), X3)
cases["einsuma"] = (lambda p, q: A.einsum("bij,jk->ik", p, q), X3, w)
cases["tdot"] = (lambda p, q: A.tensordot(p, q, ((0, 2), (0, 1))), X3, Y3)
cases["tdot1"] = (lambda p, q: A.tensordot(p, q, 1), x, w)
cases["dot"] = (lambda p, q: A.dot(p, q), X3, w)
cases["dotv"] = (lambda p, q: A.dot(p, q), b, b * 3)
cases["transpose"] = (lambda p: A.transpose(p), X3)
cases["transpose2"] = (lambda p: A.transpose(p, (1, 2, 0)), X3)
cases["bto"] = (lambda p: A.broadcast_to(p, (2, 3, 4)), b)
cases["flip"] = (lambda p: A.flip(p, 1), X3)
cases["roll"] = (lambda p: A.roll(p, 2, 1), X3)
cases["rollN"] = (lambda p: A.roll(p, 2), X3)
cases["tril"] = (lambda p: A.tril(p), X3)
cases["triu"] = (lambda p: A.triu(p, 1), X3)
cases["tile"] = (lambda p: A.tile(p, (2, 1, 3)), x)
cases["tile1"] = (lambda p: A.tile(p, 2), x)
cases["repeat"] = (lambda p: A.repeat(p, 2, 1), x)
cases["repeatN"] = (lambda p: A.repeat(p, 2), x)
for m in ["constant", "edge", "reflect", "symmetric", "wrap"]:
    cases["pad" + m] = (lambda p, m=m: A.pad(p, ((1, 2), (0, 3)), m), x)
cases["concat"] = (lambda p, q: A.concatenate([p, q], 1), x, 2 * x)
cases["concat0"] = (lambda p, q: A.concatenate([p, q]), x, x[:1].copy())
cases["stack"] = (lambda p, q: A.stack([p, q], 1), x, x * 2)
cases["take"] = (lambda p: A.take(p, places(0, 2, 2, -1)), x)
cases["take1"] = (lambda p: A.take(p, from_host(np.array([[0, 2], [2, -1]])), 1), X3)
cases["taa"] = (lambda p: A.take_along_axis(p, from_host(np.array([[0, 2], [2, -1], [1, 1]])), 1), x)
cases["taa0"] = (lambda p: A.take_along_axis(p, from_host(np.array([[0, 2, 1, -1]])), 0), x)
some = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 1]], bool)
cases["compress"] = (lambda p: A.compress(from_host(some), p, size=9, fill_value=2), x)
cases["compress few"] = (lambda p: A.compress(from_host(some), p, size=3), x)
cases["compress rows"] = (lambda p: A.compress(from_host(some[0]), p, -1, size=3), x)
cases["compress planes"] = (lambda p: A.compress(from_host(some[1, :3]), p, 1, size=1), X3)
cases["compress none"] = (lambda p: A.sum(A.compress(from_host(some), p, size=0)) + A.sum(p), x)
cases["topk"] = (lambda p: A.topk(p, 2, 1).first(), x)
cases["topk0"] = (lambda p: A.topk(p, 2, 0).first(), x)
cases["topkN"] = (lambda p: A.topk(p, 2, None).first(), x)
cases["scatter"] = (lambda p, q: A.scatter_add(dup(p), places(0, 2, 2), q), x, x * 2)
cases["scatter_set"] = (lambda p, q: A.scatter_set(dup(p), places(0, 2, 2), q), x, x * 2)
for n in ("cummax", "cummin", "cumprod", "median"):
    for ax in (0, 1, None):
        cases[f"{n}{ax}"] = (lambda p, n=n, ax=ax: getattr(A, n)(p, ax), X3[0] if ax else X3)
for ax in (0, 1, None):
    for q in (0.5, 0.3, 1, (0.1, 0.9, 0)):
        cases[f"quantile{ax}{q}"] = (lambda p, q=q, ax=ax: A.quantile(p, q, ax), X3[0] if ax else X3)
        cases[f"quantile{ax}{q}k"] = (lambda p, q=q, ax=ax: A.quantile(p, q, ax, keepdims=True), X3)
for m in ["constant", "edge", "reflect", "symmetric", "wrap"]:
    made = A.stencil(f64, 2, border=m, constant_value=0.5)
    linear: Any = made(lambda n: n[-2] * 2 - n[0] + n[1] / 3)
    curved: Any = made(lambda n: n[-1] * A.sin(n[2]) + n[0] * n[0])
    plane: Any = A.stencil(f64, border=m)(lambda n: n[0, 0] + 2 * n[1, -1] - n[-1, 0])
    bent: Any = A.stencil(f64, border=m)(lambda n: A.maximum(n[0, 1] * n[1, 0], n[-1, -1]))
    cases[f"stencil_linear_{m}"] = (linear, b)
    cases[f"stencil_curved_{m}"] = (curved, b)
    cases[f"stencil_plane_{m}"] = (plane, x)
    cases[f"stencil_bent_{m}"] = (bent, x)
cases["stencil_middle"] = (array.stencil(f64)(lambda n: n[0] * 3), b)
cases["stencil_flat"] = (array.stencil(f64)(lambda n: A.floor(n[-1]) + n[0]), b)
cases["stencil_twice"] = (lambda p, f=linear: f(f(p)), b)
COLUMNS, STARTS = np.array([0, 2, 3, -1, 1]), np.array([0, 2, 2, 5])
cases["csr_matmul"] = (lambda d, p: A.csr_matmul(d, from_host(COLUMNS), from_host(STARTS), p), x.reshape(-1)[:5], b)
cases["csr_matmul2"] = (lambda d, p: A.csr_matmul(d, from_host(COLUMNS), from_host(STARTS), p), x.reshape(-1)[:5], w)
SYSTEM = DRAWS.standard_normal((4, 4)) + 4 * np.eye(4)[::-1]
cases["solve"] = (lambda p, q: A.solve(p, q), SYSTEM, b)
cases["solve_columns"] = (lambda p, q: A.solve(p, q), SYSTEM, w)
cases["solve_b"] = (lambda q: A.solve(from_host(SYSTEM), q), w)
cases["cholesky"] = (lambda p: A.cholesky(p), SYSTEM @ SYSTEM.T)
cases["cholesky_of_product"] = (lambda p: A.cholesky(A.matmul(p, p, transpose="b")), SYSTEM)
cases["likelihood"] = (lambda p, q: A.log(A.cholesky(p)[0, 0]) + A.sum(A.solve(p, q) * q), SYSTEM @ SYSTEM.T, b)
for z in ([0], [2], [5, 9], [11]):
    gone = x.copy().reshape(-1)
    gone[z] = 0
    for ax in (0, 1, None):
        cases[f"cumprod0{ax}{z}"] = (lambda p, ax=ax: A.cumprod(p, ax), gone.reshape(3, 4))
cases["meshgrid"] = (lambda p, q, s: A.meshgrid(p, q, s).then(lambda t: t[0] * t[1] * t[2]), x[0], x[1], x[2])
cases["meshgrid_ij"] = (lambda p, q: A.meshgrid(p, q, indexing="ij").then(lambda t: t[0] * t[1]), x[0], b)
cases["segsum"] = (lambda p: A.segment_sum(p, places(0, 1, 0), 3), x)
cases["dropout"] = (lambda p: A.dropout(p, 0.5, seed=3), x)
cases["dup"] = (lambda p: dup(p), x)
cases["convert"] = (lambda p: convert(convert(p, f64), f64), x)
cases["reshape"] = (lambda p: A.exp(p.reshape((4, 3))), x)
cases["opreshape"] = (lambda p: A.exp(A.exp(p).reshape((12,))), x)
rf = expr(f64, f64)(lambda a, b: a * a * b)
for n in ["sum", "mean", "prod", "norm", "amin", "amax"]:
    cases["fused" + n] = (lambda p, q, n=n: getattr(rf, n)(1)(p, q), x, b)
cases["fusedsm"] = (lambda p, q: rf.softmax(0)(p, q), x, b)
cases["exprnum"] = (lambda p: rf(p, 2.0), x)
cases["lin"] = (lambda p: expr(f64)(lambda a: a * 3)(p), x)
cases["into"] = (lambda p, q: rf.into(empty((3, 4), f64).partition((1, 4)), p, q).first().unpartition(), x, b)
cases["update"] = (
    lambda p, q: expr(f64, f64)(lambda a, b: a * 2 + b * b).update(dup(p).partition((1, 4)), q).first().unpartition(),
    x,
    b,
)
cases["scalar"] = (lambda p: -((A.sum(p) * 2 / 3 - 1) ** 2) + A.mean(p), x)
cases["scalar_expr"] = (lambda p: expr(f64)(lambda a: -2 * a)(A.mean(p)), x)
cases["scalar_tensor"] = (lambda p, q: (A.exp(p) / A.sum(q) + A.norm(p)) * q, x, b)
cases["scalar_axis"] = (lambda p: A.exp(A.mean(p, keepdims=True)) * A.sum(A.sum(p), None), x)
cases["scalar_one"] = (lambda p, q: A.sum(p) * q + q / 2, x, b[:1].copy())
cases["scalar_ranks"] = (lambda p, q: (A.sum(p) * 2) * (q * 3), x[:1, :1].copy(), X3[:1, :1, :1].copy())
cases["scalar_fused"] = (lambda p, q: rf.sum()(A.sum(p), q) + rf.mean(0)(from_host(b), A.mean(q)), x, b)
cases["matmul_operator"] = (lambda p, q: A.tanh(p @ q) @ A.exp(q[0] * 2), x, w)
cases["branches"] = (
    lambda p: (
        A.exp(p)
        .shared()
        .then(lambda t: zip_ops(A.sin(t), A.cos(t)).then(lambda z: A.matmul(z[0], z[1], transpose="b")))
    ),
    x,
)
cases["unzip"] = (lambda p: difference(*zip_ops(A.sin(p), A.exp(p)).unzip()), x)
cases["slice"] = (lambda p: A.exp(p).then(lambda t: A.sin(t.slice(slice(1, 3), slice(0, 4, 2)))), x)


@pytest.mark.parametrize("name", cases)
def test_each_rule_against_differences(name: str) -> None:
    """The gradient by way of each function is that of its values."""
    function, *arrays = cases[name]
    assert_slope(function, *arrays)


STRIDED = """sortNone vm mv vv bv cumprod1 cumprodNone cummax0 cumminNone median1 quantile00.3 quantileNone0.5
csr_matmul csr_matmul2 compress"""


@pytest.mark.parametrize("name", STRIDED.split())
def test_rules_read_slices(name: str) -> None:
    """An input whose elements do not lie in one piece, turned around, has the gradient of its copy."""
    f, *arrays = cases[name]
    sliced = [(..., slice(None, None, -2)) if np.ndim(each) > 1 else slice(None, None, -2) for each in arrays]
    assert_slope(lambda *tensors: f(*[t[at] for t, at in zip(tensors, sliced, strict=True)]),
                 *[np.repeat(each, 2, -1) for each in arrays])  # fmt: skip


def test_a_mask_that_is_sliced_chooses() -> None:
    """The rule of `compress` reads the mask, which need not lie in one piece."""
    mask, values = up(np.array([True, False, True, True])[[0, 0, 1, 1, 2, 2, 3, 3]]), up([1.0, 2.0, 3.0, 4.0])
    _, g = value_and_grad(lambda t: A.sum(A.compress(mask[::2], t, size=2)))(values).sync()
    assert g.to_host().sync().tolist() == [1, 0, 1, 0]


def test_each_function_has_a_rule_is_constant_or_is_refused() -> None:
    """Each function of `dagpu.array` is in exactly one of three sets."""
    kinds = [set(RULES), CONSTANT, set(REFUSED)]
    assert {name: count for name in array.__all__ if (count := sum([name in kind for kind in kinds])) != 1} == {}


def test_each_rule_has_a_case() -> None:
    """A rule that no case tries is one that nobody has seen work."""
    tried = "".join([*cases, *of_complex])
    aliases = {"broadcast_to": "bto", "take_along_axis": "taa", "tensordot": "tdot", "concatenate": "concat",
               "scatter_add": "scatter", "segment_sum": "segsum", "expression": "exprnum", "written": "into",
               "reduced": "fusedsum"}  # fmt: skip
    over_meshes = {"put_together", "combined_at_once", "reduced_by_nccl"}  # tests of meshes try them
    assert [name for name in RULES.keys() - over_meshes if aliases.get(name, name) not in tried] == []


def test_half_precision_and_converted_sums() -> None:
    """Gradients have the element type of the leaf, also where the sum has another one."""
    leaf = from_host(np.array([1.5, 2.0], np.float16)).sync().share()
    _, g = value_and_grad(lambda t: array.sum(array.exp(t), dtype=f32))(leaf).sync()
    assert g.dtype == np.float16
    np.testing.assert_allclose(g.to_host().sync(), np.exp([1.5, 2.0]), rtol=2e-3)


def test_gradients_where_an_element_is_no_finite_number() -> None:
    """The gradient of what is infinite or NaN is not lost: an extreme has its share, and a NaN makes others NaN."""
    for f, values, expected in (
        (A.amax, [1.0, np.inf, np.inf], [0, 0.5, 0.5]), (A.amin, [1.0, np.inf], [1, 0]),
        (A.amin, [1.0, -np.inf], [0, 1]), (A.nanmax, [np.nan, np.inf, 2], [0, 1, 0]),
        (A.norm, [np.nan, 1.0], [np.nan, np.nan]),
        (lambda x: A.sum(A.cumprod(x)), [2.0, np.nan, 3.0], [np.nan, 8, np.nan]),
        (lambda x: A.sum(A.cumprod(x)), [0.0, 2.0, np.inf], [np.inf, np.nan, 0]),
    ):  # fmt: skip
        _, g = value_and_grad(f)(up(np.array(values))).sync()
        np.testing.assert_array_equal(g.to_host().sync(), expected)


def test_second_derivatives_of_products_with_zeros() -> None:
    """They are those of a polynomial: no rule divides, or chooses by where a 0 is."""

    def slopes(f: Any) -> Any:
        return lambda z: array.sum(grad(f)(z))

    functions: list[Any] = [A.prod, A.nanprod, expr(f64)(lambda a: +a).prod(), lambda z: A.sum(A.cumprod(z)[2:])]
    for f in functions:
        for given, expected in (([0.0, 2, 3], [5, 3, 2]), ([0.0, 0, 3], [3, 3, 0]), ([1.0, 2, 3], [5, 4, 3])):
            assert grad(slopes(f))(up(given)).sync().to_host().sync().tolist() == expected
    weights = np.arange(1.0, 9) / 10
    values = np.array([0.5, 0.0, 2, 0.3, 1, 0.5, 0, 1])
    assert_gradient(
        lambda z: array.sum(array.sin(grad(lambda t: A.sum(A.cumprod(t) * from_host(weights)))(z))), up(values)
    )


def test_at_a_corner_with_a_number_the_slope_is_0() -> None:
    """Of functions of tensors as of expressions: relu at 0, and a clip at its bounds."""
    both = expr(f64, f64)(lambda a, b: A.maximum(a, b))
    cases: list[Callable[..., Any]] = [
        lambda x: A.maximum(x, 1.0), lambda x: A.minimum(1.0, x), lambda x: A.clip(x, 1, 1), lambda x: both(x, 1.0),
        lambda x: expr(f64)(lambda a: A.maximum(a, 1))(x), lambda x: both.sum()(x, 1.0),
    ]  # fmt: skip
    for f in cases:
        _, g = value_and_grad(lambda x, f=f: A.sum(f(x)))(up([1.0, 1.0])).sync()
        assert g.to_host().sync().tolist() == [0, 0]
    _, g = value_and_grad(lambda x: A.sum(A.maximum(x, from_host(np.ones(2)))))(up([1.0, 1.0])).sync()
    assert g.to_host().sync().tolist() == [0.5, 0.5]


def test_the_nan_of_an_extreme_has_its_gradient() -> None:
    """Where a largest element is NaN, the NaNs share its gradient; of the other elements it does not depend."""
    functions: list[Any] = [A.amax, A.amin, expr(f64)(lambda x: +x).amax()]
    for f in functions:
        _, g = value_and_grad(f)(up([1.0, np.nan, 3.0, np.nan])).sync()
        assert g.to_host().sync().tolist() == [0, 0.5, 0, 0.5]


def test_a_power_of_0_is_flat_at_0_too() -> None:
    """x ** 0 is 1 everywhere: of a constant exponent, of a number, and of an element."""
    x: Any = up([0.0, 2.0])
    powers: list[Callable[..., Any]] = [
        lambda x: x**0, lambda x: x**0.0, lambda x: A.pow(x, 0.0), lambda x: x ** from_host(np.zeros(2)),
    ]  # fmt: skip
    for power in powers:
        _, g = value_and_grad(lambda x, f=power: A.sum(f(x)))(x).sync()
        assert g.to_host().sync().tolist() == [0, 0]


def test_gradients_where_reductions_tie_or_meet_zeros() -> None:
    """Equal extremes share the gradient; a product with one zero has a gradient there alone; a norm of 0 has none."""
    tries: list[tuple[Any, list[float], list[float]]] = [
        (array.amax, [1, 3, 3], [0, 0.5, 0.5]), (array.prod, [2, 0, 3], [0, 6, 0]), (array.prod, [0, 0, 3], [0, 0, 0]),
        (array.norm, [0, 0, 0], [0, 0, 0]),
    ]  # fmt: skip
    for function, values, expected in tries:
        _, g = value_and_grad(lambda t, function=function: function(t))(up(np.array(values, float))).sync()
        assert g.to_host().sync().tolist() == expected


@pytest.mark.parametrize(
    ("f", "slope"),
    [
        (lambda t: array.sum(t) * 2, 2), (lambda t: -array.sum(t), -1), (lambda t: array.sum(t) / 4, 0.25),
        (lambda t: expr(f64)(lambda a: -a)(array.mean(t)), -0.25), (lambda t: 1 - array.sum(t).reshape((1, 1)), -1),
        (lambda t: 3 * array.mean(t, keepdims=True), 0.75), (lambda t: array.sum(t * 2) * array.sum(t), 16),
        (lambda t: array.exp(array.sum(t) - 4) * 2, 2), (lambda t: array.maximum(array.sum(t) * 5, 0), 5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_loss_may_be_computed_with(f: Any, slope: float, shape: tuple[int, ...]) -> None:
    """A value of one element goes through operators and expressions: its gradient has its shape, also without axes."""
    _, g = value_and_grad(f)(up(np.ones(shape))).sync()
    np.testing.assert_allclose(g.to_host().sync(), np.full(shape, slope))


def test_dropout_needs_its_seed() -> None:
    """The pass back drops the same elements, by the same seed; a seed of the run's own is not known to it."""
    leaf = up(np.ones(64))
    result, g = value_and_grad(lambda t: array.sum(array.dropout(t, 0.5, seed=7)))(leaf).sync()
    assert g.to_host().sync().sum() == result.to_host().sync()
    with pytest.raises(GradientError, match=r"dropout at .*test_rules.py:.*Give it one"):
        value_and_grad(lambda t: array.sum(array.dropout(t, 0.5)))(leaf).sync()


def test_what_is_the_same_along_an_axis_counts_as_often() -> None:
    """The gradient of a value that was broadcast is multiplied by how often: no memory holds the repetitions."""
    leaf = up(b)
    for function in (lambda t: array.broadcast_to(t, (5, 4)), lambda t: product(t, from_host(np.ones((5, 4))))):
        _, g = value_and_grad(lambda t, function=function: array.sum(function(t)))(leaf).sync()
        assert g.to_host().sync().tolist() == [5.0] * 4


def test_gradients_of_bf16() -> None:
    """bf16 is no type of NumPy's own, and has gradients all the same."""
    leaf = convert(from_host(np.array([1.5, 2.0])), bf16).sync().share()
    _, g = value_and_grad(lambda t: array.sum(array.exp(t)))(leaf).sync()
    np.testing.assert_allclose(convert(g, f64).to_host().sync(), np.exp([1.5, 2.0]), rtol=1e-2)


def test_a_product_without_nans() -> None:
    """A NaN counts as a 1, and has no gradient."""
    values = np.array([2.0, np.nan, 3.0])
    _, g = value_and_grad(lambda t: array.nanprod(t))(up(values)).sync()
    assert g.to_host().sync().tolist() == [3.0, 0.0, 2.0]
