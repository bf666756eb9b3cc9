"""Blocks of device memory, and the locks that runs take on them."""

from collections.abc import Callable
from typing import final

from dagpu.common.critical import BOOKKEEPING
from dagpu.common.errors import BorrowError
from dagpu.common.origin import Origin, describe
from dagpu.handles.device_handles import Device
from dagpu.handles.storage_lock import Lock


def _no_graph() -> None:
    """A dead weak reference, for a storage that is not the output of a graph."""


class Storage:
    """A block of device memory that handles share. It is freed when the last of them is gone.

    A run that makes a block has a `TracedStorage` for it (dagpu.lowering): there `memory` is None until the run is
    complete. If the run fails, `memory` is None for good, and `lost` says why.
    """

    __slots__ = ("__weakref__", "device", "graph", "lock", "lost", "memory", "nbytes")

    def __init__(self, device: Device, nbytes: int, memory: object = None) -> None:
        self.device = device
        self.nbytes = nbytes
        self.memory = memory
        self.lost: str | None = None
        """The reason why the contents do not exist any more."""
        self.lock = Lock()
        self.graph: Callable[[], object] = _no_graph
        """Returns the captured graph whose launches write the block as their output, and None once that is gone."""


@final
class Locks:
    """The locks of one run: read locks on memory that it reads of others, exclusive ones on what it owns or writes.

    All locks of a run are taken at once or not at all, so two runs never wait for each other: the second is refused.
    """

    __slots__ = ("_origin", "held")

    def __init__(self, origin: Origin) -> None:
        self.held: dict[Storage, bool] = {}
        """The locked storages, exclusively where true."""
        self._origin = origin

    def acquire(self, wanted: dict[Storage, bool]) -> None:
        """Lock each storage, exclusively where the value is true; `BorrowError` if another run is in the way."""
        with BOOKKEEPING:
            new = {
                s: exclusive
                for s, exclusive in wanted.items()
                if (exclusive and not self.held.get(s)) or s not in self.held
            }
            for storage, exclusive in new.items():
                self._check(storage, exclusive)
            for storage, exclusive in new.items():
                lock = storage.lock
                if exclusive:
                    lock.readers -= storage in self.held
                    lock.writer = self
                else:
                    lock.readers += 1
                lock.holder = self._origin
                self.held[storage] = exclusive

    def adopt(self, other: "Locks") -> None:
        """Take over the locks of another run, in one step."""
        with BOOKKEEPING:
            for storage, exclusive in other.held.items():
                if exclusive:
                    storage.lock.writer = self
                elif storage in self.held:
                    storage.lock.readers -= 1
                self.held[storage] = exclusive or self.held.get(storage, False)
            other.held.clear()

    def _check(self, storage: Storage, exclusive: bool) -> None:
        mine, lock = storage in self.held, storage.lock
        taken = lock.writer is not None or (exclusive and lock.readers > mine)
        if taken:
            does = "is being written" if lock.writer is not None else "is being read"
            raise BorrowError(
                f"a run started at {describe(self._origin)} wants to {'write' if exclusive else 'read'} a tensor of "
                f"{storage.nbytes} bytes on {storage.device.name} that {does} by the run started at "
                f"{describe(lock.holder)}. Await that run first, or work on a copy that was made before it: "
                "dup(t.borrow())."
            )

    def release(self) -> None:
        """Release all locks."""
        with BOOKKEEPING:
            for storage, exclusive in self.held.items():
                if exclusive:
                    storage.lock.writer = None
                else:
                    storage.lock.readers -= 1
            self.held.clear()
