"""Ops that the tests of the trace share."""

import sys
from typing import Any

from dagpu import (
    DeviceOp,
    Lazy,
    Out,
    Tile,
    f32,
    kernel,
)  # fmt: skip

Op = DeviceOp[Any, Any, Any]


@kernel(cuda="__global__ void bump(Tile<float, 1> y, float a) { for (auto i : y) y[i] += a; }")
def bump(y: Out[f32], a: Lazy[float]) -> None:
    """y += a."""


@bump.host
def _(y: Tile[f32], a: float) -> None:
    y[...] += f32(a)


def bumped(t: Op, a: Any = 1.0) -> Op:
    """`t + a`, in place."""
    return bump(t.partition((2,)), a).first().unpartition()


def line() -> int:
    """The line of whoever calls this."""
    return sys._getframe(1).f_lineno


def stop(_: object) -> Any:
    raise ValueError("stop")
