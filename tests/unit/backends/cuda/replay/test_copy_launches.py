"""Runs of one copy from or to the host, for a thread that waits: what they take, refused calls, interrupts."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    DeviceError,
    DeviceLostError,
    OutOfMemoryError,
    StreamInterpreter,
    Tensor,
    f32,
    from_host,
    use_interpreter,
)
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.replay import lone_copies
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.testing import plans
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine, SimulatedStream
from tests.simulated.raising import RaisingAt, lines_to_try
from tests.simulated.runs import events_in_use, fresh_machine  # noqa: F401  # a fixture

ARRAY: Final = np.arange(12, dtype=f32).reshape(3, 4)


def up(array: Any) -> Tensor[f32]:
    tensor: Tensor[f32] = from_host(array).sync()
    return tensor


def down(tensor: Tensor[f32]) -> Any:
    return tensor.borrow().to_host().sync()


def up_and_down(array: Any) -> Any:
    return down(up(array))


@pytest.mark.parametrize("needs_context", [False, True])
def test_a_copy_takes_a_stream_and_returns_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, needs_context: bool
) -> None:
    """It takes no command list and no event, and the array may be changed once it is over."""

    def borrow(self: CommandListPool) -> Any:
        raise AssertionError("a command list is taken")

    machine.gpus[0].needs_context = needs_context
    streams = driver().streams
    up_and_down(ARRAY)  # a traced run goes on while its plan is stored
    monkeypatch.setattr(CommandListPool, "borrow", borrow)
    for turn in range(4):
        before = len(streams.exclusive), machine.gpus[0].events
        array = ARRAY + turn
        tensor = up(array)
        array[...] = -1
        assert (down(tensor) == ARRAY + turn).all()
        assert turn == 0 or before == (len(streams.exclusive), machine.gpus[0].events)
    assert not driver().live
    assert not machine.problems


def test_what_is_not_prompt_is_left_to_others(machine: Machine) -> None:
    """An array with strides, an empty one, a copy whose caller does not wait, one that is measured."""
    for array in (ARRAY[:, ::2], ARRAY[:0], ARRAY.T):
        for _ in range(2):
            assert (up_and_down(array) == array).all()
    with use_interpreter(StreamInterpreter()):
        assert (up_and_down(ARRAY) == ARRAY).all()


def test_an_array_that_was_reshaped_in_place_is_refused(machine: Machine) -> None:
    """The copy has the size that was traced, so the array is not read beyond its end."""
    array = ARRAY.copy()
    op = from_host(array)
    for _ in range(9):
        assert (op.sync().to_host().sync() == ARRAY).all()
    array.resize((2, 2), refcheck=False)
    assert op.sync().to_host().sync().tolist() == [[0, 1], [2, 3]]


def test_a_copy_without_room_raises(machine: Machine) -> None:
    """The device has no memory for the tensor: the error names the place, and later copies work."""
    up(ARRAY)
    machine.gpus[0].fail("cuMemAlloc", 2, 1)
    machine.gpus[0].fail("cuMemAlloc", 2, 2)
    machine.gpus[0].fail("cuMemAlloc", 2, 3)
    machine.gpus[0].fail("cuMemAlloc", 2, 4)
    big = np.ones(1 << 18, f32)
    with pytest.raises(OutOfMemoryError, match="test_copy_launches"):
        up(big)
    machine.gpus[0].heal()
    assert (up_and_down(big) == big).all()


def test_a_result_beyond_the_page_locked_room_is_in_ordinary_memory(machine: Machine) -> None:
    """The driver copies to that, too."""
    tensor = up(ARRAY)
    down(tensor)
    driver().pinned_room = 0
    driver().pinned.trim()
    found = down(tensor)
    assert (found == ARRAY).all()
    with driver().gpu.current():
        assert not driver().gpu.is_pinned(found)


def launches(make: Callable[[], Any]) -> Any:
    """The function that runs the copy of this op, after some runs of it."""
    kept: list[Any] = []
    real = lone_copies.copy_launch

    def copy_launch(*args: Any) -> Any:
        kept.append(real(*args))
        return kept[-1]

    plans.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagpu.backends.cuda.executable.copy_launch", copy_launch)
        for _ in range(3):
            make()
    return kept[0]


@pytest.mark.parametrize("way", [up, down])
def test_an_exception_at_any_line_gives_nothing_back_twice(way: Callable[[Any], Any]) -> None:
    """A user's signal handler raises at whatever line: once the run is over, no stream and no event is in a pool twice,
    and the next run works."""
    hit = 0
    with installed(5):
        tensor = up(ARRAY)
        given = ARRAY if way is up else tensor
        for code, line in [*lines_to_try(launches(lambda: way(given)))]:
            with RaisingAt(code, line) as raising, suppress(TimeoutError, ExceptionGroup):
                way(given)
            hit += raising.raised
            for each in list(driver().live):
                each.wait()
            streams = driver().streams
            for idle in (streams.exclusive, streams._events):  # noqa: SLF001  # what a backend keeps
                assert len(set(map(id, idle))) == len(idle), line
            assert (up_and_down(ARRAY) == ARRAY).all()
    assert hit > 10


def test_a_wait_that_is_interrupted_ends_with_the_copy(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt is raised once the device has read the array."""
    locked = up_and_down(ARRAY)
    for _ in range(3):
        up(locked)

    def wait_for_work(work: Any, seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedStream, "query", lambda stream: False)
        patch.setattr(lone_copies, "wait_for_work", wait_for_work)
        real = CudaRun.wait

        def wait(run: CudaRun, timeout: float | None = None) -> bool:
            patch.undo()
            return real(run, timeout)

        patch.setattr(CudaRun, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            up(locked)
    assert all(not stream.queue for stream in machine.streams)
    assert not driver().live


FAULTS: Final = (
    "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemAlloc", "cuMemHostAlloc", "cuStreamQuery", "cuStreamSynchronize",
    "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuEventQuery",
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FAULTS), st.integers(1, 4), st.sampled_from([1, 2, 700]), st.integers(0, 2**16), st.booleans())
def test_any_call_of_a_copy_may_fail(call: str, nth: int, code: int, seed: int, pressed: bool) -> None:
    """A copy gives the right result or an error of ours; streams and events come back. So it does while the pools are
    empty."""
    with installed(seed) as machine:
        for _ in range(2):
            up_and_down(ARRAY)
        streams = driver().streams
        if pressed:
            machine.gpus[0].events -= len(streams._events)  # noqa: SLF001  # as if other runs used them
            streams._events.clear()  # noqa: SLF001
            streams.exclusive.clear()
        before = events_in_use(driver())
        machine.gpus[0].fail(call, code, nth)
        for number in range(4):
            try:
                assert (up_and_down(ARRAY + number) == ARRAY + number).all()
            except (DagpuError, ExceptionGroup) as error:
                errors = error.exceptions if isinstance(error, ExceptionGroup) else [error]
                assert all(isinstance(each, DeviceError) for each in errors)
                if driver().lost is not None or machine.gpus[0].lost:
                    assert driver().lost is not None
                    with pytest.raises(DeviceLostError):
                        up(ARRAY)
                    return
        machine.gpus[0].heal()
        assert (up_and_down(ARRAY) == ARRAY).all()
        assert events_in_use(driver()) == before
        assert not driver().live
