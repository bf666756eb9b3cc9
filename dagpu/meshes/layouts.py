"""Layouts: which boxes of an index space each device of a mesh has."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final, Protocol, TypeAlias, final, runtime_checkable

from dagpu.common.errors import MeshError
from dagpu.common.layout import Shape
from dagpu.common.places import Origin, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, wrong_argument
from dagpu.plans.mesh import Mesh

Range: TypeAlias = tuple[int, int]
"""The first index along an axis, and the one behind the last."""
Box: TypeAlias = tuple[Range, ...]
"""A range for each axis."""
Dealt: TypeAlias = tuple[tuple[Box, ...], ...]
"""The boxes of each device."""


@runtime_checkable
class DeviceLayout(Protocol):
    """Cuts a shape into boxes, and deals them out to the devices of a mesh.

    Each use is checked: the boxes are disjoint, and together they are the whole. `Blocks` and `Cyclic` are layouts. One
    of your own has the method `boxes`, and is immutable.
    """

    def boxes(self, shape: Shape, mesh: Mesh, /) -> Sequence[Sequence[tuple[slice, ...]]]:
        """Return the boxes of each device, in the order of `mesh.devices`. A box has a slice for each axis."""
        ...


@final
class Blocks:
    """A layout of contiguous blocks: one block for each device.

    `Blocks(0)` cuts axis 0 of the array over all devices. `Blocks({0: "rows", 1: "columns"})` cuts axis 0 over the axis
    `"rows"` of the mesh, and axis 1 over `"columns"`. Every axis of the mesh with several devices must be used.

    Args:
        axes: the axis of the array, or the mesh's axis for each axis of the array that is cut.
        partial: True allows extents that the devices do not divide: the last blocks are smaller then, or empty.

    Raises:
        MeshError: `axes` is neither.
    """

    __slots__ = ("_axes", "_partial")

    @leaves_run
    def __init__(self, axes: int | Mapping[int, str] = 0, *, partial: bool = False) -> None:
        where = here()
        self._axes: tuple[tuple[int, str | None], ...] = _cut_axes(axes, where)
        self._partial = check_flag(partial, "Blocks", where, "partial")

    def boxes(self, shape: Shape, mesh: Mesh, /) -> Sequence[Sequence[tuple[slice, ...]]]:
        """Return the one block of each device.

        Raises:
            MeshError: the array or the mesh has no such axis, an axis of the mesh is not used, or the devices do not
                divide an extent and `partial` is false.
        """
        cuts = self._cuts_of(shape, mesh)
        whole = [slice(0, extent) for extent in shape]
        found: list[list[tuple[slice, ...]]] = []
        for at in product(*map(range, mesh.shape)):
            box = list(whole)
            for axis, (of, count) in cuts.items():
                number = _number_at(at, mesh.shape) if of is None else at[of]
                size = -(-shape[axis] // count)
                box[axis] = slice(min(number * size, shape[axis]), min((number + 1) * size, shape[axis]))
            found.append([tuple(box)])
        return found

    def _cuts_of(self, shape: Shape, mesh: Mesh) -> dict[int, tuple[int | None, int]]:
        """Return for each axis that is cut the axis of the mesh, None for all devices, and the number of blocks."""
        cuts: dict[int, tuple[int | None, int]] = {}
        for axis, name in self._axes:
            if not axis < len(shape):
                raise MeshError(
                    f"{self!r} cuts axis {axis}, and the shape {shape} has {len(shape)} axes. Cut one of these: "
                    "Blocks(0)."
                )
            if name is not None and name not in mesh.axes:
                known = ", ".join(map(repr, mesh.axes))
                raise MeshError(f"{self!r} names an axis {name!r}, and the mesh has {known}. Name one of these.")
            of = None if name is None else mesh.axes.index(name)
            count = len(mesh) if of is None else mesh.shape[of]
            if shape[axis] % count and not self._partial:
                raise MeshError(
                    f"{self!r} does not cut the shape {shape}: axis {axis} has {shape[axis]} elements, which is not a "
                    f"multiple of {count}. Say {repr(self)[:-1]}, partial=True) to allow smaller blocks at the end."
                )
            cuts[axis] = of, count
        used = {of for of, _ in cuts.values()}
        unused = [name for at, name in enumerate(mesh.axes) if mesh.shape[at] > 1 and not used & {at, None}]
        if unused:
            raise MeshError(
                f"{self!r} does not use the mesh's axis {unused[0]!r}: devices along it would have the same elements. "
                f"Cut another axis of the array over it: Blocks({{0: {mesh.axes[0]!r}, 1: {mesh.axes[-1]!r}}})."
            )
        return cuts

    def __eq__(self, other: object) -> bool:
        return type(other) is Blocks and (self._axes, self._partial) == (other._axes, other._partial)

    def __hash__(self) -> int:
        return hash((Blocks, self._axes, self._partial))

    def __repr__(self) -> str:
        first, name = self._axes[0]
        axes = str(first) if name is None else repr(dict(self._axes))
        return f"Blocks({axes}{', partial=True' if self._partial else ''})"


@final
class Cyclic:
    """A layout of tiles that are dealt out in turn along each axis of the mesh: block-cyclic, as factorisations want.

    Axis d of the array is dealt out along axis d of the mesh. The array has as many axes as the tile, and at least as
    many as the mesh. Tiles at the end may be smaller.

    Raises:
        MeshError: the tile is not a tuple of extents, 1 or more each.
    """

    __slots__ = ("_tile",)

    @leaves_run
    def __init__(self, tile: Shape) -> None:
        given: Any = tile  # whatever the user gave
        extents = [as_whole_number(extent) for extent in given] if isinstance(given, tuple | list) else []
        known = tuple([extent for extent in extents if extent is not None and extent > 0])
        if not known or len(known) < len(extents):
            wanted = "a tuple of extents, 1 or more each,"
            raise wrong_argument("Cyclic", here(), "tile", tile, wanted, "Write Cyclic((64, 64))", MeshError)
        self._tile = known

    def boxes(self, shape: Shape, mesh: Mesh, /) -> Sequence[Sequence[tuple[slice, ...]]]:
        """Return the tiles of each device, row by row.

        Raises:
            MeshError: the array has another number of axes than the tile, or fewer than the mesh.
        """
        tile = self._tile
        if len(shape) != len(tile) or len(mesh.shape) > len(shape):
            raise MeshError(
                f"{self!r} does not fit the shape {shape} on a mesh of shape {mesh.shape}. Give the tile as many axes "
                "as the array, and the mesh at most as many."
            )
        deal = (*mesh.shape, *[1] * (len(shape) - len(mesh.shape)))
        found: list[list[tuple[slice, ...]]] = []
        for at in product(*map(range, deal)):
            along = [
                [slice(start, min(start + step, extent)) for start in range(first * step, extent, step * count)]
                for first, step, count, extent in zip(at, tile, deal, shape, strict=True)
            ]
            # An axis without tiles leaves the device without elements, in a box that says along which axes.
            found.append(list(product(*[ranges or [slice(0, 0)] for ranges in along])))
        return found

    def __eq__(self, other: object) -> bool:
        return type(other) is Cyclic and self._tile == other._tile

    def __hash__(self) -> int:
        return hash((Cyclic, self._tile))

    def __repr__(self) -> str:
        return f"Cyclic({self._tile})"


def _cut_axes(axes: Any, where: Origin) -> tuple[tuple[int, str | None], ...]:
    """Return the axes that `Blocks` cuts, each with the name of an axis of the mesh; None for all devices."""
    number = as_whole_number(axes)
    pairs: list[tuple[Any, Any]] = list(axes.items()) if isinstance(axes, Mapping) else [(number, None)]
    found = [(as_whole_number(axis), name) for axis, name in pairs]
    cuts = tuple([(axis, name) for axis, name in found if axis is not None and axis >= 0])
    named = number is not None or all(isinstance(name, str) for _, name in cuts)
    if not cuts or len(cuts) < len(found) or not named or len({name for _, name in cuts}) < len(cuts):
        wanted = "an axis of the array, or a mapping of such axes to different axes of the mesh,"
        raise wrong_argument(
            "Blocks", where, "axes", axes, wanted, 'Write Blocks(0) or Blocks({0: "rows", 1: "columns"})', MeshError
        )
    return cuts


def _number_at(at: Shape, shape: Shape) -> int:
    """Return the number, row by row, of the place with these coordinates in a grid."""
    number = 0
    for index, extent in zip(at, shape, strict=True):
        number = number * extent + index
    return number


FIRST_AXIS: Final = Blocks(0)
"""The layout where none is given."""


# ---- the check


def dealt_boxes(layout: DeviceLayout, shape: Shape, mesh: Mesh) -> Dealt:
    """Return the boxes that a layout gives each device, after checking that they are disjoint and together the whole.

    Raises:
        MeshError: they are not; the message names two boxes that overlap, or an element that no device has.
    """
    given: Any = layout.boxes(shape, mesh)  # whatever a layout of the user's returns
    if not isinstance(given, Sequence) or len(given) != len(mesh):
        raise MeshError(
            f"{layout!r} did not return {len(mesh)} lists of boxes. Return one for each device of the mesh."
        )
    boxes = tuple([tuple([_checked_box(box, shape, layout) for box in mine]) for mine in given])
    if type(layout) is not Blocks and type(layout) is not Cyclic:  # theirs are so by construction
        _check_disjoint([(box, rank) for rank, mine in enumerate(boxes) for box in mine if volume(box)], layout, mesh)
    covered = sum(volume(box) for mine in boxes for box in mine)
    if covered != prod(shape):
        missing = _first_missing([box for mine in boxes for box in mine], shape)
        raise MeshError(
            f"{layout!r} leaves out {prod(shape) - covered} elements of the shape {shape}: no device has element "
            f"{missing}. Let its boxes cover the whole."
        )
    return boxes


def volume(box: Box) -> int:
    """Return the number of elements in a box."""
    return prod([stop - start for start, stop in box])


def intersection(one: Box, other: Box) -> Box | None:
    """Return the box of the elements that are in both boxes; None if there are none."""
    found: list[Range] = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        start, stop = max(a, c), min(b, d)
        if start >= stop:
            return None
        found.append((start, stop))
    return tuple(found)


def as_slices(box: Box) -> tuple[slice, ...]:
    """Return a box as a slice for each axis."""
    return tuple([slice(start, stop) for start, stop in box])


def show_box(box: Box) -> str:
    """Return a box as text: `[0:4, 8:16]`."""
    return f"[{', '.join([f'{start}:{stop}' for start, stop in box])}]"


def _checked_box(box: Any, shape: Shape, layout: DeviceLayout) -> Box:
    """Return a box of a layout as ranges, which lie inside the shape."""
    slices: list[Any] = list(box) if isinstance(box, tuple | list) else []
    if len(slices) != len(shape) or not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
        raise MeshError(f"{layout!r} returned the box {box!r} for the shape {shape}. Return a slice for each axis.")
    ranges: list[Range] = []
    for each, extent in zip(slices, shape, strict=True):
        start, stop = (
            as_whole_number(bound) for bound in (each.start or 0, extent if each.stop is None else each.stop)
        )
        if start is None or stop is None or not 0 <= start <= stop <= extent:
            raise MeshError(
                f"{layout!r} returned the box {box!r}, which is not inside {shape}. Return boxes of the shape."
            )
        ranges.append((start, stop))
    return tuple(ranges)


def _check_disjoint(boxes: list[tuple[Box, int]], layout: DeviceLayout, mesh: Mesh) -> None:
    """Raise a `MeshError` if two boxes have an element in common. A sweep along the first axis: each box is compared
    with those that are open where it begins."""
    open_boxes: list[tuple[Box, int]] = []
    for box, rank in sorted(boxes):
        start = box[0][0] if box else 0
        open_boxes = [(other, of) for other, of in open_boxes if not other or other[0][1] > start]
        for other, of in open_boxes:
            if intersection(box, other) is not None:
                one, two = mesh.devices[of].name, mesh.devices[rank].name
                raise MeshError(
                    f"{layout!r} gives elements to two devices: {show_box(other)} of {one} and {show_box(box)} of "
                    f"{two} overlap. Give each element to one device."
                )
        open_boxes.append((box, rank))


def _first_missing(boxes: Sequence[Box], shape: Shape) -> Shape:
    """Return the index of the first element of a shape that is in none of the boxes, of which there is one.

    Along each axis it is the end of a box, or 0: else the element before it would be missing too.
    """
    corners = [
        sorted({0, *[box[axis][1] for box in boxes if box[axis][1] < extent]}) for axis, extent in enumerate(shape)
    ]
    missing = (
        at
        for at in product(*corners)
        if not any(all(start <= i < stop for i, (start, stop) in zip(at, box, strict=True)) for box in boxes)
    )
    return next(missing)
