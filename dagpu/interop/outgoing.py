"""Handles of dagpu as arrays of other libraries.

A handle that dagpu has given out is complete. So an export never waits, whatever stream the consumer names; only memory
that is itself still arriving makes the consumer's stream wait.

| handle | `__dlpack__` | `__cuda_array_interface__` |
| --- | --- | --- |
| `Tensor` | moves it out, writable | - |
| `SharedTensor` | read-only, any number of times | read-only |
| `TensorRef`, `TensorMut` | in `with lent_out(...)` | in that block |
"""

from typing import Any, final

from dagpu.common.errors import ExportError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe, here
from dagpu.handles import (
    ExportRequest,
    HandleBase,
    HandleState,
    SharedTensor,
    clone_shared,
    live_state,
    origin_of,
    state_of,
    take_state,
)
from dagpu.handles.device_handles import Device, Exchange, driver_of
from dagpu.handles.handle_state import Locks, Storage
from dagpu.interop.capsules import CUDA, LEGACY, ArrayMemory, form_of, make_capsule
from dagpu.interop.memory import add_memory, forget_memory


@final
class HandleExports:
    """Gives handles to other libraries. Implements `dagpu.handles.array_handle.Exports`."""

    def capsule(self, handle: HandleBase, request: ExportRequest) -> object:
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
                f"{described(handle)} is lent, and DLPack knows no end of a loan. Lend it to the other library for a "
                "block: with lent_out(t) as x: ..."
            )
        if request.dl_device is not None or request.copy:
            refuse_copies(request, handle, storage.device)
        versioned = request.is_versioned
        if isinstance(handle, SharedTensor):
            if not versioned:
                raise unversioned_readers(handle)
            array = memory_of(exchange, storage, state.layout, _add_reader(handle, state), read_only=True)
            add_memory(array, storage, "__dlpack__", request.where, writable=False)
        else:
            array = memory_of(exchange, storage, state.layout, storage, read_only=False)
        hand_over(exchange, storage, request.stream)
        capsule = make_capsule(array, versioned=versioned)
        if state.holders is None:  # last: what fails before it moves nothing
            _take_out(handle, request.where)
        return capsule

    def interface(self, handle: HandleBase) -> dict[str, Any]:
        """Return the CUDA array interface, version 3, of a `SharedTensor` on a GPU: read-only, and without a stream.

        Raises:
            AttributeError: the tensor is on the host.
        """
        state = live_state(handle)
        storage, layout = state.storage, state.layout
        found = cuda_interface(storage, layout, type(handle).__name__, read_only=True)
        array = memory_of(driver_of(storage.device).exchange, storage, layout, None, read_only=True)
        add_memory(array, storage, "__cuda_array_interface__", here(), writable=False)
        return found


@final
class _ForeignReader:
    """A reader of shared memory in another library. `try_unwrap()` counts it, as it counts handles."""

    __slots__ = ("__weakref__", "_counted", "_storage")

    def __init__(self, storage: Storage, counted: object) -> None:
        self._storage = storage
        self._counted = counted


def _add_reader(shared: SharedTensor[Any], state: HandleState) -> object:
    """Return an object that keeps the memory of a shared tensor alive, and counts as one of its holders.

    It takes no lock, which would cost two changes of the signal handler: it counts before it looks whether
    `try_unwrap()` of another thread has taken the handle, and that takes the handle before it counts.

    Raises:
        MovedError: the tensor has been moved.
    """
    assert state.holders is not None
    reader = _ForeignReader(state.storage, state.holders.add())
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


# ---- export parts
#
# The parts of an export that are alike for handles and for what is lent: requests, memory, errors.


def described(x: object) -> str:
    """Return the words for a handle, or for a `Lent`, in messages."""
    return f"{x!r} made at {describe(origin_of(x))}" if isinstance(x, HandleBase) else repr(x)


def refuse_copies(request: ExportRequest, x: object, device: Device) -> None:
    """Refuse a consumer that wants `x`, which is on `device`, elsewhere, or a copy of it.

    Raises:
        ExportError: it does.
    """
    dl_device, copy = request.dl_device, request.copy
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != driver_of(device).exchange.dlpack_device:
        raise ExportError(
            f"{described(x)} is on {device.name}, and the consumer wants it on device {tuple(map(int, dl_device))} of "
            "DLPack. That would be a copy, and a hidden wait. Copy it first: t.to_host().sync() is a NumPy array."
        )
    if copy:
        raise ExportError(
            f"{described(x)}: the consumer wants a copy, and DLPack gives the memory itself. Copy it first: "
            "dup(t.borrow()).sync()."
        )


def unversioned_readers(x: object) -> ExportError:
    """Return the error for a consumer that cannot be told that memory is read-only."""
    return ExportError(
        f"{described(x)} is read-only, which a capsule of DLPack before version 1.0 cannot say. To a consumer that "
        "never writes (JAX) pass unversioned(t), to another one a copy: dup(t).sync()."
    )


def hand_over(exchange: Exchange, storage: Storage, stream: int | None) -> int | None:
    """Prepare memory for work of another library, whose work will be in `stream`. Return that stream; None if there is
    none: on the host, and for a consumer that wants no order, -1."""
    if exchange.dlpack_device[0] != CUDA:
        return None
    consumer = None if stream is not None and stream < 0 else int(stream or LEGACY)  # 0 is the legacy stream too
    exchange.give_out(storage.memory, consumer)
    return consumer


def memory_of(exchange: Exchange, storage: Storage, layout: Layout, owner: object, *, read_only: bool) -> ArrayMemory:
    """Return the memory of an array in a storage, which `owner` keeps alive."""
    address = exchange.address_of(storage.memory) + layout.offset
    form = form_of(layout.dtype, layout.shape, layout.strides)
    return ArrayMemory(address, form, exchange.dlpack_device, read_only, owner)


def cuda_interface(storage: Storage, layout: Layout, kind: str, *, read_only: bool) -> dict[str, Any]:
    """Return the CUDA array interface, version 3, of an array in a storage; `kind` is the name of its type.

    Raises:
        AttributeError: it is not on a GPU.
    """
    if storage.device.kind != "cuda":
        raise AttributeError(f"{kind!r} object has no attribute '__cuda_array_interface__'")
    exchange = driver_of(storage.device).exchange
    hand_over(exchange, storage, LEGACY)
    return {
        "shape": layout.shape,
        "typestr": layout.dtype.str,
        "data": (exchange.address_of(storage.memory) + layout.offset, read_only),
        "strides": None if layout.contiguous else layout.strides,
        "version": 3,
        "stream": None,
    }
