"""Reductions and softmax of expressions: the bits of the two ops, on the host and in the CUDA text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagpu import KernelArgumentError, ShapeError, array, c64, expr, f16, f32, from_host, i32, ones, pipeline, zeros
from dagpu.ops.compose import Launch
from dagpu.testing import nodes_of
from tests.behaviour.arrays.array_places import steps
from tests.conftest import DEEP
from tests.simulated.each_device import where as where
from tests.support.bits import same_bits
from tests.support.text_runs import launch_text
from tests.unit.kernels.expressions.element_trees import samples

EXPRESSIONS = {
    f32: expr(f32, f32, f32)(lambda x, y, a: array.maximum(a * x, y) + x),
    f16: expr(f16, f16, f16)(lambda x, y, a: array.where(x > y, a * x, x - y)),
    i32: expr(i32, i32, i32)(lambda x, y, a: x * a + (y >> 1)),
    c64: expr(c64, c64, c64)(lambda x, y, a: x * a - y.conj()),
}
TESTED = expr(f32, f32, f32)(lambda x, y, a: (x > y) & (x < a))
NAMES = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all")


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A reduction, an expression with two arrays and a number, arrays that broadcast, axes, keepdims, and slices."""
    dtype = draw(st.sampled_from(list(EXPRESSIONS)))
    lacking = {i32: ("mean", "norm"), c64: ("amin", "amax")}.get(dtype, ())
    name = draw(st.sampled_from([n for n in NAMES if n not in lacking]))
    expression = TESTED if dtype is f32 and name in ("any", "all") else EXPRESSIONS[dtype]
    extents = st.sampled_from((1, 2, 3, 4, 17, 40, 300, 5000))
    shape = draw(st.lists(extents, min_size=1, max_size=3).filter(lambda shape: np.prod(shape) <= 30_000))
    other = [draw(st.sampled_from((n, n, 1))) for n in shape][draw(st.integers(0, len(shape) - 1)) :]
    seed = draw(st.integers(0, 99))
    x, y = (samples(dtype, int(np.prod(s)), seed + n).reshape(s) for n, s in enumerate((shape, other)))
    axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(0, len(shape)))])
    ranges = draw(st.one_of(st.none(), st.tuples(steps, steps, steps)))
    return name, expression, x, y, draw(st.sampled_from((None, axes))), draw(st.booleans()), ranges


@settings(max_examples=60)
@given(cases())
def test_the_bits_are_those_of_the_two_ops(case: Any) -> None:
    """Over broadcast arguments, of inputs with gaps and of reversed ones too."""
    name, expression, x, y, axis, keepdims, ranges = case

    t = from_host(x).sync()
    cut = (slice(None),) * x.ndim if ranges is None else ranges[: x.ndim]
    part = x[cut]
    extents = zip(y.shape[::-1], part.shape[::-1], strict=False)
    if 0 in part.shape or any(a not in (b, 1) and b != 1 for a, b in extents):
        return
    taken = t.slice(*cut)
    fused = getattr(expression, name)(axis, keepdims=keepdims)(taken, from_host(y), 2).to_host().sync()
    plain = getattr(array, name)(expression(taken, from_host(y), 2), axis, keepdims=keepdims).to_host().sync()
    assert same_bits(fused, plain)
    if part.ndim and x.dtype.kind == "f" and expression is not TESTED:
        along = len(axis or ()) - 1
        fused = expression.softmax(along)(taken, from_host(y), 2).to_host().sync()
        plain = array.softmax(expression(taken, from_host(y), 2), along).to_host().sync()
        assert same_bits(fused, plain)


@settings(max_examples=2 if DEEP else 1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(cases(), min_size=6, max_size=6))
def test_the_cuda_text_gives_the_same_bits(drawn: Any) -> None:
    """The first pass, with the threads of a block in two orders."""
    firsts = []
    for name, expression, x, y, axis, keepdims, _ in drawn:
        op = getattr(expression, name)(axis, keepdims=keepdims)(from_host(x), from_host(y), 2)
        (launch, *_) = [node for node in nodes_of(op) if isinstance(node, Launch)][::-1]
        firsts.append((launch, x, y))
    for launch, x, y in firsts:
        target: Any = launch.args[0]
        out, wanted = (np.zeros(target.source.shape, target.source.dtype) for _ in range(2))
        shapes: list[Any] = [getattr(getattr(arg, "f", None), "shape", None) for arg in launch.args[1:3]]
        given = [each.reshape(each.shape if s is None else s) for each, s in zip((x, y), shapes, strict=True)]
        host: Any = launch.kernel.host.function
        host(wanted, *given, *launch.args[3:])
        launch_text(launch.kernel, [out, *given, *launch.args[3:]], [target.f.tile])
        assert same_bits(out, wanted), launch.kernel.cuda


def test_one_kernel_computes_and_reduces(where: Any) -> None:
    """On every device, in a pipeline with one plan; its elements are never in memory."""
    distance = expr(f32, f32)(lambda x, y: (x - y) * (x - y)).sum(1)
    x = np.random.default_rng(5).standard_normal((40, 300)).astype(f32)

    @pipeline
    def nearest(t: Any, centre: Any) -> Any:
        return distance(t, centre).to_host()

    for row in range(3):
        centre = x[row].copy()
        found = nearest(from_host(x).sync(), from_host(centre).sync()).sync()
        np.testing.assert_allclose(found, ((x - centre) ** 2).sum(1), rtol=1e-4)
        assert found[row] == 0
    assert nearest.cache_info()[:2] == (2, 1)
    assert launches_of(distance(ones((4, 8)), ones((8,)))) == ["expression_sum"]


def launches_of(op: Any) -> list[str]:
    """The names of the kernels of an op."""
    return [node.kernel.name for node in nodes_of(op) if isinstance(node, Launch)]


def test_one_kernel_computes_and_normalises(where: Any) -> None:
    """On every device, in a pipeline with one plan that a number varies; long rows take three launches."""
    scores = expr(f32, f32, f32)(lambda x, mask, scale: x * scale + mask)
    attend = scores.softmax()
    x, mask = np.random.default_rng(6).standard_normal((2, 20, 300)).astype(f32)

    @pipeline
    def weights(t: Any, m: Any, scale: float) -> Any:
        return attend(t, m, scale).to_host()

    for scale in (0.5, 1.0, 2.0):
        found = weights(from_host(x).sync(), from_host(mask).sync(), scale).sync()
        powers = np.exp(x * scale + mask - (x * scale + mask).max(1, keepdims=True))
        np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-4)
    assert weights.cache_info()[:2] == (2, 1)
    assert launches_of(attend(ones((4, 8)), ones((8,)), 1)) == ["expression_softmax"]
    long = from_host(np.tile(x, (1, 60))).sync()
    assert launches_of(attend(long.borrow(), 0.0, 2.0)) == ["expression_softmax"] * 3
    found = attend(long.borrow(), 0.0, 2.0).to_host().sync()
    assert same_bits(found, array.softmax(scores(long.borrow(), 0.0, 2.0)).to_host().sync())


def test_the_text_of_a_reduced_expression_can_be_read() -> None:
    """It has the text of an element of the expression, and the name of both."""
    square = expr(f32)(lambda x: x * x)
    for name in (*NAMES, "softmax"):
        text = getattr(square, name)().cuda
        assert f" expression_{name}(Tile<" in text
        assert "const float t0 = x * x;" in text


def test_what_has_no_elements_and_what_is_refused() -> None:
    """As for the functions of tensors, with the user's line."""
    square = expr(f32)(lambda x: x * x)
    assert square.sum()(zeros((0,))).to_host().sync() == 0
    with pytest.raises(ShapeError, match="no elements along the axis"):
        square.amax(0)(zeros((0, 3)))
    t = ones((3, 3)).sync()
    with pytest.raises(ShapeError, match=r"sum of the expression at .*_reductions.py:\d+: axis is 2"):
        square.sum(2)(t)
    assert square.norm()(t).to_host().sync() == 3
    assert "sum over 2 of <expression" in repr(square.sum(2))
    with pytest.raises(ShapeError, match=r"softmax of the expression at .*_reductions.py:\d+: axis is 2"):
        square.softmax(2)(ones((3, 3)))
    with pytest.raises(KernelArgumentError, match=r"softmax of the expression at .*not take elements of bool"):
        expr(f32)(lambda x: x > 1).softmax()
    assert square.softmax()(zeros((3, 0))).to_host().sync().shape == (3, 0)
