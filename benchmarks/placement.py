"""Placement on a mesh: by cost on the devices of a host, and by owner on thousands of devices that do not exist.

    python -m benchmarks.placement            a few minutes, 4 GiB; keeps results/placement.json and placement.md
    python -m benchmarks.placement --quick    some seconds; keeps nothing

The op is a tiled Cholesky factorisation, n (n + 1) (n + 2) / 6 instructions for n x n tiles. Time is processor time, on
one core, of the placement alone: from a program to devices and copies, and where it says so to the placed program.

Two tables compare the orders and devices that the policies choose with HEFT and PEFT, over the task graphs of
benchmarks/support/task_graphs.py. All makespans are those of the policies' own cost model.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any, final

from benchmarks.support.heft import heft, peft
from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_times import simulate
from benchmarks.support.table import Grid, load_average, machine, pin_to_one_core, save, show
from benchmarks.support.task_graphs import UNIT, TaskGraph, sets
from dagpu import CostModel, Device, ListSchedule, Mesh, Spread
from dagpu.handles.device_handles import driver_of
from dagpu.plans.mesh_simulation import MeshSimulation
from dagpu.plans.order_search import RUNS
from dagpu.plans.placing import OwnerPlacement, place
from dagpu.plans.policies import Placement, SingleStream
from dagpu.plans.program import Buffer, Launch, Program, Role
from dagpu.plans.scheduler import schedule
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.execute import quiet_collector
from tests.programs.plain_programs import kernel

EDGE = 2048
SECONDS = 2 * EDGE**3 / 60e12
"""Of each kernel: that of an update of f64 at 60 Tflop/s."""
A_NODE = 8


def factorisation(tiles: int) -> tuple[Program, list[tuple[int, int]]]:
    """Return the program, on no device yet, and the row and column of each of its buffers, which are the tiles.

    A tile is what its first kernel makes: a program reads nothing that nothing has written.
    """
    places = [(r, c) for r in range(tiles) for c in range(r + 1)]
    at, spec, found = {place: number for number, place in enumerate(places)}, kernel(), list[Launch]()
    made = set[tuple[int, int]]()

    def put(written: tuple[int, int], *read: tuple[int, int]) -> None:
        reads = tuple([at[place] for place in (*({written} & made), *read)])
        made.add(written)
        found.append(Launch(spec, (), (1,), reads, (at[written],), 0, None))

    for k in range(tiles):
        put((k, k))
        for r in range(k + 1, tiles):
            put((r, k), (k, k))
        for r in range(k + 1, tiles):
            for c in range(k + 1, r + 1):
                put((r, c), (r, k), (c, k))
    buffers = (Buffer(8 * EDGE**2, 0, Role.TEMPORARY),) * len(places)
    return Program(("host:auto",), buffers, tuple(found), (SingleStream(),), (0,) * len(found)), places


def costs() -> CostModel:
    return CostModel().declare({kernel().name: SECONDS})


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """Return the least processor time of a call, its time on the clock, and its result."""
    best, clock, result = float("inf"), 0.0, None
    for _ in range(repeats):
        result = None
        with quiet_collector():
            begin, before = time.process_time(), time.perf_counter()
            result = call()
            spent = time.process_time() - begin
        if spent < best:
            best, clock = spent, time.perf_counter() - before
    return best, clock, result


def hosts(devices: int) -> Mesh:
    """Return a mesh of devices, in nodes of eight."""
    driver = driver_of(find_device("host:0"))
    return Mesh([Device("host", n % A_NODE, driver, f"node{n // A_NODE}") for n in range(devices)])


def by_cost(tiles: int, repeats: int) -> Grid:
    """Measure `place` with `Spread`."""
    grid = Grid(
        f"Spread, {tiles} x {tiles} tiles, to the placed program",
        [
            "instructions",
            "placed",
            "us an instruction",
            "us a placed one",
            "makespan / bound",
            "with search: us an instruction",
            "makespan / bound",
        ],
    )
    grid.note = (
        "Placed instructions are those and the copies between devices. Target: 20 us an instruction, without a search "
        f"(runs=0). With it, a plan is made for {RUNS} runs. Nodes of eight devices, 50 GB/s between them."
    )
    program, _ = factorisation(tiles)
    count = len(program.instructions)
    for devices in (1, 2, 4, 8, 16, 64):
        there = hosts(devices)
        row: list[float] = [count]
        for runs in (0, RUNS):
            policy = Spread(there, costs=costs(), runs=runs)
            seconds, _, placed = timed(partial(place, program, policy, there), repeats)
            made, run = len(placed.instructions), policy.assign(program, there).run
            bound = max(count * SECONDS / devices, (3 * tiles - 2) * SECONDS)
            row += [] if runs else [made]
            row += [1e6 * seconds / count] if runs else [1e6 * seconds / count, 1e6 * seconds / made]
            row.append(run.makespan / bound)
        grid.rows[f"{devices} devices"] = row
    return grid


def by_owner(cases: list[tuple[int, int, int]]) -> Grid:
    """Measure `OwnerPlacement` for tiles dealt out in turn along both axes of a mesh."""
    grid = Grid(
        "Placed by owner: tiles dealt out on both axes of a mesh",
        [
            "instructions",
            "devices",
            "copies",
            "TB moved",
            "makespan / bound",
            "us an instruction",
            "s",
            "s on the clock",
        ],
    )
    grid.note = (
        "Nodes of eight devices: peers within one, 50 GB/s between them. The bound is the larger of the longest path "
        "and the work on each device, without copies. Target: 1,000,000 instructions on 10,000 devices in 15 s."
    )
    for tiles, rows, columns in cases:
        grid.rows[f"{tiles} x {tiles} tiles, {rows} x {columns} devices"] = _owned(tiles, rows, columns)
    return grid


def _owned(tiles: int, rows: int, columns: int) -> list[float]:
    """Return a row of `by_owner`."""
    program, places = factorisation(tiles)
    count, devices = len(program.instructions), rows * columns
    policy = OwnerPlacement(hosts(devices), [(r % rows) * columns + c % columns for r, c in places], costs())
    seconds, clock, plan = timed(partial(policy.plan, program), 1)
    bound = max(count * SECONDS / devices, (3 * tiles - 2) * SECONDS)
    moved, times = plan.sent.sum() / 1e12, [1e6 * seconds / count, seconds, clock]
    return [count, devices, len(plan.first), moved, plan.makespan / bound, *times]


# ---- beside HEFT and PEFT

NEAR = 1.05
"""Target: no more times the best of three, in 95 % of the graphs."""
CCRS = (0.1, 0.5, 2.0, 8.0)
LANES = 4


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """A graph by the three, in times of the lower bound; and the seconds of planning for each task."""

    ratios: tuple[float, ...]
    """Ours, that of HEFT and that of PEFT."""
    planning: float

    @property
    def behind(self) -> float:
        """Ours over the best of the three."""
        return self.ratios[0] / min(self.ratios)


def on_lanes(graph: TaskGraph) -> Trial:
    """Return the plans of a graph for one device with four lanes."""
    model = CostModel()
    policy = ListSchedule(LANES, model)
    program = replace(graph.program("cuda:0"), policies=(policy,))
    seconds, _, placement = timed(partial(policy.place, program), 1)
    times, before = model.times(program), program.accesses.predecessors
    bound = lower_bound(program, model, LANES)
    found = [placement]
    for listed in (heft, peft):
        made = listed(times, before, [0.0] * len(times), LANES)
        found.append(Placement(made.processors, made.order))
    least = max(bound.critical_path, bound.work)
    spans = [simulate(schedule(program, each), model).makespan / least for each in found]
    return Trial(tuple(spans), seconds / len(times))


def on_mesh(graph: TaskGraph, ccr: float, devices: int) -> Trial:
    """Return the placements of a graph on a mesh. Those of HEFT and PEFT are simulated with the copies' contention."""
    model, there = CostModel(), Mesh([f"host:{number}" for number in range(devices)])
    policy, program = Spread(there, costs=model), graph.program("host:auto", ccr, model)
    seconds, _, assigned = timed(partial(policy.assign, program, there), 1)
    simulation = MeshSimulation(program, there, model)
    before = program.accesses.predecessors
    bound = max(simulation.versions.by_path(simulation.times)[1], simulation.work() / devices)
    spans = [assigned.run.makespan / bound]
    for listed in (heft, peft):
        made = listed(simulation.times, before, simulation.copy_seconds(), devices)
        spans.append(simulation.run(made.order, made.processors).makespan / bound)
    return Trial(tuple(spans), seconds / len(before))


def beside(small: bool) -> list[Grid]:
    """Compare with HEFT and PEFT, on one device and on meshes."""
    columns = ["graphs", "ours, %", "HEFT, %", "PEFT, %", "near the best, %", "most behind, %", "planning, us a task"]
    lanes = Grid(f"Makespan above the bound, mean: one device, {LANES} lanes", columns)
    lanes.note = (
        "The bound is max(critical path, work / lanes). Near the best is at most 5 % behind the best of the three; "
        "most behind is ours above the best. Target: the least mean in each set, and 95 % near. A task takes about "
        f"{10e3 * UNIT:g} ms, and a plan is made for {RUNS} runs."
    )
    meshes = Grid("Makespan above the bound, mean: meshes", columns)
    meshes.note = (
        f"Each graph at four ratios of communication to computation: {', '.join(f'{ccr:g}' for ccr in CCRS)}. The "
        "bound has no copies in it. HEFT and PEFT do not know that copies share a device's link; their orders and "
        "devices are simulated as ours are. The targets are the same."
    )
    graphs = sets(small=small)
    _fill(lanes, "", {name: [on_lanes(graph) for graph in group] for name, group in graphs.items()})
    for devices in (2, 4, 8):
        found = {
            name: [on_mesh(graph, ccr, devices) for graph in group for ccr in CCRS] for name, group in graphs.items()
        }
        _fill(meshes, f"{devices} devices: ", found)
    return [lanes, meshes]


def _fill(grid: Grid, prefix: str, found: dict[str, list[Trial]]) -> None:
    """Add a row for each set, and one for all of them."""
    for name, trials in {**found, "all": list(chain.from_iterable(found.values()))}.items():
        grid.rows[prefix + name] = _row(trials)


def _row(trials: list[Trial]) -> list[float]:
    """Return a row of `beside`."""
    means = [100 * (fmean(each) - 1) for each in zip(*[trial.ratios for trial in trials], strict=True)]
    near = 100 * sum(trial.behind <= NEAR for trial in trials) / len(trials)
    worst, planning = 100 * (max(trial.behind for trial in trials) - 1), 1e6 * fmean(trial.planning for trial in trials)
    return [len(trials), *means, near, worst, planning]


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="The cost and the quality of placements on meshes.")
    parser.add_argument("--quick", action="store_true", help="small sizes; keeps nothing")
    quick = parser.parse_args().quick
    about = machine(("numpy",))
    pin_to_one_core()
    cases = [(16, 4, 4)] if quick else [(60, 8, 8), (181, 8, 8), (181, 32, 32), (181, 100, 100)]
    tables = [*beside(quick), by_cost(8 if quick else 20, 2 if quick else 15), by_owner(cases)]
    about["load average after"] = load_average()
    print(show(tables, about))
    if not quick:
        save("placement", "Placement on meshes", tables, about)


if __name__ == "__main__":
    main()
