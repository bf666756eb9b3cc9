"""Element types: NumPy scalar types under the names that GPU programmers use."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

f16: TypeAlias = np.float16
f32: TypeAlias = np.float32
f64: TypeAlias = np.float64
i8: TypeAlias = np.int8
i16: TypeAlias = np.int16
i32: TypeAlias = np.int32
i64: TypeAlias = np.int64
u8: TypeAlias = np.uint8
u16: TypeAlias = np.uint16
u32: TypeAlias = np.uint32
u64: TypeAlias = np.uint64
bool_: TypeAlias = np.bool_
c64: TypeAlias = np.complex64
c128: TypeAlias = np.complex128

if TYPE_CHECKING:

    class bf16(np.floating[Any]):  # noqa: N801  # reason: an element type's name
        """The type of bfloat16 for type checkers. At run time it is the type of ml_dtypes, which has no type hints."""

else:
    bf16 = ml_dtypes.bfloat16

Shape: TypeAlias = tuple[int, ...]
"""The extents of an array along its axes."""
NewShape: TypeAlias = Shape | Literal[-1]
"""A shape for `reshape`: one extent may be -1, which stands for what is left; -1 alone is (-1,)."""

FLOATING = frozenset(np.dtype(t) for t in (f16, bf16, f32, f64))
"""The floating-point element types. Random numbers and fractions can be written to these."""

SUPPORTED = FLOATING | {np.dtype(t) for t in (i8, i16, i32, i64, u8, u16, u32, u64, bool_)}
"""Every element type that a kernel may take."""

COMPLEX = frozenset(np.dtype(t) for t in (c64, c128))
"""The complex element types, for Fourier transforms: tensors may have them, kernels of the user's may not."""


def strides_of(shape: Shape, itemsize: int) -> Shape:
    """Return the strides, in bytes, of a contiguous array in C order."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


_ELEMENTS = {dtype: dtype for dtype in SUPPORTED | COMPLEX}


def element_type(dtype: "np.dtype[Any]") -> "np.dtype[Any] | None":
    """Return the canonical object for an element type; None if a tensor cannot have elements of this type.

    NumPy has several equal dtype objects: two for i64, and one more for each unpickled dtype.
    """
    return _ELEMENTS.get(dtype)


def scalar_dtype(scalar: object) -> "np.dtype[Any] | None":
    """Return the element type of a kernel that a scalar type of NumPy names: `f32`, `bf16`, or another name for one of
    them, such as `np.longlong` for i64. None for any other object, also for abstract types."""
    if not isinstance(scalar, type):
        return None
    try:
        dtype = np.dtype(scalar)
    except TypeError:  # NumPy refuses abstract types
        return None
    return element_type(dtype) if dtype.type is scalar and dtype in SUPPORTED else None


def byte_order_cure(dtype: "np.dtype[Any]", array: str) -> str | None:
    """Return the cure for an array whose elements are only in the order of other machines; None for another type.
    `array` is the user's name for it."""
    if dtype.isnative or element_type(dtype.newbyteorder("=")) is None:
        return None
    return f'Its bytes are in the order of other machines. Swap them: {array}.astype({array}.dtype.newbyteorder("="))'


def conversion_cure(dtype: "np.dtype[Any]", array: str) -> str:
    """Return the cure for an array whose element type no tensor has: a conversion. `array` is the user's name of it."""
    swap = byte_order_cure(dtype, array)
    if swap is not None:
        return swap
    if dtype.kind == "c":
        return f"Round it: {array}.astype(np.complex128)"
    if dtype.names is not None:
        return f"Take its fields by themselves: {array}[{dtype.names[0]!r}]"
    if dtype.kind in "mM":
        return f"Convert it to whole numbers: {array}.astype(np.int64)"
    return f"Convert it: {array}.astype(np.{'float64' if dtype.kind == 'f' else 'float32'})"


def as_truth(x: Any) -> Any:
    """Return elements of type bool as bytes of 0 and 1: any byte but 0 is true.

    The bytes of a mask may be others, as those of an array of bytes that is viewed as bool. What computes with a mask
    on the host reads it by this; `load_text` and `dagpu::boolean` are the same on a GPU. What moves elements keeps
    their bytes.
    """
    return x.view(np.uint8) != 0
