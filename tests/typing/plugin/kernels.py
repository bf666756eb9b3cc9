"""Shared parts of the corpus' programs: a few kernels, initial tensors, and functions that take them.

Vectors have 8 elements and are cut by 4, matrices are 4 by 4 and cut by 2.
"""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Lazy, Out, SharedTensor, Tensor, TensorRef, Tile, f32, kernel, ones


@kernel(
    cuda="""
__global__ void saxpy(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a x, of vectors."""


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += a * x[y.at]


@kernel(
    cuda="""
__global__ void add(Tile<float, 1> z, View<const float, 1> x, View<const float, 1> y) {
    for (auto i : z) z[i] = x[i] + y[i];
}
"""
)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x + y, of vectors."""


@add.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


@kernel(
    cuda="""
__global__ void scale(Tile<float, 1> y, float by) {
    for (auto i : y) y[i] *= by;
}
"""
)
def scale(y: Out[f32], by: Lazy[float]) -> None:
    """y *= by, of a vector; the number may come from an op."""


@scale.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


@kernel(
    cuda="""
__global__ void split(Tile<float, 1> low, Tile<float, 1> high, View<const float, 1> x) {
    for (auto i : low) low[i] = fminf(x[i], 0.f);
    for (auto i : high) high[i] = fmaxf(x[i], 0.f);
}
"""
)
def split(low: Out[f32], high: Out[f32], x: In[f32]) -> None:
    """low = min(x, 0) and high = max(x, 0), of vectors; both outputs are cut alike."""


@split.host
def _(low: Tile[f32], high: Tile[f32], x: NDArray[f32]) -> None:
    low[...] = np.minimum(x[low.at], 0)
    high[...] = np.maximum(x[high.at], 0)


@kernel(
    cuda="""
__global__ void gemm(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    for (auto i : c) {
        float sum = 0;
        for (int k = 0; k < a.extent(1); ++k) sum += a(i[0], k) * b(k, i[1]);
        c[i] = sum;
    }
}
"""
)
def gemm(c: Out[f32], a: In[f32], b: In[f32]) -> None:
    """c = a b, of matrices."""


@gemm.host
def _(c: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    rows, columns = c.at
    c[...] = a[rows] @ b[:, columns]


def vector() -> Tensor[f32]:
    """Eight ones. Blocks: for programs without trio."""
    return ones((8,)).sync()


async def async_vector() -> Tensor[f32]:
    """Eight ones."""
    return await ones((8,))


def matrix() -> Tensor[f32]:
    """Four by four ones."""
    return ones((4, 4)).sync()


def maybe() -> Tensor[f32] | None:
    """Eight ones, which a type checker may not count on."""
    return vector()


def eat(t: Tensor[f32]) -> SharedTensor[f32]:
    """Takes it by value."""
    return t.share()


async def async_eat(t: Tensor[f32]) -> NDArray[f32]:
    """Takes it by value, and waits for its contents."""
    return await t.to_host()


def total(t: TensorRef[f32]) -> float:
    """Takes it lent: the sum of its elements."""
    return float(t.to_host().sync().sum())


async def async_total(t: TensorRef[f32]) -> float:
    """Takes it lent: the sum of its elements."""
    return float((await t.to_host()).sum())


def yes() -> bool:
    """True, which no type checker knows."""
    return True


def no() -> bool:
    """False, which no type checker knows."""
    return False


def give_up() -> NoReturn:
    """Ends by an error of the program's own."""
    raise RuntimeError("given up")
