"""Tables of `benchmarks.mesh`: graphs over several devices, and a factorisation against what its plan predicts."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

import dagpu
from benchmarks.support.gpu import Bench, Measure, medians, rounds
from benchmarks.support.plan_times import simulate
from benchmarks.support.table import Table
from dagpu import (
    CostModel,
    DeviceOp,
    Links,
    ListSchedule,
    Mesh,
    SchedulingPolicy,
    SingleStream,
    Spread,
    Tensor,
    expr,
    f32,
    full,
    use_device,
    zip_ops,
)
from examples.cholesky.factorisation import cholesky

NODES: Final = 1000
"""Kernels of the chain on each device."""
TILES, EDGE = 32, 512
"""Of the factored matrix, along each axis; and elements of a tile along each axis."""

grow = expr(f32)(lambda x: x + 1)


def is_small(bench: Bench) -> bool:
    """Return whether this is a dry run."""
    return bench.floor is None or bench.quick


def chain_table(bench: Bench, mesh: Mesh) -> Table:
    """Measure one graph with a chain of small kernels on each device, on one device and on all."""
    count = 20 if is_small(bench) else NODES

    def chain(number: int) -> DeviceOp[Tensor[f32]]:
        op = full((256,), 0).on(mesh.devices[number])
        for _ in range(count - 1):
            op = op.then(grow).on(mesh.devices[number])
        return op

    contenders: list[Measure] = []
    for devices in sorted({1, len(mesh)}):
        graph = zip_ops(*[chain(number) for number in range(devices)]).graph()
        name = f"dagpu graph, {devices} device{'s' if devices > 1 else ''}"
        contenders.append(partial(rounds, name, partial(_launched, graph), bench.many(20)))
    samples = bench.measure(contenders, 7)
    table = Table(
        f"One graph, a chain of {count:,} small kernels on each device: a kernel", "us", ratio_to="one device"
    )
    base = next(iter(samples.values()))
    for name, spans in samples.items():
        table.add(name, spans, 1e6 / count, base=base, target=1.5 if mesh.devices[0].kind == "cuda" else None)
    return table


def factorisation_table(bench: Bench, mesh: Mesh) -> Table:
    """Measure a tiled Cholesky factorisation as a captured graph, on one device and spread over all of them."""
    tiles, edge = (4, 32) if is_small(bench) else (TILES, EDGE)
    extent = tiles * edge
    matrix = np.ones((extent, extent)) + extent * np.eye(extent)

    def factored() -> DeviceOp[tuple[Any, ...]]:
        return cholesky(matrix, tiles)

    with use_device(mesh.devices[0]):
        factored().sync()
        with dagpu.trace() as probe:
            wanted = factored().schedule(SingleStream()).sync()
        costs = CostModel(links=Links.measured(mesh).sync()).learn(probe.kernel_times())
        policies: dict[str, SchedulingPolicy] = {
            "dagpu, 1 device": ListSchedule(4, costs),
            f"dagpu spread, {len(mesh)} devices": Spread(mesh, costs=costs),
        }
        contenders: list[Measure] = []
        predicted: dict[str, float] = {}
        for name, policy in policies.items():
            graph = factored().schedule(policy).graph()
            predicted[name] = simulate(graph.plan, costs).makespan
            launched: Callable[[], object] = partial(_launched, graph)
            contenders.append(partial(rounds, name, launched, bench.many(3)))
            found = graph.take_output()
            assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
        samples = bench.measure(contenders, 3)
    table = Table(
        f"Cholesky, f64, {tiles} x {tiles} tiles of {edge}, arrays of the host to arrays of the host",
        "ms",
        ratio_to="one device",
        remarks="measured / predicted",
    )
    table.note = (
        f"{tiles * (tiles + 1) * (tiles + 2) // 6:,} kernels as one CUDA graph. Target: 90 % of the devices' speed-up, "
        "and a measured time within 15 % of the predicted one."
    )
    base = next(iter(samples.values()))
    for name, spans in samples.items():
        goal = None
        if mesh.devices[0].kind == "cuda" and spans is not base:
            goal = 1e3 * medians(base).wall / (0.9 * len(mesh))
        ratio = medians(spans).wall / predicted[name]
        table.add(name, spans, 1e3, base=base, target=goal, remark=f"{ratio:.2f}")
    return table


def _launched(graph: Any) -> None:
    graph.launch().sync()
