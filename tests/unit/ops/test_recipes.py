"""Recipes on the host: each kind against NumPy, into every element type, shape and memory order."""

import math
import re
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu.backends.host import numpy_initializers
from dagpu.backends.host.numpy_initializers import write
from dagpu.common.errors import ShapeError
from dagpu.common.layout import COMPLEX, SUPPORTED, bf16
from dagpu.ops.initializers import Eye, Linspace, Recipe, check_recipe
from dagpu.testing import Arange, Constant, Normal, Uniform

DType: TypeAlias = np.dtype[Any]
FLOATS = [np.dtype(t) for t in (np.float16, bf16, np.float32, np.float64)]
WHOLE = [np.dtype(t) for t in "bhilqBHILQ"]
ALL = sorted(SUPPORTED - COMPLEX, key=str)

finite = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-290 else x)
"""Where steps are not so small that they vanish, which `numpy.linspace` treats as a case of its own."""
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def written(recipe: Recipe, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    out = np.empty(shape, dtype)
    write(recipe, out)
    return out


def land(values: NDArray[np.float64], dtype: DType) -> NDArray[Any]:
    """f64 to an element type, as the table in `dagpu.ops.initializers` says."""
    if dtype == bf16:
        return values.astype(np.float32).astype(dtype)
    return (np.floor(values) if dtype.kind in "iu" else values).astype(dtype)


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    """An array of that shape in any order of axes, with gaps and negative strides."""
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    base = np.zeros([shape[axis] * abs(steps[axis]) for axis in order], dtype)
    back = np.argsort(order) if shape else order
    # With the ellipsis what has no axes stays an array.
    cut: tuple[Any, ...] = (..., *(slice(None, None, step) for step in steps))
    return cast(NDArray[Any], base.transpose(list(back))[cut])


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("value", [0, 1, True, 100, 2.75, 0.0, 1.0, -1, 1e5])
def test_a_constant_is_numpys_full_or_refused(value: float, dtype: DType) -> None:
    """Every element is the value, rounded at most to a fraction or a finite number of a floating type. A value that no
    element of the type is, and True among numbers, is refused, and nothing written."""
    as_numpy = np.full((2, 3), value, np.object_)
    if dtype == np.float16 and value == 1e5:
        held = False
    elif isinstance(value, bool) or dtype.kind == "b":
        held = dtype.kind == "b" and value in (0, 1)
    else:
        held = dtype in FLOATS or (value == int(value) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)
    if held:
        assert_array_equal(written(Constant(value), (2, 3), dtype), as_numpy.astype(dtype))
        return
    out = np.zeros(2, dtype)
    with pytest.raises((TypeError, OverflowError), match=r"\. (Use|Write) "):
        write(Constant(value), out)
    assert not out.any()


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_constant_reaches_the_ends_of_integer_types(dtype: DType) -> None:
    """The smallest and the largest whole number are exact; one beyond is refused, and nothing written."""
    bounds = np.iinfo(dtype)
    for value in (int(bounds.min), int(bounds.max)):
        assert written(Constant(value), 2, dtype).tolist() == [value] * 2
    out = np.full(2, 7, dtype)
    for value in (int(bounds.min) - 1, int(bounds.max) + 1):
        with pytest.raises(OverflowError, match=re.escape(f"{value} is outside the range of {dtype.name}, ")):
            write(Constant(value), out)
    assert out.tolist() == [7, 7]


def test_floating_constants_keep_what_is_no_number() -> None:
    """A floating type takes infinity, NaN and -0."""
    assert written(Constant(math.inf), 1, np.float16).tolist() == [math.inf]
    assert np.isnan(written(Constant(math.nan), 1, bf16)).all()
    assert math.copysign(1.0, written(Constant(-0.0), 1, np.float16)[0]) == -1.0


def test_constant_rounds_by_way_of_f64() -> None:
    """bf16 rounds from f32: just above a tie in f64, but the tie itself in f32, goes to the even one."""
    assert float(written(Constant(1 + 2.0**-8 + 2.0**-40), 1, bf16)[0]) == 1.0
    assert float(written(Constant(1 + 2.0**-11 + 2.0**-40), 1, np.float16)[0]) == 1 + 2.0**-10
    assert written(Constant(2**53 + 1), 1, np.float64).tolist() == [2.0**53]


def test_complex_constants_need_a_complex_type() -> None:
    """A complex value fills a complex array, and is a TypeError elsewhere, even with no imaginary part."""
    assert written(Constant(1 + 2j), 2, np.complex64).tolist() == [1 + 2j] * 2
    for dtype in ALL:
        with pytest.raises(TypeError, match="it is complex"):
            write(Constant(1 + 0j), np.empty(2, dtype))


@pytest.mark.parametrize(
    ("value", "dtype", "error", "message"),
    [
        (math.inf, np.int32, ValueError, "fill_value = inf. Give a finite"),
        (math.nan, np.uint8, ValueError, "fill_value = nan. Give a finite"),
        (math.nan, np.bool_, ValueError, "fill_value = nan. Give a finite"),
        (-1.75, np.int8, TypeError, "fill_value = -1.75: elements of int8 are whole. Use f32"),
        (0.5, np.bool_, TypeError, "fill_value = 0.5: elements of bool are True or False. Use f32"),
        (2, np.bool_, OverflowError, "2 is outside the range of bool, 0 to 1. Use a wider type"),
        (True, np.complex64, TypeError, "fill_value = True: elements of complex64 are numbers. Write 1, or make"),
        (10**400, np.float32, OverflowError, "does not fit an f64"),
        ("text", np.dtype("U4"), TypeError, "no tensor has that element type"),
    ],
)
def test_constants_that_no_element_can_be(value: Any, dtype: Any, error: type[Exception], message: str) -> None:
    """A constant that the element type cannot represent is refused, with the cure."""
    with pytest.raises(error, match=message):
        write(Constant(value), np.empty(2, dtype))


@pytest.mark.parametrize(
    ("dtype", "most", "beyond"),
    [
        (np.float16, 65519.0, 65520.0),
        (bf16, 3.39e38, 3.4e38),
        (np.float32, 3.4028235e38, 3.4028236e38),
        (np.float64, 10**308, 10**309),
        (np.complex64, 3.4028235e38j, 3.4028236e38j),
        (np.int8, 127.0, 128.0),
        (np.uint64, 2**64 - 1, 2**64),
    ],
)
def test_a_finite_constant_becomes_no_infinity(dtype: Any, most: complex, beyond: complex) -> None:
    """The largest number that rounds to one of the element type is taken, and the next one refused."""
    assert np.isfinite(written(Constant(most), 1, dtype).astype(np.complex128)).all()
    with pytest.raises(OverflowError):
        check_recipe(Constant(beyond), np.dtype(dtype), (1,))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_arange_counts(dtype: DType) -> None:
    """0, 1, 2, ... in every element type; bool has two."""
    count = 2 if dtype.kind == "b" else 100
    for recipe in (Arange(0, 1), Arange(0.0, 1.0)):
        assert_array_equal(written(recipe, count, dtype), np.arange(count).astype(dtype))


@given(st.sampled_from(WHOLE), st.data())
def test_arange_of_integers_is_exact(dtype: DType, data: st.DataObject) -> None:
    """Whole start and step give start + i * step exactly, up to the ends of the type's range."""
    bounds = np.iinfo(dtype)
    inside = st.integers(int(bounds.min), int(bounds.max))
    start, end, count = data.draw(inside), data.draw(inside), data.draw(st.integers(1, 9))
    step = int((end - start) / count)
    expected = [start + i * step for i in range(count)]
    if all(bounds.min <= x <= bounds.max for x in expected):
        assert written(Arange(start, step), count, dtype).tolist() == expected
    else:
        with pytest.raises(OverflowError, match="outside the range"):
            check_recipe(Arange(start, step), dtype, (count,))


@given(finite, finite, st.integers(0, 40), st.sampled_from(FLOATS))
def test_arange_of_floats_is_its_formula(start: float, step: float, count: int, dtype: DType) -> None:
    """Floating types land start + i * step, computed in f64 with two roundings."""
    with np.errstate(over="ignore"):
        expected = land(np.array([start + float(i) * step for i in range(count)], np.float64), dtype)
        ends = land(np.array([start, *expected[-1:].astype(np.float64)]), dtype)
    if np.isinf(ends.astype(np.float64)).any():
        with pytest.raises(OverflowError, match="outside the range"):
            check_recipe(Arange(start, step), dtype, (count,))
        return
    assert_array_equal(written(Arange(start, step), count, dtype), expected)


@pytest.mark.parametrize("dtype", [np.int16, np.uint64, np.bool_])
@pytest.mark.parametrize("recipe", [Arange(0.5, 1), Arange(0, 0.5), Arange(1e-9, 0)], ids=repr)
def test_arange_of_fractions_is_refused_in_integers(recipe: Recipe, dtype: Any) -> None:
    """An integer type has no fraction, so a start or a step with one is refused."""
    with pytest.raises(TypeError, match=r"elements of \w+ are (whole|True or False)\. Use f32"):
        check_recipe(recipe, np.dtype(dtype), (2,))


def test_arange_of_whole_floats_is_exact_in_integers() -> None:
    """A whole float is the same number as an int, also where a float has no fractions any more."""
    assert written(Arange(-(2.0**62), 1), 3, np.int64).tolist() == [-(2**62), 1 - 2**62, 2 - 2**62]


def test_arange_out_of_range_is_refused() -> None:
    """A last element that the type cannot hold is an OverflowError, not a number that wrapped."""
    for recipe in (Arange(0, 1), Arange(0, 1.0), Arange(255, -1)):
        written(recipe, 256, np.uint8)
        with pytest.raises(OverflowError, match="outside the range of uint8"):
            written(recipe, 257, np.uint8)
    with pytest.raises(OverflowError, match="outside the range of int64"):
        written(Arange(0.0, 1e308), 10, np.int64)
    with pytest.raises(ValueError, match="step = nan"):
        written(Arange(0, math.nan), 2, np.float32)
    assert written(Arange(0, 10**20), 0, np.float32).size == 0


@given(finite, finite, st.integers(0, 60), st.sampled_from([*FLOATS, np.dtype(np.int32), np.dtype(np.int64)]))
def test_linspace_is_numpys(start: float, stop: float, num: int, dtype: DType) -> None:
    """f64 is numpy.linspace in bits; other types are that, rounded, and integers rounded down."""
    if dtype.kind == "i":
        start, stop = float(int(start)), float(int(stop))
    exact = np.linspace(start, stop, num)
    assert_array_equal(written(Linspace(start, stop, num), num, np.float64), exact)
    with np.errstate(over="ignore"):
        expected, ends = land(exact, dtype), land(np.array([start, stop]), dtype)
    if dtype in FLOATS and np.isinf(ends.astype(np.float64)).any():
        with pytest.raises(OverflowError, match="outside the range"):
            check_recipe(Linspace(start, stop, num), dtype, (num,))
        return
    assert_array_equal(written(Linspace(start, stop, num), num, dtype), expected)


@given(finite, finite, st.integers(2, 300))
def test_linspace_ends_exactly(start: float, stop: float, num: int) -> None:
    """Both ends are the numbers given, whatever the steps between them round to."""
    found = written(Linspace(start, stop, num), num, np.float64)
    assert (found[0], found[-1]) == (start, stop)


def test_linspace_across_chunks() -> None:
    """More elements than a chunk holds are numbered through, and only the very last is the end."""
    num = 2 * numpy_initializers.CHUNK + 5
    assert_array_equal(written(Linspace(-1.0, 3.0, num), num, np.float64), np.linspace(-1.0, 3.0, num))


@pytest.mark.parametrize(
    ("recipe", "dtype", "error", "message"),
    [
        (Linspace(0.0, 1.0, 5), np.float32, ShapeError, "5 elements for the shape"),
        (Linspace(0.0, math.inf, 6), np.float32, ValueError, "stop = inf"),
        (Linspace(-1e308, 1e308, 6), np.float64, OverflowError, "the difference overflows"),
        (Linspace(0.0, 2.5, 6), np.int32, TypeError, "stop = 2.5: elements of int32 are whole. Use f32"),
        (Linspace(0.0, 1.0, 6), np.bool_, TypeError, "elements of bool: there is none between False and True"),
        (Arange(0, 1), np.bool_, OverflowError, "5 is outside the range of bool, 0 to 1"),
        (Linspace(0.0, 300.0, 6), np.uint8, OverflowError, "300 is outside the range of uint8"),
        (Linspace(0.0, 1.0, 6), np.complex64, TypeError, "elements of complex64: its numbers are real"),
        (Arange(0, 1), np.complex64, TypeError, "elements of complex64: its numbers are real"),
        (Eye(), np.float32, ShapeError, "Give it a shape .rows, columns."),
        (Linspace(0.0, 1e5, 6), np.float16, OverflowError, "100000.0 is outside the range of float16"),
        (Arange(0, 20000), np.float16, OverflowError, "100000.0 is outside the range of float16, -65504.0 to 65504.0"),
        (Normal(1e39, 1.0, 0), np.float32, OverflowError, "outside the range of float32"),
        (Normal(0.0, 1e39, 0), bf16, OverflowError, "outside the range of bfloat16"),
        (Uniform(0), np.int32, TypeError, "random numbers are fractions"),
        (Uniform(0), np.bool_, TypeError, "random numbers are fractions"),
        (Normal(0.0, 1.0, 0), np.uint8, TypeError, "random numbers are fractions"),
        (Normal(math.nan, 1.0, 0), np.float32, ValueError, "mean = nan"),
        (Normal(0.0, -1.0, 0), np.float32, ValueError, "std = -1.0. A standard deviation"),
    ],
)
def test_recipes_that_do_not_fit(recipe: Recipe, dtype: Any, error: type[Exception], message: str) -> None:
    """A recipe that means nothing for the array is refused before anything is written."""
    out = np.ones(6, dtype)
    with pytest.raises(error, match=message):
        write(recipe, out)
    assert_array_equal(out, np.ones(6, dtype))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (0, 3), (1, 1)])
def test_eye_is_numpys(shape: tuple[int, int], dtype: DType) -> None:
    """Ones on the main diagonal and zeros elsewhere, square or not, in every element type."""
    assert_array_equal(written(Eye(), shape, dtype), np.eye(*shape).astype(dtype))


def recipes_for(shape: tuple[int, ...], dtype: DType) -> list[Recipe]:
    """One recipe of every kind that can fill that shape with that type."""
    if dtype.kind == "b":
        found: list[Recipe] = [Constant(True), Arange(1, 0)]
    else:
        found = [Constant(3), Arange(1, 1), Linspace(0.0, 9.0, math.prod(shape))]
    if len(shape) == 2:
        found.append(Eye())
    if dtype in FLOATS:
        found += [Uniform(11), Normal(1.0, 2.0, 12)]
    return found


@given(shapes, st.sampled_from(ALL), st.data())
def test_any_memory_order_holds_the_same_elements(shape: tuple[int, ...], dtype: DType, data: st.DataObject) -> None:
    """Elements are numbered in C order of the shape: strides, gaps and reversed axes change nothing."""
    out = data.draw(strided(shape, dtype))
    for recipe in recipes_for(shape, dtype):
        write(recipe, out)
        if isinstance(recipe, Eye):
            expected = np.eye(shape[0], shape[1]).astype(dtype)
        else:
            expected = written(recipe, math.prod(shape), dtype).reshape(shape)
        assert_array_equal(out, expected)


@pytest.mark.parametrize("recipe", [Arange(0, 1), Uniform(3), Normal(0.0, 1.0, 3)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_arrays_in_another_order(recipe: Recipe, dtype: Any) -> None:
    """An array of several chunks that is not contiguous is filled like one that is."""
    rows = numpy_initializers.CHUNK // 100 * 2 + 1
    out = np.empty((100, rows), dtype).T
    write(recipe, out)
    assert_array_equal(out, written(recipe, (rows, 100), dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_recipes_are_philox(dtype: DType) -> None:
    """`Uniform` and `Normal` start at element 0 of the streams that `philox` draws."""
    assert_array_equal(written(Uniform(9), (4, 5), dtype).reshape(-1), numpy_initializers.uniform(9, 0, 20, dtype))
    found = written(Normal(-1.0, 0.5, 9), (4, 5), dtype).reshape(-1)
    assert_array_equal(found, numpy_initializers.normal(9, 0, 20, dtype, -1.0, 0.5))


def test_gaps_are_left_alone() -> None:
    """Writing to a view touches nothing between its elements."""
    base = np.full((4, 6), 7.0, np.float32)
    write(Uniform(1), base[::2, ::3])
    kept = np.ones((4, 6), np.bool_)
    kept[::2, ::3] = False
    assert (base[kept] == 7.0).all()
    assert (base[~kept] < 1.0).all()


def test_recipes_are_values() -> None:
    """Recipes of equal parameters are equal, hash alike and cannot be changed."""
    assert Linspace(0.0, 1.0, 5) == Linspace(0.0, 1.0, 5) != Linspace(0.0, 1.0, 6)
    assert len({Uniform(1), Uniform(1), Uniform(2), Eye(), Eye()}) == 3
    with pytest.raises(AttributeError):
        cast(Any, Uniform(1)).seed = 2
