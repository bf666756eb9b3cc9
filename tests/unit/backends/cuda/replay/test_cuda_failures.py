"""Runs on simulated GPUs that find too little memory, or that fail: what is said, and what goes on. Nothing sleeps."""

import gc
import os
import threading
from typing import Any, cast

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from dagpu import (
    CompileError,
    DeviceError,
    DeviceLostError,
    KernelBoundsError,
    Out,
    OutOfMemoryError,
    device,
    dup,
    empty,
    f32,
    from_host,
    full,
    kernel,
    ones,
    plan_of,
    rand,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda.commands import buffers
from dagpu.backends.cuda.replay import submit
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.resources import streams
from dagpu.backends.cuda.resources.cuda_device import Watchdog, identity
from dagpu.testing import backend
from tests.programs.arithmetic import add, axpy, scale
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import PATIENCE, Machine, SimulatedEvent
from tests.simulated.runs import awaited, chain, descriptors, fresh_machine, sleepy_tasks, stray, wild  # noqa: F401  # fixtures


# ---- memory ---------------------------------------------------------------------------------------------------------
def test_too_little_memory_is_said_before_anything_is_submitted() -> None:
    """The message has sizes and the place; the op still owns its handles, and runs once there is room."""
    with installed(memory=1 << 20) as machine:
        held = zeros((400, 400)).sync()
        lent = ones((300, 300)).sync()
        op = axpy(lent.partition((300, 300)), 2.0, rand((300, 300))).first().unpartition()
        launches = machine.gpus[0].calls["cuLaunchKernelEx"]
        with pytest.raises(OutOfMemoryError, match=r"no room for 360,000 bytes.*Fill at .*test_cuda_failures.py:\d+"):
            op.sync()
        assert machine.gpus[0].calls["cuLaunchKernelEx"] == launches
        del held
        op.sync()


def test_memory_of_runs_under_way_is_waited_for() -> None:
    """A run that finds no room waits for the others to give theirs back."""
    with installed(memory=2 << 20) as machine, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGPU_SPIN_US", "0")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    op = scale(empty((400, 400)).partition((400, 400)), 2.0, ones((400, 400)))
                    nursery.start_soon(awaited, op.first().unpartition().to_host())

        trio.run(main)
        assert machine.gpus[0].calls["cuCtxSynchronize"] > 0


def test_memory_of_a_run_that_is_just_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread, as the watch's, has seen that a run is over and is giving back what it held: there is room as
    soon as that is done."""
    with installed(memory=4 << 20):
        add.compile()
        op = add(empty((400, 400)).partition((400, 400)), ones((400, 400)), ones((400, 400))).first().unpartition()
        plan = plan_of(op)
        prepared = backend("cuda").prepare(plan)
        ending, go_on = threading.Event(), threading.Event()
        look_at_reports, synchronize = CudaRun._read_reports, CudaRun._synchronize  # noqa: SLF001  # the test stops a thread there

        def slowly(run: CudaRun) -> None:
            if threading.current_thread() is watch:
                ending.set()
                assert go_on.wait(PATIENCE)
            look_at_reports(run)

        def waits(run: CudaRun) -> None:
            go_on.set()
            synchronize(run)

        monkeypatch.setattr(CudaRun, "_read_reports", slowly)
        monkeypatch.setattr(CudaRun, "_synchronize", waits)
        first = prepared.submit([None] * len(plan.buffers))
        watch = threading.Thread(target=first.wait)
        watch.start()
        try:
            assert ending.wait(PATIENCE)
            second = prepared.submit([None] * len(plan.buffers))
        finally:
            go_on.set()
            watch.join()
        assert second.wait()


def test_ten_thousand_bytes_stay_ten_thousand_bytes(machine: Machine) -> None:
    """Runs of ops that are traced anew each time take nothing that they do not give back."""

    def once() -> None:
        zip_ops(*[chain(2, n).then(lambda t: dup(t)) for n in range(3)]).then(
            lambda p: add(p[0].partition((2, 2)), p[1], p[2])
        ).sync()

    for _ in range(3):
        once()
    gc.collect()
    gpu = machine.gpus[0]
    before = gpu.used, gpu.used_pinned, gpu.events, len(machine.streams)
    for _ in range(20):
        once()
    gc.collect()
    assert (gpu.used, gpu.used_pinned, gpu.events, len(machine.streams)) == before


# ---- failures -------------------------------------------------------------------------------------------------------
def test_a_refused_launch_leaves_the_other_branch(machine: Machine) -> None:
    """The error names the kernel and the user's line; the other branch is done."""
    written = zeros((2, 2)).sync()
    effect = axpy(written.borrow_mut().partition((2, 2)), 3.0, ones((2, 2)))
    other = scale(empty((2, 2)).partition((2, 2)), 2.0, ones((2, 2))).first().unpartition()
    machine.gpus[0].fail("cuLaunchKernelEx", 1)
    with pytest.raises(
        DeviceError, match=r"kernel 'scale' at .*test_cuda_failures.py:\d+: cuLaunchKernelEx failed: invalid"
    ):
        zip_ops(other.to_host(), effect).sync()
    assert (written.to_host().sync() == 3).all()


CALLS = (
    "cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuEventSynchronize", "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD32Async", "cuMemAlloc", "cuMemHostAlloc", "cuEventCreate",
    "cuStreamCreate", "cuStreamQuery", "cuLaunchHostFunc",
)  # fmt: skip


def mixture(host_map: bool) -> Any:
    """An op in which about every call is made."""
    first = from_host(np.arange(4, dtype=f32).reshape(2, 2)).then(
        lambda t: scale(empty((2, 2)).partition((1, 2)), 2.0, t)
    )
    second = chain(3, 1).then(lambda t: zip_ops(dup(t.borrow()), rand((3,)), zeros((5,))).first())
    op = zip_ops(first.first().unpartition(), second).then(lambda p: add(empty((2, 2)).partition((2, 2)), p[0], p[1]))
    host = op.first().unpartition().to_host()
    return host.host_map(lambda a: a + 1) if host_map else host


@settings(max_examples=120)
@given(
    st.sampled_from(CALLS), st.integers(1, 6), st.sampled_from([1, 700]), st.booleans(), st.booleans(), st.booleans(),
    st.integers(0, 2**16),
)  # fmt: skip
def test_any_call_may_fail(
    call: str, nth: int, code: int, lasting: bool, host_map: bool, under_trio: bool, seed: int
) -> None:
    """Whichever call fails: the run ends, with an error of ours or none; no context is left; the next run is refused or
    gives what it should."""
    with installed(seed) as machine, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGPU_SPIN_US", "0" if lasting else "20")
        gpu = machine.gpus[0]
        wanted = mixture(host_map).sync().tobytes() if nth % 2 else None
        gpu.fail(call, code, nth)
        try:
            array = trio.run(awaited, mixture(host_map)) if under_trio else mixture(host_map).sync()
        except* DeviceError:
            pass
        else:
            assert wanted in (None, array.tobytes())
        gpu.heal()
        if gpu.lost:
            with pytest.raises(DeviceLostError):
                mixture(host_map).sync()
        elif driver().lost is None:
            again = mixture(host_map).sync()
            assert wanted in (None, again.tobytes())


def test_a_lost_device_fails_every_run(machine: Machine, sleepy: None) -> None:
    """Those that sleep are woken, with the reason; later ones are refused at once, and so is everything else."""
    errors: list[BaseException] = []
    stream = device("cuda:0").stream()  # all on one, so that none is over before the one that goes wrong

    async def compute(op: Any) -> None:
        with pytest.raises(DeviceLostError) as raised:
            await op.on(stream)
        errors.append(raised.value)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                nursery.start_soon(compute, wild(empty((4,)).partition((4,))))
                await wait_all_tasks_blocked()
                for _ in range(3):
                    nursery.start_soon(compute, chain(20).to_host())
                await wait_all_tasks_blocked()

    trio.run(main)
    assert len({id(error) for error in errors}) == 4
    assert all("cuda:0 was lost while a run was under way" in str(error) for error in errors)
    for use in (lambda: zeros((3,)).sync(), lambda: device("cuda:0").stream(), lambda: device("cuda:0").memory_info()):
        with pytest.raises(DeviceLostError, match="cannot be used any more by this process"):
            use()


def test_a_device_lost_when_a_stream_is_asked_whether_it_is_full(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says so, and ends; so does the one that fills the stream."""
    monkeypatch.setattr(streams, "MARKS", 1)
    monkeypatch.setattr(streams, "MARK_EVERY", 1)
    stream, errors = device("cuda:0").stream(), list[BaseException]()

    async def compute() -> None:
        with pytest.raises(DeviceLostError) as raised:
            await chain(3).on(stream)
        errors.append(raised.value)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                nursery.start_soon(compute)
                await wait_all_tasks_blocked()
                machine.gpus[0].fail("cuEventQuery", 700)
                nursery.start_soon(compute)
                await wait_all_tasks_blocked()

    trio.run(main)
    assert len({id(error) for error in errors}) == 2
    assert not driver().live


def test_another_device_outlives_a_lost_one(machine: Machine) -> None:
    """Work on the other device goes on after a device is lost."""
    op = wild(empty((4,)).partition((4,))).on("cuda:1")
    with pytest.raises(DeviceLostError, match="cuda:1 was lost"):
        op.sync()
    assert driver(0).lost is None
    assert full((2,), 3).to_host().sync().sum() == 6


def test_a_run_on_two_devices_names_the_one_that_was_lost(machine: Machine) -> None:
    """Though the other one has its first lane."""
    op = zip_ops(chain(2).on("cuda:0"), wild(empty((4,)).partition((4,))).on("cuda:1"))
    with pytest.raises(DeviceLostError, match="cuda:1 was lost"):
        op.sync()
    assert driver(0).lost is None


@pytest.mark.parametrize("number", [0, 1])
def test_a_refused_query_counts_against_its_own_device(number: int) -> None:
    """A run on two devices cannot end without the query that one of them refuses, though its context still works. That
    device counts as lost, and the other one goes on."""
    with installed() as machine:
        op = zip_ops(chain(2).on("cuda:0"), chain(2).on("cuda:1"))
        op.sync()
        machine.gpus[number].fail("cuEventQuery", 1)
        with pytest.raises(DeviceLostError, match=f"cuda:{number} was lost .* cuEventQuery failed"):
            op.sync()
        assert driver(1 - number).lost is None
        assert (chain(2).on(f"cuda:{1 - number}").to_host().sync() == 2).all()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_pipe_of_a_working_driver_is_closed_once(sleepy: None, devices: int) -> None:
    """The watchdog wakes the task of a run whose query a device has refused. The driver, whose context still works,
    closes the pipe later, under a number that no other file has meanwhile."""
    with installed() as machine:
        op = zip_ops(*[chain(2).on(f"cuda:{number}") for number in range(devices)])
        op.sync()
        before = descriptors()

        async def compute() -> None:
            with pytest.raises(DeviceLostError, match="cuEventQuery failed"):
                await op

        async def main() -> None:
            with machine.hold():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(compute)
                    await wait_all_tasks_blocked()
                    machine.gpus[devices - 1].fail("cuEventQuery", 1)
                    await trio.to_thread.run_sync(driver().watchdog.poll_all)

        trio.run(main)
        with machine.changed:
            while machine.step():
                pass
        assert descriptors() == before


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5, 6])
def test_an_interrupt_loses_no_device(machine: Machine, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Ctrl-C while events are recorded ends the run, and no more than the run."""
    real, count = SimulatedEvent.record, 0

    def record(self: SimulatedEvent, stream: Any, /) -> None:
        nonlocal count
        count += 1
        if count == moment:
            raise KeyboardInterrupt
        real(self, stream)

    monkeypatch.setattr(SimulatedEvent, "record", record)
    with pytest.raises(KeyboardInterrupt):
        zip_ops(*[chain(2, n) for n in range(4)]).then(lambda p: add(p[0].partition((2, 2)), p[1], p[2])).sync()
    assert driver().lost is None
    assert (chain(3).to_host().sync() == 3).all()


def test_what_does_not_compile_says_so(machine: Machine) -> None:
    """Before anything is submitted, blocking and in a task."""

    @kernel(cuda="#error no\n__global__ void broken(Tile<float, 1> y) {}")
    def broken(y: Out[f32]) -> None: ...

    with pytest.raises(CompileError):
        broken(empty((4,)).partition((4,))).sync()
    with pytest.raises(CompileError):
        trio.run(awaited, broken(empty((4,)).partition((4,))))
    with pytest.raises(CompileError):
        broken.compile()


# ---- bounds ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("under_trio", [False, True])
def test_a_violation_is_reported(machine: Machine, sleepy: None, under_trio: bool) -> None:
    """It names kernel, argument, index and shape; whoever sleeps gets it too. Only the first of a chain is blamed."""
    op = stray(stray(empty((6, 4)).partition((2, 4)), 1).first(), 2)
    with pytest.raises(KernelBoundsError, match=r"'stray'.*argument 'y' was accessed at \(9, 2\).*\(6, 4\)"):
        trio.run(awaited, op) if under_trio else op.sync()
    assert (stray(empty((6, 4)).partition((2, 4)), 7).first().unpartition().to_host().sync() == 1).all()


# ---- what cannot be begun, or ended ---------------------------------------------------------------------------------
def no_thread(_work: object) -> None:
    raise DeviceError("can't start new thread")


def test_a_run_whose_threads_cannot_be_started_is_over(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, nothing of the run is left, and later runs are as ever."""
    before = driver().memory_used()
    with monkeypatch.context() as patch:
        patch.setattr(submit, "enqueue", no_thread)
        with pytest.raises(DeviceError, match="can't start new thread"):
            zip_ops(ones((100,)), value(1).host_map(str)).sync()
    assert not driver().live
    assert driver().memory_used() == before
    assert full((2,), 3).to_host().sync().sum() == 6


def test_a_full_queue_without_a_thread_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that submits then waits itself, rather than lose the run."""
    monkeypatch.setattr(streams, "MARKS", 1)
    monkeypatch.setattr(submit, "enqueue", no_thread)
    assert chain(600).to_host().sync()[0, 0] == 600 % 64
    assert driver().lost is None


def test_an_error_at_the_end_of_a_run_is_raised_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error at the end of a run is raised once, and the run is done: no thread waits forever, and its resources are
    free.
    """

    def broken(_launches: object, _reports: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(buffers, "violations", broken)
    before = driver().memory_used()
    with pytest.raises(ZeroDivisionError):
        stray(empty((6, 4)).partition((2, 4)), 1).sync()
    gc.collect()
    assert not driver().live
    assert driver().memory_used() == before


class Waited:
    """The parts of a run that a watchdog needs."""

    devices = ()

    def done(self) -> bool:
        return False


def test_a_descriptor_that_was_closed_hides_no_other() -> None:
    """Its number may belong to another run's pipe by now: that one is still watched."""
    watch = Watchdog()
    read, write = os.pipe()
    mine, other = cast(CudaRun, Waited()), cast(CudaRun, Waited())
    try:
        pipe = identity(write)
        assert pipe is not None
        watch.add(mine, write, pipe)
        watch.add(other, write, (pipe[0], pipe[1] + 1))
        assert watch._sleepers[write].run() is mine  # noqa: SLF001  # no public call shows it
    finally:
        os.close(read)
        os.close(write)
