"""The passes of a merge sort of rows: first each span of a row is sorted in one block, then runs are merged in pairs.

A block writes one tile of the output, whose elements it finds in its two runs by a search along the merge path (Green,
Odeh and Birk, 2012). So no block writes outside of its tile, there are no atomics, and equal elements keep their order.
A radix sort would read and write less often, but scatters its output over all tiles.

Where only the first elements are wanted, runs that are long enough are not made longer, so each pass halves the data.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, final

EACH: Final = 8
"""Elements of a thread."""
_THREADS: Final = (32, 256)
"""The fewest and the most threads of a block."""


@final
class MergePass(NamedTuple):
    """One pass: rows of `length` elements, in runs of `run`, become rows of `made_length`, in runs of `made`.

    `run` is 0 for the first pass, whose rows are not sorted. The last run of a row may be shorter.
    """

    length: int
    run: int
    made_length: int
    made: int
    last: bool


def threads_of(length: int) -> int:
    """Return the threads of a block for rows of this length."""
    fewest, most = _THREADS
    return min(most, max(fewest, 1 << max(0, -(-length // EACH) - 1).bit_length()))


def merge_passes(length: int, wanted: int, span: int) -> Iterator[MergePass]:
    """Return the passes that sort rows of `length` elements, of which the first `wanted` are needed.

    All runs but the last of a row are multiples of `span` elements, so a tile of `span` elements lies in one run.
    """
    enough = -(-wanted // span) * span
    if length <= span:
        yield MergePass(length, 0, wanted, span, True)
        return
    yield MergePass(length, 0, length, span, False)
    run = span
    while True:
        pairs, made = -(-length // (2 * run)), min(2 * run, enough)
        rest = min(length - (pairs - 1) * 2 * run, made)
        if pairs == 1:
            yield MergePass(length, run, wanted, made, True)
            return
        yield MergePass(length, run, (pairs - 1) * made + rest, made, False)
        length, run = (pairs - 1) * made + rest, made
