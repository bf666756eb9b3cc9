"""DLPack capsules: memory of dagpu for other libraries, and memory of other libraries for dagpu.

The structures are those of dlpack.h, version 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html).
Two rules make an exchange safe on any thread and at any time:

- The deleter of an exported capsule only removes an entry of a table. It takes no lock and calls no driver.
- An imported capsule is read in place and never consumed. It is kept as the owner of the memory. When it is dropped,
  its own destructor calls the producer's deleter, once.
"""

import atexit
import ctypes
import struct
from functools import lru_cache
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
_TENSOR: Final = struct.Struct("=QiiiBBHQQQ")
"""DLTensor: data, type and index of the device, rank, type code, bits and lanes of elements, shape, strides, offset."""
_MANAGED_TAIL: Final = struct.Struct("=QQ")
"""The last fields of DLManagedTensor, behind its DLTensor: context, deleter."""

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

_increment: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))

_exported: Final[dict[int, tuple[object, object, int]]] = {}
"""What each exported capsule keeps alive, by the address of its structure: the owner of the memory, the structure, and
the address of its deleter. Removing an entry is atomic."""
_at_exit: Final[list[bool]] = []
"""Not empty once the interpreter exits."""


def _delete(address: int) -> None:
    """Drop what a capsule keeps alive. A consumer calls it, on any thread; ctypes takes the GIL."""
    _exported.pop(address, None)


def _destroy(capsule: int, at_exit: list[bool] = _at_exit) -> None:
    """Delete a capsule that no consumer has taken. A consumer renames the capsule that it takes."""
    for name in () if at_exit else (_VERSIONED, _UNVERSIONED):
        if _is_capsule(capsule, name):
            _exported.pop(_pointer_of(capsule, name), None)


_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACKS: Final = _FUNCTION(_delete), _FUNCTION(_destroy)
_DELETER, _DESTRUCTOR = (ctypes.cast(callback, ctypes.c_void_p).value for callback in _CALLBACKS)
_NOTHING: Final = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
"""The address of a C function that changes nothing, and needs no interpreter."""


@atexit.register
def _leave_to_the_process() -> None:
    """Keep what consumers still hold. They may drop it when Python is gone, so it is not freed from here on."""
    _at_exit.append(True)
    for kept in (_exported, *_CALLBACKS):
        _increment(kept)
    for _, _, deleter in tuple(_exported.values()):
        ctypes.c_void_p.from_address(deleter).value = _NOTHING


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
    head = _VERSIONED_HEAD.size if versioned else 0
    extents = head + _TENSOR.size + (0 if versioned else _MANAGED_TAIL.size)
    block = (ctypes.c_int64 * (extents // 8 + 2 * rank))()
    address = ctypes.addressof(block)
    code, bits = _type_code(array.dtype)
    shape, strides = address + extents, address + extents + 8 * rank
    _TENSOR.pack_into(block, head, array.address, *array.device, rank, code, bits, 1, shape, strides, 0)
    if versioned:
        _VERSIONED_HEAD.pack_into(block, 0, MAJOR, 0, 0, _DELETER, READ_ONLY if array.read_only else 0)
    else:
        _MANAGED_TAIL.pack_into(block, _TENSOR.size, 0, _DELETER)
    block[extents // 8 :] = [*array.shape, *[stride // itemsize for stride in array.strides]]
    deleter = address + (DELETER_AT if versioned else _TENSOR.size + 8)
    _exported[address] = array.owner, block, deleter
    return _new_capsule(address, _VERSIONED if versioned else _UNVERSIONED, _DESTRUCTOR)


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
def _type_code(dtype: "np.dtype[Any]") -> tuple[int, int]:
    """Return the type code and the bits of an element of this type in DLPack."""
    return _BFLOAT if dtype == bf16 else _CODES[dtype.kind], dtype.itemsize * 8


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
