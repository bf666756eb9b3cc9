"""`TracedStorage`: a block of memory that a run makes, and its buffer in the program that is being traced."""

from typing import final

from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage


@final
class TracedStorage(Storage):
    """A block of memory that a run makes.

    Handles refer to it from the trace on. The same object has the memory once the stage is complete.

    Invariant: `builder is None` exactly when the stage that makes it is complete, or has failed.
    """

    __slots__ = ("buffer", "builder", "mark")

    def __init__(self, device: Device, nbytes: int, builder: object, buffer: int, mark: object) -> None:
        super().__init__(device, nbytes)
        self.builder: object = builder
        """The `ProgramBuilder` of the stage that makes it. It is compared by identity alone."""
        self.buffer = buffer
        """The index of its buffer in the program of that stage."""
        self.mark = mark
        """The mark of the run that makes it: see `Loans`."""

    def settle(self, memory: object) -> None:
        """Set the memory when the stage that makes it is complete."""
        self.memory, self.builder = memory, None

    def lose(self, reason: str) -> None:
        """Record why there will be no memory, when the stage that makes it has failed."""
        self.lost, self.builder = reason, None
