"""Handles of dagpu as arrays of other libraries, without a copy.

A handle that dagpu has given out is complete. So an export never waits, whatever stream the consumer names; only memory
that is itself still arriving makes the consumer's stream wait.

| handle | `__dlpack__` | `__cuda_array_interface__` |
| --- | --- | --- |
| `Tensor` | moves it out, writable | - |
| `SharedTensor` | read-only, any number of times | read-only |
| `TensorRef`, `TensorMut` | in `with lent_out(...)` | in that block |
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import ExportError, OwnershipError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import (
    EXPORTS,
    DLPackExport,
    HandleBase,
    HandleState,
    SharedTensor,
    TensorMut,
    TensorRef,
    clone_shared,
    live_state,
    origin_of,
    state_of,
    take_state,
)
from dagpu.handles.device_handles import Device, Exchange, driver_of
from dagpu.handles.storage import Locks, Storage, release_returned_loans, watch_loan
from dagpu.interop.capsules import CUDA, LEGACY, ArrayMemory, form_of, make_capsule
from dagpu.interop.foreign_arrays import StreamLike, stream_handle
from dagpu.interop.known_memory import add_memory, forget_memory

_D = TypeVar("_D", bound=np.generic)
_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


@final
class HandleExports:
    """Gives handles to other libraries. Implements `dagpu.handles.array_handle.Exports`."""

    def capsule(
        self,
        handle: HandleBase,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
        where: Origin,
    ) -> object:
        """Return a capsule of DLPack of the memory of a handle. A successful call moves a `Tensor`.

        Raises:
            ExportError: the handle is only lent, or the consumer wants what only a copy could give.
            BorrowError: a run uses the `Tensor`.
            MovedError: the handle has been moved.
        """
        state = live_state(handle)
        storage = state.storage
        exchange = driver_of(storage.device).exchange
        if state.lender is not None:
            raise ExportError(
                f"{_described(handle)} is lent, and DLPack knows no end of a loan. Lend it to the other library for a "
                "block: with lent_out(t) as x: ..."
            )
        if dl_device is not None or copy:
            _check_request(exchange, handle, dl_device, copy)
        versioned = max_version is not None and max_version[0] >= 1
        if isinstance(handle, SharedTensor):
            if not versioned:
                raise _unversioned_readers(handle)
            array = _memory_of(exchange, storage, state.layout, _add_reader(handle, state), read_only=True)
            add_memory(array, storage, "__dlpack__", where, writable=False)
        else:
            array = _memory_of(exchange, storage, state.layout, storage, read_only=False)
        _hand_over(exchange, storage, stream)
        capsule = make_capsule(array, versioned=versioned)
        if state.holders is None:  # last: what fails before it moves nothing
            _take_out(handle, where)
        return capsule

    def interface(self, handle: HandleBase) -> dict[str, Any]:
        """Return the CUDA array interface, version 3, of a `SharedTensor` on a GPU: read-only, and without a stream.

        Raises:
            AttributeError: the tensor is on the host.
        """
        state = live_state(handle)
        return _interface(state.storage, state.layout, type(handle).__name__, read_only=True)


@final
class _ForeignReader:
    """A reader of shared memory in another library. `try_unwrap()` counts it, as it counts handles."""

    __slots__ = ("__weakref__", "_storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage


def _add_reader(shared: SharedTensor[Any], state: HandleState) -> object:
    """Return an object that keeps the memory of a shared tensor alive, and counts as one of its holders.

    It takes no lock, which would cost two changes of the signal handler: it counts before it looks whether
    `try_unwrap()` of another thread has taken the handle, and that takes the handle before it counts.

    Raises:
        MovedError: the tensor has been moved.
    """
    assert state.holders is not None
    reader = _ForeignReader(state.storage)
    state.holders.add(reader)
    return reader if state_of(shared) is state else clone_shared(shared)  # which takes the lock


def _take_out(handle: HandleBase, where: Origin) -> None:
    """Take the memory of a `Tensor` away from dagpu."""
    storage = live_state(handle).storage
    graph = storage.graph()
    if graph is not None:
        raise ExportError(
            f"{handle!r} is the output of {graph!r}: every launch writes it again. Copy it, dup(t.borrow()), or lend "
            "it out: with lent_out(t.borrow()) as x: ..."
        )
    held = Locks(where)
    held.acquire({storage: True})
    try:
        take_state(handle, "__dlpack__()", where)
        forget_memory(storage)
    finally:
        held.release()


def _described(x: object) -> str:
    """Return the words for a handle, or for a `Lent`, in messages."""
    return f"{x!r} made at {describe(origin_of(x))}" if isinstance(x, HandleBase) else repr(x)


def _check_request(exchange: Exchange, x: object, dl_device: tuple[int, int] | None, copy: bool | None) -> None:
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != exchange.dlpack_device:
        place = live_state(x).storage.device if isinstance(x, HandleBase) else cast("Lent[Any]", x).device
        raise ExportError(
            f"{_described(x)} is on {place.name}, and the consumer wants it on device {tuple(map(int, dl_device))} of "
            "DLPack. That would be a copy, and a hidden wait. Copy it first: t.to_host().sync() is a NumPy array."
        )
    if copy:
        raise ExportError(
            f"{_described(x)}: the consumer wants a copy, and DLPack gives the memory itself. Copy it first: "
            "dup(t.borrow()).sync()."
        )


def _unversioned_readers(x: object) -> ExportError:
    """Return the error for a consumer that cannot be told that memory is read-only."""
    return ExportError(
        f"{_described(x)} is read-only, which a capsule of DLPack before version 1.0 cannot say. To a consumer that "
        "never writes (JAX) pass unversioned(t), to another one a copy: dup(t).sync()."
    )


def _hand_over(exchange: Exchange, storage: Storage, stream: int | None) -> int | None:
    """Prepare memory for work of another library, whose work will be in `stream`. Return that stream; None if there is
    none: on the host, and for a consumer that wants no order, -1."""
    if exchange.dlpack_device[0] != CUDA:
        return None
    consumer = LEGACY if stream is None else int(stream) if stream >= 0 else None
    exchange.give_out(storage.memory, consumer)
    return consumer


def _memory_of(exchange: Exchange, storage: Storage, layout: Layout, owner: object, *, read_only: bool) -> ArrayMemory:
    address = exchange.address_of(storage.memory) + layout.offset
    form = form_of(layout.dtype, layout.shape, layout.strides)
    return ArrayMemory(address, form, exchange.dlpack_device, read_only, owner)


def _interface(storage: Storage, layout: Layout, kind: str, *, read_only: bool) -> dict[str, Any]:
    if storage.device.kind != "cuda":
        raise AttributeError(f"{kind!r} object has no attribute '__cuda_array_interface__'")
    exchange = driver_of(storage.device).exchange
    _hand_over(exchange, storage, LEGACY)
    return {
        "shape": layout.shape,
        "typestr": layout.dtype.str,
        "data": (exchange.address_of(storage.memory) + layout.offset, read_only),
        "strides": None if layout.contiguous else layout.strides,
        "version": 3,
        "stream": None,
    }


# ---- loans --------------------------------------------------------------------------------------------------------


@final
class _Visit:
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

    def _capsule(
        self,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
        where: Origin,
    ) -> object:
        """Return a capsule of the memory.

        Raises:
            ExportError: the block of `lent_out` has ended, or the consumer wants what only a copy could give.
        """
        storage, owner = self._live_storage(), self._owner
        exchange = driver_of(self._device).exchange
        if dl_device is not None or copy:
            _check_request(exchange, self, dl_device, copy)
        versioned = max_version is not None and max_version[0] >= 1
        if self._read_only and self._versioned and not versioned:
            raise _unversioned_readers(self)
        consumer = _hand_over(exchange, storage, stream)
        if consumer is not None:
            self._streams[consumer] = None
        array = _memory_of(exchange, storage, self._layout, owner, read_only=self._read_only)
        return make_capsule(array, versioned=self._versioned and versioned)

    def _dlpack_device(self) -> tuple[int, int]:
        return driver_of(self._device).exchange.dlpack_device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3. It names no stream: the memory is complete."""
        storage = self._live_storage()
        self._streams[LEGACY] = None
        return _interface(storage, self._layout, "Lent", read_only=self._read_only)

    def __repr__(self) -> str:
        return f"<Lent {self._layout.dtype.name}, {self._layout.shape}, {self._device.name}>"

    def _live_storage(self) -> Storage:
        if self._storage is None:
            raise ExportError(
                f"{self!r} was lent out in a block that has ended. Use the array inside it: with lent_out(t) as x: ..."
            )
        return self._storage

    def _end(self) -> None:
        """End the loan: what other libraries have enqueued so far comes before later runs."""
        storage = self._storage
        self._storage = self._owner = self._handle = None
        assert storage is not None  # a loan ends once
        exchange = driver_of(self._device).exchange
        for stream in self._streams:
            exchange.await_work(storage.memory, stream)


def lent_out(t: TensorRef[_D] | TensorMut[_D], *, stream: StreamLike | None = None) -> AbstractContextManager[Lent[_D]]:
    """Lend a borrowed tensor to other libraries for a `with` block, without a copy.

    A `TensorRef` goes out read-only, a `TensorMut` writable. Runs that conflict with the loan are refused until the
    block has ended and consumers have dropped what they took. Work that consumers have enqueued by the end of the block
    comes before later runs on the tensor: the device waits, no thread does.

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
    visit = _Visit(storage)
    watch_loan(visit, locks)
    lent: Lent[_D] = Lent(t, visit, read_only=not writes, versioned=True)
    exchange = driver_of(storage.device).exchange
    array = _memory_of(exchange, storage, state.layout, None, read_only=not writes)
    add_memory(array, storage, "__dlpack__", where, writable=writes)  # so that it cannot come back as a second handle
    if stream is not None:
        lent._streams[stream] = None  # noqa: SLF001  # the two are one mechanism
    try:
        yield lent
    finally:
        lent._end()  # noqa: SLF001
        del visit
        release_returned_loans()


def unversioned(t: SharedTensor[_D]) -> Lent[_D]:
    """Return a shared tensor for consumers that know no DLPack 1.0 and never write: JAX.

    A capsule before version 1.0 cannot say that memory is read-only. The consumer must not write it.

    Raises:
        OwnershipError: `t` is not a `SharedTensor`.
        MovedError: `t` has been moved.
    """
    if not isinstance(t, SharedTensor):
        raise OwnershipError(
            f"unversioned at {describe(here())}: t is {format_value(t)}, but a SharedTensor is wanted. Share it first: "
            "unversioned(t.share())."
        )
    return Lent(t, clone_shared(t), read_only=True, versioned=False)


EXPORTS.set(HandleExports())
