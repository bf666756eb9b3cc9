"""Graphs that the driver refuses, kernels that fail in them, and plans with memory of their own, on simulated GPUs."""

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DeviceError,
    DeviceLostError,
    In,
    KernelBoundsError,
    Out,
    Tile,
    device,
    dup,
    empty,
    f32,
    from_host,
    kernel,
    ones,
    trace,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import CaptureError, OutOfMemoryError
from dagpu.testing import HOST, GraphLaunch, Role
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.graph_trials import (
    block,
    bound,
    contents,
    driver_array,
    failed,
    graph_calls,
    launching,
    mixture,
    mixture_in_numpy,
    prepared,
    program_of,
    put,
    run,
    texts,
)
from tests.simulated.cuda import driver, installed
from tests.simulated.kernels import Violation
from tests.simulated.machine import Machine
from tests.simulated.runs import chain, fresh_machine, stray, wild  # noqa: F401  # fixtures


# ---- refused --------------------------------------------------------------------------------------------------------
def test_a_driver_that_instantiates_none_is_asked_once(machine: Machine) -> None:
    """All runs go through streams, and the plan says why."""
    program, inputs = program_of(chain(3, 1).to_host())
    plan = prepared(program)
    machine.gpus[0].fail("cuGraphInstantiate", 801)
    for _ in range(3):
        assert (run(plan, inputs)[0] == 4).all()
    assert graph_calls(machine)[:2] == (1, 0)
    assert plan.graphs.refused is not None
    assert "cuGraphInstantiate failed" in plan.graphs.refused
    assert "801" in plan.graphs.refused


@pytest.mark.parametrize("call", ["cuGraphAddKernelNode", "cuGraphInstantiate"])
def test_too_little_memory_for_a_graph_is_no_reason_to_do_without_for_ever(machine: Machine, call: str) -> None:
    """The run goes through streams; the next tries again."""
    program, inputs = program_of(chain(3, 1).to_host())
    plan = prepared(program)
    machine.gpus[0].fail(call, 2)
    for _ in range(2):
        assert (run(plan, inputs)[0] == 4).all()
    assert graph_calls(machine)[1] == 1
    assert plan.graphs.refused is None


def test_a_failing_launch_names_the_graph(machine: Machine) -> None:
    """Nothing of it happens; the next run has another graph."""
    program, inputs = program_of(chain(3, 1).to_host())
    plan = prepared(program)
    run(plan, inputs)
    machine.gpus[0].fail("cuGraphLaunch", 1)
    with pytest.raises(
        DeviceError, match=r"CUDA graph of \d+ instructions.*simulated/runs.py:\d+.*cuGraphLaunch failed"
    ):
        run(plan, inputs)
    assert (run(plan, inputs)[0] == 4).all()
    assert graph_calls(machine)[:2] == (2, 3)


def test_a_node_that_cannot_be_changed_is_named(machine: Machine) -> None:
    """By its kernel and its line. The graph, written in part, is not used again."""
    lent = ones((2, 2)).sync()
    program, inputs = program_of(
        scale(empty((2, 2)).partition((2, 2)), 2.0, lent.borrow()).first().unpartition().to_host()
    )
    (source,) = [n for n, held in inputs.items() if isinstance(held, MemoryBlock)]
    plan = prepared(program)
    run(plan, inputs)
    machine.gpus[0].fail("cuGraphExecKernelNodeSetParams", 1)
    other = {source: block(np.full((2, 2), 5, f32), machine)}
    with pytest.raises(DeviceError, match=r"kernel 'scale' at .*test_cuda_graph_failures.py:\d+.*NodeSetParams failed"):
        run(plan, other)
    assert (run(plan, other)[0] == 10).all()
    gc.collect()
    assert machine.gpus[0].graphs == 1


def test_a_lost_device_ends_the_run(machine: Machine) -> None:
    """A device that is lost ends the run with an error, also when a kernel of the graph has lost it."""
    program, inputs = program_of(wild(empty((4,)).partition((4,))))
    plan = prepared(program)
    (failure,) = failed(plan, bound(plan, inputs))
    assert isinstance(failure.error, DeviceLostError)
    with pytest.raises(DeviceLostError):
        plan.submit(bound(plan, inputs), graph=True)


CALLS = (
    "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode", "cuGraphInstantiate", "cuGraphLaunch",
    "cuGraphExecKernelNodeSetParams", "cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecDestroy", "cuGraphUpload", "cuEventRecord", "cuMemAlloc", "cuMemHostAlloc", "cuEventQuery",
    "cuStreamQuery", "cuStreamSynchronize",
)  # fmt: skip


@settings(max_examples=80)
@given(st.sampled_from(CALLS), st.integers(1, 4), st.sampled_from([1, 2, 700]), st.integers(0, 2**16), st.booleans())
def test_any_call_may_fail(call: str, nth: int, code: int, seed: int, ahead: bool) -> None:
    """The run ends, with an error of ours or none, and gives what it should if it gives anything; so does the next."""
    with installed(seed) as machine:
        program, inputs = program_of(mixture())
        (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
        plan, kept = prepared(program), list[Any]()
        machine.gpus[0].fail(call, code, nth)
        for number in range(4):
            array = np.full((2, 20), number, f32)
            try:
                if ahead and not number:
                    plan.graphs.prepare_first(plan.compiled, plan.command_lists.encoded)
                found = run(plan, {**inputs, source: array})
            except DeviceError:
                if driver().lost is not None or machine.gpus[0].lost:
                    return
            else:
                kept.append(found)  # so that the next run's results are elsewhere
                assert texts(found) == texts(mixture_in_numpy(array, 2.0))
        machine.gpus[0].heal()
        assert texts(run(plan, {**inputs, source: np.ones((2, 20), f32)}))[0] == np.full((2, 20), 2, f32).tobytes()


# ---- runs that end otherwise ----------------------------------------------------------------------------------------
def test_a_violation_is_reported(machine: Machine) -> None:
    """In every run, and only in the run that it is of. Only the first kernel of a chain is blamed."""
    program, inputs = program_of(stray(stray(empty((6, 4)).partition((2, 4)), 1).first(), 2))
    plan = prepared(program)
    for _ in range(2):
        (failure,) = failed(plan, bound(plan, inputs))
        assert isinstance(failure.error, KernelBoundsError)
        assert "accessed at (9, 2)" in str(failure.error)
    fine, inputs = program_of(stray(empty((6, 4)).partition((2, 4)), 7))
    plan = prepared(fine)
    assert not failed(plan, bound(plan, inputs))
    assert graph_calls(machine)[1] == 3


def test_a_cancelled_run_is_drained(machine: Machine) -> None:
    """It counts as done when the graph is, and the graph is used again then."""
    program, inputs = program_of(chain(3, 1))
    plan = prepared(program)
    with machine.hold():
        started = plan.submit(bound(plan, inputs), graph=True)
        started.cancel()
        assert not started.done()
        assert driver().memory.used > 0
    assert started.wait()
    assert not started.failures()
    assert driver().memory.used == 0
    run(plan, inputs)
    assert graph_calls(machine)[:2] == (1, 2)


def test_a_measured_run_is_no_graph(machine: Machine) -> None:
    """A measured run goes through streams, because each instruction is measured by itself."""
    program, inputs = program_of(chain(3, 1).to_host())
    plan = prepared(program)
    with trace():
        assert (run(plan, inputs)[0] == 4).all()
    assert graph_calls(machine)[1] == 0


@pytest.mark.parametrize("captured", [False, True])
def test_a_run_behind_a_full_stream_is_submitted_by_another_thread(
    captured: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph, captured or not, on a full stream of the user's is not launched by the caller, whom that may block."""
    from dagpu.backends.cuda.resources import streams

    monkeypatch.setattr(streams, "MARKS", 1)
    monkeypatch.setattr(streams, "MARK_EVERY", 1)
    monkeypatch.setattr(streams, "SPREAD", 1)
    program, inputs = program_of(chain(3, 1).on(device("cuda:0").stream()))
    plan = prepared(program)
    own: Any = plan.graphs.own
    if captured:
        plan, inputs = launching(plan.freeze(bound(plan, inputs))), {0: block(np.zeros(1), machine)}
    with machine.hold():
        first, second = (plan.submit(bound(plan, inputs), graph=not captured) for _ in range(2))
        assert first.cancellable is False
        assert second.cancellable is True
        assert graph_calls(machine)[1] == 1
    for started in (first, second):
        assert started.wait()
        assert not started.failures()
    with driver().gpu.current():
        own.stream.drain()


# ---- plans with memory of their own ---------------------------------------------------------------------------------
def test_a_frozen_plan_works_on_the_same_memory_each_time(machine: Machine) -> None:
    """It takes what is in its inputs and in the arrays of the host when it is launched, and rewrites its outputs."""
    lent = ones((2, 2)).sync()
    array = np.zeros((2, 2), f32)
    op = zip_ops(from_host(array), chain(2, 3)).then(
        lambda p: add(
            empty((2, 2)).partition((2, 2)),
            p[0],
            axpy(p[1].partition((2, 2)), 1.0, lent.borrow()).first().unpartition(),
        )
    )
    program, inputs = program_of(
        op.first().unpartition().then(lambda t: zip_ops(t.borrow().to_host(), dup(t.borrow())))
    )
    plan = prepared(program)
    bindings = bound(plan, inputs)
    frozen = plan.freeze(bindings)
    outputs = [bindings[n] for n, b in enumerate(program.buffers) if b.role is Role.OUTPUT]
    (result,) = [each for each in outputs if isinstance(each, np.ndarray)]
    memory = [each for each in outputs if isinstance(each, MemoryBlock)]
    (source,) = [held for held in inputs.values() if isinstance(held, MemoryBlock)]
    outer = launching(frozen)
    token = block(np.zeros(1), machine)
    del plan, bindings, frozen, outputs
    for number in range(3):
        array[...] = number
        put(np.full((2, 2), 2 * number, f32), source, machine)
        run(outer, {0: token}, graph=False)
        assert (result == 5 + 3 * number).all()
        assert result.tobytes() in [contents(each, machine) for each in memory]
    assert graph_calls(machine)[:2] == (1, 3)


def test_a_frozen_plan_keeps_what_it_refers_to(machine: Machine) -> None:
    """Until the last run that launches it is over; then its memory and its graph are given back."""
    program, inputs = program_of(chain(3, 1))
    plan = prepared(program)
    outer = launching(plan.freeze(bound(plan, inputs)), times=2)
    del plan
    token = block(np.zeros(1), machine)
    gc.collect()
    with machine.hold():
        started = outer.submit(bound(outer, {0: token}))
        del outer
        gc.collect()
    assert started.wait()
    assert not started.failures()
    del started, token
    gc.collect()
    assert driver().memory.used == 0


def test_violations_in_a_frozen_plan_are_reported(machine: Machine) -> None:
    """By the run that launches it, and by no other."""
    array = np.zeros(1, f32)
    program, inputs = program_of(trip(empty((4,)).partition((4,)), from_host(array)))
    plan = prepared(program)
    outer = launching(plan.freeze(bound(plan, inputs)))
    token = block(np.zeros(1), machine)
    for wrong in (0, 1, 1, 0):
        array[0] = wrong
        failures = failed(outer, bound(outer, {0: token}))
        assert len(failures) == wrong
        for failure in failures:
            assert isinstance(failure.error, KernelBoundsError)
            assert isinstance(failure.instruction, GraphLaunch)


@kernel(cuda="__global__ void trip(Tile<float, 1> y, View<const float, 1> x) {}", checked=True)
def trip(y: Out[f32], x: In[f32]) -> None:
    """Reaches out of bounds if x[0] is not 0."""


@trip.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    if x[0]:
        raise Violation(0, (7,), (4,))


def test_large_arrays_of_a_frozen_plan_are_staged_by_a_thread(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever submits the launch is not held up."""
    from dagpu.backends.cuda import instruction_selection

    monkeypatch.setattr(instruction_selection, "PROMPT_IN", 64)
    array = np.arange(100, dtype=f32)
    program, inputs = program_of(from_host(array).to_host())
    plan = prepared(program)
    bindings = bound(plan, inputs)
    outer = launching(plan.freeze(bindings))
    assert outer.compiled.blocking
    array[...] = 7
    run(outer, {0: block(np.zeros(1), machine)})
    assert all((each == 7).all() for n, each in enumerate(bindings) if isinstance(each, np.ndarray))


def test_what_cannot_be_frozen_says_why(machine: Machine) -> None:
    """With the user's line, and what to do."""
    plan = prepared(program_of(chain(2).to_host().host_map(np.sum))[0])
    with pytest.raises(
        CaptureError, match=r"HostCall at .*test_cuda_graph_failures.py:\d+ cannot .* Take the host_map out"
    ):
        plan.freeze(bound(plan, {}))
    plan = prepared(program_of(chain(2).to_host())[0])
    (out,) = [n for n, b in enumerate(plan.compiled.plan.buffers) if b.role is Role.OUTPUT and b.device == HOST]
    with pytest.raises(CaptureError, match=r"to_host at .*: its result is in ordinary memory"):
        plan.freeze(bound(plan, {out: np.zeros((2, 2), f32)}))
    array: NDArray[f32] = driver_array((2, 2))
    plan.freeze(bound(plan, {out: array}))
    with pytest.raises(OutOfMemoryError):
        prepared(program_of(zeros((1 << 20, 1 << 12)))[0]).freeze(bound(plan, {}))


def test_a_launch_that_fails_is_of_its_run_alone(machine: Machine) -> None:
    """The frozen plan is launched again by the next."""
    program, inputs = program_of(chain(3, 1))
    plan = prepared(program)
    outer = launching(plan.freeze(bound(plan, inputs)))
    token = block(np.zeros(1), machine)
    machine.gpus[0].fail("cuGraphLaunch", 1)
    with pytest.raises(DeviceError, match=r"GraphLaunch at .*cuGraphLaunch failed"):
        run(outer, {0: token})
    run(outer, {0: token})
