"""Kernels and functions of the host that note each run, and fail when they are told to."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu import Around, DeviceOp, In, Lazy, Out, Tile, dup, empty, f32, kernel, ones

N: Final = 8
"""The elements of each tensor."""
STRIP: Final = 2
"""The elements of a tile of `soften`. Every other kernel has one tile."""

Op = DeviceOp[Any, Any, Any]


class PlannedError(Exception):
    """What a function raises that was told to fail."""


@final
class Runs:
    """The runs of all functions, by name. Functions run on several threads."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self.failing: str | None = None
        """The function whose next run fails."""
        self.on_failing: Callable[[], object] | None = None
        """What that run does instead."""

    def note(self, name: str) -> None:
        """Note a run. It fails if it was told to."""
        self._names.append(name)
        if self.failing == name:
            self.failing = None
            if self.on_failing is None:
                raise PlannedError(name)
            self.on_failing()

    def take(self) -> Counter[str]:
        """Return how often each function has run since the last call."""
        names, self._names = self._names, []
        self.failing = self.on_failing = None
        return Counter(names)


RUNS: Final = Runs()


def noted(name: str, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that notes its runs."""

    def call(given: Any) -> Any:
        RUNS.note(name)
        return f(given)

    return call


def name_of(number: int) -> str:
    """The name of the kernel of a step."""
    return f"kernel {number}"


@kernel(
    cuda="__global__ void halve(Tile<float, 1> y, int number, View<const float, 1> a) {"
    " for (auto i : y) y[i] = a[i] * 0.5f + 1.0f; }"
)
def halve(y: Out[f32], number: int, a: In[f32]) -> None: ...


@halve.host
def _(y: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    y[...] = a[y.at] * f32(0.5) + f32(1)


@kernel(
    cuda="__global__ void blend(Tile<float, 1> y, int number, View<const float, 1> a, View<const float, 1> b,"
    " float c) { for (auto i : y) y[i] = (a[i] + b[i]) * 0.5f + c; }"
)
def blend(y: Out[f32], number: int, a: In[f32], b: In[f32], c: Lazy[float]) -> None: ...


@blend.host
def _(y: Tile[f32], number: int, a: NDArray[f32], b: NDArray[f32], c: float) -> None:
    RUNS.note(name_of(number))
    y[...] = (a[y.at] + b[y.at]) * f32(0.5) + f32(c)


@kernel(
    cuda="__global__ void flip(Tile<float, 1> y, int number, View<const float, 1> a) {"
    " for (auto i : y) y[i] = 1.0f - a[i]; }",
    in_place=True,
)
def flip(y: Out[f32], number: int, a: In[f32]) -> None: ...


@flip.host
def _(y: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    y[...] = f32(1) - a[y.at]


@kernel(
    cuda="__global__ void sign(Tile<float, 1> y, int number, View<const float, 1> a) {"
    " for (auto i : y) y[i] = a[i] < 0.0f ? -1.0f : 1.0f; }"
)
def sign(y: Out[f32], number: int, a: In[f32]) -> None: ...


@sign.host
def _(y: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    y[...] = np.where(a[y.at] < 0, f32(-1), f32(1))


@kernel(
    cuda="__global__ void split(Tile<float, 1> p, Tile<float, 1> q, int number, View<const float, 1> a) {"
    " for (auto i : p) { p[i] = a[i] + 1.0f; q[i] = a[i] - 1.0f; } }"
)
def split(p: Out[f32], q: Out[f32], number: int, a: In[f32]) -> None: ...


@split.host
def _(p: Tile[f32], q: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    p[...] = a[p.at] + f32(1)
    q[...] = a[q.at] - f32(1)


@kernel(
    cuda="__global__ void three(Tile<float, 1> p, Tile<float, 1> q, Tile<float, 1> r, int number,"
    " View<const float, 1> a, View<const float, 1> b) {"
    " for (auto i : p) { p[i] = a[i]; q[i] = b[i]; r[i] = a[i] - b[i]; } }"
)
def three(p: Out[f32], q: Out[f32], r: Out[f32], number: int, a: In[f32], b: In[f32]) -> None: ...


@three.host
def _(p: Tile[f32], q: Tile[f32], r: Tile[f32], number: int, a: NDArray[f32], b: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    p[...] = a[p.at]
    q[...] = b[q.at]
    r[...] = a[r.at] - b[r.at]


@kernel(
    cuda="__global__ void add(Tile<float, 1> y, int number, View<const float, 1> a) {"
    " for (auto i : y) y[i] += a[i] * 0.25f; }"
)
def add(y: Out[f32], number: int, a: In[f32]) -> None: ...


@add.host
def _(y: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    y[...] += a[y.at] * f32(0.25)


@kernel(
    cuda="__global__ void soften(Tile<float, 1> y, int number, View<const float, 1> a) { for (auto i : y) {"
    " const int at = int(i[0]), last = min(at + 1, int(a.extent(0)) - 1); float most = a[i];"
    " for (int j = max(at - 1, 0); j <= last; ++j) most = max(most, a[j]); y[i] = most; } }",
    sees={"a": Around(1)},
)
def soften(y: Out[f32], number: int, a: In[f32]) -> None: ...


@soften.host
def _(y: Tile[f32], number: int, a: NDArray[f32]) -> None:
    RUNS.note(name_of(number))
    (own,) = y.at
    for at in range(own.start, own.stop):
        y[at - own.start] = a[max(at - 1, 0) : min(at + 2, a.shape[0])].max()


def new(tile: int = N, extent: int = N) -> Op:
    """Memory for an output."""
    return empty((extent,)).partition((tile,))


def first(op: Op) -> Op:
    """The first output of a launch, as a tensor."""
    return op.first().unpartition()


def constant() -> Op:
    """A tensor that a closure makes, of no source."""
    return ones((N,)).then(lambda t: dup(t.borrow()))
