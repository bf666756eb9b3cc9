"""Parts on a Dask cluster of two processes on this machine, beside plain Dask with the same values.

    python -m benchmarks.cluster            keeps results/cluster.json and cluster.md
    python -m benchmarks.cluster --quick    fewer samples; keeps nothing

A part that does nothing else: a chain of kernels on 1 KiB, in parts of one instruction, on one worker, and a fan of
lanes that need nothing of each other, half of them on each worker. For each part there is a plain task, which takes an
array and returns one of the same size, with the same restriction to a worker, in one graph for all tasks. Ours and
theirs run in turns. Parts of 100 ms wait in their host
body, as a worker's thread waits for its GPU, so they need no core: a worker runs two at a time. The plain tasks wait
likewise, each with its array, in the same processes, in turns with ours. Other rows have parts that compute for 100 ms:
with two cores for the workers, the scheduler and this process, no system reaches the work alone there.
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
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client
from distributed.client import _wait as wait_for_futures
from numpy.typing import NDArray

from benchmarks.support.table import Span, Table, load_average, machine, now, save, show
from dagpu import Cluster, In, Out, Tile, empty, from_host, i32, kernel, plan_of, use_interpreter, value, zip_ops
from dagpu.cluster.cutting import cut
from dagpu.cluster.report import CLUSTER_COSTS
from tests.support.paths import ROOT

SIZE, PARTS, FAN, LONG = 256, 60, 120, 0.1
CHAIN, WIDE = 8, 24
LANES, CORES = 4, 2
"""Parts that two workers of two threads run at once, and cores of this machine."""
COSTS = CLUSTER_COSTS.declare({"wait_one": LONG, "busy_one": LONG})
"""The costs that a user has measured."""


@kernel(cuda="__global__ void next_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
def next_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1."""


@next_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] = x[y.at] + i32(1)


@kernel(cuda="__global__ void wait_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
def wait_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1, after a wait of 100 ms."""


@wait_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    time.sleep(LONG)
    y[...] = x[y.at] + i32(1)


@kernel(cuda="__global__ void busy_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
def busy_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1, after 100 ms of work on one core."""


@busy_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    compute()
    y[...] = x[y.at] + i32(1)


def compute() -> None:
    """Keep a core busy for 100 ms of its time, mostly in NumPy, which lets other threads run Python."""
    end, numbers = time.thread_time() + LONG, np.linspace(0.0, 1.0, 1 << 14)
    while time.thread_time() < end:
        np.sin(numbers, out=numbers)


def chain(count: int, step: Any, places: Sequence[str]) -> Any:
    """An op of `count` kernels, each on what the one before has made, on these places in turn."""
    op: Any = from_host(np.zeros(SIZE, i32)).on(places[0])
    for at in range(count):
        place = places[at % len(places)]
        op = step(empty((SIZE,), i32).on(place).partition((SIZE,)), op).first().unpartition()
    return op.to_host()


def wide(count: int, step: Any) -> Any:
    """An op of `count` kernels that need nothing of each other, half of them on each worker."""
    return zip_ops(*[chain(1, step, [f"w{at % 2}/host:0"]) for at in range(count)])


def functions(count: int) -> Any:
    """An op of `count` functions of the host that need nothing of each other, half of them on each worker."""
    return zip_ops(*[value(SIZE).host_map(make_zeros).on(f"w{at % 2}/host:0") for at in range(count)])


def make_zeros(size: int) -> NDArray[i32]:
    return np.zeros(size, i32)


def staying(count: int, step: Any) -> Any:
    """An op of `count` kernels that need nothing of each other, whose results stay on their workers."""
    lanes = []
    for at in range(count):
        place = f"w{at % 2}/host:0"
        x = from_host(np.zeros(SIZE, i32)).on(place)
        lanes.append(step(empty((SIZE,), i32).on(place).partition((SIZE,)), x).first().unpartition())
    return zip_ops(*lanes)


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


def plain_fan(client: Any, addresses: Sequence[str], number: int, count: int = 3, fetch: bool = True) -> object:
    """Run the lanes of the same fan as plain tasks of Dask, some for each lane; fetch the results, or keep them."""
    layers: dict[str, MaterializedLayer] = {}
    name = f"fan-{count}-{number}"
    for at, address in enumerate(addresses):
        graph: dict[str, Any] = {}
        for lane in range(at, FAN, len(addresses)):
            keys = [f"{name}-{lane}-{step}" for step in range(count)]
            graph[keys[0]] = Task(keys[0], np.zeros, SIZE, i32)
            for before, key in pairwise(keys):
                graph[key] = Task(key, plain_task, TaskRef(before))
        where = {"workers": [address], "allow_other_workers": True}
        layers[f"{name}-{at}"] = MaterializedLayer(graph, annotations=where)
    last = [f"{name}-{lane}-{count - 1}" for lane in range(FAN)]
    found = client.get(HighLevelGraph(layers, {each: set() for each in layers}), last, sync=fetch)
    return found if fetch else client.sync(wait_for_futures, found)


def plain_wait(x: NDArray[Any]) -> NDArray[Any]:
    """Do what a part of `wait_one` does."""
    time.sleep(LONG)
    return x + i32(1)


def plain_busy(x: NDArray[Any]) -> NDArray[Any]:
    """Do what a part of `busy_one` does."""
    compute()
    return x + i32(1)


def plain_long_chain(client: Any, addresses: Sequence[str], step: Any) -> object:
    """Run a chain of long plain tasks from worker to worker."""
    found: Any = np.zeros(SIZE, i32)
    for at in range(CHAIN):
        address = addresses[at % len(addresses)]
        found = client.submit(step, found, pure=False, workers=[address], allow_other_workers=True)
    return found.result()


def plain_wide(client: Any, addresses: Sequence[str], step: Any) -> object:
    """Run long plain tasks that need nothing of each other, half of them on each worker."""
    x = np.zeros(SIZE, i32)
    at = [addresses[number % len(addresses)] for number in range(WIDE)]
    return client.gather([client.submit(step, x, pure=False, workers=[a], allow_other_workers=True) for a in at])


def timed(run: Callable[[], object]) -> Span:
    before = now()
    run()
    return now().since(before)


def against_dask(cluster: Cluster, rounds: int) -> list[Table]:
    """A part beside a task of plain Dask, in a chain and in a fan."""
    addresses = [worker.address for worker in cluster.workers]
    halves = "half of them on each worker"
    shapes: list[tuple[str, int, Any, Any]] = [
        (f"a chain of {PARTS + 2}, on one worker", PARTS + 2, chain(PARTS, next_one, ["w0/host:0"]), plain_chain),
        (f"a fan of {FAN} lanes of three, {halves}", 3 * FAN, wide(FAN, next_one), plain_fan),
        (f"a fan of {FAN} functions of the host, {halves}", FAN, functions(FAN), partial(plain_fan, count=1)),
        (
            f"a fan of {FAN} lanes of two whose results stay, {halves}",
            2 * FAN,
            staying(FAN, next_one),
            partial(plain_fan, count=2, fetch=False),
        ),
    ]
    tables = []
    for name, count, op, peer in shapes:
        where: Any = addresses[0] if peer is plain_chain else addresses
        plain, ours = [], []
        with Client(cluster.scheduler, set_as_default=False) as client:
            for number in range(rounds + 1):
                plain.append(timed(partial(peer, client, where, number)))
                ours.append(timed(partial(cluster.run_sync, op)))
        table, scale = Table(f"A part of {name}", "ms a part", ratio_to="plain Dask"), 1e3 / count
        table.add("plain Dask, the same values", plain[1:], scale, base=plain[1:])
        target = float(np.median([span.wall for span in plain[1:]])) * scale
        table.add("dagpu", ours[1:], scale, base=plain[1:], target=target)
        tables.append(table)
    return tables


def long_parts(cluster: Cluster, rounds: int) -> list[Table]:
    """Parts of 100 ms beside plain tasks, and beside the work alone."""
    tables = []
    both, addresses = ["w0/host:0", "w1/host:0"], [worker.address for worker in cluster.workers]
    for step, plain, how, cores in ((wait_one, plain_wait, "wait", LANES), (busy_one, plain_busy, "compute", CORES)):
        line, side_by_side = chain(CHAIN, step, both), wide(WIDE, step)
        cases = [
            (f"a chain of {CHAIN}, one worker after the other", CHAIN * LONG, line, plain_long_chain, 0.93),
            (f"{WIDE} that are independent, {cores} at once", WIDE / cores * LONG, side_by_side, plain_wide, 0.97),
        ]
        for name, alone, op, peer, share in cases:
            about = f"The work alone takes {alone * 1e3:.0f} ms."
            table = Table(f"Parts that {how} for 100 ms: {name}", "ms", about, "plain Dask")
            theirs, ours = [], []
            with Client(cluster.scheduler, set_as_default=False) as client:
                for _ in range(rounds + 1):
                    theirs.append(timed(partial(peer, client, addresses, plain)))
                    ours.append(timed(partial(cluster.run_sync, op)))
            table.add("the work alone", [Span(alone, alone)], 1e3, base=theirs[1:])
            table.add("plain Dask", theirs[1:], 1e3, base=theirs[1:])
            table.add("dagpu", ours[1:], 1e3, base=theirs[1:], target=alone * 1e3 / share)
            tables.append(table)
    return tables


def killed(cluster: Cluster, rounds: int) -> list[Table]:
    """The independent parts, with a worker killed at half of the time."""
    table = Table("A worker killed at half of a run", "ms", "", "undisturbed")
    op = wide(WIDE, wait_one)
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
    return [table]


def process_number(_: object) -> int:
    return os.getpid()


def _run_killed(cluster: Cluster, op: Any, number: int, after: float) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.run, op)
            await trio.sleep(after)
            os.kill(number, signal.SIGKILL)

    trio.run(main)


def cutting(cluster: Cluster, rounds: int) -> list[Table]:
    """The cut of a program, and the placement before it."""
    table = Table("The cut, an instruction", "us")
    both = ["w0/host:0", "w1/host:0"]
    program = plan_of(zip_ops(*[chain(20, next_one, both[at % 2 :] + both[: at % 2]) for at in range(40)])).program
    count = len(program.instructions)
    for name, seconds in (("parts of one instruction", 1e-9), ("parts of 50 us", 50e-6), ("as long as can be", 1.0)):
        run = partial(cut, program, cluster.mesh, part_seconds=seconds, costs=CLUSTER_COSTS)
        spans = [timed(run) for _ in range(rounds)]
        table.add(f"{name}, {count:,} instructions, {len(run()):,} parts", spans, 1e6 / count, target=25)
    return [table]


async def measured(quick: bool) -> list[Table]:
    """Return all tables."""
    tables: list[Table] = []
    rounds = 3 if quick else 7
    short = Cluster.local(2, part_seconds=1e-9, timeout=120.0)
    long = Cluster.local(2, part_seconds=LONG / 2, costs=COSTS, timeout=120.0)
    for opening, measures in ((short, (cutting, against_dask)), (long, (long_parts, killed))):
        async with opening as cluster:
            with use_interpreter(cluster):
                for measure in measures:
                    found = await trio.to_thread.run_sync(measure, cluster, rounds)
                    print("\n\n".join([table.text() for table in found]), end="\n\n", flush=True)
                    tables += found
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
