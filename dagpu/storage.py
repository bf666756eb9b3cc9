"""Blocks of device memory, and the locks that runs take on them."""

from collections.abc import Callable
from typing import final

from dagpu.critical import BOOKKEEPING
from dagpu.device import Device
from dagpu.errors import BorrowError
from dagpu.origin import Origin, describe


def _no_graph() -> None:
    """What a dead weak reference gives, for storages that are no graph's output."""


@final
class Storage:
    """A block of device memory that handles share. It is freed when the last of them is gone.

    Invariants, of which `settle` and `Locks` are the only writers:
        memory is None  <=>  the run that makes it is not complete (or has failed: then `lost` says so)
        readers > 0     =>   writer is None
    """

    __slots__ = (
        "__weakref__", "buffer", "device", "graph", "holder", "lost", "maker", "memory", "nbytes", "readers", "run",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        nbytes: int,
        run: object = None,
        buffer: int = -1,
        memory: object = None,
        maker: object = None,
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.run = run
        """The run that makes it, until that is complete."""
        self.maker = maker
        """What stands for the whole run that made it, and is no other run's."""
        self.buffer = buffer
        """Its number in the program that is being traced by `run`."""
        self.memory = memory
        self.lost: str | None = None
        self.readers = 0
        self.writer: object = None
        self.graph: Callable[[], object] = _no_graph
        """The captured graph whose launches write it as their output, while that lives."""
        self.holder: Origin = None
        """Where the run stands in the user's code that holds the newest lock."""

    def settle(self, memory: object) -> None:
        """The run that makes it is complete: here is its memory."""
        self.memory, self.run = memory, None


@final
class Locks:
    """What one run has locked: read locks on what it reads of others, exclusive ones on what it owns or writes.

    All locks of a run are taken at once or not at all, so two runs never wait for each other: the second is refused.
    """

    __slots__ = ("_held", "_origin")

    def __init__(self, origin: Origin) -> None:
        self._held: dict[Storage, bool] = {}
        self._origin = origin

    def acquire(self, wanted: dict[Storage, bool]) -> None:
        """Lock each storage, exclusively where the value is true; `BorrowError` if another run is in the way."""
        with BOOKKEEPING:
            new = {
                s: exclusive
                for s, exclusive in wanted.items()
                if (exclusive and not self._held.get(s)) or s not in self._held
            }
            for storage, exclusive in new.items():
                self._check(storage, exclusive)
            for storage, exclusive in new.items():
                if exclusive:
                    storage.readers -= storage in self._held
                    storage.writer = self
                else:
                    storage.readers += 1
                storage.holder = self._origin
                self._held[storage] = exclusive

    def adopt(self, other: "Locks") -> None:
        """Take over what another has locked: nobody can come between."""
        with BOOKKEEPING:
            for storage, exclusive in other._held.items():
                if exclusive:
                    storage.writer = self
                elif storage in self._held:
                    storage.readers -= 1
                self._held[storage] = exclusive or self._held.get(storage, False)
            other._held.clear()

    def _check(self, storage: Storage, exclusive: bool) -> None:
        mine = storage in self._held
        taken = storage.writer is not None or (exclusive and storage.readers > mine)
        if taken:
            does = "is being written" if storage.writer is not None else "is being read"
            raise BorrowError(
                f"a run started at {describe(self._origin)} wants to {'write' if exclusive else 'read'} a tensor of "
                f"{storage.nbytes} bytes on {storage.device.name} that {does} by the run started at "
                f"{describe(storage.holder)}. Await that run first, or work on a copy that was made before it: "
                "dup(t.borrow())."
            )

    def release(self) -> None:
        """Give all locks back."""
        with BOOKKEEPING:
            for storage, exclusive in self._held.items():
                if exclusive:
                    storage.writer = None
                else:
                    storage.readers -= 1
            self._held.clear()
