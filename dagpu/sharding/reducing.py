"""Element-wise reductions of tensors on one device, in a fixed order: the kernels of the collectives."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from operator import add, mul
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from dagpu.common.errors import MeshError
from dagpu.common.origin import Origin, describe
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.kernels.arrays.element_functions import maximum, minimum
from dagpu.kernels.expressions.expression import Expression
from dagpu.kernels.expressions.traced_expression import trace_expression
from dagpu.ops.compose import Map, Then
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.sharding.assembling import AnyOp

Reduction: TypeAlias = Literal["sum", "max", "min", "prod", "mean"]
"""How the summands of `Partials` are combined."""

REDUCTIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": add, "max": maximum, "min": minimum, "prod": mul, "mean": add,
}  # fmt: skip

_MOST: Final = 8
"""The most tensors that one kernel reads. The bits do not depend on it: each operation rounds."""


def check_reduction(how: Any, call: str, where: Origin) -> None:
    """Check the name of a reduction.

    Raises:
        ValueError: there is no such reduction.
    """
    if not isinstance(how, str) or how not in REDUCTIONS:
        names = ", ".join(map(repr, REDUCTIONS))
        raise wrong_argument(call, where, "how", how, f"one of {names}", "Leave it out for a sum", ValueError)


def check_element(how: str, dtype: "np.dtype[Any]", call: str, where: Origin) -> None:
    """Check that elements of this type can be reduced so.

    Raises:
        MeshError: they cannot.
    """
    wrong = None
    if dtype.kind in "bc":
        wrong = f"elements of {dtype.name} have no {how} here"
    elif how == "mean" and dtype.kind in "iu":
        wrong = f"the mean of elements of {dtype.name} is no such element"
    if wrong is not None:
        cure = "Reduce them as f32: let the function of each convert(t, f32)"
        raise MeshError(f"{call} at {describe(where)}: {wrong}. {cure}.")


def reduced(how: str, tensors: Sequence[Any], where: Origin) -> AnyOp:
    """Return an op whose result is a new tensor: the tensors combined from left to right.

    It is placed on a device, which reads the memory of those where the tensors are.
    """
    count, dtype = len(tensors), tensors[0].dtype
    first = _combine(how, dtype, min(count, _MOST), count if count <= _MOST else 0)
    op = _reading_peers(first.build(tuple(tensors[:_MOST]), where))
    for start in range(_MOST, count, _MOST - 1):
        more = tuple(tensors[start : start + _MOST - 1])
        last = start + len(more) == count
        further = _combine(how, dtype, len(more) + 1, count if last else 0)
        op = Then(op, _Further(further, more, where), where)
    return op


class _Further:
    """Combines what is reduced so far with further tensors."""

    def __init__(self, further: Expression[..., Any], more: tuple[Any, ...], where: Origin) -> None:
        self._further, self._more, self._where = further, more, where

    def __call__(self, so_far: Any) -> AnyOp:
        return _reading_peers(self._further.build((so_far, *self._more), self._where))


def _reading_peers(op: AnyOp) -> AnyOp:
    """Return the op of a call of an expression, for inputs that are on several devices."""
    if isinstance(op, Map):
        return Map(_reading_peers(op.source), op.f, op.origin)
    assert isinstance(op, Launch), "the layouts of the arguments are known"
    return Launch(_peer_kernel(op.kernel), op.args, op.origin)


@lru_cache(256)
def _peer_kernel(kernel: KernelSpec) -> KernelSpec:
    """Return the kernel for inputs on several devices. Its output takes the memory of none of them."""
    return replace(kernel, peers=True, in_place=False)


@lru_cache(256)
def _combine(how: str, dtype: "np.dtype[Any]", count: int, divisor: int) -> Expression[..., Any]:
    """Return the expression that combines this number of tensors, and for a mean divides by `divisor`, unless it is
    0."""
    combine = REDUCTIONS[how]

    def combined(*elements: Any) -> Any:
        whole = reduce(combine, elements)
        return whole / divisor if how == "mean" and divisor else whole

    combined.__name__ = f"{how}_of_{count}"
    names = [inspect.Parameter(f"x{number}", inspect.Parameter.POSITIONAL_ONLY) for number in range(count)]
    vars(combined)["__signature__"] = inspect.Signature(names)
    return Expression(trace_expression(combined, (dtype,) * count), (combined.__code__, 0))
