"""Device memory for the temporaries that a user's body takes through its library's allocator."""

from collections import deque
from typing import final

from dagpu.backends.cuda.resources.pools import MemoryBlock, Pool, rounded


@final
class Temporaries:
    """Memory out of dagpu's pool for the work of one stream, in order. Implements
    `dagpu.handles.device_handles.TemporaryMemory`.

    A dropped temporary serves a later one: the stream comes to the earlier work first. All memory goes back to the pool
    when this object and its temporaries are gone. A run keeps the object until it is over, a graph until it is dropped.
    """

    __slots__ = ("_idle", "_pool", "_spans")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._idle: dict[int, deque[MemoryBlock]] = {}
        """The blocks whose temporaries are dropped, by size. A finaliser appends to a deque, which is atomic."""
        self._spans: list[tuple[int, int]] = []
        """The first address and the end of each block that has been taken."""

    def take(self, nbytes: int) -> "Temporary":
        """Return memory.

        Raises:
            DeviceError: there is too little memory (code 2).
        """
        idle = self._idle.setdefault(rounded(nbytes), deque())
        try:
            block = idle.pop()
        except IndexError:
            block = self._pool.take(nbytes)
            self._spans.append((block.address, block.address + block.size))
        return Temporary(block, idle)

    def has(self, address: int) -> bool:
        """Return True if an address is in a temporary, or at the end of one."""
        return any(start <= address <= end for start, end in self._spans)


@final
class Temporary:
    """A block of memory in use by a temporary."""

    __slots__ = ("_block", "_idle")

    def __init__(self, block: MemoryBlock, idle: deque[MemoryBlock]) -> None:
        self._block = block
        self._idle = idle

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self._block.address

    def __del__(self) -> None:
        self._idle.append(self._block)
