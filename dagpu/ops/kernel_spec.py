"""`KernelSpec`, the declaration of a kernel as data: its parameters, CUDA source and host body."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.origin import Origin
from dagpu.handles.device_handles import LibraryBody
from dagpu.ops.python_kernel import PythonKernel

AxisSight: TypeAlias = tuple[int, int, int]
"""What a tile sees along an axis of an input: an axis of the first output, and the elements that it also sees before
and after its own extent along that axis."""


@final
@plain
class Sight:
    """What a tile of a kernel's output sees of one input."""

    axes: tuple[AxisSight | None, ...]
    """For each axis of the input; None for all of it."""
    declared: str
    """The declaration, for messages."""


@final
@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel, from its Python signature and its CUDA signature."""

    name: str
    form: Literal["in", "out", "scalar"]
    dtype: "np.dtype[Any] | None"
    """Element type of an `In` or `Out`; that of a generic kernel is in its CUDA signature. None for a scalar."""
    rank: int | None
    """Rank that the CUDA signature declares; None if it declares none (`abi="pointers"`)."""
    check: Callable[[object], object] | None
    """For a scalar: checks a value against the declared C type. Returns the value to pass, or raises."""
    lazy: bool
    """True for a scalar that may be an op."""


@final
@dataclass(slots=True, eq=False)
class HostBody:
    """The Python body of a kernel, for the host backend. `@kernel.host` sets it once, after the declaration."""

    function: Callable[..., None] | None = None
    whole: bool = False
    """True if the body is called once with whole outputs; false if it is called once for each tile."""


@final
@plain
class Indexed:
    """An input of a kernel whose elements are indices of another tensor. The caller, and not the kernel, is to blame
    for an index beyond that tensor."""

    name: str
    """The name of the input."""
    axis: int
    """The axis of the other tensor along which the indices count."""


@final
class IndexBeyond(Exception):
    """Raised by the host body of an indexed kernel: an index is beyond its axis."""

    def __init__(self, index: int, extent: int) -> None:
        super().__init__(f"index {index} of an axis with {extent} elements")
        self.index = index
        self.extent = extent


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """The declaration of a kernel. `kernel.grid(...)` and similar methods make a changed copy."""

    name: str
    params: tuple[Param, ...]
    cuda: str
    """The CUDA C++ source text."""
    source_name: str
    """File name of the source text, for the compiler's messages; `file.py:12` for a text inside a Python file."""
    abi: Literal["views", "pointers"]
    block: tuple[int, ...] | None
    options: tuple[str, ...]
    checked: bool
    origin: Origin
    host: HostBody = field(default_factory=HostBody)
    grid: tuple[int, ...] | None = None
    shared_bytes: int = 0
    in_place: bool = False
    """True if an output may reuse the memory of an input of equal shape and element size that is not read later."""
    early_reads: tuple[int, ...] | None = None
    """Indices in `params` of the inputs that the kernel reads before it waits for the kernel before it in a graph; None
    if it does not wait, and so must start when that kernel is over."""
    sees: tuple[Sight | None, ...] | None = None
    """For each parameter what a tile sees of it, None for everything; None if nothing is declared."""
    indexed: Indexed | None = None
    """The input with indices of another tensor, if an index may be beyond it."""
    library: LibraryBody | None = None
    """The functions of a library that do the work on a CUDA device, in place of CUDA source text. Such a kernel writes
    whole outputs."""
    python: PythonKernel | None = None
    """The kernel in Python that another library compiles, in place of CUDA source text."""
    tensors: tuple[tuple[int, Param], ...] = field(init=False, repr=False)
    """The parameters that are tensors, with their indices in `params`."""
    lazy: tuple[tuple[int, Callable[[object], object]], ...] = field(init=False, repr=False)
    """Indices of the scalars in `params` that may be ops, with their checks."""
    open_places: tuple[int, ...] = field(init=False, repr=False)
    """Indices of the parameters in `params` that take an op or a handle."""

    def __post_init__(self) -> None:
        params = list(enumerate(self.params))
        tensors = [(i, param) for i, param in params if param.form != "scalar"]
        lazy = [(i, param.check) for i, param in params if param.lazy and param.check is not None]
        object.__setattr__(self, "tensors", tuple(tensors))
        object.__setattr__(self, "lazy", tuple(lazy))
        object.__setattr__(self, "open_places", tuple([i for i, p in params if p.form != "scalar" or p.lazy]))
