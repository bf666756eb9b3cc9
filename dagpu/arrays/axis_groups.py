"""Tensors seen with few axes: neighbouring axes that a kernel treats alike are one group.

A contiguous tensor is passed to the kernel with one axis for each group. Any other is passed as it is, and the text of
the kernel computes its coordinates from the places in the groups.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, final

from numpy.typing import NDArray

from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.kernels.row_elements import coordinate_texts


@final
class AxisGroups(NamedTuple):
    """The extents of the groups of a tensor's axes, the shape with which a kernel gets it, and the group of each axis
    of that shape."""

    extents: Shape
    passed: Shape
    groups: Shape

    @property
    def pattern(self) -> "GroupPattern":
        """The part of the groups on which the text of a kernel depends."""
        return GroupPattern(self.groups, len(self.extents))


@final
class GroupPattern(NamedTuple):
    """The group of each axis of a kernel's argument, and the number of groups."""

    groups: Shape
    size: int

    @property
    def rank(self) -> int:
        """The number of axes with which the kernel gets the argument."""
        return len(self.groups)


def group_axes(layout: Layout, sizes: Sequence[int]) -> AxisGroups:
    """Return the groups of a tensor's axes. `sizes` are the numbers of axes in each group; a group may have none."""
    groups = tuple([group for group, size in enumerate(sizes) for _ in range(size)])
    extents = tuple(
        [prod([n for n, own in zip(layout.shape, groups, strict=True) if own == group]) for group in range(len(sizes))]
    )
    if layout.contiguous:
        return AxisGroups(extents, extents, tuple(range(len(sizes))))
    return AxisGroups(extents, layout.shape, groups)


def around_axis(layout: Layout, axis: int | None) -> AxisGroups:
    """Return the groups (before, along, after) of an axis; for None all axes are along."""
    rank = len(layout.shape)
    return group_axes(layout, (0, rank, 0) if axis is None else (axis, 1, rank - axis - 1))


def element_text(name: str, pattern: GroupPattern, places: Sequence[str]) -> str:
    """Return the text of an element of the argument `name`: `places` are names of its places in the groups."""
    return f"{name}({', '.join(coordinate_texts(pattern.groups, places, lambda axis: f'{name}.extent({axis})'))})"


def extent_text(name: str, pattern: GroupPattern, group: int) -> str:
    """Return the text of the extent of a group of the argument `name`."""
    axes = [f"{name}.extent({axis})" for axis, own in enumerate(pattern.groups) if own == group]
    return " * ".join(axes) or "1"


def grouped_array(x: NDArray[Any], pattern: GroupPattern) -> NDArray[Any]:
    """Return an argument of a host body with one axis for each group."""
    extents = [
        prod([n for n, own in zip(x.shape, pattern.groups, strict=True) if own == group])
        for group in range(pattern.size)
    ]
    return x.reshape(extents)


def one_axis(axis: object, rank: int, name: str, origin: Origin, whose: str = "x") -> int:
    """Return the axis that an argument `axis` names, counted from the first.

    Raises:
        ShapeError: it is not a whole number, or there is no such axis.
    """
    found = as_whole_number(axis)
    if found is None or not -rank <= found < rank:
        cure = f"Give one of them, {-rank} to {rank - 1}" if rank else "Reshape it to one axis: x.reshape((-1,))"
        raise ShapeError(
            f"{name} at {describe(origin)}: axis is {format_value(axis)}, but {whose} has {rank} axes. {cure}."
        )
    return found % rank
