"""The tensors from outside that one run borrows or owns, and the mark of the memory that the run makes itself."""

from typing import final

from dagpu.common.origin import Origin
from dagpu.handles.storage import Storage
from dagpu.lowering.tracing.traced_storage import TracedStorage


@final
class Loans:
    """The loans of one run, for all its stages.

    The mark is a separate object: results keep it for as long as they live, and must not keep lent memory alive.
    """

    __slots__ = ("lent", "mark", "owned")

    def __init__(self) -> None:
        self.lent: dict[Storage, tuple[object, Origin]] = {}
        """For each storage from outside that is lent to the run: the loan, None if for reading, and the place of its
        first borrow."""
        self.owned: set[Storage] = set()
        """The storages of tensors from outside that have moved into the run."""
        self.mark = object()
        """The `mark` of each storage that the run makes."""

    def made_by_run(self, storage: Storage) -> bool:
        """Return true if this run made the storage."""
        return type(storage) is TracedStorage and storage.mark is self.mark
