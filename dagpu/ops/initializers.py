"""Recipes: what the creation ops write, as plain data, and the formula for every element.

A tensor's elements are numbered in C order: i = 0, 1, ... size - 1 over the whole tensor, whatever its
strides and however it is cut up. A recipe gives element i from i alone, so any part of a tensor can be
written in any order, on any device. All backends follow the formulas below; what they leave no freedom in is
bit for bit the same everywhere.

`f64(x)` is x rounded to the nearest f64, ties to even. `*` and `+` between f64 round once each: a kernel
writes `__dmul_rn` and `__dadd_rn`, since a fused multiply-add would give other bits. The step from an f64
result x to the tensor's element type is called *landing*:

| element type | landing x |
| --- | --- |
| f64 | x |
| f32, f16 | x rounded once, to nearest, ties to even; infinity where it is too large |
| bf16 | x rounded to f32, then from there to bf16, both to nearest, ties to even |
| integers | the largest whole number not above x (Constant: the part before the point, as `numpy.full`) |
| bool | x != 0 |
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, assert_never, final

import numpy as np

from dagpu.common.dtypes import FLOATING, Shape
from dagpu.common.errors import ShapeError

# Spelt out, though `complex` says it all to a checker: narrowing by `isinstance` needs the members.
Number: TypeAlias = complex | float | int | bool
Real: TypeAlias = float | int


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """Every element is `value`.

    Integer element types take a whole `value` exactly and of a float the part before the point; bool is
    `value != 0`; floating types land f64(value); complex types, which tensors do not have but arrays may,
    take `value` as NumPy does.

    Equality is Python's: `Constant(0.0) == Constant(-0.0)`, though their bits differ.
    """

    value: Number


@final
@dataclass(frozen=True, slots=True)
class Arange:
    """Element i = start + i * step.

    With whole `start` and `step` and an integer or bool element type: exact, and both ends must fit the type
    (bool: modulo 2**64, then != 0). Otherwise f64(start) + f64(i) * f64(step), two roundings, landed.
    """

    start: Real
    step: Real


@final
@dataclass(frozen=True, slots=True)
class Linspace:
    """`num` evenly spaced elements from `start` to `stop`, both included, as `numpy.linspace`.

    With step = (f64(stop) - f64(start)) / f64(num - 1), computed once (one rounding for each operation):
    element i = f64(start) + f64(i) * step, two roundings; the last, i = num - 1, is f64(stop) itself, and a
    sole element (num = 1) is f64(start). Landed. The tensor's size is `num`.

    In f64 these are NumPy's bits, save where the step is too small for an f64 and becomes 0: NumPy then takes
    another formula, while here all elements but the last are `start`.
    """

    start: float
    stop: float
    num: int


@final
@dataclass(frozen=True, slots=True)
class Eye:
    """In a tensor of shape (n, m), element i is 1 where i // m == i % m (its row is its column), else 0."""


@final
@dataclass(frozen=True, slots=True)
class Uniform:
    """Random numbers in [0, 1), from Philox 4x32-10 (Salmon et al., SC'11). Floating element types only.

    The key is (seed mod 2**32, seed // 2**32 mod 2**32). Block c has the four 32-bit counter words
    (c mod 2**32, c // 2**32, 0, 0) and gives four 32-bit words w0 w1 w2 w3.

    f32, f16, bf16: element i takes one word x = w[i % 4] of block c = i // 4:
    f32 (x >> 8) * 2**-24; f16 (x >> 21) * 2**-11; bf16 (x >> 24) * 2**-8.
    f64: element i takes two words of block c = i // 2, x = w[2j] + w[2j + 1] * 2**32 with j = i % 2:
    (x >> 11) * 2**-53.

    As many bits are taken as the significand holds, so every product is exact and below 1, on every device.

    `seed` is None where each run brings its own (`dagpu.lowering.program.Fill.seed`).
    """

    seed: int | None


@final
@dataclass(frozen=True, slots=True)
class Normal:
    """Random numbers of the normal distribution, by Box and Muller (1958). Floating element types only.

    Key and blocks as for `Uniform`, but with the counter words (c mod 2**32, c // 2**32, 0, 1): with one
    seed, `Normal` and `Uniform` share no bits. Elements 2c and 2c + 1 come from block c, for every element
    type:

        a = (w0 + w1 * 2**32) >> 11,  u = f64(a + 1) * 2**-53       in (0, 1], exact
        b = (w2 + w3 * 2**32) >> 11,  v = f64(b) * 2**-53           in [0, 1), exact
        r = sqrt(-2 * log(u)),        t = v * 6.283185307179586     at most 8.6; in [0, 2 pi)
        element 2c     = f64(mean) + f64(std) * (r * cos(t))
        element 2c + 1 = f64(mean) + f64(std) * (r * sin(t))

    all in f64, one rounding for each operation, and landed at the end. log, cos and sin are the library's,
    which differ between libraries by a few units in the last place (ulp). Tolerance between backends: f64 8
    ulp of max(abs(mean), abs(element - mean)); the other types 1 ulp of the same, which f32 needs for fewer
    than one element in a million, f16 and bf16 more seldom still. `seed` is as for `Uniform`.
    """

    mean: float
    std: float
    seed: int | None


Recipe: TypeAlias = Constant | Arange | Linspace | Eye | Uniform | Normal


SEEDS: Final = 1 << 64
"""How many there are."""


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """A recipe for random numbers, with a seed; any other as it is."""
    return replace(recipe, seed=seed) if isinstance(recipe, Uniform | Normal) else recipe


def check(recipe: Recipe, dtype: "np.dtype[Any]", shape: Shape) -> None:
    """Refuse a recipe that means nothing for a tensor of this element type and shape. Touches no data.

    Raises:
        TypeError: the element type cannot hold what the recipe gives.
        OverflowError: a value lies outside the element type's range.
        ValueError: a parameter is not finite where it must be, or `std` is negative.
        ShapeError: the shape is not one that the recipe fills (a ValueError too).
    """
    match recipe:
        case Constant(value):
            _check_constant(value, dtype)
        case Arange(start, step):
            _check_real(dtype, "Arange")
            _check_finite("Arange", start=start, step=step)
            last = max(math.prod(shape) - 1, 0)
            if dtype.kind in "iu" and isinstance(start, int) and isinstance(step, int):
                _check_range(start, dtype)
                _check_range(start + last * step, dtype)
            elif dtype.kind in "iu":
                _check_range(_floor(float(start)), dtype)
                _check_range(_floor(float(start) + float(last) * float(step)), dtype)
        case Linspace(start, stop, num):
            _check_real(dtype, "Linspace")
            _check_finite("Linspace", start=start, stop=stop)
            if math.prod(shape) != num:
                raise ShapeError(f"Linspace of {num} elements into shape {shape}. Make `num` its size.")
            if math.isinf(float(stop) - float(start)):
                raise OverflowError(f"Linspace from {start} to {stop}: the distance is not an f64. Scale it.")
            if dtype.kind in "iu":
                _check_range(math.floor(start), dtype)
                _check_range(math.floor(stop), dtype)
        case Eye():
            _check_real(dtype, "Eye")
            if len(shape) != 2:
                raise ShapeError(f"Eye into shape {shape}. Give it a shape (rows, columns).")
        case Uniform():
            _check_floating(dtype, "Uniform")
        case Normal(mean, std, _):
            _check_floating(dtype, "Normal")
            _check_finite("Normal", mean=mean, std=std)
            if std < 0:
                raise ValueError(f"Normal with std = {std}. A standard deviation is 0 or more.")
        case _:
            assert_never(recipe)


def _check_constant(value: Number, dtype: "np.dtype[Any]") -> None:
    if dtype.kind == "c":
        return
    _check_real(dtype, "Constant")
    if isinstance(value, complex):
        raise TypeError(f"Constant {value} into {dtype.name}: it is complex. Take `.real` or `.imag`.")
    if dtype.kind in "iu":
        _check_finite("Constant", value=value)
        _check_range(math.trunc(value), dtype)
    elif dtype.kind != "b":
        _to_f64("Constant", "value", value)


def _check_real(dtype: "np.dtype[Any]", what: str) -> None:
    if dtype.kind not in "biu" and dtype not in FLOATING:
        raise TypeError(f"{what} into {dtype.name}: no tensor has that element type. Use f32, say.")


def _check_floating(dtype: "np.dtype[Any]", what: str) -> None:
    if dtype not in FLOATING:
        raise TypeError(
            f"{what} into {dtype.name}: random numbers are fractions. Use f16, bf16, f32 or f64, and convert."
        )


def _check_finite(what: str, **parameters: Real) -> None:
    for name, value in parameters.items():
        if isinstance(value, int) and what == "Constant":
            continue  # an integer type is held against the exact value instead
        if not math.isfinite(_to_f64(what, name, value)):
            raise ValueError(f"{what} with {name} = {value}. Give a finite number.")


def _to_f64(what: str, name: str, value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        raise OverflowError(f"{what} with {name} = {value}: it has no f64. Give a smaller one.") from None


def _floor(x: float) -> int:
    if not math.isfinite(x):
        raise OverflowError("Arange runs out of the range of an f64. Use fewer elements or a smaller step.")
    return math.floor(x)


def _check_range(value: int, dtype: "np.dtype[Any]") -> None:
    bounds = np.iinfo(dtype)
    if not int(bounds.min) <= value <= int(bounds.max):
        raise OverflowError(
            f"{value} is outside the range of {dtype.name}, {bounds.min} to {bounds.max}. Use a wider type."
        )
