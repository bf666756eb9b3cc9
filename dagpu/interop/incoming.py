"""Arrays of other libraries as handles of dagpu, and loans of dagpu's tensors for a block.

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
from typing import Any, Generic, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.errors import ExportError, OwnershipError, ShapeError
from dagpu.common.layout import Shape
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, format_value
from dagpu.handles import (
    DLPackExport,
    ExportRequest,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    clone_shared,
    live_state,
)
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.handle_state import Locks, Storage, Visit, release_returned_loans
from dagpu.interop.arrays import ForeignArray, StreamLike, follow_stream, read_array, read_host_array, stream_handle
from dagpu.interop.capsules import LEGACY, make_capsule
from dagpu.interop.memory import ArrayLoan, add_memory, check_type, own_array, share_memory
from dagpu.interop.outgoing import cuda_interface, hand_over, memory_of, refuse_copies, unversioned_readers
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
@leaves_run
def from_array(x: Any, dtype: Any = None, *, stream: StreamLike | None = None) -> DeviceOp[Tensor[Any]]:
    """Create a tensor with the contents of an array of any library: NumPy, PyTorch, CuPy, JAX, Numba, cuDF.

    An array on a GPU is copied there, never through the host. Each run reads the array again, after the work that was
    in its library's stream when this function was called and when the run begins: leave it unchanged until the run has
    ended. The array may have any strides.

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
    if on_host is not None:
        if dtype is not None:
            check_type(on_host.dtype, dtype, "from_array", where)
        try:
            return from_host(on_host)
        except ShapeError as error:
            raise add_call_place("from_array", where, error) from None
    array, place, producer = read_array(x, "from_array", where, stream)
    if dtype is not None:
        check_type(array.form.layout.dtype, dtype, "from_array", where)
    if producer is not None:  # the run may begin in another thread, or after the block of the library's stream
        follow_stream(place, producer, "from_array", where)
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
    shared = share_memory(unread.array, unread.dtype, unread.stream, "from_array", unread.where, known=False)
    storage = live_state(shared).storage
    driver_of(storage.device).exchange.await_work(storage.memory, None)  # the stream in which the call was made
    return dup(shared)


@overload
def adopt(x: NDArray[_D]) -> Tensor[_D]: ...
@overload
def adopt(x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...) -> Tensor[_D]: ...
@overload
def adopt(x: ForeignArray, *, stream: StreamLike | None = ...) -> Tensor[Any]: ...
@leaves_run
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
    return own_array(x, dtype, stream, "adopt", where)


@overload
def share_array(x: NDArray[_D]) -> SharedTensor[_D]: ...
@overload
def share_array(x: ForeignArray, dtype: type[_D], *, stream: StreamLike | None = ...) -> SharedTensor[_D]: ...
@overload
def share_array(x: ForeignArray, *, stream: StreamLike | None = ...) -> SharedTensor[Any]: ...
@leaves_run
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
    return share_memory(x, dtype, stream, "share_array", where)


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
    return ArrayLoan(x, dtype, stream, "lend", where, writes=False)


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
    return ArrayLoan(x, dtype, stream, "lend_mut", where, writes=True)


# ---- lent arrays
#
# Loans of borrowed tensors to other libraries, for a block or for readers that know no DLPack 1.0.

_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


@final
class _Token:
    """One loan to other libraries: the lender's block and each capsule refer to it. The lock of the loan is released
    when the last of them is gone."""

    __slots__ = ("__weakref__", "storage")

    def __init__(self, storage: Storage) -> None:
        self.storage = storage


@final
class Lent(DLPackExport, Generic[_D_co]):
    """A tensor on its way to other libraries, made by `lent_out` and `unversioned`.

    It speaks DLPack and, on a GPU, the CUDA array interface: `torch.from_dlpack(x)`, `cupy.from_dlpack(x)`.
    """

    __slots__ = ("_device", "_handle", "_layout", "_owner", "_read_only", "_storage", "_streams", "_versioned")

    def __init__(self, handle: Any, owner: object, *, read_only: bool, versioned: bool) -> None:
        state = live_state(handle)
        self._handle = handle
        self._storage: Storage | None = state.storage
        """The memory; None once the loan has ended, since the name of this object outlives the block."""
        self._device = state.storage.device
        self._layout = state.layout
        self._owner: object = owner
        """The object that each capsule keeps alive; None once the loan has ended."""
        self._read_only = read_only
        self._versioned = versioned
        self._streams: dict[int, None] = {}
        """The streams in which consumers said that they will use the memory."""

    @property
    def shape(self) -> Shape:
        """The extents in elements, one for each axis."""
        return self._layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return self._layout.dtype

    @property
    def device(self) -> Device:
        """The device that has the memory."""
        return self._device

    def _capsule(self, request: ExportRequest) -> object:
        """Return a capsule of the memory.

        Raises:
            ExportError: the block of `lent_out` has ended, or the consumer wants what only a copy could give.
        """
        storage, owner = self._live_storage(), self._owner
        exchange = driver_of(self._device).exchange
        if request.dl_device is not None or request.copy:
            refuse_copies(request, self, self._device)
        versioned = request.is_versioned
        if self._read_only and self._versioned and not versioned:
            raise unversioned_readers(self)
        consumer = hand_over(exchange, storage, request.stream)
        if consumer is not None:
            self._streams[consumer] = None
        array = memory_of(exchange, storage, self._layout, owner, read_only=self._read_only)
        return make_capsule(array, versioned=self._versioned and versioned)

    def _dlpack_device(self) -> tuple[int, int]:
        return driver_of(self._device).exchange.dlpack_device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3. It names no stream: the memory is complete."""
        storage = self._live_storage()
        self._streams[LEGACY] = None
        return cuda_interface(storage, self._layout, "Lent", read_only=self._read_only)

    def __repr__(self) -> str:
        return f"<Lent {self._layout.dtype.name}, {self._layout.shape}, {self._device.name}>"

    def _live_storage(self) -> Storage:
        if self._storage is None:
            raise ExportError(
                f"{self!r} was lent out in a block that has ended. Use the array inside it: with lent_out(t) as x: ..."
            )
        return self._storage

    def _end(self, visit: Visit) -> None:
        """End the loan: what other libraries have enqueued so far comes before later runs. If one of them has not
        dropped what it took, it may enqueue more."""
        storage = self._storage
        self._storage = self._owner = self._handle = None
        assert storage is not None  # a loan ends once
        has_ended = visit.has_ended  # before the events
        exchange = driver_of(self._device).exchange
        for stream in self._streams:
            exchange.await_work(storage.memory, stream)
        visit.is_late = not has_ended


@leaves_run
def lent_out(t: TensorRef[_D] | TensorMut[_D], *, stream: StreamLike | None = None) -> AbstractContextManager[Lent[_D]]:
    """Lend a borrowed tensor to other libraries for a `with` block, without a copy.

    A `TensorRef` goes out read-only, a `TensorMut` writable. Runs that conflict with the loan are refused until the
    block has ended and consumers have dropped what they took. Work that consumers have enqueued by the end of the block
    comes before later runs on the tensor: the device waits, no thread does. Drop what they took inside of the block:
    else they may have enqueued more, and the next run waits until the device is idle.

    Args:
        t: the borrow. A kernel or op can use it again after the block.
        stream: a stream in which the tensor is used in the block, beside those that consumers name by DLPack.

    Raises:
        OwnershipError: `t` is not a borrow.
        MovedError: the borrow is void, or has been moved.
        BorrowError: a run uses the tensor now.
        InteropError: `stream` is no stream.
    """
    where = here()
    if not isinstance(t, TensorRef | TensorMut):
        raise OwnershipError(
            f"lent_out at {describe(where)}: t is {format_value(t)}, but a borrow is wanted. Borrow the tensor: "
            "lent_out(t.borrow()) for reading, lent_out(t.borrow_mut()) for writing."
        )
    return _lending_out(t, stream_handle(stream, "lent_out", where), where)


@contextmanager
def _lending_out(t: TensorRef[_D] | TensorMut[_D], stream: int | None, where: Origin) -> Iterator[Lent[_D]]:
    state = live_state(t)
    storage, writes = state.storage, isinstance(t, TensorMut)
    locks = Locks(where)
    locks.acquire({storage: writes})
    token = _Token(storage)
    visit = Visit(token, locks)
    lent: Lent[_D] = Lent(t, token, read_only=not writes, versioned=True)
    del token
    exchange = driver_of(storage.device).exchange
    array = memory_of(exchange, storage, state.layout, None, read_only=not writes)
    add_memory(array, storage, "__dlpack__", where, writable=writes)  # so that it cannot come back as a second handle
    if stream is not None:
        lent._streams[stream] = None  # noqa: SLF001  # the two are one mechanism
    try:
        yield lent
    finally:
        lent._end(visit)  # noqa: SLF001
        release_returned_loans()


@leaves_run
def unversioned(t: SharedTensor[_D]) -> Lent[_D]:
    """Return a shared tensor for consumers that know no DLPack 1.0 and never write: JAX.

    A capsule before version 1.0 cannot say that memory is read-only. The consumer must not write it.

    Raises:
        OwnershipError: `t` is not a `SharedTensor`.
        MovedError: `t` has been moved.
    """
    where = here()
    if not isinstance(t, SharedTensor):
        raise OwnershipError(
            f"unversioned at {describe(where)}: t is {format_value(t)}, but a SharedTensor is wanted. Share it first: "
            "unversioned(t.share())."
        )
    holder = clone_shared(t)
    state = live_state(holder)
    exchange = driver_of(state.storage.device).exchange
    array = memory_of(exchange, state.storage, state.layout, None, read_only=True)
    add_memory(array, state.storage, "unversioned", where, writable=False)  # an array of it does not say so itself
    return Lent(t, holder, read_only=True, versioned=False)
