"""`TracedStorage`: a block of memory that a run makes, and its place in the program that is being traced."""

from typing import TYPE_CHECKING, final

from dagpu.device import Device
from dagpu.storage import Storage

if TYPE_CHECKING:
    from dagpu.lowering.builder import Builder


@final
class TracedStorage(Storage):
    """A block of memory that a run makes.

    Handles refer to it from the trace on, so the same object has the memory once the stage is complete.

    Invariant: builder is None  <=>  the stage that makes it is complete, or has failed.
    """

    __slots__ = ("buffer", "builder", "mark")

    def __init__(self, device: Device, nbytes: int, builder: "Builder", buffer: int, mark: object) -> None:
        super().__init__(device, nbytes)
        self.builder: Builder | None = builder
        """The stage under construction that makes it."""
        self.buffer = buffer
        """Its number in the program of that stage."""
        self.mark = mark
        """The mark of the run that makes it: see `Loans`."""

    def settle(self, memory: object) -> None:
        """Set the memory: the stage that makes it is complete."""
        self.memory, self.builder = memory, None

    def lose(self, reason: str) -> None:
        """Record why there will be no memory: the stage that makes it has failed."""
        self.lost, self.builder = reason, None
