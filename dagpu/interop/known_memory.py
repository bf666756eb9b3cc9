"""The memory that dagpu and other libraries have in common now: a table of address ranges.

Two owners of one block of memory cannot be proved apart, so an import that would make a second one is refused. Readers
may share a block.
"""

import weakref
from typing import NamedTuple, final

from dagpu.common.critical import Bookkeeping
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


_ranges: dict[Device, list[_Range]] = {}


def add_memory(
    device: Device, start: int, stop: int, storage: Storage, call: str, where: Origin, *, writable: bool
) -> None:
    """Enter the memory of a storage that other libraries know.

    Raises:
        InteropError: it overlaps with memory in the table, and one of the two may be written.
    """
    with Bookkeeping():
        alive = [known for known in _ranges.get(device, ()) if known.storage() is not None]
        if start < stop:
            for known in alive:
                if (
                    known.start < stop
                    and start < known.stop
                    and (writable or known.writable)
                    and known.storage() is not storage
                ):
                    raise InteropError(
                        f"{call} at {describe(where)}: the memory is known to dagpu already, since "
                        f"{describe(known.where)}, and one of the two handles could write it. Use that handle, or copy "
                        "the array: from_array(x)."
                    )
            alive.append(_Range(start, stop, writable, weakref.ref(storage), where))
        _ranges[device] = alive


def forget_memory(storage: Storage) -> None:
    """Remove the memory of a storage whose handle has been taken away from dagpu."""
    with Bookkeeping():
        known = _ranges.get(storage.device, [])
        known[:] = [each for each in known if each.storage() not in (None, storage)]
