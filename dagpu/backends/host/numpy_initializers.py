"""Initializes NumPy arrays on the host, by the formulas of `dagpu.ops.initializers`.

Random numbers are made by Philox 4x32-10. Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC'11. Philox is a keyed bijection of a 128-bit counter. It has no state: element i
depends only on the seed and on i, so all devices agree, regardless of how they split the work.
`dagpu.ops.initializers.Uniform` and `Normal` define how counters become elements.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from dagpu.common.layout import bf16
from dagpu.ops.initializers import (
    NORMAL_STREAM,
    UNIFORM_STREAM,
    Arange,
    Constant,
    Eye,
    Linspace,
    Normal,
    Number,
    Real,
    Recipe,
    Uniform,
    check_recipe,
)

# ---- Philox
#
# Counters are processed in blocks of `BLOCK`, in place, in about a megabyte of scratch memory. At this size the scratch
# stays in a core's own cache, and NumPy's cost for each call is negligible. The calls release the GIL. Words are paired
# by viewing memory, which requires a little-endian machine. All machines that run CUDA are little-endian.


BLOCK: Final = 16384
"""Number of counters in each block: 64 Ki elements of f32. Half and four times this number were a quarter slower."""

ROUNDS: Final = 10

DIGITS: Final[dict[np.dtype[Any], int]] = {
    np.dtype(np.float16): 11,
    np.dtype(bf16): 8,
    np.dtype(np.float32): 24,
    np.dtype(np.float64): 53,
}
"""Number of bits of a significand, including the hidden bit. A number below 1 is made from as many random bits."""

_U64 = np.uint64
_WORD = (1 << 32) - 1
_LOW = _U64(_WORD)
_HALF = _U64(32)
_TO_53_BITS = _U64(11)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def key_of(seed: int) -> NDArray[np.uint32]:
    """Return the key, of shape (2,): the low and the high 32 bits of `seed` modulo 2**64."""
    return np.array([seed & _WORD, seed >> 32 & _WORD], dtype=np.uint32)


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Apply Philox 4x32-10 to counters of shape (n, 4) with one key of shape (2,). Return words of shape (n, 4)."""
    keys = _round_keys(key)
    words = np.empty((len(counter), 4), dtype=np.uint32)
    for at in range(0, len(counter), BLOCK):
        part = counter[at : at + BLOCK]
        even = np.array([part[:, 0], part[:, 2]], dtype=np.uint64)
        odd = np.array([part[:, 1], part[:, 3]], dtype=np.uint64)
        _rounds(even, odd, np.empty_like(even), keys)
        block = words[at : at + BLOCK]
        block[:, 0], block[:, 2] = even
        block[:, 1], block[:, 3] = odd
    return words


def uniform(seed: int, start: int, count: int, dtype: "np.dtype[Any]", stream: int = UNIFORM_STREAM) -> NDArray[Any]:
    """Return elements start, ..., start + count - 1 of `Uniform(seed, stream)`, shape (count,).

    Raises:
        TypeError: `dtype` is not a floating type.
    """
    out = np.empty(count, dtype)
    fill_uniform(seed, start, out, stream)
    return out


def normal(
    seed: int, start: int, count: int, dtype: "np.dtype[Any]", mean: float = 0.0, std: float = 1.0
) -> NDArray[Any]:
    """Return elements start, ..., start + count - 1 of `Normal(mean, std, seed)`, shape (count,).

    Raises:
        TypeError: `dtype` is not a floating type.
    """
    out = np.empty(count, dtype)
    fill_normal(seed, start, out, mean, std)
    return out


def fill_uniform(seed: int, start: int, out: NDArray[Any], stream: int = UNIFORM_STREAM) -> None:
    """Write elements start, start + 1, ... of `Uniform(seed, stream)` into `out`, of shape (count,)."""
    digits = _digits(out.dtype)
    wide = out.dtype == np.float64
    lanes = 2 if wide else 4
    unsigned: type[np.unsignedinteger[Any]] = np.uint64 if wide else np.uint32
    # View them as signed numbers, which they fit: the hardware converts those to floats in one instruction.
    signed: type[np.signedinteger[Any]] = np.int64 if wide else np.int32
    excess = unsigned((64 if wide else 32) - digits)
    scale = np.float64(2.0**-digits) if wide else np.float32(2.0**-digits)
    first, stop = _counters(start, len(out), lanes)
    words = np.empty((min(BLOCK, stop - first), 2), dtype=np.uint64)
    for at, pairs in _blocks(seed, stream, first, stop):
        block = words[: pairs.shape[1]]
        block[:, 0], block[:, 1] = pairs
        bits = block.reshape(-1).view(unsigned)
        np.right_shift(bits, excess, out=bits)
        to, take = _overlap(at * lanes, len(bits), start, len(out))
        numbers = bits.view(signed)[take]
        if digits < 24:  # f16, bf16: NumPy multiplies them one by one in software; f32 holds the product too
            np.copyto(out[to], numbers.astype(np.float32) * scale, casting="same_kind")
        else:
            part = out[to]
            np.copyto(part, numbers, casting="unsafe")
            np.multiply(part, scale, out=part)


def fill_normal(seed: int, start: int, out: NDArray[Any], mean: float = 0.0, std: float = 1.0) -> None:
    """Write elements start, start + 1, ... of `Normal(mean, std, seed)` into `out`, of shape (count,)."""
    _digits(out.dtype)
    first, stop = _counters(start, len(out), 2)
    size = min(BLOCK, stop - first)
    fractions, wave, drawn = np.empty((2, size)), np.empty(size), np.empty((size, 2))
    with np.errstate(over="ignore"):  # numbers beyond the element type's range become infinity, as documented
        for at, pairs in _blocks(seed, NORMAL_STREAM, first, stop):
            n = pairs.shape[1]
            np.right_shift(pairs, _TO_53_BITS, out=pairs)
            np.add(pairs[0], _U64(1), out=pairs[0])
            u, v, w, z = fractions[0, :n], fractions[1, :n], wave[:n], drawn[:n]
            np.multiply(pairs[0].view(np.int64), 2.0**-53, out=u)
            np.multiply(pairs[1].view(np.int64), 2.0**-53, out=v)
            _box_muller(u, v, w, z)
            np.multiply(z, float(std), out=z)
            np.add(z, float(mean), out=z)
            to, take = _overlap(2 * at, 2 * n, start, len(out))
            np.copyto(out[to], z.reshape(-1)[take], casting="unsafe")


def _box_muller(
    u: NDArray[np.float64], v: NDArray[np.float64], wave: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Transform `u` in (0, 1] and `v` in [0, 1) to normal numbers in `out`; shapes (n,), (n,), (n, 2).

    The contents of `u`, `v` and `wave` are destroyed. The functions of the math library get only contiguous arguments,
    because NumPy's code for strided ones gives different bits.
    """
    np.log(u, out=u)
    np.multiply(u, -2.0, out=u)
    np.sqrt(u, out=u)
    np.multiply(v, 2.0 * math.pi, out=v)
    np.cos(v, out=wave)
    np.multiply(u, wave, out=out[:, 0])
    np.sin(v, out=wave)
    np.multiply(u, wave, out=out[:, 1])


def _digits(dtype: "np.dtype[Any]") -> int:
    digits = DIGITS.get(dtype)
    if digits is None:
        raise TypeError(
            f"random numbers of type {dtype.name} are not defined. Draw f16, bf16, f32 or f64, and convert."
        )
    return digits


def _counters(start: int, count: int, lanes: int) -> tuple[int, int]:
    """Return the first counter needed and the one after the last, at `lanes` elements for each counter."""
    first = start // lanes
    return first, max(first, -(-(start + count) // lanes))


def _overlap(base: int, size: int, start: int, count: int) -> tuple[slice, slice]:
    """Intersect elements base to base + size with an output that begins at `start`.

    Return the slice of the output, and the slice of those elements.
    """
    low, high = max(base, start), min(base + size, start + count)
    return slice(low - start, high - start), slice(low - base, high - base)


def _blocks(seed: int, stream: int, first: int, stop: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Iterate over the words of counters `first` to `stop` in chunks: the first counter, and an array of shape (2, n).

    Row 0 has w0 + w1 * 2**32 of each counter, row 1 has w2 + w3 * 2**32. The array is scratch memory: the consumer may
    write to it, and the next step overwrites it.
    """
    keys = _round_keys(key_of(seed))
    size = min(BLOCK, stop - first)
    scratch = np.empty((3, 2 * size), dtype=np.uint64)
    offsets = np.arange(size, dtype=np.uint64)
    for at in range(first, stop, BLOCK):
        n = min(BLOCK, stop - at)
        # Views of the flat scratch memory, so that a short last block is contiguous too.
        even, odd, product = (scratch[k, : 2 * n].reshape(2, n) for k in range(3))
        np.add(offsets[:n], _U64(at), out=even[0])
        np.right_shift(even[0], _HALF, out=odd[0])
        np.bitwise_and(even[0], _LOW, out=even[0])
        even[1] = 0
        odd[1] = stream
        _rounds(even, odd, product, keys)
        np.left_shift(odd, _HALF, out=odd)
        np.bitwise_or(even, odd, out=even)
        yield at, even


def _round_keys(key: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the key of each round, shape (ROUNDS, 2, 1). Each half is a Weyl sequence modulo 2**32."""
    low, high = int(key[0]), int(key[1])
    keys = [(low + r * _WEYL[0] & _WORD, high + r * _WEYL[1] & _WORD) for r in range(ROUNDS)]
    return np.array(keys, dtype=np.uint64).reshape(ROUNDS, 2, 1)


def _rounds(
    even: NDArray[np.uint64], odd: NDArray[np.uint64], product: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> None:
    """Do all rounds in place. The rows of `even` are words 0 and 2, those of `odd` words 1 and 3; each (2, n), < 2**32.

    With p0 = M0 * w0 and p1 = M1 * w2, a round is
    (w0, w1, w2, w3) = (high p1 ^ w1 ^ k0, low p1, high p0 ^ w3 ^ k1, low p0).
    Both halves are processed in one call: this takes five calls a round, and one call a word would take ten.
    """
    crossed = product[::-1]
    for key in keys:
        np.multiply(even, _MULTIPLIERS, out=product)
        np.right_shift(crossed, _HALF, out=even)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_xor(even, key, out=even)
        np.bitwise_and(crossed, _LOW, out=odd)


# ---- recipes


CHUNK: Final = 1 << 16
"""Number of elements computed at a time. It bounds the scratch memory for arrays of any size."""

_Part: TypeAlias = Callable[[int, NDArray[Any]], None]
"""Writes elements start, start + 1, ... into an array of shape (count,)."""


def write(recipe: Recipe, out: NDArray[Any]) -> None:
    """Write every element of `out`, which may have any shape and strides. Elements are numbered in C order.

    Raises:
        TypeError: the element type cannot represent the recipe (see `dagpu.ops.initializers.check_recipe`). Nothing has
            been written.
    """
    check_recipe(recipe, out.dtype, out.shape)
    match recipe:
        case Constant(value):
            write_constant(value, out)
        case Arange(start, step):
            _write_arange(start, step, out)
        case Linspace(start, stop, num):
            _write_linspace(float(start), float(stop), num, out)
        case Eye():
            out[...] = 0
            diagonal = np.arange(min(out.shape))
            out[diagonal, diagonal] = 1
        case Uniform(int(seed), stream):
            _fill_in_chunks(out, lambda first, part: fill_uniform(seed, first, part, stream), whole=True)
        case Normal(mean, std, int(seed)):
            _fill_in_chunks(out, lambda first, part: fill_normal(seed, first, part, mean, std), whole=True)
        case Uniform() | Normal():
            raise AssertionError(f"{recipe} has no seed yet")
        case _:
            assert_never(recipe)


def write_constant(value: Number, out: NDArray[Any]) -> None:
    """Write one number, which fits the element type, to every element of `out`."""
    kind = out.dtype.kind
    if kind == "c" or isinstance(value, complex):
        out[...] = value
    elif kind in "biu":
        out[...] = int(value)
    else:
        # Convert through f64 in all cases: from a whole number NumPy might go through int64, which rounds differently.
        with np.errstate(over="ignore"):
            out[...] = np.float64(value).astype(out.dtype)


def _write_arange(start: Real, step: Real, out: NDArray[Any]) -> None:
    if out.dtype.kind in "biu":
        # Compute modulo 2**64. All elements fit the type, as was checked, so the low bits are the number.
        modulus = 1 << 64
        first_bits, step_bits = np.uint64(int(start) % modulus), np.uint64(int(step) % modulus)

        def whole(first: int, part: NDArray[Any]) -> None:
            bits = np.arange(first, first + len(part), dtype=np.uint64)
            np.multiply(bits, step_bits, out=bits)
            np.add(bits, first_bits, out=bits)
            np.copyto(part, bits, casting="unsafe")

        _fill_in_chunks(out, whole)
        return

    def fractions(first: int, part: NDArray[Any]) -> None:
        _round_into(_affine(float(start), float(step), first, len(part)), part)

    _fill_in_chunks(out, fractions)


def _write_linspace(start: float, stop: float, num: int, out: NDArray[Any]) -> None:
    step = (stop - start) / float(num - 1) if num > 1 else 0.0

    def fractions(first: int, part: NDArray[Any]) -> None:
        values = _affine(start, step, first, len(part))
        if num > 1 and first + len(part) == num:
            values[-1] = stop
        _round_into(values, part)

    _fill_in_chunks(out, fractions)


def _affine(start: float, step: float, first: int, count: int) -> NDArray[np.float64]:
    """Return elements first, first + 1, ... of start + i * step in f64, shape (count,)."""
    with np.errstate(over="ignore"):
        values = np.arange(first, first + count, dtype=np.int64).astype(np.float64)
        np.multiply(values, step, out=values)
        np.add(values, start, out=values)
    return values


def _round_into(values: NDArray[np.float64], part: NDArray[Any]) -> None:
    """Round `values` to the element type of `part`, and store them there. The contents of `values` are destroyed."""
    if part.dtype.kind in "iu":
        np.floor(values, out=values)
    with np.errstate(over="ignore"):
        np.copyto(part, values, casting="unsafe")


def _fill_in_chunks(out: NDArray[Any], fill: _Part, *, whole: bool = False) -> None:
    """Call `fill` for every chunk of `out` in C order, through scratch memory if `out` is not contiguous in C order.

    With `whole`, `fill` bounds its own scratch memory, and a contiguous `out` is filled in one call.
    """
    if out.flags.c_contiguous:
        flat = out.reshape(-1)
        size = max(out.size, 1) if whole else CHUNK
        for at in range(0, out.size, size):
            fill(at, flat[at : at + size])
        return
    scratch = np.empty(min(CHUNK, out.size), out.dtype)
    for at in range(0, out.size, CHUNK):
        part = scratch[: min(CHUNK, out.size - at)]
        fill(at, part)
        out.flat[at : at + len(part)] = part
