"""The cost of dagpu for each launch of an empty kernel, on one core, compared with its peers in the same run.

    python -m benchmarks.overhead            a minute; keeps results/overhead.json and overhead.md
    python -m benchmarks.overhead --quick    ten seconds; keeps nothing

A launch includes its `partition`, `first` and `unpartition`. The first column is the median on the clock; targets and
ratios refer to it. `cpu` is the processor time of all threads, which other processes on the core do not affect.
Origins, verification and the garbage collector are on, as for users. Nothing is asserted.
"""

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

from benchmarks.support.table import Span, Table, load_average, machine, measure, now, pin_to_one_core, save, show
from benchmarks.support.workloads import BUILDS, HAND, PEERS, WORKERS, Op
from dagpu import RoundRobin, current_device, device, value
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify
from dagpu.runtime.device_lookup import backend
from dagpu.runtime.waits import BlockingWaits
from dagpu.tracing.tracer import Tracer

TOTAL, BUILD, AWAIT, IMPORT = 40.0, 6.0, 30.0, 0.3
"""Targets: us a launch in total, us a launch for the construction, us for an await, s for the import."""

HAND_NAME = "by hand"
PHASES = ("build", "trace", "schedule", "verify", "run")
ROOT = Path(__file__).resolve().parents[1]


# ---- dagpu, phase by phase and as a whole


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it was to block, not to suspend")


def phases(build: Callable[[int], Op], n: int) -> dict[str, Span]:
    """Do the steps of a run for a new op, with a clock between them. Return the seconds of each of `PHASES`."""
    where, policy, driver = current_device(), RoundRobin(WORKERS), backend("host")
    times = [now()]
    op = build(n)
    times.append(now())
    tracer = Tracer(op, where, policy, device)
    stage = tracer.stage()
    times.append(now())
    plan = schedule(stage.program)
    times.append(now())
    verify(plan)
    times.append(now())
    bindings: list[Any] = [None] * len(plan.buffers)
    for index, held in stage.inputs.items():
        bindings[index] = held
    tracer.discard_undo_log()
    run = driver.prepare(plan).submit(bindings)
    drive(BlockingWaits().wait_for_run(run, driver.spin()))
    tracer.settle(bindings)
    times.append(now())
    if run.failures() or not tracer.finished:
        raise AssertionError(f"the benchmark is broken: {run.failures()}")
    return {name: after.since(before) for name, (before, after) in zip(PHASES, pairwise(times), strict=True)}


def whole(build: Callable[[int], Op], n: int) -> dict[str, Span]:
    """Return the seconds to build an op and run it with `sync()`, without a clock inside; and to free it."""
    start = now()
    op = build(n)
    op.sync()
    done = now()
    del op
    return {"total": done.since(start), "drop": now().since(done)}


def whole_uncollected(build: Callable[[int], Op], n: int) -> dict[str, Span]:
    """Return the results of `whole` with the garbage collector off."""
    gc.disable()
    try:
        return whole(build, n)
    finally:
        gc.enable()


def timed(name: str, call: Callable[[], object]) -> dict[str, Span]:
    """Return the seconds that one call takes."""
    start = now()
    call()
    return {name: now().since(start)}


# ---- the tables


def launch_table(shape: str, n: int, repeats: int) -> Table:
    """Return the phases and the total of one DAG of `n` launches, and of its peers."""
    table = Table(f"A fresh {shape} of {n:,} launches", "us/launch", ratio_to=HAND_NAME)
    table.note = (
        "dagpu's phases are measured with a clock between them, its total without. "
        "The total does not count drop: freeing the op when it has been run."
    )
    build = BUILDS[shape]
    with ExitStack() as pools:
        contenders = [
            partial(phases, build, n),
            partial(whole, build, n),
            partial(timed, HAND_NAME, partial(HAND[shape], n)),
        ]
        for name, peer in PEERS.items():
            pool = pools.enter_context(ThreadPoolExecutor(WORKERS))
            contenders.append(partial(timed, name, partial(peer[shape], pool, n)))
        found = measure(contenders, repeats)
    for name, samples in found.items():
        ours = name in (*PHASES, "total", "drop")
        target = {"build": BUILD, "total": TOTAL}.get(name)
        base = None if ours and name != "total" else found[HAND_NAME]
        table.add(f"dagpu: {name}" if ours else name, samples, 1e6 / n, target=target, base=base)
    return table


def flat_table(sizes: dict[int, int]) -> Table:
    """Return the total of a chain for each of `sizes`, which maps launches to repeats."""
    table = Table("A fresh chain of any length", "us/launch", ratio_to=f"{min(sizes):,} launches")
    table.note = "Build, trace, schedule, verify and run. Flat means that the last column stays near 1."
    table.note += " The last row shows how much of the longest chain's cost is the collector's, which walks what lives."
    largest = max(sizes)
    base: list[Span] = []
    for n, repeats, call, suffix in (
        *((n, repeats, whole, "") for n, repeats in sizes.items()),
        (largest, sizes[largest], whole_uncollected, ", collector off"),
    ):
        spans = measure([partial(call, BUILDS["chain"], n)], repeats)["total"]
        each = [Span(wall / n, cpu / n) for wall, cpu in spans]
        base = base or each
        table.add(f"{n:,} launches{suffix}", each, 1e6, target=None if suffix else TOTAL, base=base)
    return table


async def _values(count: int) -> None:
    for number in range(count):
        await value(number)


async def _checkpoints(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def _hops(count: int) -> None:
    for number in range(count):
        await trio.to_thread.run_sync(int, number)


async def _seconds(name: str, body: Callable[[int], Awaitable[None]], count: int) -> dict[str, Span]:
    start = now()
    await body(count)
    return {name: now().since(start)}


def _in_trio(name: str, body: Callable[[int], Awaitable[None]], count: int) -> dict[str, Span]:
    return trio.run(_seconds, name, body, count)


def await_table(count: int, repeats: int) -> Table:
    """Return the time of `await value(x)`, of the cheapest await in trio, and of a thread hop."""
    floor, ours, hop = "trio.lowlevel.checkpoint()", "dagpu: await value(x)", "trio.to_thread.run_sync(int, x)"
    table = Table("await value(x)", "us", ratio_to="checkpoint")
    table.note = f"Each sample is the mean of {count:,} in a row, in one trio task; value(x) is built anew each time."
    bodies = {floor: _checkpoints, ours: _values, hop: _hops}
    found = measure([partial(_in_trio, name, body, count) for name, body in bodies.items()], repeats)
    for name, spans in found.items():
        table.add(name, spans, 1e6 / count, target=AWAIT if name == ours else None, base=found[floor])
    return table


def import_seconds(statement: str) -> dict[str, Span]:
    """Return the seconds of an import in a new interpreter, without its own start."""
    code = (
        "from time import perf_counter, process_time; wall, cpu = perf_counter(), process_time(); "
        f"{statement}; print(perf_counter() - wall, process_time() - cpu)"
    )
    # as for users, with the bytecode that Python keeps next to the sources
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT, env=kept)
    wall, cpu = map(float, done.stdout.split())
    return {statement: Span(wall, cpu)}


def import_table(repeats: int) -> Table:
    """Return the time of `import dagpu`, and of the modules that it imports."""
    table = Table("import, in a fresh process", "s", ratio_to="numpy")
    table.note = "dagpu imports numpy, trio and ml_dtypes: their times are part of its own. Files are cached."
    names = "from dagpu import zeros"  # `import dagpu` alone loads nothing yet
    imports = ("import numpy", "import trio", "import numpy, trio, ml_dtypes", names)
    found = measure([partial(import_seconds, statement) for statement in imports], repeats)
    for name, spans in found.items():
        target = IMPORT if name == names else None
        table.add(name, spans, 1.0, target=target, base=found["import numpy"])
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="What dagpu costs for each launch, beside its peers.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no chain above 10,000; keeps nothing")
    quick: bool = parser.parse_args().quick

    import dask.threaded  # noqa: F401  # before any measurement

    about = machine(("numpy", "trio", "dask"))
    about["pinned to"] = pin_to_one_core()
    gc.collect()
    gc.freeze()  # otherwise each contender's collections would scan the modules of all others
    repeats = 5 if quick else 21
    sizes = {100: 11, 1_000: 5, 10_000: 3} if quick else {100: 101, 1_000: 21, 10_000: 7, 100_000: 3}
    makers: list[Callable[[], Table]] = [
        *(partial(launch_table, shape, 1_000, repeats) for shape in BUILDS),
        partial(flat_table, sizes),
        partial(await_table, 1_000, repeats),
        partial(import_table, 3 if quick else 11),
    ]
    tables = []
    for make in makers:
        tables.append(make())
        print(tables[-1].text(), end="\n\n", flush=True)
    about["load average after"] = load_average()
    print(show([], about))
    if not quick:
        for path in save("overhead", "Overhead for each launch", tables, about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
