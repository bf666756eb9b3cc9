"""The kernel launch, as a node: a kernel call builds it."""

from typing import TYPE_CHECKING, Any, final

from dagpu.common.frozen import frozen
from dagpu.common.origin import Origin
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec


class KernelOp(DeviceOp[Any, Any, Any]):
    """The type of a kernel call for a checker without the plugin. The plugin gives an exact `DeviceOp[tuple[...]]`."""

    __slots__ = ()

    if TYPE_CHECKING:  # other types for the same methods; calling through costs as much as building the op

        def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any, Any, Any], ...]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # reason: any arity
            """One op for each argument of the call, in the form it was put in."""
            return super().unzip(n)

        def first(self) -> DeviceOp[Any, Any, Any]:
            """The first argument of the call, in the form it was put in; the others are dropped."""
            return super().first()


@final
@frozen
class Launch(KernelOp):
    """A kernel call. `args` are handles, ops and numbers, in the order of the kernel's parameters.

    Gives a tuple of all arguments, each in the form it was put in. A handle among them has moved into this op.
    """

    kernel: KernelSpec
    args: tuple[Any, ...]
    origin: Origin
