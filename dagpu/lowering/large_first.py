"""Placing buffers whose lifetimes are all known: the weightiest first, each as low as it can lie.

Greedy by size, as tensor libraries for small devices plan their memory (Y. Pisarchyk and J. Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020), with happens-before in place of intervals of time. No one order is the
best for all plans, so several are tried: by bytes, by bytes and time, by all bytes that may be alive beside a buffer;
and then the best so far, with some of those moved forward that stick out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.lowering.order import Clock

_Numbers: TypeAlias = NDArray[np.int64]

PLACINGS: Final = 2048
"""How many buffers are placed in all tries together: at some 10 us each."""

TRIES: Final = 16
"""How many orders are tried at most."""


@final
@dataclass(slots=True)
class Lifetime:
    """Bytes that are held from one step to another: of a buffer, and of those that are written over it in place."""

    nbytes: int
    begin: int
    """The step that allocates them, and its lane's clock then."""
    clock: Clock
    buffers: list[int]
    lane: int = -1
    """Of the release, and its step."""
    end: int = -1


def large_first(lives: Sequence[Lifetime], lanes: int, enough: float) -> tuple[list[int], int]:
    """An offset for each, and where the last of them ends; no more is tried once that is `enough`.

    Takes the square of their number in time (vectorised) and memory, and `PLACINGS`.
    """
    apart = _apart(lives, lanes)
    sizes: _Numbers = np.array([live.nbytes for live in lives], dtype=np.int64)
    best: _Numbers = np.zeros(len(lives), dtype=np.int64)
    top = int(sizes.sum()) + 1
    orders = _orders(lives, apart, sizes)
    random = Random(0)  # always the same: a program has one plan
    order: list[int] = []
    for _ in range(min(TRIES, PLACINGS // max(len(lives), 1))):
        given = next(orders, None)
        tried = _moved_forward(order, best + sizes, random) if given is None else given
        starts = _place(tried, apart, sizes)
        end = int((starts + sizes).max(initial=0))
        if end <= top:
            best, top, order = starts, end, tried
        if top <= enough:
            break
    return [int(start) for start in best], top


def _orders(lives: Sequence[Lifetime], apart: "NDArray[np.bool_]", sizes: _Numbers) -> Iterator[list[int]]:
    beside = (~apart) @ sizes
    ranks: Iterable[Callable[[int], int]] = (
        lambda number: -lives[number].nbytes,
        lambda number: -lives[number].nbytes * (lives[number].end - lives[number].begin),
        lambda number: -int(beside[number]),
    )
    for rank in ranks:
        yield sorted(range(len(lives)), key=lambda number: (rank(number), lives[number].begin))


def _moved_forward(order: Sequence[int], ends: _Numbers, random: Random) -> list[int]:
    """The same order, but for half of those that reach into the uppermost tenth: each earlier, by chance."""
    out = np.flatnonzero(ends > 0.9 * ends.max()).tolist()
    moved = list(order)
    for number in random.sample(out, (len(out) + 1) // 2):
        at = moved.index(number)
        moved.insert(random.randint(0, at), moved.pop(at))
    return moved


def _place(order: Sequence[int], apart: "NDArray[np.bool_]", sizes: _Numbers) -> _Numbers:
    starts = np.zeros(len(order), dtype=np.int64)
    placed = np.zeros(len(order), dtype=bool)
    for number in order:
        others = np.flatnonzero(placed & ~apart[number])
        starts[number] = _lowest(starts[others], starts[others] + sizes[others], int(sizes[number]))
        placed[number] = True
    return starts


def _apart(lives: Sequence[Lifetime], lanes: int) -> "NDArray[np.bool_]":
    """For each pair: does one end before the other begins, in every execution?"""
    begin = np.array([live.begin for live in lives])
    end = np.array([live.end for live in lives])
    clocks = np.array([live.clock for live in lives], dtype=np.int64).reshape(len(lives), lanes)
    # A lane's clock is always ahead of itself: the order of the steps says the rest.
    before = (clocks[:, [live.lane for live in lives]] >= end) & (end < begin[:, None])
    apart: NDArray[np.bool_] = before | before.T
    return apart


def _lowest(starts: "NDArray[Any]", ends: "NDArray[Any]", nbytes: int) -> int:
    """The lowest place for so many bytes beside these spans, which may overlap each other."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    if starts[0] >= nbytes:
        return 0
    gaps = np.flatnonzero(starts[1:] - ends[:-1] >= nbytes)
    return int(ends[gaps[0]] if len(gaps) else ends[-1])
