"""The functions of a device whose memory is the machine's: what `host` and `explore` devices have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dagpu.backends.common.machine_memory import machine_memory
from dagpu.backends.host.arrays import Account, HostMemory, writable_array
from dagpu.backends.host.host_exchange import HOST_EXCHANGE, HostExchange
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.handles.device_handles import NO_GRAPHS, LibraryBody, MappedMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        return machine_memory()

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
