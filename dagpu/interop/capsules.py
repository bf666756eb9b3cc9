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
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.backends.host.arrays import array_at
from dagpu.common.frozen import frozen
from dagpu.common.layout import MOST_AXES, MOST_ELEMENTS, Layout, Shape, bf16, element_type, strides_of

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
_BITS: Final = np.dtype(np.uint16)
"""The type of arrays that NumPy exports for bfloat16."""

_TENSOR: Final = struct.Struct("=QiiiBBHQQQ")
"""DLTensor: data, type and index of the device, rank, type code, bits and lanes of elements, shape, strides, offset."""
_VERSIONED_TENSOR: Final = struct.Struct("=IIQQQQiiiBBHQQQ")
"""DLManagedTensorVersioned: major and minor version, context, deleter and flags, and a DLTensor."""
_TENSOR_AT: Final = _VERSIONED_TENSOR.size - _TENSOR.size
"""The offset of the DLTensor in a DLManagedTensorVersioned."""
_DEVICE_AT: Final = 8
"""The offset of the type of the device in a DLTensor; its index follows."""
_CODE_AT: Final = 20
"""The offset of the type code of elements."""

_tensor_at: Final = (ctypes.c_char * _TENSOR.size).from_address
_versioned_tensor_at: Final = (ctypes.c_char * _VERSIONED_TENSOR.size).from_address

# Functions of their own: other modules may set the argument types of those of `ctypes.pythonapi`.
_is_capsule: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@final
@frozen
class ArrayForm:
    """All that is known of an array but its address. An import finds the form of an array by one look-up."""

    layout: Layout
    """Its layout in a block that begins with the first byte of its elements."""
    nbytes: int
    """The bytes from there to the end of the last element, gaps included; 0 if there are no elements."""
    grain: int
    """The bytes of an element, of which a tensor's address is a multiple. 0 if tensors cannot have this form: their
    elements have other types, or their strides are multiples of this."""
    contiguous: bool
    """True if the elements are in C order without gaps."""
    is_known: bool
    """True if tensors can have elements of this type."""
    is_bfloat: bool
    """True if NumPy lacks the type and DLPack has it: bfloat16."""


@lru_cache(4096)
def form_of(dtype: "np.dtype[Any]", shape: Shape, strides: Shape) -> ArrayForm:
    """Return the form of an array. The strides are in bytes.

    Raises:
        ValueError: no array has this shape.
    """
    if len(shape) > MOST_AXES or min(shape, default=0) < 0 or prod(filter(None, shape)) > MOST_ELEMENTS:
        raise ValueError(f"no array has the shape {shape}")
    found = element_type(dtype)
    itemsize = dtype.itemsize
    if itemsize and any(stride % itemsize for stride in strides):  # no step is made along an extent of 1
        step = 0 not in shape
        strides = tuple([stride if step and n > 1 else itemsize for n, stride in zip(shape, strides, strict=True)])
    low = high = 0
    if 0 not in shape:
        for extent, stride in zip(shape, strides, strict=True):
            if stride > 0:
                high += (extent - 1) * stride
            else:
                low -= (extent - 1) * stride
        high += itemsize
    layout = Layout(dtype if found is None else found, shape, strides, low)
    is_aligned = itemsize and not any(stride % itemsize for stride in strides)
    grain = itemsize if found is not None and is_aligned else 0
    return ArrayForm(layout, low + high, grain, layout.contiguous, found is not None, found == bf16)


@final
class ArrayMemory(NamedTuple):
    """An array in memory: where it is, and its form."""

    address: int
    """The address of the first element."""
    form: ArrayForm
    device: tuple[int, int]
    """The type of device in DLPack's numbers, and the index."""
    read_only: bool
    owner: object
    """The object that keeps the memory alive."""

    @property
    def start(self) -> int:
        """The address of the first byte of all elements; 0 if there are none."""
        return self.address - self.form.layout.offset if self.form.nbytes else 0


def make_capsule(array: ArrayMemory, *, versioned: bool) -> object:
    """Return a capsule of this memory. It keeps `array.owner` alive until its consumer deletes it.

    Args:
        array: the memory. Its strides are multiples of the size of an element.
        versioned: true for a consumer that knows DLPack 1.0, which can be told that the memory is read-only.
    """
    address, form, (kind, index), read_only, owner = array
    layout, is_bfloat = form.layout, form.is_bfloat
    dtype, first = _BITS if is_bfloat else layout.dtype, layout.offset
    view: Any = array_at(
        address - first, layout.shape, dtype, layout.strides, owner, offset=first, read_only=read_only and versioned
    )
    capsule: object = view.__dlpack__(max_version=(MAJOR, 0)) if versioned else view.__dlpack__()
    if kind != CPU or is_bfloat:
        place = _pointer_of(id(capsule), _VERSIONED if versioned else _UNVERSIONED) + versioned * _TENSOR_AT
        ctypes.c_uint64.from_address(place + _DEVICE_AT).value = kind | index << 32
        if is_bfloat:
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
        address = _pointer_of(place, _VERSIONED)
        major, _, _, _, flags, *fields = _VERSIONED_TENSOR.unpack_from(_versioned_tensor_at(address))
        if major != MAJOR:
            raise BufferError(f"the capsule is of DLPack {major}, and dagpu reads version {MAJOR}")
        return _array_memory(fields, capsule, read_only=bool(flags & READ_ONLY))
    if not _is_capsule(place, _UNVERSIONED):
        raise BufferError(f"{type(capsule).__name__} is not a capsule of DLPack, or another consumer has taken it")
    fields = list(_TENSOR.unpack_from(_tensor_at(_pointer_of(place, _UNVERSIONED))))
    return _array_memory(fields, capsule, read_only=False)


def _array_memory(fields: Sequence[int], owner: object, *, read_only: bool) -> ArrayMemory | None:
    """Return the memory that the fields of a DLTensor describe; None as `read_capsule`."""
    data, kind, index, rank, code, bits, lanes, extents, steps, offset = fields
    if not 0 <= rank <= MOST_AXES or (rank and not extents):
        raise BufferError(f"the capsule says {rank} axes, and their extents are at {extents:#x}")
    int64s = _int64s(rank)
    form = _form_of_tensor(code, bits, lanes, tuple(int64s(extents)[:]), tuple(int64s(steps)[:]) if steps else None)
    if form is None:
        return None
    address = data + offset
    check_address(address if data else 0, form)
    return ArrayMemory(address, form, (kind, index), read_only, owner)


def check_address(address: int, form: ArrayForm) -> None:
    """Check that an array may begin at this address.

    Raises:
        BufferError: it has elements, and they would be nowhere.
    """
    start = address - form.layout.offset
    if form.nbytes and not (address and start >= 0 and start + form.nbytes < 1 << 63):
        raise BufferError(f"its first element would be at {address:#x}, where no array is")


@lru_cache
def _int64s(count: int) -> Callable[[int], "ctypes.Array[ctypes.c_int64]"]:
    """Return the function that views so many integers at an address."""
    return (ctypes.c_int64 * count).from_address


@lru_cache(4096)
def _form_of_tensor(code: int, bits: int, lanes: int, shape: Shape, steps: Shape | None) -> ArrayForm | None:
    """Return the form of a DLTensor, whose strides count elements; None stands for C order."""
    dtype = _element_type(code, bits, lanes)
    if dtype is None:
        return None
    itemsize = dtype.itemsize
    strides = strides_of(shape, itemsize) if steps is None else tuple([step * itemsize for step in steps])
    return form_of(dtype, shape, strides)


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
