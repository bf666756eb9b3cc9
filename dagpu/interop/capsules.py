"""DLPack capsules: memory of dagpu for other libraries, and memory of other libraries for dagpu.

The structures are those of dlpack.h, version 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html), in ctypes.
Two rules make an exchange safe on any thread and at any time:

- The deleter of an exported capsule only removes an entry of a table. It takes no lock and calls no driver.
- An imported capsule is read in place and never consumed. It is kept as the owner of the memory. When it is dropped,
  its own destructor calls the producer's deleter, once.
"""

import ctypes
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.common.dtypes import Shape, bf16, strides_of

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3
CUDA_MANAGED: Final = 13

READ_ONLY: Final = 1
"""The flag of a versioned capsule whose memory the consumer must not write."""

_VERSIONED: Final = b"dltensor_versioned"
_UNVERSIONED: Final = b"dltensor"
_MAJOR: Final = 1

_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""The type codes of DLPack, by NumPy's kind of element type."""
_BFLOAT: Final = 4


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", _Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# Functions of their own: other modules may set the argument types of those of `ctypes.pythonapi`. The last two take the
# capsule as a plain pointer, because a destructor must not create a reference to it.
_new_capsule: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_capsule: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: Final[dict[int, tuple[object, object, object]]] = {}
"""What each exported capsule keeps alive, by the address of its structure: the owner of the memory, and the structures.

Removing an entry is atomic. An interpreter that exits leaves it as it is: consumers may live longer."""


def _delete(address: int) -> None:
    """Drop what a capsule keeps alive. A consumer calls it, on any thread; ctypes takes the GIL."""
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    """Delete a capsule that no consumer has taken. A consumer renames the capsule that it takes."""
    for name in (_VERSIONED, _UNVERSIONED):
        if _is_capsule(capsule, name):
            _exported.pop(_pointer_of(capsule, name), None)


_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACKS: Final = _FUNCTION(_delete), _FUNCTION(_destroy)
_DELETER, _DESTRUCTOR = (ctypes.cast(callback, ctypes.c_void_p).value for callback in _CALLBACKS)


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


def make_capsule(array: ArrayMemory, *, versioned: bool) -> object:
    """Return a capsule of this memory. It keeps `array.owner` alive until its consumer deletes it.

    Args:
        array: the memory. Its strides are multiples of the size of an element.
        versioned: true for a consumer that knows DLPack 1.0, which can be told that the memory is read-only.
    """
    rank, itemsize = len(array.shape), array.dtype.itemsize
    extents = (ctypes.c_int64 * (2 * rank))(*array.shape, *(stride // itemsize for stride in array.strides))
    start = ctypes.addressof(extents)
    pointer = ctypes.POINTER(ctypes.c_int64)
    made: VersionedTensor | _Managed = VersionedTensor() if versioned else _Managed()
    made.tensor = _Tensor(
        array.address,
        *array.device,
        rank,
        _BFLOAT if array.dtype == bf16 else _CODES[array.dtype.kind],
        itemsize * 8,
        1,
        ctypes.cast(start, pointer),
        ctypes.cast(start + 8 * rank, pointer),
        0,
    )
    made.deleter = _DELETER
    if isinstance(made, VersionedTensor):
        made.version, made.flags = _Version(_MAJOR, 0), READ_ONLY if array.read_only else 0
    address = ctypes.addressof(made)
    _exported[address] = array.owner, made, extents
    return _new_capsule(address, _VERSIONED if versioned else _UNVERSIONED, _DESTRUCTOR)


def read_capsule(capsule: object) -> ArrayMemory | None:
    """Return the memory of a capsule, which is not consumed: the result keeps it alive.

    Return None if the elements have a type that NumPy and ml_dtypes lack.

    Raises:
        BufferError: it is no capsule of DLPack that this module can read.
    """
    place = id(capsule)
    flags = 0
    if _is_capsule(place, _VERSIONED):
        versioned = VersionedTensor.from_address(_pointer_of(place, _VERSIONED))
        if versioned.version.major != _MAJOR:
            raise BufferError(f"the capsule is of DLPack {versioned.version.major}, and dagpu reads version {_MAJOR}")
        flags, tensor = versioned.flags, versioned.tensor
    elif _is_capsule(place, _UNVERSIONED):
        tensor = _Managed.from_address(_pointer_of(place, _UNVERSIONED)).tensor
    else:
        raise BufferError(f"{type(capsule).__name__} is not a capsule of DLPack, or another consumer has taken it")
    dtype = _element_type(tensor.code, tensor.bits, tensor.lanes)
    if dtype is None:
        return None
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = strides_of(shape, dtype.itemsize)
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    device = tensor.device_type, tensor.device_id
    return ArrayMemory(address, shape, strides, dtype, device, bool(flags & READ_ONLY), capsule)


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
