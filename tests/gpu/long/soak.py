"""Very many calls of a pipeline, each with other inputs, and very many awaits: nothing of theirs is left.

    python -m tests.gpu.long.soak [CALLS]

Each call takes a new array, a device tensor of its own and a number, and its result is held against NumPy. After the
first tenth and at the end, the process's memory, its descriptors, the memory in use on the device and what the device
has free are read; from the one to the other they may not grow. Two of them may, by 8 MiB: the process's memory, since
its allocator's pages are not all of one age, and what is taken from the device, where more awaits than ever before are
under way at once.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import DeviceOp, Tensor, current_device, f32, from_host, full, pipeline
from tests.gpu.support.gpu_kernels import axpy

ELEMENTS: Final = 1 << 12
SLACK: Final = 8 << 20
WINDOW: Final = 16
"""Awaits at the same time."""


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of the process: bytes and descriptors."""

    resident: int
    descriptors: int
    on_device: int
    taken_from_device: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        device = current_device()
        taken = 0
        if device.kind == "cuda":
            free, total = device.memory_info()
            taken = total - free
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path("/proc/self/fd").iterdir())), device.memory_used(), taken
        )


def held_flat(what: str, calls: int, run: Callable[[int], object]) -> None:
    """Run so many calls. What is held after all of them is no more than after a tenth."""
    start = time.monotonic()
    run(calls // 10)
    early = Held.now()
    run(calls - calls // 10)
    late, took = Held.now(), time.monotonic() - start
    print(f"{calls:,} {what} in {took:.1f} s; after a tenth {early}; at the end {late}", flush=True)
    assert late.resident <= early.resident + SLACK
    assert late.descriptors <= early.descriptors
    assert late.on_device <= early.on_device
    assert late.taken_from_device <= early.taken_from_device + SLACK


@pipeline
def axpy_of(x: NDArray[f32], y: Tensor[f32], a: float) -> DeviceOp[NDArray[f32]]:
    """y + a * x."""
    return axpy(y.partition((256,)), a, from_host(x)).first().unpartition().to_host()


@pipeline
def sum_of(y: Tensor[f32], a: float) -> DeviceOp[NDArray[f32]]:
    """y + a. A number that is filled in is part of the plan: each other one is planned anew."""
    return axpy(y.partition((256,)), 1.0, full((ELEMENTS,), a)).first().unpartition().to_host()


def inputs(number: int) -> tuple[NDArray[f32], float, float, float]:
    """An array of x, what y is filled with, a, and what each element of y + a * x is."""
    x, y, a = number % 100, number % 7, number % 5
    return np.full(ELEMENTS, x, f32), y, a, y + a * x


def call(calls: int) -> None:
    """One after the other, from this thread."""
    for number in range(calls):
        x, y, a, wanted = inputs(number)
        assert (axpy_of(x, full((ELEMENTS,), y).sync(), a).sync() == wanted).all(), number


def plan(calls: int) -> None:
    """Each planned anew."""
    for number in range(calls):
        y, a = number % 7, number % 997
        assert (sum_of(full((ELEMENTS,), y).sync(), a).sync() == y + a).all(), number


async def wait(awaits: int) -> None:
    """Some at a time, each in a task of its own."""

    async def one(number: int) -> None:
        x, y, a, wanted = inputs(number)
        assert (await axpy_of(x, await full((ELEMENTS,), y), a) == wanted).all(), number

    for start in range(0, awaits, WINDOW):
        async with trio.open_nursery() as nursery:
            for number in range(start, min(start + WINDOW, awaits)):
                nursery.start_soon(one, number)


def main(calls: int) -> None:
    """Calls, a tenth of them planned anew, then awaits: half of them sleep, half look for their end."""
    os.environ.setdefault("DAGPU_DEVICE", "cuda:0")
    held_flat("calls of a pipeline", calls, call)
    held_flat("calls that are planned anew", calls // 10, plan)
    for spinning, what in (("0", "awaits that sleep"), ("1000", "awaits that spin")):
        os.environ["DAGPU_SPIN_US"] = spinning
        held_flat(what, calls // 2, lambda awaits: trio.run(wait, awaits))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
