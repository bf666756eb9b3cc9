"""Who had the bytes of an arena last, while a verifier walks over a plan.

Invariant: `_starts` is sorted, and `_spans[start]` is the end of the span that begins there, and its holder; spans do
not overlap. To put a holder somewhere removes what lay there, so the work is linear in the spans that are put.
"""

from bisect import bisect_left, bisect_right
from typing import final


@final
class Occupancy:
    """The latest holder of each byte of one arena."""

    __slots__ = ("_spans", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: dict[int, tuple[int, int]] = {}

    def put(self, start: int, end: int, holder: int) -> list[tuple[int, bool]]:
        """Give bytes to a holder, who takes them from those that are given back; is it just their whole span?"""
        spans = self._spans
        there = spans.get(start)
        if there is not None and there[0] == end:  # mostly: a place is used again by one of the same size
            spans[start] = end, holder
            return [(there[1], True)]
        starts = self._starts
        low = bisect_right(starts, start) - 1
        if low < 0 or spans[starts[low]][0] <= start:
            low += 1
        high = bisect_left(starts, end)
        before = [(at, *spans.pop(at)) for at in starts[low:high]]
        after = [(start, end, holder)]
        if before:
            first, _, who = before[0]
            if first < start:
                after.insert(0, (first, start, who))
            _, last, who = before[-1]
            if last > end:
                after.append((end, last, who))
        for at, to, who in after:
            spans[at] = to, who
        starts[low:high] = [at for at, _, _ in after]
        return [(who, False) for _, _, who in before]
