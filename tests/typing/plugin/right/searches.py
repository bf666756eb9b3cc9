"""Longer programs, as users write them: falling back, searching, and machines with states."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dagpu import (
    OutOfMemoryError,
    Partition,
    SharedTensor,
    Tensor,
    TensorRef,
    convert,
    dup,
    empty,
    f32,
    f64,
    fill,
    ones,
    rand,
    zeros,
)
from tests.typing.plugin.kernels import add, eat, gemm, saxpy, scale, split, total, vector

log: Final = logging.getLogger(__name__)
N: Final = 8
TILE: Final = (4,)


# ---- failing and trying again


def smaller_batches_when_memory_is_short() -> None:
    n = 16
    while True:
        try:
            t = zeros((n,)).sync()
            break
        except OutOfMemoryError:
            n //= 2
            if n == 0:
                raise
    print(t.shape)


def falls_back_to_single_precision() -> None:
    t = rand((N,), f64, seed=1).sync()
    try:
        result = t.borrow().to_host().sync().astype(np.float32)
    except MemoryError:
        narrow = convert(t, f32).sync()
        result = narrow.to_host().sync()
    print(result.dtype)


@contextmanager
def timed(name: str, into: dict[str, int]) -> Iterator[None]:
    """Counts how often a block is run."""
    try:
        yield
    finally:
        into[name] = into.get(name, 0) + 1


def timed_blocks() -> None:
    counts: dict[str, int] = {}
    t = vector()
    with timed("scale", counts):
        scale(t.borrow_mut().partition(TILE), 2.0).sync()
    with timed("move", counts), timed("all", counts):
        s = t.share()
    print(counts, s.shape)


# ---- searching


@dataclass(order=True)
class Candidate:
    """A beam's end, and how good it is."""

    score: float
    state: Tensor[f32] = field(compare=False)


def beam_search() -> None:
    beams = [Candidate(0.0, vector())]
    for depth in range(3):
        grown: list[Candidate] = []
        for beam in beams:
            for rate in (0.5, 2.0):
                state = dup(beam.state.borrow()).sync()
                scale(state.borrow_mut().partition(TILE), rate).sync()
                grown.append(Candidate(total(state.borrow()), state))
        grown.sort(reverse=True)
        beams = grown[:2]
        log.info("depth %d: best %f", depth, beams[0].score)
    best = max(beams)
    eat(best.state)


def grid_search() -> None:
    results: defaultdict[float, list[float]] = defaultdict(list)
    start = vector().share()
    for rate in (0.1, 0.2):
        w = dup(start).sync()
        for _ in range(2):
            saxpy(w.borrow_mut().partition(TILE), -rate, ones((N,))).sync()
            results[rate].append(total(w.borrow()))
    print(dict(results), start.shape)


def ensemble() -> None:
    members = {seed: rand((N,), seed=seed).sync() for seed in range(3)}

    def predict(weights: Mapping[int, Tensor[f32]], x: TensorRef[f32]) -> list[float]:
        ops = [add(empty((N,)).partition(TILE), w.borrow(), x).first().unpartition() for w in weights.values()]
        return [total(op.sync().borrow()) for op in ops]

    x = vector()
    print(np.mean(predict(members, x.borrow())), np.std(predict(members, x.borrow())))
    worst = min(members, key=lambda seed: total(members[seed].borrow()))
    eat(members.pop(worst))


# ---- state machines


class Buffer:
    """Empty, filled, or handed over."""

    def __init__(self) -> None:
        self._state: Tensor[f32] | Partition[Tensor[f32]] | None = None

    def fill(self, t: Tensor[f32]) -> None:
        self._state = t

    def cut(self) -> None:
        match self._state:
            case Tensor() as t:
                self._state = t.partition(TILE)
            case Partition():
                log.debug("cut already")
            case None:
                raise ValueError("nothing to cut")

    def drain(self) -> Tensor[f32] | None:
        state, self._state = self._state, None
        if isinstance(state, Partition):
            return state.unpartition()
        return state


def buffer_in_states() -> None:
    buffer = Buffer()
    for _ in range(2):
        buffer.fill(vector())
        buffer.cut()
        buffer.cut()
        if (t := buffer.drain()) is not None:
            eat(t)
    print(buffer.drain())


def commands() -> None:
    t = vector()
    for command in ("double", "clear", "halve", "skip", "stop", "double"):
        match command:
            case "double":
                scale(t.borrow_mut().partition(TILE), 2.0).sync()
            case "halve":
                t = scale(t.partition(TILE), 0.5).first().unpartition().sync()
            case "clear":
                t = fill(t, 0.0).sync()
            case "stop":
                break
            case _:
                continue
        log.info("%s: %f", command, total(t.borrow()))
    eat(t)


def undo_stack() -> None:
    done: list[Tensor[f32]] = []
    t = vector()
    for rate in (2.0, 3.0):
        done.append(dup(t.borrow()).sync())
        scale(t.borrow_mut().partition(TILE), rate).sync()
    while done:
        t = done.pop()
    assert total(t.borrow()) == N


def positive_part_of_a_stream() -> None:
    low, high = zeros((N,)).sync(), zeros((N,)).sync()
    sums = {"low": 0.0, "high": 0.0}
    for seed in range(3):
        x = rand((N,), seed=seed).sync()
        split(low.borrow_mut().partition(TILE), high.borrow_mut().partition(TILE), x).sync()
        for name, t in (("low", low), ("high", high)):
            sums[name] += total(t.borrow())
    print(sums)


def weights_are_tied() -> None:
    table: SharedTensor[f32] = rand((4, 4), seed=1).share().sync()
    encoder, decoder = table, table.clone()
    x = ones((4, 4)).sync()
    h = gemm(empty((4, 4)).partition((2, 2)), x, encoder).first().unpartition()
    y = gemm(empty((4, 4)).partition((2, 2)), h, decoder).first().unpartition().sync()
    print(y.shape, table.shape)
