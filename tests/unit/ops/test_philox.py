"""Philox 4x32-10 and the random numbers made from it, against known answers and plain Python."""

import math
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu.backends.host import numpy_initializers as philox
from dagpu.common.layout import bf16

DType: TypeAlias = np.dtype[Any]
FLOATS = [np.dtype(t) for t in (np.float16, bf16, np.float32, np.float64)]
BLOCK = philox.BLOCK * 4
"""The most elements that one block can give."""

floats = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**64 - 1)
starts = st.one_of(st.integers(0, 9), st.integers(0, 2**62))

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counter, key, words: philox4x32, 10 rounds, from `kat_vectors` of the Random123 distribution."""


def plain_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One counter in Python's own integers, from the paper: what the vectorised form is held against."""
    w0, w1, w2, w3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * w0, 0xCD9E8D57 * w2
        w0, w1, w2, w3 = p1 >> 32 ^ w1 ^ k0, p1 % 2**32, p0 >> 32 ^ w3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return w0, w1, w2, w3


def plain_block(seed: int, block: int, stream: int) -> tuple[int, int, int, int]:
    """The four words of a block, as `dagpu.ops.initializers.Uniform` and `Normal` number them."""
    return plain_philox((block % 2**32, block // 2**32, 0, stream), (seed % 2**32, seed // 2**32))


def plain_uniform(seed: int, i: int, dtype: DType) -> float:
    """Element i of `Uniform(seed)`, from its docstring."""
    if dtype == np.float64:
        words = plain_block(seed, i // 2, 0)
        j = i % 2
        return float(words[2 * j] + words[2 * j + 1] * 2**32 >> 11) * 2.0**-53
    x = plain_block(seed, i // 4, 0)[i % 4]
    shift, scale = {
        np.dtype(np.float32): (8, 2.0**-24),
        np.dtype(np.float16): (21, 2.0**-11),
        np.dtype(bf16): (24, 2.0**-8),
    }[dtype]
    return (x >> shift) * scale


def plain_normal(seed: int, i: int) -> float:
    """Element i of `Normal(0, 1, seed)` in f64, from its docstring, with the C library's functions."""
    w0, w1, w2, w3 = plain_block(seed, i // 2, 1)
    u = float((w0 + w1 * 2**32 >> 11) + 1) * 2.0**-53
    v = float(w2 + w3 * 2**32 >> 11) * 2.0**-53
    r, t = math.sqrt(-2.0 * math.log(u)), v * 6.283185307179586
    return r * (math.sin(t) if i % 2 else math.cos(t))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    """The function gives the published words for the published counters and keys."""
    found = philox.philox4x32(np.array([counter], np.uint32), np.array(key, np.uint32))
    assert found.dtype == np.uint32
    assert found.tolist() == [list(words)]


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), max_size=5), seeds)
def test_the_vectorised_function_is_the_plain_one(counters: list[tuple[int, ...]], seed: int) -> None:
    """Any number of counters gives what each gives alone in Python's integers."""
    found = philox.philox4x32(np.array(counters, np.uint32).reshape(-1, 4), philox.key_of(seed))
    assert found.tolist() == [list(plain_philox(c, (seed % 2**32, seed // 2**32))) for c in counters]


def test_philox_over_several_chunks() -> None:
    """More counters than one chunk holds give what they give in pieces."""
    counters = np.arange((philox.BLOCK + 3) * 4, dtype=np.uint32).reshape(-1, 4)
    key = philox.key_of(5)
    whole = philox.philox4x32(counters, key)
    pieces = [philox.philox4x32(counters[:7], key), philox.philox4x32(counters[7:], key)]
    assert_array_equal(whole, np.concatenate(pieces))


@given(seeds, starts, st.integers(0, 12), floats)
@example(seed=1, start=2**34 - 3, count=8, dtype=np.dtype(np.float32))  # the counter's second word begins
def test_uniform_is_its_formula(seed: int, start: int, count: int, dtype: DType) -> None:
    """Every element is bit for bit what the recipe's docstring says, wherever one starts."""
    found = philox.uniform(seed, start, count, dtype)
    assert found.dtype == dtype
    assert found.astype(np.float64).tolist() == [plain_uniform(seed, start + k, dtype) for k in range(count)]


@given(seeds, starts, st.integers(0, 12))
def test_normal_is_its_formula(seed: int, start: int, count: int) -> None:
    """In f64 every element is within 8 units in the last place of what another library's functions give."""
    found = philox.normal(seed, start, count, np.dtype(np.float64))
    expected = np.array([plain_normal(seed, start + k) for k in range(count)], np.float64)
    assert np.all(np.abs(found - expected) <= 8 * np.spacing(np.abs(expected)))


@given(seeds, starts, st.integers(1, 12), floats, st.floats(-100, 100), st.floats(0, 100))
def test_normal_is_f64_rounded_at_the_end(
    seed: int, start: int, count: int, dtype: DType, mean: float, std: float
) -> None:
    """Narrower element types are the f64 numbers rounded; mean and std enter in f64 before that."""
    wide = philox.normal(seed, start, count, np.dtype(np.float64), mean, std)
    standard = philox.normal(seed, start, count, np.dtype(np.float64))
    assert_array_equal(wide, mean + std * standard)
    assert_array_equal(philox.normal(seed, start, count, dtype, mean, std), wide.astype(dtype))


@given(seeds, st.integers(0, 2 * BLOCK), st.integers(0, BLOCK + 9), floats, st.booleans())
@example(seed=3, start=BLOCK - 1, count=2, dtype=np.dtype(np.float32), gaussian=False)
@example(seed=3, start=philox.BLOCK * 2 - 1, count=2, dtype=np.dtype(np.float64), gaussian=True)
def test_cutting_does_not_matter(seed: int, start: int, count: int, dtype: DType, gaussian: bool) -> None:
    """A part drawn alone is a slice of the whole, in bits, across the edges of chunks and counters."""
    draw = philox.normal if gaussian else philox.uniform
    assert_array_equal(draw(seed, start, count, dtype), draw(seed, 0, start + count, dtype)[start:])


@given(seeds, starts, floats)
def test_uniform_lies_in_range(seed: int, start: int, dtype: DType) -> None:
    """Every number is at least 0 and less than 1, in each floating type."""
    found = philox.uniform(seed, start, 5000, dtype).astype(np.float64)
    assert found.min() >= 0.0
    assert found.max() < 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_uniform_is_below_one(dtype: DType) -> None:
    """The largest bits there are give the largest number of the type below 1: no rounding up to 1."""
    digits = philox.DIGITS[dtype]
    largest = np.array([2**digits - 1]).astype(np.float64) * 2.0**-digits
    assert float(largest.astype(dtype)[0]) == 1.0 - 2.0**-digits < 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345])
def test_uniform_moments(dtype: DType, seed: int) -> None:
    """Mean, variance, correlation with the next number and tenths are those of the uniform distribution."""
    n = 100_000
    half_a_step = 2.0 ** -(philox.DIGITS[dtype] + 1)  # bits below the significand are cut off, never rounded
    x = philox.uniform(seed, 0, n, dtype).astype(np.float64) + half_a_step
    assert abs(x.mean() - 0.5) < 6 * math.sqrt(1 / 12 / n)
    assert abs(x.var() - 1 / 12) < 6 * math.sqrt(1 / 180 / n) + half_a_step**2
    assert abs(float(np.corrcoef(x[:-1], x[1:])[0, 1])) < 6 / math.sqrt(n)
    counts = np.histogram(x, bins=16, range=(0.0, 1.0))[0]
    assert np.all(np.abs(counts - n / 16) < 6 * math.sqrt(n / 16))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345])
def test_normal_moments(dtype: DType, seed: int) -> None:
    """Mean, variance, skewness, kurtosis, correlation in a pair and two tails are the normal ones."""
    n = 100_000
    x = philox.normal(seed, 0, n, dtype).astype(np.float64)
    coarse = 2.0 ** -philox.DIGITS[dtype]
    assert abs(x.mean()) < 6 / math.sqrt(n)
    assert abs(x.var() - 1) < 6 * math.sqrt(2 / n) + coarse
    assert abs((x**3).mean()) < 6 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 6 * math.sqrt(96 / n) + 12 * coarse
    assert abs(float(np.corrcoef(x[0::2], x[1::2])[0, 1])) < 6 / math.sqrt(n / 2)
    for limit, share in ((1.0, 0.31731050786), (2.0, 0.04550026390)):
        # A coarse type has numbers that are the limit itself: they count half.
        beyond = float((np.abs(x) > limit).mean() + (np.abs(x) == limit).mean() / 2)
        assert abs(beyond - share) < 6 * math.sqrt(share / n) + coarse


def test_seeds_and_kinds_are_independent() -> None:
    """Other seeds give other numbers, whichever half differs; normal numbers share no bits with uniform."""
    seeds = [0, 1, 2**32, 2**32 + 1]
    rows = np.array([philox.uniform(s, 0, 20_000, np.dtype(np.float64)) for s in seeds])
    rows = np.concatenate([rows, philox.normal(0, 0, 20_000, np.dtype(np.float64))[None]])
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 6 / math.sqrt(20_000)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    """A seed outside the 64-bit range is reduced, so that every integer is a seed."""
    dtype = np.dtype(np.float32)
    expected = philox.uniform(2**64 - 1, 0, 8, dtype)
    assert_array_equal(philox.uniform(-1, 0, 8, dtype), expected)
    assert_array_equal(philox.uniform(2**65 - 1, 0, 8, dtype), expected)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_only_floating_types_are_drawn(dtype: type[np.generic]) -> None:
    """Other element types are a TypeError that names the type and the cure."""
    with pytest.raises(TypeError, match=f"type {np.dtype(dtype).name} are not defined.*and convert"):
        philox.uniform(0, 0, 4, np.dtype(dtype))
    with pytest.raises(TypeError, match=f"type {np.dtype(dtype).name} are not defined.*and convert"):
        philox.normal(0, 0, 4, np.dtype(dtype))


def test_normal_beyond_the_range_is_infinite() -> None:
    """Numbers beyond the range of the element type become infinite, without a warning."""
    found = philox.normal(0, 0, 64, np.dtype(np.float16), 0.0, 1e9)
    assert np.isinf(found).any()
    assert not np.isnan(found).any()
