"""The quality of plans, and the cost of planning.

    python -m benchmarks.schedule            some minutes; keeps results/schedule.json and schedule.md
    python -m benchmarks.schedule --quick    half a minute; keeps nothing

Makespans are simulated with the cost model that the policy itself uses. The simulation executes the plan with its
streams and waits, and one copy at a time in each direction. The bounds hold for every plan. Planning is measured in a
new process for each size, on one core, from an op to a verified plan. Nothing is asserted.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_times import simulate
from benchmarks.support.table import Grid, Span, load_average, machine, now, pin_to_one_core, save, show
from benchmarks.support.workloads import BUILDS
from dagpu import CostModel, DeviceOp, ListSchedule, RoundRobin, SchedulingPolicy, SingleStream, current_device, device
from dagpu.plans.plan import Execute, Wait
from dagpu.plans.policies import place_program
from dagpu.plans.program import Program
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify
from dagpu.runtime.execute import quiet_collector
from dagpu.tracing.tracer import Tracer
from tests.programs.named_dags import NAMED  # the tests' DAGs, which are not installed

ROOT = Path(__file__).resolve().parents[1]

STREAMS = 4
TARGET = 1.10
"""Target: the ratio to the lower bound."""

TILES = CostModel().declare(
    {"subtract": 20e-6, "trsm_left": 15e-6, "trsm_right": 15e-6, "potrf": 30e-6, "getrf": 30e-6}
)  # fmt: skip
"""A cost model for realistic tiled factorisations: kernels take much longer than a launch. Declared, not measured."""

DAGS: dict[str, tuple[dict[str, Any], CostModel]] = {
    "fork_join": ({"branches": 8, "depth": 16, "size": 1 << 16}, CostModel()),
    "butterfly": ({"stages": 5, "size": 1 << 12}, CostModel()),
    "cholesky": ({"tiles": 10, "edge": 32}, TILES),
    "lu": ({"tiles": 7, "edge": 32}, TILES),
    "transformer_block": ({"tokens": 64, "width": 64, "heads": 8}, CostModel()),
    "reduction_tree": ({"leaves": 256, "size": 1 << 10}, CostModel()),
    "mlp_step": ({"shards": 8, "rows": 32, "width": 32, "hidden": 64}, CostModel()),
}

INTRICATE: dict[str, dict[str, int]] = {
    "fork_join": {"branches": 30, "depth": 32},
    "butterfly": {"stages": 6},
    "cholesky": {"tiles": 15, "edge": 8},
    "lu": {"tiles": 11, "edge": 8},
    "transformer_block": {"heads": 50, "width": 50},
    "reduction_tree": {"leaves": 256},
    "mlp_step": {"shards": 64},
}

PHASES = ("trace", "arrange", "schedule", "verify")


def trace(op: DeviceOp[Any, Any, Any], policy: SchedulingPolicy) -> Program:
    """Return the program of an op. The op keeps its handles."""
    tracer = Tracer(op, current_device(), policy, device)
    try:
        return tracer.stage().program
    finally:
        tracer.abandon("it was only planned")


# ---- quality


def makespans(small: bool) -> tuple[Grid, Grid]:
    """Return, for each DAG and policy, the ratio of the makespan to the bound, and the number of waits."""
    policies: dict[str, Callable[[CostModel], SchedulingPolicy]] = {
        "ListSchedule": lambda costs: ListSchedule(STREAMS, costs),
        "RoundRobin": lambda costs: RoundRobin(STREAMS),
        "SingleStream": lambda costs: SingleStream(),
    }
    columns = ["instructions", "simple bound, us", "bound, us", *policies, "ListSchedule / simple"]
    times = Grid(f"Makespan over the lower bound, {STREAMS} streams", columns)
    times.note = (
        f"Times the bound, so the least is 1.00; the target for ListSchedule is {TARGET:.2f}. The simple bound is "
        "max(critical path, work / streams), which the last column is held against. No schedule comes near it where "
        "copies have to come first, one after another: the bound counts, for whatever has to be done before an "
        "instruction or after it, what the streams and each copy engine take for it "
        "(benchmarks/support/makespan_bound.py). Where ListSchedule is at 1.00 of that, its plan is proved the best "
        "there is. In the butterfly each result needs every array: 32 copies in, five stages, 32 copies out. Graham's "
        "bound is 1.75 without copies."
    )
    counts = Grid("Waits between streams", ["instructions", *policies])
    counts.note = "Of the same plans. Each is needed: that is verified."
    for name, (sizes, costs) in DAGS.items():
        row, waits, program = [], [], None
        for make in policies.values():
            program = trace(NAMED[name](**({} if small else sizes)), make(costs))
            plan = schedule(program)
            verify(plan)
            row.append(simulate(plan, costs).makespan)
            waits.append(float(sum(isinstance(step, Wait) for step in plan.steps)))
        assert program is not None
        least, count = lower_bound(program, costs, STREAMS), float(len(program.instructions))
        bound, simple = least.seconds, max(least.critical_path, least.work)
        times.rows[name] = [count, simple * 1e6, bound * 1e6, *[seconds / bound for seconds in row], row[0] / simple]
        counts.rows[name] = [count, *waits]
    return times, counts


# ---- cost


def plan_once(op: DeviceOp[Any, Any, Any]) -> tuple[list[Span], int]:
    """Return the seconds of each of `PHASES`, and the number of instructions."""
    times = [now()]
    with quiet_collector():
        program = trace(op, ListSchedule(STREAMS))
        times.append(now())
        placement = place_program(program)
        times.append(now())
        plan = schedule(program, placement)
        times.append(now())
        verify(plan)
        times.append(now())
    count = sum(isinstance(step, Execute) for step in plan.steps)
    return [after.since(before) for before, after in pairwise(times)], count


def child(shape: str, size: int, repeats: int) -> None:
    """Plan in this process, and print seconds, instructions and bytes as JSON."""
    pin_to_one_core()
    op = BUILDS[shape](size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = [plan_once(op) for _ in range(repeats)]
    middle = [median(span.cpu for span in spans) for spans in zip(*[spans for spans, _ in samples], strict=True)]
    clock = median(sum(span.wall for span in spans) for spans, _ in samples)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"seconds": middle, "clock": clock, "count": samples[0][1], "before": before * 1024, "after": after * 1024}
    print(json.dumps(found))


def planning(shape: str, sizes: dict[int, int]) -> Grid:
    """Measure the planning of an op of each of `sizes`, which maps launches to repeats."""
    phases = [f"{phase}, us" for phase in PHASES]
    grid = Grid(
        f"Planning a {shape}",
        [*phases, "all but trace, us", "in all, us", "in all, s", "on the clock, s", "peak RSS, GiB", "op, GiB"],
    )
    grid.note = (
        "Processor time; microseconds are for each instruction. Targets: 1,000,000 instructions in 60 s and 4 GiB; at "
        "1,000 at most 12 us to arrange, schedule and verify; at 1,000,000 at most 1.5 times what it is at 10,000. "
        "The clock also counts what other processes took of the core. Peak memory is that of the process, with the "
        "op, whose own share, with all modules, is in the last column."
    )
    for size, repeats in sizes.items():
        command = [sys.executable, "-m", "benchmarks.schedule", "--child", shape, str(size), str(repeats)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        found = json.loads(done.stdout)
        each = [seconds / found["count"] * 1e6 for seconds in found["seconds"]]
        total = sum(found["seconds"])
        memory = [found["after"] / 2**30, found["before"] / 2**30]
        grid.rows[f"{found['count']:,} instructions"] = [
            *each,
            sum(each[1:]),
            sum(each),
            total,
            found["clock"],
            *memory,
        ]
    return grid


def intricate(repeats: int) -> Grid:
    """Measure the planning of the named DAGs with about 1,000 instructions and many more waits than in chains."""
    grid = Grid("Planning the named DAGs", ["instructions", *[f"{phase}, us" for phase in PHASES], "all but trace, us"])
    grid.note = "Processor time for each instruction; the least of several. Target: 12 us for all but the trace."
    for name, sizes in INTRICATE.items():
        op = NAMED[name](**sizes)
        samples = [plan_once(op) for _ in range(repeats)]
        count = samples[0][1]
        best = [min(span.cpu for span in spans) for spans in zip(*[spans for spans, _ in samples], strict=True)]
        each = [seconds / count * 1e6 for seconds in best]
        grid.rows[name] = [float(count), *each, sum(each[1:])]
    return grid


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="How good plans are, and what making them costs.")
    parser.add_argument("--quick", action="store_true", help="nothing above 10,000 instructions; keeps nothing")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        shape, size, repeats = asked.child
        child(shape, int(size), int(repeats))
        return
    quick: bool = asked.quick
    about = machine(("numpy",))
    tables = [*makespans(small=quick)]
    for table in tables:
        print(table.text(), end="\n\n", flush=True)
    sizes = {1_000: 11, 10_000: 3} if quick else {1_000: 21, 10_000: 7, 100_000: 3, 1_000_000: 1}
    for shape in BUILDS:
        tables.append(planning(shape, sizes))
        print(tables[-1].text(), end="\n\n", flush=True)
    tables.append(intricate(3 if quick else 11))
    print(tables[-1].text(), end="\n\n", flush=True)
    about["load average after"] = load_average()
    print(show([], about))
    if not quick:
        for path in save("schedule", "Plans: how good, and what they cost", tables, about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
