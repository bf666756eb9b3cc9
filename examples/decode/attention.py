"""The attention of examples/decode: grouped queries against a cache of keys and values.

A key-value head serves a `group` of queries. The positions of the cache are cut into
`splits`, each the work of one block, so that one query keeps the whole GPU busy
(flash-decoding).
"""

from typing import Generic, final

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, i32, kernel
from examples.decode.parts import (
    NORM,
    PADDING,
    Floats,
    Sizes,
    W,
    head_of,
    normalised,
    single,
)

PAIR = 2
"""Number of coordinates that rotate together.

A block of `project_qkv` has one such pair of each row.
"""

# A block computes one pair of coordinates of one key-value head: of each of the group's
# queries, of the key and of the value. So it can rotate its own results, and it writes
# the key and the value directly into the cache.
PROJECT_QKV = """
__global__ void project_qkv(
    Tile<float, 5> q, Tile<Weight, 5> cache, View<const float, 1> x,
    View<const float, 2> gains, View<const Weight, 5> w,
    View<const float, 1> frequencies, View<const int, 1> at, int layer
) {
    const int head = q.origin(1), group = q.extent(3), pair = q.origin(4),
              columns = x.extent(0), job = warp();
    const Rows two = {&w(layer, head, job, pair, 0), static_cast<size_t>(columns)};
    Products<2> rows;
    rows.begin(two, columns);
    launch_dependents();
    const float frequency = frequencies[pair / 2];
    stage_gains(gains, layer);
    wait_for_inputs();
    const int position = at[0];
    const float scale = stage_normalised(x);
    float sine, cosine;
    sincosf(static_cast<float>(position) * frequency, &sine, &cosine);
    rows.finish(two, Rows{}, columns);
    if (lane() != 0) return;
    const float a = rows.sum[0] * scale, b = rows.sum[1] * scale;
    if (job > group) {
        cache(layer, head, 1, position, pair) = Weight(a);
        cache(layer, head, 1, position, pair + 1) = Weight(b);
        return;
    }
    const float turned = a * cosine - b * sine, across = b * cosine + a * sine;
    if (job == group) {
        cache(layer, head, 0, position, pair) = Weight(turned);
        cache(layer, head, 0, position, pair + 1) = Weight(across);
    } else {
        q(0, head, 0, job, pair) = turned;
        q(0, head, 0, job, pair + 1) = across;
    }
}
"""

# The threads that hold one row of keys, `width` of them, go through their share of the
# positions by themselves, with a running maximum (arXiv:1805.02867). The results of the
# teams of a block are merged at its end; those of the blocks are merged by the kernel
# that uses them.
ATTEND = """
// a finite number, so that the difference of two is one
constexpr float LEAST = -1e30f;
// positions whose keys and values a thread has in flight
constexpr int BATCH = 4;

struct Softmax {
    float top = LEAST, total = 0.0f, sum[WIDE] = {};

    __device__ void raise(float highest) {
        const float mine = expf(top - highest);
        top = highest;
        total *= mine;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sum[j] *= mine;
    }
    __device__ void merge(
        float other_top, float other_total, const float (&other)[WIDE]
    ) {
        raise(fmaxf(top, other_top));
        const float theirs = expf(other_top - top);
        total += other_total * theirs;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sum[j] += other[j] * theirs;
    }
};

__global__ void attend(
    Tile<float, 5> partial, Tile<Weight, 5> cache, View<const float, 5> q,
    View<const int, 1> at, int layer
) {
    const int head = cache.origin(1), begin = cache.origin(3),
              stop = begin + cache.tile_extent(3);
    const int group = q.extent(3), dim = q.extent(4);
    const int width = dim / WIDE, teams = 32 / width, part = lane() % width,
              team = lane() / width;
    const int member = warp() % group, turn = warp() / group, turns = warps() / group;
    // positions of a block: at a time, and in flight
    const int stride = turns * teams, batch = BATCH * stride;
    const Weight* keys = &cache(layer, head, 0, begin, 0);
    const Weight* values = keys + static_cast<size_t>(cache.extent(3)) * dim;
    launch_dependents();
    // the kernel before may still write them: what is in the L2 cache changes with them
    if (threadIdx.x == 0) {
        prefetch(keys, min(stop - begin, 2 * batch) * dim);
        prefetch(values, min(stop - begin, 2 * batch) * dim);
    }
    wait_for_inputs();

    uint4 key[BATCH], value[BATCH];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const size_t place = min(first + i * stride + team, stop - 1) - begin;
            key[i] = load_once(keys + place * dim + part * WIDE);
            value[i] = load_once(values + place * dim + part * WIDE);
        }
    };
    int first = begin + turn * teams;  // the same for a warp
    load(first);
    float query[WIDE];
    const float* given = &q(0, head, 0, member, part * WIDE);
#pragma unroll
    for (int j = 0; j < WIDE; ++j)
        query[j] = given[j] * rsqrtf(static_cast<float>(dim));
    const int end = min(stop, at[0] + 1);
    Softmax softmax;
    while (first < end) {
        float score[BATCH] = {}, highest = softmax.top;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            float k[WIDE];
            widen(key[i], keys, k);
#pragma unroll
            for (int j = 0; j < WIDE; ++j) score[i] = fmaf(query[j], k[j], score[i]);
        }
        for (int offset = 1; offset < width; offset *= 2)
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
                score[i] += __shfl_xor_sync(0xffffffffu, score[i], offset);
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (first + i * stride + team < end) highest = fmaxf(highest, score[i]);
        softmax.raise(highest);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (first + i * stride + team >= end) continue;
            const float share = expf(score[i] - highest);
            float v[WIDE];
            widen(value[i], values, v);
            softmax.total += share;
#pragma unroll
            for (int j = 0; j < WIDE; ++j)
                softmax.sum[j] = fmaf(share, v[j], softmax.sum[j]);
        }
        first += batch;
        if (first < end) load(first);
    }
    for (int offset = width; offset < 32; offset *= 2) {
        float other[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; ++j)
            other[j] = __shfl_xor_sync(0xffffffffu, softmax.sum[j], offset);
        const float top = __shfl_xor_sync(0xffffffffu, softmax.top, offset);
        softmax.merge(top, __shfl_xor_sync(0xffffffffu, softmax.total, offset), other);
    }

    // Of each warp: dim sums, then the maximum and the total; four more floats in all,
    // to keep to 16 bytes.
    float* found = reinterpret_cast<float*>(staged);
    float* mine = found + warp() * (dim + 4);
    if (team == 0) {
#pragma unroll
        for (int j = 0; j < WIDE; ++j) mine[part * WIDE + j] = softmax.sum[j];
        mine[dim] = softmax.top;
        mine[dim + 1] = softmax.total;
    }
    __syncthreads();
    if (turn != 0 || team != 0) return;
    for (int later = 1; later < turns; ++later) {
        const float* theirs = mine + later * group * (dim + 4);
        float other[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; ++j) other[j] = theirs[part * WIDE + j];
        softmax.merge(theirs[dim], theirs[dim + 1], other);
    }
    const int split = partial.origin(3), out = member * (dim + 4);
#pragma unroll
    for (int j = 0; j < WIDE; ++j)
        partial(0, head, 0, split, out + part * WIDE + j) = softmax.sum[j];
    float4* rest = reinterpret_cast<float4*>(&partial(0, head, 0, split, out + dim));
    if (part == 0) *rest = {softmax.top, softmax.total, 0.0f, 0.0f};
}
"""

# Every block merges the splits of all heads itself, while its first weights are being
# loaded. A separate kernel would take longer: its launch alone does. A warp computes
# one row.
ADD_ATTENTION = """
__global__ void add_attention(
    Tile<float, 1> x, View<const float, 5> partial, View<const Weight, 3> w, int layer
) {
    const int columns = w.extent(2), heads = partial.extent(1),
              splits = partial.extent(3);
    const int row = x.origin(0) + warp();
    const bool mine = warp() < x.tile_extent(0);
    const Rows one = {mine ? &w(layer, row, 0) : nullptr};
    Products<1> products;
    products.begin(one, columns);
    launch_dependents();
    wait_for_inputs();
    const float before = mine ? x[row] : 0.0f;
    // floats of a split; columns of a key-value head
    const int stride = partial.extent(4), own = columns / heads;
    const int group = (stride - own) / 4, dim = own / group;
    for (int quad = threadIdx.x; quad < columns / 4; quad += blockDim.x) {
        const int head = 4 * quad / own, member = 4 * quad % own / dim,
                  place = 4 * quad % dim;
        const float* found =
            partial.data() + head * splits * stride + member * (dim + 4);
        float top = -1e30f, total = 0.0f;
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int split = 0; split < splits; ++split, found += stride) {
            const float4 theirs = *reinterpret_cast<const float4*>(found + place);
            // maximum and total
            const float2 rest = *reinterpret_cast<const float2*>(found + dim);
            const float highest = fmaxf(top, rest.x), a = expf(top - highest),
                        b = expf(rest.x - highest);
            top = highest;
            total = total * a + rest.y * b;
            sum.x = sum.x * a + theirs.x * b, sum.y = sum.y * a + theirs.y * b;
            sum.z = sum.z * a + theirs.z * b, sum.w = sum.w * a + theirs.w * b;
        }
        staged[place_of(quad, columns)] =
            float4{sum.x / total, sum.y / total, sum.z / total, sum.w / total};
    }
    __syncthreads();
    if (!mine) return;
    products.finish(one, Rows{}, columns);
    if (lane() == 0) x[row] = before + products.sum[0];
}
"""


def turned(x: Floats, frequencies: Floats, position: int) -> Floats:
    """Apply rotary embedding to vectors (..., head): rotate each pair of neighbours
    (arXiv:2104.09864, 3.2.2)."""
    angle = np.float32(position) * frequencies
    sine, cosine = np.sin(angle), np.cos(angle)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cosine - b * sine, b * cosine + a * sine], axis=-1).reshape(
        x.shape
    )


@final
class Attention(Generic[W]):
    """The three kernels of attention, for weights and cache of type `W`."""

    def __init__(self, element: type[W], sizes: Sizes, early: bool = True) -> None:
        self._declare_project_qkv(element, sizes, early)
        self._declare_attend(element, sizes, early)
        self._declare_add_attention(element, sizes, early)

    def _declare_project_qkv(self, element: type[W], sizes: Sizes, early: bool) -> None:
        group = sizes.group
        of_qkv = ("gains", "w", "frequencies") if early else None

        @kernel(
            cuda=head_of(element) + NORM + PROJECT_QKV,
            block=32 * (group + 2),
            early_reads=of_qkv,
        )
        def project_qkv(
            q: Out[f32], cache: Out[W], x: In[f32], gains: In[f32], w: In[W],
            frequencies: In[f32], at: In[i32], layer: int,
        ) -> None:  # fmt: skip
            """Compute queries, key and value of position at[0] from the normalised x
            (hidden,); rotate the first two.

            q (1, kv_heads, 1, group, head) is written whole, cache (layers, kv_heads,
            2, positions, head) at the layer and the position: the key at 0 of its third
            axis, the value at 1. w (layers, kv_heads, group + 2, head, hidden) has the
            rows of a group's queries, then of its key, then of its value; frequencies
            (head / 2,).
            """

        @project_qkv.host(whole=True)
        def _(
            q: Tile[f32], cache: Tile[W], x: Floats, gains: Floats, w: NDArray[W],
            frequencies: Floats, at: NDArray[i32], layer: int,
        ) -> None:  # fmt: skip
            position = int(at[0])
            rows = single(w[layer]) @ normalised(x, gains[layer])
            q[0, :, 0] = turned(rows[:, :group], frequencies, position)
            cache[layer, :, 0, position] = turned(rows[:, group], frequencies, position)
            cache[layer, :, 1, position] = rows[:, group + 1]

        self.project_qkv = project_qkv.shared_memory(4 * sizes.hidden)

    def _declare_attend(self, element: type[W], sizes: Sizes, early: bool) -> None:
        head, group, turns = sizes.head, sizes.group, sizes.turns
        found = head + PADDING
        of_attend = () if early else None

        @kernel(
            cuda=head_of(element, products=False) + ATTEND,
            block=32 * turns * group,
            early_reads=of_attend,
        )
        def attend(
            partial: Out[f32], cache: Out[W], q: In[f32], at: In[i32], layer: int,
        ) -> None:  # fmt: skip
            """Compute the attention of the queries to each split of a layer's cache, up
            to at[0]. It reads the cache.

            For each query, partial (1, kv_heads, 1, splits, group * (head + 4)) has the
            sum of the values, weighted with exp(score - maximum), then that maximum,
            then the sum of the weights. The cache is an output because it is lent for
            writing: the kernel must read it through the loan by which it is written.
            """

        @attend.host
        def _(
            partial: Tile[f32], cache: Tile[W], q: Floats, at: NDArray[i32], layer: int
        ) -> None:
            kv_head, begin, end = (
                cache.at[1].start,
                cache.at[3].start,
                min(cache.at[3].stop, int(at[0]) + 1),
            )
            out = partial.reshape(group, found)
            out[:] = 0
            out[:, head] = -1e30
            if end > begin:
                keys, values = (
                    single(cache[layer, 0, part, : end - begin]) for part in (0, 1)
                )
                scores = q[0, kv_head, 0] @ keys.T / np.sqrt(np.float32(head))
                out[:, head] = scores.max(axis=1)
                weights = np.exp(scores - out[:, head, None])
                out[:, :head], out[:, head + 1] = weights @ values, weights.sum(axis=1)

        self.attend = attend.shared_memory(4 * turns * group * found)

    def _declare_add_attention(
        self, element: type[W], sizes: Sizes, early: bool
    ) -> None:
        head, group, found = sizes.head, sizes.group, sizes.head + PADDING

        @kernel(
            cuda=head_of(element) + ADD_ATTENTION,
            block=512,
            early_reads=("w",) if early else None,
        )
        def add_attention(x: Out[f32], partial: In[f32], w: In[W], layer: int) -> None:
            """x += w[layer] a, for w (layers, hidden, heads * head) and an a that is
            merged from `partial`."""

        @add_attention.host(whole=True)
        def _(x: Tile[f32], partial: Floats, w: NDArray[W], layer: int) -> None:
            parts = partial.reshape(sizes.kv_heads, sizes.splits, group, found)
            tops, totals = parts[..., head : head + 1], parts[..., head + 1 : head + 2]
            weights = np.exp(tops - tops.max(axis=1, keepdims=True))
            merged = (parts[..., :head] * weights).sum(axis=1) / (totals * weights).sum(
                axis=1
            )
            x += single(w[layer]) @ merged.reshape(-1)

        self.add_attention = add_attention.shared_memory(4 * sizes.heads * head)
