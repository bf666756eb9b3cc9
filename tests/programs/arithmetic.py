"""Kernels whose results are exact in every order of computation, so that they can be compared bit for bit.

Arrays hold whole numbers with absolute values below `BOUND`. So a matmul of up to 100 terms stays below 2**24, the
limit up to which f32 is exact. Minus zero is avoided for the same reason: every f32 body ends with `+ 0`.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Lazy, Out, Tile, f32, i32, kernel

BOUND = 64
"""Results are taken modulo this."""

ADD = """
__global__ void add(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {
    for (auto i : z) z[i] = fmodf(x[i] + y[i], 64.f) + 0.f;
}
"""
SCALE = """
__global__ void scale(Tile<float, 2> z, float a, View<const float, 2> x) {
    for (auto i : z) z[i] = fmodf(a * x[i], 64.f) + 0.f;
}
"""
AXPY = """
__global__ void axpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] = fmodf(y[i] + a * x[i], 64.f) + 0.f;
}
"""
MATMUL = """
__global__ void matmul(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {
    for (auto i : z) {
        float sum = 0.f;
        for (int k = 0; k < x.extent(1); ++k) sum += x(i[0], k) * y(k, i[1]);
        z[i] = fmodf(sum, 64.f) + 0.f;
    }
}
"""
ADD_INT = """
__global__ void add_int(Tile<int, 2> z, View<const int, 2> x, View<const int, 2> y) {
    for (auto i : z) z[i] = (x[i] + y[i]) % 64;
}
"""
WEIGHED = """
__constant__ float weights[2];
__global__ void weighed(Tile<float, 2> z, View<const float, 2> x) {
    for (auto i : z) z[i] = fmodf(weights[0] * x[i] + weights[1], 64.f) + 0.f;
}
"""
NEXT_TO = """
__global__ void next_to(Tile<float, 2> y, Tile<float, 2> z, View<const float, 2> x) {
    for (auto i : y) y[i] = fmodf(x[i] - 1.f, 64.f) + 0.f;
    for (auto i : z) z[i] = fmodf(x[i] + 1.f, 64.f) + 0.f;
}
"""


@kernel(cuda=ADD)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x + y."""


@add.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = np.fmod(x[z.at] + y[z.at], f32(BOUND)) + f32(0)


@kernel(cuda=SCALE)
def scale(z: Out[f32], a: Lazy[float], x: In[f32]) -> None:
    """z = a * x."""


@scale.host
def _(z: Tile[f32], a: float, x: NDArray[f32]) -> None:
    z[...] = np.fmod(f32(a) * x[z.at], f32(BOUND)) + f32(0)


@kernel(cuda=AXPY)
def axpy(y: Out[f32], a: Lazy[float], x: In[f32]) -> None:
    """y += a * x."""


@axpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] = np.fmod(y + f32(a) * x[y.at], f32(BOUND)) + f32(0)


@kernel(cuda=MATMUL)
def matmul(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x @ y."""


@matmul.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    rows, columns = z.at
    z[...] = np.fmod(x[rows] @ y[:, columns], f32(BOUND)) + f32(0)


@kernel(cuda=ADD_INT)
def add_int(z: Out[i32], x: In[i32], y: In[i32]) -> None:
    """z = x + y, of whole numbers."""


@add_int.host
def _(z: Tile[i32], x: NDArray[i32], y: NDArray[i32]) -> None:
    z[...] = np.fmod(x[z.at] + y[z.at], i32(BOUND))


@kernel(cuda=WEIGHED)
def weighed(z: Out[f32], x: In[f32], weights: In[f32]) -> None:
    """z = weights[0] * x + weights[1]: each launch has a `__constant__` variable of its own contents."""


@weighed.host
def _(z: Tile[f32], x: NDArray[f32], weights: NDArray[f32]) -> None:
    z[...] = np.fmod(weights[0] * x[z.at] + weights[1], f32(BOUND)) + f32(0)


@kernel(cuda=NEXT_TO)
def next_to(y: Out[f32], z: Out[f32], x: In[f32]) -> None:
    """y = x - 1 and z = x + 1."""


@next_to.host
def _(y: Tile[f32], z: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = np.fmod(x[y.at] - f32(1), f32(BOUND)) + f32(0)
    z[...] = np.fmod(x[z.at] + f32(1), f32(BOUND)) + f32(0)
