"""`assert_gradient`: a gradient beside central differences, for tests."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from dagpu.common.layout import f64
from dagpu.common.places import describe, here, leaves_run
from dagpu.grad.gradients import value_and_grad
from dagpu.grad.parameterized import flattened
from dagpu.handles import SharedTensor, Tensor
from dagpu.meshes.values import Replicated
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import from_host

_P = ParamSpec("_P")
_M = TypeVar("_M", bound=Any)

_STEP = 1e-5
"""Near the cube root of the rounding unit of f64, where the errors of rounding and of the difference are alike."""
_EACH = 64
"""The most elements of a leaf that are moved one by one; of a larger leaf as many random directions are tried."""


@leaves_run
def assert_gradient(
    f: Callable[Concatenate[_M, _P], DeviceOp[Tensor[f64] | Replicated[f64], Any]],
    model: _M,
    /,
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> None:
    """For tests: compare the gradient of a function of shared tensors of f64 with central differences.

    It runs the function twice for each element of a leaf, or in 64 random directions of a larger one. `args` are used
    in each run: pass shared tensors and numbers.

    Raises:
        AssertionError: they differ by more than 1e-6 of the larger one, or 1e-7.
        TypeError: a leaf is not of f64.
        GradientError: as for `value_and_grad`.
    """
    where, (leaves, rebuilt) = here(), flattened(model)
    for leaf in leaves:
        if leaf.dtype != np.float64:
            raise TypeError(
                f"assert_gradient at {describe(where)}: a leaf is of {leaf.dtype.name}, too coarse for differences. "
                "Convert it: convert(t, f64)."
            )
    differentiated: Any = value_and_grad  # by leaves of all kinds
    _, gradients = differentiated(f)(model, *args, **kwargs).sync()
    values = [leaf.to_host().sync() for leaf in leaves]
    draws = np.random.default_rng(0)

    def at(number: int, moved: Any) -> float:
        tensors = [*leaves[:number], _tensor(moved), *leaves[number + 1 :]]
        return float(f(rebuilt(tensors), *args, **kwargs).sync().to_host().sync().reshape(()))

    for number, (value, gradient) in enumerate(zip(values, flattened(gradients)[0], strict=True)):
        slope = gradient.to_host().sync()
        for place in range(min(value.size, _EACH)):
            way = np.zeros(value.shape)
            if value.size <= _EACH:
                way.flat[place] = 1
            else:
                way = draws.standard_normal(value.shape) / np.sqrt(value.size)
            expected = (at(number, value + _STEP * way) - at(number, value - _STEP * way)) / (2 * _STEP)
            found = float((slope * way).sum())
            if not abs(found - expected) <= max(1e-6 * max(abs(found), abs(expected)), 1e-7):
                along = f"element {np.unravel_index(place, value.shape)}" if value.size <= _EACH else "a direction"
                raise AssertionError(
                    f"assert_gradient at {describe(where)}: by leaf {number}, {along}, the gradient is {found:.9g}, "
                    f"and the central difference {expected:.9g}."
                )


def _tensor(array: Any) -> SharedTensor[Any]:
    return from_host(np.asarray(array)).sync().share()
