"""Parts on a Dask cluster of two processes on this machine, beside plain Dask with the same values.

    python -m benchmarks.cluster            keeps results/cluster.json and cluster.md
    python -m benchmarks.cluster --quick    fewer samples; keeps nothing

A part that does nothing else: a chain of kernels on 1 KiB, in parts of one kernel, on one worker; the plain task takes
an array and returns one of the same size, with the same restriction to that worker. Parts of 100 ms sleep in their host
body, so they need no core: a worker runs two at a time. Both systems run in the same two processes, one after the
other.
"""

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import trio
from dask._task_spec import Task, TaskRef
from distributed import Client
from numpy.typing import NDArray

from benchmarks.support.table import Span, Table, load_average, machine, now, save, show
from dagpu import Cluster, In, Out, Tile, empty, from_host, i32, kernel, plan_of, use_interpreter, value, zip_ops
from dagpu.cluster.cluster_backend import program_of
from dagpu.cluster.parts.cutting import cut
from dagpu.cluster.parts.part_times import CLUSTER_COSTS
from tests.support.paths import ROOT

SIZE, PARTS, SLEEP = 256, 60, 0.1
CHAIN, WIDE = 8, 24
LANES = 4
"""Parts that two workers of two threads run at once."""


@kernel(cuda="__global__ void next_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
def next_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1."""


@next_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] = x[y.at] + i32(1)


@kernel(cuda="__global__ void slow_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
def slow_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1, in 100 ms."""


@slow_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    time.sleep(SLEEP)
    y[...] = x[y.at] + i32(1)


def chain(count: int, step: Any, places: Sequence[str]) -> Any:
    """An op of `count` kernels, each on what the one before has made, on these places in turn."""
    op: Any = from_host(np.zeros(SIZE, i32)).on(places[0])
    for at in range(count):
        place = places[at % len(places)]
        op = step(empty((SIZE,), i32).on(place).partition((SIZE,)), op).first().unpartition()
    return op.to_host()


def wide(count: int) -> Any:
    """An op of `count` slow kernels that need nothing of each other, half of them on each worker."""
    return zip_ops(*[chain(1, slow_one, [f"w{at % 2}/host:0"]) for at in range(count)])


def plain_task(x: NDArray[Any]) -> NDArray[Any]:
    """Do what a part does: take an array, and make one."""
    return x + i32(1)


def plain_chain(client: Any, address: str, number: int) -> object:
    """Run the same chain as plain tasks of Dask."""
    keys = [f"plain-{number}-{at}" for at in range(PARTS + 2)]
    graph: dict[str, Any] = {keys[0]: Task(keys[0], np.zeros, SIZE, i32)}
    for before, key in pairwise(keys):
        graph[key] = Task(key, plain_task, TaskRef(before))
    return client.get(graph, keys[-1], workers=[address], allow_other_workers=True)


def timed(run: Callable[[], object]) -> Span:
    before = now()
    run()
    return now().since(before)


def against_dask(cluster: Cluster, rounds: int) -> Table:
    """A part beside a task of plain Dask."""
    table = Table(f"A part of a chain of {PARTS + 2}, on one worker", "ms a part", ratio_to="plain Dask")
    address = cluster.workers[0].address
    op = chain(PARTS, next_one, ["w0/host:0"])
    plain, ours = [], []
    with Client(cluster.scheduler, set_as_default=False) as client:
        for number in range(rounds + 1):
            plain.append(timed(partial(plain_chain, client, address, number)))
            ours.append(timed(partial(cluster.run_sync, op)))
    scale = 1e3 / (PARTS + 2)
    table.add("plain Dask, the same values", plain[1:], scale, base=plain[1:])
    target = 1.1 * float(np.median([span.wall for span in plain[1:]])) * scale
    table.add("dagpu", ours[1:], scale, base=plain[1:], target=target)
    return table


def long_parts(cluster: Cluster, rounds: int) -> Table:
    """Parts of 100 ms beside the work alone."""
    table = Table("Parts of 100 ms", "ms", "The work alone is the time without a cluster.", "the work alone")
    both = ["w0/host:0", "w1/host:0"]
    cases = [
        (f"a chain of {CHAIN}, from worker to worker", CHAIN * SLEEP, chain(CHAIN, slow_one, both), 0.93),
        (f"{WIDE} that are independent, {LANES} at once", WIDE / LANES * SLEEP, wide(WIDE), 0.97),
    ]
    for name, alone, op, share in cases:
        cluster.run_sync(op)
        spans = [timed(partial(cluster.run_sync, op)) for _ in range(rounds)]
        base = [Span(alone, alone)]
        table.add(name, spans, 1e3, base=base, target=alone * 1e3 / share)
    return table


def killed(cluster: Cluster, rounds: int) -> Table:
    """The independent parts, with a worker killed at half of the time."""
    table = Table("A worker killed at half of a run", "ms", "", "undisturbed")
    op = wide(WIDE)
    calm = [timed(partial(cluster.run_sync, op)) for _ in range(rounds)]
    half = float(np.median([span.wall for span in calm])) / 2
    disturbed = []
    for _ in range(rounds):
        number = cluster.run_sync(value(0).host_map(process_number).on("w1/host:0"))
        disturbed.append(timed(partial(_run_killed, cluster, op, number, half)))
        while len(cluster.workers) < 2:
            time.sleep(0.05)
        cluster.run_sync(op)  # the new process loads the plans
    table.add("undisturbed", calm, 1e3, base=calm)
    target = 1.6 * float(np.median([span.wall for span in calm])) * 1e3
    table.add("one of two workers killed at half", disturbed, 1e3, base=calm, target=target)
    return table


def process_number(_: object) -> int:
    return os.getpid()


def _run_killed(cluster: Cluster, op: Any, number: int, after: float) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.run, op)
            await trio.sleep(after)
            os.kill(number, signal.SIGKILL)

    trio.run(main)


def cutting(cluster: Cluster, rounds: int) -> Table:
    """The cut of a program, and the placement before it."""
    table = Table("The cut, an instruction", "us")
    both = ["w0/host:0", "w1/host:0"]
    program = program_of(plan_of(zip_ops(*[chain(20, next_one, both[at % 2 :] + both[: at % 2]) for at in range(40)])))
    count = len(program.instructions)
    for name, seconds in (("parts of one instruction", 1e-9), ("parts of 50 us", 50e-6), ("as long as can be", 1.0)):
        run = partial(cut, program, cluster.mesh, part_seconds=seconds, costs=CLUSTER_COSTS)
        spans = [timed(run) for _ in range(rounds)]
        table.add(f"{name}, {count:,} instructions, {len(run()):,} parts", spans, 1e6 / count, target=25)
    return table


async def measured(quick: bool) -> list[Table]:
    """Return all tables."""
    tables = []
    rounds = 3 if quick else 7
    async with Cluster.local(2, part_seconds=1e-9, window=64, timeout=120.0) as cluster:
        for part in (cutting, against_dask, long_parts, killed):
            with use_interpreter(cluster):
                tables.append(await trio.to_thread.run_sync(part, cluster, rounds))
            print(tables[-1].text(), end="\n\n", flush=True)
    return tables


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="Parts on a Dask cluster, beside plain Dask.")
    parser.add_argument("--quick", action="store_true", help="fewer samples; keeps nothing")
    quick: bool = parser.parse_args().quick
    about = machine(("numpy", "distributed", "dask", "trio"))
    tables = trio.run(measured, quick)
    about["load average after"] = load_average()
    print(show([], about))
    if not quick:
        for path in save("cluster", "Parts on a Dask cluster", tables, about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
