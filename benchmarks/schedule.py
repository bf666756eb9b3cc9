"""The quality of plans, and the cost of planning.

    python -m benchmarks.schedule                      some ten minutes; keeps results/schedule.json and schedule.md
    python -m benchmarks.schedule --quick              a minute; keeps nothing
    python -m benchmarks.schedule --planning random    planning alone, of ops of this shape; keeps nothing

Makespans are simulated with the cost model that the policy itself uses. The simulation executes the plan with its
streams and waits, and one copy at a time in each direction. The bounds hold for every plan. Planning is measured in a
new process for each size, on one core, from an op to a plan that is proved and prepared, on one device and on meshes of
devices of the host. Nothing is asserted.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_shapes import SHAPES
from benchmarks.support.plan_times import simulate
from benchmarks.support.table import Grid, Span, load_average, machine, now, pin_to_one_core, save, show
from dagpu import (
    CostModel,
    DeviceOp,
    ListSchedule,
    Mesh,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    Spread,
    current_device,
    device,
)
from dagpu.plans.memory import lay_out
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import place_spread
from dagpu.plans.plan import Execute, Wait
from dagpu.plans.policies import place_program
from dagpu.plans.program import HOST, Program, Role
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify
from dagpu.runtime.device_lookup import backend
from dagpu.runtime.execute import quiet_collector
from dagpu.tracing.tracer import Stage, Tracer
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
PASSES = ("trace", "place", "prove", "arrange", "schedule", "memory", "verify", "prepare")
DEVICES = (1, 2, 8)
"""The numbers of devices of the host on which planning is measured."""
GOALS = (8.0, 25.0)
"""The most microseconds of planning for each instruction: on one device, and on several."""

_T = TypeVar("_T")


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
            program = traced_stage(NAMED[name](**({} if small else sizes)), make(costs)).program
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


def passes(op: DeviceOp[Any, Any, Any], devices: int) -> tuple[list[Span], int]:
    """Return the spans of each of `PASSES` for an op, and the number of instructions of its trace.

    What an instruction reads counts as a temporary: an op that is kept, as this one is, would keep what is shared.
    """
    spans: dict[str, Span] = dict.fromkeys(PASSES, Span(0.0, 0.0))

    def timed(name: str, call: Callable[[], _T]) -> _T:
        begin = now()
        found = call()
        spans[name] = now().since(begin)
        return found

    names = [f"host:{number}" for number in range(devices)]
    policy: SchedulingPolicy = ListSchedule(STREAMS) if devices == 1 else Spread(Mesh(names), STREAMS)
    with quiet_collector():
        stage = timed("trace", partial(traced_stage, op, policy))
        if stage.traced is not stage.program:  # the trace has placed it too
            timed("place", partial(place_spread, stage.traced))
            spans["trace"] = spans["trace"].since(spans["place"])
        source = with_temporaries(stage.traced)
        del stage
        program = timed("place", partial(place_spread, source))
        if program is not source:
            timed("prove", partial(verify_placement, source, program))
        placement = timed("arrange", partial(place_program, program))
        plan = timed("schedule", partial(schedule, program, placement))
        sizes = len(plan.devices), len(plan.lanes), plan.events
        timed("memory", partial(lay_out, plan.buffers, plan.steps, *sizes))
        spans["schedule"] = spans["schedule"].since(spans["memory"])
        timed("verify", partial(verify, plan))
        timed("prepare", partial(backend("host").prepare, plan))
    return list(spans.values()), len(source.instructions)


def traced_stage(op: DeviceOp[Any, Any, Any], policy: SchedulingPolicy) -> Stage:
    """Return the traced stage of an op, which keeps its handles."""
    tracer = Tracer(op, current_device(), policy, device)
    try:
        return tracer.stage()
    finally:
        tracer.abandon("it was only planned")


def with_temporaries(program: Program) -> Program:
    """Return the program with each buffer that an instruction reads, and that another one has written, as a
    temporary."""
    read = {buffer for instruction in program.instructions for buffer in instruction.reads}
    buffers = [
        replace(buffer, role=Role.TEMPORARY)
        if number in read and buffer.role is Role.OUTPUT and buffer.device != HOST
        else buffer
        for number, buffer in enumerate(program.buffers)
    ]
    return replace(program, buffers=tuple(buffers))


def child(shape: str, size: int, repeats: int, devices: int) -> None:
    """Plan in this process, and print seconds, instructions and bytes as JSON."""
    pin_to_one_core()
    op = SHAPES[shape](size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = [passes(op, devices) for _ in range(repeats)]
    middle = [median(span.cpu for span in spans) for spans in zip(*[spans for spans, _ in samples], strict=True)]
    clock = median(sum(span.wall for span in spans) for spans, _ in samples)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"seconds": middle, "clock": clock, "count": samples[0][1], "before": before * 1024, "after": after * 1024}
    print(json.dumps(found))


def planning(devices: int, sizes: dict[int, int], shapes: Sequence[str]) -> Grid:
    """Measure the planning of ops of some shapes on this many devices, at each of `sizes`, which maps launches to
    repeats."""
    goal = GOALS[devices > 1]
    grid = Grid(
        f"Planning on {devices} device{'s' if devices > 1 else ''}",
        [*[f"{name}, us" for name in PASSES], "planning, us", "goal, us", "in all, s", "on the clock, s", "GiB", "op"],
    )
    grid.note = (
        "Processor time of each pass; microseconds are for each instruction of the trace, without the copies that a "
        "mesh adds. Planning is all from the trace to a proved plan: devices (place), the proof of these (prove), "
        f"streams and order (arrange), steps (schedule), memory, and the proof of the plan (verify): at most {goal:g} "
        "us. What is read counts as a temporary. Targets: 1,000,000 instructions in 60 s and 4 GiB. The clock also "
        "counts what other processes took of the core. Peak memory in GiB is that of the process, with the op, whose "
        "own share, with all modules, is in the last column. The shapes are those of benchmarks/support/plan_shapes.py."
    )
    for shape in shapes:
        for size, repeats in sizes.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.schedule",
                "--child",
                shape,
                *map(str, (size, repeats, devices)),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
            found = json.loads(done.stdout)
            each = [seconds / found["count"] * 1e6 for seconds in found["seconds"]]
            planned = sum(each[PASSES.index("place") : PASSES.index("prepare")])
            memory = [found["after"] / 2**30, found["before"] / 2**30]
            grid.rows[f"{shape}, {size:,}"] = [*each, planned, goal, sum(found["seconds"]), found["clock"], *memory]
    return grid


def sizes_of(devices: int, *, quick: bool) -> dict[int, int]:
    """Return the numbers of launches that are planned on this many devices, and how often each."""
    if quick:
        return {1_000: 11, 10_000: 3}
    return {1_000: 11, 10_000: 3, 100_000: 1} | ({1_000_000: 1} if devices == 1 else {})


def plan_once(op: DeviceOp[Any, Any, Any]) -> tuple[list[Span], int]:
    """Return the seconds of each of `PHASES`, and the number of instructions."""
    times = [now()]
    with quiet_collector():
        program = traced_stage(op, ListSchedule(STREAMS)).program
        times.append(now())
        placement = place_program(program)
        times.append(now())
        plan = schedule(program, placement)
        times.append(now())
        verify(plan)
        times.append(now())
    count = sum(isinstance(step, Execute) for step in plan.steps)
    return [after.since(before) for before, after in pairwise(times)], count


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
    parser.add_argument("--planning", nargs="*", metavar="SHAPE", help="only what planning costs; keeps nothing")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        shape, size, repeats, devices = asked.child
        child(shape, int(size), int(repeats), int(devices))
        return
    quick: bool = asked.quick
    if asked.planning is not None:
        for devices in DEVICES:
            shapes = asked.planning or list(SHAPES)
            print(planning(devices, sizes_of(devices, quick=quick), shapes).text(), end="\n\n", flush=True)
        return
    about = machine(("numpy",))
    tables = [*makespans(small=quick)]
    for table in tables:
        print(table.text(), end="\n\n", flush=True)
    for devices in DEVICES:
        tables.append(planning(devices, sizes_of(devices, quick=quick), list(SHAPES)))
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
