"""The time of an update, from `set` to the next value of a feed, beside runs of the whole op and beside a peer.

    python -m benchmarks.updates                     keeps results/updates.json and updates.md
    python -m benchmarks.updates --device cuda:0     the same on a GPU
    python -m benchmarks.updates --quick             few samples, and keeps nothing

The op is a chain of kernels on 8 numbers. The last ones depend on a second source, which changes before each update:
so the time should not depend on what is clean. Beside it: the same chain as a pipeline, which runs all of it from a
cached plan, and as a plain op, which is traced in each run. The tiles are those of one kernel that declares what a tile
sees: parts of its input are written, and the tiles that see them run, beside a change of all of the input. One row has
the update alone, once the device has copied what was written; one has the write too, which for all tiles is the copy of
a whole array to the device; and one has the kernel alone, by events of the device. The
cutoff is on a large tensor, which is made again with equal or with other elements, before a chain of kernels. The host
layer is a chain of functions of one number; its peer is reaktiv, which tracks reads (pip install reaktiv).

On a GPU a graph of three kernels by hand stands beside the updates of three launches: in C++, which writes the
arguments of all nodes (it needs nvcc), in Python through cuda.bindings and in a task of trio, and with PyTorch, which
replays a graph that reads a changed tensor. Two peers are missing. DALI runs all of a pipeline for each batch, and
updates no part of it. Its wheel nvidia-dali-cuda120 has 405 MiB, that for CUDA 13 has 190, and the machines on which
the GPU's table is made take 64. Holoscan's wheel is a meta-package, whose components were not on the package index.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import count as count_from
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from benchmarks.peers.update_peers import update_peers
from benchmarks.support.table import Span, Table, load_average, machine, measure, now, save, show
from dagpu import (
    DeviceOp,
    Feed,
    Here,
    In,
    Lazy,
    Out,
    SharedTensor,
    Source,
    Tile,
    batch,
    current_device,
    cutoff,
    empty,
    f32,
    from_host,
    kernel,
    observe,
    pipeline,
    source,
    trace,
    use_device,
    value,
)
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.handles.device_handles import driver_of

N, TILE = 8, (8,)
LAUNCHES = (30, 300, 1000)
DIRTY = 3
"""Launches that depend on what changes."""
NODES, PEER_NODES = 5000, 200
"""Functions of the host layer. The peer is recursive, and meets the recursion limit at longer chains."""
GOAL_US, GOAL_NODE_NS = 20.0, 100.0

GRID, SIDE = 64, 128
"""Tiles along each of two axes, and elements of a tile along each: 4,096 tiles of 64 KB."""
HOST_SIDE = 16
"""Elements of a tile along each axis on the host, where a tile is one call of Python."""
GOAL_TILES = {1: 8.0, 50: 1.6}
"""How many times as fast as all tiles a part of them is to be, in percent, on a GPU."""

GOAL_CUTOFF = 1.05
"""The time of an update whose cutoff lets the tensor through, as a part of one without the cutoff, on a GPU."""

WITH_WRITE = ", with its write"
ON_DEVICE = ", on the device"

AFTER = 30
"""Launches after the cutoff."""

Op = DeviceOp[Any, Any, Any]
Contender = Callable[[], Mapping[str, Span]]


@kernel(
    cuda="""__global__ void step(Tile<float, 1> y, View<const float, 1> x, float c) {
    for (auto i : y) y[i] = c - x[i];
}"""
)
def step(y: Out[f32], x: In[f32], c: Lazy[float]) -> None:
    """y = c - x"""


@step.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], c: float) -> None:
    y[...] = f32(c) - x


@kernel(
    cuda="""__global__ void mirror(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) y[i] = 1.0f - x[i];
}""",
    sees={"x": Here()},
)
def mirror(y: Out[f32], x: In[f32]) -> None:
    """y = 1 - x"""


@mirror.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = f32(1) - x[y.at]


@kernel(
    cuda="""__global__ void limit(Tile<float, 1> y, View<const float, 1> x, float most) {
    for (auto i : y) y[i] = fminf(x[i], most);
}"""
)
def limit(y: Out[f32], x: In[f32], most: Lazy[float]) -> None:
    """y = min(x, most)"""


@limit.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], most: float) -> None:
    np.minimum(x, f32(most), out=y)


def chain(x: Any, launches: int, dirty: int, early: Any, late: Any) -> DeviceOp[SharedTensor[f32]]:
    """Return a chain of launches, the last `dirty` of which depend on `late`."""
    op: Op = x
    for number in range(launches):
        op = step(empty((N,)).partition(TILE), op, early if number < launches - dirty else late).first().unpartition()
    result: DeviceOp[SharedTensor[f32]] = op.share()
    return result


class OpenFeed:
    """A feed that stays open while contenders ask it, from a loop of trio that they enter and leave."""

    def __init__(self, op: Op, late: Source[float]) -> None:
        self._op = op
        self._late = late

    def updates(self, name: str, count: int, before: int = 3) -> Mapping[str, Span]:
        """Return the mean time of `count` updates, after those that make the plan and its graph."""
        return trio.run(self._updates, name, count, before)

    async def _updates(self, name: str, count: int, before: int) -> Mapping[str, Span]:
        async with observe(self._op) as feed:
            await feed.next()
            await self._change(feed, before)
            begin = now()
            await self._change(feed, count)
            span = now().since(begin)
        return {name: Span(span.wall / count, span.cpu / count)}

    async def _change(self, feed: Feed[Any], count: int) -> None:
        for _ in range(count):
            self._late.set(self._late.get() + 1.0)
            await feed.next()


def timed(name: str, call: Callable[[], object], count: int) -> Mapping[str, Span]:
    """Return the mean time of `count` calls, after three."""
    for _ in range(3):
        call()
    begin = now()
    for _ in range(count):
        call()
    span = now().since(begin)
    return {name: Span(span.wall / count, span.cpu / count)}


async def timed_in_task(name: str, op: Callable[[], Op], count: int) -> Mapping[str, Span]:
    """Return the mean time of `count` awaited ops, after three."""
    for _ in range(3):
        await op()
    begin = now()
    for _ in range(count):
        await op()
    span = now().since(begin)
    return {name: Span(span.wall / count, span.cpu / count)}


def contenders(launches: int, dirty: int, count: int) -> list[Contender]:
    """Return an update, a pipeline with the same and with another number in each call, and a plain op of one chain. A
    pipeline with another number is also awaited, as an update is.

    The slow ones make fewer calls for each sample.
    """
    early, late = source(1.0), source(2.0)
    x = from_host(np.ones(N, np.float32)).sync().share()
    given = source(x)
    feed = OpenFeed(chain(given, launches, dirty, early, late), late)
    few = max(2, count // 20)

    @pipeline
    def whole(x: SharedTensor[f32], early: float, late: float) -> DeviceOp[SharedTensor[f32]]:
        return chain(value(x), launches, dirty, early, late)

    numbers = count_from(3.0)
    return [
        lambda: feed.updates("update", count),
        lambda: timed("pipeline", lambda: whole(x, 1.0, 2.0).sync(), few),
        lambda: timed("changed", lambda: whole(x, 1.0, next(numbers)).sync(), few),
        lambda: trio.run(timed_in_task, "awaited", lambda: whole(x, 1.0, next(numbers)), few),
        lambda: timed("op", lambda: chain(given, launches, dirty, 1.0, late).sync(), 2),
    ]


def compare_launches(count: int, repeats: int, *, gpu: bool) -> Table:
    """Return the table of chains of different lengths, of which a constant part changes."""
    peers, left_out = update_peers(DIRTY, N, count) if gpu else ([], [])
    missing = f" Left out: {'; '.join(left_out)}." if left_out else ""
    table = Table(
        f"An update of {DIRTY} of n launches",
        "us",
        f"From set() to the value, on the host's clock.{missing}",
        "the whole pipeline",
    )
    for launches in LAUNCHES:
        found = measure(contenders(launches, DIRTY, count), repeats)
        table.add(f"{launches}: update", found["update"], 1e6, target=GOAL_US if gpu else None, base=found["pipeline"])
        table.add(f"{launches}: pipeline, all of it", found["pipeline"], 1e6)
        table.add(f"{launches}: pipeline, its number changed", found["changed"], 1e6, base=found["pipeline"])
        table.add(f"{launches}: the same, awaited", found["awaited"], 1e6, base=found["pipeline"])
        table.add(f"{launches}: plain op, traced", found["op"], 1e6, base=found["pipeline"])
    for name, spans in (measure(peers, repeats) if peers else {}).items():
        table.add(name, spans, 1e6)
    return table


def compare_shares(count: int, repeats: int) -> Table:
    """Return the table of one chain, of which different shares change."""
    launches = 300
    table = Table(f"An update of a share of {launches} launches", "us", ratio_to="the whole pipeline")
    for percent in (1, 10, 100):
        found = measure(contenders(launches, launches * percent // 100, count), repeats)
        table.add(f"{percent} % changed: update", found["update"], 1e6, base=found["pipeline"])
        table.add(f"{percent} % changed: pipeline", found["changed"], 1e6, base=found["pipeline"])
        table.add(f"{percent} % changed: pipeline, awaited", found["awaited"], 1e6, base=found["pipeline"])
    return table


def wait_for_device() -> None:
    """Wait until all work of the current GPU is over. It does nothing on the host, whose writes end at once."""
    driver = driver_of(current_device())
    if isinstance(driver, CudaDevice):
        with driver.gpu.current():
            driver.gpu.synchronize()


class WrittenFeed:
    """A feed of one kernel on a tensor, of which some rows of tiles are written before each update."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._step = 0
        extent = GRID * side
        self._array = np.ones((extent, extent), np.float32)
        self._source = source(from_host(self._array).sync())
        out = empty((extent, extent)).partition((side, side))
        self._op: Op = mirror(out, self._source).first().unpartition().share()

    def updates(self, percent: int, count: int) -> Mapping[str, Span]:
        """Return the mean time of `count` updates after a write to this part of the tiles; of 100 % after a set. Once
        without the write, once with it, and once the time of the kernel alone, by events of the device."""
        return trio.run(self._updates, percent, count)

    async def _updates(self, percent: int, count: int) -> Mapping[str, Span]:
        async with observe(self._op) as feed:
            await feed.next()
            for _ in range(3):
                await self._update(feed, percent)
            both = _mean([await self._update(feed, percent) for _ in range(count)])
            alone = _mean([await self._update(feed, percent, with_write=False) for _ in range(count)])
            with trace() as traced:
                for _ in range(3):
                    await self._update(feed, percent)
        kernels = [run.seconds for run in traced.runs if run.predicted.pieces[0].name.endswith("mirror")]
        assert len(kernels) == 3
        kernel = Span(statistics.median(kernels), math.nan)
        return {f"{percent} %": alone, f"{percent} %{WITH_WRITE}": both, f"{percent} %{ON_DEVICE}": kernel}

    async def _update(self, feed: Feed[Any], percent: int, *, with_write: bool = True) -> Span:
        """Write this part of the tiles, update, and return the time of both, or of the update alone."""
        begin = now()
        if percent == 100:
            self._source.set(await from_host(self._array))
        else:
            rows, rest = divmod(GRID * GRID * percent // 100, GRID)
            with batch():
                self._step += 1  # other tiles each time
                top = self._step * 5 % (GRID - rows - 1)
                for first, last, width in ((top, top + rows, GRID), (top + rows, top + rows + 1, rest)):
                    part = slice(first * self._side, last * self._side), slice(0, width * self._side)
                    self._source.write(part, self._array[part])
        if not with_write:
            wait_for_device()  # a write returns before the device has copied it, and the update would wait for that
            begin = now()
        await feed.next()
        return now().since(begin)


def _mean(spans: list[Span]) -> Span:
    return Span(sum(span.wall for span in spans) / len(spans), sum(span.cpu for span in spans) / len(spans))


def compare_tiles(count: int, repeats: int, *, gpu: bool) -> Table:
    """Return the table of one kernel of 4,096 tiles, of which different parts are dirty."""
    side = SIDE if gpu else HOST_SIDE
    table = Table(
        f"An update of a part of {GRID * GRID:,} tiles of {4 * side * side:,} bytes",
        "us",
        "From the end of the write to the value and from its begin, on the host's clock; and the kernel alone.",
        "all tiles",
    )
    feed = WrittenFeed(side)
    percents = (1, 10, 50, 100)
    contenders = [lambda percent=percent: feed.updates(percent, count) for percent in percents]
    found = measure(contenders, repeats)
    for way in ("", WITH_WRITE, ON_DEVICE):
        every = found[f"100 %{way}"]
        for percent in percents:
            goal = GOAL_TILES.get(percent) if gpu else None
            target = None if goal is None else statistics.median(span.wall for span in every) * 1e6 / goal
            table.add(f"{percent} % dirty{way}", found[f"{percent} %{way}"], 1e6, target=target, base=every)
    return table


class LimitedFeed:
    """A feed of a chain on a large tensor of ones, which is limited by a number before, with a cutoff or without."""

    def __init__(self, elements: int, tile: int, *, cut: bool) -> None:
        self._most = source(1.0)
        ones = from_host(np.ones(elements, np.float32)).sync().share()
        limited: Op = limit(empty((elements,)).partition((tile,)), ones, self._most).first().unpartition()
        op: Op = cutoff(limited) if cut else limited.share()
        for _ in range(AFTER):
            op = step(empty((elements,)).partition((tile,)), op, 1.0).first().unpartition()
        self._op: Op = op.share()
        self.ways: dict[str, str] = {}
        """How the updates of each name have decided the cutoff last, in the words of `explain()`."""

    def updates(self, name: str, low: float, count: int) -> Mapping[str, Span]:
        """Return the mean time of `count` updates with limits from `low` on. From 1 on no element changes."""
        return trio.run(self._updates, name, low, count)

    async def _updates(self, name: str, low: float, count: int) -> Mapping[str, Span]:
        async with observe(self._op) as feed:
            for number in range(4):
                self._most.set(low + number / 16)
                await feed.next()
            begin = now()
            for number in range(count):
                self._most.set(low + (number % 4) / 16)
                await feed.next()
            span = now().since(begin)
            lines = [line for line in feed.explain().splitlines() if "cutoff, if its value differs" in line]
            self.ways[name] = lines[0].split("; ")[1] if lines else ""
        return {name: Span(span.wall / count, span.cpu / count)}


def compare_cutoffs(count: int, repeats: int, *, gpu: bool) -> Table:
    """Return the table of a cutoff on the device: of 16 MB on a GPU, of 256 KB on the host."""
    elements = 1 << (22 if gpu else 16)
    table = Table(
        f"An update of a tensor of {4 * elements:,} bytes, with {AFTER} launches after a cutoff",
        "us",
        "From set() to the value, on the host's clock.",
        "no cutoff",
        "how it is decided",
    )
    cut, uncut = (LimitedFeed(elements, 1 << 13, cut=each) for each in (True, False))
    found = measure(
        [
            lambda: cut.updates("equal: cut off", 1.0, count),
            lambda: cut.updates("different: let through", 0.25, count),
            lambda: uncut.updates("no cutoff", 0.25, count),
        ],
        repeats,
    )
    base = found["no cutoff"]
    goal = GOAL_CUTOFF * statistics.median(span.wall for span in base) * 1e6 if gpu else None
    for name, spans in found.items():
        target = goal if name.startswith("different") else None
        table.add(name, spans, 1e6, target=target, base=base, remark=cut.ways.get(name, ""))
    return table


def compare_nodes(count: int, repeats: int) -> Table:
    """Return the table of the host layer, and of its peer."""
    table = Table(f"A chain of {NODES:,} functions on the host", "ns a node")
    level = source(0.0)
    op: DeviceOp[float] = level
    for _ in range(NODES):
        op = op.map(lambda x: x + 1.0)
    feed = OpenFeed(op, level)
    peers: list[Contender] = [lambda: feed.updates("dagpu", count)]
    if find_spec("reaktiv") is not None:
        peers.append(reaktiv_chain(count))
    found = measure(peers, repeats)
    table.add("dagpu", found["dagpu"], 1e9 / NODES, target=GOAL_NODE_NS)
    if "reaktiv" in found:
        table.add(f"reaktiv, {PEER_NODES} functions", found["reaktiv"], 1e9 / PEER_NODES)
    return table


def reaktiv_chain(count: int) -> Contender:
    """Return the same chain in reaktiv."""
    library: Any = import_module("reaktiv")
    signal = library.Signal(0.0)

    def computed(before: Any) -> Any:
        return library.Computed(lambda: before() + 1.0)

    last: Any = signal
    for _ in range(PEER_NODES):
        last = computed(last)
        last()

    def change() -> object:
        signal.set(signal() + 1.0)
        return last()

    return lambda: timed("reaktiv", change, count)


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host")
    parser.add_argument("--quick", action="store_true", help="few samples, and nothing is kept")
    arguments = parser.parse_args()
    count, repeats = (5, 2) if arguments.quick else (100, 7)
    about = machine(("numpy", "trio", "reaktiv"), arguments.device)
    about["device"] = arguments.device
    with use_device(arguments.device):
        gpu = not arguments.device.startswith("host")  # the goal is that of a GPU
        tables = [
            compare_launches(count, repeats, gpu=gpu),
            compare_shares(count, repeats),
            compare_tiles(max(2, count // 5), repeats, gpu=gpu),
            compare_cutoffs(count, repeats, gpu=gpu),
            compare_nodes(count, repeats),
        ]
    about["load average after"] = load_average()
    print(show(tables, about))
    if not arguments.quick:
        save("updates", "Updates", tables, about)


if __name__ == "__main__":
    main()
