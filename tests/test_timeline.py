"""`dagpu.trace`: what it measures, on the host and on simulated GPUs, and that it costs nothing where it is not."""

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    CostModel,
    DagpuError,
    DeviceError,
    DeviceLostError,
    RoundRobin,
    SingleStream,
    Trace,
    arange,
    current_device,
    empty,
    from_host,
    ones,
    plan_of,
    spawn,
    trace,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends import recording
from dagpu.runtime.timeline import TracedRun
from tests.arithmetic import add, axpy
from tests.named_dags import EXPECTED, NAMED
from tests.simulated_cuda import driver, installed
from tests.simulated_machine import Machine
from tests.simulated_runs import assert_nothing_is_held, chain, fresh_machine, wild

__all__ = ["fresh_machine"]


@contextmanager
def simulated() -> Iterator[None]:
    with installed(seed=5):
        yield


@pytest.fixture(params=["host", "cuda"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """The host, and a simulated GPU; its name is the value."""
    if request.param == "cuda":
        with simulated():
            yield "cuda:0"
            assert_nothing_is_held()
    else:
        with use_device("host:0"):
            yield "host:0"


def branches(count: int = 4) -> Any:
    """Independent chains of three launches, joined on the host."""
    parts = [axpy(ones((2, 2)).partition((2, 2)), float(n), ones((2, 2))).first().unpartition() for n in range(count)]
    return zip_ops(*[part.to_host() for part in parts])


def meeting(count: int, policy: Any) -> Any:
    """Functions on the host that all have to be under way at once, or none of them ends."""
    barrier = threading.Barrier(count)

    def meet(number: int) -> int:
        barrier.wait(30)
        return number

    return zip_ops(*[value(n).host_map(meet) for n in range(count)]).schedule(policy)


def spans(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


# ---- what is measured


@pytest.mark.parametrize("name", NAMED)
def test_each_instruction_is_one_span_with_its_op_and_origin(anywhere: str, name: str) -> None:
    """Named as the plan names it; the results are what they are without a trace."""
    op = NAMED[name]()
    pieces = plan_of(op).steps
    with trace() as found:
        result = op.sync()
    for want, got in zip(EXPECTED[name](), result, strict=True):
        np.testing.assert_array_equal(want, got, strict=True)
    (run,) = found.runs
    events = spans(found.events())
    assert [piece.label for piece in run.predicted.pieces] == [event["args"]["op"] for event in events]
    assert sum(hasattr(step, "instruction") for step in pieces) == len(events)
    assert all("named_dags.py:" in event["args"]["origin"] for event in events)
    assert run.skipped == 0
    assert all(event["dur"] > 0 for event in events)


def test_nothing_begins_before_what_it_depends_on_has_ended(anywhere: str) -> None:
    """Measured times keep the order of the data, and of each stream."""
    with trace() as found:
        for name in NAMED:
            NAMED[name]().sync()
    for run in found.runs:
        pieces = run.measured.pieces
        for piece in pieces:
            assert all(pieces[other].end <= piece.begin + 1e-9 for other in piece.inputs)
    assert_streams_are_in_order(found)


def assert_streams_are_in_order(found: Trace) -> None:
    """In each thread of the timeline one span follows the other."""
    ends: dict[tuple[int, int], float] = {}
    for event in sorted(spans(found.events()), key=lambda event: event["ts"]):
        place = event["pid"], event["tid"]
        assert ends.get(place, 0.0) <= event["ts"] + 1e-3
        ends[place] = event["ts"] + event["dur"]


def test_the_timeline_has_a_process_for_each_device_and_a_thread_for_each_stream(anywhere: str) -> None:
    """With their names; two devices are two processes."""
    other = anywhere.replace("0", "1")
    with trace() as found:
        zip_ops(branches(), ones((4,)).on(other).to_host()).sync()
    events = found.events()
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == [anywhere, other]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans(events)} == set(threads)
    assert len({tid for _, tid in threads}) == len(threads)
    assert {names[e["pid"]] for e in spans(events)} == {anywhere, other}


def test_each_wait_is_an_arrow_between_two_spans(anywhere: str) -> None:
    """From within the span that is waited for to the begin of the one that waits."""
    with trace() as found:
        NAMED["cholesky"]().sync()
    (run,) = found.runs
    starts = {e["id"]: e for e in found.events() if e["ph"] == "s"}
    ends = {e["id"]: e for e in found.events() if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == sum(len(piece.waits) for piece in run.measured.pieces) > 0
    for number, start in starts.items():
        source = [e for e in spans(found.events()) if e["tid"] == start["tid"]]
        assert any(e["ts"] <= start["ts"] <= e["ts"] + e["dur"] for e in source)
        assert any(e["ts"] == ends[number]["ts"] for e in spans(found.events()))


def test_the_timeline_is_written_however_the_block_ends(tmp_path: Path) -> None:
    """As JSON, with what had run by then."""
    path = tmp_path / "trace.json"

    def run_and_fail() -> None:
        with trace(path):
            branches().sync()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_fail()
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert len(spans(whole["traceEvents"])) == 16


def test_a_plan_that_is_used_again_is_measured_only_within_the_block(anywhere: str) -> None:
    """Before, within and after it the same plan runs; one of them is measured, and its script stays as it was."""
    op = branches()
    op.sync()
    with trace() as found:
        op.sync()
    op.sync()
    assert len(found.runs) == 1
    with trace() as again:
        op.sync()
        op.sync()
    assert len(again.runs) == 2


def test_predictions_are_by_the_cost_model_that_is_given() -> None:
    """As `explain` makes them."""
    with trace(costs=CostModel(launch=0.5, bandwidth=1e30)) as found:
        zeros((4,)).sync()
    assert found.runs[0].predicted.makespan == pytest.approx(0.5)


def test_a_cost_model_learns_from_a_trace(anywhere: str) -> None:
    """Every launch with its kernel and bytes; what is then predicted for that kernel is what was measured, with the
    cost of a launch."""
    op = branches()
    with trace() as found:
        op.sync()
    times = found.kernel_times()
    assert [(name, nbytes) for name, nbytes, _ in times] == [("axpy", 32)] * 4
    learnt = CostModel().learn(times)
    with trace(costs=learnt) as again:
        op.sync()
    launches = [piece for piece in again.runs[0].predicted.pieces if piece.kind == "Launch"]
    mean = sum(seconds for _, _, seconds in times) / 4
    assert [piece.seconds for piece in launches] == pytest.approx([mean + learnt.launch] * 4)


# ---- whose runs are measured


def test_without_a_trace_nothing_is_recorded(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock is read and no event with timing is made: recordings do not come into it."""
    monkeypatch.setattr(recording, "Recording", None)
    branches().sync()
    if anywhere.startswith("cuda"):
        assert not driver().streams._timing_events  # noqa: SLF001  # no public call shows it


def test_only_the_tasks_of_the_block_are_measured() -> None:
    """Those that it starts are; one that runs beside it is not."""

    async def compute() -> None:
        await branches(1)

    async def beside(go: trio.Event, done: trio.Event) -> None:
        await go.wait()
        await compute()
        done.set()

    async def main() -> Trace:
        go, done = trio.Event(), trio.Event()
        async with trio.open_nursery() as outer:
            outer.start_soon(beside, go, done)
            with trace() as found:
                async with trio.open_nursery() as inner:
                    inner.start_soon(compute)
                    inner.start_soon(compute)
                go.set()
                await done.wait()
        return found

    assert len(trio.run(main).runs) == 2


def test_a_run_that_outlasts_the_block_is_left_out_and_counted() -> None:
    """Its task goes on, and what it runs afterwards is nobody's."""
    started, go = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        started.set()
        go.wait(30)
        return x

    async def twice() -> None:
        await value(1).host_map(slow)
        await value(1).host_map(slow)

    async def main() -> Trace:
        async with trio.open_nursery() as nursery:
            with trace() as found:
                nursery.start_soon(twice)
                await trio.to_thread.run_sync(started.wait, 30)
            go.set()
        return found

    found = trio.run(main)
    assert (len(found.runs), found.unfinished) == (0, 1)
    assert "1 runs had not ended" in str(found)


def test_of_two_blocks_the_inner_one_measures() -> None:
    """And after it the outer one again."""
    with trace() as outer:
        with trace() as inner:
            zeros((4,)).sync()
        ones((4,)).sync()
        ones((4,)).sync()
    assert (len(inner.runs), len(outer.runs)) == (1, 2)


def test_what_fails_or_is_skipped_is_no_span(anywhere: str) -> None:
    """Nor is what depends on it; the rest is there."""

    def fail(x: Any) -> Any:
        raise ValueError

    with trace() as found, pytest.raises(ValueError):  # noqa: PT011  # raised by the test itself
        zip_ops(value(1).host_map(fail).host_map(str), ones((4,)).to_host()).sync()
    (run,) = found.runs
    assert run.skipped == 2
    assert [e["args"]["op"] for e in spans(found.events()) if e["cat"] != "HostCall"] == ["Fill", "CopyDtoH"]


def test_a_trace_keeps_nothing_of_the_users_alive(anywhere: str) -> None:
    """When a run is over, its memory and its functions go, though the trace goes on."""

    class Function:
        def __call__(self, x: int) -> int:
            return x

    gone = threading.Event()
    gc.collect()
    before = current_device().memory_used()
    with trace():
        function = Function()
        weakref.finalize(function, gone.set)
        zip_ops(value(1).host_map(function), ones((64,))).sync()
        del function
        gc.collect()
        assert gone.is_set()
        assert current_device().memory_used() == before


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
    assert "the plans allow 25%" in str(raised.value)
    assert "Fill at" in str(raised.value)
    assert "test_timeline.py:" in str(raised.value)


def test_the_summary_compares_what_was_planned_with_what_came(anywhere: str) -> None:
    """A line for each run: predicted, what the plan allows by the measured times, measured; each with its overlap."""
    with trace() as found:
        branches().sync()
        ones((4,)).sync()
    lines = str(found).splitlines()
    assert lines[0].startswith("Trace: 2 runs, 17 instructions; ")
    assert "predicted" in lines[1]
    assert "plan allows" in lines[1]
    assert "measured" in lines[1]
    assert len(lines) == 4
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
    """Also of one plan, whose script each needs for itself."""
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
