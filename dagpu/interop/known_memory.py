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
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage


@final
class _Range(NamedTuple):
    start: int
    stop: int
    writable: bool
    storage: "weakref.ref[Storage]"
    where: Origin


_ranges: dict[Device, dict[int, _Range]] = {}
"""For each device the ranges, by the identity of their storages. A range whose storage is gone is removed later."""


def add_memory(
    device: Device, start: int, stop: int, storage: Storage, call: str, where: Origin, *, writable: bool
) -> None:
    """Enter the memory of a storage that other libraries know.

    Raises:
        InteropError: it overlaps with memory in the table, and one of the two may be written.
    """
    known = _ranges.setdefault(device, {})
    key = id(storage)
    before = known.get(key)
    known[key] = _Range(start, stop, writable, weakref.ref(storage), where)
    for other_key, other in tuple(known.items()):
        if other_key == key:
            continue
        if other.storage() is None:
            known.pop(other_key, None)
        elif other.start < stop and start < other.stop and (writable or other.writable):
            if before is None:
                known.pop(key, None)
            else:
                known[key] = before
            raise InteropError(
                f"{call} at {describe(where)}: the memory is known to dagpu already, since {describe(other.where)}, "
                "and one of the two handles could write it. Use that handle, or copy the array: from_array(x)."
            )


def forget_memory(storage: Storage) -> None:
    """Remove the memory of a storage whose handle has been taken away from dagpu."""
    _ranges.get(storage.device, {}).pop(id(storage), None)
