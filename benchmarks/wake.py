"""The delay from the end of GPU work to the wake-up of the awaiting trio task, and the progress of other tasks.

    python -m benchmarks.wake                  keeps results/wake.json and wake.md
    python -m benchmarks.wake --device host    a dry run without a GPU: measures nothing, keeps nothing

Spinning: one tiny kernel, which ends before dagpu stops polling (20 us unless DAGPU_SPIN_US says otherwise).
Sleeping: DAGPU_SPIN_US=0 and a kernel of 200 us, so that the task really sleeps. These 200 us are subtracted.
The paths by hand submit from C++ through ctypes, which releases the GIL. The other task only passes checkpoints and
counts them, so the loop is never idle. Each part is measured in a separate process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

from benchmarks.support.gpu import Bench, Floor, Measure, medians, rounds, start
from benchmarks.support.gpu_kernels import build_chain, build_spin
from benchmarks.support.table import Span, Table, now
from dagpu import use_device

SPINNING, SLEEPING = 2.0, 1.3
"""Targets: ratio to launch + synchronize in C++; ratio to the best path by hand, without the kernel's own time."""

KERNEL_US = 200.0
"""Duration of the kernel during which the task sleeps."""

FLOOR_NAME = "C++ launch + cuStreamSynchronize"
POLL_NAME = "by hand: poll the event, then a checkpoint"
CLOSE_NAME = "by hand: cuLaunchHostFunc closes a pipe, wait_readable"
THREAD_NAME = "by hand: to_thread.run_sync(event.synchronize)"
AGAIN_NAME, FRESH_NAME, SYNC_NAME = "dagpu: await, the same op again", "dagpu: await, a fresh op", "dagpu: op.sync()"
BESIDE = ", beside another task"


ByHand: TypeAlias = Callable[[Floor, float], Awaitable[None]]
"""Waits for a kernel of the given microseconds, or for the tiny one if 0."""


# ---- awaiting


async def _awaited(name: str, call: Callable[[], Awaitable[object]], count: int, other: bool) -> dict[str, Span]:
    """Return medians over `count` awaits: the time, and under `name + " steps"` the other task's checkpoints."""
    steps = 0

    async def counting() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    spans, progress = [], []
    async with trio.open_nursery() as nursery:
        if other:
            nursery.start_soon(counting)
        for turn in range(2 + count):
            before, begin = steps, now()
            result = await call()
            span = now().since(begin)
            del result
            if turn >= 2:
                spans.append(span)
                progress.append(Span(steps - before, 0.0))
        nursery.cancel_scope.cancel()
    return {name: medians(spans), f"{name} steps": medians(progress)}


def awaited(name: str, call: Callable[[], Awaitable[object]], count: int, other: bool = False) -> dict[str, Span]:
    """Run `_awaited` in a separate trio loop."""
    return trio.run(_awaited, name + BESIDE * other, call, count, other)


async def poll_by_hand(floor: Floor, microseconds: float) -> None:
    """Submit, poll until done, then let the other tasks run."""
    floor.submit(microseconds)
    floor.mark()
    while not floor.reached():
        pass
    await trio.lowlevel.checkpoint()


async def close_by_hand(floor: Floor, microseconds: float) -> None:
    """Submit, have the driver's thread close one end of a pipe, and sleep until the other end is readable."""
    readable, writable = os.pipe()
    floor.submit(microseconds)
    floor.close_after(writable)
    await trio.lowlevel.wait_readable(readable)
    os.close(readable)


async def thread_by_hand(floor: Floor, microseconds: float) -> None:
    """Submit, and have a worker thread wait for the event."""
    floor.submit(microseconds)
    floor.mark()
    await trio.to_thread.run_sync(floor.wait)


# ---- the two parts


def contenders(bench: Bench, microseconds: float) -> list[Measure]:
    """Return all contenders that wait for one kernel: the tiny one, or one that takes `microseconds`."""
    count = bench.many(40)
    build = partial(build_spin, microseconds) if microseconds else partial(build_chain, 1)
    op = build()

    async def again() -> object:
        return await op

    async def fresh() -> object:
        return await build()

    ours: list[Measure] = [
        partial(rounds, SYNC_NAME, op.sync, count),
        partial(awaited, AGAIN_NAME, again, count),
        partial(awaited, AGAIN_NAME, again, count, other=True),
        partial(awaited, FRESH_NAME, fresh, count),
        partial(awaited, FRESH_NAME, fresh, count, other=True),
    ]
    floor = bench.floor
    if floor is None:
        return ours
    request = f"spin {microseconds:g}" if microseconds else "chain 1 end"
    paths: dict[str, ByHand] = {
        CLOSE_NAME: close_by_hand,
        THREAD_NAME: thread_by_hand,
    }
    if not microseconds:
        paths = {POLL_NAME: poll_by_hand} | paths
    return [
        partial(floor.rounds, FLOOR_NAME, request, count),
        *(
            partial(awaited, name, partial(path, floor, microseconds), count, other=other)
            for name, path in paths.items()
            for other in (False, True)
        ),
        *ours,
    ]


def part(bench: Bench, microseconds: float) -> dict[str, list[Span]]:
    """Measure one part, in this process."""
    with use_device(bench.where):
        return bench.measure(contenders(bench, microseconds), 11)


def in_child(argv: list[str], microseconds: float) -> dict[str, list[Span]]:
    """Measure one part in a separate process, with DAGPU_SPIN_US set for it."""
    environment = {name: text for name, text in os.environ.items() if name != "DAGPU_SPIN_US"}
    if microseconds:
        environment["DAGPU_SPIN_US"] = "0"
    command = [sys.executable, "-m", "benchmarks.wake", *argv]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | {_PART: str(microseconds)}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [Span(wall, cpu) for wall, cpu in spans] for name, spans in found.items()}


ROOT = Path(__file__).resolve().parents[1]
_PART = "DAGPU_BENCHMARK_PART"
"""Environment variable of such a process: the kernel's microseconds."""


# ---- the tables


def middle(spans: list[Span]) -> float:
    """Return the median on the clock, in seconds."""
    return medians(spans).wall


def fill(table: Table, samples: dict[str, list[Span]], taken_off: float, limits: dict[str, float], base: str) -> Table:
    """Add rows of `samples` minus `taken_off` seconds. `limits` maps a name to its target in seconds."""
    left = {
        name: [Span(span.wall - taken_off, span.cpu) for span in spans]
        for name, spans in samples.items()
        if not name.endswith(" steps")
    }
    for name, spans in left.items():
        steps = f"{middle(samples[f'{name} steps']):.0f}" if name.endswith(BESIDE) else ""
        target = round(limits[name] * 1e6, 1) if name in limits else None
        table.add(name, spans, 1e6, target=target, base=left.get(base), remark=steps)
    return table


def spinning_table(samples: dict[str, list[Span]]) -> Table:
    """Return the table for one tiny kernel."""
    table = Table("await of one tiny kernel, spinning", "us", ratio_to="C++", remarks="other's steps")
    table.note = "From the submit to the awaiting task going on; for a fresh op, from building it. "
    table.note += "Another task's steps are the checkpoints that it passes during one await."
    limits = {AGAIN_NAME: SPINNING * middle(samples[FLOOR_NAME])} if FLOOR_NAME in samples else {}
    return fill(table, samples, 0.0, limits, FLOOR_NAME)


def sleeping_table(samples: dict[str, list[Span]]) -> Table:
    """Return the table for a kernel of 200 us, which are subtracted."""
    table = Table("await of a long kernel, sleeping: what it adds", "us", remarks="other's steps")
    table.note = f"A kernel of {KERNEL_US:g} us, with {KERNEL_US:g} us taken off. "
    taken_off = KERNEL_US * 1e-6
    limits, base = {}, ""
    for beside in ("", BESIDE):
        paths = [name + beside for name in (CLOSE_NAME, THREAD_NAME) if name + beside in samples]
        if paths:
            best = min(paths, key=lambda name: middle(samples[name]))
            limits[AGAIN_NAME + beside] = SLEEPING * (middle(samples[best]) - taken_off)
            base = base or best
    table.ratio_to = "best path by hand, alone" if base else ""
    table.note += "A target is 1.3 times the best path by hand under the same conditions."
    return fill(table, samples, taken_off if FLOOR_NAME in samples else 0.0, limits, base)


def main() -> None:
    """Measure both parts in separate processes, print and save the results; or be one of these processes."""
    bench = start("wake", "How soon after the GPU is done does the task that awaits it go on?")
    asked = os.environ.get(_PART)
    if asked is not None:
        print(json.dumps(part(bench, float(asked))))
        return
    spinning, sleeping = in_child(sys.argv[1:], 0.0), in_child(sys.argv[1:], KERNEL_US)
    bench.finish("Waking up", [spinning_table(spinning), sleeping_table(sleeping)])


if __name__ == "__main__":
    main()
