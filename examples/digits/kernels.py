"""The kernels of examples/digits, each in CUDA C++, and in NumPy for machines without a GPU.

Every array has two axes (a bias is a row), except for the labels, which have one. Sizes: `n` images in a batch,
`k` inputs and `m` outputs of a layer. An output is fully overwritten, unless it is updated in place.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, i32, kernel

GEMM_CU = """
__global__ void gemm(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    for (auto i : c) {
        float sum = 0.0f;
        for (int k = 0; k < a.extent(1); ++k) sum += a(i[0], k) * b(k, i[1]);
        c[i] = sum;
    }
}
"""

GEMM_TN_CU = """
__global__ void gemm_tn(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    for (auto i : c) {
        float sum = 0.0f;
        for (int k = 0; k < a.extent(0); ++k) sum += a(k, i[0]) * b(k, i[1]);
        c[i] = sum;
    }
}
"""

GEMM_NT_CU = """
__global__ void gemm_nt(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    for (auto i : c) {
        float sum = 0.0f;
        for (int k = 0; k < a.extent(1); ++k) sum += a(i[0], k) * b(i[1], k);
        c[i] = sum;
    }
}
"""

BIAS_RELU_CU = """
__global__ void bias_relu(Tile<float, 2> y, View<const float, 2> bias) {
    for (auto i : y) y[i] = fmaxf(y[i] + bias(0, i[1]), 0.0f);
}
"""

RELU_BACKWARD_CU = """
__global__ void relu_backward(Tile<float, 2> d, View<const float, 2> y) {
    for (auto i : d) if (!(y[i] > 0.0f)) d[i] = 0.0f;
}
"""

# One thread computes a row of ten: the thread that gets its first column. So no thread waits for another.
SOFTMAX_CU = """
__global__ void softmax(Tile<float, 2> p, View<const float, 2> bias) {
    for (auto i : p) {
        if (i[1] != 0) continue;
        int row = i[0], columns = p.extent(1);
        float top = -INFINITY, sum = 0.0f;
        for (int c = 0; c < columns; ++c) top = fmaxf(top, p(row, c) += bias(0, c));
        for (int c = 0; c < columns; ++c) sum += p(row, c) = expf(p(row, c) - top);
        for (int c = 0; c < columns; ++c) p(row, c) /= sum;
    }
}
"""

CROSS_ENTROPY_CU = """
__global__ void cross_entropy(
    Tile<float, 2> p, Tile<float, 2> stats, View<const int, 1> labels, float scale
) {
    for (auto i : p) {
        if (i[1] != 0) continue;
        int row = i[0], columns = p.extent(1), label = labels[row], best = 0;
        for (int c = 1; c < columns; ++c) if (p(row, c) > p(row, best)) best = c;
        stats(row, 0) = -logf(fmaxf(p(row, label), 1e-30f));
        stats(row, 1) = best == label ? 1.0f : 0.0f;
        for (int c = 0; c < columns; ++c) p(row, c) = scale * (p(row, c) - (c == label ? 1.0f : 0.0f));
    }
}
"""

COLUMN_SUM_CU = """
__global__ void column_sum(Tile<float, 2> sums, View<const float, 2> x) {
    for (auto i : sums) {
        float sum = 0.0f;
        for (int row = 0; row < x.extent(0); ++row) sum += x(row, i[1]);
        sums[i] = sum;
    }
}
"""

SGD_CU = """
__global__ void sgd(
    Tile<float, 2> w, Tile<float, 2> v, View<const float, 2> g, float rate, float momentum, float decay
) {
    for (auto i : w) {
        v[i] = momentum * v[i] + g[i] + decay * w[i];
        w[i] -= rate * v[i];
    }
}
"""


@kernel(cuda=GEMM_CU, block=256)
def gemm(c: Out[f32], a: In[f32], b: In[f32]) -> None:
    """c = a b, for a (n, k) and b (k, m)."""


@gemm.host(whole=True)  # one matmul for all of c instead of dozens of small ones, one for each tile
def _(c: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    np.matmul(a[c.at[0]], b[:, c.at[1]], out=c)


@kernel(cuda=GEMM_TN_CU, block=256)
def gemm_tn(c: Out[f32], a: In[f32], b: In[f32]) -> None:
    """c = a^T b, for a (n, k) and b (n, m): the gradient of a layer's weights."""


@gemm_tn.host(whole=True)
def _(c: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    np.matmul(a[:, c.at[0]].T, b[:, c.at[1]], out=c)


@kernel(cuda=GEMM_NT_CU, block=256)
def gemm_nt(c: Out[f32], a: In[f32], b: In[f32]) -> None:
    """c = a b^T, for a (n, m) and b (k, m): the gradient of a layer's input."""


@gemm_nt.host(whole=True)
def _(c: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    np.matmul(a[c.at[0]], b[c.at[1]].T, out=c)


@kernel(cuda=BIAS_RELU_CU, block=256)
def bias_relu(y: Out[f32], bias: In[f32]) -> None:
    """y = max(y + bias, 0) in place, for y (n, m) and bias (1, m)."""


@bias_relu.host(whole=True)
def _(y: Tile[f32], bias: NDArray[f32]) -> None:
    y += bias[:, y.at[1]]
    np.maximum(y, 0, out=y)


@kernel(cuda=RELU_BACKWARD_CU, block=256)
def relu_backward(d: Out[f32], y: In[f32]) -> None:
    """d = 0 where y = relu(...) was cut off, in place; both (n, m)."""


@relu_backward.host(whole=True)
def _(d: Tile[f32], y: NDArray[f32]) -> None:
    d *= y[d.at] > 0


@kernel(cuda=SOFTMAX_CU, block=256)
def softmax(p: Out[f32], bias: In[f32]) -> None:
    """p = softmax(p + bias) by rows, in place, for p (n, m) and bias (1, m). A tile holds whole rows."""


@softmax.host(whole=True)
def _(p: Tile[f32], bias: NDArray[f32]) -> None:
    p += bias
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)


@kernel(cuda=CROSS_ENTROPY_CU, block=256)
def cross_entropy(p: Out[f32], stats: Out[f32], labels: In[i32], scale: float) -> None:
    """stats (n, 2) = loss and hit of each image, from probabilities p (n, m) and labels (n,).

    In place, p becomes the gradient of `scale` * (sum of losses) by the logits: scale * (p - onehot(label)).
    A tile holds whole rows.
    """


@cross_entropy.host(whole=True)
def _(p: Tile[f32], stats: Tile[f32], labels: NDArray[i32], scale: float) -> None:
    rows = np.arange(len(p))
    mine = labels[p.at[0]]
    stats[:, 0] = -np.log(np.maximum(p[rows, mine], 1e-30))
    stats[:, 1] = p.argmax(axis=1) == mine
    p[rows, mine] -= 1
    p *= scale


@kernel(cuda=COLUMN_SUM_CU, block=32)
def column_sum(sums: Out[f32], x: In[f32]) -> None:
    """sums (1, m) = the sum of the rows of x (n, m): the gradient of a bias."""


@column_sum.host(whole=True)
def _(sums: Tile[f32], x: NDArray[f32]) -> None:
    np.sum(x[:, sums.at[1]], axis=0, keepdims=True, out=sums)


@kernel(cuda=SGD_CU, block=256)
def sgd(w: Out[f32], v: Out[f32], g: In[f32], rate: float, momentum: float, decay: float) -> None:
    """One step of gradient descent, in place: v = momentum v + g + decay w; then w = w - rate v. All have one shape."""


@sgd.host(whole=True)
def _(w: Tile[f32], v: Tile[f32], g: NDArray[f32], rate: float, momentum: float, decay: float) -> None:
    v *= momentum
    v += g[v.at]
    v += decay * w
    w -= rate * v
