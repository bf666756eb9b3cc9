"""The kernel launch: what a kernel is, as data, and the node that calling one builds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

from dagpu.frozen import frozen
from dagpu.ops.base import DeviceOp
from dagpu.origin import Origin


@final
@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel, as its Python signature and its CUDA signature agree on it."""

    name: str
    form: Literal["in", "out", "scalar"]
    dtype: "np.dtype[Any] | None"
    """Element type of an `In` or `Out`, which the CUDA signature gives to a generic kernel; None for a scalar."""
    rank: int | None
    """Rank that the CUDA signature declares; None where it declares none (`abi="pointers"`)."""
    check: Callable[[object], object] | None
    """For a scalar: holds a value against the declared C type; gives back what is passed, or raises."""
    lazy: bool
    """May a scalar be an op?"""


@final
@dataclass(slots=True, eq=False)
class HostBody:
    """What the host backend runs. Set once, by `@kernel.host`, after the kernel has been declared."""

    function: Callable[..., None] | None = None
    whole: bool = False
    """Called once with whole outputs, not once for each tile?"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """All that is known of a kernel; `kernel.grid(...)` and the like make a changed copy."""

    name: str
    params: tuple[Param, ...]
    cuda: str
    """CUDA C++ source text."""
    source_name: str
    """File of that text, for the compiler's messages; `file.py:12` for a text inside a Python file."""
    abi: Literal["views", "pointers"]
    block: tuple[int, ...] | None
    options: tuple[str, ...]
    checked: bool
    origin: Origin
    host: HostBody = field(default_factory=HostBody)
    grid: tuple[int, ...] | None = None
    shared_bytes: int = 0


class KernelOp(DeviceOp[Any, Any, Any]):
    """What a kernel call is to a checker without the plugin; with it, an exact `DeviceOp[tuple[...]]`."""

    __slots__ = ()

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
