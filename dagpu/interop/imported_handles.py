"""Handles to the memory of arrays of other libraries, without a copy: owned, shared, or lent for a block."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, final

import numpy as np

from dagpu.common.errors import BorrowError, InteropError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe
from dagpu.handles import (
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
from dagpu.interop.foreign_arrays import Arrival, StreamLike, read_array
from dagpu.interop.known_memory import add_memory, forget_memory

_B_co = TypeVar("_B_co", covariant=True)


def own_array(x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin) -> Tensor[Any]:
    """Return a `Tensor` of the memory of an array; see `adopt`."""
    arrival = read_array(x, call, where, stream)
    array = arrival[0]
    if dtype is not None:
        check_type(array.form.layout.dtype, dtype, call, where)
    if array.read_only or not array.form.contiguous:
        raise _not_writable(array, call, where)
    storage, layout = _wrap(arrival)
    add_memory(array, storage, call, where, writable=True)
    return Tensor(HandleState(Tensor, storage, layout, where))


def share_memory(
    x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, known: bool = True
) -> SharedTensor[Any]:
    """Return a `SharedTensor` of the memory of an array; see `share_array`. Where `known` is false, other handles may
    write the memory at other times."""
    storage, layout = _readable(x, dtype, stream, call, where, known=known)
    storage.lock.readers = 1  # for ever: the array's library reads it too, so no handle of dagpu may own or write it
    return SharedTensor(HandleState(SharedTensor, storage, layout, where, holders=Holders()))


@final
class ArrayLoan(AbstractContextManager[_B_co]):
    """The block of `lend` or `lend_mut`. A generator would take 1 us more.

    The block gives a borrow. Its lender is a `Tensor` that the user never has, and that is moved at the end of the
    block.
    """

    __slots__ = ("_array", "_call", "_dtype", "_lender", "_storage", "_stream", "_where", "_writes")

    def __init__(
        self, x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, writes: bool
    ) -> None:
        self._array = x
        self._dtype = dtype
        self._stream = stream
        self._call = call
        self._where = where
        self._writes = writes
        self._lender: Tensor[Any] | None = None

    def __enter__(self) -> _B_co:
        """Begin the loan, and return the borrow."""
        call, where = self._call, self._where
        if self._lender is not None:
            raise InteropError(
                f"the loan that {call} at {describe(where)} has made is used for a second block. Call {call}(x) for "
                "each block."
            )
        lender = self._lender = self._begin(call, where)
        self._array = None
        state = lender._unmoved_state()  # noqa: SLF001  # it was made here
        self._storage = state.storage
        borrow: Any
        if self._writes:
            borrow = TensorMut(HandleState(TensorMut, state.storage, state.layout, where, lender, Loan()))
        else:
            borrow = TensorRef(HandleState(TensorRef, state.storage, state.layout, where, lender))
        found: _B_co = borrow
        return found

    def _begin(self, call: str, where: Origin) -> Tensor[Any]:
        """Return the lender, whose memory is that of the array."""
        if self._writes:
            return own_array(self._array, self._dtype, self._stream, call, where)
        storage, layout = _readable(self._array, self._dtype, self._stream, call, where, known=True)
        return Tensor(HandleState(Tensor, storage, layout, where))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the loan: the borrows of its block are void from now on.

        Raises:
            BorrowError: a run, or another library, still uses the memory.
        """
        assert self._lender is not None
        storage, call, where = self._storage, self._call, self._where
        lock = storage.lock
        if lock.readers or lock.writer is not None:
            release_returned_loans()
        used, holder, lent = lock.writer is not None or lock.readers, lock.holder, find_loan(storage)
        take_state(self._lender, f"the end of {call}()", where)
        forget_memory(storage)
        if used and lent is not None:
            raise BorrowError(
                f"the block of {call}() at {describe(where)} ends while the array is lent out to another library, at "
                f"{describe(lent.origin)}. Drop what the other library took in that block (del x) before this one ends."
            )
        if used:
            raise BorrowError(
                f"the block of {call}() at {describe(where)} ends while the run started at {describe(holder)} still "
                "uses the array. Await that run in the block."
            )


def _readable(
    x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, known: bool
) -> tuple[Storage, Layout]:
    """Return a storage for the memory of an array that dagpu only reads, and the array's layout in it."""
    arrival = read_array(x, call, where, stream)
    if dtype is not None:
        check_type(arrival[0].form.layout.dtype, dtype, call, where)
    storage, layout = _wrap(arrival)
    if known:
        add_memory(arrival[0], storage, call, where, writable=False)
    return storage, layout


def _wrap(arrival: Arrival) -> tuple[Storage, Layout]:
    """Return a storage for the memory of an array, and the array's layout in it."""
    (address, form, _, _, owner), device, stream = arrival
    exchange = driver_of(device).exchange
    layout, nbytes = form.layout, form.nbytes
    start = address - layout.offset if nbytes else 0  # as `ArrayMemory.start`
    shift = start % exchange.alignment
    if shift:  # the block begins where one of the backend's could
        start, nbytes = start - shift, nbytes + shift
        layout = Layout(layout.dtype, layout.shape, layout.strides, layout.offset + shift)
    return Storage(device, nbytes, exchange.wrap(start, nbytes, owner, stream)), layout


def check_type(have: "np.dtype[Any]", wanted: Any, call: str, where: Origin) -> None:
    """Check that an array has the element type that the user has said.

    Raises:
        InteropError: it has another one.
    """
    if wanted is not have.type and np.dtype(wanted) != have:
        raise InteropError(
            f"{call} at {describe(where)}: the array has elements of {have}, and {np.dtype(wanted)} was said. Nothing "
            "is converted: say the type that it has, or convert it afterwards: convert(t, dtype)."
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
