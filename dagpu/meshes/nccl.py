"""All-reduce by NCCL, for those who want it: NVIDIA's library, by its C functions, from the worker thread of a run.

A call is a run's work on the host, as that of a `host_map` is: it begins when the summands are complete, enqueues one
grouped call of NCCL for all devices to streams of their own, and returns. Later runs that use the results wait for
these streams on the devices. It is never part of a CUDA graph: captured from one process, NCCL hangs.

While a collective is under way, the memory that it uses is treated as lent to another library.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, final

from dagpu.common.errors import DeviceError, MeshError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin, describe
from dagpu.handles import Tensor, live_state
from dagpu.handles.device_handles import Device, Stream, driver_of
from dagpu.meshes.moving import AnyOp, layout_of
from dagpu.meshes.values import Spreading
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, Map, On, Then, Value, Zip
from dagpu.ops.creation import Alloc, Copy
from dagpu.ops.recording import recorded

INSTALL: Final = "pip install 'nvidia-nccl-cu13>=2.28'"
"""The command that installs NCCL. It lists the extra `nccl` of pyproject.toml."""

ELEMENTS: Final = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9,
}  # fmt: skip
"""NCCL's number of each element type (ncclDataType_t)."""

OPERATIONS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
"""NCCL's number of each reduction (ncclRedOp_t)."""


class Nccl(Protocol):
    """The functions of NCCL that are used. An error is a `DeviceError`."""

    def open(self, devices: Sequence[int]) -> Sequence[Any]:
        """Return one communicator for each of these devices of the process, by their CUDA numbers."""
        ...

    def all_reduce(self, calls: "Sequence[RankCall]") -> None:
        """Enqueue the calls of all ranks as one group."""
        ...


@final
@plain
class RankCall:
    """The call of one rank: addresses, elements, NCCL's numbers, and where it is enqueued."""

    send: int
    receive: int
    count: int
    element: int
    operation: int
    communicator: Any
    stream: int


@final
class NcclLibrary:
    """NCCL's shared library, through ctypes. Implements `Nccl`."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def open(self, devices: Sequence[int]) -> Sequence[Any]:
        communicators = (ctypes.c_void_p * len(devices))()
        numbers = (ctypes.c_int * len(devices))(*devices)
        self._call("ncclCommInitAll", communicators, ctypes.c_int(len(devices)), numbers)
        return [ctypes.c_void_p(each) for each in communicators]

    def all_reduce(self, calls: Sequence[RankCall]) -> None:
        self._call("ncclGroupStart")
        try:
            for each in calls:
                self._call(
                    "ncclAllReduce",
                    ctypes.c_void_p(each.send),
                    ctypes.c_void_p(each.receive),
                    ctypes.c_size_t(each.count),
                    ctypes.c_int(each.element),
                    ctypes.c_int(each.operation),
                    each.communicator,
                    ctypes.c_void_p(each.stream),
                )
        finally:
            self._call("ncclGroupEnd")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text: bytes = self._library.ncclGetErrorString(ctypes.c_int(code))
            raise DeviceError(f"{name} failed: {text.decode()} (ncclResult {code}).", code)


def find_nccl() -> Nccl | None:
    """Return NCCL: that of NVIDIA's wheel, or else that of the system; None without either."""
    paths = ["libnccl.so.2"]
    spec = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        paths.insert(0, str(Path(folder) / "lib" / "libnccl.so.2"))
    for path in paths:
        try:
            return NcclLibrary(path)
        except OSError:
            continue
    return None


@final
class Communicators:
    """The communicators of a row of devices, each with a stream. One collective at a time is enqueued to them."""

    def __init__(self, nccl: Nccl, devices: Sequence[Device]) -> None:
        self.nccl = nccl
        self.each = nccl.open([device.index for device in devices])
        self.streams = [Stream(device, driver_of(device).open_stream()) for device in devices]
        self.lock = threading.Lock()


_opened: Final[dict[tuple[str, ...], Communicators]] = {}
_opening: Final = threading.Lock()


def communicators_of(devices: Sequence[Device], where: Origin) -> Communicators:
    """Return the communicators of these devices. The first call for a row opens them, which takes a second.

    Raises:
        DeviceError: NCCL is not installed, or refuses.
    """
    names = tuple([device.name for device in devices])
    with _opening:
        found = _opened.get(names)
        if found is None:
            nccl = find_nccl()
            if nccl is None:
                raise DeviceError(
                    f'all_reduce at {describe(where)}: engine="nccl" needs NCCL, which is not installed. Install it: '
                    f"{INSTALL}, or leave engine out."
                )
            found = _opened[names] = Communicators(nccl, devices)
        return found


def close_communicators() -> None:
    """Forget all communicators. None may be in use."""
    with _opening:
        _opened.clear()


def check_nccl(about: Spreading, where: Origin) -> None:
    """Check that NCCL reduces these summands.

    Raises:
        MeshError: they are not on GPUs, or NCCL has no such elements.
    """
    kind, name = about.mesh.devices[0].kind, about.dtype.name
    if kind != "cuda":
        raise MeshError(
            f'all_reduce at {describe(where)}: engine="nccl" reduces on GPUs, and the summands are on {about.mesh!r}. '
            "Leave engine out."
        )
    if name not in ELEMENTS:
        raise MeshError(
            f'all_reduce at {describe(where)}: engine="nccl" has no elements of {name}. Leave engine out, or reduce '
            "them as f32: let the function of each convert(t, f32)."
        )


@recorded
def reduced_by_nccl(how: str, about: Spreading, summands: list[Any], devices: list[Device], where: Origin) -> AnyOp:
    """Return the op of the reduced whole on each device, as a tuple. The run goes on when the summands are complete."""
    if any(isinstance(each, DeviceOp) for each in summands):

        def of_handles(handles: tuple[Any, ...]) -> AnyOp:
            return reduced_by_nccl(how, about, list(handles), devices, where)

        return Then(Zip(tuple(summands), where), of_handles, where)
    inputs: list[AnyOp] = [
        Value(each, where) if _is_dense(each) else On(Copy(each, None, None, where), each.device, where)
        for each in summands
    ]
    outputs: list[AnyOp] = [
        On(Alloc[Any, Any, Any](about.shape, about.dtype, None, where), device, where) for device in devices
    ]
    complete: AnyOp = HostCall(Value(None, where), _nothing, where)
    ready: AnyOp = Zip((Zip(tuple(inputs), where), Zip(tuple(outputs), where), complete), where)
    return Then(ready, _Reduce(how, tuple(devices), where), where)


def _nothing(_value: object) -> None:
    """Do nothing. What needs the result waits for the run so far."""


def _written(found: tuple[tuple[Tensor[Any], ...], None]) -> tuple[Tensor[Any], ...]:
    """Return the outputs when the call that writes them is done. `first()` would give them before."""
    return found[0]


@plain
class _Reduce:
    """Reduces complete summands into outputs, whose memory is known."""

    how: str
    devices: tuple[Device, ...]
    where: Origin

    def __call__(self, found: tuple[tuple[Any, ...], tuple[Tensor[Any], ...], None]) -> AnyOp:
        summands, outputs, _ = found
        pairs = [(_place_of(one), _place_of(other)) for one, other in zip(summands, outputs, strict=True)]
        numbers = ELEMENTS[outputs[0].dtype.name], OPERATIONS[self.how]
        call = partial(_enqueue, self.devices, pairs, outputs[0].size, numbers, self.where)
        done: AnyOp = HostCall(Value(None, self.where), call, self.where)
        return Map(Zip((Value(outputs, self.where), done), self.where), _written, self.where)


@plain
class _Place:
    """Memory that is complete, and the byte in it where a tensor begins."""

    memory: object
    offset: int


def _place_of(handle: Any) -> _Place:
    state = live_state(handle)
    return _Place(state.storage.memory, state.layout.offset)


def _enqueue(
    devices: Sequence[Device],
    pairs: Sequence[tuple[_Place, _Place]],
    count: int,
    numbers: tuple[int, int],
    where: Origin,
    _value: object,
) -> None:
    """Enqueue the reduction of the summands into the outputs, and order later runs after it."""
    communicators = communicators_of(devices, where)
    exchanges, streams = [driver_of(device).exchange for device in devices], communicators.streams
    with communicators.lock:
        calls: list[RankCall] = []
        for exchange, pair, one, stream in zip(exchanges, pairs, communicators.each, streams, strict=True):
            for place in pair:
                exchange.give_out(place.memory, stream.handle)
            send, receive = [exchange.address_of(place.memory) + place.offset for place in pair]
            calls.append(RankCall(send, receive, count, *numbers, one, stream.handle))
        if count:
            communicators.nccl.all_reduce(calls)
        for exchange, pair, stream in zip(exchanges, pairs, streams, strict=True):
            for place in pair:
                exchange.await_work(place.memory, stream.handle)


def _is_dense(handle: Any) -> bool:
    """Return whether the elements of a handle lie as NCCL wants them."""
    return layout_of(handle).contiguous
