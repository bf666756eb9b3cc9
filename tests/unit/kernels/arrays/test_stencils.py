"""`stencil`: an expression of neighbours gives what NumPy gives of a padded array, and the bits of the CUDA text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import array, bf16, bool_, c64, c128, expr, f16, f32, f64, from_host, i32, u8
from dagpu.arrays.axis_maps import BORDERS
from dagpu.kernels import numpy_twin
from tests.conftest import sampled
from tests.support.bits import same_bits
from tests.support.text_runs import by_text
from tests.unit.kernels.arrays.movement_cases import contents, cut_out, part, shapes
from tests.unit.kernels.expressions.element_trees import samples


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """An array with its ranges, the offsets of two to four neighbours, and a border."""
    dtype = draw(st.sampled_from((f16, bf16, f32, f64, i32, u8)))
    x = contents(draw, dtype, draw(shapes(3, least=1)))
    offset = st.tuples(*[st.integers(-3, 3)] * x.ndim)
    offsets = draw(st.lists(offset, min_size=2, max_size=4, unique=True))
    return x, part(draw, x), offsets, draw(st.sampled_from(BORDERS))


def difference(offsets: Any) -> Any:
    """The largest of the neighbours but the first one, less that."""

    def of_neighbours(n: Any) -> Any:
        most = n[offsets[1]]
        for each in offsets[2:]:
            most = array.maximum(most, n[each])
        return most - n[offsets[0]]

    return of_neighbours


@settings(max_examples=60)
@given(cases(), st.booleans())
def test_a_stencil_is_an_expression_of_shifted_arrays(case: Any, few: bool) -> None:
    """Of any layout, border and element type, and in parts: the bits of the expression of slices of a padded array."""
    x, ranges, offsets, border = case
    given_array = cut_out(x, ranges)
    t: Any = from_host(x).sync()
    lent = t.slice(*ranges) if ranges else t.share()
    made = array.stencil(x.dtype.type, 3, border=border, constant_value=2)(difference(offsets))
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(numpy_twin, "PART_NBYTES", 256)
        found = made(lent).to_host().sync()
    if not given_array.size:
        assert found.shape == given_array.shape
        return
    options: Any = {"constant_values": 2} if border == "constant" else {}
    padded = np.pad(given_array, 3, border, **options)
    shifted = [
        padded[
            tuple([slice(3 + step, 3 + step + extent) for step, extent in zip(each, given_array.shape, strict=True)])
        ]
        for each in offsets
    ]
    tensors = [from_host(each.copy()).sync().share() for each in shifted]
    most: Any = tensors[1]
    for each in tensors[2:]:
        most = array.maximum(most, each)
    expected = expr(x.dtype.type, x.dtype.type)(lambda a, b: a - b)(most, tensors[0]).to_host().sync()
    assert same_bits(found, expected)


def test_the_game_of_life_is_one_line() -> None:
    """A glider moves by one cell in four steps, around the border."""
    life = array.stencil(u8, border="wrap")(
        lambda n: array.where(
            (sum([n[a, b] for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)], n[0, 0] * 0) | n[0, 0]) == 3,
            1,
            n[0, 0] * 0,
        )
    )
    cells = np.zeros((6, 6), np.uint8)
    cells[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
    t = from_host(cells).sync()
    for _ in range(4):
        t = life(t).sync()
    np.testing.assert_array_equal(t.to_host().sync(), np.roll(cells, 1, (0, 1)))


SMALL = ((f32, (40, 33)), (f16, (3, 50)), (bf16, (1, 2)), (f64, (2, 3, 4)))
"""Element types and shapes, some of them smaller than the radius."""


@pytest.mark.parametrize("kind", sampled([(border, *small) for border in BORDERS for small in SMALL], 5), ids=str)
def test_the_cuda_text_gives_the_bits_of_the_host_body(kind: Any) -> None:
    """With each border, for tensors that are smaller than the radius, too."""
    border, dtype, shape = kind
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    offsets = [(0,) * x.ndim, (-3,) * x.ndim, (1, *[2] * (x.ndim - 1))]
    op = array.stencil(dtype, 3, border=border, constant_value=0.5)(difference(offsets))(from_host(x))
    assert same_bits(by_text(op), op.to_host().sync())


def test_the_cuda_text_takes_bools() -> None:
    """As its host body does."""
    op = array.stencil(bool_)(lambda n: n[-1] ^ n[1])(from_host(np.random.default_rng(2).random(50) < 0.5))
    assert same_bits(by_text(op), op.to_host().sync())


# ---- convolutions
MODES = ("full", "same", "valid")


@st.composite
def convolutions(draw: st.DrawFn) -> Any:
    """A function, two arrays of different extents with their ranges, and a mode."""
    dtype = draw(st.sampled_from((f16, bf16, f32, f64, i32, u8, c64, c128)))
    a, v = [contents(draw, dtype, (draw(st.sampled_from((1, 2, 3, 8, 17, 300))),)) for _ in range(2)]
    ranges = [part(draw, a), part(draw, v)]
    return draw(st.sampled_from(("convolve", "correlate"))), a, v, ranges, draw(st.sampled_from(MODES))


def by_the_rule(name: str, a: Any, v: Any, mode: str) -> Any:
    """Products of the shorter one's elements in their order, each rounded, and each sum."""
    number = np.dtype(f32) if a.dtype.itemsize == 2 and a.dtype.kind not in "iu" else a.dtype
    x, y = a.astype(number), v.astype(number) if name == "convolve" else np.conj(v.astype(number))[::-1]
    n, m = len(x), len(y)
    x, y = (y, x) if m > n else (x, y)
    whole = np.full(n + m - 1, complex(-0.0, -0.0) if number.kind == "c" else -0.0).astype(number)
    for j, weight in enumerate(y):
        products = x * weight
        if number.kind == "c":
            products.real = x.real * weight.real - x.imag * weight.imag
            products.imag = x.real * weight.imag + x.imag * weight.real
        whole[j : j + len(x)] += products
    extent = len(getattr(np, name)(np.zeros(n), np.zeros(m), mode))
    middle = min(n, m) // 2 if name == "correlate" and m > n else (min(n, m) - 1) // 2
    first = {"full": 0, "same": middle, "valid": min(n, m) - 1}[mode]
    return whole[first : first + extent].astype(a.dtype)


@settings(max_examples=60)
@given(convolutions(), st.booleans())
def test_convolutions_have_the_bits_of_the_rule_and_numpys_values(case: Any, few: bool) -> None:
    """Of each element type and layout, in parts, with infinities and NaNs; of small numbers NumPy's values."""
    name, a, v, ranges, mode = case
    given_arrays = [cut_out(each, its) for each, its in zip((a, v), ranges, strict=True)]
    if not all(each.size for each in given_arrays):
        return
    tensors: list[Any] = [from_host(each).sync() for each in (a, v)]
    lent = [t.slice(*its) if its else t.share() for t, its in zip(tensors, ranges, strict=True)]
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        if few:
            patch.setattr(numpy_twin, "PART", 64)
        expected = by_the_rule(name, given_arrays[0], given_arrays[1], mode)
        assert same_bits(getattr(array, name)(*lent, mode).to_host().sync(), expected)
    small = [(np.arange(each.size) * 7 % 4).astype(each.dtype) for each in given_arrays]
    if min(map(len, small)) < 20:  # so that the sums fit into each type
        found = getattr(array, name)(*map(from_host, small), mode).to_host().sync()
        wide = getattr(np, name)(*[each.astype(c128) for each in small], mode)
        np.testing.assert_array_equal(found.astype(c128), wide)


@pytest.mark.parametrize("dtype", sampled((f16, i32, f32, c128), 3))
def test_the_text_of_convolutions_gives_the_bits_of_the_host(dtype: Any) -> None:
    """Of tensors of which either is the longer one, in each mode, thread by thread."""
    long, short = (samples(dtype, count, count) for count in (40, 7))
    for name in ("convolve", "correlate"):
        for a, v in ((long, short), (short, long)):
            for mode in MODES:
                op = getattr(array, name)(from_host(a), from_host(v), mode)
                assert same_bits(by_text(op), op.to_host().sync())
