"""Kernels of Numba. Only where Numba is installed can this be imported."""

from numba import cuda


def axpy(y, a, x, n):
    i = cuda.grid(1)
    if i < n:
        y[i] += a * x[i]


def swapped(y, x):
    i, j = cuda.grid(2)
    if i < y.shape[0] and j < y.shape[1]:
        y[i, j] = x[j, i]


@cuda.jit
def counted(counts, x):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i], 1)
