"""All-reduce by NCCL, on simulated GPUs with a stand-in for it: order, memory, and every refusal."""

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    CaptureError,
    DeviceError,
    Each,
    GradientError,
    Mesh,
    MeshError,
    Partials,
    all_reduce,
    array,
    as_partials,
    broadcast,
    convert,
    each,
    expr,
    f64,
    from_host,
    i32,
    ones,
    pipeline,
    shard_host,
)
from dagpu.grad import grad
from dagpu.meshes import nccl
from dagpu.meshes.nccl import NcclLibrary, RankCall
from dagpu.testing import parts_of
from tests.programs.meshes import mesh
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.simulated_nccl import SimulatedNccl, nccl_installed

pytestmark = pytest.mark.host_only("GPUs of its own")

weigh = expr(f64, f64)(lambda x, by: x * by)


@pytest.fixture
def three() -> Iterator[tuple[Machine, SimulatedNccl, Mesh]]:
    """Three GPUs with NCCL."""
    with installed(5, 3) as machine, nccl_installed(machine) as found:
        yield machine, found, mesh(3, "cuda")


def summands(there: Mesh, array: Any) -> Any:
    """A summand on each device: the array times the device's number."""
    parts = broadcast(from_host(array).on(there.devices[0]), there)
    return as_partials(each(lambda part, rank: weigh(part, 1.0 + rank.number), parts))


def arrays(value: Any) -> list[Any]:
    return [t.to_host().sync() for t in parts_of(value)]


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.sampled_from(["sum", "mean", "max", "min", "prod"]), st.sampled_from([0, 1, 5, 1000]))
def test_it_gives_what_the_direct_engine_gives(seed: int, how: Any, size: int) -> None:
    """On whole numbers, of which sums are exact; again and again, in whatever order the devices work."""
    array = np.arange(size, dtype=np.float64) - 3
    with installed(seed, 3) as machine, nccl_installed(machine) as found:
        there = mesh(3, "cuda")
        for _ in range(3):
            direct = arrays(all_reduce(summands(there, array), how).sync())
            made = all_reduce(summands(there, array), how, engine="nccl").sync()
            for one, other in zip(direct, arrays(made), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-15)
        assert found.opened == [(0, 1, 2)]
        assert found.groups == (3 if size else 0)


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
def test_what_reads_the_result_waits_for_it(three: tuple[Machine, SimulatedNccl, Mesh]) -> None:
    """Also in the same op, and while the collective is held up; the summands' memory is not used again before."""
    machine, _, there = three
    array = np.ones(64)

    @pipeline
    def doubled(p: Partials[f64]) -> Any:
        total = all_reduce(p, engine="nccl")
        return each(lambda part, rank: weigh(part, 2.0), total)

    kept = []
    for number in range(4):
        given = summands(there, array + number).sync()
        kept.append((number, doubled(given).sync()))
        gc.collect()
        for place in there.devices:
            ones((64,)).on(place).sync()
    for number, found in kept:
        assert isinstance(found, Each)
        assert all((t.to_host().sync() == 12.0 * (1 + number)).all() for t in found)
    del kept, found, given
    gc.collect()
    assert machine.gpus[0].calls["cuStreamWaitEvent"] > 0


@pytest.mark.parametrize("dense", [True, False])
def test_rows_of_a_mesh_are_reduced_by_themselves(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row along the axis has communicators of its own. Summands that are not dense are copied before."""
    monkeypatch.setattr(nccl, "_is_dense", lambda handle: dense)
    with installed(1, 4) as machine, nccl_installed(machine) as found:
        grid = Mesh([f"cuda:{n}" for n in range(4)], (2, 2), ("rows", "columns"))
        total = all_reduce(summands(grid, np.ones(3)), axis="columns", engine="nccl").sync()
        assert [each[0] for each in arrays(total)] == [3, 3, 7, 7]
        assert sorted(found.opened) == [(0, 1), (2, 3)]


def test_a_task_awaits_it(three: tuple[Machine, SimulatedNccl, Mesh]) -> None:
    """NCCL is called on a worker thread, and the loop goes on."""
    _, found, there = three

    async def main() -> list[Any]:
        total = await all_reduce(summands(there, np.ones(5)), engine="nccl")
        return [await t.to_host() for t in parts_of(total)]

    assert all((each == 6).all() for each in trio.run(main))
    assert found.groups == 1


def test_a_capture_refuses_it(three: tuple[Machine, SimulatedNccl, Mesh]) -> None:
    """NCCL under capture hangs, so nothing is called."""
    _, found, there = three
    with pytest.raises(CaptureError, match="Capture what comes before"):
        all_reduce(summands(there, np.ones(5)), engine="nccl").graph()
    assert found.groups == 0


def test_a_refused_call_fails_the_run(three: tuple[Machine, SimulatedNccl, Mesh]) -> None:
    """With NCCL's message; the next one succeeds, and no memory is kept."""
    _, found, there = three
    found.refuse = True
    with pytest.raises(DeviceError, match="ncclGroupEnd failed"):
        all_reduce(summands(there, np.ones(5)), engine="nccl").sync()
    total = all_reduce(summands(there, np.ones(5)), engine="nccl").sync()
    assert all((each == 6).all() for each in arrays(total))
    del total
    gc.collect()
    assert [driver(number).memory.used for number in range(3)] == [0, 0, 0]


def test_what_it_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other devices than GPUs, elements that NCCL has not, an engine that is none, and a missing library."""
    with pytest.raises(MeshError, match=r"reduces on GPUs.* Leave engine out"):
        all_reduce(summands(mesh(2), np.ones(4)), engine="nccl").sync()
    wrong: Any = "gloo"
    with pytest.raises(ValueError, match="engine"):
        all_reduce(summands(mesh(2), np.ones(4)), engine=wrong)
    with installed(0, 2):
        there = mesh(2, "cuda")
        monkeypatch.setattr(nccl, "find_nccl", lambda: None)
        with pytest.raises(DeviceError, match=r"Install it: pip install 'nvidia-nccl.*or leave engine out"):
            all_reduce(summands(there, np.ones(4)), engine="nccl").sync()
        short = each(lambda part, rank: convert(part, np.int16), shard_host(np.ones((2, 2), i32), there))
        with pytest.raises(MeshError, match="no elements of int16"):
            all_reduce(as_partials(short), engine="nccl").sync()


def test_the_shared_library_is_called_as_its_header_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group around the calls of all ranks, ended also if one is refused."""
    said: list[tuple[Any, ...]] = []

    class Library:
        """Stands for libnccl.so.2."""

        refused = ""

        def __getattr__(self, name: str) -> Any:
            def function(*arguments: Any) -> Any:
                plain = [getattr(each, "value", each) for each in arguments]
                if name == "ncclCommInitAll":
                    for at in range(arguments[1].value):
                        arguments[0][at] = 0x100 + at
                    plain = [arguments[1].value, list(arguments[2])]
                if name == "ncclGetErrorString":
                    return b"invalid usage"
                said.append((name, *plain))
                return 5 if name == self.refused else 0

            vars(self)[name] = function
            return function

    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    found = NcclLibrary("libnccl.so.2")
    ranks = found.open([0, 1])
    calls = [RankCall(0x1000, 0x2000, 7, 7, 0, rank, 0x30 + at) for at, rank in enumerate(ranks)]
    found.all_reduce(calls)
    library.refused = "ncclAllReduce"
    with pytest.raises(DeviceError, match=r"ncclAllReduce failed: invalid usage \(ncclResult 5\)"):
        found.all_reduce(calls)
    assert said == [
        ("ncclCommInitAll", 2, [0, 1]),
        ("ncclGroupStart",),
        ("ncclAllReduce", 0x1000, 0x2000, 7, 7, 0, 0x100, 0x30),
        ("ncclAllReduce", 0x1000, 0x2000, 7, 7, 0, 0x101, 0x31),
        ("ncclGroupEnd",),
        ("ncclGroupStart",),
        ("ncclAllReduce", 0x1000, 0x2000, 7, 7, 0, 0x100, 0x30),
        ("ncclGroupEnd",),
    ]


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_its_gradient_is_that_of_the_direct_engine(how: Any) -> None:
    """What it adds up depends on its summands, although no kernel of dagpu's reads them."""
    data = np.random.default_rng(0).standard_normal(6)
    with installed(0, 3) as machine, nccl_installed(machine):
        there = mesh(3, "cuda")
        x = from_host(data).on("cuda:1").sync().share()

        def loss(x: Any, engine: Any) -> Any:
            parts = each(lambda t, rank: weigh(t, rank.number + 1.0), broadcast(x, there))
            found = all_reduce(as_partials(parts), how, engine=engine)
            return all_reduce(as_partials(each(lambda t, rank: weigh(t, t).then(array.sum), found)))

        slopes = [grad(loss)(x, engine).sync().to_host().sync() for engine in ("direct", "nccl")]
    scale = sum(range(1, 4)) / (3 if how == "mean" else 1)
    np.testing.assert_allclose(slopes[0], 3 * 2 * scale * scale * data, rtol=1e-12)
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-12)


def test_extremes_have_no_gradient() -> None:
    """The result says nothing of which summand it was."""
    with installed(0, 3) as machine, nccl_installed(machine):
        there = mesh(3, "cuda")
        x = from_host(np.ones(1)).on("cuda:0").sync().share()

        def loss(x: Any) -> Any:
            parts = each(lambda t, rank: weigh(t, rank.number + 1.0), broadcast(x, there))
            return all_reduce(as_partials(parts), "max", engine="nccl")

        with pytest.raises(GradientError, match=r"all_reduce at .*test_nccl.py:\d+: .* Leave engine out"):
            grad(loss)(x).sync()
