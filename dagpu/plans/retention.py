"""Which temporaries a program keeps and which it makes again: intervals of retention.

Each instruction of a program is a *stage*, in the order of the program. In a stage, temporaries are made again that it
reads and that nothing has kept, then the instruction runs. A temporary has *spans*: from a stage in which it is made to
the last stage in which this instance of it is used. So a state of a search is a set of spans, as in Checkmate (P. Jain
et al., MLSys 2020) and Moccasin (B. Bartan et al., ICML 2023). Two moves lead from one state to another:

- *end*: a span ends before a pause in its uses, and another one begins after it. What is needed to make the temporary
  again is made again too if it has ended. If it is made again later anyway, that is done now, and it is kept until
  then.
- *keep*: two spans of a temporary become one. What was made again for the second one alone is not any more.

`dagpu.plans.recomputing` searches with them.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_DEPTH: Final = 64
"""The most temporaries that are made again for one."""


@final
class Values(NamedTuple):
    """The program that is searched. A value is a buffer that takes bytes of an arena; others are left out."""

    reads: Sequence[tuple[int, ...]]
    """For each instruction, the values that it reads, each once."""
    writes: Sequence[tuple[int, ...]]
    """For each instruction, the values that it writes."""
    sizes: Sequence[int]
    """Bytes of each buffer; 0 for one that is not a value."""
    may_end: Sequence[bool]
    """For each buffer, whether it may be made again."""
    over: Sequence[int]
    """For each instruction, the bytes that it writes over an input that ends there."""
    times: Sequence[float]
    """Seconds of each instruction."""


Bytes: TypeAlias = NDArray[np.int64]
"""Bytes for each stage."""


@final
class _Before(NamedTuple):
    """What was there before moves that may be undone."""

    work: float
    start: Bytes
    more: Bytes
    values: dict[int, tuple[list[list[int]], list[int], dict[int, int]]]
    """The spans, the uses and their counts of each value that has changed since."""
    stages: dict[int, list[int]]
    """What each stage that has changed since made again."""


@final
class Retention:
    """A state: the spans of each value, and what each stage makes again."""

    def __init__(self, values: Values) -> None:
        self._values = values
        count = len(values.reads)
        self.maker = [-1] * len(values.sizes)
        """For each value, the instruction that writes it first."""
        self.uses: list[list[int]] = [[] for _ in values.sizes]
        """For each value, the stages that use it, sorted."""
        self._count: list[dict[int, int]] = [{} for _ in values.sizes]
        """For each value, how often each of these does."""
        self.spans: list[list[list[int]]] = [[] for _ in values.sizes]
        self.again: list[list[int]] = [[] for _ in range(count)]
        """For each stage, the values that it makes again, in the order of their makers."""
        self.work = sum(values.times)
        last = [-1] * len(values.sizes)
        for at, (reads, writes) in enumerate(zip(values.reads, values.writes, strict=True)):
            for value in (*reads, *writes):
                last[value] = at
                if self.maker[value] < 0:
                    self.maker[value] = at
                elif not self._count[value].get(at):
                    self.uses[value].append(at)
                    self._count[value][at] = 1
        self._start: Bytes = np.zeros(count, np.int64)
        """Bytes of the spans that are under way at the start of each stage."""
        self._more: Bytes = np.zeros(count, np.int64)
        """The most bytes within each stage, beyond those."""
        for value, maker in enumerate(self.maker):
            if maker >= 0:
                self.spans[value].append([maker, last[value]])
                self._start[maker + 1 : last[value] + 1] += values.sizes[value]
        self._changed = set(range(count))
        """Stages whose bytes are to be found again."""
        self.touched: set[int] = set()
        """Values whose spans or uses have changed."""
        self._journal: list[_Before] = []

    def held(self) -> Bytes:
        """Return the most bytes in each stage."""
        for stage in self._changed:
            self._more[stage] = self._most(stage)
        self._changed.clear()
        return self._start + self._more

    # ---- trials

    def begin(self) -> None:
        """Begin a trial: the moves from now on may be undone. Trials nest."""
        self.held()
        self._journal.append(_Before(self.work, self._start.copy(), self._more.copy(), {}, {}))

    def undo(self) -> None:
        """End the latest trial, and undo its moves."""
        self.work, self._start, self._more, values, stages = self._journal.pop()
        for value, (spans, uses, count) in values.items():
            self.spans[value], self.uses[value], self._count[value] = spans, uses, count
        for stage, again in stages.items():
            self.again[stage] = again
        self._changed.clear()
        self.touched.update(values)

    def accept(self) -> None:
        """End the latest trial, and leave its moves."""
        found = self._journal.pop()
        if self._journal:
            outer = self._journal[-1]
            for value, before in found.values.items():
                outer.values.setdefault(value, before)
            for stage, again in found.stages.items():
                outer.stages.setdefault(stage, again)

    def _note(self, value: int) -> None:
        """Note that a value changes."""
        self.touched.add(value)
        if self._journal and value not in self._journal[-1].values:
            spans = [span.copy() for span in self.spans[value]]
            self._journal[-1].values[value] = spans, self.uses[value].copy(), self._count[value].copy()

    def _note_stage(self, stage: int) -> None:
        """Note that what a stage makes again changes."""
        self._changed.add(stage)
        if self._journal and stage not in self._journal[-1].stages:
            self._journal[-1].stages[stage] = self.again[stage].copy()

    # ---- what is asked of a state

    def span_at(self, value: int, stage: int) -> int:
        """Return the latest span of a value that begins in a stage or before it."""
        spans = self.spans[value]
        at = len(spans) - 1
        while at > 0 and spans[at][0] > stage:
            at -= 1
        return at

    def gaps(self, value: int) -> Iterator[tuple[int, int]]:
        """Yield the pauses of a value within its spans, each by the stages around it."""
        uses = self.uses[value]
        for begin, end in self.spans[value]:
            before = begin
            for use in uses[bisect_right(uses, begin) : bisect_right(uses, end)]:
                if use - before > 1:
                    yield before, use
                before = use

    def is_gap(self, value: int, before: int, use: int) -> bool:
        """Return whether a pause is there still."""
        uses, begin = self.uses[value], self.spans[value][self.span_at(value, before)]
        at = bisect_right(uses, before)
        if at == len(uses) or uses[at] != use or begin[1] < use:
            return False
        return begin[0] == before or (at > 0 and uses[at - 1] == before)

    def price(self, value: int, stage: int) -> tuple[float, list[tuple[int, int, int]]]:
        """Return the seconds in which a value is made again in a stage, and what is kept longer for that: the bytes,
        and the stages after which and until which."""
        values, kept = self._values, list[tuple[int, int, int]]()
        price, stack, seen = 0.0, [value], {value}
        while stack:
            maker = self.maker[stack.pop()]
            price += values.times[maker]
            for each in values.reads[maker]:
                if each in seen:
                    continue
                spans = self.spans[each]
                at = self.span_at(each, stage) if len(spans) > 1 else 0
                if spans[at][1] >= stage:
                    continue
                seen.add(each)
                if not values.may_end[each]:
                    kept.append((values.sizes[each], spans[at][1], stage))
                    continue
                stack.append(each)
                if at + 1 < len(spans):
                    price -= values.times[self.maker[each]]
                    kept.append((values.sizes[each], stage, spans[at + 1][0]))
                if len(seen) > _DEPTH:
                    return inf, []
        return price, kept

    # ---- moves

    def end(self, value: int, before: int, use: int) -> None:
        """Let a value end before a pause, and make it again after it."""
        self._note(value)
        at = self.span_at(value, before)
        end = self.spans[value][at][1]
        self.spans[value][at][1] = before
        self.spans[value].insert(at + 1, [use, end])
        self._add(value, before, use, -1)
        self._enter(value, use)

    def keep(self, value: int, at: int) -> None:
        """Make two spans of a value one: that and the next."""
        self._note(value)
        spans = self.spans[value]
        before, (begin, end) = spans[at][1], spans.pop(at + 1)
        spans[at][1] = end
        self._add(value, before, begin, 1)
        self._leave(value, begin)

    def _add(self, value: int, after: int, until: int, sign: int) -> None:
        """Count a value at the starts of the stages after one, until another one."""
        self._start[after + 1 : until + 1] += sign * self._values.sizes[value]
        self._changed.update((after, until))

    def _enter(self, value: int, stage: int) -> None:
        """Make a value again in a stage, whose span is there."""
        self._note_stage(stage)
        insort(self.again[stage], value, key=self.maker.__getitem__)
        self.work += self._values.times[self.maker[value]]
        for each in self._values.reads[self.maker[value]]:
            self._use(each, stage)

    def _use(self, value: int, stage: int) -> None:
        """Note a use of a value, which has a span there or gets one."""
        self._note(value)
        counts = self._count[value]
        self._changed.add(stage)
        if stage in counts:
            counts[stage] += 1
            return
        counts[stage] = 1
        insort(self.uses[value], stage)
        spans, at = self.spans[value], self.span_at(value, stage)
        end = spans[at][1]
        if end >= stage:
            return
        if not self._values.may_end[value]:
            spans[at][1] = stage
            self._add(value, end, stage, 1)
        elif at + 1 == len(spans):
            spans.append([stage, stage])
            self._enter(value, stage)
        else:
            later = spans[at + 1][0]
            spans[at + 1][0] = stage
            self._add(value, stage, later, 1)
            self._enter(value, stage)
            self._leave(value, later)

    def _leave(self, value: int, stage: int) -> None:
        """Make a value no longer again in a stage."""
        self._note_stage(stage)
        self.again[stage].remove(value)
        self.work -= self._values.times[self.maker[value]]
        for each in self._values.reads[self.maker[value]]:
            self._unuse(each, stage)

    def _unuse(self, value: int, stage: int) -> None:
        """Take back a use of a value, and what is not needed without it."""
        self._note(value)
        self._changed.add(stage)
        counts, uses = self._count[value], self.uses[value]
        counts[stage] -= 1
        if counts[stage]:
            return
        del counts[stage]
        uses.remove(stage)
        spans, at = self.spans[value], self.span_at(value, stage)
        begin, end = spans[at]
        if end == stage:
            place = bisect_left(uses, stage) - 1
            if place >= 0 and uses[place] >= begin:
                before = uses[place]
            elif begin == self.maker[value]:
                before = begin
            else:
                spans.pop(at)
                self._add(value, begin, end, -1)
                self._leave(value, begin)
                return
            spans[at][1] = before
            self._add(value, before, end, -1)
        elif begin == stage and begin != self.maker[value]:
            later = uses[bisect_right(uses, stage)]
            made_of = self._values.reads[self.maker[value]]
            if all(self.spans[each][self.span_at(each, later)][1] >= later for each in made_of):
                spans[at][0] = later
                self._add(value, begin, later, -1)
                self._enter(value, later)
                self._leave(value, stage)

    def _most(self, stage: int) -> int:
        """Return the most bytes that are alive within a stage, beyond those at its start."""
        values, sizes = self._values, self._values.sizes
        reads, writes = values.reads, values.writes
        steps = [self.maker[value] for value in self.again[stage]]
        steps.append(stage)
        last: dict[int, int] = {}
        for at, step in enumerate(steps):
            for value in reads[step]:
                last[value] = at
            for value in writes[step]:
                last[value] = at
        held = most = 0
        for at, step in enumerate(steps):
            saved = ended = 0
            for value in writes[step]:
                if step != stage or self.maker[value] == stage:
                    held += sizes[value]
                if last[value] == at:
                    # What is made beside a value that is made again is scratch memory.
                    scratch = step != stage and not values.may_end[value]
                    if scratch or self._ends(value, stage):
                        ended += sizes[value]
            for value in reads[step]:
                if last[value] == at and self._ends(value, stage) and value not in writes[step]:
                    ended += sizes[value]
                    if sizes[value] == values.over[step]:
                        saved = sizes[value]
            most = max(most, held - saved)
            held -= ended
        return most

    def _ends(self, value: int, stage: int) -> bool:
        return self.spans[value][self.span_at(value, stage)][1] == stage
