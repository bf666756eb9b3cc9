"""The order in which a reduction combines elements. It follows from the shape alone, so bits are equal on every device.

An input is seen as rows of `length` elements that are reduced. A row is cut into spans of `width * each` elements. In a
span, column c of `width` combines elements c, c + width, c + 2 width, ... one after the other. Then the columns are
folded: to 64 if there are more, to 8 if there are more, and to one. Column c of m combines columns c, c + m, c + 2 m,
... one after the other. Where a row has several spans, their numbers are a row for the second pass, with the same rule.

Both sides are quick in this order. A fold by 8 or 16 takes a block of threads fewer steps than three or four halvings,
and NumPy one call, which adds up arrays of neighbours in memory.

A second launch makes the second pass. One launch with a ticket, in which the block that ends last adds up the numbers
of all spans, was measured and dropped. On an H200 the second launch takes 1.5 to 2.3 us of device time in a graph,
where its blocks start early. The ticket's fence and atomic operation take 1.1 us for 2^20 floats, 2.9 for 2^24, and 38
for 2^28 in spans of `BLOCK`; and a ticket must be zero before each run, which takes a memset.
"""

from functools import cache
from math import prod
from typing import Final, NamedTuple, final

from dagpu.common.dtypes import Shape

THREADS: Final = 256
"""Threads of a block."""
GROUP: Final = 4
"""The most elements that a thread reads at once."""
BLOCK: Final = 8192
"""The fewest elements of a block, where a row has several spans: eight reads of 16 bytes by each thread."""
SPANS: Final = 4096
"""The most spans of a row: so the second pass is the last. If rows lie side by side, a block makes several of them, and
there are fewer."""
QUICK: Final = 64
"""The columns of a row that are few: NumPy then combines those of many rows at once."""


@final
class ReductionOrder(NamedTuple):
    """The numbers of one pass: columns of a row, elements of a column, and which neighbours a thread reads at once.

    With `across`, these are of `beside` rows in one column, because rows are neighbours in memory. Otherwise they are
    of `beside` columns in one row, because a row's elements are.
    """

    width: int
    each: int
    across: bool
    beside: int

    @property
    def span(self) -> int:
        """The number of elements of a row that one block reduces to one number."""
        return self.width * self.each

    @property
    def lanes(self) -> int:
        """The number of threads of a row."""
        return self.width if self.across else self.width // self.beside

    @property
    def folds(self) -> tuple[int, ...]:
        """The factors by which the columns of a row become fewer, until one is left: over 64, over 8, and one."""
        return _folds(self.width)

    @property
    def rows(self) -> int:
        """The number of rows of one block."""
        return THREADS // self.lanes * (self.beside if self.across else 1)


@cache
def _folds(width: int) -> tuple[int, ...]:
    found, rest = list[int](), width
    while rest > 8:
        found.append(rest // (QUICK if rest > QUICK else 8))
        rest //= found[-1]
    return (*found, rest)


def reduction_order(length: int, neighbours: int) -> ReductionOrder:
    """Return the order for rows of this length, of which this many lie side by side in memory: 1 if none do."""
    side = min(32, power_of_two(neighbours))
    beside = GROUP if side == 1 else min(GROUP, side)
    if side == 1:
        width = GROUP * min(THREADS, power_of_two(-(-length // (8 * GROUP))))
    else:
        width = min(THREADS * beside // side, power_of_two(-(-length // 16)))
    each = power_of_two(-(-length // width))
    if each > (16 if side == 1 else 32):  # as many spans as a second pass takes, of `BLOCK` elements at least
        each = max(BLOCK // (width * side), power_of_two(-(-length * max(1, side // 2) // (width * SPANS))))
    return ReductionOrder(width, each, side > 1, beside)


def power_of_two(n: int) -> int:
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
        """The number of rows that lie side by side in memory: those along the kept axes after the last reduced one."""
        found = 1
        for extent, reduced in zip(reversed(self.shape), reversed(self.reduced), strict=True):
            if reduced and extent > 1:
                break
            found *= extent
        return found


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
