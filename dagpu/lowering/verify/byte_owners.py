"""The last holder of each byte of an arena, while the verifier walks over a plan.

Invariant: `_starts` is sorted, and `_spans[start]` is the end of the span that begins there, and its holder; spans do
not overlap. A new span removes the spans that it covers, so the total work is linear in the number of spans put.
"""

from bisect import bisect_left, bisect_right, insort
from typing import final


@final
class ByteOwners:
    """The last holder of each byte of one arena."""

    __slots__ = ("_spans", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: dict[int, tuple[int, int]] = {}

    def put(self, start: int, end: int, holder: int) -> list[tuple[int, bool]]:
        """Give bytes to a holder, and return their previous holders.

        Each comes with True if the bytes are exactly the span that it held.
        """
        spans, starts = self._spans, self._starts
        there = spans.get(start)
        if there is not None:
            if there[0] == end:  # the usual case: a buffer of the same size reuses the place
                spans[start] = end, holder
                return [(there[1], True)]
            if there[0] > end:  # a smaller buffer takes its first bytes
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
        """Put a span over any other spans; the parts of those outside it keep their holders."""
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
