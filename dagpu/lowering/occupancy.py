"""Who had the bytes of an arena last, while a verifier walks over a plan.

Invariant: `_starts` is sorted, and `_spans[start]` is the end of the span that begins there, and its holder; spans do
not overlap. To put a holder somewhere removes what lay there, so the work is linear in the spans that are put.
"""

from bisect import bisect_left, bisect_right, insort
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
        spans, starts = self._spans, self._starts
        there = spans.get(start)
        if there is not None:
            if there[0] == end:  # mostly: a place is used again by one of the same size
                spans[start] = end, holder
                return [(there[1], True)]
            if there[0] > end:  # a smaller one takes the first of its bytes
                spans[start] = end, holder
                spans[end] = there
                insort(starts, end)
                return [(there[1], False)]
        elif not starts or start >= spans[starts[-1]][0]:
            spans[start] = end, holder
            starts.append(start)
            return []
        return self._put_over(start, end, holder)

    def _put_over(self, start: int, end: int, holder: int) -> list[tuple[int, bool]]:
        """Whatever lies there: what sticks out at either end stays whose it is."""
        spans, starts = self._spans, self._starts
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
