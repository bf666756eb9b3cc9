"""`ReducedExpression`: an expression whose elements are reduced, or normalised, in the kernel that computes them."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, ParamSpec, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.pickling import PickledByName
from dagpu.common.slot import Slot
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.compiling import compile_ahead
from dagpu.kernels.expressions.element import Elem
from dagpu.kernels.generated.element_errors import REDUCE, refuse_call_in_expression
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec

_P = ParamSpec("_P")
_R = TypeVar("_R", bound=np.generic)

ROW: Final = 1024
"""The elements of a row in the kernel that `cuda` and `compile` of a reduced expression are about."""


class FusedCall(NamedTuple):
    """A reduction of an expression, or its softmax: the function of `dagpu.array` by its name, and its arguments."""

    expression: Any
    name: str
    axis: object
    keepdims: bool

    @property
    def label(self) -> str:
        """The name in messages."""
        return f"{self.name} of {self.expression.traced.title}"


class FusedFunction(NamedTuple):
    """A function of `dagpu.array` that takes the elements of an expression while they are computed.

    `accepts(name, dtype)` is true if it takes elements of a type, `build(call, arguments, origin)` returns the op of a
    call, and `kernel_of_rows(expression, name)` its kernel for contiguous matrices with rows of `ROW` elements.
    """

    accepts: Callable[[str, "np.dtype[Any]"], bool]
    build: Callable[[FusedCall, tuple[Any, ...], Origin], Any]
    kernel_of_rows: Callable[[Any, str], KernelSpec]


FUSED: Final = Slot[Mapping[str, FusedFunction]]("dagpu.kernels.arrays.reducing.fused_reductions")
"""The functions by their names."""


@final
class ReducedExpression(PickledByName, Generic[_P, _R]):
    """An expression whose elements are reduced over some axes, from `expression.sum(axis)` and its like, or normalised
    along one, from `expression.softmax(axis)`.

    A call takes the arguments of the expression and builds an op. The kernel that computes the elements reduces them,
    so they are never in memory. The bits are those of the function of the expression's result.
    """

    def __init__(self, expression: Any, name: str, axis: object, keepdims: object, origin: Origin) -> None:
        self._call = FusedCall(expression, name, axis, check_flag(keepdims, name, origin, "keepdims"))
        self.__signature__: Final = expression.traced.signature
        dtype = expression.traced.dtype
        if not FUSED.value[name].accepts(name, dtype):
            raise KernelArgumentError(
                f"{self._call.label} at {describe(origin)}: it does not take elements of {dtype.name}. Convert the "
                "result of the expression: .to(f32), say."
            )

    @leaves_run
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[Tensor[_R], Any]:
        """Return an op whose result is a new tensor. Owned tensors among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the expression.
            MovedError: a handle has been moved before.
            ShapeError: the shapes do not broadcast, there is no such axis, or no element along it to choose.
        """
        call = self._call
        given = call.expression.by_position(args, kwargs)
        if any(isinstance(arg, Elem) for arg in given):
            refuse_call_in_expression(call.label, here(), REDUCE)
        op: DeviceOp[Tensor[_R], Any] = FUSED.value[call.name].build(call, given, here())
        return op

    @leaves_run
    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel of `cuda` now, for the GPU that is here or for an architecture by its name, as
        `Kernel.compile` does."""
        compile_ahead(self._kernel_of_rows, arch, here())

    @property
    def cuda(self) -> str:
        """The CUDA text of the first kernel for contiguous matrices of one shape, whose rows of 1,024 elements are
        reduced.

        The kernels for other shapes, axes and arguments differ from it in the order of their walk. The text of an
        element is the same in all of them.
        """
        return self._kernel_of_rows.cuda

    @property
    def _kernel_of_rows(self) -> KernelSpec:
        call = self._call
        return FUSED.value[call.name].kernel_of_rows(call.expression, call.name)

    def __repr__(self) -> str:
        return f"<{self._call.name} over {self._call.axis} of {self._call.expression!r}>"
