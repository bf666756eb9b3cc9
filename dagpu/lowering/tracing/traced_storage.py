"""`TracedStorage`: a block of memory that a run makes, and its buffer in the program that is being traced. `Loans`: the
tensors from outside that the run borrows or owns."""

from dataclasses import dataclass, field
from typing import final
from weakref import WeakSet

from dagpu.common.origin import Origin
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


@final
@dataclass(slots=True, eq=False)
class Loans:
    """The loans of one run, for all its stages.

    The mark is a separate object: results keep it for as long as they live, and must not keep lent memory alive.
    """

    lent: dict[Storage, tuple[object, Origin]] = field(default_factory=dict)
    """For each storage from outside that is lent to the run: the loan, None if for reading, and the place of its first
    borrow."""
    owned: WeakSet[Storage] = field(default_factory=WeakSet)
    """The storages of tensors from outside that have moved into the run."""
    mark: object = field(default_factory=object)
    """The `mark` of each storage that the run makes."""

    def made_by_run(self, storage: Storage) -> bool:
        """Return true if this run made the storage."""
        return type(storage) is TracedStorage and storage.mark is self.mark
