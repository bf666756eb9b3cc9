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

from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dagpu.common.errors import ShapeError
from dagpu.common.origin import Origin, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import add_call_place
from dagpu.handles import SharedTensor, Tensor, TensorMut, TensorRef, live_state
from dagpu.handles.device_handles import driver_of
from dagpu.interop.foreign_arrays import ForeignArray, StreamLike, follow_stream, read_array, read_host_array
from dagpu.interop.imported_handles import ArrayLoan, check_type, own_array, share_memory
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
