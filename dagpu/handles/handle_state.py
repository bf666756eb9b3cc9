"""Who holds which memory: blocks of device memory with their locks, and the internal state of the handles of one."""

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from sys import getrefcount
from typing import Final, TypeAlias, final
from weakref import WeakValueDictionary

from dagpu.common.critical import BOOKKEEPING, ReferenceQueue
from dagpu.common.errors import BorrowError, MovedError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe
from dagpu.handles.device_handles import Device, driver_of

# ---- blocks of memory


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
                    "or pass the variable as an argument of the kernel, which each run has for itself."
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


# ---- the state of a handle


@final
class Holders:
    """The live `SharedTensor`s of one storage.

    Each of them refers to one common object, the *token*, and the references to it are their count. Weak references to
    the handles would not do: the garbage collector clears those of a cycle before it calls finalizers, and a finalizer
    may bring a handle back. The collector does not track the token, so it is released with the handle itself.

    Invariant, under `BOOKKEEPING`: the storage has an owner  =>  no holder of it is alive.

    So code that clones a holder, and code that makes the last holder an owner, must hold that lock. The death of a
    holder does not need the lock, because it only decreases the count.
    """

    __slots__ = ("_token",)

    def __init__(self, *, held_elsewhere: bool = False) -> None:
        """With `held_elsewhere` something counts that no one can give up."""
        token = object()
        self._token = [token, token] if held_elsewhere else [token]
        """The token, in a list that all aliases have. A second reference in it counts for ever."""

    def add(self) -> object:
        """Count a holder as long as it refers to the object that this returns."""
        return self._token[0]

    @property
    def count(self) -> int:
        """The number of live holders."""
        return getrefcount(self._token[0]) - _OF_NONE

    def alias(self) -> "Holders":
        """Return another object that shares the same set of holders."""
        other = Holders()
        other._token = self._token
        return other


_NO_HOLDER: Final = [object()]

_OF_NONE: Final = getrefcount(_NO_HOLDER[0])
"""What `getrefcount` gives for a token that only its list refers to. It differs between versions of Python."""

_ALONE: Final = Holders()

_OF_SLOT: Final = getrefcount(_ALONE._token)
"""The same for an object that only a slot refers to."""


# ---- handle state
#
# The internal state of a handle, and the functions that read, move and restore it.
#
# A live handle has one `HandleState`, which is immutable. A move passes this object to another handle, and stores a
# `Moved` record in the old handle. So a move allocates no state, and a moved handle does not keep memory alive.
#
# Modules outside this package read the state through `state_of`, `live_state` and `find_live_state`, not through slots.

Moved: TypeAlias = tuple[str, Origin, Layout, Origin]
"""The record of a move: how the handle was moved, the place of the move, its layout, and the place that made it."""

END_OF_LOAN: Final = "the end of "
"""How the lender of a loan is moved at the end of its block; the name of the call follows."""

HANDLE_NAMES: Final[dict[str, bool]] = {}
"""The public attributes of all classes of handles; the value is true for a method, false for a property."""


@final
class Loan:
    """The identity of one `borrow_mut()`, or of one part of a tensor that is lent for writing. All handles that derive
    from it refer to this object."""

    __slots__ = ("__weakref__", "whole")

    def __init__(self, part_of: "Loan | None" = None) -> None:
        self.whole: Loan = self if part_of is None else part_of.whole
        """The `borrow_mut()`."""


@final
@dataclass(slots=True, eq=False, repr=False)
class HandleState:
    """The state of one live handle. It is immutable.

    A `Partition` has the state of the tensor that was cut: there `kind` is `Tensor` or `TensorMut`.

    Invariants:
        loan is not None     <=>  kind is TensorMut
        lender is not None   <=>  kind is TensorRef or TensorMut
        holders is not None  <=>  kind is SharedTensor
    """

    kind: "type[HandleBase]"
    """The class of the handle; for a `Partition`, the class of the tensor that was cut."""
    storage: Storage
    layout: Layout
    origin: Origin
    """The place in the user's code that made the handle, or borrowed it."""
    lender: "Lender | None" = None
    """The tensor that a borrow was borrowed from. The borrow is void once this tensor has been moved."""
    loan: Loan | None = None
    """The `borrow_mut()` that the handle derives from."""
    holders: Holders | None = None
    """The live `SharedTensor`s on the same memory."""

    @property
    def writable(self) -> bool:
        """True for an owned tensor and for a tensor that is lent for writing."""
        return self.loan is not None or (self.lender is None and self.holders is None)

    @property
    def void(self) -> bool:
        """True for a borrow whose lender has been moved."""
        return self.lender is not None and self.lender._state is None

    @property
    def is_alone(self) -> bool:
        """True if nothing but this state refers to the storage: no other handle, no borrow, no table."""
        return getrefcount(self.storage) == _OF_SLOT

    def with_layout(self, layout: Layout) -> "HandleState":
        """Return a copy of the state with another layout."""
        return HandleState(self.kind, self.storage, layout, self.origin, self.lender, self.loan, self.holders)

    def with_lender(self, lender: "Lender") -> "HandleState":
        """Return a copy of the state of a borrow with another lender."""
        return HandleState(self.kind, self.storage, self.layout, self.origin, lender, self.loan)

    def __repr__(self) -> str:
        layout = self.layout
        return f"{self.kind.__name__}({layout.dtype.name}, {layout.shape}, {self.storage.device.name})"


class HandleBase:
    """The base class of all handles, with the slots for their state.

    Invariant: state is None  =>  moved is set.
    """

    __slots__ = ("_moved", "_state")
    _moved: Moved
    """The last move of this handle; unset before the first move."""

    def __init__(self, state: HandleState) -> None:
        self._state: HandleState | None = state

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        HANDLE_NAMES.update({k: not isinstance(member, property) for k, member in vars(cls).items() if k[0] != "_"})

    def _unmoved_state(self) -> HandleState:
        """Return the state of a handle that has not been moved. Unlike `live_state`, it accepts a void borrow.

        Raises:
            MovedError: the handle has been moved.
        """
        state = self._state
        if state is None:
            raise moved_error(self)
        return state

    def _summary(self) -> tuple[Layout, Origin, str]:
        """Return the layout, the place that made the handle, and the name of its device, or "gone" after a move."""
        state = self._state
        if state is None:
            _, _, layout, made = self._moved
            return layout, made, "gone"
        return state.layout, state.origin, state.storage.device.name


@final
class LenderAlias:
    """The lender of a borrow of a pipeline's argument: it represents the tensor that lent the argument.

    The alias counts as moved once that tensor has been moved.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: "Lender") -> None:
        self.tensor: HandleBase = tensor.tensor if isinstance(tensor, LenderAlias) else tensor

    @property
    def _state(self) -> HandleState | None:
        return self.tensor._state

    @property
    def _moved(self) -> Moved:
        return self.tensor._moved


Lender: TypeAlias = HandleBase | LenderAlias
"""The tensor that a borrow was borrowed from, or its alias."""

state_of: Final[Callable[[Lender], HandleState | None]] = attrgetter("_state")
"""Return the state of a handle or lender; None after a move. Hot paths call it, so it is a C function."""


def live_state(handle: HandleBase) -> HandleState:
    """Return the state of a handle that is usable.

    Raises:
        MovedError: the handle has been moved, or it is a borrow whose lender has been moved.
    """
    state = handle._state
    if state is None:
        raise moved_error(handle)
    lender = state.lender
    if lender is not None and lender._state is None:
        raise _void_error(state, lender)
    return state


def find_live_state(handle: HandleBase) -> HandleState | None:
    """Return the state of a handle that is usable; None if it has been moved, or is a borrow of a moved tensor."""
    state = handle._state
    return None if state is None or state.void else state


def take_state(handle: HandleBase, how: str, where: Origin) -> HandleState:
    """Mark a handle as moved, and return its state for the next handle.

    `how` and `where` describe the move for the messages of later errors.

    Raises:
        MovedError: the handle has been moved before.
    """
    # Two threads cannot both take the state: CPython switches threads at calls and backward jumps, and the lines from
    # the read of the state to its removal contain neither.
    state = handle._state
    if state is None:
        raise moved_error(handle)
    handle._moved = how, where, state.layout, state.origin
    handle._state = None
    return state


def take_known_state(handle: HandleBase, state: HandleState, how: str, where: Origin) -> bool:
    """Mark a handle as moved, as `take_state` does, if its state is still `state`. Return false if it is not."""
    if handle._state is not state:
        return False
    handle._moved = how, where, state.layout, state.origin  # no thread switch since the read: see `take_state`
    handle._state = None
    return True


def restore_state(handle: HandleBase, state: HandleState) -> None:
    """Undo a move: restore the state of a handle."""
    handle._state = state


def origin_of(handle: Lender) -> Origin:
    """Return the place in the user's code that made a handle. The handle may have been moved."""
    state = handle._state
    return handle._moved[3] if state is None else state.origin


def last_move(handle: Lender) -> tuple[str, Origin]:
    """Return how and where a moved handle was moved last."""
    return handle._moved[:2]


def moved_error(handle: HandleBase) -> MovedError:
    """Return the error for the use of a moved handle."""
    how, where, _, made = handle._moved
    kind = type(handle).__name__
    cure = "use what the move gave back"
    if kind == "TensorMut":
        cure += ", or lend the tensor again with .borrow_mut()"
    elif kind == "SharedTensor":
        cure += ", or share that again with .share()"
    elif how.startswith("partition"):
        cure += (
            ", lend it for writing: .borrow_mut().partition(tile), or write to memory of its own, "
            "empty(shape).partition(tile), and read this"
        )
    elif kind != "Partition":
        cure += ", lend it with .borrow(), or share it with .share()"
    return MovedError(
        f"{handle!r} made at {describe(made)} was moved by {how} at {describe(where)} and used again. To use it twice: "
        f"{cure}."
    )


def _void_error(state: HandleState, lender: Lender) -> MovedError:
    """Return the error for the use of a borrow whose lender has been moved."""
    how, where = last_move(lender)
    if how.startswith(END_OF_LOAN):
        return MovedError(
            f"{state.kind.__name__} lent at {describe(state.origin)} is used after {how}. Use it in the block, or "
            "share the array for longer: share_array(x)."
        )
    made_at = describe(origin_of(lender))
    return MovedError(
        f"{state.kind.__name__} borrowed at {describe(state.origin)}: its tensor, made at {made_at}, was moved by "
        f"{how} at {describe(where)}. Use the borrow before the tensor moves, or share() the tensor."
    )
