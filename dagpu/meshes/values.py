"""Values that lie on several devices of a mesh, and the geometry of their parts.

A part is one contiguous tensor. Boxes that form a grid, all combinations of some ranges along each axis, are packed
along the axes: the part has as many axes as the whole, and the elements are in the order of the whole. One block is
such a grid, and so are the tiles that `Cyclic` deals to a device. Other boxes are packed one behind another, in one
axis.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.containers import Composite, about_of, items_of
from dagpu.common.errors import MeshError
from dagpu.common.frozen import Slot, plain
from dagpu.common.layout import Layout, Shape, slice_layout, strides_of
from dagpu.common.places import Origin, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, wrong_argument
from dagpu.handles import SharedTensor, Tensor, TensorRef
from dagpu.handles.array_handle import copy_error
from dagpu.handles.device_handles import Device
from dagpu.meshes.layouts import Blocks, Box, Cyclic, DeviceLayout, Range, as_slices, dealt_boxes, volume
from dagpu.plans.mesh import Mesh

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagpu.ops.base import DeviceOp


@final
@plain
class Piece:
    """A box of the whole, with its place in a part."""

    box: Box
    start: Shape
    """The index of the box's first element in the part: along each axis, or in the one axis of a packed list."""

    def layout_in(self, part: Layout, box: Box) -> Layout:
        """Return the layout of a box inside this piece, as an array of the box's shape. `part` is the layout of the
        part."""
        inner = tuple([(start - first, stop - first) for (start, stop), (first, _) in zip(box, self.box, strict=True)])
        if len(box) == len(part.shape):
            at = [(a + first, b + first) for (a, b), first in zip(inner, self.start, strict=True)]
            return slice_layout(part, as_slices(tuple(at)))
        step, shape = part.strides[0], tuple([stop - start for start, stop in self.box])
        packed = Layout(part.dtype, shape, strides_of(shape, step), part.offset + self.start[0] * step)
        return slice_layout(packed, as_slices(inner))


@final
@plain
class PartShape:
    """The shape of the tensor that a device has of a whole, and the pieces in it."""

    shape: Shape
    pieces: tuple[Piece, ...]


def part_of(boxes: tuple[Box, ...], axes: int) -> PartShape:
    """Return how a device's boxes lie in its part. The whole has this number of axes."""
    boxes = tuple([box for box in boxes if volume(box)]) or boxes[:1]
    grid = _grid_of(boxes)
    if grid is None:
        starts, size = [], 0
        for box in boxes:
            starts.append(size)
            size += volume(box)
        return PartShape((size,), tuple([Piece(box, (start,)) for box, start in zip(boxes, starts, strict=True)]))
    if not boxes:
        return PartShape((0,) * axes, ())
    places = [list(_places(ranges)) for ranges in grid]
    shape = tuple([sum(stop - start for start, stop in ranges) for ranges in grid])
    pieces = [
        Piece(tuple([each for each, _ in combination]), tuple([start for _, start in combination]))
        for combination in product(*places)
    ]
    return PartShape(shape, tuple([piece for piece in pieces if volume(piece.box)]))


def _grid_of(boxes: tuple[Box, ...]) -> list[list[Range]] | None:
    """Return the ranges along each axis whose combinations are the boxes; None if the boxes form no such grid."""
    if not boxes:
        return []
    along = [sorted({box[axis] for box in boxes}) for axis in range(len(boxes[0]))]
    disjoint = all(one[1] <= two[0] for ranges in along for one, two in pairwise(ranges))
    return along if disjoint and len(boxes) == prod(map(len, along)) == len({*boxes}) else None


def _places(ranges: list[Range]) -> Iterator[tuple[Range, int]]:
    """Return the ranges along one axis, neighbours joined, each with its place in the part."""
    start = 0
    joined: Range | None = None
    for each in ranges:
        if joined is not None and joined[1] == each[0]:
            joined = joined[0], each[1]
            continue
        if joined is not None:
            yield joined, start
            start += joined[1] - joined[0]
        joined = each
    if joined is not None:
        yield joined, start


# ---- spread values
#
# Values that lie on several devices of a mesh. Their classes say how the parts belong together, so that a checker
# refuses a value that is used as one of another kind: summands that nobody has added, shards in the place of replicas.
#
# Each is a `Composite` of the handles on the devices, in the order of the mesh: it moves, is lent and is found in the
# results of runs as its handles are.

_T_co = TypeVar("_T_co", covariant=True)
_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)

TO_ARRAY: Final[Slot[Callable[[Any], Any]]] = Slot("dagpu.meshes.moving")
"""Returns the op of `to_host()` of a value of a mesh."""


@final
@plain
class Spreading:
    """How a whole is spread over a mesh: everything that is known of a value beside its handles."""

    mesh: Mesh
    shape: Shape
    dtype: "np.dtype[Any]"
    layout: DeviceLayout | None = None
    boxes: tuple[tuple[Box, ...], ...] = ()
    """The boxes of each device, for values that are cut by a layout."""
    parts: tuple[PartShape, ...] = ()
    """The shape of each device's part, and the pieces in it."""
    axis: str | None = None
    """The axis of the mesh along which replicas are equal; None if all of them are."""
    width: Shape = ()
    """The width of the rim of a `Haloed` along each axis."""


def cut_at(
    layout: DeviceLayout, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", call: str, where: Origin
) -> Spreading:
    """Return how a layout spreads a whole. `call` and `where` are the name and the place of the user's call.

    Raises:
        MeshError: the layout does not fit, or its boxes overlap or leave something out.
    """
    try:
        boxes = dealt_boxes(layout, shape, mesh)
    except MeshError as error:
        raise add_call_place(call, where, error) from None
    return Spreading(mesh, shape, dtype, layout, boxes, tuple([part_of(mine, len(shape)) for mine in boxes]))


def copied_on(mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", axis: str | None = None) -> Spreading:
    """Return the spreading of a value that has the whole shape on each device."""
    return Spreading(mesh, shape, dtype, axis=axis)


def mesh_tokens(mesh: Mesh, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
    """Return the tokens of a mesh for a cache key."""
    return (mesh.shape, mesh.axes, *map(identity, mesh.devices))


@final
@plain
class Rank:
    """The place of one device in a mesh, and the part of the whole that it has."""

    mesh: Mesh
    number: int
    """The number of the device in the mesh, row by row."""
    boxes: Sequence[tuple[slice, ...]] = ()
    """The boxes of the whole that the device has of the first argument of `each` that is cut by a layout."""

    @property
    def device(self) -> Device:
        """The device."""
        return self.mesh.devices[self.number]

    @leaves_run
    def coordinate(self, axis: str) -> int:
        """Return the index of the device along an axis of the mesh.

        Raises:
            MeshError: the mesh has no axis of that name.
        """
        mesh, given = self.mesh, cast("object", axis)  # whatever the user gave
        if not isinstance(given, str) or axis not in mesh.axes:
            names = " or ".join(map(repr, mesh.axes))
            cure = f"Write coordinate({mesh.axes[0]!r})"
            raise wrong_argument("coordinate", here(), "axis", axis, names, cure, MeshError)
        at = mesh.axes.index(axis)
        return self.number // prod(mesh.shape[at + 1 :]) % mesh.shape[at]


class PerDevice(Protocol[_T_co]):
    """A value of which each device of a mesh has a part of its own. `each` passes the parts to a function."""

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        ...

    def _on(self, rank: int, /) -> _T_co:
        """Return the part of the device of this number."""
        ...


@leaves_run
def _refuse_copy(spread: Composite, _protocol: object = None) -> NoReturn:
    """Raise for a copy or pickle of a value on several devices: a copy would be a second owner of its tensors."""
    why = "A copy would be a second owner of the tensors on its devices"
    raise copy_error(repr(spread), f"{why}. Use the value itself wherever it is wanted")


class SpreadValue(Composite, Generic[_D_co]):
    """The base class of values with one tensor on each device of a mesh."""

    __slots__ = ("__weakref__",)
    _about: Spreading

    if TYPE_CHECKING:  # for checkers unhashable, so that no source takes it; at run time it hashes by identity
        # As in typeshed for lists; object declares a method.
        __hash__: ClassVar[None]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self._about.mesh

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return self._about.dtype

    @property
    def shape(self) -> Shape:
        """The extents of the whole, in elements."""
        return self._about.shape

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors of all devices."""
        return sum(part.nbytes for part in self._items)

    def _tokens(self, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
        """See `Composite._tokens`. Of a layout of the user's, only the object itself is known to give equal boxes."""
        about = self._about
        layout = about.layout if isinstance(about.layout, Blocks | Cyclic | None) else identity(about.layout)
        whole = about.shape, identity(about.dtype), about.axis, about.width
        return (*mesh_tokens(about.mesh, identity), layout, *whole)

    if not TYPE_CHECKING:
        __reduce_ex__ = _refuse_copy  # copy, deepcopy and pickle call it

    def __repr__(self) -> str:
        about = self._about
        how = "" if about.layout is None else f", {about.layout!r}"
        along = "" if about.axis is None else f", along {about.axis!r}"
        devices = ", ".join([device.name for device in about.mesh.devices])
        return f"{type(self).__name__}({about.dtype.name}, {about.shape}{how}{along}, on {devices})"


class CutValue(SpreadValue[_D_co]):
    """The base class of values that a layout cuts into parts."""

    __slots__ = ()

    @property
    def layout(self) -> DeviceLayout:
        """The layout that cuts the whole."""
        layout = self._about.layout
        assert layout is not None
        return layout


@final
class Sharded(CutValue[_D_co]):
    """A whole that a layout cuts into parts: each device owns its boxes. Passing it on moves it, like a `Tensor`."""

    __slots__ = ()

    def _on(self, rank: int, /) -> Tensor[_D_co]:
        return cast("Tensor[_D_co]", self._items[rank])

    def borrow(self) -> "ShardedRef[_D_co]":
        """Lend the whole for reading, any number of times at once, while no run writes it."""
        return ShardedRef(self._about, tuple([part.borrow() for part in self._items]))

    def to_host(self) -> "DeviceOp[NDArray[_D_co]]":
        """Return an op whose result is a new NumPy array with the contents. Moves the value."""
        return cast("DeviceOp[NDArray[_D_co]]", TO_ARRAY.value(self))


@final
class ShardedRef(CutValue[_D_co]):
    """A `Sharded` that is lent for reading. An op that holds one cannot outlive it."""

    __slots__ = ()

    def _on(self, rank: int, /) -> TensorRef[_D_co]:
        return cast("TensorRef[_D_co]", self._items[rank])


@final
class Replicated(SpreadValue[_D_co]):
    """The same bits on every device: immutable, and read any number of times, like a `SharedTensor`.

    A collective along one axis of the mesh makes replicas that are equal along this axis alone.
    """

    __slots__ = ()

    def _on(self, rank: int, /) -> SharedTensor[_D_co]:
        return cast("SharedTensor[_D_co]", self._items[rank])

    @leaves_run
    def to_host(self) -> "DeviceOp[NDArray[_D_co]]":
        """Return an op whose result is a new NumPy array with the contents, from the first device.

        Raises:
            MeshError: the replicas are equal along one axis of the mesh alone.
        """
        return cast("DeviceOp[NDArray[_D_co]]", TO_ARRAY.value(self))


@final
class Partials(SpreadValue[_D_co]):
    """A summand on each device, of the shape of the whole: no value until it is reduced. Passing it on moves it."""

    __slots__ = ()

    def _on(self, rank: int, /) -> Tensor[_D_co]:
        return cast("Tensor[_D_co]", self._items[rank])


@final
class Haloed(SpreadValue[_D_co]):
    """Each device's block with a rim of its neighbours' elements around it, to be read.

    Every part has the rim on all sides. Where the whole ends it holds zeros, or with `wrap` the elements of the other
    end. So the device's own elements begin at index `width` of its part, along each axis.
    """

    __slots__ = ()

    @property
    def width(self) -> Shape:
        """The width of the rim along each axis, in elements."""
        return self._about.width

    def _on(self, rank: int, /) -> SharedTensor[_D_co]:
        return cast("SharedTensor[_D_co]", self._items[rank])


@final
class Each(Composite, Generic[_T_co]):
    """The results of a function on the devices of a mesh. Nothing is known of how they belong together."""

    __slots__ = ("__weakref__",)
    _about: Mesh

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self._about

    def _tokens(self, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
        """See `Composite._tokens`."""
        return mesh_tokens(self._about, identity)

    def _on(self, rank: int, /) -> _T_co:
        return cast("_T_co", self._items[rank])

    def __iter__(self) -> Iterator[_T_co]:
        return iter(self._items)

    if not TYPE_CHECKING:
        __reduce_ex__ = _refuse_copy  # copy, deepcopy and pickle call it

    def __repr__(self) -> str:
        return f"Each({', '.join(map(repr, self._items))})"


SPREAD_VALUES: Final = (Sharded, ShardedRef, Replicated, Partials, Haloed, Each)
"""The classes of values that `each` takes."""


def spreading_of(value: SpreadValue[Any]) -> Spreading:
    """Return what is known of a value beside its handles."""
    about: Spreading = about_of(value)
    return about


def parts_of(value: Composite) -> tuple[Any, ...]:
    """Return the handles of a value, in the order of the mesh."""
    return items_of(value)


def boxes_of(value: Any, rank: int) -> tuple[tuple[slice, ...], ...]:
    """Return the boxes of the whole that a device has of a value; none for a value that no layout cuts."""
    about = about_of(value)
    if not isinstance(about, Spreading) or not about.boxes:
        return ()
    return tuple(map(as_slices, about.boxes[rank]))
