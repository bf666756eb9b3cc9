"""Greedy-by-size placement of buffers whose lifetimes are all known: each at the lowest free offset.

This is the memory planning of inference libraries (Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020), with happens-before in place of intervals of time. No single order is best for all plans,
so several are tried: by bytes, by bytes times lifetime, and by the bytes that may be alive together with a buffer.
Then follow variants of the best order so far, with some of the buffers near the arena's end moved forward.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.lowering.vector_clock import Clock

_Numbers: TypeAlias = NDArray[np.int64]

PLACINGS: Final = 2048
"""Most buffers that are placed in all tries together, at about 10 us each."""

TRIES: Final = 16
"""Most orders that are tried."""


@final
@dataclass(slots=True)
class Lifetime:
    """Lifetime of the bytes of a buffer, and of the buffers that are written over it in place."""

    nbytes: int
    """Size, a multiple of the alignment."""
    begin: int
    """Step that the bytes are allocated for."""
    clock: Clock
    """Clock of that step's lane at that step."""
    buffers: list[int]
    """The buffer, and those written over it."""
    lane: int = -1
    """Lane of the release."""
    end: int = -1
    """Step of the release."""


def large_first(lives: Sequence[Lifetime], lanes: int, enough: float) -> tuple[list[int], int]:
    """Return an offset for each lifetime, and the size of the arena. Tries stop once that is at most `enough`.

    Time (vectorised) and memory are the square of the number of lifetimes; `PLACINGS` limits the time of the tries.
    """
    disjoint = _disjoint(lives, lanes)
    sizes: _Numbers = np.array([live.nbytes for live in lives], dtype=np.int64)
    best: _Numbers = np.zeros(len(lives), dtype=np.int64)
    top = int(sizes.sum()) + 1
    orders = _orders(lives, disjoint, sizes)
    random = Random(0)  # a fixed seed, so that a program always has the same plan
    order: list[int] = []
    for _ in range(min(TRIES, PLACINGS // max(len(lives), 1))):
        given = next(orders, None)
        tried = _moved_forward(order, best + sizes, random) if given is None else given
        starts = _place(tried, disjoint, sizes)
        end = int((starts + sizes).max(initial=0))
        if end <= top:
            best, top, order = starts, end, tried
        if top <= enough:
            break
    return [int(start) for start in best], top


def _orders(lives: Sequence[Lifetime], disjoint: "NDArray[np.bool_]", sizes: _Numbers) -> Iterator[list[int]]:
    """Yield the orders to try first, each as indices of the lifetimes."""
    beside = (~disjoint) @ sizes
    ranks: Iterable[Callable[[int], int]] = (
        lambda number: -lives[number].nbytes,
        lambda number: -lives[number].nbytes * (lives[number].end - lives[number].begin),
        lambda number: -int(beside[number]),
    )
    for rank in ranks:
        yield sorted(range(len(lives)), key=lambda number: (rank(number), lives[number].begin))


def _moved_forward(order: Sequence[int], ends: _Numbers, random: Random) -> list[int]:
    """Return the order with half of the buffers that reach into the uppermost tenth moved to random earlier places."""
    out = np.flatnonzero(ends > 0.9 * ends.max()).tolist()
    moved = list(order)
    for number in random.sample(out, (len(out) + 1) // 2):
        at = moved.index(number)
        moved.insert(random.randint(0, at), moved.pop(at))
    return moved


def _place(order: Sequence[int], disjoint: "NDArray[np.bool_]", sizes: _Numbers) -> _Numbers:
    """Return the offset of each buffer, placed in this order, each at the lowest free offset."""
    starts = np.zeros(len(order), dtype=np.int64)
    placed = np.zeros(len(order), dtype=bool)
    for number in order:
        others = np.flatnonzero(placed & ~disjoint[number])
        starts[number] = _lowest(starts[others], starts[others] + sizes[others], int(sizes[number]))
        placed[number] = True
    return starts


def _disjoint(lives: Sequence[Lifetime], lanes: int) -> "NDArray[np.bool_]":
    """Return, for each pair, whether one ends before the other begins in every execution."""
    begin = np.array([live.begin for live in lives])
    end = np.array([live.end for live in lives])
    clocks = np.array([live.clock for live in lives], dtype=np.int64).reshape(len(lives), lanes)
    # A clock covers all steps of its own lane, also later ones, so the order of the steps is checked as well.
    before = (clocks[:, [live.lane for live in lives]] >= end) & (end < begin[:, None])
    disjoint: NDArray[np.bool_] = before | before.T
    return disjoint


def _lowest(starts: "NDArray[Any]", ends: "NDArray[Any]", nbytes: int) -> int:
    """Return the lowest offset for `nbytes` bytes beside these spans, which may overlap each other."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    if starts[0] >= nbytes:
        return 0
    gaps = np.flatnonzero(starts[1:] - ends[:-1] >= nbytes)
    return int(ends[gaps[0]] if len(gaps) else ends[-1])
