"""The time of a step over the bytes that it may take, as planned: what waits, orders and recomputation pay.

    python -m benchmarks.recomputation            some minutes; keeps results/recomputation.json and recomputation.md
    python -m benchmarks.recomputation --dry      keeps nothing

The first table has all curves on one stream. For each step and share of the bytes that it takes without a limit: how
much longer the plan of `ListSchedule(1, memory_limit=..., recompute=True)` is predicted to take; the least that any
schedule within these bytes could be longer; the ratio of the two; and, where the step is a sequence of layers, how much
longer PyTorch's rule takes, `checkpoint_sequential` with the best number of segments that keeps the limit, by the same
times and bytes. The other tables have each step by itself, with the bytes and the processor time of planning, and the
same with four streams, beside four streams without a limit. Each plan is verified, and so is what it computes. All
times are predicted: no kernel is run.
"""

import argparse
import math
import time
from dataclasses import replace

from benchmarks.support.table import Grid, load_average, machine, save, show
from benchmarks.support.taped_steps import SHAPES, blocks, checkpointed, least_work
from dagpu import ListSchedule, PlanError
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.plan import Plan
from dagpu.plans.prediction import makespan_of
from dagpu.plans.program import Program
from dagpu.plans.recomputing import recomputed
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify

SHARES = (0.9, 0.75, 0.5, 0.4, 1 / 3, 0.25, 0.2, 0.15)
FOUR = (1.15, 1.0, 0.75, 0.5, 1 / 3)
COLUMNS = ["bytes, % of one stream", "longer, %", "bound, %", "planning, s"]
LARGE = 58
"""The transformer blocks of the step by which planning is timed: 2,435 instructions."""


def _planned(source: Program, policy: ListSchedule) -> tuple[Plan, float]:
    """Return the proved plan of a program, and the seconds of planning."""
    program = replace(source, policies=(policy,))
    begin = time.process_time()
    made = recomputed(program)
    plan = schedule(made)
    spent = time.process_time() - begin
    verify_placement(program, made, again=True)
    verify(plan)
    return plan, spent


def curve(name: str) -> dict[str, list[float]]:
    """Return the rows of a step in the table of all curves."""
    tape = SHAPES[name]()
    source, costs = tape.program()
    times = costs.times(source)
    before, (free, _) = sum(times), _planned(source, ListSchedule(1, costs))
    results = free.peak_bytes - sum(free.arena_bytes)
    rule = [checkpointed(tape, segments) for segments in range(2, len(tape.borders) + 1)]
    longer, bounds, by_rule = list[float](), list[float](), list[float]()
    for share in SHARES:
        limit = int(share * free.peak_bytes)
        policy = ListSchedule(1, costs, memory_limit=limit, recompute=True)
        try:
            longer.append(100 * (makespan_of(_planned(source, policy)[0], costs) / before - 1))
        except PlanError:
            longer.append(math.nan)
        bounds.append(100 * (least_work(source, times, limit - results) / before - 1))
        found = [work for peak, work in rule if peak + results <= limit]
        by_rule.append(100 * (min(found) / before - 1) if found else math.nan)
    ratios = [ours / bound if bound else math.nan for ours, bound in zip(longer, bounds, strict=True)]
    rows = {f"{name}, longer, %": longer, f"{name}, bound, %": bounds, f"{name}, times the bound": ratios}
    return rows | ({f"{name}, checkpoint_sequential, %": by_rule} if tape.borders else {})


def compare(name: str) -> list[Grid]:
    """Return the tables of one step: with one stream, and with four."""
    source, costs = SHAPES[name]().program()
    times = costs.times(source)
    found: list[Grid] = []
    one, _ = _planned(source, ListSchedule(1, costs))
    results = one.peak_bytes - sum(one.arena_bytes)
    for streams, shares in ((1, SHARES), (4, FOUR)):
        free, _ = _planned(source, ListSchedule(streams, costs))
        before = makespan_of(free, costs)
        grid = Grid(f"{name}, {streams} stream{'s' * (streams > 1)}", COLUMNS)
        for share in shares:
            limit = int(share * one.peak_bytes)
            try:
                plan, spent = _planned(source, ListSchedule(streams, costs, memory_limit=limit, recompute=True))
            except PlanError:
                break
            longer = makespan_of(plan, costs) / before - 1
            bound = least_work(source, times, limit - results) / sum(times) - 1
            grid.rows[f"limit {share:.0%}"] = [
                100 * plan.peak_bytes / one.peak_bytes, 100 * longer, 100 * bound, spent,
            ]  # fmt: skip
        grid.note = (
            f"{len(source.instructions):,} instructions; without a limit {free.peak_bytes / 2**20:,.0f} MiB and "
            f"{before * 1e3:,.2f} ms, predicted. The bound is on the work within the limit."
        )
        found.append(grid)
    return found


def planning() -> Grid:
    """Return what planning a large step takes."""
    source, costs = blocks(LARGE).program()
    one, _ = _planned(source, ListSchedule(1, costs))
    grid = Grid(f"Planning {LARGE} blocks, s", [f"limit {share:.0%}" for share in (0.9, 0.5, 1 / 3)])
    grid.note = f"{len(source.instructions):,} instructions; processor time; the goal is 2 s."
    for streams in (1, 4):
        grid.rows[f"{streams} stream{'s' * (streams > 1)}"] = [
            _planned(source, ListSchedule(streams, costs, memory_limit=int(share * one.peak_bytes), recompute=True))[1]
            for share in (0.9, 0.5, 1 / 3)
        ]
    return grid


def main() -> None:
    """Plan, print the results, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    parser.add_argument("--only", choices=[*SHAPES], help="one step; keeps nothing")
    given = parser.parse_args()
    about = machine(("numpy",))
    names = [given.only] if given.only else list(SHAPES)
    curves = Grid("All curves, one stream", [f"limit {share:.0%}" for share in SHARES])
    curves.note = (
        "What a step takes longer than without a limit, by the bytes that it may take. The goals: at most 1.3 times "
        'the bound at 50 %, 1.6 times at 33 %. "-" is not reached.'
    )
    for name in names:
        curves.rows |= curve(name)
    grids = [curves, *[grid for name in names for grid in compare(name)]]
    if not given.only:
        grids.append(planning())
    about["load average after"] = load_average()
    print(show(grids, about))
    if not given.dry and not given.only:
        save("recomputation", "Recomputation", grids, about)


if __name__ == "__main__":
    main()
