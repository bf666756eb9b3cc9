"""The kernel launch: what a kernel is, as data, and the node that calling one builds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final

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
    in_place: bool = False
    """May an output take the memory of an input of its shape and element size that nobody reads any more?"""
    tensors: tuple[tuple[int, Param], ...] = field(init=False, repr=False)
    """The parameters that are tensors, with their places: of `params`, picked out once."""
    lazy: tuple[tuple[int, Callable[[object], object]], ...] = field(init=False, repr=False)
    """The places of the scalars that an op may yield, with their checks; likewise."""
    open_places: tuple[int, ...] = field(init=False, repr=False)
    """The places where an op or a handle may stand; likewise."""

    def __post_init__(self) -> None:
        params = list(enumerate(self.params))
        tensors = [(i, param) for i, param in params if param.form != "scalar"]
        lazy = [(i, param.check) for i, param in params if param.lazy and param.check is not None]
        object.__setattr__(self, "tensors", tuple(tensors))
        object.__setattr__(self, "lazy", tuple(lazy))
        object.__setattr__(self, "open_places", tuple([i for i, p in params if p.form != "scalar" or p.lazy]))


class KernelOp(DeviceOp[Any, Any, Any]):
    """What a kernel call is to a checker without the plugin; with it, an exact `DeviceOp[tuple[...]]`."""

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
