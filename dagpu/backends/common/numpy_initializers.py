"""Initializes NumPy arrays on the host, by the formulas of `dagpu.ops.initializers`."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.philox import fill_normal, fill_uniform
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Number, Real, Recipe, Uniform, check_recipe

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
