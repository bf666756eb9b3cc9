"""Walks through two arrays of one shape, as the kernels of walk.cuh take them.

The two arrays of a walk, the output and the source (of a fill: the elements' numbers), are reduced on the host first:
axes of extent 1 go, all steps in the output are made positive, the axes are put in the order of the output's memory,
and neighbours that lie alike in both become one. Most of what is left has one or two axes.
"""

from collections.abc import Sequence
from math import prod
from struct import pack
from typing import Final, NamedTuple, final

from dagpu.common.errors import ShapeError

FEW_AXES: Final = 4
"""With so many, and fewer than 2**31 elements, places are found by multiplication instead of division."""
MAX_AXES: Final = 32


@final
class Start(NamedTuple):
    """Where a walk starts, in bytes (of a fill's numbers: in elements)."""

    out: int
    source: int


@final
class Axis(NamedTuple):
    """So many elements, each this far from the one before in the output and in the source."""

    extent: int
    out: int
    source: int


@final
class StridedLoop(NamedTuple):
    """`StridedLoop` in walk.cuh; the axis with the smallest step in the output comes first."""

    size: int
    start: Start
    axes: tuple[Axis, ...]

    def dense(self, out_size: int, source_size: int) -> bool:
        """Do both arrays lie in one piece, in the same order?"""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1:] == (out_size, source_size))


def reduced(shape: Sequence[int], start: Start, out: Sequence[int], source: Sequence[int]) -> StridedLoop:
    """The walk through two arrays of this shape, none of its extents 0, by their strides."""
    out_start, source_start = start
    axes: list[Axis] = []
    for extent, a, b in zip(shape, out, source, strict=True):
        if extent == 1:
            continue
        if a < 0:
            out_start, source_start = out_start + (extent - 1) * a, source_start + (extent - 1) * b
        axes.append(Axis(extent, a, b) if a >= 0 else Axis(extent, -a, -b))
    merged: list[Axis] = []
    for axis in sorted(axes, key=lambda axis: axis.out):
        inner = merged[-1] if merged else None
        if inner is not None and axis[1:] == (inner.out * inner.extent, inner.source * inner.extent):
            merged[-1] = inner._replace(extent=inner.extent * axis.extent)
        else:
            merged.append(axis)
    if len(merged) > MAX_AXES:
        raise ShapeError(
            f"{len(merged)} axes that cannot be merged, in shape {tuple(shape)}. At most {MAX_AXES} can be walked "
            "through: copy or fill it in parts."
        )
    return StridedLoop(prod(shape), Start(out_start, source_start), tuple(merged))


def room_for(walk: StridedLoop, name: str) -> tuple[int, str]:
    """For how many axes the kernel's parameter has room, and the kernel."""
    few = len(walk.axes) <= FEW_AXES and walk.size < 1 << 31
    return (FEW_AXES, f"{name}_few") if few else (MAX_AXES, f"{name}_many")


def packed(walk: StridedLoop, room: int) -> bytes:
    """The kernel's parameter, with room for so many axes."""
    parts = [pack("<QqqQ", walk.size, *walk.start, len(walk.axes))]
    for axis in walk.axes:
        # Granlund and Montgomery's multiplier for a 32-bit division, less its top bit; see walk.cuh.
        shift = (axis.extent - 1).bit_length()
        multiplier = ((1 << 32) * ((1 << shift) - axis.extent)) // axis.extent + 1 if shift < 32 else 0
        parts.append(pack("<QqqII", *axis, multiplier, shift))
    return b"".join(parts).ljust(32 + 32 * room, b"\0")
