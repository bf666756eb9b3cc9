"""`ReducedExpression`: an expression whose elements are reduced in the kernel that computes them."""

from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.slot import Slot
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.ops.base import DeviceOp

_P = ParamSpec("_P")
_R = TypeVar("_R", bound=np.generic)

REDUCE: Final = Slot[Callable[[Any, str, object, bool, tuple[Any, ...], Origin], Any]](
    "dagpu.kernels.arrays.fused_reductions"
)
"""Builds the op of a reduction of an expression: `(expression, name, axis, keepdims, arguments, origin)`."""
ACCEPTS: Final = Slot[Callable[[str, "np.dtype[Any]"], bool]]("dagpu.kernels.arrays.fused_reductions")
"""True if a reduction takes elements of a type."""


@final
class ReducedExpression(Generic[_P, _R]):
    """An expression whose elements are reduced over some axes, from `expression.sum(axis)` and its like.

    A call takes the arguments of the expression and builds an op. The kernel that computes the elements reduces them,
    so they are never in memory. The bits are those of the reduction of the expression's result.
    """

    def __init__(self, expression: Any, name: str, axis: object, keepdims: object, origin: Origin) -> None:
        self._expression = expression
        self._name = name
        self._axis = axis
        self._keepdims = check_flag(keepdims, name, origin, "keepdims")
        dtype = expression.traced.dtype
        if not ACCEPTS.value(name, dtype):
            raise KernelArgumentError(
                f"{name} of expression {expression.traced.name!r} at {describe(origin)}: it does not take elements of "
                f"{dtype.name}. Convert the result of the expression: .to(f32), say."
            )

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[Tensor[_R], Any]:
        """Return an op whose result is a new tensor. Owned tensors among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the expression.
            MovedError: a handle has been moved before.
            ShapeError: the shapes do not broadcast, there is no such axis, or no element along it to choose.
        """
        given = self._expression.by_position(args, kwargs)
        op: DeviceOp[Tensor[_R], Any] = REDUCE.value(
            self._expression, self._name, self._axis, self._keepdims, given, here()
        )
        return op

    def __repr__(self) -> str:
        return f"<{self._name} over {self._axis} of {self._expression!r}>"
