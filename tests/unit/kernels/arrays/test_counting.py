"""`searchsorted`, `bincount` and `histogram`: the numbers of NumPy, and the bits of the CUDA text."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import array, bf16, f16, f32, f64, from_host, i8, i32, i64, u8, u16
from dagpu.arrays import counting
from tests.support.bits import same_bits
from tests.support.text_runs import by_text
from tests.unit.kernels.arrays.movement_cases import contents, cut_out, part, shapes


def lent(draw: st.DrawFn, x: Any) -> tuple[Any, Any]:
    """A tensor of a part of an array, and the part."""
    ranges, t = part(draw, x), from_host(x).sync()
    held: Any = t
    return (held.slice(*ranges) if ranges else held.share()), cut_out(x, ranges)


@settings(max_examples=40)
@given(st.data())
def test_places_are_those_of_numpy(data: st.DataObject) -> None:
    """Of any element type, with NaNs behind all numbers, on both sides."""
    draw: Any = data.draw
    dtype = draw(st.sampled_from((f16, bf16, f32, f64, i8, i64, u16)))
    edges = contents(draw, dtype, (draw(st.sampled_from((0, 1, 5, 300))),))
    wide = f32 if edges.dtype.itemsize == 2 and edges.dtype.kind not in "iu" else dtype
    edges = np.sort(edges.astype(wide)).astype(dtype)
    values, side = contents(draw, dtype, draw(shapes(2))), draw(st.sampled_from(("left", "right")))
    t, given_values = lent(draw, values)
    found = array.searchsorted(from_host(edges), t, side).to_host().sync()
    np.testing.assert_array_equal(found, np.searchsorted(edges.astype(wide), given_values.astype(wide), side))


@settings(max_examples=30)
@given(st.data())
def test_counts_are_those_of_numpy(data: st.DataObject) -> None:
    """Of few numbers and of more than a block counts; others are left out. In one span and in several."""
    draw: Any = data.draw
    dtype, n = draw(st.sampled_from((i8, u8, i32, i64))), draw(st.sampled_from((1, 3, 200, 5000)))
    x = contents(draw, dtype, draw(shapes(2)))
    t, numbers = lent(draw, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "SPAN", draw(st.sampled_from((7, 4096))))
        found = array.bincount(t, n).to_host().sync()
    expected = np.bincount(numbers[(numbers >= 0) & (numbers < n)].astype(i64), minlength=n)
    np.testing.assert_array_equal(found, expected, strict=True)


@settings(max_examples=40)
@given(st.data())
def test_a_histogram_is_numpys(data: st.DataObject) -> None:
    """With elements on borders, beyond the range, infinite and NaN."""
    draw: Any = data.draw
    dtype, bins = draw(st.sampled_from((f32, f64))), draw(st.integers(1, 20))
    x = contents(draw, dtype, draw(shapes(2)))
    low = draw(st.integers(-5, 5))
    ends = low, low + draw(st.sampled_from((1, 2, 10, 0.5)))
    found = array.histogram(from_host(x), bins, ends).to_host().sync()
    edges = np.linspace(*ends, bins + 1).astype(dtype)
    numbers = x[np.isfinite(x)]
    expected = [np.sum((numbers >= a) & (numbers < b)) for a, b in pairwise(edges)]
    expected[-1] += np.sum(numbers == edges[-1])
    assert found.tolist() == expected


def test_the_cuda_text_gives_the_bits_of_the_host_body() -> None:
    """Of each function, in several blocks."""
    random = np.random.default_rng(2)
    x = random.standard_normal((7, 900)).astype(f32)
    x[2, 3] = np.nan
    ops = [
        array.searchsorted(from_host(np.sort(x[0])), from_host(x)),
        array.searchsorted(from_host(np.sort(x[0]).astype(f16)), from_host(x[1].astype(f16)), "right"),
        array.bincount(from_host(random.integers(-5, 300, (9, 1000)).astype(i32)), 250),
        array.bincount(from_host(random.integers(0, 9000, 5000)), 9000),
        array.histogram(from_host(x), 10, (-1, 1)),
    ]
    for op in ops:
        assert same_bits(by_text(op), op.to_host().sync()), op
