"""Handles of dagpu as arrays of other libraries, without a copy.

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
from dagpu.common.origin import Origin, here
from dagpu.handles import (
    ExportRequest,
    HandleBase,
    HandleState,
    SharedTensor,
    clone_shared,
    live_state,
    state_of,
    take_state,
)
from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Locks, Storage
from dagpu.interop.capsules import make_capsule
from dagpu.interop.export_parts import (
    cuda_interface,
    described,
    hand_over,
    memory_of,
    refuse_copies,
    unversioned_readers,
)
from dagpu.interop.known_memory import add_memory, forget_memory


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
