"""Overlap of the measured runs: what is counted, what a profiler is told, and runs on simulated GPUs."""

import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    DeviceError,
    DeviceLostError,
    RoundRobin,
    SingleStream,
    arange,
    empty,
    from_host,
    ones,
    spawn,
    trace,
    value,
    zip_ops,
)
from dagpu.runtime.timeline import TracedRun
from tests.programs.arithmetic import add
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.runs import chain, wild
from tests.simulated.runs import fresh_machine as fresh_machine
from tests.unit.runtime.traced_branches import anywhere as anywhere
from tests.unit.runtime.traced_branches import assert_streams_are_in_order, branches, spans


def meeting(count: int, policy: Any) -> Any:
    """Functions on the host that all have to be under way at once, or none of them ends."""
    barrier = threading.Barrier(count)

    def meet(number: int) -> int:
        barrier.wait(30)
        return number

    return zip_ops(*[value(n).host_map(meet) for n in range(count)]).schedule(policy)


# ---- overlap


def test_work_that_runs_side_by_side_overlaps() -> None:
    """Four functions that have to be under way at once are: at any moment of the meeting all four run."""
    with trace() as found:
        meeting(4, RoundRobin(4)).sync()
    begin = max(piece.begin for piece in found.runs[0].measured.pieces)
    end = min(piece.end for piece in found.runs[0].measured.pieces)
    assert begin < end
    assert found.overlap > 0
    found.assert_overlap(1e-9)


def test_one_stream_does_not_overlap_and_the_test_helper_says_so() -> None:
    """The plan allows none, and none is what came."""
    with trace() as found:
        branches().schedule(SingleStream()).sync()
    assert (found.overlap, found.planned_overlap) == (0.0, 0.0)
    found.assert_overlap(0.0)
    with pytest.raises(
        AssertionError,
        match="0% of the work was hidden behind other work, and the plans allow no more than 0%, less than 50%",
    ):
        found.assert_overlap(0.5)


def test_overlap_that_is_lost_is_named() -> None:
    """Had everything run in a row: what the plan leaves side by side is told, with its origin."""
    op = zip_ops(*[arange(4).map(lambda t: t).to_host() for _ in range(2)])
    with trace() as found:
        op.schedule(RoundRobin(2)).sync()
    (run,) = found.runs
    begin = run.measured.pieces[0].begin
    in_a_row = [(begin + n, begin + n + 1) for n in range(len(run.measured.pieces))]
    run.measured = run.predicted.at(in_a_row)
    run.possible = run.predicted.timed([1.0] * len(in_a_row))
    with pytest.raises(AssertionError) as raised:
        found.assert_overlap(0.1)
    assert "the plans allow 50%" in str(raised.value)
    assert "Fill at" in str(raised.value)
    assert "test_overlap.py:" in str(raised.value)


def test_the_summary_compares_what_was_planned_with_what_came(anywhere: str) -> None:
    """A line for each run: predicted, what the plan allows by the measured times, measured; each with its overlap."""
    with trace() as found:
        branches().sync()
        ones((4,)).sync()
    lines = str(found).splitlines()
    assert lines[0].startswith("Trace: 2 runs, 17 instructions")
    assert re.fullmatch(
        r"Overlap, measured: \d+% of the work was hidden behind other work, the plans allow \d+%", lines[1]
    )
    assert re.split(r"\s{2,}", lines[2]) == ["#", "ran", "lanes", "predicted", "plan allows", "measured"]
    assert [len(re.findall(r"[\d.]+ [um]?s, \d+% hidden", line)) for line in lines[3:]] == [3, 3]
    run = found.runs[0]
    assert run.possible.makespan <= run.seconds + 1e-9
    assert isinstance(run, TracedRun)


def test_an_empty_trace() -> None:
    """Nothing ran: nothing overlapped, and that is no error."""
    with trace() as found:
        pass
    assert found.runs == ()
    assert found.overlap == found.planned_overlap == 0
    assert str(found).startswith("Trace: 0 runs")
    assert found.events() == []


# ---- profilers


def test_nvtx_ranges_have_the_names_of_the_instructions(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each instruction, around it."""
    seen: list[tuple[str, str]] = []

    @contextmanager
    def annotate(*, message: str, domain: str) -> Iterator[None]:
        seen.append((domain, message))
        yield

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    with trace(nvtx=True):
        add(empty((2, 2)).partition((2, 2)), ones((2, 2)), ones((2, 2))).first().unpartition().to_host().sync()
    assert sorted(seen) == [("dagpu", name) for name in ("CopyDtoH", "Fill", "Fill", "add")]


def test_nvtx_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the package and the way to get it, before anything is measured."""
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(DagpuError, match="pip install nvtx"), trace(nvtx=True):
        pytest.fail("the block is not entered")


# ---- on simulated GPUs


def test_a_long_chain_is_measured_within_a_streams_queue(machine: Machine) -> None:
    """Events count as well: the simulated driver refuses a queue that is too full."""
    with trace() as found:
        assert chain(700).to_host().sync().sum() == 4 * (700 % 64)
    assert len(found.runs[0].predicted.pieces) == 1402
    assert found.runs[0].skipped == 0


def test_measured_times_are_those_of_the_devices_events(machine: Machine) -> None:
    """Each piece of work of the simulated machine takes a microsecond, so a launch of its own takes two: itself, and
    the event behind it; on another device as well."""
    with trace() as found:
        chain(3).to_host().sync()
        chain(3).on("cuda:1").to_host().sync()
    for run in found.runs:
        assert all(piece.seconds >= 1.99e-6 for piece in run.measured.pieces)
        launches = [piece for piece in run.measured.pieces if piece.kind == "Launch"]
        assert all(round(piece.seconds * 1e6) <= 20 for piece in launches)


def test_runs_that_go_on_at_once_are_each_measured(machine: Machine, sleepy_spin: None) -> None:
    """Each of several runs at the same time is measured, also runs of one plan, each of which needs a script of its
    own."""
    op: Callable[[], Any] = lambda: chain(40).to_host()  # noqa: E731  # an op for each run
    shared = op()

    async def compute(which: Any) -> None:
        assert (await which).sum() == 160

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(compute, shared)
                nursery.start_soon(compute, op())

    with trace() as found:
        trio.run(main)
    assert len(found.runs) == 8
    assert not found.unfinished
    assert_streams_are_in_order(found)


@pytest.fixture(name="sleepy_spin")
def _sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGPU_SPIN_US", "0")


def test_a_device_that_is_lost_while_it_is_measured(machine: Machine) -> None:
    """The run fails as it would have; the trace ends without its times."""
    with trace() as found, pytest.raises(DeviceLostError):
        wild(empty((4,)).partition((4,))).sync()
    assert not found.unfinished
    assert spans(found.events()) == []


@settings(max_examples=40)
@given(
    st.sampled_from(("cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuEventCreate", "cuLaunchKernelEx")),
    st.integers(1, 30),
    st.sampled_from([1, 700]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_any_call_may_fail_while_a_run_is_measured(call: str, nth: int, code: int, function: bool, seed: int) -> None:
    """The run ends, with an error of ours or none; the trace ends, and every event with timing goes back."""
    with installed(seed) as machine:
        op = chain(3, 1).to_host()
        gpu = machine.gpus[0]
        with trace() as found:
            gpu.fail(call, code, nth)
            try:
                result = (op.host_map(lambda a: a) if function else op).sync()
            except* DeviceError:
                pass
            else:
                assert (result == 4).all()
            gpu.heal()
        assert not found.unfinished
        assert str(found).startswith("Trace: ")
        if driver().lost is None:
            gc.collect()
            assert gpu.timing_events == len(driver().streams._timing_events)  # noqa: SLF001  # no public call shows it


def test_copies_and_functions_are_measured_on_their_threads(machine: Machine) -> None:
    """A plan that calls a function is played on several threads; each of its parts is a span."""
    array = np.ones((4, 4), np.float32)
    with trace() as found:
        op = from_host(array).to_host().host_map(lambda a: a * 2).then(from_host).to_host()
        assert op.sync().sum() == 32
    kinds = [event["cat"] for event in spans(found.events())]
    assert kinds == ["CopyHtoD", "CopyDtoH", "HostCall", "CopyHtoD", "CopyDtoH"]


def test_spawned_ops_are_measured(machine: Machine) -> None:
    """They belong to the task that spawned them."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, chain(3).to_host())
            assert (await pending).sum() == 12

    with trace() as found:
        trio.run(main)
    assert len(found.runs) == 1
