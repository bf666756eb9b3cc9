"""Element types, and the layout of an array in its memory."""

import operator
from collections.abc import Sequence
from ctypes import c_size_t
from functools import lru_cache
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final

import ml_dtypes
import numpy as np

from dagpu.common.errors import NotReadyError, PartitionError, ShapeError
from dagpu.common.frozen import plain
from dagpu.common.wrong_arguments import format_value

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

COMPLEX = frozenset(np.dtype(t) for t in (c64, c128))
"""The complex element types: pairs of f32, or of f64."""

SUPPORTED = FLOATING | COMPLEX | {np.dtype(t) for t in (i8, i16, i32, i64, u8, u16, u32, u64, bool_)}
"""Every element type of a tensor that is no structure."""


def strides_of(shape: Shape, itemsize: int) -> Shape:
    """Return the strides, in bytes, of a contiguous array in C order."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def part_type(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type of the real part of elements: f32 for c64, f64 for c128, and itself for a real type."""
    return _PARTS.get(dtype, dtype)


_PARTS: dict["np.dtype[Any]", "np.dtype[Any]"] = {np.dtype(c64): np.dtype(f32), np.dtype(c128): np.dtype(f64)}
_ELEMENTS = {dtype: dtype for dtype in SUPPORTED}


def element_type(dtype: "np.dtype[Any]") -> "np.dtype[Any] | None":
    """Return the canonical object for an element type; None if a tensor cannot have elements of this type.

    NumPy has several equal dtype objects: two for i64, and one more for each unpickled dtype.
    """
    found = _ELEMENTS.get(dtype)
    return record_type(dtype) if found is None and dtype.names is not None else found


_RECORDS: dict["np.dtype[Any]", "np.dtype[Any]"] = {}
MOST_RECORD_BYTES: Final = 16 * 1024
"""The most bytes of one structure."""


def record_type(dtype: "np.dtype[Any]") -> "np.dtype[Any] | None":
    """Return the canonical object for the type of a structure; None if it has a field that no kernel can take."""
    found = _RECORDS.get(dtype)
    if found is None and _is_record(dtype) and 0 < dtype.itemsize <= MOST_RECORD_BYTES:
        found = _RECORDS.setdefault(dtype, dtype)
    return found


def _is_record(dtype: "np.dtype[Any]") -> bool:
    """Return true if all fields of a structure, and of structures in it, are numbers in the byte order of a GPU."""
    for field, *_ in () if dtype.fields is None else dtype.fields.values():
        inner = field.base
        if not (_is_record(inner) if inner.names is not None else inner in _ELEMENTS and inner.isnative):
            return False
    return bool(dtype.names)


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


# ---- layout
#
# The layout of an array in its memory, and the arithmetic of shapes, tiles and slices.
#
# This module does not depend on devices.

_DATA_AT: Final = object.__basicsize__
"""The offset of the field `data` in NumPy's struct of an array, its first after the head that all objects have. The
macro PyArray_DATA of NumPy's C API reads it in place, so it stays where it is."""

MOST_AXES: Final = 64
"""The most axes of an array of NumPy (NPY_MAXDIMS), and so of a tensor, whose contents are such an array."""
MOST_ELEMENTS: Final = 2**63 // 16 - 1
"""The largest product of the extents of an array, except extents of 0. Byte offsets have 64 bits, elements at most 16
bytes."""


@final
@plain
class Layout:
    """The position of an array in a block of memory: `offset` and `strides` in bytes, `shape` in elements."""

    dtype: "np.dtype[Any]"
    shape: Shape
    strides: Shape
    offset: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """True if the elements are in C order without gaps. An axis of extent 1 may have any stride."""
        shape, strides = self.shape, self.strides
        dense, wanted = True, self.dtype.itemsize
        for axis in range(len(shape) - 1, -1, -1):
            dense &= shape[axis] == 1 or strides[axis] == wanted
            wanted *= shape[axis]
        return dense or wanted == 0


def contiguous_layout(shape: Shape, dtype: "np.dtype[Any]") -> Layout:
    """Return the layout of a new array in C order."""
    if dtype.metadata is not None:  # equal to the element type without it, but not the same
        return Layout(dtype, shape, strides_of(shape, dtype.itemsize), 0)
    return _known_layout(shape, dtype)


@lru_cache(1024)
def _known_layout(shape: Shape, dtype: "np.dtype[Any]") -> Layout:
    """Return the layout of a new array in C order: the same object again, which compares by identity at once."""
    return Layout(dtype, shape, strides_of(shape, dtype.itemsize), 0)


def as_shape(shape: Any, what: str = "shape") -> Shape:
    """Return `shape` as a tuple of extents >= 0. `what` names it in messages.

    Raises:
        ShapeError: `shape` is not a sequence of whole numbers, or an extent is negative.
    """
    if type(shape) is tuple:
        for extent in shape:
            if type(extent) is not int or extent < 0:
                break
        else:
            if 0 in shape:
                _check_empty(shape, what)
            if len(shape) > MOST_AXES:
                raise _too_many_axes(shape, what)
            return shape
    listed = isinstance(shape, Sequence | np.ndarray) and not isinstance(shape, str | bytes | bytearray)
    try:
        extents = tuple(map(operator.index, shape)) if listed and not any(type(e) is bool for e in shape) else None
    except TypeError:
        extents = None
    if extents is None:
        whole = f"({shape},), or with all extents in one tuple: ({shape}, ...)"
        cure = whole if isinstance(shape, int) else "(rows, columns), or (n,) for one axis"
        raise ShapeError(f"{what} {format_value(shape)} is not a tuple of whole numbers. Write it as {cure}.")
    if any(e < 0 for e in extents):
        raise ShapeError(f"{what} {shape!r} has a negative extent. Extents count elements: 0 or more.")
    if 0 in extents:
        _check_empty(extents, what)
    if len(extents) > MOST_AXES:
        raise _too_many_axes(extents, what)
    return extents


def _too_many_axes(extents: Shape, what: str) -> ShapeError:
    """Return the error for a shape that no array of NumPy can have."""
    return ShapeError(f"{what} has {len(extents)} axes; arrays have at most {MOST_AXES}. Combine axes into one.")


def _check_empty(extents: Shape, what: str) -> None:
    """Raise a `ShapeError` for a shape without elements whose strides would not fit into 64 bits.

    Arrays with elements need no such check: they do not fit into memory before that.
    """
    if prod(filter(None, extents)) > MOST_ELEMENTS:
        raise ShapeError(
            f"{what} {extents} has no elements, but the product of its other extents is more than {MOST_ELEMENTS:,}, "
            "the limit for every array. Write smaller extents beside the 0."
        )


def reshape_layout(layout: Layout, shape: object) -> Layout:
    """Return the layout of the same elements in C order under another shape. One extent may be -1, which stands for the
    number that gives as many elements.

    Raises:
        ShapeError: the number of elements differs, or the elements are not contiguous.
    """
    new = as_shape(_with_open_extent(layout, shape))
    if prod(new) != layout.size:
        raise ShapeError(
            f"cannot reshape {layout.shape} ({layout.size} elements) to {new} ({prod(new)} elements). "
            "Give a shape with as many elements."
        )
    if not layout.contiguous:
        raise ShapeError(
            f"cannot reshape a strided view of shape {layout.shape} and strides {layout.strides}: its elements "
            "do not lie in one piece. Make them so with dup(...) first."
        )
    return Layout(layout.dtype, new, strides_of(new, layout.dtype.itemsize), layout.offset)


def _with_open_extent(layout: Layout, shape: Any) -> Any:
    """Return a shape with a number in the place of its -1: that which gives it as many elements as the layout has. The
    shape -1 is (-1,). Any other shape is returned as it is.

    Raises:
        ShapeError: there are two of them, or no number gives as many elements, or each does.
    """
    if type(shape) is int and shape == -1:
        return (layout.size,)
    if not isinstance(shape, tuple | list) or not any(type(extent) is int and extent == -1 for extent in shape):
        return shape
    others = as_shape(tuple([extent for extent in shape if not (type(extent) is int and extent == -1)]))
    if len(others) < len(shape) - 1:
        raise ShapeError(f"shape {shape!r} leaves several extents open. Write -1 for one of them at most.")
    count = prod(others)
    if not count or layout.size % count:
        raise ShapeError(
            f"cannot reshape {layout.shape} ({layout.size} elements) to {tuple(shape)}: no one number in the place of "
            "-1 gives as many elements. Write extents whose product divides that number."
        )
    return tuple([layout.size // count if extent == -1 else extent for extent in shape])


Item: TypeAlias = int | slice | EllipsisType | None
Index: TypeAlias = Item | tuple[Item, ...]
"""What stands in the square brackets of a tensor: for each axis a whole number or a `slice`, with Python's rules for
bounds and steps; `...` for as many whole axes as are left, and None for a new axis of extent 1."""


def slice_layout(layout: Layout, index: object) -> Layout:
    """Return the layout of the part that `t[index]` names, in the same memory.

    Raises:
        ShapeError: a number is out of range, there are more numbers and slices than axes, or an item is neither a whole
            number, nor a slice of them, nor `...`, nor None.
    """
    items = index if type(index) is tuple else (index,)
    named = sum(item is not None and item is not ... for item in items)
    rank = len(layout.shape)
    if named > rank:
        raise ShapeError(f"{named} ranges for a tensor of {rank} axes {layout.shape}. Give at most one for each axis.")
    if sum(item is ... for item in items) > 1:
        raise ShapeError(f"several ... in one index of a tensor of shape {layout.shape}. Write one of them.")
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = layout.offset, 0

    def keep(count: int) -> None:
        nonlocal axis
        shape.extend(layout.shape[axis : axis + count])
        strides.extend(layout.strides[axis : axis + count])
        axis += count

    for item in items:
        if item is None:
            shape.append(1)
            strides.append(layout.dtype.itemsize)
        elif item is ...:
            keep(rank - named)
        else:
            extent, stride = layout.shape[axis], layout.strides[axis]
            if isinstance(item, slice):
                steps = _steps_of(item, extent, axis)
                # A step beyond the axis selects one element at most, so any stride works. This one is not larger than
                # memory.
                shape.append(len(steps))
                strides.append(stride * max(-extent, min(steps.step, extent)))
                start = steps.start if steps else 0
            else:
                start = _place_of(item, extent, axis)
            offset += stride * start if layout.size else 0
            axis += 1
    keep(rank - axis)
    if len(shape) > MOST_AXES:
        raise _too_many_axes(tuple(shape), "the index")
    return Layout(layout.dtype, tuple(shape), tuple(strides), offset)


def _steps_of(part: slice, extent: int, axis: int) -> range:
    """Return the indices that a slice of an axis names."""
    try:
        if bool in map(type, (part.start, part.stop, part.step)):
            raise TypeError("True and False are no numbers")  # Python's slices take them for 1 and 0
        return range(*part.indices(extent))
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"range {part!r} of axis {axis}: {error}. Use whole numbers and a step that is not 0."
        ) from None


def whole_number(item: Any, axis: int) -> int:
    """Return an item of an index as a whole number. `axis` is the place of the item, for messages.

    Raises:
        ShapeError: it is none.
    """
    try:
        if isinstance(item, bool | np.bool_):
            raise TypeError
        return operator.index(item)
    except (TypeError, NotReadyError):  # a handle or an op has no value
        what = f"index {format_value(item)} of axis {axis} is no whole number"
        raise ShapeError(f"{what}. {_index_cure(item)}.") from None


def _place_of(item: Any, extent: int, axis: int) -> int:
    """Return the index that a whole number names, which counts from the end if it is negative."""
    place = whole_number(item, axis)
    if not -extent <= place < extent:
        within = f"Give {-extent} to {extent - 1}" if extent else "A slice of it is empty: write : there"
        raise ShapeError(f"index {place} of axis {axis} is out of range: it has {extent} elements. {within}.")
    return place + extent if place < 0 else place


def _index_cure(item: Any) -> str:
    """Return the cure for an item of an index that chooses elements by their values, or by a list of places."""
    first = item[0] if isinstance(item, list) and item else item
    if isinstance(first, bool | np.bool_) or (isinstance(item, np.ndarray) and item.dtype.kind == "b"):
        return "Choose by a mask with array.where(mask, t, 0), which keeps the shape"
    if isinstance(item, list | np.ndarray):
        return "Places in a list are for array.take(t, from_host(np.array(places)))"
    if hasattr(type(item), "to_host"):
        return "Places in a tensor are for array.take(t, places), a mask for array.where(mask, t, 0)"
    return "Write a number, a slice such as 1:, ... or None"


@final
@plain
class Viewed:
    """What stands in the place of an index for `t.view(dtype)`."""

    dtype: Any


def viewed_type(dtype: object) -> "np.dtype[Any] | None":
    """Return the element type that the argument of `t.view` names; None if it names none."""
    try:
        return element_type(np.dtype(dtype)) if isinstance(dtype, type | np.dtype) else None
    except TypeError:  # NumPy refuses abstract types
        return None


def part_layout(layout: Layout, part: object) -> Layout:
    """Return the layout of `t[part]`, or of `t.view(dtype)` for a `Viewed`.

    Raises:
        ShapeError: there is no such part.
    """
    if type(part) is not Viewed:
        return slice_layout(layout, part)
    dtype = viewed_type(part.dtype)
    if dtype is None:
        raise ShapeError(f"{format_value(part.dtype)} is not an element type. Say t.view(i32), with i32 from dagpu.")
    return view_layout(layout, dtype)


def view_layout(layout: Layout, dtype: "np.dtype[Any]") -> Layout:
    """Return the layout of the same bytes as elements of another type. As in NumPy, the last axis gets more or fewer
    elements where the types differ in size.

    Raises:
        ShapeError: the sizes differ, and the last axis is not contiguous, or does not have a whole number of elements.
    """
    before, after = layout.dtype.itemsize, dtype.itemsize
    if before == after:
        return Layout(dtype, layout.shape, layout.strides, layout.offset)
    shape, strides = layout.shape, layout.strides
    what = f"cannot read a tensor of {layout.dtype.name}, shape {shape}, as {dtype.name}: "
    if not shape:
        raise ShapeError(f"{what}it has no axis that could get another extent. Give it one: t[None].")
    if shape[-1] != 1 and strides[-1] != before:
        raise ShapeError(f"{what}its last axis is not contiguous. Make it so with dup(...) first.")
    if shape[-1] * before % after:
        raise ShapeError(
            f"{what}its last axis has {shape[-1] * before} bytes, which is not a multiple of {after}. Slice it before, "
            "so that it is."
        )
    rows = [stride for extent, stride in zip(shape[:-1], strides[:-1], strict=True) if extent != 1]
    if any(place % after for place in (layout.offset, *rows)):
        raise ShapeError(f"{what}a row does not begin at a multiple of {after} bytes. Make it so with dup(...) first.")
    return Layout(dtype, (*shape[:-1], shape[-1] * before // after), (*strides[:-1], after), layout.offset)


def share_bytes(one: Layout, other: Layout) -> bool:
    """Return whether two arrays in one block of memory have a byte in common. It is exact where that is found by some
    thousand steps, as it is for parts of matrices; for stranger strides it is true if their first and last bytes say
    so."""
    first, second, most = _bytes_of(one), _bytes_of(other), cast(Any, _MOST_WORK)  # the stubs know two numbers alone
    try:
        return np.shares_memory(first, second, max_work=most)
    except np.exceptions.TooHardError:
        return np.may_share_memory(first, second)


_MOST_WORK: Final = 10_000
"""The steps of `numpy.shares_memory` at most: about a millisecond."""


class _Addresses:
    """Tells NumPy of an array at an address without memory. Nothing reads it."""

    def __init__(self, layout: Layout) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{layout.dtype.itemsize}", "shape": layout.shape, "strides": layout.strides,
            "data": (1 << 40 | layout.offset, True),
        }  # fmt: skip


def _bytes_of(layout: Layout) -> "np.ndarray[Any, Any]":
    return np.asarray(_Addresses(layout))


def check_tiling(shape: Shape, tile: object, partial: object) -> tuple[Shape, Shape]:
    """Check a tile against a shape, and return the tile and its grid: the number of tiles along each axis.

    Raises:
        PartitionError: the rank differs, a tile extent is below 1, or (unless `partial`) it does not divide its axis.
    """
    try:
        cut = as_shape(tile, "tile")
    except ShapeError as error:
        raise PartitionError(str(error)) from None
    if not isinstance(partial, bool | np.bool_):
        raise PartitionError(
            f"partial is {format_value(partial)}, but True or False is wanted. Say partial=True, or leave it out."
        )
    return _check_extents(shape, cut, bool(partial))


@lru_cache(maxsize=1024)
def _check_extents(shape: Shape, cut: Shape, partial: bool) -> tuple[Shape, Shape]:
    """Check plain extents and return the tile and the grid. Cached, because a pipeline cuts few shapes many times."""
    if len(cut) != len(shape):
        raise PartitionError(
            f"tile {cut} has {len(cut)} axes, the tensor {shape} has {len(shape)}. Give one tile extent for each axis."
        )
    grid = []
    for axis, (extent, step) in enumerate(zip(shape, cut, strict=True)):
        if step < 1:
            raise PartitionError(
                f"tile {cut} has extent {step} along axis {axis} of shape {shape}. A tile has at least 1."
            )
        if extent % step and not partial:
            raise PartitionError(
                f"tile {cut} does not cut shape {shape}: axis {axis} has {extent} elements, which is not a multiple of "
                f"{step}. Choose a tile that divides it, or say partial=True to allow smaller tiles at the edge."
            )
        grid.append(-(-extent // step))
    return cut, tuple(grid)


def address_of(array: "np.ndarray[Any, Any]") -> int:
    """Return the address of an array's first element.

    `__array_interface__`, which makes a dict, and `array.ctypes` take four times as long. The buffer protocol does not
    know bfloat16.
    """
    return c_size_t.from_address(id(array) + _DATA_AT).value
