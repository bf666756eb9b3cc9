"""Ops whose kernels leave a mark each time that they run."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    Tile,
    f32,
    kernel,
    zeros,
)  # fmt: skip
from tests.support.marks import DEVICE_MARK, MARKS

Op = DeviceOp[Any, Any, Any]


MARK = (
    DEVICE_MARK
    + """
__global__ void mark(Tile<float, 1> out, int number, View<const float, 1> x, View<const float, 1> y, long long marks) {
    leave_mark(marks, number);
    for (auto i : out) out[i] = x[i] + y[i] + float(number);
}
"""
)


@kernel(cuda=MARK)
def mark(out: Out[f32], number: int, x: In[f32], y: In[f32], marks: int) -> None:
    """out = x + y + number, and a mark."""


@mark.host
def _(out: Tile[f32], number: int, x: NDArray[f32], y: NDArray[f32], _: int) -> None:
    MARKS.leave(number)
    out[...] = x + y + f32(number)


@pytest.fixture(autouse=True)
def no_marks() -> None:
    MARKS.clear()


def marked(number: int, x: Op | None = None, y: Op | None = None) -> Op:
    """A tensor of two elements; its kernel leaves `number` in `MARKS`."""
    one, other = (zeros((2,)) if op is None else op for op in (x, y))
    return mark(zeros((2,)).partition((2,)), number, one, other, MARKS.address).first().unpartition()


class Failing:
    """A function for `host_map` that raises in its first `times` calls."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"call {self.calls}")
        return x


PATIENCE = 30.0
"""Seconds after which a thread that never gets anywhere fails its test."""


async def gather(jobs: list[Callable[[], Any]], meanwhile: Callable[[], Any]) -> list[Any]:
    """Results of jobs that run at the same time, errors too. The first begins; once it waits, the others begin; once
    all of them wait, `meanwhile` is called. (trio starts tasks in random order.)"""
    results: list[Any] = [None] * len(jobs)

    async def one(index: int) -> None:
        try:
            results[index] = await jobs[index]()
        except Exception as error:
            results[index] = error

    async with trio.open_nursery() as nursery:
        for index in range(len(jobs)):
            nursery.start_soon(one, index)
            if index == 0:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        meanwhile()
    return results


def awaiting(op: Op) -> Callable[[], Any]:
    async def run() -> Any:
        return await op

    return run
