"""Memory of the host's devices, and arrays over it."""

from typing import Any, Final, final

import numpy as np

from dagpu.backends.host.streams import process
from dagpu.layout import Layout

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""


@final
class Account:
    """How many bytes the `HostMemory` objects of one device hold."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


@final
class HostMemory:
    """A block of memory. It is freed, and counted off, when the last reference to it goes.

    Raises:
        MemoryError: there is too little of it.
    """

    __slots__ = ("__weakref__", "_account", "block", "nbytes")

    def __init__(self, account: Account, nbytes: int) -> None:
        self.nbytes = 0  # what __del__ counts off if what comes next fails
        self._account = account
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (ValueError, OverflowError) as error:  # more than an array's size can say
            raise MemoryError(str(error)) from None
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        self.block: Final = raw[start : start + nbytes]
        """The bytes, as an array that views are made over."""
        with process.tally:
            account.used += nbytes
            self.nbytes = nbytes

    def __del__(self) -> None:
        if self.nbytes:
            with process.tally:
                self._account.used -= self.nbytes

    def __repr__(self) -> str:
        return f"<HostMemory of {self.nbytes} bytes>"


def writable(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """The array that `layout` describes in a `HostMemory`."""
    assert isinstance(memory, HostMemory), f"{memory!r} is no memory of the host backend"
    return np.ndarray(layout.shape, layout.dtype, memory.block, layout.offset, layout.strides)


def readable(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """The same, read-only."""
    array = writable(memory, layout)
    array.setflags(write=False)
    return array
