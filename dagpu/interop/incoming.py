"""Arrays of other libraries as handles of dagpu: a copy, or one function for each kind of handle, without a copy.

| function | gives | the rest of the program promises |
| --- | --- | --- |
| `from_array` | an op of a new `Tensor`, a copy | nothing |
| `adopt` | `Tensor` | to leave the array alone from now on |
| `share_array` | `SharedTensor` | to write it no more |
| `lend` | `TensorRef`, for a `with` block | to leave it unwritten in the block |
| `lend_mut` | `TensorMut`, for a `with` block | to leave it alone in the block |

Work that the array's library has enqueued for it comes before each run that uses it: the device waits, no thread does.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dagpu.common.errors import BorrowError, InteropError, ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import add_call_place
from dagpu.handles import (
    HandleState,
    Holders,
    Loan,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    live_state,
    take_state,
)
from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Storage
from dagpu.interop.foreign_arrays import Arrival, ForeignArray, StreamLike, read_array, read_host_array
from dagpu.interop.known_memory import add_memory, forget_memory
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import value
from dagpu.ops.creation import dup, from_host

_D = TypeVar("_D", bound=np.generic)


@overload
def from_array(x: NDArray[_D]) -> DeviceOp[Tensor[_D]]: ...
@overload
def from_array(x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...) -> DeviceOp[Tensor[_D]]: ...
@overload
def from_array(x: ForeignArray, *, stream: StreamLike | None = ...) -> DeviceOp[Tensor[Any]]: ...
def from_array(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> DeviceOp[Tensor[Any]]:
    """Create a tensor with the contents of an array of any library: NumPy, PyTorch, CuPy, JAX, Numba, cuDF.

    An array on a GPU is copied there, never through the host. Each run reads the array again: leave it unchanged until
    the run has ended. The array may have any strides.

    Args:
        x: an array that speaks DLPack or the CUDA array interface.
        dtype: its element type, for type checkers. Nothing is converted.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, or it has another element type.
        ShapeError: `x` is a NumPy array of which no tensor can be made.
    """
    where = here()
    on_host = x if isinstance(x, np.ndarray) else read_host_array(x, "from_array", where)
    have = read_array(x, "from_array", where, stream)[0].form.layout.dtype if on_host is None else on_host.dtype
    _check_type(have, dtype, "from_array", where)
    if on_host is not None:
        try:
            return from_host(on_host)
        except ShapeError as error:
            raise add_call_place("from_array", where, error) from None
    return value(_Unread(x, dtype, stream, where)).then(_copy_now)


class _Unread:
    """An array of another library that a run is going to read."""

    __slots__ = ("array", "dtype", "stream", "where")

    def __init__(self, array: Any, dtype: Any, stream: StreamLike | None, where: Origin) -> None:
        self.array = array
        self.dtype = dtype
        self.stream = stream
        self.where = where


def _copy_now(unread: _Unread) -> DeviceOp[Tensor[Any]]:
    """Return the op that copies the array, as it is now, on its device."""
    shared = _share(unread.array, unread.dtype, unread.stream, "from_array", unread.where, known=False)
    return dup(shared)


@overload
def adopt(x: NDArray[_D]) -> Tensor[_D]: ...
@overload
def adopt(x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...) -> Tensor[_D]: ...
@overload
def adopt(x: ForeignArray, *, stream: StreamLike | None = ...) -> Tensor[Any]: ...
def adopt(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> Tensor[Any]:
    """Take an array of another library over as an owned `Tensor`, without a copy. Moves `x`: do not use it again.

    The memory goes back to its library when dagpu has no handle to it any more.

    Args:
        x: a writable array in C order that speaks DLPack or the CUDA array interface.
        dtype: its element type, for type checkers. Nothing is converted.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, has another element type, is read-only or strided, or dagpu has a handle to
            its memory already.
    """
    where = here()
    return _own(x, dtype, stream, "adopt", where)


@overload
def share_array(x: NDArray[_D]) -> SharedTensor[_D]: ...
@overload
def share_array(x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...) -> SharedTensor[_D]: ...
@overload
def share_array(x: ForeignArray, *, stream: StreamLike | None = ...) -> SharedTensor[Any]: ...
def share_array(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> SharedTensor[Any]:
    """Return a `SharedTensor` of the memory of an array of another library, without a copy.

    Do not write the array as long as the handle, or a clone, lives. Its library may read it meanwhile.

    Args:
        x: an array that speaks DLPack or the CUDA array interface. It may be read-only and have any strides.
        dtype: its element type, for type checkers. Nothing is converted.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, has another element type, or dagpu may write its memory.
    """
    where = here()
    return _share(x, dtype, stream, "share_array", where)


@overload
def lend(x: NDArray[_D]) -> AbstractContextManager[TensorRef[_D]]: ...
@overload
def lend(
    x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...
) -> AbstractContextManager[TensorRef[_D]]: ...
@overload
def lend(x: ForeignArray, *, stream: StreamLike | None = ...) -> AbstractContextManager[TensorRef[Any]]: ...
def lend(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> AbstractContextManager[TensorRef[Any]]:
    """Lend an array of another library to dagpu for reading, for a `with` block, without a copy.

    Do not write the array in the block. The block gives a `TensorRef`, which is void at its end.

    Args:
        x: an array that speaks DLPack or the CUDA array interface. It may be read-only and have any strides.
        dtype: its element type, for type checkers. Nothing is converted.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, has another element type, or dagpu may write its memory.
        BorrowError: a run still uses the array at the end of the block.
    """
    where = here()
    return _lending(x, dtype, stream, "lend", where)


@overload
def lend_mut(x: NDArray[_D]) -> AbstractContextManager[TensorMut[_D]]: ...
@overload
def lend_mut(
    x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...
) -> AbstractContextManager[TensorMut[_D]]: ...
@overload
def lend_mut(x: ForeignArray, *, stream: StreamLike | None = ...) -> AbstractContextManager[TensorMut[Any]]: ...
def lend_mut(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> AbstractContextManager[TensorMut[Any]]:
    """Lend an array of another library to dagpu for writing, for a `with` block, without a copy.

    Do not use the array in the block. The block gives a `TensorMut`, which is void at its end. What runs have written
    is complete then.

    Args:
        x: a writable array in C order that speaks DLPack or the CUDA array interface.
        dtype: its element type, for type checkers. Nothing is converted.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, has another element type, is read-only or strided, or dagpu has a handle to
            its memory already.
        BorrowError: a run still uses the array at the end of the block.
    """
    where = here()
    return _lending_mut(x, dtype, stream, "lend_mut", where)


def _own(x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin) -> Tensor[Any]:
    arrival = read_array(x, call, where, stream)
    array = arrival[0]
    _check_type(array.form.layout.dtype, dtype, call, where)
    if array.read_only:
        raise InteropError(
            f"{call} at {describe(where)}: the array is read-only. Share it, share_array(x), lend it for reading, "
            "lend(x), or copy it: from_array(x)."
        )
    if not array.form.contiguous:
        layout = array.form.layout
        raise InteropError(
            f"{call} at {describe(where)}: the array of shape {layout.shape} has strides {layout.strides}, and what "
            "dagpu may write is in C order. Copy it: from_array(x), or make it contiguous in its library first."
        )
    storage, layout = _wrap(arrival)
    add_memory(array, storage, call, where, writable=True)
    return Tensor(HandleState(Tensor, storage, layout, where))


def _share(
    x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin, *, known: bool = True
) -> SharedTensor[Any]:
    arrival = read_array(x, call, where, stream)
    _check_type(arrival[0].form.layout.dtype, dtype, call, where)
    storage, layout = _wrap(arrival)
    if known:
        add_memory(arrival[0], storage, call, where, writable=False)
    storage.lock.readers = 1  # for ever: the array's library reads it too, so no handle of dagpu may own or write it
    return SharedTensor(HandleState(SharedTensor, storage, layout, where, holders=Holders()))


@contextmanager
def _lending(x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin) -> Iterator[TensorRef[Any]]:
    arrival = read_array(x, call, where, stream)
    _check_type(arrival[0].form.layout.dtype, dtype, call, where)
    storage, layout = _wrap(arrival)
    add_memory(arrival[0], storage, call, where, writable=False)
    lender: Tensor[Any] = Tensor(HandleState(Tensor, storage, layout, where))
    try:
        yield TensorRef(HandleState(TensorRef, storage, layout, where, lender))
    finally:
        _end_loan(lender, storage, call, where)


@contextmanager
def _lending_mut(x: Any, dtype: Any, stream: StreamLike | None, call: str, where: Origin) -> Iterator[TensorMut[Any]]:
    lender = _own(x, dtype, stream, call, where)
    state = live_state(lender)
    storage = state.storage
    try:
        yield TensorMut(HandleState(TensorMut, storage, state.layout, where, lender, Loan()))
    finally:
        _end_loan(lender, storage, call, where)


def _end_loan(lender: Tensor[Any], storage: Storage, call: str, where: Origin) -> None:
    """End a loan: the borrows of its block are void from now on.

    Raises:
        BorrowError: a run still uses the memory.
    """
    lock = storage.lock
    used = lock.writer is not None or lock.readers
    holder = lock.holder
    take_state(lender, f"the end of {call}()", where)
    forget_memory(storage)
    if used:
        raise BorrowError(
            f"the block of {call}() at {describe(where)} ends while the run started at {describe(holder)} still uses "
            "the array. Await that run in the block."
        )


def _wrap(arrival: Arrival) -> tuple[Storage, Layout]:
    """Return a storage for the memory of an array, and the array's layout in it."""
    array, device, stream = arrival
    form, exchange = array.form, driver_of(device).exchange
    layout, nbytes = form.layout, form.nbytes
    start = array.start
    shift = start % exchange.alignment
    if shift:  # the block begins where one of the backend's could
        start, nbytes = start - shift, nbytes + shift
        layout = Layout(layout.dtype, layout.shape, layout.strides, layout.offset + shift)
    memory = exchange.wrap(start, nbytes, array.owner)
    exchange.await_work(memory, stream)
    return Storage(device, nbytes, memory), layout


def _check_type(have: "np.dtype[Any]", wanted: Any, call: str, where: Origin) -> None:
    """Check that an array has the element type that the user has said, if any."""
    if wanted is not None and wanted is not have.type and np.dtype(wanted) != have:
        raise InteropError(
            f"{call} at {describe(where)}: the array has elements of {have}, and {np.dtype(wanted)} was said. Nothing "
            "is converted: say the type that it has, or convert it afterwards: convert(t, dtype)."
        )
