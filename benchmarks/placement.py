"""Placement on a mesh: by cost on the devices of a host, and by owner on thousands of devices that do not exist.

    python -m benchmarks.placement            a few minutes, 4 GiB; keeps results/placement.json and placement.md
    python -m benchmarks.placement --quick    some seconds; keeps nothing

The op is a tiled Cholesky factorisation, n (n + 1) (n + 2) / 6 instructions for n x n tiles. Time is processor time, on
one core, of the placement alone: from a program to devices and copies, and where it says so to the placed program.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.support.table import Grid, load_average, machine, pin_to_one_core, save, show
from dagpu import CostModel, Device, Mesh, Spread
from dagpu.handles.device_handles import driver_of
from dagpu.plans.placing import OwnerPlacement, place
from dagpu.plans.policies import SingleStream
from dagpu.plans.program import Buffer, Launch, Program, Role
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


def by_cost(tiles: int, repeats: int) -> Grid:
    """Measure `place` with `Spread`."""
    grid = Grid(
        f"Spread, {tiles} x {tiles} tiles, to the placed program",
        ["instructions", "placed", "us an instruction", "us a placed one", "makespan / bound"],
    )
    grid.note = "Placed instructions are those and the copies between devices. Target: 20 us an instruction."
    program, _ = factorisation(tiles)
    count = len(program.instructions)
    for devices in (1, 2, 4, 8):
        there = Mesh([f"host:{number}" for number in range(devices)])
        policy = Spread(there, costs=costs())
        seconds, _, placed = timed(partial(place, program, policy, there), repeats)
        made, run = len(placed.instructions), policy.assign(program, there).run
        bound = max(count * SECONDS / devices, (3 * tiles - 2) * SECONDS)
        row = [count, made, 1e6 * seconds / count, 1e6 * seconds / made, run.makespan / bound]
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
    count, devices, driver = len(program.instructions), rows * columns, driver_of(find_device("host:0"))
    there = Mesh([Device("host", n % A_NODE, driver, f"node{n // A_NODE}") for n in range(devices)])
    policy = OwnerPlacement(there, [(r % rows) * columns + c % columns for r, c in places], costs())
    seconds, clock, plan = timed(partial(policy.plan, program), 1)
    bound = max(count * SECONDS / devices, (3 * tiles - 2) * SECONDS)
    moved, times = plan.sent.sum() / 1e12, [1e6 * seconds / count, seconds, clock]
    return [count, devices, len(plan.first), moved, plan.makespan / bound, *times]


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="The cost and the quality of placements on meshes.")
    parser.add_argument("--quick", action="store_true", help="small sizes; keeps nothing")
    quick = parser.parse_args().quick
    about = machine(("numpy",))
    pin_to_one_core()
    cases = [(16, 4, 4)] if quick else [(60, 8, 8), (181, 8, 8), (181, 32, 32), (181, 100, 100)]
    tables = [by_cost(8 if quick else 20, 2 if quick else 15), by_owner(cases)]
    about["load average after"] = load_average()
    print(show(tables, about))
    if not quick:
        save("placement", "Placement on meshes", tables, about)


if __name__ == "__main__":
    main()
