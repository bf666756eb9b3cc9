"""Contenders that make many calls in a row, the goals among them, and the table that says which goals are met."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias, final

import trio

from benchmarks.support.gpu import medians
from benchmarks.support.table import Span, Table, now

OURS, FLOOR, TRIO = "dagpu", "C++", "trio"
"""The beginnings of the names of contenders that are no peers."""

Loop: TypeAlias = Callable[[int], object]
"""Makes this many calls in a row."""


@final
class Goal(NamedTuple):
    """A row of the table of goals: what `ours` takes is at most `times` what the contenders `of` take together, and
    `more` microseconds."""

    row: str
    ours: str
    times: float
    of: tuple[str, ...]
    more: float = 0.0


@final
class Section(NamedTuple):
    """Contenders that took turns, and the goals among them."""

    title: str
    samples: dict[str, list[Span]]
    goals: list[Goal]
    note: str = ""

    def median(self, *names: str) -> float | None:
        """Return the microseconds that these take together; None if one of them was not measured."""
        if any(name not in self.samples for name in names):
            return None
        return sum(medians(self.samples[name]).wall for name in names) * 1e6

    def fastest(self, *beginnings: str, but: bool = False) -> str:
        """Return the name and the time of the fastest contender whose name begins so, or with `but` of those whose name
        does not; of the floor the time alone. Empty if there is none."""
        names = [name for name in self.samples if name.startswith(beginnings) is not but]
        if not names:
            return ""
        best = min(names, key=lambda name: medians(self.samples[name]).wall)
        shown = f"{medians(self.samples[best]).wall * 1e6:.2f}"
        return shown if best.startswith(FLOOR) else f"{best} {shown}"

    def table(self) -> Table:
        """Return all contenders, with their ratios to the first."""
        first = next(iter(self.samples))
        table = Table(self.title, "us", self.note, ratio_to="the first")
        for name, spans in self.samples.items():
            table.add(name, spans, 1e6, base=self.samples[first])
        return table


def in_a_row(name: str, loop: Loop, calls: int, per: int = 1) -> dict[str, Span]:
    """Return the mean time of a call of `calls` in a row; with `per` that of each of the parts of a call."""
    begin = now()
    loop(calls)
    took = now().since(begin)
    return {name: Span(took.wall / (calls * per), took.cpu / (calls * per))}


def in_trio(name: str, loop: Callable[[int], Awaitable[object]], calls: int) -> dict[str, Span]:
    """Return the mean time of a call of `calls` in a row in a task. The clock runs within the task."""
    return trio.run(_in_task, name, loop, calls)


async def _in_task(name: str, loop: Callable[[int], Awaitable[object]], calls: int) -> dict[str, Span]:
    begin = now()
    await loop(calls)
    took = now().since(begin)
    return {name: Span(took.wall / calls, took.cpu / calls)}


def repeated(call: Callable[[], object]) -> Loop:
    """Return a loop of one function."""

    def loop(count: int) -> None:
        for _ in range(count):
            call()

    return loop


def table_of_goals(title: str, sections: Sequence[Section], missing: str) -> Table:
    """Return a row for each goal: dagpu's time, the floor, the best peer, the ratio, and if the goal is met.

    `missing` is a sentence on the peers that are not in it.
    """
    table = Table(title, "us", ratio_to="the others", remarks="C++; best peer; target")
    table.note = (
        "Each row stands with its floor and its peers in a table below. A target is a factor of the goal times what "
        f"others take; the ratio is to what others take.{missing}"
    )
    for section in sections:
        for goal in section.goals:
            if goal.ours not in section.samples:
                continue
            base = section.median(*goal.of)
            more = f" + {goal.more:g}" if goal.more else ""
            wanted = f"{goal.times:g} x {base:.2f}{more}" if base is not None else "-"
            peer = section.fastest(OURS, FLOOR, TRIO, "roofline", but=True)
            table.add(
                goal.row,
                section.samples[goal.ours],
                1e6,
                target=None if base is None else round(base * goal.times + goal.more, 2),
                base=None if base is None else [Span(base * 1e-6, 0.0)],
                remark="; ".join([section.fastest(FLOOR) or "-", peer or "-", wanted]),
            )
    return table


__all__ = ["Goal", "Loop", "Section", "in_a_row", "in_trio", "repeated", "table_of_goals"]
