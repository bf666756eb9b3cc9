"""Functions with random numbers by Philox, the same on every device."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.element_functions import log1p, where
from dagpu.arrays.gathering import take
from dagpu.arrays.reductions import checked_input
from dagpu.arrays.sorting import argsort, topk
from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    as_shape,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    scalar_dtype,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, check_flag, format_value
from dagpu.handles import Tensor
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.generated_launch import AnyOp, array_call, refused_call, refused_type, with_layouts
from dagpu.kernels.operations import DOMAINS, register_dtype
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc, Seed, check_seed, with_seed
from dagpu.ops.initializers import DRAWN_STREAMS, DROPOUT_STREAM, PERMUTATION_STREAM, Uniform

_F32: Final = np.dtype(f32)

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_Float = TypeVar("_Float", f16, bf16, f32, f64, default=f32)
_Whole = TypeVar("_Whole", i8, i16, i32, i64, u8, u16, u32, u64, default=i64)
_Any = TypeVar("_Any", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)


@leaves_run
def permutation(n: int, *, seed: Seed | None = None) -> DeviceOp[Tensor[i64], Any]:
    """Return the numbers from 0 to n - 1 in random order, as i64 of shape (n,).

    They are sorted by keys of f64, which Philox draws as for `rand`, in a stream of `permutation`'s own: one seed gives
    the same order on every device and in every run. Two of these keys are equal with a probability of about
    `n ** 2 / 2 ** 54`; then the smaller number comes first.

    Args:
        n: the count.
        seed: as for `rand`: without one, each run draws another order. An argument of a pipeline varies it without
            another plan.

    Raises:
        ShapeError: n is negative, or the seed is not a whole number.
    """
    count, origin = as_whole_number(n), here()
    if count is None or count < 0:
        raise ShapeError(
            f"permutation at {describe(origin)}: n is {format_value(n)}, but it counts elements. Give a whole number "
            "of 0 or more."
        )
    keys = (count,), np.dtype(f64)

    def build(chosen: int | None) -> AnyOp:
        return Alloc(*keys, Uniform(chosen, PERMUTATION_STREAM), origin)

    return argsort(with_seed(seed, "permutation", build, origin))


@leaves_run
def dropout(x: In[_Float], p: float, *, seed: Seed | None = None) -> DeviceOp[Tensor[_Float], Any]:
    """Return x with a share p of its elements set to 0, and the others divided by 1 - p, of its shape and type.

    Philox draws a number of f32 for each element, as for `rand`, in a stream of `dropout`'s own; an element whose
    number is below p is set to 0. So one seed drops the same elements on every device and in every run, and the bits
    are the same everywhere. f16 and bf16 are divided in f32.

    Args:
        x: a tensor, or an op whose result is one.
        p: the probability, from 0 to 1. An argument of a pipeline varies it without another plan.
        seed: as for `rand`: without one, each run drops other elements.

    Raises:
        KernelArgumentError: x is not a tensor of floats, or p is not such a number.
        ShapeError: the seed is not a whole number.
    """
    origin = here()
    given = seed if isinstance(seed, DeviceOp) else check_seed(seed, "dropout", origin)

    def check_range(given: Any) -> None:
        # To compare an argument of a pipeline would fix its value in the plan.
        if type(given) is not SymbolicNumber and isinstance(given, float | int | np.floating) and not 0 <= given <= 1:
            raise refused_call("dropout", origin, f"p is {format_value(given)}", "Give a probability, from 0 to 1")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = layouts[0]
        if layout is None:
            raise refused_call("dropout", origin, "x is a number", "Pass a tensor: full((1,), x), say")
        if layouts[1] is not None:
            raise refused_call("dropout", origin, "p is a tensor", "Give a probability, from 0 to 1")
        check_range(arguments[1])
        if layout.dtype not in DOMAINS["float"]:
            raise refused_type("dropout", origin, layout.dtype)
        chances = with_seed(
            given, "dropout", lambda chosen: Alloc(layout.shape, _F32, Uniform(chosen, DROPOUT_STREAM), origin), origin
        )
        return _kept(layout.dtype).build((arguments[0], chances, arguments[1]), origin)

    check_range(p)
    return array_call("dropout", ("x", "p"), (x, p), build, origin)


@cache
def _kept(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of the elements that are kept, of this type."""
    wide = register_dtype(dtype)

    def kept(x: Elem[Any], chance: Elem[Any], p: Elem[Any]) -> Elem[Any]:
        divided = x.to(wide.type) / (1 - p)
        return where(chance.to(wide.type) >= p, divided, 0.0).to(dtype.type)

    traced = trace_expression(kept, (dtype, _F32, wide))
    return Expression(traced._replace(name="dropout"), (dropout.__code__, 0))


# ---- distributions
#
# Numbers of other distributions are made of uniform ones in one launch. Bounds, scales and probabilities are arguments
# of its kernel.


@leaves_run
def uniform(
    shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    dtype: type[_Float] = f32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    seed: Seed | None = None,
) -> DeviceOp[Tensor[_Float], Any]:
    """Create a tensor of uniform random numbers from `low` to `high`: `low + (high - low) * u`, of u in [0, 1).

    f16 and bf16 are computed in f32 and rounded once, and any of these numbers may be rounded to `high`. The bits are
    the same on every device.

    Args:
        shape: extents in elements.
        low: the lower bound. An argument of a pipeline varies it without another plan.
        high: the upper bound.
        dtype: f16, bf16, f32 or f64.
        seed: as for `dagpu.rand`, in a stream of its own: without one, each run draws other numbers.

    Raises:
        KernelArgumentError: a bound is not a number, or `dtype` is not a floating type.
        ShapeError: the shape or the seed is not valid.
    """
    return _drawn("uniform", shape, dtype, seed, (low, high))


@leaves_run
def exponential(
    shape: Shape,
    scale: float = 1.0,
    dtype: type[_Float] = f32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    seed: Seed | None = None,
) -> DeviceOp[Tensor[_Float], Any]:
    """Create a tensor of random numbers of the exponential distribution: `-log1p(-u) * scale`, of u in [0, 1).

    They are within 2 ulp on every device. Other arguments and errors are those of `uniform`.

    Args:
        shape: extents in elements.
        scale: the mean.
        dtype: f16, bf16, f32 or f64.
        seed: as for `dagpu.rand`, in a stream of its own.
    """
    return _drawn("exponential", shape, dtype, seed, (scale,))


@leaves_run
def bernoulli(shape: Shape, p: float = 0.5, *, seed: Seed | None = None) -> DeviceOp[Tensor[bool_], Any]:
    """Create a tensor of bools that are true with the probability `p`: where a number of f32 in [0, 1) is below it.

    Arguments and errors are those of `uniform`.
    """
    return _drawn("bernoulli", shape, f32, seed, (p,))


@leaves_run
def randint(
    shape: Shape,
    low: int,
    high: int,
    dtype: type[_Whole] = i64,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    seed: Seed | None = None,
) -> DeviceOp[Tensor[_Whole], Any]:
    """Create a tensor of random whole numbers from `low` to `high - 1`.

    They are `low + floor((high - low) * u)`, of u in [0, 1) with 53 bits: with up to 2**32 numbers, the probabilities
    of two differ by less than one part in two million. The bits are the same on every device.

    Args:
        shape: extents in elements.
        low: the smallest number.
        high: one more than the largest number; at most `low + 2**32`.
        dtype: an integer type that has all of them.
        seed: as for `dagpu.rand`, in a stream of its own: without one, each run draws other numbers.

    Raises:
        KernelArgumentError: `dtype` is not an integer type.
        ShapeError: a bound is not a whole number, they are too far apart, in the wrong order, or not in the type; or
            the shape or the seed is not valid.
    """
    return _integers("randint", shape, low, high, dtype, seed, here())


@leaves_run
def choice(x: In[_Any], count: int, *, replace: bool = True, seed: Seed | None = None) -> DeviceOp[Tensor[_Any], Any]:
    """Return some rows of `x` by chance, each with the same probability: a tensor of the shape `(count, *x.shape[1:])`.

    Args:
        x: a tensor with one axis at least, or an op whose result is one.
        count: the number of rows, 0 or more.
        replace: True if a row may be chosen several times. Otherwise random keys are sorted, as for `permutation`.
        seed: as for `dagpu.rand`, in a stream of its own: without one, each run chooses others.

    Raises:
        KernelArgumentError: `x` is a number.
        ShapeError: `x` has no rows to choose from, `count` is no count, or is larger than their number without
            `replace`.
        TypeError: `replace` is not True or False.
    """
    origin = here()
    again, wanted = check_flag(replace, "choice", origin, "replace"), as_whole_number(count)
    if wanted is None or wanted < 0:
        raise ShapeError(
            f"choice at {describe(origin)}: count is {format_value(count)}, but it counts rows. Give a whole number of "
            "0 or more."
        )
    given = seed if isinstance(seed, DeviceOp) else check_seed(seed, "choice", origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input("choice", layouts[0], "any", origin)
        rows = layout.shape[0] if layout.shape else 0
        if wanted and (not rows or (wanted > rows and not again)):
            raise ShapeError(
                f"choice at {describe(origin)}: {wanted} rows are wanted, but x has {rows}. Give a count up to that, "
                "or choose rows again: replace=True."
            )
        if again:
            places = _integers("choice", (wanted,), 0, max(1, rows), i64, given, origin)
        else:
            keys = with_seed(given, "choice", lambda chosen: _uniform("choice", (rows,), f64, chosen, origin), origin)
            places = topk(keys, wanted).map(_places)
        return take(arguments[0], places)

    return array_call("choice", ("x",), (x,), build, origin)


def _places(largest: tuple[Any, Any]) -> Any:
    """Return the places of the largest elements. An op of `unzip` would run once alone."""
    return largest[1]


def _uniform(name: str, shape: Shape, dtype: Any, seed: int | None, origin: Origin) -> AnyOp:
    """Return the op of uniform numbers in the stream of a function."""
    return Alloc(shape, np.dtype(dtype), Uniform(seed, DRAWN_STREAMS[name]), origin)


def _drawn(name: str, shape: object, dtype: Any, seed: Any, numbers: tuple[Any, ...]) -> AnyOp:
    """Return the op of numbers of a distribution, which is made of uniform ones and of these numbers."""
    origin = here()
    element = scalar_dtype(dtype)
    if element not in DOMAINS["float"] or element is None:
        what = f"dtype is {format_value(dtype)}"
        raise refused_call(name, origin, what, f"Pass a floating type: array.{name}((3,), dtype=f32), say")
    try:
        extents = as_shape(shape)
    except ShapeError as error:
        raise add_call_place(name, origin, error) from None
    wide, expression = register_dtype(element), _distribution(name, element)
    source = with_seed(seed, name, lambda chosen: _uniform(name, extents, wide, chosen, origin), origin)
    return with_layouts(
        name,
        (source, *numbers),
        partial(expression.check, origin=origin),
        lambda arguments, _: expression.build(arguments, origin),
        origin,
        f"array.{name}",
    )


@cache
def _distribution(name: str, dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of a distribution, of uniform numbers."""
    wide = register_dtype(dtype)

    def uniform_between(u: Elem[Any], low: Elem[Any], high: Elem[Any]) -> Elem[Any]:
        return (low + (high - low) * u).to(dtype.type)

    def exponential_of(u: Elem[Any], scale: Elem[Any]) -> Elem[Any]:
        return (-log1p(-u) * scale).to(dtype.type)

    def bernoulli_of(u: Elem[Any], p: Elem[Any]) -> Elem[Any]:
        return u < p

    functions: dict[str, tuple[Callable[..., Any], int]] = {
        "uniform": (uniform_between, 3),
        "exponential": (exponential_of, 2),
        "bernoulli": (bernoulli_of, 2),
    }
    function, count = functions[name]
    traced = trace_expression(function, (wide,) * count)
    return Expression(traced.named(name), (_drawn.__code__, 0))


def _integers(name: str, shape: object, low: object, high: object, dtype: Any, seed: Any, origin: Origin) -> AnyOp:
    """Return the op of random whole numbers."""
    element = scalar_dtype(dtype)
    if element is None or element not in DOMAINS["int"]:
        what = f"dtype is {format_value(dtype)}"
        raise refused_call(name, origin, what, f"Pass an integer type: array.{name}((3,), 0, 9, i32), say")
    first, end = as_whole_number(low), as_whole_number(high)
    bounds = np.iinfo(element)
    if first is None or end is None or not bounds.min <= first < end <= int(bounds.max) + 1 or end - first > 2**32:
        raise ShapeError(
            f"{name} at {describe(origin)}: from {format_value(low)} to {format_value(high)} there are no whole "
            f"numbers of {element.name}, or more than 2**32. Give the smallest, and one more than the largest: 0, 9, "
            "say."
        )
    try:
        extents = as_shape(shape)
    except ShapeError as error:
        raise add_call_place(name, origin, error) from None
    source = with_seed(seed, name, lambda chosen: _uniform(name, extents, f64, chosen, origin), origin)
    expression = _whole_numbers(element)
    return with_layouts(
        name,
        (source, float(end - first), first),
        partial(expression.check, origin=origin),
        lambda arguments, _: expression.build(arguments, origin),
        origin,
        f"array.{name}",
    )


@cache
def _whole_numbers(dtype: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of whole numbers, of uniform ones of f64."""

    def whole(u: Elem[Any], count: Elem[Any], first: Elem[Any]) -> Elem[Any]:
        return (u * count).to(i64).to(dtype.type) + first

    traced = trace_expression(whole, (np.dtype(f64), np.dtype(f64), dtype))
    return Expression(traced.named("randint"), (randint.__code__, 0))
