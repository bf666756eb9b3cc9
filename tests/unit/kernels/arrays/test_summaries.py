"""Numbers that sum up an axis beside sums and extrema: reductions without NaNs, quantiles, of bools, of other types."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import array, bf16, bool_, f16, f32, f64, from_host, i8, i32, i64, u16
from tests.support.bits import same_bits
from tests.support.text_runs import by_text
from tests.unit.kernels.arrays.movement_cases import contents, cut_out, part, shapes

FLOATS = (f16, bf16, f32, f64)
FILLED = {"nansum": ("sum", 0.0), "nanprod": ("prod", 1.0), "nanmax": ("amax", -np.inf), "nanmin": ("amin", np.inf)}


@st.composite
def inputs(draw: st.DrawFn, types: Any, least: int = 0) -> tuple[NDArray[Any], tuple[slice, ...], Any, bool]:
    """An array with its ranges, one axis of it or None, and keepdims."""
    x = contents(draw, draw(st.sampled_from(types)), draw(shapes(3, least=least)))
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1))) if x.ndim else None
    return x, part(draw, x), axis, draw(st.booleans())


def lent(x: NDArray[Any], ranges: tuple[slice, ...]) -> Any:
    """A tensor of a part of the array."""
    t: Any = from_host(x).sync()
    return t.slice(*ranges) if ranges else t.share()


@settings(max_examples=60)
@given(inputs(FLOATS), st.sampled_from(sorted(FILLED)))
def test_nans_are_left_out(case: Any, name: str) -> None:
    """The bits are those with a neutral number in the place of NaNs; an extremum of NaNs alone is NaN."""
    x, ranges, axis, kept = case
    given_array = cut_out(x, ranges)
    along = given_array.shape if axis is None else given_array.shape[axis : axis + 1 or None]
    if name in ("nanmax", "nanmin") and 0 in along:
        return
    plain, fill = FILLED[name]
    nans = np.isnan(given_array.astype(f64))
    filled = np.where(nans, given_array.dtype.type(-0.0 if plain == "sum" else fill), given_array)
    found = getattr(array, name)(lent(x, ranges), axis, keepdims=kept).to_host().sync()
    expected = getattr(array, plain)(from_host(filled.copy()), axis, keepdims=kept).to_host().sync()
    if plain in ("amax", "amin"):
        expected = np.where(nans.all(axis, keepdims=kept), given_array.dtype.type(np.nan), expected)
    assert same_bits(found, np.asarray(expected)), (found, expected)


@settings(max_examples=20)
@given(inputs((f32, f64)))
def test_a_mean_without_nans(case: Any) -> None:
    """Its sum divided by the number of elements that are none; NaN of nothing."""
    x, ranges, axis, kept = case
    x = np.where(np.isinf(x), x.dtype.type(1), np.clip(x, -1e6, 1e6))
    wide = cut_out(x, ranges).astype(f64)
    found = array.nanmean(lent(x, ranges), axis, keepdims=kept).to_host().sync()
    with np.errstate(all="ignore"):
        count = (~np.isnan(wide)).sum(axis, keepdims=kept)
        expected = np.nansum(wide, axis, keepdims=kept) / count
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2)
    np.testing.assert_array_equal(np.isnan(found), count == 0)


@settings(max_examples=60)
@given(inputs((f32, f64), least=1), st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_quantiles_lie_between_the_elements_of_numpy(case: Any, shares: list[float]) -> None:
    """NumPy's linear ones, for several at a time and one by one, with NaN for a row with a NaN."""
    x, ranges, axis, kept = case
    x = np.where(np.isinf(x), x.dtype.type(3), np.clip(x, -1e6, 1e6))
    wide = cut_out(x, ranges).astype(f64)
    if not wide.size:
        return
    t = lent(x, ranges)
    several = array.quantile(t, tuple(shares), axis, keepdims=kept).to_host().sync()
    expected = np.quantile(wide, shares, axis=axis, keepdims=kept)
    assert several.shape == expected.shape
    np.testing.assert_allclose(several, expected, rtol=1e-5, atol=1)
    one = array.quantile(t, shares[0], axis, keepdims=kept).to_host().sync()
    assert same_bits(one, several[0])
    middle = array.median(t, axis, keepdims=kept).to_host().sync()
    np.testing.assert_allclose(middle, np.median(wide, axis, keepdims=kept), rtol=1e-5, atol=1)


@settings(max_examples=40)
@given(inputs((f32, i8, u16, bool_)), st.sampled_from((i32, i64, f64)))
def test_sums_of_another_type(case: Any, dtype: Any) -> None:
    """Elements are converted while they are added: the bits of a conversion before."""
    x, ranges, axis, kept = case
    if x.dtype == f32:
        x = np.where(np.isfinite(x), np.clip(x, -100, 100), f32(2))
    converted = from_host(cut_out(x, ranges).astype(dtype, order="C")).sync().share()
    for name in ("sum", "prod"):
        function = getattr(array, name)
        found = function(lent(x, ranges), axis, dtype=dtype, keepdims=kept).to_host().sync()
        expected = function(converted, axis, keepdims=kept).to_host().sync()
        assert same_bits(found, expected), (name, found, expected)


@settings(max_examples=30)
@given(inputs((bool_,)))
def test_extrema_of_bools(case: Any) -> None:
    """`amax` and `argmax` are NumPy's, with `keepdims` too."""
    x, ranges, axis, kept = case
    given_array = cut_out(x, ranges)
    if not given_array.size:
        return
    for name in ("amax", "amin", "argmax", "argmin"):
        found = getattr(array, name)(lent(x, ranges), axis, keepdims=kept).to_host().sync()
        expected = getattr(np, name)(given_array, axis, keepdims=kept)
        assert same_bits(found, np.asarray(expected)), (name, found, expected)


def test_the_cuda_text_gives_the_bits_of_the_host_body() -> None:
    """Of each function, for halves too."""
    x = np.random.default_rng(2).standard_normal((7, 40)).astype(f32)
    x[2, 3] = np.nan
    ops = [
        array.quantile(from_host(x), (0.0, 0.3, 0.9, 1.0), 1),
        array.median(from_host(x.astype(bf16)), 0),
        array.quantile(from_host(x.astype(f64)), 0.1),
        array.nanmax(from_host(x.astype(f16)), 0),
        array.nanmean(from_host(x), 1),
        array.sum(from_host(x > 0), 0, dtype=i64),
        array.argmax(from_host(x > 1), 1),
        array.amin(from_host(x > 1), 1),
    ]
    for op in ops:
        assert same_bits(by_text(op), op.to_host().sync()), op
