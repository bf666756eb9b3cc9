"""Results of dagpu's own kernels compared with the host backend: recipes, random numbers, conversions."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    Device,
    arange,
    bf16,
    convert,
    dup,
    eye,
    f16,
    f32,
    f64,
    from_host,
    full,
    linspace,
    memcpy,
    ones,
    rand,
    randn,
    use_device,
    zeros,
)  # fmt: skip
from dagpu.common.layout import COMPLEX, SUPPORTED

DTYPES: list[Any] = sorted((dtype.type for dtype in SUPPORTED - COMPLEX), key=str)
FLOATS: list[Any] = [f16, bf16, f32, f64]
BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Of a significand."""


def both(op: Any, gpu: Device) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the results of the op on the GPU and on the host."""
    with use_device(gpu):
        on_gpu: NDArray[Any] = op.to_host().sync()
    with use_device("host"):
        on_host: NDArray[Any] = op.to_host().sync()
    assert (on_gpu.dtype, on_gpu.shape) == (on_host.dtype, on_host.shape)
    return on_gpu, on_host


def same(op: Any, gpu: Device) -> None:
    """The bits are the same on both."""
    on_gpu, on_host = both(op, gpu)
    if on_gpu.tobytes() != on_host.tobytes():
        np.testing.assert_array_equal(on_gpu, on_host)
        raise AssertionError("the same numbers of other bits: zeros of another sign, or another NaN")


def ulps(x: NDArray[np.float64], dtype: "np.dtype[Any]") -> NDArray[np.float64]:
    """The distance from one number of the type to the next, at x."""
    exponents = np.frexp(np.maximum(np.abs(x), 1e-4))[1]
    return np.asarray(np.ldexp(1.0, exponents - BITS[dtype.name]), np.float64)


# ---- random numbers


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 5), (100_001,), (3, 333_334)], ids=str)
def test_rand_is_the_hosts_bit_for_bit(gpu: Device, dtype: Any, shape: tuple[int, ...]) -> None:
    """One seed gives the same numbers on both, of any element type and count."""
    for seed in (0, 7, (1 << 63) + 12345):
        same(rand(shape, dtype, seed=seed), gpu)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-3.5, 0.25), (1000.0, 2.0)])
def test_randn_is_the_hosts_within_its_tolerance(gpu: Device, dtype: Any, mean: float, std: float) -> None:
    """f64 within 8 ulp of max(|mean|, |element - mean|), the others within 1 (`dagpu.ops.initializers.Normal`)."""
    on_gpu, on_host = (a.astype(f64) for a in both(randn((300_001,), dtype, mean=mean, std=std, seed=5), gpu))
    size = np.maximum(abs(mean), np.abs(on_host - mean))
    allowed = ulps(size, np.dtype(dtype)) * (8 if dtype is f64 else 1)
    assert (np.abs(on_gpu - on_host) <= allowed).all()
    assert (on_gpu == on_host).mean() > (0.5 if dtype is f64 else 0.9999)


# ---- recipes


@settings(max_examples=40)
@given(st.lists(st.integers(0, 70), max_size=3).map(tuple), st.sampled_from(DTYPES), st.integers(0, 127))
def test_constants(gpu: Device, shape: tuple[int, ...], dtype: Any, number: int) -> None:
    """`zeros`, `ones` and `full`, of every element type."""
    for op in (
        zeros(shape, dtype),
        ones(shape, dtype),
        full(shape, bool(number) if dtype is np.bool_ else number, dtype),
    ):
        same(op, gpu)


@given(st.floats(width=64), st.sampled_from(FLOATS))
def test_constants_of_any_bits(gpu: Device, number: float, dtype: Any) -> None:
    """Infinities, minus zero and what is too small for the type; of NaN, that it is one."""
    largest = float(np.nextafter(dtype(np.inf), dtype(0)))
    if math.isfinite(number) and abs(number) > largest:
        number = math.copysign(largest, number)  # a number that the type cannot hold is refused
    if math.isnan(number):
        assert np.isnan(both(full((9,), number, dtype), gpu)[0].astype(f64)).all()
    else:
        same(full((9,), number, dtype), gpu)


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5), st.integers(0, 3000), st.sampled_from(FLOATS))
def test_linspace(gpu: Device, start: float, stop: float, num: int, dtype: Any) -> None:
    """To the bit: multiplication and addition are rounded one by one."""
    if dtype is f16:
        start, stop = start / 2, stop / 2  # within its range
    same(linspace(start, stop, num, dtype), gpu)


@settings(max_examples=40)
@given(st.integers(0, 127), st.integers(0, 40), st.integers(0, 40), st.sampled_from(DTYPES))
def test_arange_and_eye(gpu: Device, count: int, n: int, m: int, dtype: Any) -> None:
    """Whole numbers, of every element type."""
    same(arange(count, dtype), gpu)
    same(eye(n, m, dtype), gpu)


def test_large_recipes(gpu: Device) -> None:
    """Many blocks' worth, and what does not fill the last."""
    for dtype in (f32, f64):
        same(arange(3_000_001, dtype), gpu)
        same(linspace(-1, 1, 3_000_001, dtype), gpu)
    same(eye(1500, 1999, f16), gpu)


# ---- conversions


def samples(dtype: Any, target: Any) -> NDArray[Any]:
    """Values of one element type for which a conversion to the other is defined in C."""
    source, goal = np.dtype(dtype), np.dtype(target)
    random = np.random.default_rng(3)
    if source.kind == "b":
        return random.integers(0, 2, 1000).astype(dtype)
    if source.kind in "iu":
        bounds = np.iinfo(source)
        values = random.integers(bounds.min, bounds.max, 1000, source, endpoint=True)
        values[:5] = [0, 1, 100, bounds.min, bounds.max]
        return values
    wide = random.normal(0, 1, 1000) * 10.0 ** random.uniform(-6, 4, 1000)
    wide[:8] = [0.0, 1.0, 0.5, 1.5, 2.5, 100.0, 0.1, 1e-9]
    if goal.kind in "iu":
        bounds = np.iinfo(goal)
        wide = np.clip(wide, max(bounds.min, -120), min(bounds.max, 120))
    elif goal.kind == "f" or goal == bf16:
        wide[8:14] = [np.inf, -np.inf, -0.0, 65504.0, 65519.0, -1e-7]
    return wide.astype(f32).astype(dtype) if source == bf16 else wide.astype(dtype)


@pytest.mark.parametrize("target", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_convert_is_the_hosts(gpu: Device, dtype: Any, target: Any) -> None:
    """From every element type to every other: rounding, wrapping and cutting are the same, to the bit."""
    array = samples(dtype, target)
    found = []
    for place in (gpu, "host"):
        with use_device(place):
            t = from_host(array).sync()
            found.append(convert(t.borrow(), target).to_host().sync())
            found.append(convert(t.slice(slice(3, None, 3)), target).to_host().sync())
    assert found[0].tobytes() == found[2].tobytes()
    assert found[1].tobytes() == found[3].tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_copies_of_any_layout(gpu: Device, dtype: Any) -> None:
    """`dup`, `memcpy` and `to_host` of slices, of every element size and of up to five axes."""
    array = (np.arange(2 * 6 * 5 * 7 * 4).reshape(2, 6, 5, 7, 4) % 97).astype(dtype)
    t = from_host(array).sync()
    for cut in (
        (slice(None), slice(1, 5)),
        (slice(1), slice(None), slice(None), slice(2, 6)),
        (slice(None), slice(None, None, -2), slice(1, 4), slice(None), slice(None, None, 3)),
        (slice(None),) * 4 + (slice(1, 3),),
        (slice(None, None, -1),) * 5,
    ):
        wanted = array[cut]
        assert dup(t.slice(*cut)).to_host().sync().tobytes() == wanted.tobytes()
        assert t.slice(*cut).to_host().sync().tobytes() == wanted.tobytes()
        target = zeros(wanted.shape, dtype).sync()
        memcpy(target.borrow_mut(), t.slice(*cut)).sync()
        assert target.to_host().sync().tobytes() == wanted.tobytes()
    for strange in (array.T, array[::-1, 1:, ::-2], np.broadcast_to(array[:, :1], array.shape)):
        assert from_host(strange).to_host().sync().tobytes() == np.ascontiguousarray(strange).tobytes()
