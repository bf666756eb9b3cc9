"""Handles to the memory of arrays of other libraries, without a copy: owned, shared, or lent for a block."""

from types import TracebackType
from typing import Any, Final, Generic, TypeVar, final

import numpy as np

from dagpu.common.errors import BorrowError, InteropError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe
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
from dagpu.handles.storage import Storage, find_loan, release_returned_loans
from dagpu.interop.capsules import ArrayMemory
from dagpu.interop.foreign_arrays import StreamLike, read_array
from dagpu.interop.known_memory import add_memory, forget_memory

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
