"""Kernels of two axes that declare what a tile sees. Each gives the same bits on every device and in every order."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu import Along, Around, Columns, DeviceOp, Here, In, Lazy, Out, Rows, Tile, empty, f32, kernel, ones

N: Final = 12
"""The extent of both axes."""
Op = DeviceOp[Any, Any, Any]


@kernel(
    cuda="__global__ void join(Tile<float, 2> y, View<const float, 2> a, View<const float, 2> b, float c) {"
    " for (auto i : y) y[i] = a[i] * 0.5f + b[i] + c; }",
    sees={"a": Here(), "b": Here()},
)
def join(y: Out[f32], a: In[f32], b: In[f32], c: Lazy[float]) -> None: ...


@join.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32], c: float) -> None:
    y[...] = a[y.at] * f32(0.5) + b[y.at] + f32(c)


@kernel(
    cuda="__global__ void smooth(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) { float sum = 0;"
    " for (int r = i[0] - 2; r <= i[0] + 2; ++r) for (int c = i[1] - 1; c <= i[1] + 1; ++c)"
    " if (r >= 0 && r < x.extent(0) && c >= 0 && c < x.extent(1)) sum += x(r, c); y[i] = sum; } }",
    sees={"x": Around(2, 1)},
)
def smooth(y: Out[f32], x: In[f32]) -> None: ...


@smooth.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    (rows, columns), (height, width) = y.at, x.shape
    for r in range(rows.start, rows.stop):
        for c in range(columns.start, columns.stop):
            part = x[max(r - 2, 0) : min(r + 3, height), max(c - 1, 0) : min(c + 2, width)]
            y[r - rows.start, c - columns.start] = np.add.reduce(part, axis=None, dtype=np.float32)


@kernel(
    cuda="__global__ void turn(Tile<float, 2> y, View<const float, 2> x) {"
    " for (auto i : y) y[i] = 1.0f - x(i[1], i[0]); }",
    sees={"x": (Along(1), Along(0))},
)
def turn(y: Out[f32], x: In[f32]) -> None: ...


@turn.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    rows, columns = y.at
    y[...] = f32(1) - x[columns, rows].T


@kernel(
    cuda="__global__ void product(Tile<float, 2> y, View<const float, 2> a, View<const float, 2> b) {"
    " for (auto i : y) { float sum = 0; for (int k = 0; k < a.extent(1); ++k) sum += a(i[0], k) * b(k, i[1]);"
    " y[i] = sum; } }",
    sees={"a": Rows(), "b": Columns()},
)
def product(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


@product.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    rows, columns = y.at
    y[...] = 0
    for k in range(a.shape[1]):
        y[...] += a[rows, k : k + 1] * b[k : k + 1, columns]


@kernel(
    cuda="__global__ void negate(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = 1.0f - x[i]; }",
    sees={"x": Here()},
    in_place=True,
)
def negate(y: Out[f32], x: In[f32]) -> None: ...


@negate.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = f32(1) - x[y.at]


@kernel(
    cuda="__global__ void gain(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] += x[i] * 0.25f; }",
    sees={"x": Here()},
)
def gain(y: Out[f32], x: In[f32]) -> None: ...


@gain.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at] * f32(0.25)


@kernel(
    cuda="__global__ void fold_all(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) { float sum = 0;"
    " for (int r = 0; r < x.extent(0); ++r) for (int c = 0; c < x.extent(1); ++c) sum += x(r, c);"
    " y[i] = sum * 0.125f; } }"
)
def fold_all(y: Out[f32], x: In[f32]) -> None:
    """Declares nothing: a tile sees everything."""


@fold_all.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    sum_ = f32(0)
    for value in np.asarray(x).ravel():
        sum_ = f32(sum_ + value)
    y[...] = sum_ * f32(0.125)


@kernel(
    cuda="__global__ void line(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = 1.0f - x[i]; }",
    sees={"x": Here()},
)
def line(y: Out[f32], x: In[f32]) -> None:
    """A kernel of one axis, for arrays of another rank beside the others."""


@line.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = f32(1) - x[y.at]


TILES: Final = ((4, 4), (3, 6), (5, 2), (12, 1), (7, 7))
"""Tiles, some of which do not divide the extents."""


def out(tile: tuple[int, int] = (4, 4)) -> Op:
    """Memory for a result, cut into tiles."""
    return empty((N, N)).partition(tile, partial=True)


def joined(a: Any, b: Any, c: Any = 0.5, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor `a / 2 + b + c`."""
    return join(out(tile), a, b, c).first().unpartition()


def smoothed(x: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor of sums of 5 x 3 elements."""
    return smooth(out(tile), x).first().unpartition()


def turned(x: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor `1 - x.T`."""
    return turn(out(tile), x).first().unpartition()


def multiplied(a: Any, b: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor, the product of two."""
    return product(out(tile), a, b).first().unpartition()


def negated(x: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor `1 - x`, which may lie where `x` was."""
    return negate(out(tile), x).first().unpartition()


def gained(*inputs: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor `1 + sum(inputs) / 4`, written once for each input."""
    made: Op = ones((N, N)).partition(tile, partial=True)
    for each in inputs:
        made = gain(made, each).first()
    return made.unpartition()


def folded(x: Any, tile: tuple[int, int] = (4, 4)) -> Op:
    """A new tensor, each element of which depends on all of `x`."""
    return fold_all(out(tile), x).first().unpartition()
