"""Recipes: the initial contents of new tensors, as plain data, with a formula for every element.

A tensor's elements are numbered in C order: i = 0, 1, ... size - 1 over the whole tensor, independent of its
strides and of any partition. A recipe computes element i from i alone, so any part of a tensor can be written in
any order, on any device. All backends follow the formulas below. Where a formula determines every bit, all
backends produce the same bits.

`f64(x)` is x rounded to the nearest f64, ties to even. `*` and `+` between f64 round once each: a kernel
uses `__dmul_rn` and `__dadd_rn`, because a fused multiply-add would produce other bits. The conversion of an f64
result x to the tensor's element type is called *landing*:

| element type | landing x |
| --- | --- |
| f64 | x |
| f32, f16 | x rounded once, to nearest, ties to even |
| bf16 | x rounded to f32, and the result to bf16, both to nearest, ties to even |
| integers | the largest whole number not above x (Constant: the part before the point, as `numpy.full`) |
| bool | x != 0 |

A finite number that a recipe names (a constant, the ends of a progression, the mean and the deviation of random
numbers) must fit the element type: landing makes no infinity of it. A random number of a `Normal` that is too large is
infinity.
"""

import math
import secrets
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, assert_never, final

import numpy as np

from dagpu.common.errors import ShapeError
from dagpu.common.layout import FLOATING, Shape, part_type

# For a type checker `complex` includes the others, but narrowing by `isinstance` needs all members.
Number: TypeAlias = complex | float | int | bool
Real: TypeAlias = float | int


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """A recipe that sets every element to `value`.

    Integer element types take a whole `value` in their range exactly, also if it is a float. bool takes True, False, 0
    and 1. Floating types land f64(value), that is, convert it to the element type. Complex types, which arrays may have
    but tensors do not, convert `value` as NumPy does. No type but bool takes True or False.

    Equality is Python's: `Constant(0.0) == Constant(-0.0)`, though their bits differ.
    """

    value: Number


@final
@dataclass(frozen=True, slots=True)
class Arange:
    """A recipe for an arithmetic progression: element i = start + i * step.

    With an integer or bool element type `start` and `step` are whole, the elements are exact, and both ends must fit
    the type (bool: 0 and 1). Otherwise they are f64(start) + f64(i) * f64(step), with two roundings, landed (converted
    to the element type).
    """

    start: Real
    step: Real


@final
@dataclass(frozen=True, slots=True)
class Linspace:
    """A recipe for `num` evenly spaced elements from `start` to `stop`, both included, as by `numpy.linspace`.

    With step = (f64(stop) - f64(start)) / f64(num - 1), computed once (one rounding for each operation):
    element i = f64(start) + f64(i) * step, two roundings; the last, i = num - 1, is f64(stop) itself, and a
    single element (num = 1) is f64(start). Results are landed (converted to the element type): for an integer type
    both ends are whole, and what lies between them is rounded down. The tensor's size is `num`. bool is refused.

    In f64 the bits are those of NumPy, except if the step is too small for an f64 and becomes 0: NumPy uses
    another formula then, while here all elements except the last are `start`.
    """

    start: float
    stop: float
    num: int


@final
@dataclass(frozen=True, slots=True)
class Eye:
    """A recipe for ones on the main diagonal: of shape (n, m), element i is 1 if i // m == i % m, else 0."""


@final
@dataclass(frozen=True, slots=True)
class Uniform:
    """A recipe for random numbers in [0, 1), by Philox 4x32-10 (Salmon et al., SC'11), for floating types.

    The key is (seed mod 2**32, seed // 2**32 mod 2**32). Block c has the four 32-bit counter words
    (c mod 2**32, c // 2**32, 0, stream) and produces four 32-bit words w0 w1 w2 w3.

    f32, f16, bf16: element i takes one word x = w[i % 4] of block c = i // 4:
    f32 (x >> 8) * 2**-24; f16 (x >> 21) * 2**-11; bf16 (x >> 24) * 2**-8.
    f64: element i takes two words of block c = i // 2, x = w[2j] + w[2j + 1] * 2**32 with j = i % 2:
    (x >> 11) * 2**-53.

    The number of bits taken is that of the significand, so every product is exact and below 1, on every device.

    `seed` is None if each run has its own seed (`dagpu.plans.program.Fill.seed`). `stream` is one of the streams
    below: recipes of two streams share no bits, also with one seed.
    """

    seed: int | None
    stream: int = 0


@final
@dataclass(frozen=True, slots=True)
class Normal:
    """A recipe for normally distributed random numbers, by Box and Muller (1958), for floating types.

    Key and blocks are those of `Uniform`, of the stream `NORMAL_STREAM`: the counter words are
    (c mod 2**32, c // 2**32, 0, 1). Elements 2c and 2c + 1 come from block c, for every element
    type:

        a = (w0 + w1 * 2**32) >> 11,  u = f64(a + 1) * 2**-53       in (0, 1], exact
        b = (w2 + w3 * 2**32) >> 11,  v = f64(b) * 2**-53           in [0, 1), exact
        r = sqrt(-2 * log(u)),        t = v * 6.283185307179586     at most 8.6; in [0, 2 pi)
        element 2c     = f64(mean) + f64(std) * (r * cos(t))
        element 2c + 1 = f64(mean) + f64(std) * (r * sin(t))

    all in f64, with one rounding for each operation, and landed (converted to the element type) at the end. log,
    cos and sin come from the platform's library; libraries differ by a few units in the last place (ulp). The
    tolerance between backends is 8 ulp of max(abs(mean), abs(element - mean)) for f64, and 1 ulp of the same for
    the other types: f32 needs it for fewer than one element in a million, f16 and bf16 for still fewer. `seed` is
    as for `Uniform`.
    """

    mean: float
    std: float
    seed: int | None


Recipe: TypeAlias = Constant | Arange | Linspace | Eye | Uniform | Normal


SEED_COUNT: Final = 1 << 64
"""The number of different seeds. A seed is taken modulo this."""

# The streams of a seed: the last counter word of Philox. A function that draws has one of its own, so that functions
# with one seed are independent of each other.
UNIFORM_STREAM: Final = 0
NORMAL_STREAM: Final = 1
DROPOUT_STREAM: Final = 2
PERMUTATION_STREAM: Final = 3
FOLD_STREAM: Final = 4
"""That of `fold_in`, which makes seeds of it."""
DRAWN_STREAMS: Final = {"uniform": 5, "randint": 6, "bernoulli": 7, "exponential": 8, "choice": 9}
"""Those of the functions of `dagpu.array` that draw."""


def fresh_seed() -> int:
    """Return a random seed, for an op whose seed the user did not choose."""
    return secrets.randbelow(SEED_COUNT)


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return a recipe for random numbers with this seed; return any other recipe as it is."""
    return replace(recipe, seed=seed) if isinstance(recipe, Uniform | Normal) else recipe


def check_recipe(recipe: Recipe, dtype: "np.dtype[Any]", shape: Shape) -> None:
    """Raise if a recipe cannot initialise a tensor of this element type and shape. Touches no data.

    Raises:
        TypeError: the element type cannot hold the values of the recipe.
        OverflowError: a value is outside the range of the element type.
        ValueError: a parameter must be finite and is not, or `std` is negative.
        ShapeError: the recipe cannot fill this shape (a ValueError too).
    """
    match recipe:
        case Constant(value):
            _check_constant(value, dtype)
        case Arange(start, step):
            _check_real(dtype)
            _check_finite(start=start, step=step)
            last = max(math.prod(shape) - 1, 0)
            if dtype.kind in "biu":
                _check_whole(dtype, start=start, step=step)
                _check_range(int(start), dtype)
                _check_range(int(start) + last * int(step), dtype)
            else:
                _check_landing(float(start), dtype)
                _check_landing(float(start) + float(last) * float(step), dtype)
        case Linspace(start, stop, num):
            _check_real(dtype)
            if dtype.kind == "b":
                raise TypeError("elements of bool: there is none between False and True. Use f32, say.")
            _check_finite(start=start, stop=stop)
            if dtype.kind in "iu":
                _check_whole(dtype, start=start, stop=stop)
            if math.prod(shape) != num:
                raise ShapeError(f"{num} elements for the shape {shape}. Make `num` its size.")
            if math.isinf(float(stop) - float(start)):
                raise OverflowError(f"from {start} to {stop} the difference overflows an f64. Scale it.")
            _check_landing(start, dtype)
            _check_landing(stop, dtype)
        case Eye():
            _check_real(part_type(dtype))
            if len(shape) != 2:
                raise ShapeError(f"the shape is {shape}. Give it a shape (rows, columns).")
        case Uniform():
            _check_floating(dtype)
        case Normal(mean, std, _):
            _check_floating(dtype)
            _check_finite(mean=mean, std=std)
            if std < 0:
                raise ValueError(f"std = {std}. A standard deviation is 0 or more.")
            _check_landing(mean, dtype)
            _check_landing(std, dtype)
        case _:
            assert_never(recipe)


def _check_constant(value: Number, dtype: "np.dtype[Any]") -> None:
    if isinstance(value, bool) and dtype.kind != "b":
        raise TypeError(
            f"fill_value = {value}: elements of {dtype.name} are numbers. Write {int(value)}, or make it a tensor of "
            "bool_."
        )
    if dtype.kind == "c":
        parts = complex(_as_f64("fill_value", value) if isinstance(value, int) else value)
        for part in (parts.real, parts.imag):
            _check_landing(part, np.dtype(f"f{dtype.itemsize // 2}"), dtype)
        return
    _check_real(dtype)
    if isinstance(value, complex):
        raise TypeError(f"fill_value = {value} for elements of {dtype.name}: it is complex. Take `.real` or `.imag`.")
    if dtype.kind in "biu":
        if not isinstance(value, int):
            _check_finite(fill_value=value)
            _check_whole(dtype, fill_value=value)
        _check_range(int(value), dtype)
    else:
        _check_landing(_as_f64("fill_value", value), dtype)


def _check_real(dtype: "np.dtype[Any]") -> None:
    if dtype.kind not in "biu" and dtype not in FLOATING:
        if dtype.names is not None:
            raise TypeError("elements that are structures: make them on the host, from_host(np.zeros(shape, dtype))")
        why = "its numbers are real" if dtype.kind == "c" else "no tensor has that element type"
        raise TypeError(f"elements of {dtype.name}: {why}. Use f32, say.")


def _check_floating(dtype: "np.dtype[Any]") -> None:
    if dtype not in FLOATING:
        raise TypeError(
            f"elements of {dtype.name}: random numbers are fractions. Use f16, bf16, f32 or f64, and convert."
        )


def _check_finite(**parameters: Real) -> None:
    for name, value in parameters.items():
        if not math.isfinite(_as_f64(name, value)):
            raise ValueError(f"{name} = {value}. Give a finite number.")


def _check_whole(dtype: "np.dtype[Any]", **parameters: Real) -> None:
    for name, value in parameters.items():
        if value != int(value):
            are = "True or False" if dtype.kind == "b" else "whole"
            raise TypeError(
                f"{name} = {value}: elements of {dtype.name} are {are}. Use f32, say, or give a whole number."
            )


def _as_f64(name: str, value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        raise OverflowError(f"{name} = {value}: it does not fit an f64. Give a smaller one.") from None


def _check_landing(value: float, dtype: "np.dtype[Any]", named: "np.dtype[Any] | None" = None) -> None:
    """Raise an OverflowError if landing makes infinity of a finite number, or the number is beyond an integer type.
    `named` is the type in the message, if it is another one."""
    if dtype.kind in "iu":
        _check_range(math.floor(value), dtype)
    elif math.isfinite(value):
        with np.errstate(over="ignore"):
            landed = np.float64(value).astype(dtype)
        if np.isinf(landed):
            most = float(np.nextafter(dtype.type(np.inf), dtype.type(0)))
            raise _outside(value, named or dtype, -most, most)


def _check_range(value: int, dtype: "np.dtype[Any]") -> None:
    least, most = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if not least <= value <= most:
        raise _outside(value, dtype, least, most)


def _outside(value: Real, dtype: "np.dtype[Any]", least: Real, most: Real) -> OverflowError:
    return OverflowError(f"{value} is outside the range of {dtype.name}, {least} to {most}. Use a wider type.")
