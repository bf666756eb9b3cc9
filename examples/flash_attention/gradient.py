"""The pass back of examples/flash_attention: two kernels, and the rule that makes them
the derivative of the pass forward.

With P the weights of a head, D[i] = sum over d of g[i, d] o[i, d], and
S[i, j] = P[i, j] (g[i] . v[j] - D[i]), the gradients are S k, S' q (both times the
scale) and P' g (Dao, FlashAttention-2, arXiv:2307.08691, section 3.1.2). P is computed
again from the sums that the pass forward has left, so no matrix of scores is stored.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    expr,
    f32,
    kernel,
    zip_ops,
)
from dagpu.grad import gradient_of
from examples.flash_attention.kernels import ROWS, attention

Shared: TypeAlias = SharedTensor[f32]

product = expr(f32, f32)(lambda a, b: a * b)
difference = expr(f32, f32)(lambda a, b: a - b)

# A thread has one query. Keys and values go through shared memory, as in the pass
# forward; the thread's row of g is there too, since registers do not hold it. Such a
# row has one more element than it needs: threads read theirs from different banks.
BY_QUERIES_CU = """
template <int WIDTH>
__device__ void slope(
    Tile<float, 3> dq, View<const float, 3> g, View<const float, 3> q,
    View<const float, 3> k, View<const float, 3> v, View<const float, 3> sums,
    View<const float, 3> dots, float scale, bool causal, float* keys, float* values,
    float* ups
) {
    const int KEYS = 16;
    const int head = dq.origin(0), first = dq.origin(1), rows = dq.tile_extent(1),
              count = k.extent(1);
    const int me = threadIdx.x, all = blockDim.x, row = first + min(me, rows - 1);
    const int until = causal ? first + rows : count;

    float* up = ups + me * (WIDTH + 1);
    float query[WIDTH], found[WIDTH];
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) {
        query[d] = scale * q(head, row, d);
        up[d] = g(head, row, d);
        found[d] = 0.0f;
    }
    const float sum = sums(head, row, 0), dot = dots(head, row, 0);
    for (int start = 0; start < until; start += KEYS) {
        for (int at = me; at < KEYS * WIDTH; at += all) {
            const int key = at / WIDTH, d = at % WIDTH;
            const bool there = start + key < count;
            keys[at] = there ? k(head, start + key, d) : 0.0f;
            values[at] = there ? v(head, start + key, d) : 0.0f;
        }
        __syncthreads();
        for (int key = 0; key < KEYS; ++key) {
            if (start + key >= count || (causal && start + key > row)) break;
            float score = 0.0f, weighed = 0.0f;
            #pragma unroll
            for (int d = 0; d < WIDTH; ++d) {
                score += query[d] * keys[key * WIDTH + d];
                weighed += up[d] * values[key * WIDTH + d];
            }
            const float s = expf(score - sum) * (weighed - dot) * scale;
            #pragma unroll
            for (int d = 0; d < WIDTH; ++d) found[d] += s * keys[key * WIDTH + d];
        }
        __syncthreads();
    }
    if (me >= rows) return;
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) dq(head, row, d) = found[d];
}

__global__ void by_queries(
    Tile<float, 3> dq, View<const float, 3> g, View<const float, 3> q,
    View<const float, 3> k, View<const float, 3> v, View<const float, 3> sums,
    View<const float, 3> dots, float scale, bool causal
) {
    __shared__ float a[16 * 64], b[16 * 64], c[64 * 65];
    switch (q.extent(2)) {
        case 16: return slope<16>(dq, g, q, k, v, sums, dots, scale, causal, a, b, c);
        case 32: return slope<32>(dq, g, q, k, v, sums, dots, scale, causal, a, b, c);
        case 64: return slope<64>(dq, g, q, k, v, sums, dots, scale, causal, a, b, c);
    }
}
"""


@kernel(cuda=BY_QUERIES_CU, block=ROWS)
def by_queries(
    dq: Out[f32],
    g: In[f32],
    q: In[f32],
    k: In[f32],
    v: In[f32],
    sums: In[f32],
    dots: In[f32],
    scale: float,
    causal: bool,
) -> None:
    """dq = scale S k for each head, (heads, n, width), cut into (1, ROWS, width)."""


# A thread has one key and its value, in shared memory, and the sums for both in
# registers. Queries and rows of g go through shared memory.
BY_KEYS_CU = """
template <int WIDTH>
__device__ void slopes(
    Tile<float, 3> dk, Tile<float, 3> dv, View<const float, 3> g,
    View<const float, 3> q, View<const float, 3> k, View<const float, 3> v,
    View<const float, 3> sums, View<const float, 3> dots, float scale, bool causal,
    float* queries, float* ups, float* keys, float* values
) {
    const int QUERIES = 16;
    const int head = dk.origin(0), first = dk.origin(1), rows = dk.tile_extent(1),
              count = q.extent(1);
    const int me = threadIdx.x, all = blockDim.x, row = first + min(me, rows - 1);
    float *key = keys + me * (WIDTH + 1), *value = values + me * (WIDTH + 1);
    float by_key[WIDTH], by_value[WIDTH];
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) {
        key[d] = k(head, row, d);
        value[d] = v(head, row, d);
        by_key[d] = by_value[d] = 0.0f;
    }
    // no query before the first key of this block sees any of them
    for (int start = causal ? first : 0; start < count; start += QUERIES) {
        for (int at = me; at < QUERIES * WIDTH; at += all) {
            const int query = at / WIDTH, d = at % WIDTH;
            const bool there = start + query < count;
            queries[at] = there ? scale * q(head, start + query, d) : 0.0f;
            ups[at] = there ? g(head, start + query, d) : 0.0f;
        }
        __syncthreads();
        for (int query = 0; query < QUERIES && start + query < count; ++query) {
            if (causal && row > start + query) continue;
            float score = 0.0f, weighed = 0.0f;
            #pragma unroll 4
            for (int d = 0; d < WIDTH; ++d) {
                score += queries[query * WIDTH + d] * key[d];
                weighed += ups[query * WIDTH + d] * value[d];
            }
            const float weight = expf(score - sums(head, start + query, 0));
            const float s = weight * (weighed - dots(head, start + query, 0));
            #pragma unroll
            for (int d = 0; d < WIDTH; ++d) {
                by_value[d] += weight * ups[query * WIDTH + d];
                by_key[d] += s * queries[query * WIDTH + d];
            }
        }
        __syncthreads();
    }
    if (me >= rows) return;
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) {
        dk(head, row, d) = by_key[d];
        dv(head, row, d) = by_value[d];
    }
}

__global__ void by_keys(
    Tile<float, 3> dk, Tile<float, 3> dv, View<const float, 3> g,
    View<const float, 3> q, View<const float, 3> k, View<const float, 3> v,
    View<const float, 3> sums, View<const float, 3> dots, float scale, bool causal
) {
    __shared__ float a[16 * 64], b[16 * 64], c[64 * 65], d[64 * 65];
    switch (q.extent(2)) {
        case 16:
            return slopes<16>(
                dk, dv, g, q, k, v, sums, dots, scale, causal, a, b, c, d);
        case 32:
            return slopes<32>(
                dk, dv, g, q, k, v, sums, dots, scale, causal, a, b, c, d);
        case 64:
            return slopes<64>(
                dk, dv, g, q, k, v, sums, dots, scale, causal, a, b, c, d);
    }
}
"""


@kernel(cuda=BY_KEYS_CU, block=ROWS)
def by_keys(
    dk: Out[f32],
    dv: Out[f32],
    g: In[f32],
    q: In[f32],
    k: In[f32],
    v: In[f32],
    sums: In[f32],
    dots: In[f32],
    scale: float,
    causal: bool,
) -> None:
    """dk = scale S' q and dv = P' g for each head, both (heads, n, width), cut into
    (1, ROWS, width)."""


def weights_again(
    q: NDArray[f32],
    k: NDArray[f32],
    sums: NDArray[f32],
    scale: float,
    causal: bool,
) -> NDArray[f32]:
    """Return the weights P of all heads, in NumPy."""
    scores = (q * f32(scale)) @ k.transpose(0, 2, 1) - sums
    if causal:
        scores[:, np.triu(np.ones(scores.shape[1:], np.bool_), 1)] = -np.inf
    weights: NDArray[f32] = np.exp(scores, out=scores)
    return weights


@by_queries.host(whole=True)
def _(
    dq: Tile[f32],
    g: NDArray[f32],
    q: NDArray[f32],
    k: NDArray[f32],
    v: NDArray[f32],
    sums: NDArray[f32],
    dots: NDArray[f32],
    scale: float,
    causal: bool,
) -> None:
    weights = weights_again(q, k, sums, scale, causal)
    s = weights * (g @ v.transpose(0, 2, 1) - dots)
    dq[...] = (s @ k) * f32(scale)


@by_keys.host(whole=True)
def _(
    dk: Tile[f32],
    dv: Tile[f32],
    g: NDArray[f32],
    q: NDArray[f32],
    k: NDArray[f32],
    v: NDArray[f32],
    sums: NDArray[f32],
    dots: NDArray[f32],
    scale: float,
    causal: bool,
) -> None:
    weights = weights_again(q, k, sums, scale, causal)
    s = weights * (g @ v.transpose(0, 2, 1) - dots)
    dk[...] = s.transpose(0, 2, 1) @ (q * f32(scale))
    dv[...] = weights.transpose(0, 2, 1) @ g


@gradient_of(attention.new)
def _(
    g: tuple[Shared | None, Shared | None],
    y: tuple[Shared, Shared],
    q: Shared,
    k: Shared,
    v: Shared,
    scale: float,
    causal: bool,
) -> DeviceOp[Any, Any]:
    """The gradient by a sum adds to each score's what its weight is, so it counts
    against D."""
    (up, by_sums), (o, sums) = g, y
    assert up is not None, "the result is what a loss is made of"
    inner = product.sum(-1, keepdims=True)(up, o)
    dots = inner if by_sums is None else difference(inner, by_sums)
    tile = (1, ROWS, q.shape[2])

    def with_dots(dots: Shared) -> DeviceOp[Any, Any]:
        given = (up, q, k, v, sums, dots, scale, causal)
        of_queries = by_queries.new(q.shape, tile, partial=True)(*given)
        of_keys = by_keys.new((k.shape, v.shape), (tile, tile), partial=True)(*given)
        return zip_ops(of_queries, of_keys).map(lambda p: (p[0], *p[1], None, None))

    return dots.map(lambda t: t.share()).then(with_dots)


def attend(
    q: In[f32], k: In[f32], v: In[f32], shape: tuple[int, ...], *, causal: bool
) -> DeviceOp[Tensor[f32], Any]:
    """Return the op of the attention of some heads, all of one shape, (heads, n,
    width)."""
    shapes = shape, (*shape[:2], 1)
    tiles = (1, ROWS, shape[2]), (1, ROWS, 1)
    new = attention.new(shapes, tiles, partial=True)
    return new(q, k, v, 1 / math.sqrt(shape[2]), causal).first()
