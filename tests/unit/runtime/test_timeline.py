"""`dagpu.trace`: what it measures, on the host and on simulated GPUs, and that it costs nothing where it is not."""

import gc
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import CostModel, Trace, current_device, ones, plan_of, trace, value, zeros, zip_ops
from dagpu.backends.host import measuring
from tests.programs.named_dags import EXPECTED, NAMED
from tests.simulated.cuda import driver
from tests.simulated.runs import fresh_machine as fresh_machine
from tests.unit.runtime.traced_branches import anywhere as anywhere
from tests.unit.runtime.traced_branches import assert_streams_are_in_order, branches, spans

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
    """The timeline is written as JSON however the block ends, with the work done by then."""
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
    """Predictions use the given cost model, like those of `explain`."""
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
    device = again.runs[0].predicted.lanes[0].rpartition("/")[0]
    assert [piece.seconds for piece in launches] == pytest.approx([mean + learnt.machine(device).launch] * 4)


# ---- whose runs are measured


def test_without_a_trace_nothing_is_recorded(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock is read and no event with timing is made: recordings do not come into it."""
    monkeypatch.setattr(measuring, "MeasuredRun", None)
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
    assert "1 run had not ended" in str(found)


def test_of_two_blocks_the_inner_one_measures() -> None:
    """The inner of two nested `trace` blocks measures the runs within it; after it the outer one measures again."""
    with trace() as outer:
        with trace() as inner:
            zeros((4,)).sync()
        ones((4,)).sync()
        ones((4,)).sync()
    assert (len(inner.runs), len(outer.runs)) == (1, 2)


def test_what_fails_or_is_skipped_is_no_span(anywhere: str) -> None:
    """An instruction that fails has no span, nor have those that depend on it; the others have theirs."""

    def fail(x: Any) -> Any:
        raise ValueError

    with trace() as found, pytest.raises(ValueError):  # noqa: PT011  # raised by the test itself
        zip_ops(value(1).host_map(fail).host_map(str), ones((4,)).to_host()).sync()
    (run,) = found.runs
    assert run.skipped == 2
    assert [e["args"]["op"] for e in spans(found.events()) if e["cat"] != "HostCall"] == ["Fill", "CopyDtoH"]


def test_a_trace_keeps_nothing_of_the_users_alive(anywhere: str) -> None:
    """When a run is done, its memory and its functions are freed, even if the trace goes on."""

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
