"""The kernels of the named DAGs: whole numbers throughout, so that every order and every device gives the same bits.

The f32 arrays hold whole numbers below 2**24, where f32 is exact. Their square roots and quotients are whole by
construction of the input (`tests.programs.named_dags`). Remainders of i32 have the sign of the dividend, as in C.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Lazy, Out, Tile, f32, i32, kernel

PRIME = 193
"""Modulus of the butterfly."""

# ---- vectors of i32

AFFINE = """
__global__ void affine(Tile<int, 1> z, View<const int, 1> x, int a, int b) {
    for (auto i : z) z[i] = (x[i] * a + b) % 9973;
}
"""
STEP = """
__global__ void step(Tile<int, 1> y, int a, int b) {
    for (auto i : y) y[i] = (y[i] * a + b) % 9973;
}
"""
GATHER = """
__global__ void gather(Tile<int, 1> y, View<const int, 1> x) {
    for (auto i : y) y[i] += x[i];
}
"""
TWIST = """
__global__ void twist(Tile<int, 1> x, Tile<int, 1> y, int root) {
    for (auto i : x) {
        const int a = x[i], b = y[i];
        x[i] = (a + b) % 193;
        y[i] = (a - b + 193) * root % 193;
    }
}
"""


@kernel(cuda=AFFINE, in_place=True)
def affine(z: Out[i32], x: In[i32], a: int, b: int) -> None:
    """z = (a x + b) modulo 9973."""


@affine.host
def _(z: Tile[i32], x: NDArray[i32], a: int, b: int) -> None:
    z[...] = np.fmod(x[z.at] * i32(a) + i32(b), i32(9973))


@kernel(cuda=STEP)
def step(y: Out[i32], a: int, b: int) -> None:
    """y = (a y + b) modulo 9973, in place."""


@kernel(cuda=STEP.replace("step", "step_by"))
def step_by(y: Out[i32], a: Lazy[int], b: Lazy[int]) -> None:
    """y = (a y + b) modulo 9973, in place, with numbers that may be results."""


def _step(y: Tile[i32], a: int, b: int) -> None:
    y[...] = np.fmod(y * i32(a) + i32(b), i32(9973))


step.host(_step)
step_by.host(_step)


@kernel(cuda=GATHER)
def gather(y: Out[i32], x: In[i32]) -> None:
    """y += x, of vectors."""


@gather.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] += x[y.at]


@kernel(cuda=TWIST)
def twist(x: Out[i32], y: Out[i32], root: int) -> None:
    """x, y = x + y, root (x - y), modulo `PRIME`: one butterfly of a transform by decimation in frequency."""


@twist.host
def _(x: Tile[i32], y: Tile[i32], root: int) -> None:
    total = np.fmod(x + y, i32(PRIME))
    difference = np.fmod((x - y + i32(PRIME)) * i32(root), i32(PRIME))
    x[...], y[...] = total, difference


# ---- matrices of i32

GEMM = """
__global__ void gemm(Tile<int, 2> z, View<const int, 2> x, View<const int, 2> y, bool x_turned, bool y_turned) {
    const int terms = x.extent(x_turned ? 0 : 1);
    for (auto i : z) {
        int sum = z[i];
        for (int k = 0; k < terms; ++k)
            sum += (x_turned ? x(k, i[0]) : x(i[0], k)) * (y_turned ? y(i[1], k) : y(k, i[1]));
        z[i] = sum;
    }
}
"""
SQUASH = """
__global__ void squash(Tile<int, 2> z, View<const int, 2> x, int low) {
    for (auto i : z) z[i] = min(max(x[i] >> 2, low), 15);
}
"""
GATE = """
__global__ void gate(Tile<int, 2> y, View<const int, 2> x) {
    for (auto i : y) y[i] = x[i] > 0 ? y[i] : 0;
}
"""
BLEND = """
__global__ void blend(Tile<int, 2> y, int a, View<const int, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


@kernel(cuda=GEMM)
def gemm(z: Out[i32], x: In[i32], y: In[i32], x_turned: bool, y_turned: bool) -> None:
    """z += x y, with x or y transposed if its flag is set."""


@gemm.host
def _(z: Tile[i32], x: NDArray[i32], y: NDArray[i32], x_turned: bool, y_turned: bool) -> None:
    rows, columns = z.at
    left = x[:, rows].T if x_turned else x[rows]
    right = y[columns].T if y_turned else y[:, columns]
    z[...] += left @ right


@kernel(cuda=SQUASH, in_place=True)
def squash(z: Out[i32], x: In[i32], low: int) -> None:
    """z = x / 4, rounded down and clipped to [low, 15]: it replaces norms and activations."""


@squash.host
def _(z: Tile[i32], x: NDArray[i32], low: int) -> None:
    z[...] = np.clip(x[z.at] >> 2, low, 15)


@kernel(cuda=GATE)
def gate(y: Out[i32], x: In[i32]) -> None:
    """y = 0 where x <= 0: the backward pass of a relu."""


@gate.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] *= x[y.at] > 0


@kernel(cuda=BLEND)
def blend(y: Out[i32], a: int, x: In[i32]) -> None:
    """y += a x, of matrices."""


@blend.host
def _(y: Tile[i32], a: int, x: NDArray[i32]) -> None:
    y[...] += i32(a) * x[y.at]


# ---- tiles of a factorisation: one block for each launch, except for `subtract`

POTRF = """
__global__ void potrf(Tile<float, 2> a) {
    const int n = a.extent(0), me = threadIdx.x, all = blockDim.x;
    for (int k = 0; k < n; ++k) {
        if (me == 0) a(k, k) = sqrtf(a(k, k));
        __syncthreads();
        for (int r = k + 1 + me; r < n; r += all) a(r, k) /= a(k, k);
        __syncthreads();
        for (int r = k + 1 + me; r < n; r += all)
            for (int c = k + 1; c <= r; ++c) a(r, c) -= a(r, k) * a(c, k);
        __syncthreads();
    }
    for (int r = me; r < n; r += all)
        for (int c = r + 1; c < n; ++c) a(r, c) = 0.f;
}
"""
GETRF = """
__global__ void getrf(Tile<float, 2> a) {
    const int n = a.extent(0), me = threadIdx.x, all = blockDim.x;
    for (int k = 0; k < n; ++k) {
        for (int r = k + 1 + me; r < n; r += all) {
            a(r, k) /= a(k, k);
            for (int c = k + 1; c < n; ++c) a(r, c) -= a(r, k) * a(k, c);
        }
        __syncthreads();
    }
}
"""
TRSM_RIGHT = """
__global__ void trsm_right(Tile<float, 2> x, View<const float, 2> t, bool turned) {
    const int n = x.extent(1);
    for (int r = threadIdx.x; r < x.extent(0); r += blockDim.x)
        for (int c = 0; c < n; ++c) {
            float rest = x(r, c);
            for (int k = 0; k < c; ++k) rest -= x(r, k) * (turned ? t(c, k) : t(k, c));
            x(r, c) = rest / t(c, c);
        }
}
"""
TRSM_LEFT = """
__global__ void trsm_left(Tile<float, 2> x, View<const float, 2> t) {
    const int n = x.extent(0);
    for (int c = threadIdx.x; c < x.extent(1); c += blockDim.x)
        for (int r = 1; r < n; ++r) {
            float rest = x(r, c);
            for (int k = 0; k < r; ++k) rest -= t(r, k) * x(k, c);
            x(r, c) = rest;
        }
}
"""
SUBTRACT = """
__global__ void subtract(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y, bool turned) {
    const int terms = x.extent(1);
    for (auto i : z) {
        float rest = z[i];
        for (int k = 0; k < terms; ++k) rest -= x(i[0], k) * (turned ? y(i[1], k) : y(k, i[1]));
        z[i] = rest;
    }
}
"""


@kernel(cuda=POTRF, block=32)
def potrf(a: Out[f32]) -> None:
    """The Cholesky factor of one tile, in place; zeros above its diagonal."""


@potrf.host
def _(a: Tile[f32]) -> None:
    for k in range(len(a)):
        a[k, k] = np.sqrt(a[k, k])
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.tril(np.outer(a[k + 1 :, k], a[k + 1 :, k]))
    a[...] = np.tril(a)


@kernel(cuda=GETRF, block=32)
def getrf(a: Out[f32]) -> None:
    """L and U of one tile, in place, without pivoting; the ones on the diagonal of L are not stored."""


@getrf.host
def _(a: Tile[f32]) -> None:
    for k in range(len(a)):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


@kernel(cuda=TRSM_RIGHT, block=32)
def trsm_right(x: Out[f32], t: In[f32], turned: bool) -> None:
    """x = x t^-1 for upper triangular t. If `turned`, x = x t^-T for lower triangular t. In place."""


@trsm_right.host
def _(x: Tile[f32], t: NDArray[f32], turned: bool) -> None:
    upper: NDArray[Any] = np.asarray(t).T if turned else np.asarray(t)
    for c in range(x.shape[1]):
        x[:, c] = (x[:, c] - x[:, :c] @ upper[:c, c]) / upper[c, c]


@kernel(cuda=TRSM_LEFT, block=32)
def trsm_left(x: Out[f32], t: In[f32]) -> None:
    """x = t^-1 x for lower triangular t with ones on its diagonal, which are not read. In place."""


@trsm_left.host
def _(x: Tile[f32], t: NDArray[f32]) -> None:
    for r in range(1, len(x)):
        x[r] -= t[r, :r] @ x[:r]


@kernel(cuda=SUBTRACT)
def subtract(z: Out[f32], x: In[f32], y: In[f32], turned: bool) -> None:
    """z -= x y, or z -= x y^T if `turned`."""


@subtract.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32], turned: bool) -> None:
    rows, columns = z.at
    z[...] -= x[rows] @ (y[columns].T if turned else y[:, columns])
