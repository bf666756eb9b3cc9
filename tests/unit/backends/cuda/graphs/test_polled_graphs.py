"""Runs that are one graph and are polled by their own stream: refused calls, lost devices, other threads."""

import linecache
import os
import sys
from contextlib import suppress
from inspect import isfunction
from types import FrameType
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import BorrowError, CudaGraph, DeviceError, DeviceLostError, MovedError, ones, pipeline, zeros
from dagpu.backends.cuda.executable import Executable
from dagpu.backends.cuda.graphs import instances
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.replay import starts
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.testing import Run
from tests.programs.arithmetic import axpy
from tests.programs.graph_trials import bound, prepared, program_of
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.raising import ActingAt, RaisingAt, lines_to_try
from tests.simulated.runs import events_in_use, fresh_machine  # noqa: F401  # a fixture

S: Final = (2, 2)
MANY: Final = 300
"""More runs than Python calls functions inside of each other, over the number of calls that end a lost run."""


def in_place(machine: Machine) -> tuple[Executable, dict[int, Any]]:
    """A plan whose inputs are all of its memory, and its inputs."""
    program, inputs = program_of(axpy(zeros(S).sync().partition(S), 1.0, ones(S).share().sync()))
    return prepared(program), inputs


def submitted(plan: Executable, inputs: dict[int, Any], spin: float = 0.0) -> Run:
    return plan.submit(bound(plan, inputs), spin, graph=True)


def finished(plan: Executable, inputs: dict[int, Any]) -> None:
    run = submitted(plan, inputs)
    run.done()
    while not run.done():
        pass
    assert not run.failures()


def executables_of(f: Any) -> list[Executable]:
    """The prepared plans of a pipeline."""
    return [each.prepared for found, _ in f.plans._plans.values() for each in found]  # noqa: SLF001  # no other way


def graphs_of(f: Any) -> list[GraphInstances]:
    """The graphs of each plan of a pipeline."""
    return [each.graphs for each in executables_of(f)]


def test_a_run_that_gets_no_stream_returns_its_graph(machine: Machine) -> None:
    """The driver refuses another stream: the next runs have the graph again."""
    plan, inputs = in_place(machine)
    finished(plan, inputs)
    with machine.hold():
        other = submitted(plan, inputs)  # it has the only idle stream
        second = submitted(plan, inputs)
        for _ in range(instances.INSTANCES + 1):
            machine.gpus[0].fail("cuStreamCreate", 1)
            with pytest.raises(DeviceError, match="cuStreamCreate failed"):
                plan.submit(bound(plan, inputs), graph=True)
    assert other.wait()
    assert second.wait()
    assert plan.graphs.instances == len(plan.graphs.idle)


def test_a_device_that_is_lost_when_a_stream_is_opened_is_lost(machine: Machine) -> None:
    """The error marks the device as lost, as every other call does."""
    plan, inputs = in_place(machine)
    finished(plan, inputs)
    driver().streams.exclusive.clear()  # as if other runs used them
    machine.gpus[0].fail("cuStreamCreate", 700)
    with pytest.raises(DeviceLostError, match="cuStreamCreate failed"):
        plan.submit(bound(plan, inputs), graph=True)
    assert driver().lost is not None
    with pytest.raises(DeviceLostError, match="cannot be used any more by this process"):
        plan.submit(bound(plan, inputs), graph=True)


def test_hundreds_of_polled_runs_are_lost_with_their_device(machine: Machine) -> None:
    """Each of them ends with the error, however many there are."""
    plans = [in_place(machine) for _ in range(MANY)]
    for plan, inputs in plans:
        finished(plan, inputs)
    with machine.hold():
        runs = [submitted(plan, inputs) for plan, inputs in plans]
        assert len(driver().live) == MANY
        machine.gpus[0].lose(700)
        assert runs[0].done()
    for run in runs:
        assert run.done()
        (failure,) = run.failures()
        assert isinstance(failure.error, DeviceLostError)
    assert not driver().live


def test_a_run_whose_end_is_interrupted_is_over(machine: Machine) -> None:
    """A thread that waits for it later does not wait for ever, at whatever line the interrupt comes, and no graph is in
    the pool twice."""
    plan, inputs = in_place(machine)
    hit = 0
    for code, line in lines_to_try(CudaRun._end_polled):  # noqa: SLF001  # no other way
        if linecache.getline(code.co_filename, line).strip() == "self.finished = True":
            continue  # the end itself
        finished(plan, inputs)
        run = submitted(plan, inputs)
        with RaisingAt(code, line) as raising, suppress(TimeoutError):
            while not run.done():
                pass
        hit += raising.raised
        assert run.wait()
        assert run.done()
        assert len(set(map(id, plan.graphs.idle))) == len(plan.graphs.idle)
    assert hit > 5


def test_a_task_that_sleeps_while_another_thread_ends_the_run_leaves_nothing(machine: Machine) -> None:
    """At whatever line of the look, and of the end, the event for that task is recorded: the run is over, and its
    graph, stream and event are in the pools once."""
    plan, inputs = in_place(machine)
    finished(plan, inputs)
    streams = driver().streams
    slept = 0
    for function in (CudaRun._look, CudaRun._end_polled):  # noqa: SLF001  # no other way
        for code, line in lines_to_try(function):
            run = submitted(plan, inputs)
            descriptors: list[int | None] = []

            def sleep(run: Run = run, descriptors: list[int | None] = descriptors) -> None:
                if not descriptors:
                    descriptors.append(None)
                    descriptors[0] = run.readable()

            with ActingAt(code, line, sleep):
                while not run.done():
                    pass
            assert run.wait()
            assert not run.failures()
            for descriptor in filter(None, descriptors):
                os.close(descriptor)
                slept += 1
            for pool in (plan.graphs.idle, streams.exclusive, streams._events):  # noqa: SLF001  # it counts what a backend keeps
                assert len(set(map(id, pool))) == len(pool), line
            assert events_in_use(driver()) == 0
            assert not driver().live
    assert slept > 5


def test_a_thread_that_ends_a_run_while_a_task_begins_to_sleep_leaves_nothing(machine: Machine) -> None:
    """At whatever line of the record of the event: no live run is left, and no event is in use."""
    plan, inputs = in_place(machine)
    finished(plan, inputs)
    for function in (CudaRun._record_end, CudaRun._become_live):  # noqa: SLF001  # no other way
        for code, line in lines_to_try(function):
            run = submitted(plan, inputs)

            def look(run: Run = run) -> None:
                for _ in range(100):
                    run.done()

            with ActingAt(code, line, look):
                descriptor = run.readable()
            assert run.wait()
            if descriptor is not None:
                os.close(descriptor)
            assert not driver().live, line
            assert events_in_use(driver()) == 0, line
            assert len(set(driver().streams.exclusive)) == len(driver().streams.exclusive), line


def test_a_device_that_another_thread_loses_while_a_run_begins_to_sleep_ends_the_run() -> None:
    """At whatever line of the launch's follow-up, and of the record of the event, another run notices the loss."""
    for function in (CudaRun.poll_stream, CudaRun._record_end, CudaRun._become_live):  # noqa: SLF001  # no other way
        for code, line in lines_to_try(function):
            with installed(5, gpus=1) as machine:
                plan, inputs = in_place(machine)
                finished(plan, inputs)
                with machine.hold():
                    other = submitted(plan, inputs)

                def lose(machine: Machine = machine, other: Run = other) -> None:
                    machine.gpus[0].lose(700)
                    other.done()

                with machine.hold(), ActingAt(code, line, lose):
                    run = submitted(plan, inputs)
                    descriptor = run.readable()
                lose()
                assert run.done(), line
                (failure,) = run.failures()
                assert isinstance(failure.error, DeviceLostError)
                assert not driver().live
                if descriptor is not None:
                    os.close(descriptor)


def test_a_thread_that_takes_the_idle_graph_first_does_no_harm(machine: Machine) -> None:
    """Another thread takes the idle graph while one compares the idle graphs, at whatever line: that one has another
    graph."""
    plan, inputs = in_place(machine)
    finished(plan, inputs)
    graphs, encoded = plan.graphs, plan.command_lists.encoded
    code = type(graphs).borrow.__code__
    for line in sorted({line for _, _, line in code.co_lines() if line is not None}):
        taken: list[GraphExec] = []

        def take(frame: FrameType, event: str, _: object, line: int = line, taken: list[GraphExec] = taken) -> Any:
            if frame.f_code is code and event == "line" and frame.f_lineno == line:
                taken += filter(None, [graphs.borrow_idle()])
            return take if frame.f_code is code else None

        sys.settrace(take)
        try:
            found = graphs.borrow(plan.compiled, encoded, [1, 2])
        finally:
            sys.settrace(None)
        assert found is not None
        assert found not in taken
        for each in (found, *taken):
            graphs.give_back(each)
        assert len(set(graphs.idle)) == len(graphs.idle) == graphs.instances


@pytest.mark.parametrize("launch", ["launch_idle_graph", "launch_idle_graph with results", "launch_captured"])
def test_an_exception_at_any_line_of_a_launch_gives_nothing_back_twice(
    launch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's signal handler raises at whatever line: once the run is over, no graph, stream or event is in a pool
    twice, and the next run works."""
    monkeypatch.setenv("DAGPU_SPIN_US", "1000000")
    with installed(5):
        axpy.compile()
        _raise_at_each_line(launch)


def axpy_pipeline(allocates: bool) -> Any:
    """A pipeline of one launch in the memory that it is given, or in memory that each run allocates."""
    return pipeline(graph_from=1)(
        lambda x, a, y: axpy((zeros(S) if allocates else x).partition(S), a, y).first().unpartition()
    )


def _raise_at_each_line(launch: str) -> None:
    given, hit = ones(S).share().sync(), 0
    allocates = launch.endswith("results")
    function: Any = starts.launch_captured
    if launch != "launch_captured":
        first = axpy_pipeline(allocates)
        for _ in range(3):  # the third is the first launch of an idle graph
            first(zeros(S).sync(), 1.0, given).sync()
        (executable,) = executables_of(first)
        # The function of Python that its plans call; the compiled reader has none of the simulated driver.
        function = next(each for each in executable._again[True] if isfunction(each))  # noqa: SLF001
    for code, line in lines_to_try(function):
        f = axpy_pipeline(allocates)
        graph = axpy(zeros(S).sync().partition(S), 1.0, given).graph()

        def op(f: Any = f, graph: Any = graph) -> Any:
            return graph.launch() if launch == "launch_captured" else f(zeros(S).sync(), 1.0, given)

        for _ in range(3):
            op().sync()
        with RaisingAt(code, line) as raising, suppress(TimeoutError):
            op().sync()
        hit += raising.raised
        for each in list(driver().live):
            each.wait()
        streams = driver().streams
        for pool in (streams.exclusive, streams._events):  # noqa: SLF001  # it counts what a backend keeps
            assert len(set(map(id, pool))) == len(pool), line
        for graphs in graphs_of(f):
            assert len(set(graphs.idle)) == len(graphs.idle), line
        op().sync()
    assert hit > 10


FAULTS: Final = (
    "cuGraphLaunch", "cuStreamQuery", "cuEventRecord", "cuEventQuery", "cuEventCreate", "cuStreamCreate",
    "cuGraphExecKernelNodeSetParams", "cuMemAlloc", "cuLaunchHostFunc",
)  # fmt: skip


async def _awaited(op: Any) -> Any:
    return await op


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FAULTS), st.integers(1, 5), st.sampled_from([1, 2, 700]), st.integers(0, 2**16), st.booleans(),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_any_call_of_a_polled_run_may_fail(
    call: str, nth: int, code: int, seed: int, captured: bool, pressed: bool, allocates: bool, sleeps: bool
) -> None:
    """A pipeline's call or a graph's launch gives the right result or an error of ours; nothing stays locked, and
    graphs, streams and events come back. So it does while the pools are empty, and for a task that sleeps."""

    def run(op: Any) -> Any:
        return trio.run(_awaited, op) if sleeps else op.sync()

    with pytest.MonkeyPatch.context() as patched, installed(seed) as machine:
        if sleeps:
            patched.setenv("DAGPU_SPIN_US", "0")
        axpy.compile()
        f = axpy_pipeline(allocates)
        given, held = ones(S).share().sync(), zeros(S).sync()
        graph: CudaGraph[Any] = axpy(held.borrow_mut().partition(S), 1.0, given).graph()
        for a in (1.0, 2.0):
            f(zeros(S).sync(), a, given).sync()
            graph.launch().sync()
        streams = driver().streams
        if pressed:
            machine.gpus[0].events -= len(streams._events)  # noqa: SLF001  # as if other runs used them
            streams._events.clear()  # noqa: SLF001
            streams.exclusive.clear()
        before = events_in_use(driver())
        machine.gpus[0].fail(call, code, nth)
        for number in range(4):
            try:
                if captured:
                    run(graph.launch())
                else:
                    result = run(f(zeros(S).sync(), float(number), given))
                    assert (result.borrow().to_host().sync() == number).all()
            except (BorrowError, MovedError):
                raise
            except DeviceError:
                if driver().lost is not None or machine.gpus[0].lost:
                    assert driver().lost is not None
                    with pytest.raises(DeviceLostError):
                        graph.launch().sync()
                    return
        machine.gpus[0].heal()
        graph.launch().sync()
        assert (f(zeros(S).sync(), 3.0, given).sync().borrow().to_host().sync() == 3).all()
        for each in graphs_of(f):
            assert each.instances == len(each.idle)
        assert events_in_use(driver()) == before
        assert not driver().live
