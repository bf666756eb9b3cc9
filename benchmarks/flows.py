"""The cost of flows for each item, and frames through a flow beside a hand-written loop, in the same run.

    python -m benchmarks.flows                        a minute; keeps results/flows.json and flows.md
    python -m benchmarks.flows --quick                ten seconds; keeps nothing
    python -m benchmarks.flows --device cuda:0        frames on a GPU; keeps results/flows_gpu.json and flows_gpu.md

An item is a number. Where it is run, the work is one checkpoint of the loop, so the table has the cost of the flow and
of nothing else. aiostream, where it is installed, does the same on asyncio. By hand: tasks that take items in turn,
with a semaphore for what is in flight, and a queue for the order.

A frame is copied in, blurred twice and copied out, by one call of a pipeline. The hand-written loop keeps three pending
runs of the same pipeline; on a GPU another has three streams of CuPy, with no event loop, and hands out pinned memory
that it overwrites later. Nothing is asserted. DALI and Holoscan have no row; benchmarks/updates.py has the reasons.
"""

import argparse
import asyncio
import importlib
import math
import statistics
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from benchmarks.peers.frames_by_streams import loop_of_streams
from benchmarks.support.table import Span, Table, load_average, machine, measure, now, save, show
from dagpu import (
    DeviceOp,
    Flow,
    Pending,
    f32,
    flow,
    from_host,
    pipeline,
    spawn,
    use_device,
    use_interpreter,
    value,
)
from examples.video import blur, blurred

T = TypeVar("T")

PER_AIOSTREAM = 20 / 39
"""Target of an item that is run with four in flight, as a share of aiostream's time: 20 us where that takes 39."""
Shows: TypeAlias = Callable[[list[NDArray[f32]], Callable[[NDArray[f32]], None]], None]
"""Works on frames, and hands each one out."""

THROUGHPUT = 0.97
"""Target: frames a second, as a share of the hand-written loop's."""

IN_FLIGHT = 4
FRAMES = ((480, 640), (1080, 1920))
FRAMES_IN_FLIGHT = 3
RADIUS = 3

BY_HAND, FLOW, STREAMS = "by hand", "flow", "CuPy, streams by hand"


# ---- an item ---------------------------------------------------------------------------------------------------------


class NoWork:
    """An interpreter whose runs are one checkpoint."""

    async def run(self, op: DeviceOp[T, Any, Any], /) -> T:
        await trio.lowlevel.checkpoint()
        result: Any = None
        return result  # type: ignore[no-any-return]  # reason: nobody looks at it

    def run_sync(self, op: DeviceOp[T, Any, Any], /) -> T:
        raise AssertionError("the benchmark awaits")


def drained(name: str, described: Flow[object], count: int) -> dict[str, Span]:
    """Return the seconds for each item of a flow."""

    async def main() -> Span:
        seen = 0
        start = now()
        async with described as feed:
            async for _ in feed:
                seen += 1
        assert seen == count
        return now().since(start)

    with use_interpreter(NoWork()):
        span = trio.run(main)
    return {name: Span(span.wall / count, span.cpu / count)}


def by_hand(count: int) -> dict[str, Span]:
    """Return the seconds for each item of tasks with a semaphore and an event for each item, in order."""

    async def main() -> Span:
        items, order = iter(range(count)), deque[tuple[trio.Event, list[object]]]()
        free, ready = trio.Semaphore(IN_FLIGHT), trio.Event()
        start = now()

        async def work() -> None:
            nonlocal ready
            while True:
                await free.acquire()
                item = next(items, None)
                if item is None:
                    return
                done, result = trio.Event(), list[object]()
                order.append((done, result))
                ready.set()
                await trio.lowlevel.checkpoint()
                result.append(item)
                done.set()

        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(work)
            for _ in range(count):
                while not order:
                    ready = trio.Event()
                    await ready.wait()
                done, result = order.popleft()
                await done.wait()
                result.pop()
                free.release()
            nursery.cancel_scope.cancel()
        return now().since(start)

    span = trio.run(main)
    return {f"{BY_HAND}, {IN_FLIGHT} in flight": Span(span.wall / count, span.cpu / count)}


def by_aiostream(name: str, aiostream: ModuleType, count: int, *, runs: bool) -> dict[str, Span]:
    """Return the seconds for each item of aiostream's `map`: of two functions, or of coroutines."""
    stream = aiostream.stream

    async def pause(x: int) -> int:
        await asyncio.sleep(0)
        return x

    async def main() -> Span:
        items = stream.range(count)
        if runs:
            found = stream.map(items, pause, task_limit=IN_FLIGHT)
        else:
            found = stream.map(stream.map(items, lambda x: x), lambda x: x)
        seen = 0
        start = now()
        async with found.stream() as opened:
            async for _ in opened:
                seen += 1
        assert seen == count
        return now().since(start)

    span = asyncio.run(main())
    return {name: Span(span.wall / count, span.cpu / count)}


def optional(module: str) -> ModuleType | None:
    """Import a peer; None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def item_table(count: int, repeats: int) -> Table:
    """Return the cost of an item: mapped twice on the host, and run with four in flight."""
    mapped, run = f"{FLOW}: map, map", f"{FLOW}: run, {IN_FLIGHT} in flight"
    peer_mapped, peer_run = "aiostream: map, map", f"aiostream: map, {IN_FLIGHT} tasks"
    op, aiostream = value(None), optional("aiostream")
    contenders: list[Callable[[], dict[str, Span]]] = [
        lambda: drained(mapped, flow(range(count)).map(lambda x: x).map(lambda x: x), count),
        lambda: drained(run, flow(range(count)).run(lambda x: op, in_flight=IN_FLIGHT), count),
        lambda: by_hand(count),
    ]
    if aiostream is not None:
        contenders.append(lambda: by_aiostream(peer_mapped, aiostream, count, runs=False))
        contenders.append(lambda: by_aiostream(peer_run, aiostream, count, runs=True))
    samples = measure(contenders, repeats)
    table = Table(f"An item of a flow of {count:,}", "us/item", ratio_to="aiostream")
    about_peer = "" if aiostream is None else " aiostream runs on asyncio, the others on trio."
    table.note = f"The work of a run is one checkpoint.{about_peer}"
    limits = {}
    if aiostream is not None:
        limits[run] = statistics.median([span.wall for span in samples[peer_run]]) * PER_AIOSTREAM * 1e6
    for name, spans in samples.items():
        base = samples.get(peer_run if "in flight" in name or name == peer_run else peer_mapped)
        table.add(name, spans, 1e6, base=base, target=limits.get(name))
    return table


# ---- frames ----------------------------------------------------------------------------------------------------------


@pipeline
def softened(frame: NDArray[f32]) -> DeviceOp[NDArray[f32]]:
    rows, columns = frame.shape
    new = blur.new((rows, columns), (rows // 8, columns))
    twice: DeviceOp[NDArray[f32]] = new(new(from_host(frame), RADIUS), RADIUS).to_host()
    return twice


async def frames_by_flow(frames: list[NDArray[f32]], seen: Callable[[NDArray[f32]], None]) -> None:
    """Hand out the frames of a flow."""
    async with flow(frames).run(softened, in_flight=FRAMES_IN_FLIGHT) as feed:
        async for shown in feed:
            seen(shown)


async def frames_by_hand(frames: list[NDArray[f32]], seen: Callable[[NDArray[f32]], None]) -> None:
    """Keep three pending runs, and take the oldest. Like a feed's consumer, hold one frame until the next comes."""
    pending: deque[Pending[NDArray[f32]]] = deque()
    async with trio.open_nursery() as nursery:
        for frame in frames:
            pending.append(spawn(nursery, softened(frame)))
            if len(pending) == FRAMES_IN_FLIGHT:
                shown = await pending.popleft()
                seen(shown)
        while pending:
            shown = await pending.popleft()
            seen(shown)


def timed_frames(name: str, show_all: Shows, frames: list[NDArray[f32]]) -> dict[str, Span]:
    """Return the seconds for each frame, and the 99th percentile of the time from one frame to the next."""
    times = [now()]
    show_all(frames, lambda _: times.append(now()))
    gaps = sorted(after.wall - before.wall for before, after in pairwise(times))
    whole = times[-1].since(times[0])
    count = len(frames)
    return {
        name: Span(whole.wall / count, whole.cpu / count),
        f"{name}: p99": Span(gaps[min(int(0.99 * count), count - 1)], math.nan),
    }


def check_frames(show_all: Shows, frames: list[NDArray[f32]]) -> None:
    """Raise an error if the frames that are handed out are not those given, blurred twice."""
    expected = iter([blurred(blurred(frame, RADIUS), RADIUS) for frame in frames])
    show_all(frames, lambda shown: np.testing.assert_allclose(shown, next(expected), rtol=1e-5))
    assert next(expected, None) is None


def frame_table(device: str, shape: tuple[int, int], count: int, repeats: int) -> Table:
    """Return the time of a frame of this shape by flow and by hand, and the longest gaps."""
    random = np.random.default_rng(0)
    frames = [random.random(shape, dtype=f32) for _ in range(count)]
    ways: dict[str, Shows] = {
        FLOW: lambda given, seen: trio.run(frames_by_flow, given, seen),
        BY_HAND: lambda given, seen: trio.run(frames_by_hand, given, seen),
    }
    streams = loop_of_streams(shape, RADIUS, FRAMES_IN_FLIGHT) if device.startswith("cuda") else None
    if streams is not None:
        ways[STREAMS] = streams
    with use_device(device):
        for show_all in ways.values():
            check_frames(show_all, frames[: 2 * FRAMES_IN_FLIGHT])
        samples = measure([partial(timed_frames, name, way, frames) for name, way in ways.items()], repeats)
    table = Table(f"A frame of {shape[0]} x {shape[1]} on {device}", "ms/frame", ratio_to=BY_HAND)
    table.note = f"{FRAMES_IN_FLIGHT} in flight. p99: from one frame to the next, the 99th percentile."
    for name, spans in samples.items():
        base = samples[BY_HAND + name.partition(":")[1] + name.partition(":")[2]]
        limit = statistics.median([span.wall for span in base]) * 1e3
        target = None if not name.startswith(FLOW) else limit / THROUGHPUT if name == FLOW else limit
        table.add(name, spans, 1e3, base=base, target=target)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; keep nothing")
    parser.add_argument("--device", default="host", help="where the frames are computed (host)")
    given = parser.parse_args()
    about = machine(("numpy", "trio", "aiostream"), given.device)
    repeats = 3 if given.quick else 11
    tables = [
        item_table(1_000 if given.quick else 5_000, repeats),
        *[frame_table(given.device, shape, 20 if given.quick else 100, repeats) for shape in FRAMES],
    ]
    about["load average after"] = load_average()
    print(show(tables, about))
    if not given.quick:
        name = "flows_gpu" if given.device.startswith("cuda") else "flows"
        print("kept", *save(name, "Flows", tables, about))


if __name__ == "__main__":
    main()
