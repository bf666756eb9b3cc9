"""The kernel of examples/flash_attention's pass forward, in CUDA C++, and in NumPy for
machines without a GPU."""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, kernel

ROWS = 64
"""Number of queries of one block, with a thread for each."""
KEYS = 128
"""Number of keys that the host body processes at a time.

The CUDA code takes 16, so that scores stay in registers.
"""
WIDTHS = (16, 32, 64)
"""Widths of a head that the CUDA code is compiled for.

At 128, a query and its sums do not fit into registers.
"""

# A thread has one query and its sums in registers, so the width is fixed when the code
# is compiled. Keys and values go through shared memory, a block of them at a time; all
# threads of a warp read the same four elements, which costs one access. Scores never
# leave the registers: the (n, n) matrix of scores is never stored.
ATTENTION_CU = """
template <int WIDTH>
__device__ void attend(
    Tile<float, 3> o, Tile<float, 3> sums, View<const float, 3> q,
    View<const float, 3> k, View<const float, 3> v, float scale, bool causal,
    float* keys, float* values
) {
    const int KEYS = 16;
    const int head = o.origin(0), first = o.origin(1), rows = o.tile_extent(1),
              count = k.extent(1);
    const int me = threadIdx.x, all = blockDim.x, row = first + min(me, rows - 1);
    // no query of this block sees a key from here on
    const int until = causal ? first + rows : count;

    float query[WIDTH], sum[WIDTH], top = -INFINITY, total = 0.0f;
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) {
        query[d] = scale * q(head, row, d);
        sum[d] = 0.0f;
    }
    for (int start = 0; start < until; start += KEYS) {
        for (int at = me; at < KEYS * WIDTH; at += all) {
            const int key = at / WIDTH, d = at % WIDTH;
            const bool there = start + key < count;
            keys[at] = there ? k(head, start + key, d) : 0.0f;
            values[at] = there ? v(head, start + key, d) : 0.0f;
        }
        __syncthreads();
        float scores[KEYS], highest = top;
        #pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            float score = 0.0f;
            #pragma unroll
            for (int d = 0; d < WIDTH; d += 4) {
                const float4 x =
                    *reinterpret_cast<const float4*>(keys + key * WIDTH + d);
                score += query[d] * x.x + query[d + 1] * x.y + query[d + 2] * x.z +
                         query[d + 3] * x.w;
            }
            const bool seen = start + key < count && !(causal && start + key > row);
            scores[key] = seen ? score : -INFINITY;
            highest = fmaxf(highest, scores[key]);
        }
        // What was summed so far is in units of exp(top): to those of exp(highest). Key
        // 0 is in the first block and every query sees it, so highest is finite.
        const float shrink = expf(top - highest);
        top = highest;
        total *= shrink;
        #pragma unroll
        for (int d = 0; d < WIDTH; ++d) sum[d] *= shrink;
        #pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            const float weight = expf(scores[key] - top);
            total += weight;
            #pragma unroll
            for (int d = 0; d < WIDTH; d += 4) {
                const float4 x =
                    *reinterpret_cast<const float4*>(values + key * WIDTH + d);
                sum[d] += weight * x.x;
                sum[d + 1] += weight * x.y;
                sum[d + 2] += weight * x.z;
                sum[d + 3] += weight * x.w;
            }
        }
        __syncthreads();
    }
    if (me >= rows) return;
    #pragma unroll
    for (int d = 0; d < WIDTH; ++d) o(head, row, d) = sum[d] / total;
    sums(head, row, 0) = top + logf(total);
}

__global__ void attention(
    Tile<float, 3> o, Tile<float, 3> sums, View<const float, 3> q,
    View<const float, 3> k, View<const float, 3> v, float scale, bool causal
) {
    __shared__ __align__(16) float keys[16 * 64], values[16 * 64];
    switch (q.extent(2)) {
        case 16: return attend<16>(o, sums, q, k, v, scale, causal, keys, values);
        case 32: return attend<32>(o, sums, q, k, v, scale, causal, keys, values);
        case 64: return attend<64>(o, sums, q, k, v, scale, causal, keys, values);
    }
}
"""


@kernel(cuda=ATTENTION_CU, block=ROWS)
def attention(
    o: Out[f32],
    sums: Out[f32],
    q: In[f32],
    k: In[f32],
    v: In[f32],
    scale: float,
    causal: bool,
) -> None:
    """o = softmax(scale q k^T) v for each head; all are (heads, n, width). If `causal`,
    a query sees only the keys up to its own place. o is cut into (1, ROWS, width), and
    `width` is one of WIDTHS. `sums`, (heads, n, 1), cut into (1, ROWS, 1), has the
    logarithm of the sum of exp(score) for each query, which the pass back reads.

    Keys are processed in blocks, with an online softmax (Dao et al., FlashAttention,
    arXiv:2205.14135, algorithm 1): the highest score so far, the sum of exp(score -
    highest), and the same sum weighted by the values.
    """


@attention.host(whole=True)
def _(
    o: Tile[f32],
    sums: Tile[f32],
    q: NDArray[f32],
    k: NDArray[f32],
    v: NDArray[f32],
    scale: float,
    causal: bool,
) -> None:
    query, count = q * f32(scale), k.shape[1]
    top, total = np.full(o.shape[:2], -np.inf, f32), np.zeros(o.shape[:2], f32)
    o[...] = 0
    for start in range(0, count, KEYS):
        keys = slice(start, min(start + KEYS, count))
        # the queries that see any of these keys
        rows = slice(start if causal else 0, None)
        scores = query[:, rows] @ k[:, keys].transpose(0, 2, 1)
        if causal:
            scores[:, np.triu(np.ones(scores.shape[1:], np.bool_), 1)] = -np.inf
        highest = np.maximum(top[:, rows], scores.max(axis=2))
        shrink = np.exp(top[:, rows] - highest)
        scores -= highest[:, :, None]
        weights = np.exp(scores, out=scores)
        top[:, rows] = highest
        total[:, rows] = total[:, rows] * shrink + weights.sum(axis=2)
        o[:, rows] = o[:, rows] * shrink[:, :, None] + weights @ v[:, keys]
    o /= total[:, :, None]
    sums[...] = (top + np.log(total))[:, :, None]
