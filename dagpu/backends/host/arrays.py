"""Memory of host devices, and NumPy arrays that view it."""

import ctypes
import os
import sys
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np
from numpy.typing import DTypeLike

from dagpu.common.critical import BOOKKEEPING, Bookkeeping, ReferenceQueue
from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import Layout, Shape, address_of, contiguous_layout
from dagpu.handles.device_handles import NO_GRAPHS, LibraryBody, MappedMemory
from dagpu.ops.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


# ---- memory of the host, exchanged with other libraries. NumPy's rules hold: what an array contains is complete -


@final
class HostExchange:
    """Implements `dagpu.handles.device_handles.Exchange`."""

    __slots__ = ()
    alignment = 1
    """NumPy reads elements at any multiple of their size."""
    dlpack_device = 1, 0
    """The type of the host in DLPack's numbers, and 0."""

    def wrap(self, address: int, nbytes: int, owner: object, stream: int | None) -> HostMemory:
        """Return memory of another library as memory of a host device. It does not count as used by dagpu."""
        return HostMemory.over(bytes_at(address, nbytes, owner))

    def open_stream(self, stream: int, owner: object) -> NoReturn:
        """Refuse: a host device has no CUDA streams."""
        raise NotImplementedError("a host device has no CUDA streams")

    def address_of(self, memory: object) -> int:
        """Return the address of a block of host memory."""
        assert isinstance(memory, HostMemory | ArenaRange), f"{memory!r} is not memory of the host"
        return address_of(memory.block)

    def device_of(self, address: int) -> int:
        """Return 0: every host device has the whole memory."""
        return 0

    def arrival_stream(self) -> None:
        """Return None: the host has no streams that other libraries know."""

    def follow(self, stream: int) -> bool:
        """Do nothing: the host has no streams."""
        return True

    def await_work(self, memory: object, stream: int | None) -> None:
        """Do nothing: arrays of the host are complete."""

    def give_out(self, memory: object, stream: int | None) -> None:
        """Do nothing: arrays of the host are complete, and no work uses the memory of one that is gone."""

    def await_visitors(self, memory: object) -> None:
        """Do nothing: see `give_out`."""

    @property
    def visited(self) -> None:
        """None: see `give_out`."""
        return

    def is_parked(self, memory: object) -> bool:
        """Return False: see `give_out`."""
        return False


HOST_EXCHANGE: Final = HostExchange()


# ---- the functions of a device whose memory is the machine's: what `host` and `explore` devices have in common --


class HostMemoryDriver:
    """Implements the part of `dagpu.handles.device_handles.Driver` that concerns memory."""

    __slots__ = ("_index", "account")
    arch = ""
    """Kernels run by their host bodies: none is compiled."""
    lacks_conditions = NO_GRAPHS

    def __init__(self, index: int) -> None:
        self._index = index
        self.account = Account()

    @property
    def exchange(self) -> HostExchange:
        """The exchange of memory with other libraries."""
        return HOST_EXCHANGE

    def stream_handle(self, lane: object) -> int:
        """Return 0: a lane has no CUstream."""
        return 0

    def memory_info(self) -> tuple[int, int]:
        """Return the free and total memory of the machine in bytes. Free memory can be allocated without swapping."""
        return _machine_memory()

    def memory_for_runs(self, results: Sequence[int]) -> None:
        """Return None: what a run of the host may take is not limited."""

    def memory_used(self) -> int:
        """Return the number of bytes that dagpu's handles and runs hold on this device."""
        return self.account.used

    def mapped_memory(self, nbytes: int) -> MappedMemory:
        """Return memory that no account counts."""
        memory = HostMemory(Account(), nbytes)
        return MappedMemory(memory, memory.block)

    def write_part(self, memory: object, layout: Layout, array: "NDArray[Any]") -> bool:
        """Write an array to the elements of `layout` in memory that no run uses."""
        writable_array(memory, layout)[...] = array
        return True

    def copy_part(self, memory: object, layout: Layout, source: object) -> bool:
        """Copy `source`, with the same elements in C order, to the elements of `layout` in memory that no run uses."""
        writable_array(memory, layout)[...] = writable_array(source, contiguous_layout(layout.shape, layout.dtype))
        return True

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a copy of an array."""
        return np.array(array)

    def reaches(self, peer: int) -> bool:
        """Return true: all devices of this kind are in the memory of one process."""
        return True

    def is_known(self, body: LibraryBody, operands: Sequence[Layout]) -> bool:
        """Return True: see `scratch_bytes`."""
        return True

    def scratch_bytes(self, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return 0: here kernels run by their host bodies."""
        return 0


def _machine_memory() -> tuple[int, int]:
    """Return the free and the total memory of the machine in bytes. Free memory can be allocated without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = {name: int(amount.split()[0]) * 1024 for name, amount in (line.split(":") for line in lines)}
        return known["MemAvailable"], known["MemTotal"]
    except (OSError, KeyError, ValueError):  # not Linux
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else total
        return free, total
