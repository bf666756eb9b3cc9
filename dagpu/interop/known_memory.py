"""The memory that dagpu and other libraries have in common now: a table of address ranges.

Two owners of one block of memory cannot be proved apart, so an import that would make a second one is refused. Readers
may share a block.

The table has no lock. A range is entered before it is compared with the others, so of two threads that enter one block
at once, one or both are refused.
"""

import weakref
from typing import NamedTuple, final

from dagpu.common.errors import InteropError
from dagpu.common.origin import Origin, describe
from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Storage
from dagpu.interop.capsules import ArrayMemory


@final
class _Range(NamedTuple):
    start: int
    stop: int
    writable: bool
    storage: "weakref.ref[Storage]"
    where: Origin


@final
class _Table:
    """The ranges of one memory, by the identity of their storages. One whose storage is gone is removed later."""

    __slots__ = ("limit", "readers", "writers")

    def __init__(self) -> None:
        self.readers: dict[int, _Range] = {}
        self.writers: dict[int, _Range] = {}
        """The ranges that one side may write: nothing else overlaps with them."""
        self.limit = 64
        """The number of readers at which those that are gone are removed."""

    def restore(self, key: int, before: _Range | None) -> None:
        """Put back what was known of a storage."""
        self.forget(key)
        if before is not None:
            (self.writers if before.writable else self.readers)[key] = before

    def forget(self, key: int) -> None:
        self.readers.pop(key, None)
        self.writers.pop(key, None)


tables: dict[tuple[int, int], _Table] = {}
"""A table for each memory: by the device in DLPack's numbers, since all devices of the host have one memory."""


def add_memory(array: ArrayMemory, storage: Storage, call: str, where: Origin, *, writable: bool) -> None:
    """Enter the memory of an array that other libraries know, which a storage has.

    Raises:
        InteropError: it overlaps with memory in the table, and one of the two may be written.
    """
    table = tables.get(array.device)
    if table is None:
        table = tables.setdefault(array.device, _Table())
    key, start = id(storage), array.start
    stop = start + array.form.nbytes
    before = table.readers.get(key) or table.writers.get(key)
    if before is not None and before.storage() is storage and before.writable == writable:
        if before.start <= start and stop <= before.stop:
            return
        start, stop = min(start, before.start), max(stop, before.stop)
    new: _Range = tuple.__new__(_Range, (start, stop, writable, weakref.ref(storage), where))  # half of the time
    (table.writers if writable else table.readers)[key] = new
    if before is not None and before.writable != writable:
        (table.writers if before.writable else table.readers).pop(key, None)
    if table.writers:
        _refuse_overlap(table, table.writers, key, new, before, call)
    if writable or len(table.readers) > table.limit:
        _refuse_overlap(table, table.readers, key, new, before, call)
        table.limit = max(64, 2 * len(table.readers))


def _refuse_overlap(
    table: _Table, known: dict[int, _Range], key: int, new: _Range, before: _Range | None, call: str
) -> None:
    for other_key, other in tuple(known.items()):
        if other_key == key:
            continue
        if other.storage() is None:
            known.pop(other_key, None)
        elif (new.writable or other.writable) and other.start < new.stop and new.start < other.stop:
            table.restore(key, before)
            raise InteropError(
                f"{call} at {describe(new.where)}: the memory is known to dagpu already, since "
                f"{describe(other.where)}, and one of the two handles could write it. Use that handle, or copy the "
                "array: from_array(x)."
            )


def forget_memory(storage: Storage) -> None:
    """Remove the memory of a storage whose handle has been taken away from dagpu."""
    table = tables.get(driver_of(storage.device).exchange.dlpack_device)
    if table is not None:
        table.forget(id(storage))
