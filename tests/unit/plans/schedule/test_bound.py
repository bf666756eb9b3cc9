"""The lower bound on makespans, compared with the best of all schedules of small programs and with `ListSchedule`.

The best is found by trying every order in which instructions may be given to the streams, each to the first that is
free: one of these orders gives a schedule that is as short as any. An order is given up as soon as a longest path or
the work that is left shows that it cannot be the best.
"""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from benchmarks.support.makespan_bound import LARGEST, lower_bound
from benchmarks.support.plan_times import simulate
from dagpu import CostModel, ListSchedule, RoundRobin
from dagpu.plans.list_schedule import Dependences, streams_of
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    CopyDtoH,
    CopyHtoD,
    Instruction,
    Program,
    Role,
    View,
    contiguous_layout,
    schedule,
)
from tests.programs.named_dags import NAMED
from tests.programs.plain_programs import chain, launch, layers, program, written
from tests.programs.trials import planned

COSTS = CostModel(launch=1.0, bandwidth=100.0, host_bandwidth=25.0)
"""A copy of 25 bytes is 2 seconds, a launch on two of them 1.5."""

KNOWN = written()

STREAMS = 2


def small(seed: int, most: int = 9) -> Program:
    """Up to `most` instructions: arrays are copied in, launches read up to two of what there
    is, and the last few results are copied out."""
    random = Random(seed)
    buffers: list[Buffer] = []
    instructions: list[Instruction] = []

    def buffer(nbytes: int, device: int, role: Role) -> int:
        buffers.append(Buffer(nbytes, device, role))
        return len(buffers) - 1

    def view(number: int) -> View:
        return View(number, contiguous_layout((buffers[number].nbytes,), np.dtype(np.int8)))

    made: list[int] = []
    for _ in range(random.randint(1, 4)):
        cell, there = buffer(0, HOST, Role.INPUT), buffer(random.choice([25, 50]), 0, Role.TEMPORARY)
        instructions.append(CopyHtoD(view(there), Cell(cell), (cell,), (there,), 0, None))
        made.append(there)
    while len(instructions) < most - 2:
        out = buffer(random.choice([25, 100]), 0, Role.TEMPORARY)
        reads = random.sample(made, min(len(made), random.randint(0, 2)))
        instructions.append(replace(launch(reads, (out,)), kernel=KNOWN))
        made.append(out)
    for source in made[-random.randint(0, 2) :]:
        if len(instructions) < most:
            cell = buffer(0, HOST, Role.OUTPUT)
            instructions.append(CopyDtoH(Cell(cell), view(source), (source,), (cell,), 0, None))
    return program(instructions, buffers, kind="cuda")


def best(source: Program, streams: int) -> float:
    """The makespan of the best schedule."""
    on = Dependences(source, COSTS.times(source))
    shortest = makespan(source, ListSchedule(streams, COSTS))
    missing, ready_at = on.producers.copy(), [0.0] * on.count
    free = {pool: [0.0] * streams_of(pool, streams) for pool in on.work}
    work = on.work.copy()

    def go_on(left: int, end: float) -> None:
        nonlocal shortest
        if not left:
            shortest = min(shortest, end)
        for index in [i for i in range(on.count) if not missing[i]]:
            pool = free[on.pool[index]]
            stream = min(range(len(pool)), key=pool.__getitem__)
            was, begin = pool[stream], max(pool[stream], ready_at[index])
            if max(begin + on.rest[index], (sum(pool) + work[on.pool[index]]) / len(pool)) >= shortest - 1e-9:
                continue
            pool[stream], missing[index] = begin + on.times[index], -1
            work[on.pool[index]] -= on.times[index]
            before = [ready_at[later] for later in on.after[index]]
            for later in on.after[index]:
                missing[later] -= 1
                ready_at[later] = max(ready_at[later], pool[stream])
            go_on(left - 1, max(end, pool[stream]))
            for later, at in zip(on.after[index], before, strict=True):
                missing[later] += 1
                ready_at[later] = at
            pool[stream], missing[index] = was, 0
            work[on.pool[index]] += on.times[index]

    go_on(on.count, 0.0)
    return shortest


def makespan(source: Program, policy: ListSchedule | RoundRobin) -> float:
    """Return the makespan of the plan that a policy makes."""
    return simulate(schedule(program(source.instructions, source.buffers, policy, kind="cuda")), COSTS).makespan


def test_the_bound_and_list_scheduling_against_the_best() -> None:
    """For a hundred small programs, the bound is never above the best schedule, and equals it for most.

    `ListSchedule` finds the best for most, and is never more than a tenth above it. `RoundRobin` takes at least twice
    as long.
    """
    met = found = 0
    worst = other = 1.0
    for seed in range(100):
        source = small(seed)
        bound, least = lower_bound(source, COSTS, STREAMS).seconds, best(source, STREAMS)
        taken = makespan(source, ListSchedule(STREAMS, COSTS))
        assert bound <= least * (1 + 1e-9) <= taken * (1 + 1e-8)
        met += math.isclose(bound, least)
        found += math.isclose(taken, least)
        worst, other = max(worst, taken / least), max(other, makespan(source, RoundRobin(STREAMS)) / least)
    assert met >= 85
    assert found >= 85
    assert worst <= 1.1 + 1e-9
    assert other > 2


@pytest.mark.parametrize(("name", "most"), [("butterfly", 1.0), ("reduction_tree", 1.01), ("transformer_block", 1.01)])
def test_plans_of_named_dags_cannot_be_beaten(name: str, most: float) -> None:
    """The critical path and the work alone say that a butterfly could take half as long. But each of its results needs
    every array, so the copies in, the stages and the copies out come one after another."""
    sizes = {"butterfly": {"stages": 4}, "reduction_tree": {"leaves": 64}, "transformer_block": {"heads": 8}}[name]
    plan, _ = planned(NAMED[name](**sizes), ListSchedule(4))
    bound = lower_bound(plan.program, CostModel(), 4)
    assert simulate(plan, CostModel()).makespan <= most * bound.seconds * (1 + 1e-9)
    assert name != "butterfly" or bound.between > 1.5 * max(bound.critical_path, bound.work)


def test_of_a_large_program_heads_are_paths_alone() -> None:
    """In a large program, heads are only longest paths.

    So time and memory grow linearly, and the result is still a bound.
    """
    for count in (LARGEST, LARGEST + 1):
        found = lower_bound(chain(count), CostModel(launch=1.0, bandwidth=1e30), 2)
        assert found.critical_path == found.seconds == pytest.approx(count)
    wide = layers(64, 40)
    found = lower_bound(wide, CostModel(launch=1.0, bandwidth=1e30), 4)
    assert found.work == pytest.approx(64 * 40 / 4)
    assert found.between == pytest.approx(found.work)


def test_nothing_takes_no_time() -> None:
    """An empty program has a bound of 0."""
    assert lower_bound(program([], []), COSTS, 2).seconds == 0
