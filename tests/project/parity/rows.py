"""A row of the parity table, the kernels of the originals' examples, and ops that the rows share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    Tile,
    f32,
    kernel,
)

Check: TypeAlias = Callable[[], None]


@final
@dataclass(frozen=True)
class Row:
    """One construct: of which document, as it stands there, as it is here, and what shows it."""

    source: str
    theirs: str
    ours: str
    check: Check


@final
class Table:
    """The rows of one module, in the order in which they are added."""

    def __init__(self) -> None:
        self.rows: Final[list[Row]] = []

    def row(self, source: str, theirs: str, ours: str) -> Callable[[Check], Check]:
        """Add a row that the decorated function checks."""

        def add(check: Check) -> Check:
            self.rows.append(Row(source, theirs, ours, check))
            return check

        return add


OPS, MODES, COMBINE, SCHEDULE, RUN, GRAPHS, TUTORIAL, BUFFERS = (
    "Device operations",
    "Kernel input modes",
    "Combinators",
    "Scheduling",
    "Running",
    "CUDA graphs",
    "The async tutorial",
    "Asynchronous buffers and streams (async-cuda-core)",
)


@kernel(
    cuda="""__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += np.float32(a) * x[y.at]


@kernel(
    cuda="""__global__ void add(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {
    for (auto i : z) z[i] = x[i] + y[i];
}"""
)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None: ...


@add.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


SHAPE, TILE = (16, 16), (4, 4)


def numbers(op: DeviceOp[Any, Any, Any]) -> NDArray[Any]:
    """The contents of what an op yields."""
    result: NDArray[Any] = op.to_host().sync()
    return result


def summed(out: Any, x: Any, y: Any) -> DeviceOp[Any, Any, Any]:
    return add(out, x, y)
