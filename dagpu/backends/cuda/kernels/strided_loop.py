"""Strided loops over two arrays of one shape, in the form that the kernels of walk.cuh take.

The arrays are the output and the source (of a fill: the elements' numbers). The host reduces the loop first: it drops
axes of extent 1, makes all strides in the output positive, sorts the axes in the order of the output's memory, and
merges neighbours that are contiguous in both arrays. Most loops have one or two axes then.
"""

from collections.abc import Sequence
from math import prod
from operator import attrgetter
from struct import pack
from typing import Final, NamedTuple, final

from dagpu.common.errors import ShapeError

FEW_AXES: Final = 4
"""The most axes of a small loop. With fewer than 2**31 elements, its kernel computes indices by multiplication instead
of division."""
MAX_AXES: Final = 32


@final
class Start(NamedTuple):
    """The start of a loop in both arrays, in bytes (of a fill's numbers: in elements)."""

    out: int
    source: int


@final
class Axis(NamedTuple):
    """One axis of a loop: its extent, and its strides in the output and in the source."""

    extent: int
    out: int
    source: int


@final
class StridedLoop(NamedTuple):
    """A loop over two arrays: `Walk` in walk.cuh. The axis with the smallest stride in the output comes first."""

    size: int
    start: Start
    axes: tuple[Axis, ...]

    def dense(self, out_size: int, source_size: int) -> bool:
        """Return True if both arrays are contiguous and in the same order."""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1:] == (out_size, source_size))


def reduce_loop(shape: Sequence[int], start: Start, out: Sequence[int], source: Sequence[int]) -> StridedLoop:
    """Return the reduced loop over two arrays of this shape with these strides. No extent may be 0.

    Raises:
        ShapeError: more than `MAX_AXES` axes cannot be merged.
    """
    out_start, source_start = start
    axes: list[Axis] = []
    for extent, a, b in zip(shape, out, source, strict=True):
        if extent == 1:
            continue
        if a < 0:
            out_start, source_start = out_start + (extent - 1) * a, source_start + (extent - 1) * b
        axes.append(Axis(extent, a, b) if a >= 0 else Axis(extent, -a, -b))
    merged: list[Axis] = []
    for axis in sorted(axes, key=attrgetter("out")):
        inner = merged[-1] if merged else None
        if inner is not None and axis[1:] == (inner.out * inner.extent, inner.source * inner.extent):
            merged[-1] = inner._replace(extent=inner.extent * axis.extent)
        else:
            merged.append(axis)
    if len(merged) > MAX_AXES:
        raise ShapeError(
            f"{len(merged)} axes of shape {tuple(shape)} cannot be merged, but a kernel takes at most {MAX_AXES}. Copy "
            "or fill the array in parts."
        )
    return StridedLoop(prod(shape), Start(out_start, source_start), tuple(merged))


def choose_kernel(walk: StridedLoop, name: str) -> tuple[int, str]:
    """Return the number of axes that the kernel's parameter can hold, and the kernel's name."""
    few = len(walk.axes) <= FEW_AXES and walk.size < 1 << 31
    return (FEW_AXES, f"{name}_few") if few else (MAX_AXES, f"{name}_many")


def packed(walk: StridedLoop, room: int) -> bytes:
    """Pack a loop as the kernel's parameter, with room for `room` axes."""
    parts = [pack("<QqqQ", walk.size, *walk.start, len(walk.axes))]
    for axis in walk.axes:
        # Granlund and Montgomery's multiplier for a 32-bit division, less its top bit; see walk.cuh.
        shift = (axis.extent - 1).bit_length()
        multiplier = ((1 << 32) * ((1 << shift) - axis.extent)) // axis.extent + 1 if shift < 32 else 0
        parts.append(pack("<QqqII", *axis, multiplier, shift))
    return b"".join(parts).ljust(32 + 32 * room, b"\0")
