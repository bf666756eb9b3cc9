"""A kernel that is loaded on a device, and the limits of the device on its launches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

GridExtents: TypeAlias = tuple[int, int, int]
"""Extents of a grid or a block: x, y, z."""


def unlimited(_threads: int, _shared: int) -> int:
    """Return a number of blocks that no grid has."""
    return 1 << 63


@final
@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A loaded kernel."""

    handle: Any
    """The handle by which its `Gpu` launches it: for a real GPU the CUfunction, as an integer."""
    max_threads: int
    """The most threads in a block, given the registers that the kernel uses."""
    static_shared: int
    """Bytes of shared memory that the kernel declares itself."""
    registers: int
    allow_shared: Callable[[int], None]
    """Function that allows the kernel this number of bytes of dynamic shared memory. A call is needed above 48 KiB."""
    block: GridExtents | None = None
    """The block dimensions that its compiler has chosen; None if a launch chooses."""
    dynamic_shared: int = 0
    """Bytes of dynamic shared memory that its compiler has chosen, beside those of the launch."""
    resident: Callable[[int, int], int] = unlimited
    """Function that returns how many blocks of so many threads, with so many bytes of dynamic shared memory, are on the
    device at once."""
    variables: tuple[int, ...] = ()
    """The addresses of the variables of its module that were asked for."""
    sizes: tuple[int, ...] = ()
    """The bytes of these variables."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """Limits of a device on a launch (cuDeviceGetAttribute)."""

    threads: int
    block: GridExtents
    grid: GridExtents
    shared: int
    """The most bytes of shared memory for each block, static and dynamic, that a kernel may request."""
    default_shared: int
    """The most bytes of shared memory for each block without a request."""
