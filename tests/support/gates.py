"""Gates, at which device work waits until a test opens them, and trio loops with a deadline."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, final

import pytest
import trio
from numpy.typing import NDArray

import dagpu
from dagpu import In, Out, Tile, f32, kernel, value, zeros, zip_ops
from dagpu.testing import Program

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which a test counts as hung."""


@final
class Gate:
    """Device work that blocks in the middle until the gate is opened."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()
        self.ended = 0

    def __call__(self, x: T) -> T:
        """Block until the gate is open, and return `x`. It is a function for `host_map`."""
        self.started.set()
        assert self.open.wait(PATIENCE)
        self.ended += 1
        return x

    async def reached(self) -> None:
        """Wait until the work has reached the gate."""
        assert await trio.to_thread.run_sync(self.started.wait, PATIENCE)


GATES: dict[int, Gate] = {}


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x."""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return gate number 0. It is opened at the end, so that no thread of a failed test remains."""
    GATES[0] = Gate()
    yield GATES[0]
    GATES[0].open.set()


def run(body: Callable[[], Any]) -> None:
    """Run `body` in a trio loop, and fail if it hangs."""

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            await body()

    trio.run(main)


def noting(kept: list[Any], result: T) -> Callable[[Any], T]:
    """Return a function that appends its argument to `kept` and returns `result`."""

    def note(x: Any) -> T:
        kept.append(x)
        return result

    return note


async def awaited(op: "dagpu.DeviceOp[T, Any, Any]") -> T:
    return await op


@final
class Noting:
    """A custom policy that puts every instruction in lane `key`, and counts its calls."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.asked = 0

    def place(self, program: Program) -> Sequence[Hashable]:
        self.asked += 1
        return [self.key] * len(program.instructions)


def reading(t: Any) -> Any:
    """Return an op that borrows and reads `t`, in a run that waits at gate 0."""
    read = add(zeros((4,)).partition((4,)), t.borrow()).first().unpartition()
    return zip_ops(read.to_host(), value(0).host_map(GATES[0])).first()


def boom(x: object) -> Any:
    raise KeyError(x)
