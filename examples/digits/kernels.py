"""The kernels of examples/digits: expressions, and two that are worth CUDA text.

Every array has two axes (a bias is a row). Sizes: `n` images in a batch, `k` inputs and
`m` outputs of a layer.

`gemm` is `array.matmul(a, b, transpose="a")` by hand. The function needs no text, but
on a GPU the extra `math`, which this example does without. `sgd` changes two tensors in
one pass over memory. As expressions it would be two launches, `v.update` and
`w.update`, and the second one would read again what the first has just written.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import Elem, In, Out, SharedTensor, Tile, array, expr, f32, kernel
from dagpu.grad import gradient_of

GEMM_CU = """
template <bool TURN_A, bool TURN_B>
__device__ float dot(
    View<const float, 2> a, View<const float, 2> b, int row, int column
) {
    float sum = 0.0f;
    #pragma unroll 16
    for (int k = 0; k < a.extent(TURN_A ? 0 : 1); ++k)
        sum +=
            (TURN_A ? a(k, row) : a(row, k)) * (TURN_B ? b(column, k) : b(k, column));
    return sum;
}

__global__ void gemm(
    Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b, bool turn_a,
    bool turn_b
) {
    for (auto i : c) {
        const int row = i[0], column = i[1];
        if (turn_a)
            c[i] = turn_b ? dot<true, true>(a, b, row, column)
                          : dot<true, false>(a, b, row, column);
        else
            c[i] = turn_b ? dot<false, true>(a, b, row, column)
                          : dot<false, false>(a, b, row, column);
    }
}
"""

SGD_CU = """
__global__ void sgd(
    Tile<float, 2> w, Tile<float, 2> v, View<const float, 2> g, float rate,
    float momentum, float decay
) {
    for (auto i : w) {
        v[i] = momentum * v[i] + g[i] + decay * w[i];
        w[i] -= rate * v[i];
    }
}
"""


@kernel(cuda=GEMM_CU, block=256)
def gemm(c: Out[f32], a: In[f32], b: In[f32], turn_a: bool, turn_b: bool) -> None:
    """c = a b, for c (n, m), a (n, k) and b (k, m); an operand that is turned is
    transposed before."""


# one matmul for all of c instead of dozens of small ones, one for each tile
@gemm.host(whole=True)
def _(
    c: Tile[f32], a: NDArray[f32], b: NDArray[f32], turn_a: bool, turn_b: bool
) -> None:
    np.matmul(
        (a.T if turn_a else a)[c.at[0]], (b.T if turn_b else b)[:, c.at[1]], out=c
    )


@gradient_of(gemm.new)
def _(
    g: SharedTensor[f32],
    c: SharedTensor[f32],
    a: SharedTensor[f32],
    b: SharedTensor[f32],
    turn_a: bool,
    turn_b: bool,
) -> tuple[object, ...]:
    """The gradients by a and b: products of g with the other one."""
    by_a, by_b = [gemm.new(t.shape, (16, 16), partial=True) for t in (a, b)]
    return (
        by_a(b, g, turn_b, True) if turn_a else by_a(g, b, False, not turn_b),
        by_b(g, a, True, turn_a) if turn_b else by_b(a, g, not turn_a, False),
        None,
        None,
    )


@kernel(cuda=SGD_CU, block=256)
def sgd(
    w: Out[f32], v: Out[f32], g: In[f32], rate: float, momentum: float, decay: float
) -> None:
    """One step of gradient descent, in place: v = momentum v + g + decay w; then w = w
    - rate v. All have one shape."""


@sgd.host(whole=True)
def _(
    w: Tile[f32],
    v: Tile[f32],
    g: NDArray[f32],
    rate: float,
    momentum: float,
    decay: float,
) -> None:
    v *= momentum
    v += g[v.at]
    v += decay * w
    w -= rate * v


@expr
def biased(x: Elem[f32], bias: Elem[f32]) -> Elem[f32]:
    return x + bias


@expr
def biased_relu(x: Elem[f32], bias: Elem[f32]) -> Elem[f32]:
    return array.maximum(x + bias, 0)


@expr
def surprise(p: Elem[f32], hot: Elem[f32]) -> Elem[f32]:
    """Return the loss of an image at its label, which is hot, and 0 elsewhere."""
    return -hot * array.log(array.maximum(p, 1e-30))


cross_entropy = surprise.sum(1)
"""The loss (n,) of each image, in one kernel."""
