"""Memory of the host's devices, and arrays over it."""

from operator import index
from typing import Any, Final, final

import numpy as np

from dagpu.common.critical import BOOKKEEPING, Bookkeeping
from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import Layout
from dagpu.common.reference_queue import ReferenceQueue
from dagpu.ops.kernel_spec import KernelSpec

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""


@final
class Account:
    """How many bytes the `HostMemory` objects of one device hold."""

    __slots__ = ("_freed", "_used")

    def __init__(self) -> None:
        self._used = 0
        self._freed: ReferenceQueue[int] = ReferenceQueue()
        """The sizes of those that are gone and still counted."""

    @property
    def used(self) -> int:
        """Bytes."""
        with Bookkeeping():
            self._count_off()
            return self._used

    def add(self, memory: "HostMemory", nbytes: int) -> None:
        """Count this one, as long as it lives."""
        with BOOKKEEPING:
            self._count_off()
            self._used += nbytes
            self._freed.watch(memory, nbytes)

    def _count_off(self) -> None:
        while self._freed:
            self._used -= self._freed.pop()


@final
class HostMemory:
    """A block of memory. It is freed, and counted off, when the last reference to it goes.

    Raises:
        MemoryError: there is too little of it.
    """

    __slots__ = ("__weakref__", "block", "nbytes")

    def __init__(self, account: Account, nbytes: int) -> None:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (ValueError, OverflowError) as error:  # more than an array's size can say
            raise MemoryError(str(error)) from None
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        self.block: Final = raw[start : start + nbytes]
        """The bytes, as an array that views are made over."""
        self.nbytes = nbytes
        account.add(self, nbytes)

    def __repr__(self) -> str:
        return f"<HostMemory of {self.nbytes} bytes>"


@final
class Part:
    """Bytes of an arena, in which a buffer lies for a while. What is left there by others is still there."""

    __slots__ = ("block",)

    def __init__(self, arena: HostMemory, offset: int, nbytes: int) -> None:
        self.block: Final = arena.block[offset : offset + nbytes]

    def __repr__(self) -> str:
        return f"<Part of {self.block.nbytes} bytes>"


def writable(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """The array that `layout` describes in a `HostMemory`, or in a part of one."""
    assert isinstance(memory, HostMemory | Part), f"{memory!r} is no memory of the host backend"
    return np.ndarray(layout.shape, layout.dtype, memory.block, layout.offset, layout.strides)


def readable(memory: object, layout: Layout) -> "np.ndarray[Any, np.dtype[Any]]":
    """The same, read-only."""
    array = writable(memory, layout)
    array.setflags(write=False)
    return array


@final
class Input(np.ndarray[Any, np.dtype[Any]]):
    """What a host body is given for an input: a read-only array that refuses slices beyond its end.

    NumPy would shorten such a slice without a word, and broadcast what is left: a wrong result here, an access out of
    bounds on a GPU. What is cut out of it or computed from it is a plain array; a view of another shape (`x.T`,
    `x.reshape(...)`) slices by NumPy's rules.
    """

    __slots__ = ("_kernel", "_plain", "_position")
    _kernel: KernelSpec
    _position: int
    _plain: "np.ndarray[Any, np.dtype[Any]]"

    def __getitem__(self, key: Any) -> Any:
        """`x[key]`.

        Raises:
            KernelBoundsError: a slice stops beyond the end of its axis.
        """
        try:
            plain = self._plain
        except AttributeError:  # something NumPy made of it: nobody has filled the slot
            return self.view(np.ndarray)[key]
        axis, shape = 0, plain.shape
        for part in key if type(key) is tuple else (key,):
            if type(part) is slice:
                stop = part.stop
                if stop is not None and axis < len(shape) and index(stop) > shape[axis]:
                    raise self._beyond(part, axis)
            elif part is None:
                continue  # a new axis: it counts for none of the array's own
            elif not isinstance(part, int | np.integer):
                break  # an ellipsis or an array: from here on axes are counted otherwise
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
        """The result of a ufunc: a plain array or scalar. (NumPy 1 does not pass `return_scalar`.)"""
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


def as_input(memory: object, layout: Layout, kernel: KernelSpec, position: int) -> Input:
    """The array that `layout` describes in a `HostMemory`, as the argument of a kernel at `position`."""
    plain = readable(memory, layout)
    array = plain.view(Input)
    array._kernel, array._position, array._plain = kernel, position, plain  # noqa: SLF001  # NumPy makes views without arguments
    return array
