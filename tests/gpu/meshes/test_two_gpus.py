"""Two GPUs in one op: copies between them, a network trained on both, and each thread with its own."""

import gc
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest

from dagpu import (
    Blocks,
    DagpuError,
    Device,
    Links,
    Mesh,
    Rank,
    Replicated,
    Sharded,
    Spread,
    StreamInterpreter,
    Tensor,
    all_gather,
    all_reduce,
    as_partials,
    broadcast,
    convert,
    dup,
    each,
    expr,
    f32,
    f64,
    from_host,
    full,
    halo,
    memcpy,
    ones,
    pipeline,
    reduce_scatter,
    reshard,
    shard_host,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.meshes import moving
from dagpu.testing import parts_of
from tests.gpu.support.gpu_kernels import add
from tests.gpu.support.several import several_gpus
from tests.programs.expressions import bits
from tests.programs.meshes import EAGER, Scatter
from tests.programs.trials import random_dag
from tests.programs.trimmed_runs import STEPS, trial
from tests.support.paths import ROOT

weigh = expr(f32, f32)(lambda x, by: x * by)


@pytest.fixture
def two() -> Iterator[tuple[Device, Device]]:
    """The first two GPUs."""
    with several_gpus(2) as found:
        yield found[0], found[1]


def test_copies_between_them(two: tuple[Device, Device]) -> None:
    """`dup`, `convert` and `memcpy`, whole and cut, both ways, to the bit."""
    array = np.random.default_rng(0).normal(size=(1000, 1003)).astype(f32)
    for here, there in (two, two[::-1]):
        t = from_host(array).on(here).sync()
        assert t.device == here
        moved = dup(t.borrow()).on(there).sync()
        assert moved.device == there
        np.testing.assert_array_equal(moved.borrow().to_host().sync(), array)
        cut = t.slice(slice(1, None, 3), slice(5, 900))
        np.testing.assert_array_equal(dup(cut).on(there).to_host().sync(), array[1::3, 5:900])
        np.testing.assert_array_equal(convert(t.borrow(), f64).on(there).to_host().sync(), array.astype(f64))
        target = zeros(array.shape).on(there).sync()
        memcpy(target.borrow_mut(), t.borrow()).sync()
        np.testing.assert_array_equal(target.to_host().sync(), array)


def test_branches_on_both_meet_on_one(two: tuple[Device, Device]) -> None:
    """Each branch runs where it is put; what crosses over is waited for, whichever way it goes."""
    first, second = two

    def branch(place: Device, number: int) -> Any:
        op = full((1 << 18,), number).on(place)
        for _ in range(20):
            op = op.then(lambda t: add(t.partition((1024,)), ones((1 << 18,))).first().unpartition()).on(place)
        return op

    for _ in range(5):
        ours, theirs = branch(first, 1), branch(second, 100)
        there = ours.then(lambda t: dup(t).on(second))
        back = add(theirs.partition((1024,)), there).first().unpartition().then(lambda t: dup(t).on(first))
        result = add(back.partition((1024,)), branch(first, 0)).first().unpartition().sync()
        assert result.device == first
        assert (result.to_host().sync() == 161).all()


def test_a_ring_of_copies(two: tuple[Device, Device]) -> None:
    """There and back again, many times in one run."""
    first, second = two
    op = from_host(np.arange(1 << 16, dtype=f32)).on(first)
    for _ in range(30):
        op = op.then(lambda t: dup(t).on(second)).then(lambda t: dup(t).on(first))
    result = op.sync()
    assert result.device == first
    np.testing.assert_array_equal(result.to_host().sync(), np.arange(1 << 16, dtype=f32))


def test_memory_is_counted_where_it_lies(two: tuple[Device, Device]) -> None:
    """Each device has its own account, and gets its bytes back on whatever thread they are dropped."""
    gc.collect()
    before = [each.memory_used() for each in two]
    held: list[Tensor[Any]] = [zeros((1 << 18,)).on(each).sync() for each in two for _ in range(2)]
    assert [each.memory_used() for each in two] == [used + (2 << 20) for used in before]
    held.pop()
    assert [each.memory_used() for each in two] == [before[0] + (2 << 20), before[1] + (1 << 20)]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(held.clear).result()
    assert [each.memory_used() for each in two] == before


def test_threads_each_with_its_own(two: tuple[Device, Device]) -> None:
    """Runs on both devices at once, from threads whose current device differs."""

    def work(number: int) -> bool:
        place = two[number % 2]
        with use_device(place):
            for _ in range(50):
                t = add(full((1024,), number).partition((256,)), ones((1024,))).first().unpartition().sync()
                if t.device != place or not (t.to_host().sync() == number + 1).all():
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_stream_of_the_other(two: tuple[Device, Device]) -> None:
    """Work for one device is refused by a stream of the other, and both go on."""
    first, second = two
    t = ones((4,)).on(first).sync()
    with pytest.raises(DagpuError, match=first.name):
        t.borrow().to_host().sync_on(second.stream())
    assert t.to_host().sync_on(first.stream()).tolist() == [1.0] * 4
    assert ones((4,)).on(second).to_host().sync_on(second.stream()).tolist() == [1.0] * 4


def test_a_network_trained_on_both(
    two: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """examples/mlp_data_parallel.py, whose own assertions compare it with NumPy."""
    if find_spec("nvmath") is None:
        pytest.skip("nvmath-python is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    script = importlib.import_module("mlp_data_parallel")
    monkeypatch.setattr(script, "DEVICES", tuple(each.name for each in two))
    script.main()
    assert "on 2 devices" in capsys.readouterr().out
    del sys.modules["mlp_data_parallel"]


def test_many_independent_ops_on_both(two: tuple[Device, Device]) -> None:
    """One run of many branches, on both in turn."""
    ops = [
        add(full((1024,), n).partition((256,)), ones((1024,))).first().unpartition().to_host().on(two[n % 2])
        for n in range(32)
    ]
    for n, result in enumerate(zip_ops(*ops).sync()):
        assert (result == n + 1).all()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_spread_over_both_has_the_bits_of_the_host(two: tuple[Device, Device], seed: int) -> None:
    """Random DAGs, placed by chance and by cost, through streams: run again and again, with memory that moves."""
    wanted = list(map(bits, random_dag(seed).on("host").sync()))
    both = Mesh(list(two))
    for policy in (Scatter(both, seed), Spread(both, costs=EAGER)):
        with use_interpreter(StreamInterpreter(policy=policy)):
            for _ in range(4):
                assert list(map(bits, random_dag(seed).sync())) == wanted


def test_the_links_of_both_are_measured(two: tuple[Device, Device]) -> None:
    """Large copies are faster than over the host's bus, where the two read each other's memory."""
    links = Links.measured(Mesh(list(two))).sync()
    link = links.between(*two)
    assert link.latency < 1e-3
    assert link.bandwidth > 1e9


def test_a_factorisation_on_both(
    two: tuple[Device, Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """examples/cholesky, whose own assertions compare it with one stream of one device, to the bit."""
    monkeypatch.syspath_prepend(str(ROOT))
    script = importlib.import_module("examples.cholesky.factorisation")
    names = [each.name for each in two]
    script.main(["--tiles", "6", "--edge", "256", "--devices", *names, "--out", str(tmp_path / "lanes.svg")])
    assert " ".join(names) in capsys.readouterr().out


@pytest.mark.parametrize("peers", [True, False], ids=["peers", "through the host"])
@pytest.mark.parametrize("extent", [5, 1003, 300_007])
def test_collectives_have_the_bits_of_the_host(
    two: tuple[Device, Device], extent: int, peers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd sizes, in one step and in two, through pipelines whose memory moves; strided parts also where a device is
    taken for one that does not read the other's memory."""
    if not peers:
        monkeypatch.setattr(moving, "reaches", lambda one, other: False)
    array = np.random.default_rng(extent).normal(size=(extent, 3)).astype(f32)
    columns = Blocks(1, partial=True)

    def program(mesh: Mesh) -> list[bytes]:
        @pipeline
        def exchanged(s: Sharded[f32]) -> Any:
            cut = reshard(s, columns)
            return zip_ops(all_gather(halo_free(cut)), value(1))

        def halo_free(cut: Any) -> Any:
            return reshard(cut, Blocks(0, partial=True))

        @pipeline
        def summed(r: Replicated[f32]) -> Any:
            return zip_ops(
                all_reduce(as_partials(each(scaled, r))),
                reduce_scatter(as_partials(each(scaled, r)), columns, "mean"),
            )

        def scaled(part: Any, rank: Rank) -> Any:
            return weigh(part, 1.0 + rank.number)

        found: list[bytes] = []
        for turn in range(3):
            gathered, _ = exchanged(shard_host(array + turn, mesh, Blocks(0, partial=True)).sync()).sync()
            total, parts = summed(gathered).sync()
            rims = halo(shard_host(array + turn, mesh, Blocks(0, partial=True)), (2, 1), wrap=True).sync()
            found += [
                t.to_host().sync().tobytes() for value_of in (gathered, total, parts, rims) for t in parts_of(value_of)
            ]
        return found

    assert program(Mesh(list(two))) == program(Mesh(["host:0", "host:1"]))


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_is_mapped_anew(two: tuple[Device, Device], seed: int) -> None:
    """Between two launches of a graph, memory of each device goes back to the driver and is mapped at the same
    addresses again. The copies between the devices are set again then."""
    random = Random(seed)
    steps = [("call", number) for number in range(3)] * 4 + [
        (random.choice(STEPS), random.randrange(3)) for _ in range(60)
    ]
    for _ in trial(two, steps):
        pass


def test_a_storm_of_frees_beside_collectives(two: tuple[Device, Device]) -> None:
    """Memory of both devices comes and goes in another thread, and the pools are trimmed: nothing waits for ever."""
    mesh, stop = Mesh(list(two)), Event()

    def storm() -> int:
        turns = 0
        while not stop.is_set():
            for place in two:
                zeros(((turns % 7 + 1) << 16,)).on(place).sync()
            turns += 1
        return turns

    summands = broadcast(ones((1 << 20,)), mesh).sync()
    with ThreadPoolExecutor(1) as pool:
        turns = pool.submit(storm)
        for _ in range(100):
            total = all_reduce(as_partials(each(lambda part, rank: dup(part), summands))).sync()
        stop.set()
        assert turns.result()
    assert all((part.to_host().sync() == 2).all() for part in parts_of(total))


def test_heat_on_both(
    two: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """examples/heat.py, whose own assertions compare it with NumPy."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    script = importlib.import_module("heat")
    monkeypatch.setattr(script, "DEVICES", tuple(each.name for each in two))
    script.main()
    assert "on 2 devices" in capsys.readouterr().out
    del sys.modules["heat"]
