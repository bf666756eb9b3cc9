"""Runs that go command by command to an idle stream: their streams, refused calls, interrupts, arrays of the host."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DagpuError, DeviceError, DeviceLostError, from_host, ones, pipeline
from dagpu.backends.cuda.commands import transfers
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.replay import starts
from dagpu.testing import LAUNCH
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.raising import RaisingAt, lines_to_try
from tests.simulated.runs import events_in_use, fresh_machine  # noqa: F401  # a fixture

S: Final = (2, 2)
ARRAY: Final = np.arange(4, dtype=np.float32).reshape(S)


def lane_pipeline() -> Any:
    """A pipeline of one lane that is never a graph: an array of the host, two launches on it, and the result on the
    host."""
    return pipeline(graph_from=None)(
        lambda a, x, y: axpy(axpy(from_host(x).partition(S), a, y).first(), 1.0, y).first().unpartition().to_host()
    )


def expected(a: float) -> Any:
    """The result of a call of `lane_pipeline` with `ARRAY`."""
    return ARRAY + a + 1


def pools_of(f: Any) -> list[CommandListPool]:
    """The command lists of each plan of a pipeline."""
    return [each.prepared.command_lists for found, _ in f.plans._plans.values() for each in found]  # noqa: SLF001


def test_a_lane_has_a_stream_of_its_own_and_returns_it(machine: Machine) -> None:
    """A run for which a thread waits uses an idle stream that no lane uses, and nothing of it is left."""
    f, y = lane_pipeline(), ones(S).share().sync()
    for _ in range(3):
        f(2.0, ARRAY, y).sync()
    streams = driver().streams
    before = streams.exclusive.copy(), events_in_use(driver())
    assert (f(2.0, ARRAY, y).sync() == expected(2.0)).all()
    assert streams.exclusive == before[0]
    assert events_in_use(driver()) == before[1]
    assert not driver().live


@pytest.mark.parametrize("nbytes", [64, transfers.SMALL + 64, transfers.PROMPT_IN + 64])
@pytest.mark.parametrize("strided", [False, True])
def test_an_array_of_any_size_arrives_for_a_thread_that_waits(machine: Machine, nbytes: int, strided: bool) -> None:
    """The driver stages a contiguous array, dagpu all others; a change after the call changes no tensor."""
    data = np.arange(nbytes // 4, dtype=np.float32)
    array = data[::-1] if strided else data
    tensors = []
    for turn in range(4):
        data[0] = turn
        tensors.append((from_host(array).sync(), array.copy()))
    data[:] = -1
    for tensor, want in tensors:
        assert (tensor.to_host().sync() == want).all()


def test_an_exception_at_any_line_gives_nothing_back_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's signal handler raises at whatever line: once the run is over, no stream, event or command list is in a
    pool twice, and the next run works."""
    monkeypatch.setenv("DAGPU_SPIN_US", "1000000")
    hit = 0
    with installed(5):
        axpy.compile()
        for code, line in [*lines_to_try(starts.launch_lane)]:
            f, y = lane_pipeline(), ones(S).share().sync()
            for _ in range(3):
                f(2.0, ARRAY, y).sync()
            with RaisingAt(code, line) as raising, suppress(TimeoutError, ExceptionGroup):
                f(2.0, ARRAY, y).sync()
            hit += raising.raised
            for each in list(driver().live):
                each.wait()
            streams = driver().streams
            kept: list[Collection[Any]] = [pool._idle for pool in pools_of(f)]  # noqa: SLF001  # what a backend keeps
            kept += [streams.exclusive, streams._events]  # noqa: SLF001
            for idle in kept:
                assert len(set(map(id, idle))) == len(idle), line
            assert (f(3.0, ARRAY, y).sync() == expected(3.0)).all()
    assert hit > 20


FAULTS: Final = (
    LAUNCH, "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemAlloc", "cuMemHostAlloc", "cuStreamQuery",
    "cuStreamSynchronize", "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuEventQuery",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FAULTS), st.integers(1, 4), st.sampled_from([1, 2, 700]), st.integers(0, 2**16), st.booleans())
def test_any_call_of_a_lane_may_fail(call: str, nth: int, code: int, seed: int, pressed: bool) -> None:
    """A call gives the right result or an error of ours; streams, events and command lists come back. So it does while
    the pools are empty."""
    with installed(seed) as machine:
        axpy.compile()
        f, y = lane_pipeline(), ones(S).share().sync()
        for a in (1.0, 2.0):
            f(a, ARRAY, y).sync()
        streams = driver().streams
        if pressed:
            machine.gpus[0].events -= len(streams._events)  # noqa: SLF001  # as if other runs used them
            streams._events.clear()  # noqa: SLF001
            streams.exclusive.clear()
        before = events_in_use(driver())
        machine.gpus[0].fail(call, code, nth)
        for number in range(4):
            try:
                assert (f(float(number), ARRAY, y).sync() == expected(number)).all()
            except (DagpuError, ExceptionGroup) as error:
                errors = error.exceptions if isinstance(error, ExceptionGroup) else [error]
                assert all(isinstance(each, DeviceError) for each in errors)
                if driver().lost is not None or machine.gpus[0].lost:
                    assert driver().lost is not None
                    with pytest.raises(DeviceLostError):
                        f(1.0, ARRAY, y).sync()
                    return
        machine.gpus[0].heal()
        assert (f(3.0, ARRAY, y).sync() == expected(3.0)).all()
        assert events_in_use(driver()) == before
        assert not driver().live
        assert [len(pool._idle) for pool in pools_of(f)] == [1] * len(pools_of(f))  # noqa: SLF001
