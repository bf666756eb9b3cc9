"""Tests that all orders of execution that streams and events allow give the same bits. Tries as many as time allows.

    python -m benchmarks.checking.explore_campaign                         keeps results/explore.json and explore.md
    python -m benchmarks.checking.explore_campaign --interleavings 2000    a short look: keeps nothing below 100,000

Each execution is one interleaving on an `explore` device: real host bodies over poisoned memory, lanes in an order
drawn from a seed. Named DAGs (tests/programs/named_dags.py) and random ones (tests/programs/trials.py) are planned and
verified once for each policy, and their plans executed many times. Each result is compared with that of the plan's
own order, and that with NumPy's (named) or the host backend's (random). Some runs go through the whole interpreter,
each traced and planned again. Distinct orders are counted by a hash of 64 bits of the lanes of all steps.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple, final

from numpy.typing import NDArray

from benchmarks.support.table import RESULTS, machine
from dagpu import (
    ListSchedule,
    RoundRobin,
    SchedulingPolicy,
    StreamInterpreter,
    use_device,
    use_interpreter,
)
from dagpu.backends.explore import exploring
from dagpu.backends.explore.search import Trial
from tests.programs.named_dags import EXPECTED, NAMED, Op
from tests.programs.trials import random_dag, trial

POLICIES: Final[dict[str, SchedulingPolicy]] = {
    "RoundRobin(4)": RoundRobin(4),
    "ListSchedule(4)": ListSchedule(4),
    "RoundRobin(2)": RoundRobin(2),
}
NAMED_ORDERS, RANDOM_ORDERS, RANDOM_DAGS, THROUGH = 250, 50, 20, 10
"""Numbers in one piece of work: executions of a named DAG's plan, executions of each random DAG, random DAGs, and runs
through the interpreter."""
KEPT_FROM = 100_000
"""Least number of executions for which results are saved."""


@final
class Piece(NamedTuple):
    """A piece of work. `number` counts the pieces of its kind, and determines its seeds."""

    kind: str
    """The name of a DAG, "random", or "through" for runs through the interpreter."""
    policy: str
    number: int


@final
@dataclass
class Count:
    """The results of a piece, or of all pieces of a kind."""

    executions: int = 0
    steps: int = 0
    dags: int = 0
    orders: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        self.executions += other.executions
        self.steps += other.steps
        self.dags += other.dags
        self.orders |= other.orders
        self.wrong += other.wrong


def pieces() -> Iterator[Piece]:
    """Iterate endlessly: a piece of each named DAG and policy, about as many of random DAGs, then some whole runs."""
    number = 0
    while True:
        for policy in POLICIES:
            for name in NAMED:
                yield Piece(name, policy, number)
            for part in range(6):
                yield Piece("random", policy, number * 6 + part)
            yield Piece("through", policy, number)
        number += 1


def work(piece: Piece) -> tuple[Piece, Count]:
    """Do a piece."""
    match piece.kind:
        case "random":
            return piece, _random(piece)
        case "through":
            return piece, _through(piece)
        case _:
            return piece, _named(piece)


@cache
def _named_trial(name: str, policy: str) -> tuple[Trial, tuple[object, ...]]:
    """Plan a named DAG once for each process. Check that the plan's own order gives the result of NumPy."""
    made = trial(NAMED[name](), POLICIES[policy])
    expected = made.in_plan_order()
    if not _holds(expected, _bits(EXPECTED[name]())):
        raise AssertionError(f"{name}, {policy}: the plan's own order does not give what NumPy gives")
    return made, expected


def _bits(arrays: Sequence[NDArray[Any]]) -> tuple[object, ...]:
    return tuple((array.shape, array.dtype, array.tobytes()) for array in arrays)


def _holds(found: tuple[object, ...], expected: tuple[object, ...]) -> bool:
    """Return True if the results of a plan contain these arrays. They also contain the memory of `shared()` ops."""
    arrays = [held for held in found if isinstance(held, tuple)]
    return len(arrays) == len(expected) and all(array in arrays for array in expected)


def _named(piece: Piece) -> Count:
    made, expected = _named_trial(piece.kind, piece.policy)
    count = Count()
    first = piece.number * NAMED_ORDERS
    _explore(made, expected, range(first, first + NAMED_ORDERS), f"{piece.kind}, {piece.policy}", count)
    return count


def _random(piece: Piece) -> Count:
    count = Count()
    for seed in range(piece.number * RANDOM_DAGS, (piece.number + 1) * RANDOM_DAGS):
        made = trial(random_dag(seed), POLICIES[piece.policy])
        what = f"random_dag({seed}), {piece.policy}"
        expected = made.in_plan_order()
        if not _holds(expected, _on_host(seed)):
            count.wrong.append(f"{what}: the plan's own order differs from the host backend")
        _explore(made, expected, range(RANDOM_ORDERS), what, count, salt=seed)
        count.dags += 1
    return count


def _explore(
    made: Trial, expected: tuple[object, ...], seeds: range, what: str, count: Count, salt: int | None = None
) -> None:
    for seed in seeds:
        try:
            right = made.seeded(seed) == expected
        except Exception as error:
            count.wrong.append(f"{what}: seed {seed} raised {error!r}")
        else:
            if not right:
                count.wrong.append(f"{what}: seed {seed}")
        count.executions += 1
        count.steps += len(made.order)
        count.orders.add(hash((salt, made.order)))


@cache
def _on_host(seed: int) -> tuple[object, ...]:
    with use_device("host:0"):
        return _bits(random_dag(seed).sync())


def _through(piece: Piece) -> Count:
    """Do whole runs of random DAGs and named ones."""
    count = Count()
    names = list(NAMED)
    for run in range(THROUGH // 2):
        seed = piece.number * THROUGH + run
        name = names[seed % len(names)]
        _run_through(partial(random_dag, seed), _on_host(seed), f"random_dag({seed})", seed, piece.policy, count)
        _run_through(NAMED[name], _bits(EXPECTED[name]()), name, seed, piece.policy, count)
    return count


def _run_through(
    build: Callable[[], Op], expected: tuple[object, ...], what: str, seed: int, policy: str, count: Count
) -> None:
    """Do two runs, each of a new op."""
    with use_device("explore:0"), use_interpreter(StreamInterpreter("explore:0", POLICIES[policy])):
        for explored in (2 * seed, 2 * seed + 1):
            with exploring(seed=explored) as exploration:
                try:
                    right = _bits(build().sync()) == expected
                except Exception as error:
                    count.wrong.append(f"{what}, {policy}: exploring(seed={explored}) raised {error!r}")
                else:
                    if not right:
                        count.wrong.append(f"{what}, {policy}: exploring(seed={explored})")
            count.executions += 1
            count.steps += exploration.steps
            count.orders.add(hash((what, bytes(exploration.taken))))


def campaign(interleavings: int, seconds: float, processes: int) -> dict[tuple[str, str], Count]:
    """Do pieces of work until the number of executions or the time is reached."""
    counts: dict[tuple[str, str], Count] = defaultdict(Count)
    end = time.monotonic() + seconds
    done = said = 0
    with get_context("fork").Pool(processes) as pool:
        for piece, count in pool.imap_unordered(work, enough(interleavings)):
            counts[piece.kind, piece.policy].add(count)
            done += count.executions
            for wrong in count.wrong[:3]:
                print("WRONG:", wrong, flush=True)
            if done - said >= 50_000:
                said = done
                print(f"{done:,} executions, {end - time.monotonic():,.0f} s left", flush=True)
            if done >= interleavings or time.monotonic() >= end:
                pool.terminate()
                break
    return counts


def enough(interleavings: int) -> Iterator[Piece]:
    """Iterate over as many pieces as are needed, because the pool takes all of them at once."""
    given = 0
    for piece in pieces():
        if given >= interleavings + 64 * RANDOM_DAGS * RANDOM_ORDERS:
            return
        given += {"random": RANDOM_DAGS * RANDOM_ORDERS, "through": THROUGH * 2}.get(piece.kind, NAMED_ORDERS)
        yield piece


def report(counts: dict[tuple[str, str], Count], about: dict[str, str]) -> str:
    """Return the results as a page."""
    header = ["DAG", "policy", "DAGs", "interleavings", "distinct", "steps of each", "wrong"]
    rows = [
        [
            {"random": "random_dag(seed)", "through": "through the interpreter"}.get(kind, kind),
            policy,
            f"{count.dags or 1:,}" if kind != "through" else "",
            f"{count.executions:,}",
            f"{len(count.orders):,}",
            f"{count.steps / count.executions:.0f}",
            f"{len(count.wrong):,}",
        ]
        for (kind, policy), count in sorted(counts.items())
    ]
    all_of = Count()
    for count in counts.values():
        all_of.add(count)
    executions, wrong = all_of.executions, len(all_of.wrong)
    distinct = sum(len(count.orders) for count in counts.values())
    rows.append(["all", "", "", f"{executions:,}", f"{distinct:,}", f"{all_of.steps / executions:.0f}", f"{wrong:,}"])
    lines = [
        "# Explored interleavings",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        "",
        (
            f"{executions:,} executions, {distinct:,} of them in an order of steps that no other had; {wrong:,} gave "
            "other bits. A step is an allocation, a release, or the beginning or the end of an instruction. Seeds "
            "count from 0, so a longer campaign takes up all of a shorter one."
        ),
        "",
        f"| {' | '.join(header)} |",
        f"| --- | --- {'| ---: ' * 5}|",
        *(f"| {' | '.join(row)} |" for row in rows),
        *(f"- wrong: {what}" for what in all_of.wrong[:20]),
    ]
    return "\n".join(lines) + "\n"


def keep(counts: dict[tuple[str, str], Count], about: dict[str, str], page: str) -> None:
    """Save results/explore.json and explore.md."""
    data = [
        {
            "dag": kind,
            "policy": policy,
            "dags": count.dags,
            "interleavings": count.executions,
            "distinct": len(count.orders),
            "steps": count.steps,
            "wrong": count.wrong,
        }
        for (kind, policy), count in sorted(counts.items())
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "explore.json").write_text(json.dumps({"machine": about, "results": data}, indent=2) + "\n", "utf-8")
    (RESULTS / "explore.md").write_text(page, "utf-8")


def main() -> int:
    """Explore, print and save the results. Return 1 if any result was wrong."""
    parser = argparse.ArgumentParser(description="Does every order of execution give the same bits?")
    parser.add_argument("--interleavings", type=int, default=1_000_000, help="how many executions, at least")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long all the same")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    about = machine(["numpy", "trio"])
    start = time.monotonic()
    counts = campaign(asked.interleavings, asked.seconds, asked.processes)
    about |= {"processes": str(asked.processes), "seconds": f"{time.monotonic() - start:,.0f}"}
    page = report(counts, about)
    print(page)
    if sum(count.executions for count in counts.values()) >= KEPT_FROM:
        keep(counts, about, page)
    return int(any(count.wrong for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
