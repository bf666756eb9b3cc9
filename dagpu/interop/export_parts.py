"""The parts of an export that are alike for handles and for what is lent: requests, memory, errors."""

from typing import Any

from dagpu.common.errors import ExportError
from dagpu.common.layout import Layout
from dagpu.common.origin import describe
from dagpu.handles import ExportRequest, HandleBase, origin_of
from dagpu.handles.device_handles import Device, Exchange, driver_of
from dagpu.handles.storage import Storage
from dagpu.interop.capsules import CUDA, LEGACY, ArrayMemory, form_of


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
