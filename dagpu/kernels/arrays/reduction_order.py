"""The order in which a reduction combines elements. It follows from the shape alone, so bits are equal on every device.

An input is seen as rows of `length` elements that are reduced. A row is cut into spans of `width * each` elements. In a
span, lane t of `width` combines elements t, t + width, t + 2 width, ... one after the other; then lane t takes that of
lane t + width / 2, and so on by halves until one number is left for the span. Where a row has several spans, their
numbers are a row for the next pass, with the same rule.
"""

from math import prod
from typing import Final, NamedTuple, final

from dagpu.common.dtypes import Shape

THREADS: Final = 256
"""Threads of a block. It reduces `THREADS // width` rows at a time."""
SPAN: Final = 4096
"""The most elements of a span."""


@final
class ReductionOrder(NamedTuple):
    """The numbers of one pass: lanes of a row, elements of a lane, and whether neighbouring threads have other rows.

    With `across`, thread n is lane n // rows of row n % rows, because rows are neighbours in memory. Otherwise it is
    lane n % width of row n // width, because a row's elements are.
    """

    width: int
    each: int
    across: bool

    @property
    def span(self) -> int:
        """The number of elements that one block reduces to one number."""
        return self.width * self.each

    @property
    def rows(self) -> int:
        """The number of rows of one block."""
        return THREADS // self.width


def reduction_order(length: int, neighbours: int) -> ReductionOrder:
    """Return the order for rows of this length, of which this many lie side by side in memory: 1 if none do."""
    side = min(32, _power_of_two(neighbours))
    width = min(THREADS // side, _power_of_two(-(-length // 16)))
    return ReductionOrder(width, 16 if length <= 16 * width else SPAN // width, neighbours > 1)


def _power_of_two(n: int) -> int:
    """Return the least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


@final
class ReducedAxes(NamedTuple):
    """An input's shape with merged axes, and for each axis whether it is reduced."""

    shape: Shape
    reduced: tuple[bool, ...]

    @property
    def length(self) -> int:
        """The number of elements of a row."""
        return prod([n for n, reduced in zip(self.shape, self.reduced, strict=True) if reduced])

    @property
    def rows(self) -> int:
        """The number of rows, which is the number of results."""
        return prod([n for n, reduced in zip(self.shape, self.reduced, strict=True) if not reduced])

    @property
    def neighbours(self) -> int:
        """The number of rows that lie side by side in memory."""
        return self.shape[-1] if self.reduced and not self.reduced[-1] else 1


def merge_axes(shape: Shape, reduced: tuple[bool, ...], *, contiguous: bool) -> ReducedAxes:
    """Return the axes of an input, with neighbouring ones as one where that is possible; none of extent 1 are left."""
    if not contiguous:
        return ReducedAxes(shape, reduced)
    extents: list[int] = []
    kinds: list[bool] = []
    for extent, kind in zip(shape, reduced, strict=True):
        if extent == 1:
            continue
        if kinds and kinds[-1] is kind:
            extents[-1] *= extent
        else:
            extents.append(extent)
            kinds.append(kind)
    return ReducedAxes(tuple(extents), tuple(kinds))
