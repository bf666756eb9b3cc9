"""Kernels for ops over sources. Each gives the same bits on every device and in every order."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Lazy, Out, Tile, empty, f32, kernel, ones

N: Final = 8
TILE: Final = (4,)
Op = DeviceOp[Any, Any, Any]


@kernel(
    cuda="__global__ void blend(Tile<float, 1> y, View<const float, 1> a, View<const float, 1> b, float c) {"
    " for (auto i : y) y[i] = a[i] * 0.5f + b[i] + c; }"
)
def blend(y: Out[f32], a: In[f32], b: In[f32], c: Lazy[float]) -> None: ...


@blend.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32], c: float) -> None:
    y[...] = a[y.at] * f32(0.5) + b[y.at] + f32(c)


@kernel(
    cuda="__global__ void gather(Tile<float, 1> y, View<const float, 1> a) { for (auto i : y) y[i] += a[i] * 0.25f; }"
)
def gather(y: Out[f32], a: In[f32]) -> None: ...


@gather.host
def _(y: Tile[f32], a: NDArray[f32]) -> None:
    y[...] += a[y.at] * f32(0.25)


@kernel(
    cuda="__global__ void flip(Tile<float, 1> y, View<const float, 1> a) { for (auto i : y) y[i] = 1.0f - a[i]; }",
    in_place=True,
)
def flip(y: Out[f32], a: In[f32]) -> None: ...


@flip.host
def _(y: Tile[f32], a: NDArray[f32]) -> None:
    y[...] = f32(1) - a[y.at]


def blended(a: Any, b: Any, c: Any) -> Op:
    """A new tensor `a / 2 + b + c`."""
    return blend(empty((N,)).partition(TILE), a, b, c).first().unpartition()


def flipped(a: Any) -> Op:
    """A new tensor `1 - a`, which may lie where `a` was."""
    return flip(empty((N,)).partition(TILE), a).first().unpartition()


def gathered(*inputs: Any) -> Op:
    """A new tensor `1 + sum(inputs) / 4`, written once for each input: later versions of one buffer."""
    out: Op = ones((N,)).partition(TILE)
    for each in inputs:
        out = gather(out, each).first()
    return out.unpartition()


def array(*numbers: float) -> NDArray[np.float32]:
    """An array of N elements that repeats these numbers."""
    return np.resize(np.array(numbers, np.float32), N)
