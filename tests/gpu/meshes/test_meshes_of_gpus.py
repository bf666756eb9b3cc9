"""Meshes of two and of four GPUs: laws with the bits of the host, graphs over all of them, cancelled and failed runs.

`python -m tests.gpu.long.meshes` runs these tests, the other ones of several GPUs, the sanitizer and the benchmarks.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    Blocks,
    Cyclic,
    Mesh,
    OutOfMemoryError,
    Rank,
    Replicated,
    Sharded,
    Spread,
    StreamInterpreter,
    all_gather,
    all_reduce,
    as_partials,
    broadcast,
    dup,
    each,
    empty,
    expr,
    f32,
    from_host,
    full,
    gather,
    halo,
    memcpy,
    ones,
    pipeline,
    reduce_scatter,
    reshard,
    shard_host,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import parts_of
from tests.gpu.support.several import SIMULATED, several_gpus
from tests.programs.expressions import bits
from tests.programs.meshes import EAGER, Scatter
from tests.programs.trials import random_dag

PATIENCE = 120.0
TURNS = 20 if SIMULATED else 1000

weigh = expr(f32, f32)(lambda x, by: x * by)


@pytest.fixture(params=[2, 4])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """The first two, and the first four GPUs."""
    with several_gpus(request.param) as found:
        yield Mesh(list(found))


def weighed(part: Any, rank: Rank) -> Any:
    return weigh(part, 1.0 + rank.number)


def host_mesh(mesh: Mesh) -> Mesh:
    return Mesh([f"host:{number}" for number in range(len(mesh))])


# ---- laws


@pytest.mark.parametrize("rows", [1, 7, 1003, 65_537])
def test_layouts_and_collectives_have_the_bits_of_the_host(mesh: Mesh, rows: int) -> None:
    """Sharding and back, every collective, and rims, of odd sizes, one element and more."""
    array = np.random.default_rng(rows).normal(size=(rows, 3)).astype(f32)

    def program(there: Mesh) -> list[bytes]:
        cut = Blocks(0, partial=True)
        s = shard_host(array, there, cut).sync()
        assert (gather(reshard(s.borrow(), Cyclic((2, 2)))).sync().to_host().sync() == array).all()
        summands = broadcast(from_host(array).on(there.devices[0]), there).sync()
        found: list[Any] = [
            all_gather(s.borrow()).sync(),
            all_reduce(as_partials(each(weighed, summands))).sync(),
            all_reduce(as_partials(each(weighed, summands)), "max").sync(),
            reduce_scatter(as_partials(each(weighed, summands)), cut, "mean").sync(),
            halo(reshard(s, Blocks(1, partial=True)), (0, 1), wrap=True).sync(),
        ]
        return [t.to_host().sync().tobytes() for spread in found for t in parts_of(spread)]

    assert program(mesh) == program(host_mesh(mesh))


@pytest.mark.parametrize("seed", range(8))
def test_random_dags_have_the_bits_of_the_host(mesh: Mesh, seed: int) -> None:
    """Placed by chance and by cost, through streams and as one graph, in memory that moves."""
    wanted = list(map(bits, random_dag(seed).on("host").sync()))
    for policy in (Scatter(mesh, seed), Spread(mesh, costs=EAGER)):
        with use_interpreter(StreamInterpreter(policy=policy, graph_from=3)):
            kept = [random_dag(seed).sync() for _ in range(8)]
        assert all(list(map(bits, result)) == wanted for result in kept)


# ---- graphs


def test_one_graph_is_replayed_with_changing_addresses(mesh: Mesh) -> None:
    """A pipeline with a collective in it, whose inputs and results are elsewhere each time."""

    @pipeline
    def step(s: Sharded[f32]) -> Any:
        return all_reduce(as_partials(each(lambda part, rank: weigh(part, 2.0), s)))

    rows = 4 * len(mesh)
    kept: list[Any] = []
    for turn in range(TURNS):
        total = step(shard_host(np.full((rows, 8), turn, f32), mesh).sync()).sync()
        kept = [*kept[-3:], (turn, total)]
        if turn % 100 == TURNS - 1 or turn < 10:
            for number, held in kept:
                for t in parts_of(held):
                    assert (t.to_host().sync() == 2 * number * len(mesh)).all()


def test_a_captured_graph_is_replayed(mesh: Mesh) -> None:
    """A random DAG over all devices, many launches."""
    wanted = list(map(bits, random_dag(3).on("host").sync()))
    with use_interpreter(StreamInterpreter(policy=Scatter(mesh, 3))):
        graph = random_dag(3).graph()
        for _ in range(TURNS):
            graph.launch().sync()
    assert list(map(bits, graph.take_output())) == wanted


def test_a_graph_is_launched_from_any_of_its_devices(mesh: Mesh) -> None:
    """Copies that are pushed to a device which does nothing else, and strided ones that it pulls."""
    first, second = mesh.devices[0], mesh.devices[-1]
    array = np.arange(1 << 12, dtype=f32).reshape(64, 64)
    for place in (first, second):
        x = from_host(array).on(first).sync()
        pushed, pulled = zeros((64, 64)).on(second).sync(), zeros((32, 64)).on(second).sync()
        halves = x.slice(slice(0, 64, 2), slice(0, 64))
        strided = zip_ops(memcpy(pulled.borrow_mut(), halves).on(second), dup(x.borrow()).on(first))
        graphs = [
            memcpy(pushed.borrow_mut(), x.borrow()).on(second).graph_on(place.stream()),
            strided.graph_on(place.stream()),
        ]
        memcpy(x.borrow_mut(), full((64, 64), 7).on(first).sync().borrow()).on(first).sync()
        for graph in graphs:
            graph.launch().sync()
        assert (pushed.to_host().sync() == 7).all()
        assert (pulled.to_host().sync() == 7).all()


# ---- failures


def test_a_collective_is_cancelled(mesh: Mesh) -> None:
    """Cancelled amid collectives, again and again: what is under way is drained, and the next one is right."""
    summands = broadcast(ones((1 << 16,)), mesh).sync()

    @pipeline
    def total(s: Replicated[f32]) -> Any:
        return zip_ops(all_reduce(as_partials(each(weighed, s))), value(None))

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            for turn in range(20):
                with trio.move_on_after(turn * 20e-6):
                    for _ in range(50):
                        await total(summands)

    trio.run(main)
    found, _ = total(summands).sync()
    wanted = len(mesh) * (len(mesh) + 1) / 2
    assert all((t.to_host().sync() == wanted).all() for t in parts_of(found))


def test_a_storm_of_frees_beside_graphs_with_collectives(mesh: Mesh) -> None:
    """Memory of every device comes and goes in another thread, beside a graph over all of them."""
    summands, stop = broadcast(ones((1 << 14,)), mesh).sync(), Event()

    @pipeline
    def total(s: Replicated[f32]) -> Any:
        return all_reduce(as_partials(each(weighed, s)))

    def storm() -> int:
        turns = 0
        while not stop.is_set():
            for place in mesh.devices:
                zeros(((turns % 7 + 1) << 14,)).on(place).sync()
            turns += 1
        return turns

    with ThreadPoolExecutor(1) as pool:
        turns = pool.submit(storm)
        try:
            for _ in range(TURNS):
                found = total(summands).sync()
        finally:
            stop.set()
        assert turns.result()
    assert all((t.to_host().sync() == len(mesh) * (len(mesh) + 1) / 2).all() for t in parts_of(found))


@pytest.mark.exclusive
def test_out_of_memory_on_one_device_loses_nothing(mesh: Mesh) -> None:
    """The run that does not fit on the last GPU fails before it begins and names it; then it succeeds."""
    last = mesh.devices[-1]
    wide = pipeline(lambda: broadcast(ones((1 << 20,)), mesh))
    for _ in range(3):
        wide().sync()
    free, _ = last.memory_info()
    held = empty((max(free - (2 << 20), 0) // 4,)).on(last).sync()
    kept: list[Any] = []
    with pytest.raises(OutOfMemoryError, match=last.name):
        kept.extend(wide().sync() for _ in range(64))
    del held
    kept.clear()
    assert all((t.to_host().sync() == 1).all() for t in parts_of(wide().sync()))
