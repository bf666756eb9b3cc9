"""`var` and `std`: the values of NumPy, the bits of their parts, and the bits of the CUDA text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagpu import KernelArgumentError, ShapeError, array, bf16, expr, f16, f32, f64, from_host, i32, ones
from dagpu.ops.compose import Launch
from dagpu.testing import live_state, nodes_of
from tests.behaviour.arrays.array_places import steps
from tests.support.bits import same_bits
from tests.support.text_runs import by_text

NAMES = ("var", "std")
NEAR = {f16: 2e-3, bf16: 2e-2, f32: 2e-5, f64: 1e-12}


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A function, its input, the axes, ddof and keepdims."""
    long = st.sampled_from((1, 2, 3, 4, 7, 17, 40, 300, 5000, 20_000))
    shape = draw(st.lists(long, max_size=4).filter(lambda shape: np.prod(shape) <= 30_000))
    axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(0, len(shape)))])
    normal = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape)
    x: Any = np.asarray(normal + draw(st.sampled_from((0, 3))), draw(st.sampled_from(list(NEAR))))
    ddof = draw(st.sampled_from((0, 1, 0.5, 2)))
    return draw(st.sampled_from(NAMES)), x, draw(st.sampled_from((None, axes))), ddof, draw(st.booleans())


@settings(max_examples=60)
@given(cases(), st.tuples(steps, steps, steps, steps))
def test_values_are_those_of_numpy(case: Any, ranges: Any) -> None:
    """Of inputs with gaps and of reversed ones too, with the bits of a copy; also where the divisor is 0."""
    name, x, axis, ddof, keepdims = case
    t = from_host(x).sync()
    part = x[ranges[: x.ndim]]
    if 0 in part.shape:
        return
    options = {"axis": axis, "ddof": ddof, "keepdims": keepdims}
    function = getattr(array, name)
    found = function(t.slice(*ranges[: x.ndim]), **options).to_host().sync()
    assert same_bits(found, function(from_host(np.array(part, order="C")), **options).to_host().sync())
    wide = part.astype(f64)
    number = np.prod(np.shape(wide) if axis is None else [wide.shape[n] for n in axis], initial=1)
    squares = (abs(wide - wide.mean(axis, keepdims=True)) ** 2).sum(axis, keepdims=keepdims)
    with np.errstate(all="ignore"):
        expected = squares / max(number - ddof, 0)
        expected = np.sqrt(expected) if name == "std" else expected
    np.testing.assert_allclose(found.astype(f64), expected, rtol=NEAR[x.dtype.type], atol=NEAR[x.dtype.type] / 8)
    assert found.dtype == x.dtype
    assert found.shape == expected.shape


@settings(max_examples=25)
@given(cases())
def test_bits_are_those_of_the_parts(case: Any) -> None:
    """A sum of squares of differences from the mean and from its error, each computed by an op of its own."""
    name, x, axis, _, keepdims = case
    if x.dtype.itemsize == 2:
        return
    kind = x.dtype.type
    t = from_host(x).sync().share()
    apart = expr(kind, kind)(lambda x, mean: x - mean)(t, array.mean(t, axis, keepdims=True)).shared()
    squares = expr(kind, kind)(lambda x, error: (x - error) * (x - error))(
        apart, array.mean(apart, axis, keepdims=True)
    )
    expected = array.mean(squares, axis, keepdims=keepdims)
    expected = array.sqrt(expected) if name == "std" else expected
    assert same_bits(getattr(array, name)(t, axis, keepdims=keepdims).to_host().sync(), expected.to_host().sync())


@settings(max_examples=1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(cases(), min_size=5, max_size=5))
def test_the_cuda_text_gives_the_bits_of_the_host_body(drawn: Any) -> None:
    """Every launch, with the threads of a block in two orders."""
    ops = [getattr(array, name)(from_host(x), axis, ddof=ddof) for name, x, axis, ddof, _ in drawn]
    for op in ops:
        found = by_text(op)
        assert same_bits(found, op.to_host().sync())


@settings(max_examples=30)
@given(
    st.sampled_from(list(NEAR)),
    st.sampled_from((0.0, 1.0, 1e4, 1e8, 1e15, -3e7)),
    st.sampled_from((2, 7, 300, 10_000, 40_000)),
    st.sampled_from((0, 1)),
    st.integers(0, 99),
)
def test_a_large_mean_leaves_the_variance_as_it_is(dtype: Any, mean: float, length: int, axis: int, seed: int) -> None:
    """Of numbers that differ by few units in the last place of their mean, as exact as of numbers about 0; equal ones
    have none."""
    mean = max(-3e4, min(mean, 3e4)) if dtype is f16 else mean
    one = dtype(mean)
    unit = float(np.spacing(abs(one))) if mean else 1.0
    steps_apart = np.random.default_rng(seed).integers(-3, 4, (3, length) if axis else (length, 3))
    x = (float(one) + steps_apart * unit).astype(dtype)
    wide = x.astype(f64) - float(one)  # exact: neighbouring numbers
    squares = ((wide - wide.mean(axis, keepdims=True)) ** 2).mean(axis)
    for name, wanted in (("var", squares), ("std", np.sqrt(squares))):
        if (wanted > float(np.nextafter(dtype(np.inf), dtype(0)))).any():
            continue
        found = getattr(array, name)(from_host(x), axis).to_host().sync().astype(f64)
        np.testing.assert_allclose(found, wanted.astype(f64), rtol=2 * NEAR[dtype], atol=float(np.spacing(dtype(0))))
    equal = np.full_like(x, one)
    assert not array.var(from_host(equal), axis).to_host().sync().astype(f64).any()


def test_no_kernel_has_the_name_of_a_namespace() -> None:
    """A kernel `std` beside the namespace does not compile."""
    op = array.std(from_host(np.zeros((3, 40_000), f32)), 1)
    kernels = [node.kernel for node in nodes_of(op) if isinstance(node, Launch)]
    assert len(kernels) == 6
    assert "std" not in {kernel.name for kernel in kernels}


def test_wrong_arguments() -> None:
    """A refused call moves nothing."""
    t = ones((2, 3)).sync()
    with pytest.raises(KernelArgumentError, match=r"std at .*ddof is True. Give a number: 0 divides"):
        array.std(t, ddof=True)
    with pytest.raises(KernelArgumentError, match=r"var at .*ddof is inf"):
        array.var(t, ddof=float("inf"))
    with pytest.raises(ShapeError, match="x has 2 axes"):
        array.var(t, 2)
    with pytest.raises(KernelArgumentError, match="does not take elements of i32"):
        array.std(ones((3,), i32))  # type: ignore[type-var]  # reason: that is what is tested
    assert live_state(t).layout.shape == (2, 3)
    assert np.isnan(array.var(ones((0, 2)), 0).to_host().sync()).all()
