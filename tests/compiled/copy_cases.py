"""Copies of arrays from the host, and of tensors to it, by `sync()`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import trio

import dagpu
from dagpu import dup, from_host, use_device
from dagpu.testing import driver_of, storage_of
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


# ---- copies within a device, and between two


def fresh(on: str = "cuda:0", n: int = N) -> Any:
    return dagpu.ones((n,)).on(on).sync().share()


def copier(to: str) -> Any:
    """A pipeline that copies a tensor to a device, warm."""
    copied = dagpu.pipeline(lambda t: dup(t).on(to))
    for _ in range(WARM):
        copied(fresh()).sync()
    return copied


@contextmanager
def held(w: World) -> Iterator[None]:
    """Within the `with` block, a run goes on until it is one of the live runs of its device: until it is followed."""

    def let_go() -> None:
        while not w.device.live:
            time.sleep(0)
        w.calls.null_release()

    w.calls.null_hold()
    thread = threading.Thread(target=let_go)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@case(serves=40)
def copies_between_places(w: World) -> Any:
    for to in ("cuda:0", "cuda:1"):
        copied, kept = copier(to), list[Any]()
        for number in range(24):
            x = fresh()
            if number == 12:
                w.calls.null_busy(2)
            with held(w) if number == 16 and to == "cuda:1" else nullcontext():
                y = copied(x).sync()
            target, source, nbytes, _ = w.driver.copied()
            block: Any = storage_of(y).memory
            origin: Any = storage_of(x).memory
            w.note(target == block.address, source == origin.address, nbytes, told(y))
            if number % 3 == 0:
                kept.append(y)
            del y
        w.note([told(each) for each in kept])
    w.is_steady = False  # each reader marks the end of a run over two devices in its way
    return len(w.device.live)


@case(serves=8)
def awaited_copies_between_places(w: World) -> Any:
    w.is_steady = False  # each reader marks the end of a run over two devices in its way

    ways = {to: (copier(to), [fresh() for _ in range(8)]) for to in ("cuda:0", "cuda:1")}

    async def main() -> None:
        for copied, given in ways.values():
            for number in range(6):
                x = given.pop()
                with held(w) if number == 3 else nullcontext():
                    w.note(told(await copied(x)))
            with trio.CancelScope() as scope:
                scope.cancel()
                await copied(given.pop())
            w.note(scope.cancelled_caught, told(await copied(given.pop())))

    trio.run(main)
    return len(w.device.live)


def failing_between(call: str, code: int, to: str) -> Case:
    """A copy in which the driver refuses a call."""

    def refused(w: World) -> Any:
        w.is_steady = to == "cuda:0"
        copied, x = copier(to), fresh()
        w.calls.null_fail(call.encode(), code, 0)
        try:
            return copied(x).sync()
        finally:
            with suppress(dagpu.DagpuError):
                w.note(told(copied(x).sync()))
            lock = storage_of(x).lock
            w.note(w.device.lost is None, lock.writer is None, lock.readers)

    return refused


for _to in ("cuda:0", "cuda:1"):
    for _code in (1, 2, 700):
        CASES[f"a copy to {_to} is refused with {_code}"] = failing_between("cuMemcpyDtoDAsync", _code, _to), 0
    CASES[f"a device is lost in a copy to {_to}"] = failing_between("cuStreamQuery", 719, _to), 0


@case()
def a_copy_between_places_without_room(w: World) -> Any:
    w.is_steady = False
    copied, x = copier("cuda:1"), fresh(n=1 << 16)
    driver: Any = driver_of(dagpu.device("cuda:1"))
    gpu = driver.gpu
    before, gpu.room = gpu.room, 0
    try:
        return copied(x).sync()
    finally:
        gpu.room = before
        w.note(told(copied(x).sync()))


@case()
def a_copy_in_a_stream_of_the_users(w: World) -> Any:
    """It stays in the order of the stream."""
    stream = dagpu.device("cuda:0").stream()
    copied = dagpu.pipeline(lambda t: dup(t))
    streams = set[int]()
    for _ in range(3 * WARM):
        copied(fresh()).sync_on(stream)
        streams.add(w.driver.copied()[3])
    return [len(streams), stream.handle in streams]
