"""Memory of the host, exchanged with other libraries. NumPy's rules hold: what an array contains is complete."""

from typing import Final, NoReturn, final

from dagpu.backends.host.arrays import ArenaRange, HostMemory, bytes_at
from dagpu.common.layout import address_of


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

    def is_parked(self, memory: object) -> bool:
        """Return False: see `give_out`."""
        return False


HOST_EXCHANGE: Final = HostExchange()
