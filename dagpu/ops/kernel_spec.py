"""A kernel, as data: its parameters, its CUDA source and its host body."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

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
