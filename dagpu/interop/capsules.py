"""DLPack capsules: memory of dagpu for other libraries, and memory of other libraries for dagpu.

The structures are those of dlpack.h, version 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html).
Two rules make an exchange safe on any thread and at any time:

- An exported capsule is NumPy's, of an array over the memory, with the device filled in. Its deleter and destructor are
  C functions, which work where a callback of ctypes would not: while an exception is under way, and at the exit of the
  interpreter.
- An imported capsule is read in place and never consumed. It is kept as the owner of the memory. When it is dropped,
  its own destructor calls the producer's deleter, once.
"""

import ctypes
import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.backends.host.arrays import bytes_at
from dagpu.common.dtypes import Shape, bf16, strides_of
from dagpu.common.reference_queue import Reference

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3
CUDA_MANAGED: Final = 13

READ_ONLY: Final = 1
"""The flag of a versioned capsule whose memory the consumer must not write."""

_VERSIONED: Final = b"dltensor_versioned"
_UNVERSIONED: Final = b"dltensor"
LEGACY: Final = 1
"""The CUstream of the legacy default stream, in DLPack's numbers as in the driver's."""

MAJOR: Final = 1
"""The major version of DLPack that is spoken here."""

_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""The type codes of DLPack, by NumPy's kind of element type."""
_BFLOAT: Final = 4


_VERSIONED_HEAD: Final = struct.Struct("=IIQQQ")
"""The first fields of DLManagedTensorVersioned: major and minor version, context, deleter, flags."""
DELETER_AT: Final = 16
"""The offset of the deleter in a DLManagedTensorVersioned."""
_FLAGS_AT: Final = 24
"""The offset of the flags in it."""
_DEVICE_AT: Final = 8
"""The offset of the type of the device in a DLTensor; its index follows."""
_CODE_AT: Final = 20
"""The offset of the type code of elements."""
_TENSOR: Final = struct.Struct("=QiiiBBHQQQ")
"""DLTensor: data, type and index of the device, rank, type code, bits and lanes of elements, shape, strides, offset."""

# Functions of their own: other modules may set the argument types of those of `ctypes.pythonapi`.
_is_capsule: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: Final[set[Reference[None]]] = set()
"""The arrays that exported capsules keep alive, as weak references."""


@final
class ArrayMemory(NamedTuple):
    """An array in memory: where it is, and how its elements lie there."""

    address: int
    """The address of the first element."""
    shape: Shape
    strides: Shape
    """In bytes."""
    dtype: "np.dtype[Any]"
    device: tuple[int, int]
    """The type of device in DLPack's numbers, and the index."""
    read_only: bool
    owner: object
    """The object that keeps the memory alive."""


def extent_of(array: ArrayMemory) -> tuple[int, int]:
    """Return the address of the first byte of an array's elements, and the address after the last one."""
    low = high = array.address
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if not extent:
            return 0, 0
        if stride > 0:
            high += (extent - 1) * stride
        else:
            low += (extent - 1) * stride
    return low, high + array.dtype.itemsize


def make_capsule(array: ArrayMemory, *, versioned: bool) -> object:
    """Return a capsule of this memory. It keeps `array.owner` alive until its consumer deletes it.

    Args:
        array: the memory. Its strides are multiples of the size of an element.
        versioned: true for a consumer that knows DLPack 1.0, which can be told that the memory is read-only.
    """
    low, high = extent_of(array)
    bits = np.dtype(np.uint16) if array.dtype == bf16 else array.dtype
    view: Any = np.ndarray(
        array.shape, bits, bytes_at(low, high - low, array.owner), array.address - low if high else 0, array.strides
    )
    _exported.add(Reference(view, _exported.discard))
    capsule = view.__dlpack__(max_version=(MAJOR, 0)) if versioned else view.__dlpack__()
    place = _pointer_of(id(capsule), _VERSIONED if versioned else _UNVERSIONED)
    if versioned:
        if array.read_only:
            ctypes.c_uint64.from_address(place + _FLAGS_AT).value |= READ_ONLY
        place += _VERSIONED_HEAD.size
    ctypes.c_uint64.from_address(place).value = array.address
    kind, index = array.device
    if kind != CPU:
        ctypes.c_int32.from_address(place + _DEVICE_AT).value = kind
        ctypes.c_int32.from_address(place + _DEVICE_AT + 4).value = index
    if bits is not array.dtype:
        ctypes.c_uint8.from_address(place + _CODE_AT).value = _BFLOAT
    return capsule


def read_capsule(capsule: object) -> ArrayMemory | None:
    """Return the memory of a capsule, which is not consumed: the result keeps it alive.

    Return None if the elements have a type that NumPy and ml_dtypes lack.

    Raises:
        BufferError: it is no capsule of DLPack that this module can read.
    """
    place = id(capsule)
    if _is_capsule(place, _VERSIONED):
        return read_versioned(_pointer_of(place, _VERSIONED), capsule)
    if not _is_capsule(place, _UNVERSIONED):
        raise BufferError(f"{type(capsule).__name__} is not a capsule of DLPack, or another consumer has taken it")
    return _read_tensor(_pointer_of(place, _UNVERSIONED), capsule, read_only=False)


def read_versioned(address: int, owner: object) -> ArrayMemory | None:
    """Return the memory that a DLManagedTensorVersioned describes, which `owner` keeps alive; None as `read_capsule`.

    Raises:
        BufferError: it has another major version.
    """
    major, _, _, _, flags = _VERSIONED_HEAD.unpack(ctypes.string_at(address, _VERSIONED_HEAD.size))
    if major != MAJOR:
        raise BufferError(f"the capsule is of DLPack {major}, and dagpu reads version {MAJOR}")
    return _read_tensor(address + _VERSIONED_HEAD.size, owner, read_only=bool(flags & READ_ONLY))


def _read_tensor(place: int, owner: object, *, read_only: bool) -> ArrayMemory | None:
    data, kind, index, rank, code, bits, lanes, extents, steps, offset = _TENSOR.unpack(
        ctypes.string_at(place, _TENSOR.size)
    )
    dtype = _element_type(code, bits, lanes)
    if dtype is None:
        return None
    shape = _integers(extents, rank)
    itemsize = dtype.itemsize
    strides = tuple([step * itemsize for step in _integers(steps, rank)]) if steps else strides_of(shape, itemsize)
    return ArrayMemory(data + offset, shape, strides, dtype, (kind, index), read_only, owner)


def _integers(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"={count}q", ctypes.string_at(address, 8 * count)) if count else ()


@lru_cache
def _element_type(code: int, bits: int, lanes: int) -> "np.dtype[Any] | None":
    if lanes != 1 or bits % 8:
        return None
    if code == _BFLOAT:
        return np.dtype(bf16) if bits == 16 else None
    kind = next((kind for kind, number in _CODES.items() if number == code), None)
    if kind is None:
        return None
    try:
        return np.dtype(f"{kind}{bits // 8}")
    except TypeError:
        return None


def exported_count() -> int:
    """Return the number of capsules that consumers, or nobody yet, still hold."""
    return len(_exported)
