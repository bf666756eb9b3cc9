"""Memory of host devices, and NumPy arrays that view it."""

import ctypes
import sys
from operator import index
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike

from dagpu.common.critical import BOOKKEEPING, Bookkeeping, ReferenceQueue
from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import Layout, Shape
from dagpu.ops.kernel_spec import KernelSpec

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""


@final
class Account:
    """Counts the bytes of the live `HostMemory` objects of one device."""

    __slots__ = ("_freed", "_used")

    def __init__(self) -> None:
        self._used = 0
        self._freed: ReferenceQueue[int] = ReferenceQueue()
        """Sizes of the objects that are freed and still counted."""

    @property
    def used(self) -> int:
        """Number of bytes in use."""
        with Bookkeeping():
            self._count_off()
            return self._used

    def add(self, memory: "HostMemory", nbytes: int) -> None:
        """Count `nbytes` as long as `memory` lives."""
        with BOOKKEEPING:
            self._count_off()
            self._used += nbytes
            self._freed.watch(memory, nbytes)

    def _count_off(self) -> None:
        freed = self._freed
        while freed.gone:
            self._used -= freed.pop()


@final
class HostMemory:
    """A block of memory. It is freed, and no longer counted, when the last reference to it is dropped.

    Raises:
        MemoryError: there is too little memory.
    """

    __slots__ = ("__weakref__", "block", "nbytes")

    def __init__(self, account: Account, nbytes: int) -> None:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (ValueError, OverflowError) as error:  # larger than an array can be
            raise MemoryError(str(error)) from None
        # It takes a quarter of the time of `__array_interface__`.
        start = -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % ALIGNMENT
        self.block = raw[start : start + nbytes]
        """The bytes, as the array that other arrays view."""
        self.nbytes = nbytes
        account.add(self, nbytes)

    @classmethod
    def over(cls, block: "np.ndarray[Any, np.dtype[np.uint8]]") -> "HostMemory":
        """Return these bytes, which another library owns, as a block of memory. No account counts them."""
        made = cls.__new__(cls)
        made.block = block
        made.nbytes = block.nbytes
        return made

    def __repr__(self) -> str:
        return f"<HostMemory of {self.nbytes} bytes>"


NO_MEMORY: Final = HostMemory.over(np.empty(0, np.uint8))
"""A block without bytes."""


@final
class MemoryOfOthers(ctypes.Structure):
    """Memory of others, as the base of the arrays over it, which keeps its owner alive. The arrays know how long it is:
    one type serves all lengths, because ctypes takes a microsecond to make another."""

    _fields_ = (("memory", ctypes.c_char * sys.maxsize),)
    owner: object


def array_at(
    start: int, shape: Shape, dtype: DTypeLike, strides: Shape, owner: object, *, offset: int = 0,
    read_only: bool = False,
) -> "np.ndarray[Any, np.dtype[Any]]":  # fmt: skip
    """Return the array whose first element is `offset` bytes behind the address `start` of its memory. It keeps `owner`
    alive, as do all views of it. Nothing is read."""
    memory = MemoryOfOthers.from_address(start or ALIGNMENT)  # an array at 0 has no elements
    memory.owner = owner
    buffer: Any = memory  # NumPy's stubs name a few types, and it takes any buffer
    made: np.ndarray[Any, np.dtype[Any]] = np.ndarray(shape, dtype, buffer, offset, strides)
    if read_only:
        made.flags.writeable = False
    return made


def bytes_at(address: int, nbytes: int, owner: object) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return the bytes at an address as an array. It keeps `owner` alive, as do all views of it."""
    return array_at(address, (nbytes,), np.uint8, (1,), owner)


@final
class ArenaRange:
    """A range of an arena, occupied by a buffer for a time. It still contains the data of the buffers before."""

    __slots__ = ("block",)

    def __init__(self, arena: HostMemory, offset: int, nbytes: int) -> None:
        self.block: Final = arena.block[offset : offset + nbytes]

    def __repr__(self) -> str:
        return f"<ArenaRange of {self.block.nbytes} bytes>"


_MEMORY: Final = (HostMemory, ArenaRange)


def writable_array(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the array that `layout` describes in a `HostMemory` or an `ArenaRange`."""
    assert isinstance(memory, _MEMORY), f"{memory!r} is not memory of the host backend"
    return np.ndarray(layout.shape, layout.dtype, memory.block, layout.offset, layout.strides)


def readonly_array(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the read-only array that `layout` describes in a `HostMemory` or an `ArenaRange`."""
    array = writable_array(memory, layout)
    array.setflags(write=False)
    return array


@final
class Input(np.ndarray[Any, np.dtype[Any]]):
    """The array that a host body gets for an input: read-only, and refusing slices beyond its end.

    NumPy would silently shorten such a slice and broadcast the rest: a wrong result on the host, and an access out of
    bounds on a GPU. Slices of it and results computed from it are plain arrays. A view of another shape (`x.T`,
    `x.reshape(...)`) is sliced by NumPy's rules.
    """

    __slots__ = ("_kernel", "_plain", "_position")
    _kernel: KernelSpec
    _position: int
    _plain: "np.ndarray[Any, np.dtype[Any]]"

    def __getitem__(self, key: Any) -> Any:
        """Return `x[key]`, as a plain array or scalar.

        Raises:
            KernelBoundsError: a slice stops beyond the end of its axis.
        """
        try:
            plain = self._plain
        except AttributeError:  # NumPy created this array from another one, without setting the slots
            return self.view(np.ndarray)[key]
        axis, shape = 0, plain.shape
        for part in key if type(key) is tuple else (key,):
            if type(part) is slice:
                stop = part.stop
                if stop is not None and axis < len(shape) and index(stop) > shape[axis]:
                    raise self._beyond(part, axis)
            elif part is None:
                continue  # a new axis: it uses up none of the array's own
            elif not isinstance(part, int | np.integer):
                break  # an ellipsis or an array: axes after it are counted differently
            axis += 1
        return plain[key]

    def _beyond(self, part: "slice[Any, Any, Any]", axis: int) -> KernelBoundsError:
        shape, name = self._plain.shape, self._kernel.params[self._position].name
        start = 0 if part.start is None else part.start
        return KernelBoundsError(
            f"kernel {self._kernel.name!r}, input {name!r} of shape {shape}: the slice {start}:{part.stop} along axis "
            f"{axis} goes beyond its {shape[axis]} elements. Give the kernel an input that covers the output, or cut "
            f"the slice in its host body: min({part.stop}, {name}.shape[{axis}])."
        )

    def __array_wrap__(
        self, array: "np.ndarray[Any, Any]", context: object = None, return_scalar: bool = True, /
    ) -> Any:
        """Return the result of a ufunc as a plain array or scalar. (NumPy 1 does not pass `return_scalar`.)"""
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


def input_array(memory: object, layout: Layout, kernel: KernelSpec, position: int) -> Input:
    """Return the array that `layout` describes in the memory, as the kernel's argument at `position`."""
    plain = readonly_array(memory, layout)
    array = plain.view(Input)
    array._kernel, array._position, array._plain = kernel, position, plain  # noqa: SLF001  # NumPy makes views
    return array
