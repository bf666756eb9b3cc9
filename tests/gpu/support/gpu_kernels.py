"""The kernels that the tests of the GPU share; each costs one compilation.

Their host bodies let the tests that use them be tried out where there is no GPU.
"""

import ctypes
import threading

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, i32, kernel


@kernel(
    cuda="""
__global__ void add(Tile<float, 1> y, View<const float, 1> x) {
    for (auto i : y) y[i] += x[i];
}
"""
)
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x."""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@kernel(
    cuda="""
__global__ void axpy(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
)
def axpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x."""


@axpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += f32(a) * x[y.at]


@kernel(
    cuda="""
__global__ void spin(Tile<int, 1> y, long long nanoseconds) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
    for (auto i : y) y[i] += 1;
}
"""
)
def spin(y: Out[i32], nanoseconds: int) -> None:
    """y += 1, after so long a time: work that is under way."""


@spin.host(whole=True)
def _(y: Tile[i32], nanoseconds: int) -> None:
    threading.Event().wait(nanoseconds * 1e-9)
    y[...] += 1


@kernel(
    cuda="""
__global__ void take(Tile<float, 1> y, long long address) {
    const float* x = reinterpret_cast<const float*>(address);
    for (auto i : y) y[i] = x[i];
}
"""
)
def take(y: Out[f32], address: int) -> None:
    """y = what lies at an address: memory of another library."""


@take.host
def _(y: Tile[f32], address: int) -> None:
    y[...] = floats_at(address, y.at[0].stop)[y.at]


@kernel(
    cuda="""
__global__ void give(Tile<float, 1> done, View<const float, 1> x, long long address) {
    float* y = reinterpret_cast<float*>(address);
    for (auto i : done) {
        y[i] = x[i];
        done[i] = 1.0f;
    }
}
"""
)
def give(done: Out[f32], x: In[f32], address: int) -> None:
    """Write x to an address, and ones to `done`."""


@give.host
def _(done: Tile[f32], x: NDArray[f32], address: int) -> None:
    floats_at(address, len(x))[done.at] = x[done.at]
    done[...] = 1


@kernel(
    cuda="""
__global__ void wild(Tile<float, 1> y, long long address) {
    for (auto i : y) y[i] = *reinterpret_cast<volatile float*>(address);
}
"""
)
def wild(y: Out[f32], address: int) -> None:
    """Read from an address that may be nobody's."""


def floats_at(address: int, count: int) -> NDArray[f32]:
    """Return a view of floats in host memory."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
