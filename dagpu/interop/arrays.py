"""Arrays of other libraries: the protocols that they speak, and how dagpu reads one.

DLPack is asked first, then the CUDA array interface. The CUDA array interface of PyTorch names no stream, and its
consumers in CuPy and Numba block the host on one.
"""

import operator
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np

from dagpu.backends.host.arrays import array_at
from dagpu.common.errors import DeviceError, DeviceLostError, InteropError
from dagpu.common.layout import address_of, conversion_cure, strides_of
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import HANDLES
from dagpu.handles.device_handles import Device, Stream, driver_of
from dagpu.interop.capsules import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    LEGACY,
    ArrayForm,
    ArrayMemory,
    check_address,
    form_of,
    read_capsule,
)
from dagpu.runtime.device_lookup import current_device, find_device, numbered_device


class SupportsDLPack(Protocol):
    """An array that speaks DLPack: NumPy's, PyTorch's, CuPy's, JAX's."""

    def __dlpack__(self, *, stream: None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArray(Protocol):
    """An array that speaks the CUDA array interface: Numba's, CuPy's, PyTorch's, cuDF's."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


class SupportsCudaStream(Protocol):
    """A stream of another library: of cuda.core, CuPy, and since version 2.10 of PyTorch."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class PyCudaStream(Protocol):
    """A stream of PyCUDA."""

    @property
    def handle(self) -> int: ...
    def is_done(self) -> bool: ...
    def wait_for_event(self, event: Any, /) -> object: ...


ForeignArray: TypeAlias = SupportsDLPack | SupportsCudaArray
StreamLike: TypeAlias = SupportsCudaStream | PyCudaStream | int
"""A stream of another library, or its CUstream as an integer: 1 is the legacy default stream, 2 the thread's own."""

_IMMUTABLE: Final = ("jax", "jaxlib")
"""The packages whose arrays never change, and may have one memory: a capsule below DLPack 1.0 does not say so."""

_NAMES: Final = {CPU: "the host", CUDA: "cuda", CUDA_HOST: "page-locked host memory", CUDA_MANAGED: "managed memory"}


def stream_handle(stream: StreamLike | None, call: str, where: Origin) -> int | None:
    """Return the CUstream of a stream as an integer, 1 for 0, which is the same stream; None for None.

    Raises:
        InteropError: it is no stream.
    """
    if stream is None:
        return None
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream or LEGACY
    ask = getattr(stream, "__cuda_stream__", None)
    if ask is None and _is_of_pycuda(stream):
        handle = getattr(stream, "handle", None)
        if isinstance(handle, int):
            return handle or LEGACY
    if ask is None:
        cure = "Pass an object with __cuda_stream__, or the CUstream as an integer"
        for named in ("cuda_stream", "ptr", "handle"):  # PyTorch's, CuPy's, cuda.core's
            if isinstance(getattr(stream, named, None), int):
                cure = f"Pass its CUstream: stream=s.{named}"
        raise InteropError(f"{call} at {describe(where)}: stream is {format_value(stream)}, not a stream. {cure}.")
    return int(ask()[1]) or LEGACY


def _is_of_pycuda(x: object) -> bool:
    """Return True for an object of PyCUDA's, whose arrays and streams name no stream by a protocol."""
    return type(x).__module__.partition(".")[0] == "pycuda"


@leaves_run
def stream_of(x: StreamLike, place: str | Device | None = None) -> Stream:
    """Return a stream of another library as a `Stream`, for `op.sync_on(stream)` and `op.on(...)`.

    Runs in it come after the work that its library has enqueued, and before what it enqueues later.

    Args:
        x: an object with `__cuda_stream__` (of cuda.core, CuPy, PyTorch), a stream of PyCUDA, or a CUstream as an
            integer: 1 is the legacy default stream, 2 the thread's own.
        place: the device of the stream; the current one where that is left out.

    Raises:
        InteropError: `x` is no stream, or the device is not a GPU.
        NoDeviceError: this machine has no such device.
    """
    where = here()
    handle = stream_handle(x, "stream_of", where)
    if handle is None:
        raise InteropError(f"stream_of at {describe(where)}: x is None, not a stream. The default stream is 1.")
    device = current_device() if place is None else find_device(place) if isinstance(place, str) else place
    if device.kind != "cuda":
        raise InteropError(
            f"stream_of at {describe(where)}: the current device is {device.name}, which has no CUDA streams. Name the "
            'device of the stream: stream_of(x, "cuda:0").'
        )
    return Stream(device, driver_of(device).exchange.open_stream(handle, x))


Arrival: TypeAlias = tuple[ArrayMemory, Device, int | None]
"""An array of another library that dagpu is given, its device, and the CUstream whose work so far has to happen before
the array is used; None for the device's arrival stream."""


def read_array(x: object, call: str, where: Origin, stream: StreamLike | None = None) -> Arrival:
    """Return the memory of an array of another library, and dagpu's device that has it. Nothing is copied.

    Args:
        x: the array.
        call: the name of the public call, for messages.
        where: the place of the call.
        stream: the stream in which the array is still being written, if its library does not say so itself.

    Raises:
        InteropError: `x` is no such array, or tensors cannot have its elements or its layout.
    """
    known = None if stream is None else stream_handle(stream, call, where)
    producer = None
    read = readers[type(x)](x) if known is None or type(x) is np.ndarray else None
    if read is not None:
        array, producer = read
    elif type(x) in HANDLES:
        raise InteropError(f"{call} at {describe(where)}: {x!r} is dagpu's already. Pass it on as it is.")
    elif _has(x, "__dlpack__") and _has(x, "__dlpack_device__"):
        array = _by_dlpack(x, call, where)
        remember_form(x, array)
    elif _has(x, "__cuda_array_interface__"):
        array, said = _by_interface(x, call, where, known)
        known = said if known is None else known
    else:
        cure = "Make an array of it first: numpy.asarray(x), or the array type of its library"
        raise InteropError(
            f"{call} at {describe(where)}: {format_value(x)} has neither DLPack nor the CUDA array interface. {cure}."
        )
    address, form, (kind, index), _, _ = array
    if not form.grain or address % form.grain:
        raise _wrong_elements(array, call, where)
    if kind != CUDA:
        return array, _host_device(array, call, where), None
    device = numbered_device("cuda", index)
    if known is not None:
        follow_stream(device, known, call, where)
    return array, device, producer


def _has(x: object, name: str) -> bool:
    """Return True if an array has an attribute, also if it fails: who reads it says so."""
    try:
        return not isinstance(x, type) and hasattr(x, name)
    except Exception:
        return True


def follow_stream(device: Device, stream: int, call: str, where: Origin) -> None:
    """Make the device's arrival stream wait for the work that is in a stream of another library now.

    Raises:
        InteropError: the stream is being captured.
    """
    if not driver_of(device).exchange.follow(stream):
        raise InteropError(
            f"{call} at {describe(where)}: the stream that writes the array, {stream:#x}, is being captured into a "
            "CUDA graph, so the contents never arrive. Take it over before the capture, or after the graph has run."
        )


def read_host_array(x: Any, call: str, where: Origin) -> "np.ndarray[Any, Any] | None":
    """Return an array of another library in host memory, also page-locked or managed, as a NumPy array that views it.
    Return None for an array on a GPU.

    Raises:
        InteropError: `x` speaks no protocol, or its elements have a type that NumPy lacks.
    """
    if type(x) in HANDLES or not _has(x, "__dlpack_device__"):
        return None
    if _dlpack_device(x, call, where)[0] not in (CPU, CUDA_HOST, CUDA_MANAGED):
        return None
    array = _by_dlpack(x, call, where)
    form, layout = array.form, array.form.layout
    if not form.grain or array.address % form.grain:
        raise _wrong_elements(array, call, where)
    first = layout.offset
    return array_at(array.address - first, layout.shape, layout.dtype, layout.strides, array.owner, offset=first)


def _by_dlpack(x: Any, call: str, where: Origin) -> ArrayMemory:
    if isinstance(x, np.ma.MaskedArray):
        raise InteropError(
            f"{call} at {describe(where)}: the array is a masked array, and its mask would be lost. Fill the masked "
            "elements first: x.filled(0)."
        )
    kind, index = _dlpack_device(x, call, where)
    # Of a stream that is asked for, the producer makes it wait for its own work. Only CUDA arrays know streams.
    options: dict[str, object] = {}
    if kind == CUDA:
        options["stream"] = driver_of(numbered_device("cuda", index)).exchange.arrival_stream()
    try:
        try:
            capsule = x.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # a producer of DLPack before 1.0 does not know the version
            capsule = x.__dlpack__(**options)
    except MemoryError:
        raise
    except Exception as error:
        raise _refused(x, error, call, where) from error
    try:
        array = read_capsule(capsule)
        if array is not None and array.device != (kind, index) and CUDA in (kind, array.device[0]):
            raise BufferError(f"it is of device {array.device} in DLPack's numbers, and the array of {kind, index}")
    except (BufferError, ValueError) as error:
        raise InteropError(
            f"{call} at {describe(where)}: what {type(x).__name__} gives is no capsule that dagpu reads: {error}. Ask "
            "its library for a plain array first."
        ) from error
    if array is None:
        raise InteropError(
            f"{call} at {describe(where)}: {type(x).__name__} has elements of a type that no tensor has. Convert it in "
            "its library first, for instance to float32."
        )
    if type(x).__module__.partition(".")[0] in _IMMUTABLE:
        return array._replace(read_only=True)
    return array


def _dlpack_device(x: Any, call: str, where: Origin) -> tuple[int, int]:
    """Return the device of an array in DLPack's numbers."""
    try:
        kind, index = x.__dlpack_device__()
        return int(kind), int(index)
    except Exception as error:
        raise _refused(x, error, call, where) from error


def _refused(x: object, error: Exception, call: str, where: Origin) -> InteropError:
    """Return the error for an array whose library refuses to give it, with its own words."""
    own_words = isinstance(error, BufferError | RuntimeError | TypeError | ValueError) and str(error)
    said = str(error) if own_words else f"{type(error).__name__}: {error}"
    return InteropError(
        f"{call} at {describe(where)}: {type(x).__name__} refused to be exchanged: {said.rstrip('.: ')}. Ask its "
        "library for a plain array first (in PyTorch x.detach(), x.contiguous())."
    )


def _by_interface(x: Any, call: str, where: Origin, stream: int | None) -> tuple[ArrayMemory, int | None]:
    """Read the CUDA array interface, version 2 or 3. Return the memory, and the stream that the producer names."""
    try:
        interface = x.__cuda_array_interface__
        version, mask = int(interface.get("version", 0)), interface.get("mask")
    except Exception as error:
        raise _no_array(x, error, call, where) from error
    if mask is not None:
        raise InteropError(f"{call} at {describe(where)}: the array has a mask, which would be lost. Fill it first.")
    if version < 3 and stream is None:
        raise InteropError(
            f"{call} at {describe(where)}: version {version} of the CUDA array interface does not say which stream "
            "still writes the array. Name it: stream=..., 1 for the default stream."
        )
    try:
        dtype = np.dtype(interface["typestr"])
        shape = tuple([operator.index(extent) for extent in interface["shape"]])  # plain integers: NumPy's overflow
        strides, producer = interface.get("strides"), interface.get("stream")
        address, read_only = interface["data"]
        steps = strides_of(shape, dtype.itemsize) if strides is None else strides
        found = tuple([operator.index(step) for step in steps])
        if len(found) != len(shape):
            raise ValueError(f"shape {shape} and strides {strides}")
        form, address = form_of(dtype, shape, found), operator.index(address or 0)
        check_address(address, form)
        if producer is None and _is_of_pycuda(x):  # by its word the array is ready, but its work is asynchronous
            producer = LEGACY
        stream = None if producer is None else operator.index(producer) or LEGACY
    except (BufferError, KeyError, TypeError, ValueError) as error:
        raise _no_array(x, error, call, where) from error
    index = _device_of(address, x, call, where) if address else 0
    return ArrayMemory(address, form, (CUDA, index), bool(read_only), x), stream


def _no_array(x: object, error: Exception, call: str, where: Origin) -> InteropError:
    return InteropError(
        f"{call} at {describe(where)}: the CUDA array interface of {type(x).__name__} describes no array "
        f"({type(error).__name__}: {error}). Ask its library for a plain array first."
    )


def _device_of(address: int, x: object, call: str, where: Origin) -> int:
    """Return the index of the GPU that has this address."""
    try:
        return driver_of(numbered_device("cuda", 0)).exchange.device_of(address)
    except DeviceLostError:
        raise
    except DeviceError as error:
        raise InteropError(
            f"{call} at {describe(where)}: the CUDA array interface of {type(x).__name__} names the address "
            f"{address:#x}, which is no memory of a GPU. An array of the host goes by numpy.asarray(x)."
        ) from error


def _wrong_elements(array: ArrayMemory, call: str, where: Origin) -> InteropError:
    """Return the error for an array whose elements no tensor can have, or that lie where no tensor has them."""
    dtype = array.form.layout.dtype
    if not array.form.is_known:
        return InteropError(
            f"{call} at {describe(where)}: the array has elements of {dtype}, which no tensor has. "
            f"{conversion_cure(dtype, 'x')}."
        )
    return InteropError(
        f"{call} at {describe(where)}: the elements of the array are not aligned to their {dtype.itemsize} bytes. Copy "
        "it in its library first."
    )


def _host_device(array: ArrayMemory, call: str, where: Origin) -> Device:
    """Return the device for an array that is not on a GPU: the current one, if it computes on the host."""
    kind, _ = array.device
    if kind == CPU:
        chosen = current_device()
        return numbered_device("host", 0) if chosen.kind == "cuda" else chosen
    named = _NAMES.get(kind, f"device type {kind} of DLPack")
    own = "" if call == "from_array" else "from_array(x), or "
    raise InteropError(
        f"{call} at {describe(where)}: the array is in {named}. Copy it to a tensor: {own}from_host(numpy.asarray(x))."
    )


# ---- array attributes
#
# Arrays read by their attributes, which takes a third of the time of DLPack: those of NumPy, and those of PyTorch and
# CuPy on a GPU.
#
# Of the latter, DLPack is asked for the first array of each form: element type, shape and strides, in the library's own
# terms. What it says, and what the attributes say of the address, has to agree before the attributes are read in its
# place. The libraries are found by the types of their arrays; none is imported.

MOST_FORMS: Final = 4096
"""The most forms of arrays that are remembered for one library."""


_HOST: Final = CPU, 0

_Seen: TypeAlias = tuple[Hashable, int, tuple[int, int], int, object]
"""The attributes of an array: its form; its address; its device as in DLPack; the CUstream in which the library works
there now, 0 for the default stream; an object that keeps the memory alive, whatever becomes of the array."""

_Look: TypeAlias = Callable[[Any], _Seen | None]
"""Returns the attributes of an array; None if the library's DLPack has to decide about it."""


def _torch_look(torch: Any) -> _Look:
    stream = torch._C._cuda_getCurrentRawStream  # noqa: SLF001  # the way of code that PyTorch compiles

    def look(x: Any) -> _Seen | None:
        if not x.is_cuda or x.requires_grad or x.is_neg() or x.is_conj():
            return None
        index = x.get_device()
        return (x.dtype, x.shape, x.stride()), x.data_ptr(), (CUDA, index), stream(index), x.untyped_storage()

    return look


def _cupy_look(cupy: Any) -> _Look:
    stream = cupy.cuda.get_current_stream

    def look(x: Any) -> _Seen | None:
        memory = x.data
        device = x.__dlpack_device__()  # other kinds of memory, such as managed memory, have the same attributes
        return (x.dtype, x.shape, x.strides, device[0]), memory.ptr, device, stream(device[1]).ptr, memory

    return look


_LIBRARIES: Final[dict[str, tuple[str, Callable[[Any], _Look]]]] = {
    "torch": ("Tensor", _torch_look),
    "cupy": ("ndarray", _cupy_look),
}
"""For each library the name of its type of arrays, and what makes the function that reads one."""


def _read_numpy(x: "np.ndarray[Any, Any]") -> tuple[ArrayMemory, None]:
    form = form_of(x.dtype, x.shape, x.strides)
    array: ArrayMemory = tuple.__new__(ArrayMemory, (address_of(x), form, _HOST, not x.flags.writeable, x))
    return array, None


def _read_numpy_subclass(x: "np.ndarray[Any, Any]") -> tuple[ArrayMemory, None]:
    return _read_numpy(x.view(np.ndarray))  # as NumPy's DLPack; a matrix, an array of a file


@final
class _Reader:
    """Reads the arrays of one type."""

    __slots__ = ("forms", "look")

    def __init__(self, look: _Look) -> None:
        self.look = look
        self.forms: dict[Hashable, ArrayForm] = {}

    def read(self, x: Any) -> tuple[ArrayMemory, int] | None:
        try:
            seen = self.look(x)
        except Exception:  # whatever the library raises, its `__dlpack__` raises again, with its own words
            return None
        if seen is None:
            return None
        attributes, address, device, stream, owner = seen
        form = self.forms.get(attributes)
        if form is None or not (address or not form.nbytes):  # a tensor without memory, as of PyTorch's transforms
            return None
        array: ArrayMemory = tuple.__new__(ArrayMemory, (address, form, device, False, owner))  # half of the time
        return array, stream or LEGACY

    def remember(self, x: Any, array: ArrayMemory) -> None:
        try:
            seen = self.look(x)
        except Exception:
            return
        if seen is not None and seen[1:3] == (array.address, array.device):
            if len(self.forms) >= MOST_FORMS:
                self.forms.clear()
            self.forms[seen[0]] = array.form


_libraries: Final[dict[type, _Reader]] = {}
"""The reader of each type of array that has one, but NumPy's."""

_Read: TypeAlias = Callable[[Any], tuple[ArrayMemory, int | None] | None]


@final
class _Readers(dict[type, _Read]):
    """The function that reads the arrays of a type."""

    def __missing__(self, kind: type) -> _Read:
        name = kind.__module__.partition(".")[0]
        read: _Read = _by_dlpack_alone
        if issubclass(kind, np.ndarray) and not issubclass(kind, np.ma.MaskedArray):
            read = _read_numpy_subclass
        elif name in _LIBRARIES:
            named, make = _LIBRARIES[name]
            module = sys.modules.get(name)
            if getattr(module, named, None) is kind:
                read = _libraries.setdefault(kind, _Reader(make(module))).read
        self[kind] = read
        return read


def _by_dlpack_alone(x: object) -> None:
    """Return None: arrays of this type are read by DLPack."""


readers: Final = _Readers({np.ndarray: _read_numpy})
"""For each type of array the function that returns the memory of one, and the CUstream in which its library works now,
None on the host. It returns None for an array that has to be read by DLPack."""


def remember_form(x: Any, array: ArrayMemory) -> None:
    """Remember the form of an array that DLPack has given, for other arrays like it."""
    reader = _libraries.get(type(x))
    if reader is not None and not array.read_only:
        reader.remember(x, array)
