"""First runs of kernels, in tasks and in threads, beside tasks that sleep on runs: a program of its own, for whoever
waits with the GIL held stops a whole process.

    python -m tests.gpu.long.stress [SECONDS]

Each kernel is compiled and loaded once, by the run that needs it first: loading waits for the device, which others keep
busy. On a GPU there is also what another library may do: a host function in Python, which takes the GIL on a thread of
the driver's, in a stream of ours. Every result is held against NumPy. A process that stands still ends with the stacks
of all its threads and status 1.
"""

import ctypes
import faulthandler
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import Device, In, Out, Tile, current_device, f32, from_host, full, i32, kernel, ones, zeros
from dagpu.testing import driver_of
from tests.gpu.support.gpu_kernels import add, spin

PATIENCE: Final = 60.0
"""Seconds without an end after which a process stands still."""
SLEEPERS, TASKS, THREADS, CALLERS = 8, 3, 3, 2
MS: Final = 1_000_000

_numbers = itertools.count(1)


def fresh() -> tuple[Any, int]:
    """A kernel that nobody has compiled before, on this machine or any other, and the number that it adds."""
    number = next(_numbers)
    salt = f"// {os.getpid()} {time.time_ns()}"

    @kernel(
        cuda=f"""{salt}
__global__ void plus(Tile<float, 1> y, View<const float, 1> x) {{ for (auto i : y) y[i] += x[i] + {number % 1000}; }}
"""
    )
    def plus(y: Out[f32], x: In[f32]) -> None:
        """y += x + number."""

    @plus.host
    def _(y: Tile[f32], x: NDArray[f32]) -> None:
        y[...] += x[y.at] + number % 1000

    return plus, number % 1000


def first_run(start: int) -> tuple[Any, float]:
    """An op whose kernel nobody has run, and what each element of its result is."""
    plus, number = fresh()
    op = plus(full((1024,), start).partition((256,)), from_host(np.full(1024, 2, f32))).first().unpartition()
    return op.to_host(), start + 2 + number


def checked(result: Any, wanted: float) -> None:
    assert (result == wanted).all(), (result, wanted)


class Stress:
    """The activities that repeat until the time is up, and the number of times that each was done."""

    def __init__(self, seconds: float, device: Device) -> None:
        self.end = time.monotonic() + seconds
        self.device = device
        self.done: dict[str, int] = {}
        self._lock = threading.Lock()

    def going_on(self, what: str) -> bool:
        """Return True if there is time for one more."""
        with self._lock:
            self.done[what] = self.done.get(what, 0) + 1
        return time.monotonic() < self.end

    async def sleep(self, number: int) -> None:
        """Sleeps on runs of some milliseconds."""
        while self.going_on("runs slept on"):
            nanoseconds = (1 + number % 4) * 5 * MS
            op = spin(zeros((8,), i32).partition((8,)), nanoseconds).first().unpartition().to_host()
            checked(await op, 1)

    async def compile(self, number: int) -> None:
        """First runs in a task."""
        while self.going_on("first runs in tasks"):
            op, wanted = first_run(number)
            checked(await op, wanted)

    def compile_on_a_thread(self, number: int) -> None:
        """First runs in a thread."""
        while self.going_on("first runs in threads"):
            op, wanted = first_run(number)
            checked(op.sync(), wanted)

    def call_python(self, number: int) -> None:
        """Host functions of Python, behind a kernel, in a stream that is also dagpu's."""
        stream = self.device.stream()
        called: list[int] = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
        gpu: Any = driver_of(self.device)
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        while self.going_on("host functions of Python"):
            op = add(full((256,), number).partition((256,)), ones((256,))).first().unpartition().to_host()
            with gpu.gpu.current():
                assert launch(ctypes.c_void_p(stream.handle), function, None) == 0
            checked(op.sync_on(stream), number + 1)
        with gpu.gpu.current():
            gpu.gpu.synchronize()
        assert called

    async def tick(self) -> None:
        """The loop goes on."""
        while self.going_on("turns of the loop"):  # noqa: ASYNC110  # there is nothing to wait for: the loop is watched
            await trio.sleep(1e-3)

    async def main(self) -> None:
        """All of it at once."""
        on_threads: list[Callable[[int], None]] = [self.compile_on_a_thread] * THREADS
        if self.device.kind == "cuda":
            on_threads += [self.call_python] * CALLERS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tick)
            for number in range(SLEEPERS):
                nursery.start_soon(self.sleep, number)
            for number in range(TASKS):
                nursery.start_soon(self.compile, number)
            for number, work in enumerate(on_threads):
                nursery.start_soon(trio.to_thread.run_sync, work, number)


def main(seconds: float) -> None:
    os.environ.setdefault("DAGPU_DEVICE", "cuda:0")
    os.environ["DAGPU_SPIN_US"] = "0"
    faulthandler.dump_traceback_later(seconds + PATIENCE, exit=True)
    stress = Stress(seconds, current_device())
    trio.run(stress.main)
    faulthandler.cancel_dump_traceback_later()
    print(", ".join(f"{count} {what}" for what, count in sorted(stress.done.items())))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
