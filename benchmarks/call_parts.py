"""Where the time of one call goes: the driver, trio, the checks, the memory, and dagpu's own bookkeeping.

    python -m benchmarks.call_parts                  keeps results/call_parts.json and call_parts.md
    python -m benchmarks.call_parts --device host    a dry run without a GPU: measures nothing, keeps nothing

Each part is measured alone, in a loop, in turns with the whole calls. The driver's part makes the calls of the driver
that a run makes, in the same order, and polls until the device is done: it is the same work by hand in Python. The
checks are the guards of the direct call. The rest is the difference: the time in which dagpu finds the plan, defers
Ctrl-C, follows the run and makes the result, less what it does while the device works.
"""

import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import trio

from benchmarks.graph import Replays, captured, chain_of
from benchmarks.support.gpu import Bench, Measure, start
from benchmarks.support.gpu_kernels import BLOCK, FACTOR, SIZE, Op, scale
from benchmarks.support.table import Grid, Span, now
from dagpu import Tensor, empty, f32, from_host, ones, use_device
from dagpu.runtime.plan_lookup import direct_call

WHOLE, DRIVER, TRIO, CHECKS, BUILD, MEMORY = "whole", "driver", "trio", "checks", "build", "memory"
PARTS: Final = (DRIVER, TRIO, CHECKS, BUILD, MEMORY)
MANY: Final = 1000
"""Kernels of the long chain."""

WARM: Final = 150
"""Calls after which every plan has its direct calls."""

Call: TypeAlias = Callable[[], object]


@final
class Way(NamedTuple):
    """One way to call: the whole, and those of its parts that this way has."""

    whole: Call
    parts: dict[str, Call]
    calls: int = 200
    """Calls in a row."""
    in_one: bool = False
    """True if `whole` makes all the calls in a row."""


def in_a_row(name: str, call: Call, times: int, calls: int) -> dict[str, Span]:
    """Call a function this number of times, and return the time of each of the `calls` that it makes altogether."""
    begin = now()
    for _ in range(times):
        call()
    took = now().since(begin)
    return {name: Span(took.wall / calls, took.cpu / calls)}


async def _await_often(make: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await make()


async def _checkpoints(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


# ---- the parts


def plan_and_guards(op: Op) -> tuple[Any, Call]:
    """Return the prepared plan that serves this op, and a function that makes the checks of its direct call alone."""
    found = direct_call(op)
    assert found is not None, "the plan has no direct call yet"
    loaded, direct, arguments, named, _ = found
    accepted = partial(direct.read, arguments, named)
    assert accepted() is not None
    return loaded.prepared, accepted


def polled(plan: Any, submit: Callable[[Any], object]) -> Call:
    """Return a function that submits work to a stream of its own, and polls until that is complete."""
    device = plan.compiled.devices[0]
    with device.gpu.current():
        stream = device.streams.take_exclusive().raw

    def call() -> None:
        with device.gpu.current():
            submit(stream)
            while not stream.query():
                pass

    return call


def graph_launch(plan: Any, *, sets_all: bool = False) -> Call:
    """Return a function that launches the graph of a plan. With `sets_all` it sets the parameters of all nodes
    before."""
    raw = plan.graphs.idle[0].raw
    updates = raw.prepare_updates(range(MANY)) if sets_all else None

    def submit(stream: Any) -> None:
        if updates is not None:
            updates.apply()
        raw.launch(stream)

    return polled(plan, submit)


def launches(plan: Any) -> Call:
    """Return a function that submits the launches of a plan one by one."""
    borrowed = plan.command_lists.borrow()
    commands = borrowed.copy()
    plan.command_lists.give_back(borrowed)

    def submit(stream: Any) -> None:
        commands.launches.set_streams([stream])
        for launch in commands.launches.each:
            launch()

    return polled(plan, submit)


def copy_in(plan: Any, array: Any) -> Call:
    """Return a function that copies an array to the device."""
    gpu, block = plan.compiled.devices[0].gpu, plan.compiled.devices[0].memory.take(array.nbytes)
    return polled(plan, lambda stream: gpu.copy_in_and_wait(block.address, array, stream))


def memory_of(plan: Any) -> Call:
    """Return a function that takes and drops the memory of the results of one run."""
    pool = plan.compiled.devices[0].memory
    sizes = [nbytes for _, _, _, nbytes in plan.compiled.outputs]

    def take() -> None:
        for nbytes in sizes:
            pool.take(nbytes)

    return take


# ---- the calls


def scaled() -> Op:
    """Build an op of one kernel in new memory."""
    return scale(empty((SIZE,)).partition((BLOCK,)), FACTOR).first().unpartition()


def plain_ways(bench: Bench) -> dict[str, Way]:
    """Return the calls of plain ops: again, fresh, and awaited."""
    op = scaled()
    for _ in range(bench.many(WARM)):
        op.sync()
        scaled().sync()
    again: dict[str, Call] = {}
    fresh: dict[str, Call] = {BUILD: scaled}
    if bench.floor is not None:
        plan, guards = plan_and_guards(op)
        _, fresh_guards = plan_and_guards(scaled())
        again = {DRIVER: graph_launch(plan), CHECKS: guards, MEMORY: memory_of(plan)}
        fresh |= again | {CHECKS: fresh_guards}
    count = bench.many(500)
    return {
        "plain op again": Way(op.sync, again),
        "plain op, fresh": Way(lambda: scaled().sync(), fresh),
        "await, again": Way(partial(trio.run, _await_often, lambda: op, count), again | {TRIO: _turns}, count, True),
        "await, fresh": Way(partial(trio.run, _await_often, scaled, count), fresh | {TRIO: _turns}, count, True),
    }


def _turns() -> None:
    """Stands for the checkpoints, which `contenders` measures in one loop of trio."""


def pipeline_ways(bench: Bench) -> dict[str, Way]:
    """Return the calls of pipelines: of one kernel, and of many."""
    found: dict[str, Way] = {}
    for name, most, graph_from, changing in (
        ("pipeline, one kernel", 1, 2, False),
        ("pipeline, launched one by one", 1, None, False),
        (f"pipeline, {MANY:,} kernels", MANY, 2, False),
        (f"pipeline, {MANY:,} kernels, every number", MANY, 2, True),
    ):
        kernels = bench.many(most)
        chain = chain_of(kernels, graph_from)
        call, parts = Replays(chain, 1, changing), dict[str, Call]()
        for _ in range(bench.many(8)):
            call()
        if bench.floor is not None:
            tensor: Tensor[f32] = ones((SIZE,)).sync()
            plan, guards = plan_and_guards(chain(tensor, FACTOR))
            parts = {DRIVER: launches(plan) if graph_from is None else graph_launch(plan, sets_all=changing)}
            parts[CHECKS] = guards
        found[name] = Way(call, parts, 10 if kernels > 1 else 200)
    return found


def other_ways(bench: Bench) -> dict[str, Way]:
    """Return launches of a captured graph, and copies from the host."""
    array = np.ones(1 << 18, np.float32)
    pinned = ones(array.shape).to_host().sync()
    found = {"graph.launch().sync()": Way(captured(1), {})}
    for name, source in (("from_host, 1 MiB, page-locked", pinned), ("from_host, 1 MiB, ordinary", array)):
        build, parts = partial(_copied_op, source), dict[str, Call]()
        call = partial(_run, build)
        for _ in range(bench.many(WARM)):
            call()
        if bench.floor is not None:
            plan, guards = plan_and_guards(build())
            parts = {DRIVER: copy_in(plan, source), CHECKS: guards, BUILD: build, MEMORY: memory_of(plan)}
        found[name] = Way(call, parts)
    return found


def _copied_op(array: Any) -> Op:
    """Build the op always in this place, by which its plan is found."""
    return from_host(array)


def _run(build: Callable[[], Op]) -> object:
    return build().sync()


# ---- measuring


def contenders(name: str, way: Way) -> list[Measure]:
    """Return a measurement of the whole and of each part."""
    found: list[Measure] = [partial(in_a_row, f"{name}: {WHOLE}", way.whole, 1 if way.in_one else way.calls, way.calls)]
    for part, call in way.parts.items():
        if call is _turns:
            loop = partial(trio.run, _checkpoints, way.calls)
            found.append(partial(in_a_row, f"{name}: {part}", loop, 1, way.calls))
        else:
            found.append(partial(in_a_row, f"{name}: {part}", call, way.calls, way.calls))
    return found


def grid_of(ways: dict[str, Way], samples: dict[str, list[Span]]) -> Grid:
    """Return the table of the parts of each way, in microseconds."""
    table = Grid("One call, us", [WHOLE, *PARTS, "rest"])
    table.note = "Medians. The driver's part is the same work by hand in Python, from the submission to the end of it."
    for name, way in ways.items():
        us = {part: statistics.median(s.wall for s in samples[f"{name}: {part}"]) * 1e6 for part in (WHOLE, *way.parts)}
        parts = [us.get(part, 0.0) for part in PARTS]
        table.rows[name] = [us[WHOLE], *parts, us[WHOLE] - sum(parts)]
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start("call_parts", "Where the time of one call goes.")
    with use_device(bench.where):
        ways = pipeline_ways(bench) | other_ways(bench) | plain_ways(bench)
        samples = bench.measure([each for name, way in ways.items() for each in contenders(name, way)], 25)
    bench.finish("Where the time of one call goes", [grid_of(ways, samples)])


if __name__ == "__main__":
    main()
