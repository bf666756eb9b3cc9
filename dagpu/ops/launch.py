"""`Launch`, the node that a kernel call builds."""

from typing import TYPE_CHECKING, Any, final

from dagpu.common.frozen import frozen
from dagpu.common.places import Origin
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec


class KernelOp(DeviceOp[Any, Any, Any]):
    """The type of a kernel call for a type checker without the plugin. With it, the type is `DeviceOp[tuple[...]]`."""

    __slots__ = ()

    if TYPE_CHECKING:  # other types for the same methods; real overrides would cost as much as building the op

        def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any, Any, Any], ...]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # reason: any arity
            """Return one op for each argument of the call, in the form in which it was passed."""
            return super().unzip(n)

        def first(self) -> DeviceOp[Any, Any, Any]:
            """Return an op for the first argument, in the form in which it was passed; the others are dropped."""
            return super().first()


@final
@frozen
class Launch(KernelOp):
    """A kernel call. `args` are handles, ops and numbers, in the order of the kernel's parameters.

    The result is a tuple of all arguments, each in the form in which it was passed. Handles among them have moved into
    this op.
    """

    kernel: KernelSpec
    args: tuple[Any, ...]
    origin: Origin
