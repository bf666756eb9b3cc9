"""The kernels of examples/cholesky, each in CUDA C++, and in NumPy for machines without
a GPU.

Tiles are square, f64, and their edge is a multiple of 16. A block has 256 threads, 16
rows of 16.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f64, kernel

THREADS = 256

FACTOR_CU = """
__global__ void factor(Tile<double, 2> a) {
    const int n = a.extent(0), row = threadIdx.x / 16, lane = threadIdx.x % 16;
    for (int c = 0; c < n; ++c) {
        if (threadIdx.x == 0) a(c, c) = sqrt(a(c, c));
        __syncthreads();
        for (int r = c + 1 + threadIdx.x; r < n; r += 256) a(r, c) /= a(c, c);
        __syncthreads();
        for (int r = c + 1 + row; r < n; r += 16)
            for (int k = c + 1 + lane; k <= r; k += 16) a(r, k) -= a(r, c) * a(k, c);
        __syncthreads();
    }
    for (int r = row; r < n; r += 16)
        for (int k = r + 1 + lane; k < n; k += 16) a(r, k) = 0.0;
}
"""

SOLVE_CU = """
__global__ void solve(Tile<double, 2> x, View<const double, 2> t) {
    const int n = x.extent(1), row = x.origin(0) + threadIdx.x / 16,
              lane = threadIdx.x % 16;
    for (int c = 0; c < n; ++c) {
        if (lane == 0) x(row, c) /= t(c, c);
        __syncthreads();
        for (int k = c + 1 + lane; k < n; k += 16) x(row, k) -= x(row, c) * t(k, c);
        __syncthreads();
    }
}
"""

# Each thread has one element of c. A block loads its part of a and b into shared
# memory, 16 columns at a time, so that 16 uses share one read of global memory. Rows
# have 17 elements: otherwise a column would lie in one bank.
UPDATE_CU = """
__global__ void update(
    Tile<double, 2> c, View<const double, 2> a, View<const double, 2> b
) {
    __shared__ double left[16][17], right[16][17];
    const int row = threadIdx.x / 16, lane = threadIdx.x % 16;
    double sum = 0.0;
    for (int k = 0; k < a.extent(1); k += 16) {
        left[row][lane] = a(c.origin(0) + row, k + lane);
        right[row][lane] = b(c.origin(1) + row, k + lane);
        __syncthreads();
        for (int t = 0; t < 16; ++t) sum += left[row][t] * right[lane][t];
        __syncthreads();
    }
    c(c.origin(0) + row, c.origin(1) + lane) -= sum;
}
"""


@kernel(cuda=FACTOR_CU, block=THREADS)
def factor(a: Out[f64]) -> None:
    """a = L with L L^T = a, in place:

    LAPACK's potrf. Reads the lower triangle, and writes zeros above it. One tile.
    """


@factor.host
def _(a: Tile[f64]) -> None:
    a[...] = np.linalg.cholesky(a)


@kernel(cuda=SOLVE_CU, block=THREADS)
def solve(x: Out[f64], t: In[f64]) -> None:
    """x = x t^-T for lower triangular t, in place:

    BLAS' trsm. x is cut into 16 whole rows.
    """


@solve.host(whole=True)
def _(x: Tile[f64], t: NDArray[f64]) -> None:
    x[...] = np.linalg.solve(t, x.T).T


@kernel(cuda=UPDATE_CU, block=THREADS)
def update(c: Out[f64], a: In[f64], b: In[f64]) -> None:
    """c = c - a b^T: BLAS' gemm, or syrk where a is b. c is cut into (16, 16)."""


@update.host(whole=True)
def _(c: Tile[f64], a: NDArray[f64], b: NDArray[f64]) -> None:
    c -= a @ b.T
