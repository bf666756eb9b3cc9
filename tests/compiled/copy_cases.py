"""Copies of arrays from the host, and of tensors to it, by `sync()`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import dagpu
from dagpu import from_host, use_device
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, WARM, Case, N, World, case, told


def up(array: Any) -> Any:
    return from_host(array).sync()


def down(tensor: Any) -> Any:
    return tensor.borrow().to_host().sync()


def often() -> Any:
    """Copy often enough for direct calls, and return a tensor."""
    for number in range(2 * WARM):
        x = up(np.full(N, number, np.float32))
        down(x)
    return x


@case(serves=20)
def copies(w: World) -> Any:
    often()
    for number in range(10):
        array = np.full(N, number + 0.5, np.uint8).astype(np.float32).view(np.uint8)[: 4 * N].view(np.float32)
        x = up(array)
        to, source, nbytes, first = w.driver.copied()
        there: Any = storage_of(x).memory
        w.note(to == there.address, source == array.ctypes.data, nbytes, first, told(x))
        y = down(x)
        to, source, nbytes, _ = w.driver.copied()
        w.note(to == y.ctypes.data, source == there.address, nbytes, y.shape, str(y.dtype))
    return float(y.sum())


@case(serves=2)
def arrays_that_are_left_to_python(w: World) -> Any:
    x = often()
    square = np.ones((N, 2), np.float32)
    for array in (square[:, 0], square.T, square[:0], np.ones(N, np.float64), np.ones(N, np.float32)):
        w.note(told(up(array)))
    resized = np.ones(N, np.float32)
    op = from_host(resized)
    op.sync()
    resized.resize((N // 2,), refcheck=False)
    w.note(told(op.sync()))
    w.driver.calls.null_lose(0)
    with use_device("cuda:1"):
        w.note(told(up(np.ones(N, np.float32))))
    return down(x).shape


@case()
def a_copy_without_room(w: World) -> Any:
    often()
    gpu = w.device.gpu
    before, gpu.room = gpu.room, 0
    try:
        return [up(np.ones(N, np.float32)) for _ in range(10)]
    finally:
        gpu.room = before
        w.note(told(up(np.ones(N, np.float32))))


def failing_copy(call: str, code: int, way: Callable[[Any], Any] = up) -> Case:
    """A copy in which the driver refuses a call."""

    def refused(w: World) -> Any:
        x = often()
        argument = np.ones(N, np.float32) if way is up else x
        w.calls.null_fail(call.encode(), code, 0)
        try:
            return way(argument)
        finally:
            with suppress(dagpu.DagpuError):
                w.note(told(way(argument).shape))
            w.note(w.device.lost is None)

    return refused


for _code in (1, 2, 700):
    CASES[f"a copy from the host is refused with {_code}"] = failing_copy("cuMemcpyHtoDAsync", _code), 0
    CASES[f"a copy to the host is refused with {_code}"] = failing_copy("cuMemcpyDtoHAsync", _code, down), 0
CASES["the device is lost in a copy"] = failing_copy("cuStreamQuery", 719), 0
CASES["a copy waits long"] = failing_copy("none", 0), 0
