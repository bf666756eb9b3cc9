"""Fixtures and ops for tests of runs on simulated GPUs."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagpu import (
    Out,
    Tile,
    f32,
    full,
    kernel,
    ones,
)
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.testing import plans
from tests.programs.arithmetic import add, axpy, scale
from tests.simulated.cuda import driver, installed
from tests.simulated.kernels import Violation
from tests.simulated.machine import Machine


@pytest.fixture(name="machine")
def fresh_machine() -> Iterator[Machine]:
    """Simulate `cuda:0` and `cuda:1`. At the end, check that no resource of theirs is in use."""
    with installed(seed=11) as machine:
        for each in (add, axpy, scale, wild, stray):
            each.compile()  # a run that has to compile first is not submitted at once
        before = descriptors()
        yield machine
        if not any(gpu.lost for gpu in machine.gpus):
            assert_nothing_is_held()
        assert descriptors() <= before


def descriptors() -> int:
    """Return the number of open descriptors of this process, except for the pipe that wakes trio loops."""
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_nothing_is_held() -> None:
    """Check that no memory, stream, event or graph is in use on any device."""
    for number in range(2):
        driver(number).watchdog.poll_all()
    with (
        driver(0).watchdog.polling,
        driver(1).watchdog.polling,
    ):  # while one of their threads polls, it keeps a run alive
        plans.clear()
        gc.collect()
        for number in range(2):
            _assert_nothing_is_held_on(driver(number))


def _assert_nothing_is_held_on(found: CudaDevice) -> None:
    for run in list(found.live):
        run.done()
    with found.gpu.current():
        found.destroy_retired()
    assert found.memory.used == 0
    assert found.pinned.used == 0
    assert not found.live
    assert events_in_use(found) == 0
    gpu: Any = found.gpu
    assert gpu.graphs == 0
    assert gpu.timing_events == len(found.streams._timing_events)  # noqa: SLF001  # it counts what a backend keeps
    assert not any(stream.users for stream in found.streams._pool)  # noqa: SLF001  # it counts what a backend keeps


def events_in_use(found: CudaDevice) -> int:
    """Return the number of events that are neither in the pool nor marks of a stream."""
    pool = found.streams
    pool.collect()
    marks = sum(len(stream._marks) for stream in pool._pool)  # noqa: SLF001  # it counts what a backend keeps
    gpu: Any = found.gpu
    return int(gpu.events) - len(pool._events) - marks  # noqa: SLF001  # it counts what a backend keeps


@pytest.fixture(name="sleepy")
def sleepy_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling, so that tasks sleep until the driver closes a descriptor."""
    monkeypatch.setenv("DAGPU_SPIN_US", "0")


def chain(length: int, start: float = 0) -> Any:
    """Return an op of `length` launches, one after the other. Its result is start + length, modulo 64."""
    op: Any = full((2, 2), start)
    for _ in range(length):
        op = axpy(op.partition((2, 2)), 1.0, ones((2, 2))).first().unpartition()
    return op


async def awaited(op: Any) -> Any:
    return await op


@kernel(cuda="__global__ void wild(Tile<float, 1> y) { y.data()[1 << 30] = 0; }")
def wild(y: Out[f32]) -> None:
    """Accesses an address where no memory is."""


@wild.host
def _(y: Tile[f32]) -> None:
    raise Violation(0, (1 << 30,), (4,))


@kernel(cuda="__global__ void stray(Tile<float, 2> y, int tile) {}", checked=True)
def stray(y: Out[f32], tile: int) -> None:
    """Accesses memory out of bounds in one tile."""


@stray.host
def _(y: Tile[f32], tile: int) -> None:
    y[...] = 1
    if y.index == (tile, 0):
        raise Violation(0, (9, 2), (6, 4), 1)
