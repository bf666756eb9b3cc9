"""Pools of device memory and of page-locked host memory, and NumPy arrays over blocks of the latter.

A pool does not track streams. A run allocates all of its memory when it is submitted and returns it when it is
complete, and a handle's memory is complete before a caller gets the handle. So idle memory of a pool is unused on every
stream.

A block may be dropped on any thread at any point, even while that thread holds the pool's lock. So a dropped block only
enters a queue (dagpu.common.critical), and the next call of the pool makes it idle.
"""

import ctypes
import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY
from dagpu.common.compiled import teach
from dagpu.common.critical import ReferenceQueue
from dagpu.common.errors import DeviceError

GRAIN: Final = 512
"""Bytes: the sizes of small blocks are multiples of this. It exceeds any alignment that a kernel needs (cuMemAlloc:
256)."""

LARGE: Final = 2 << 20
"""Bytes: the sizes of larger blocks are multiples of this, because the driver maps memory in pages of 2 MiB."""

SLAB: Final = 2 << 20
"""Bytes of page-locked memory in a slab, which is divided into small blocks."""

WASTE: Final = 8
"""An idle block serves a request if it is larger by at most the request divided by this."""


ForeignOwner: TypeAlias = tuple[object, int]
"""The object of another library that keeps imported memory alive, and the number of the memory's arrival."""


@final
class MemoryBlock:
    """A block of memory in use. It goes back to its pool, or to its library, when its last reference is dropped."""

    __slots__ = ("__weakref__", "address", "nbytes", "size")

    def __init__(self, address: int, nbytes: int, size: int) -> None:
        self.address = address
        self.nbytes = nbytes
        """The bytes that were requested. Those of a pool count as used."""
        self.size = size
        """The bytes that the block occupies; 0 for memory of another library."""

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes at {self.address:#x}>"


@final
class LockedMemory(ctypes.Structure):
    """The page-locked memory of one block, as the base of the arrays over it. It keeps the block alive.

    The arrays know how long the memory is. One type serves all lengths, because ctypes takes a microsecond to make
    another.
    """

    _fields_ = (("memory", ctypes.c_char * sys.maxsize),)
    block: MemoryBlock


def array_over(
    block: MemoryBlock, shape: int | tuple[int, ...], dtype: DTypeLike = np.uint8, start: int = 0
) -> NDArray[Any]:
    """Return an array over the bytes of a block of pinned memory from byte `start` on. The block lives as long as the
    array or any view of it."""
    if not block.nbytes:
        return np.empty(shape, dtype)  # its address is 0
    memory = LockedMemory.from_address(block.address)
    memory.block = block
    buffer: Any = memory  # NumPy's stubs name a few types, and it takes any buffer
    return np.ndarray(shape, dtype, buffer, start)


def rounded(nbytes: int) -> int:
    """Return the size of the block that serves a request."""
    grain = GRAIN if nbytes <= LARGE // 2 else LARGE
    return -(-nbytes // grain) * grain


@final
class Slabs:
    """An allocator that divides slabs into small pieces. Fewer calls lock larger memory: to lock a page of host memory
    takes the operating system longer than the bus takes to fill it.

    A freed piece is not reused: its slab is freed when all its pieces are free. Pools free blocks only when they are
    trimmed, so slabs are created and freed rarely. The pool calls the methods under its lock.
    """

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._free = free
        self._starts: list[int] = []
        self._pieces: dict[int, int] = {}
        """The number of pieces in use, by the start of their slab."""
        self._current = 0
        self._cut = SLAB

    def allocate(self, nbytes: int) -> int:
        """Allocate memory, and return its address."""
        if nbytes > SLAB // 8:
            return self._allocate(nbytes)
        if self._cut + nbytes > SLAB:
            self._current, self._cut = self._allocate(SLAB), 0
            insort(self._starts, self._current)
            self._pieces[self._current] = 0
        address = self._current + self._cut
        self._cut += nbytes
        self._pieces[self._current] += 1
        return address

    def free(self, address: int) -> None:
        """Free memory of `allocate`."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._starts[at] + SLAB:
            self._free(address)
            return
        start = self._starts[at]
        self._pieces[start] -= 1
        if not self._pieces[start]:
            del self._pieces[start], self._starts[at]
            if start == self._current:
                self._cut = SLAB
            self._free(start)


@final
class Pool:
    """A pool of blocks from `allocate`. It caches idle blocks.

    Invariants, under `_lock`:
        each address is in use (by a `MemoryBlock`), in `dropped`, parked, or idle
        `_idle[size]` has the idle addresses of that size, the latest last; `_sizes` has the keys of `_idle` in order
    """

    __slots__ = (
        "_allocate", "_ends", "_free", "_held", "_idle", "_lock", "_parked", "_sizes", "_starts", "_used", "dropped",
        "mapped", "parked_bytes", "visited",
    )  # fmt: skip

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._free = free
        self._lock = threading.Lock()
        self._idle: dict[int, dict[int, None]] = {}
        self._sizes: list[int] = []
        self._starts: list[int] = []
        """The addresses of all blocks, in order."""
        self._ends: dict[int, int] = {}
        """The end of each block, by its address."""
        self._used = 0
        self._held = 0
        self.mapped = object()
        """Another object each time that memory enters the device's address space: from the driver, or from another
        library. What knows memory by its address, and has seen another object, may know memory that is gone."""
        self.dropped: ReferenceQueue[tuple[int, int, int]] = ReferenceQueue()
        """The dropped blocks that are not idle yet: address, requested bytes, size."""
        self.visited: set[int] = set()
        """The addresses of blocks in use that other libraries have been given. Adding is atomic."""
        self._parked: list[tuple[int, int]] = []
        """The addresses and sizes of blocks that are dropped, and that work of other libraries may still use."""
        self.parked_bytes = 0

    def take(self, nbytes: int, room: int | None = None, wanted: int = 0, *, is_counted: bool = True) -> MemoryBlock:
        """Return a block of at least `nbytes`. Prefer the idle block at the address `wanted`, else the one that was
        returned last. Trim the pool before failing.

        If `room` is given, the pool may hold at most this number of bytes in all, in use and idle. Without `is_counted`
        the block does not count as used, as idle memory does not.

        Raises:
            DeviceError: there is too little memory (code 2).
        """
        if nbytes == 0:
            return MemoryBlock(0, 0, 0)
        size = rounded(nbytes)
        if not is_counted:
            nbytes = 0
        with self._lock:
            address = self._sort_in(size, wanted) if self.dropped.gone else 0
            if address:  # most blocks are those of the run before
                pass
            elif size in self._idle:
                address = self._pop(size, wanted)
            else:
                address, size = (self._sizes and self._fitting(size, wanted)) or self._fresh(size, room)
            self._used += nbytes
        made = MemoryBlock(address, nbytes, size)
        self.dropped.watch(made, (address, nbytes, size))
        return made

    def owns(self, address: int) -> bool:
        """Return True if an address is in memory of this pool, in use or idle."""
        with self._lock:
            at = bisect_right(self._starts, address)
            return at > 0 and address < self._ends[self._starts[at - 1]]

    def has_idle(self, nbytes: int) -> bool:
        """Return True if an idle block would serve this request."""
        with self._lock:
            self._sort_in()
            size = rounded(nbytes)
            at = bisect_left(self._sizes, size)
            return at < len(self._sizes) and self._sizes[at] - size <= size // WASTE

    def unpark(self, synchronize: Callable[[], None]) -> None:
        """Call `synchronize`, which waits until the device is idle, and make the blocks idle that were parked before.

        A block that another thread parks meanwhile stays parked: work that uses it may be newer than the wait.
        """
        with self._lock:
            self._sort_in()
            parked, self._parked = self._parked, []
        try:
            synchronize()
        except BaseException:
            with self._lock:
                self._parked += parked
            raise
        with self._lock:
            for address, size in parked:
                self.parked_bytes -= size
                self._make_idle(address, size)

    def trim(self) -> None:
        """Free all idle blocks."""
        with self._lock:
            self._sort_in()
            self._trim()

    @property
    def used(self) -> int:
        """The requested bytes of all blocks in use."""
        with self._lock:
            self._sort_in()
            return self._used

    @property
    def idle(self) -> int:
        """The bytes of all idle blocks."""
        with self._lock:
            self._sort_in()
            return sum([size * len(addresses) for size, addresses in self._idle.items()])

    @property
    def held(self) -> int:
        """The bytes that the pool holds of the driver's memory, in use or idle."""
        with self._lock:
            return self._held

    def _sort_in(self, size_wanted: int = 0, wanted: int = 0) -> int:
        """Make the dropped blocks idle, but for the last one if it has the size that is wanted, and no block at the
        address `wanted` is idle: then return its address. Else return 0."""
        dropped = self.dropped
        while dropped.gone:
            address, nbytes, size = dropped.pop()
            if size:
                self._used -= nbytes
                if address in self.visited:
                    self.visited.discard(address)
                    self._parked.append((address, size))
                    self.parked_bytes += size
                elif size == size_wanted and not dropped.gone and wanted not in self._idle.get(size, ()):
                    return address
                elif size in self._idle:  # as `_make_idle`, without a call
                    self._idle[size][address] = None
                else:
                    self._make_idle(address, size)
        return 0

    def _make_idle(self, address: int, size: int) -> None:
        addresses = self._idle.get(size)
        if addresses is None:
            self._idle[size] = {address: None}
            insort(self._sizes, size)
        else:
            addresses[address] = None

    def _fitting(self, size: int, wanted: int) -> tuple[int, int] | None:
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes):
            return None
        found = self._sizes[at]
        if found - size > size // WASTE:
            return None
        return self._pop(found, wanted), found

    def _pop(self, size: int, wanted: int) -> int:
        """Take an idle block of exactly this size, the one at the address `wanted` if it is idle."""
        addresses = self._idle[size]
        if wanted in addresses:
            del addresses[wanted]
        else:
            wanted = addresses.popitem()[0]
        if not addresses:
            del self._idle[size], self._sizes[bisect_left(self._sizes, size)]
        return wanted

    def _fresh(self, size: int, room: int | None) -> tuple[int, int]:
        if room is not None and self._held + size > room:
            self._trim()
            if self._held + size > room:
                raise DeviceError(f"the pool may hold {room:,} bytes and has {self._held:,}", OUT_OF_MEMORY)
        try:
            address = self._allocate(size)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY or not self._idle:
                raise
            self._trim()
            address = self._allocate(size)
        self.mapped = object()
        self._held += size
        insort(self._starts, address)
        self._ends[address] = address + size
        return address, size

    def _trim(self) -> None:
        idle, self._idle, self._sizes = self._idle, {}, []
        for size, addresses in idle.items():
            for address in addresses:
                self._free(address)
                self._held -= size
                del self._starts[bisect_left(self._starts, address)], self._ends[address]


teach(pool=Pool, memory_block=MemoryBlock)


# ---- the memory that PyTorch and CuPy hold on a GPU beside dagpu. Their allocators keep what they have freed ----
# They are found among the modules that the program has imported.


def _pytorch() -> Any:
    """Return `torch.cuda`; None while PyTorch does not use a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _cupy() -> Any:
    """Return the pool of CuPy for the current device; None without CuPy."""
    cupy = sys.modules.get("cupy")
    return None if cupy is None else cupy.get_default_memory_pool()


_FREE: Final[tuple[tuple[Callable[[], Any], str], ...]] = ((_pytorch, "empty_cache"), (_cupy, "free_all_blocks"))
_HELD: Final[tuple[tuple[str, Callable[[], Any], str], ...]] = (
    ("PyTorch", _pytorch, "memory_reserved"),
    ("CuPy", _cupy, "total_bytes"),
)


def free_idle_memory_of_others() -> None:
    """Have PyTorch and CuPy give back to the driver what they keep and do not use. A context must be current."""
    for find, free in _FREE:
        try:
            library = find()
            if library is not None:
                getattr(library, free)()
        except Exception:  # a capture of theirs forbids it, or they are amid their import: the memory stays theirs
            pass


def describe_memory_of_others() -> str:
    """Return the bytes that PyTorch and CuPy hold on the current device, in use or idle, for a message."""
    said = ""
    for name, find, held in _HELD:
        try:
            library = find()
            nbytes = 0 if library is None else int(getattr(library, held)())
        except Exception:  # what a message would say is no reason to hide the error
            continue
        if nbytes:
            said += f"; {name} holds {nbytes:,}"
    return said
