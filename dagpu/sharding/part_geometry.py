"""The geometry of parts: how the boxes of a device lie in the one tensor that the device has of a whole.

A part is one contiguous tensor. Boxes that form a grid, all combinations of some ranges along each axis, are packed
along the axes: the part has as many axes as the whole, and the elements are in the order of the whole. One block is
such a grid, and so are the tiles that `Cyclic` deals to a device. Other boxes are packed one behind another, in one
axis.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from math import prod
from typing import final

from dagpu.common.dtypes import Shape, strides_of
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, slice_layout
from dagpu.sharding.device_boxes import Box, Range, as_slices, volume


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
