"""Arrays that are staged in page-locked memory on their way to a simulated GPU, piece by piece or through a ring."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import f32, from_host, pipeline, zip_ops
from dagpu.backends.cuda.commands import buffers, transfers
from dagpu.backends.cuda.resources.pools import MemoryBlock, Pool
from dagpu.backends.host.worker_threads import enqueue
from tests.programs.graph_trials import graph_calls
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.runs import assert_nothing_is_held, fresh_machine  # noqa: F401  # a fixture

up_and_down = pipeline(graph_from=2)(lambda array: from_host(array).to_host())


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays of some hundred bytes staged as those of some megabytes are."""
    small(monkeypatch, prompt=4000, piece=300, chunk=1000)


def small(monkeypatch: pytest.MonkeyPatch, prompt: int, piece: int, chunk: int) -> None:
    for module in (transfers, buffers):
        monkeypatch.setattr(module, "PROMPT_IN", prompt)
    monkeypatch.setattr(transfers, "SMALL", 16)
    monkeypatch.setattr(transfers, "PIECE", piece)
    monkeypatch.setattr(transfers, "CHUNK", chunk)
    monkeypatch.setattr(transfers, "STAGERS", 4)  # whatever this machine has
    transfers._stagers.cache_clear()  # noqa: SLF001  # it has as many


@given(
    length=st.integers(1, 3000),
    prompt=st.integers(0, 6000),
    piece=st.integers(1, 4000),
    chunk=st.integers(200, 4000),
    step=st.sampled_from((1, 2, -1)),
    runs=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_byte_arrives(length: int, prompt: int, piece: int, chunk: int, step: int, runs: int) -> None:
    """Whatever the sizes of pieces and chunks, contiguous or not, through streams and through a graph; and then no
    memory is in use any more."""
    with installed(seed=3), pytest.MonkeyPatch.context() as patch:
        small(patch, prompt, piece, chunk)
        for number in range(runs):
            array = np.arange(number, length * abs(step) + number, dtype=f32)[::step]
            assert up_and_down(array).sync().tobytes() == array.tobytes()
        up_and_down.cache_clear()
        assert_nothing_is_held()


def test_the_array_has_been_read_when_the_run_ends(machine: Machine, small_pieces: None) -> None:
    """A later change of it changes nothing."""
    array = np.ones(5000, f32)
    tensor = from_host(array).sync()
    array[...] = 2
    assert (tensor.to_host().sync() == 1).all()


@pytest.mark.parametrize("length", [500, 5000])
def test_an_error_in_a_piece_fails_the_copy(
    machine: Machine, small_pieces: None, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Whichever thread meets it: the run ends with that error, and the next one has a free ring."""
    real, calls = np.copyto, list[None]()

    def copyto(target: Any, source: Any) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise MemoryError("no more")
        real(target, source)

    array = np.arange(length, dtype=f32)
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", copyto)
        with pytest.raises(MemoryError, match="no more"):
            from_host(array).sync()
    gc.collect()
    assert driver().pinned.used == 0
    assert from_host(array).to_host().sync().tobytes() == array.tobytes()


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_helps_stages_its_share(
    machine: Machine, small_pieces: None, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The run waits for it, and has its error."""
    real, both, caller = np.copyto, threading.Barrier(2), threading.get_ident()
    met: set[int] = set()

    def copyto(target: Any, source: Any) -> None:
        thread = threading.get_ident()
        if thread not in met and len(met) < 2:
            met.add(thread)
            both.wait(30)
            if fails and thread != caller:
                raise MemoryError("no more")
        real(target, source)

    array = np.arange(5000, dtype=f32)
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", copyto)
        if fails:
            with pytest.raises(MemoryError, match="no more"):
                from_host(array).sync()
        else:
            assert from_host(array).sync().to_host().sync().tobytes() == array.tobytes()
    assert len(met) == 2
    assert from_host(array).to_host().sync().tobytes() == array.tobytes()


def test_a_run_whose_helpers_are_busy_stages_alone(machine: Machine, small_pieces: None) -> None:
    """It does not wait until they come to its work, which they then leave."""
    stagers = transfers._stagers()  # noqa: SLF001  # all of them
    begun, release = threading.Barrier(len(stagers) + 1), threading.Event()

    class Busy:
        def run(self) -> None:
            begun.wait(30)
            release.wait(30)

    enqueue({stager: Busy() for stager in stagers})
    begun.wait(30)
    array = np.arange(5000, dtype=f32)
    assert from_host(array).sync().to_host().sync().tobytes() == array.tobytes()
    assert [stager.load() for stager in stagers] == [2] * len(stagers)
    release.set()
    assert from_host(array).to_host().sync().tobytes() == array.tobytes()


def test_several_arrays_are_staged_at_once_up_to_a_sum(machine: Machine, small_pieces: None) -> None:
    """A graph takes page-locked arrays of any size; beyond the sum of ordinary ones the run goes through streams."""
    both = pipeline(graph_from=1)(lambda a, b: zip_ops(from_host(a).to_host(), from_host(b).to_host()))
    calls = machine.gpus[0].calls
    ordinary = np.arange(600, dtype=f32), np.arange(600, dtype=f32)
    locked = [from_host(array).to_host().sync() for array in ordinary]
    half = ordinary[0][:300], ordinary[1][:300]
    for pair in (ordinary, half):
        both(*pair).sync()  # a traced run is no graph
    for (first, second), graphs in ((ordinary, 0), ((ordinary[0], locked[1]), 1), (locked, 1), (half, 1)):
        before = calls["cuGraphLaunch"]
        a, b = both(first, second).sync()
        assert (a == first).all()
        assert (b == second).all()
        assert calls["cuGraphLaunch"] - before == graphs


def test_an_array_knows_that_its_memory_is_page_locked(machine: Machine) -> None:
    """Results of `to_host` and their contiguous views, without a question to the driver; ordinary arrays are none."""
    result = from_host(np.arange(64, dtype=f32).reshape(8, 8)).to_host().sync()
    gpu: Any = driver().gpu

    class Silent:
        def is_pinned(self, array: Any) -> bool:
            raise AssertionError("the driver was asked")

    silent: Any = Silent()
    for view in (result, result[2:5], result.reshape(-1), result.view(np.int32)[1]):
        assert transfers.is_locked(view, silent)
        assert gpu.is_pinned(view)
    assert not transfers.is_locked(result[:, 1:3], silent)  # not contiguous
    with driver().gpu.current():
        assert not transfers.is_locked(np.arange(5), gpu)


@pytest.mark.parametrize(("large", "blocks"), [(1000, []), (50_000, [512 + 1024 + 200_192] * 2)])
def test_arrays_that_a_graph_stages_share_a_block(
    large: int, blocks: list[int], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes one block for all of them, and no node of the graph changes while that block comes back. A graph
    keeps a small block."""
    all_up = pipeline(graph_from=2)(lambda *arrays: zip_ops(*(from_host(array).to_host() for array in arrays)))
    sizes, pool = (1, 200, large), driver().pinned
    taken: list[int] = []
    take = Pool.take

    def counted(self: Pool, nbytes: int, room: int | None = None, wanted: int = 0) -> MemoryBlock:
        if room is None and self is pool:  # it is no result
            taken.append(nbytes)
        return take(self, nbytes, room, wanted)

    monkeypatch.setattr(type(pool), "take", counted)
    for number in range(4):
        arrays = [np.arange(number, number + size, dtype=f32) for size in sizes]
        for found, array in zip(all_up(*arrays).sync(), arrays, strict=True):
            assert (found == array).all()
        del found
        if number == 1:  # the first run that is a graph
            taken.clear()
            before = graph_calls(machine)
    assert taken == blocks
    assert graph_calls(machine) == (before[0], before[1] + 2, before[2])
