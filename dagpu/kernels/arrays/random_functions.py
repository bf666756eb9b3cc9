"""`permutation` and `dropout`: functions with random numbers by Philox, the same on every device."""

from functools import cache
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import bf16, f16, f32, f64, i64
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.element_functions import where
from dagpu.kernels.arrays.sorting.sorted_rows import argsort
from dagpu.kernels.expressions.element import Elem
from dagpu.kernels.expressions.expression import Expression
from dagpu.kernels.expressions.operations.element_operations import DOMAINS
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.expressions.traced_expression import trace_expression
from dagpu.kernels.generated.generated_launch import AnyOp, array_call, refused_call, refused_type
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import DROPOUT_STREAM, PERMUTATION_STREAM, Uniform
from dagpu.ops.seeds import Seed, check_seed, with_seed

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_F = TypeVar("_F", f16, bf16, f32, f64)

_F32: Final = np.dtype(np.float32)


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
def dropout(x: In[_F], p: float, *, seed: Seed | None = None) -> DeviceOp[Tensor[_F], Any]:
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
