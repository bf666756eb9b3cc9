"""Blocks of device memory with their locks, and the variables of a kernel's module."""

import weakref
from collections.abc import Callable, Collection
from typing import Final, final
from weakref import WeakValueDictionary

from dagpu.common.critical import BOOKKEEPING, ReferenceQueue
from dagpu.common.errors import BorrowError
from dagpu.common.places import Origin, describe
from dagpu.handles.device_handles import Device, driver_of


@final
class Lock:
    """The lock of one storage: the runs that read or write it now. Only `Locks` and direct calls change it, under
    `BOOKKEEPING`.

    Invariant: readers > 0  =>  writer is None
    """

    __slots__ = ("holder", "readers", "writer")

    def __init__(self) -> None:
        self.readers = 0
        """The number of runs that hold a read lock; one more, for ever, if another library shares the memory."""
        self.writer: object = None
        """The `Locks` object of the run that holds the exclusive lock, or its plan; None if no run holds it."""
        self.holder: Origin = None
        """The place in the user's code that started the run with the newest lock."""


def no_graph() -> None:
    """Return None, as a dead weak reference does. It is the `graph` of a storage that no graph writes."""


class Storage:
    """A block of device memory that handles share. It is freed when the last handle is gone.

    A run that allocates a block has a `TracedStorage` for it (dagpu.tracing). Its `memory` is None until the run is
    complete. If the run fails, `memory` stays None, and `lost` is the reason.
    """

    __slots__ = ("__weakref__", "device", "graph", "lock", "lost", "memory", "nbytes", "shares")

    def __init__(self, device: Device, nbytes: int, memory: object = None, *, shares: str = "") -> None:
        self.device = device
        self.nbytes = nbytes
        self.memory = memory
        self.lost: str | None = None
        """The reason why the contents are lost; None while they exist."""
        self.lock = Lock()
        self.shares = shares
        """What the launches of a kernel share, for messages, where the block stands for that (`ModuleState`)."""
        self.graph: Callable[[], object] = no_graph
        """A function that returns the captured graph whose launches write the block; None if that graph is gone."""


_loans: Final[ReferenceQueue["Visit"]] = ReferenceQueue()
"""The loans to other libraries, whose locks are released when the library has dropped what it took."""

_lent: Final[set["Locks"]] = set()
"""The locks of loans that other libraries have not returned. Adding and discarding are atomic."""


@final
class Visit:
    """A loan to another library, which holds `locks` until the library has dropped `token`."""

    __slots__ = ("_locks", "_token", "is_late")

    def __init__(self, token: object, locks: "Locks") -> None:
        self._locks = locks
        self._token = weakref.ref(token)
        _loans.watch(token, self)
        self.is_late = True
        """True if the library may have enqueued work after the end of the loan's block."""
        _lent.add(locks)

    @property
    def has_ended(self) -> bool:
        """True if the library has dropped what it took."""
        return self._token() is None

    def release(self) -> None:
        """Release the locks."""
        if self.is_late:
            for storage in self._locks.held:
                driver_of(storage.device).exchange.await_visitors(storage.memory)
        self._locks.release()
        _lent.discard(self._locks)


def find_loan(storage: Storage) -> "Locks | None":
    """Return the locks of a loan of the storage that another library has not returned; None if there is none."""
    return next((each for each in tuple(_lent) if storage in each.held), None)


def release_returned_loans() -> bool:
    """Release the locks of loans that other libraries have returned. Return True if there were any."""
    found = False
    while _loans:
        try:
            _loans.pop().release()
        except IndexError:  # another thread was quicker
            break
        found = True
    return found


@final
class Locks:
    """The locks of one run: exclusive locks on memory that it owns or writes, read locks on memory that it only reads.

    A run acquires all its locks at once or none, and never waits for one: if two runs conflict, the second is refused.
    """

    __slots__ = ("held", "origin")

    def __init__(self, origin: Origin) -> None:
        self.held: dict[Storage, bool] = {}
        """The locked storages; the value is true for an exclusive lock."""
        self.origin = origin
        """The place in the user's code that started the run."""

    def acquire(self, wanted: dict[Storage, bool]) -> None:
        """Lock each storage, exclusively if its value is true.

        Raises:
            BorrowError: another run holds a conflicting lock. No new lock is held then.
        """
        with BOOKKEEPING:
            held, new = self.held, wanted
            if held:
                new = {
                    s: exclusive for s, exclusive in wanted.items() if (exclusive and not held.get(s)) or s not in held
                }
            for storage, exclusive in new.items():
                lock = storage.lock
                if lock.writer is not None or (exclusive and lock.readers):
                    self._check(storage, exclusive)
            for storage, exclusive in new.items():
                lock = storage.lock
                if exclusive:
                    lock.readers -= storage in held
                    lock.writer = self
                else:
                    lock.readers += 1
                lock.holder = self.origin
                held[storage] = exclusive

    def adopt(self, other: "Locks") -> None:
        """Take over all locks of another run atomically."""
        with BOOKKEEPING:
            for storage, exclusive in other.held.items():
                if exclusive:
                    storage.lock.writer = self
                elif storage in self.held:
                    storage.lock.readers -= 1
                self.held[storage] = exclusive or self.held.get(storage, False)
            other.held.clear()

    def hand_on(self, storages: dict[Storage, bool]) -> None:
        """Release the exclusive locks on memory that other runs may have from now on. Where the value is true, the run
        keeps a read lock."""
        with BOOKKEEPING:
            for storage, keeps in storages.items():
                if self.held.get(storage):
                    storage.lock.writer = None
                    if keeps:
                        storage.lock.readers += 1
                        self.held[storage] = False
                    else:
                        del self.held[storage]

    def _check(self, storage: Storage, exclusive: bool) -> None:
        """Raise a `BorrowError` if another run holds a conflicting lock on the storage."""
        mine, lock = storage in self.held, storage.lock
        taken = lock.writer is not None or (exclusive and lock.readers > mine)
        if taken and release_returned_loans():
            taken = lock.writer is not None or (exclusive and lock.readers > mine)
        if taken:
            does = "is being written" if lock.writer is not None else "is being read"
            if storage.shares:
                raise BorrowError(
                    f"a run started at {describe(self.origin)} launches {storage.shares} on {storage.device.name}, as "
                    f"does the run started at {describe(lock.holder)}, and both would change it. Await that run first, "
                    "or pass the variable as an output, which each run has for itself."
                )
            lent = find_loan(storage)
            if lent is not None:
                raise BorrowError(
                    f"{describe(self.origin)} wants to {'write' if exclusive else 'read'} a tensor of {storage.nbytes} "
                    f"bytes on {storage.device.name} that is lent out to another library, at {describe(lent.origin)}. "
                    "End the block of lent_out() first, and drop what the other library took in it (del x)."
                )
            raise BorrowError(
                f"a run started at {describe(self.origin)} wants to {'write' if exclusive else 'read'} a tensor of "
                f"{storage.nbytes} bytes on {storage.device.name} that {does} by the run started at "
                f"{describe(lock.holder)}. Await that run first, or work on a copy that was made before it: "
                "dup(t.borrow())."
            )

    def release(self, but: Collection[Storage] = ()) -> None:
        """Release all locks, but those of these storages."""
        with BOOKKEEPING:
            released = {storage: exclusive for storage, exclusive in self.held.items() if storage not in but}
            for storage, exclusive in released.items():
                if exclusive:
                    storage.lock.writer = None
                else:
                    storage.lock.readers -= 1
                del self.held[storage]


# ---- module state
#
# The variables of a kernel's module, which all its launches on a device share.
#
# A launch writes them as it writes an output, so the launches of a plan follow each other; and a run locks them, so no
# other run launches the kernel meanwhile.


@final
class ModuleState:
    """The variables of the module of one kernel, on any device. `title` names them for messages."""

    __slots__ = ("__weakref__", "_storages", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self._storages: dict[Device, Storage] = {}

    def on(self, device: Device) -> Storage:
        """Return what a run locks for the variables on a device. It has no memory of dagpu's."""
        found = self._storages.get(device)
        return self._storages.setdefault(device, Storage(device, 0, shares=self.title)) if found is None else found


_STATES: Final[WeakValueDictionary[tuple[object, ...], ModuleState]] = WeakValueDictionary()


def module_state(title: str, *module: object) -> ModuleState:
    """Return the variables of a module, which is known by its text, its kernel and its options. Two declarations of one
    kernel have one module."""
    found = _STATES.get(module)
    if found is None:
        found = _STATES.setdefault(module, ModuleState(title))
    return found
