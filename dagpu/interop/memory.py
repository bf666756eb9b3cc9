"""The memory that dagpu and other libraries have in common, and handles to it.

Two owners of one block of memory cannot be proved apart, so an import that would make a second one is refused. Readers
may share a block.

A range is entered before it is compared with others, so of two threads that enter one block at once, one or both are
refused. To enter a range takes no lock, which would take as long as the rest: most are those of readers, and there are
no writers.
"""

import threading
import weakref
from bisect import bisect_left, insort
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import numpy as np

from dagpu.common.errors import BorrowError, InteropError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import (
    END_OF_LOAN,
    HandleBase,
    HandleState,
    Holders,
    Loan,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    take_state,
)
from dagpu.handles.device_handles import driver_of
from dagpu.handles.handle_state import Storage, find_loan, release_returned_loans
from dagpu.interop.arrays import StreamLike, read_array
from dagpu.interop.capsules import ArrayMemory

FEW: Final = 16
"""The number of ranges that are compared one by one. More are sorted first."""

MANY: Final = 256
"""The number of ranges that are entered before those whose storages are gone are looked for."""

_Range: TypeAlias = tuple[int, int, int, "weakref.ref[Storage]", Origin]
"""The start and the end of a range of addresses, the identity of its storage, the storage, and the place where it has
become known."""

_START: Final = itemgetter(0)


@final
class _Ranges:
    """Ranges by the identities of their storages. One whose storage is gone is removed later."""

    __slots__ = ("_left", "lists", "recent", "sorted")

    def __init__(self) -> None:
        self.recent: dict[int, _Range] = {}
        """The ranges that are not sorted."""
        self.sorted: dict[int, _Range] = {}
        self.lists: dict[int, list[_Range]] = {}
        """The sorted ranges, and some that are forgotten, in the order of their starts: a list for each power of two of
        their lengths, so that those that overlap with another one are found without a look at the rest."""
        self._left = MANY
        """The number of ranges that are sorted in before those that are gone are removed."""

    def __len__(self) -> int:
        return len(self.recent) + len(self.sorted)

    def get(self, key: int) -> _Range | None:
        """Return the range of the storage with this identity."""
        return self.recent.get(key) or self.sorted.get(key)

    def remove(self, key: int) -> None:
        """Remove the range of the storage with this identity. The caller holds the lock."""
        self.recent.pop(key, None)
        self.sorted.pop(key, None)

    def find_other(self, start: int, stop: int, key: int) -> _Range | None:
        """Return a range of another storage that has bytes from `start` to `stop`. The caller holds the lock."""
        if len(self.recent) > FEW:
            self.sort_in()
        for other in tuple(self.recent.values()):
            first, end, its, storage, _ = other
            if storage() is None:
                self._drop_recent(other)
            elif first < stop and start < end and its != key:
                return other
        for length, ranges in self.lists.items():
            near = bisect_left(ranges, start - (1 << length), key=_START)
            for other in ranges[near : bisect_left(ranges, stop, near, key=_START)]:
                _, end, its, storage, _ = other
                if start < end and its != key and self.get(its) is other and storage() is not None:
                    return other
        return None

    def _drop_recent(self, old: _Range) -> bool:
        """Remove a range from the recent ones. Return False, and do nothing, if it is none of them any more."""
        # No other thread enters another one meanwhile: CPython switches threads at calls and backward jumps, and
        # between the look and the removal there are none.
        key = old[2]
        if key in self.recent and self.recent[key] is old:
            del self.recent[key]
            return True
        return False

    def sort_in(self) -> None:
        """Sort the recent ranges in, unless all are few, and remove those whose storages are gone. The caller holds the
        lock."""
        recent = tuple(self.recent.values())
        known, lists, moved = self.sorted, self.lists, recent
        self._left -= len(recent)
        if self._left < 0 or not lists:
            moved = tuple([each for each in (*known.values(), *recent) if each[3]() is not None])
            self._left = max(MANY, len(moved))
            if len(moved) <= FEW:
                for each in moved:
                    self.recent.setdefault(each[2], each)
                moved = ()
            known, lists = {}, {}
        for each in moved:
            start, stop, key, storage, _ = each
            if storage() is not None:
                known[key] = each
                insort(lists.setdefault((stop - start).bit_length(), []), each, key=_START)
        self.sorted, self.lists = known, lists
        for each in recent:
            is_sorted = known.get(each[2]) is each
            if (is_sorted or each[3]() is None) and not self._drop_recent(each) and is_sorted:
                del known[each[2]]  # it was forgotten, or replaced, meanwhile


@final
class _Table:
    """The ranges of one memory."""

    __slots__ = ("_lock", "readers", "writers")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser may import an array while its thread is in here
        self.readers = _Ranges()
        self.writers = _Ranges()
        """The ranges that one side may write: nothing else overlaps with them."""

    def add(
        self, storage: Storage, start: int, stop: int, where: Origin, writable: bool, is_new: bool
    ) -> _Range | None:
        """Enter the memory of a storage. If a range of the table conflicts with it, enter nothing, and return that.

        Args:
            writable: true if one side may write the memory.
            is_new: true if the table has no range of the storage.
        """
        key, readers, writers = id(storage), self.readers, self.writers
        mine, others = (writers, readers) if writable else (readers, writers)
        same: _Range | None = None
        if not is_new:
            same = mine.get(key)
            before = same or others.get(key)
            if before is not None and before[3]() is storage:
                first, end, *_ = before
                if before is same and first <= start and stop <= end:
                    return None
                start, stop = min(start, first), max(stop, end)
        mine.recent[key] = (start, stop, key, weakref.ref(storage), where)
        if not (
            len(writers.recent) > writable or writers.lists or (writable and (readers.recent or readers.lists))
        ):  # mostly there is nothing to compare it with
            if len(readers.recent) > MANY:
                with self._lock:
                    readers.sort_in()
            return None
        with self._lock:
            found = writers.find_other(start, stop, key)
            if found is None and writable:
                found = readers.find_other(start, stop, key)
            if found is not None:
                mine.remove(key)
                if same is not None:
                    mine.recent[key] = same
            elif not is_new:
                others.remove(key)
        return found

    def forget(self, storage: Storage) -> None:
        """Remove the range of a storage."""
        key, readers, writers = id(storage), self.readers, self.writers
        readers.recent.pop(key, None)
        writers.recent.pop(key, None)
        if key in readers.sorted or key in writers.sorted:
            with self._lock:
                readers.remove(key)
                writers.remove(key)


tables: dict[tuple[int, int], _Table] = {}
"""A table for each memory: by the device in DLPack's numbers, since all devices of the host have one memory."""


def add_memory(
    array: ArrayMemory, storage: Storage, call: str, where: Origin, *, writable: bool, is_new: bool = False
) -> None:
    """Enter the memory of an array that other libraries know, which a storage has. `is_new` says that the storage has
    been made for it.

    Raises:
        InteropError: it overlaps with memory in the table, and one of the two may be written.
    """
    address, form, device, _, _ = array
    nbytes = form.nbytes
    if not nbytes:
        return
    table = tables.get(device)
    if table is None:
        table = tables.setdefault(device, _Table())
    start = address - form.layout.offset  # as `ArrayMemory.start`
    found = table.add(storage, start, start + nbytes, where, writable, is_new)
    if found is not None:
        raise InteropError(
            f"{call} at {describe(where)}: the memory is known to dagpu already, since {describe(found[4])}, and "
            "one of the two handles could write it. Use that handle, or copy the array: from_array(x)."
        )


def forget_memory(storage: Storage) -> None:
    """Remove the memory of a storage whose handle has been taken away from dagpu."""
    table = tables.get(driver_of(storage.device).exchange.dlpack_device)
    if table is not None:
        table.forget(storage)


# ---- imported handles
#
# Handles to the memory of arrays of other libraries, without a copy: owned, shared, or lent for a block.

_B_co = TypeVar("_B_co", covariant=True)

_TAKEN: Final = object()
_ENDS: Final = {call: f"{END_OF_LOAN}{call}()" for call in ("lend", "lend_mut")}
"""How the lender of a loan is moved, for messages."""


def own_array(x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin) -> Tensor[Any]:
    """Return a `Tensor` of the memory of an array; see `adopt`."""
    storage, layout = _take(x, dtype, stream, call, where, writes=True)
    return Tensor(HandleState(Tensor, storage, layout, where))


def share_memory(
    x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, known: bool = True
) -> SharedTensor[Any]:
    """Return a `SharedTensor` of the memory of an array; see `share_array`. Where `known` is false, other handles may
    write the memory at other times."""
    storage, layout = _take(x, dtype, stream, call, where, known=known)
    storage.lock.readers = 1  # for ever: the array's library reads it too, so no handle of dagpu may own or write it
    return SharedTensor(HandleState(SharedTensor, storage, layout, where, None, None, Holders()))


@final
class ArrayLoan(HandleBase, Generic[_B_co]):
    """The block of `lend` or `lend_mut`. A generator would take 1 us more.

    The block gives a borrow. Its lender is this object, which counts as moved from the end of the block on.
    """

    __slots__ = ("_array", "_call", "_dtype", "_stream", "_where", "_writes")

    def __init__(
        self, x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, writes: bool
    ) -> None:
        self._state = None
        self._array = x
        """The array; `_TAKEN` once the block has begun."""
        self._dtype = dtype
        self._stream = stream
        self._call = call
        self._where = where
        self._writes = writes

    def __enter__(self) -> _B_co:
        """Begin the loan, and return the borrow."""
        array, call, where, writes = self._array, self._call, self._where, self._writes
        if array is _TAKEN:
            raise InteropError(
                f"the loan that {call} at {describe(where)} has made is used for a second block. Call {call}(x) for "
                "each block."
            )
        storage, layout = _take(array, self._dtype, self._stream, call, where, writes=writes)
        self._array = _TAKEN
        kind: Any = TensorMut if writes else TensorRef
        state = self._state = HandleState(kind, storage, layout, where, self, Loan() if writes else None)
        borrow: _B_co = kind(state)
        return borrow

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the loan: the borrows of its block are void from now on.

        Raises:
            BorrowError: a run, or another library, still uses the memory.
        """
        call, where = self._call, self._where
        if self._state is None:
            raise InteropError(
                f"the loan that {call} at {describe(where)} has made has no block that is open. Write a block: with "
                f"{call}(x) as t: ..."
            )
        storage = take_state(self, _ENDS[call], where).storage
        lock = storage.lock
        if lock.readers or lock.writer is not None:
            release_returned_loans()
        forget_memory(storage)
        if lock.readers or lock.writer is not None:
            lent = find_loan(storage)
            if lent is not None:
                raise BorrowError(
                    f"the block of {call}() at {describe(where)} ends while the array is lent out to another library, "
                    f"at {describe(lent.origin)}. Drop what the other library took in that block (del x) before this "
                    "one ends."
                )
            raise BorrowError(
                f"the block of {call}() at {describe(where)} ends while the run started at {describe(lock.holder)} "
                "still uses the array. Await that run in the block."
            )


def _take(
    x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, writes: bool = False, known: bool = True
) -> tuple[Storage, Layout]:
    """Return a storage for the memory of an array, which dagpu reads, or with `writes` also writes, and the array's
    layout in it."""
    array, device, producer = read_array(x, call, where, stream)
    address, form, _, read_only, owner = array
    layout, nbytes = form.layout, form.nbytes
    if dtype is not None and dtype is not layout.dtype.type:
        check_type(layout.dtype, dtype, call, where)
    if writes and (read_only or not form.contiguous):
        raise _not_writable(array, call, where)
    exchange = driver_of(device).exchange
    start = address - layout.offset if nbytes else 0  # as `ArrayMemory.start`
    shift = start % exchange.alignment
    if shift:  # the block begins where one of the backend's could
        start, nbytes = start - shift, nbytes + shift
        layout = Layout(layout.dtype, layout.shape, layout.strides, layout.offset + shift)
    storage = Storage(device, nbytes, exchange.wrap(start, nbytes, owner, producer))
    if known:
        add_memory(array, storage, call, where, writable=writes, is_new=True)
    return storage, layout


def check_type(have: "np.dtype[Any]", wanted: Any, call: str, where: Origin) -> None:
    """Check that an array has the element type that the user has said.

    Raises:
        InteropError: it has another one, or this is none.
    """
    try:
        said = np.dtype(wanted)
    except TypeError:
        raise InteropError(
            f"{call} at {describe(where)}: dtype is {format_value(wanted)}, not an element type. Say the type of the "
            f"array's, {have}, or leave it out."
        ) from None
    if said != have:
        raise InteropError(
            f"{call} at {describe(where)}: the array has elements of {have}, and {said} was said. Nothing is "
            "converted: say the type that it has, or convert it afterwards: convert(t, dtype)."
        )


def _not_writable(array: ArrayMemory, call: str, where: Origin) -> InteropError:
    """Return the error for an array that dagpu may not write, or not as it lies."""
    if array.read_only:
        return InteropError(
            f"{call} at {describe(where)}: the array is read-only. Share it, share_array(x), lend it for reading, "
            "lend(x), or copy it: from_array(x)."
        )
    layout = array.form.layout
    return InteropError(
        f"{call} at {describe(where)}: the array of shape {layout.shape} has strides {layout.strides}, and what dagpu "
        "may write is in C order. Copy it: from_array(x), or make it contiguous in its library first."
    )
