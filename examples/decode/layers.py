"""The feed-forward part of examples/decode's layers, and both ends of the model,
between tokens and the stream x."""

from typing import Generic, final

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, i32, kernel
from examples.decode.parts import (
    NORM,
    WARPS,
    Floats,
    Sizes,
    W,
    head_of,
    normalised,
    single,
)

# two for each of the 132 multiprocessors of an H200: all run at once, and equally long
SCORE_BLOCKS = 264

GATE_UP = """
__global__ void gate_up(
    Tile<float, 1> h, View<const float, 1> x, View<const float, 2> gains,
    View<const Weight, 4> w, int layer
) {
    const int columns = x.extent(0), end = h.origin(0) + h.tile_extent(0);
    const auto rows_at = [&](int row) {
        return row < end ? Rows{&w(layer, row, 0, 0), static_cast<size_t>(columns)}
                         : Rows{};
    };
    int row = h.origin(0) + warp();
    Products<2> products;
    products.begin(rows_at(row), columns);
    launch_dependents();
    stage_gains(gains, layer);
    wait_for_inputs();
    const float scale = stage_normalised(x);
    for (; row < end; row += warps()) {
        products.finish(rows_at(row), rows_at(row + warps()), columns);
        const float gate = products.sum[0] * scale, up = products.sum[1] * scale;
        if (lane() == 0) h[row] = gate / (1.0f + expf(-gate)) * up;
    }
}
"""

# A warp computes one row.
ADD_DOWN = """
__global__ void add_down(
    Tile<float, 1> x, View<const float, 1> h, View<const Weight, 3> w, int layer
) {
    const int columns = h.extent(0), row = x.origin(0) + warp();
    const bool mine = warp() < x.tile_extent(0);
    const Rows one = {mine ? &w(layer, row, 0) : nullptr};
    Products<1> products;
    products.begin(one, columns);
    launch_dependents();
    wait_for_inputs();
    const float before = mine ? x[row] : 0.0f;
    each_quad(h.data(), columns, [](float4 four, float4& place) { place = four; });
    __syncthreads();
    if (!mine) return;
    products.finish(one, Rows{}, columns);
    if (lane() == 0) x[row] = before + products.sum[0];
}
"""

# It also writes the position to the memory from which the other kernels read it. So
# only this node of a graph has to be updated.
EMBED = """
__global__ void embed(
    Tile<float, 1> x, Tile<int, 1> at, View<const int, 1> token,
    View<const Weight, 2> table, int position
) {
    const Weight* row = table.data() + static_cast<size_t>(token[0]) * table.extent(1);
    for (auto column : x) x[column] = static_cast<float>(row[column]);
    if (threadIdx.x == 0) at[0] = position;
}
"""

# Both kernels choose the first of equal logits, like np.argmax.
SCORE = """
__global__ void score(
    Tile<float, 1> best, Tile<int, 1> where, View<const float, 1> x,
    View<const float, 2> gains, View<const Weight, 2> table
) {
    __shared__ float bests[32];
    __shared__ int wheres[32];
    const int columns = x.extent(0), blocks = best.extent(0), block = best.origin(0);
    const int share = (table.extent(0) + blocks - 1) / blocks;
    const int end = min((block + 1) * share, static_cast<int>(table.extent(0)));
    int row = block * share + 2 * warp(), at = 0;
    float top = -INFINITY;
    // the last row twice, where there is no second one
    const auto rows_at = [&](int from) {
        const Weight* first = table.data() + static_cast<size_t>(from) * columns;
        return from < end
                   ? Rows{first, static_cast<size_t>(from + 1 < end ? columns : 0)}
                   : Rows{};
    };
    Products<2> products;
    products.begin(rows_at(row), columns);
    launch_dependents();
    stage_gains(gains, 0);
    wait_for_inputs();
    const float scale = stage_normalised(x);
    for (; row < end; row += 2 * warps()) {
        products.finish(rows_at(row), rows_at(row + 2 * warps()), columns);
        const float first = products.sum[0] * scale, second = products.sum[1] * scale;
        if (first > top) top = first, at = row;
        if (second > top) top = second, at = row + 1;
    }
    if (lane() == 0) bests[warp()] = top, wheres[warp()] = at;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < warps(); ++w)
        if (bests[w] > top || (bests[w] == top && wheres[w] < at))
            top = bests[w], at = wheres[w];
    best[block] = top;
    where[block] = at;
}
"""

PICK = """
__global__ void pick(
    Tile<int, 1> token, View<const float, 1> best, View<const int, 1> where
) {
    wait_for_inputs();
    float top = -INFINITY;
    int at = 0x7fffffff;
    // one warp; blocks have their rows in order
    for (int i = lane(); i < best.extent(0); i += 32)
        if (best[i] > top) top = best[i], at = where[i];
    for (int offset = 16; offset; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, top, offset);
        const int place = __shfl_xor_sync(0xffffffffu, at, offset);
        if (other > top || (other == top && place < at)) top = other, at = place;
    }
    if (lane() == 0) token[0] = at;
}
"""


@final
class FeedForward(Generic[W]):
    """The two kernels of SwiGLU (arXiv:2002.05202, equation 6)."""

    def __init__(self, element: type[W], sizes: Sizes, early: bool = True) -> None:
        of_gate_up = ("gains", "w") if early else None

        @kernel(
            cuda=head_of(element) + NORM + GATE_UP, block=256, early_reads=of_gate_up
        )
        def gate_up(
            h: Out[f32], x: In[f32], gains: In[f32], w: In[W], layer: int,
        ) -> None:  # fmt: skip
            """h (ffn,) = silu(gate) * up, for the products of the normalised x with w
            (layers, ffn, 2, hidden)."""

        @gate_up.host(whole=True)
        def _(
            h: Tile[f32], x: Floats, gains: Floats, w: NDArray[W], layer: int
        ) -> None:
            gate, up = (single(w[layer]) @ normalised(x, gains[layer])).T
            h[:] = gate / (1 + np.exp(-gate)) * up

        @kernel(
            cuda=head_of(element) + ADD_DOWN,
            block=512,
            early_reads=("w",) if early else None,
        )
        def add_down(x: Out[f32], h: In[f32], w: In[W], layer: int) -> None:
            """x += w[layer] h, for h (ffn,) and w (layers, hidden, ffn)."""

        @add_down.host(whole=True)
        def _(x: Tile[f32], h: Floats, w: NDArray[W], layer: int) -> None:
            x += single(w[layer]) @ h

        self.gate_up = gate_up.shared_memory(4 * sizes.hidden)
        self.add_down = add_down.shared_memory(4 * sizes.ffn)


@final
class Vocabulary(Generic[W]):
    """The kernels from a token to its embedding, and from the last layer to the next
    token. Both use one table."""

    def __init__(self, element: type[W], sizes: Sizes, early: bool = True) -> None:
        @kernel(cuda=f"{head_of(element, products=False)}{EMBED}", block=512)
        def embed(
            x: Out[f32], at: Out[i32], token: In[i32], table: In[W], position: int
        ) -> None:
            """x (hidden,) = the row of token (1,) in table (vocabulary, hidden); at
            (1,) = position."""

        @embed.host(whole=True)
        def _(
            x: Tile[f32],
            at: Tile[i32],
            token: NDArray[i32],
            table: NDArray[W],
            position: int,
        ) -> None:
            x[:] = single(table[token[0]])
            at[:] = position

        of_score = ("gains", "table") if early else None

        @kernel(cuda=head_of(element) + NORM + SCORE, block=256, early_reads=of_score)
        def score(
            best: Out[f32], where: Out[i32], x: In[f32], gains: In[f32], table: In[W]
        ) -> None:
            """best and where (blocks,) = the largest logit in each block of rows of the
            table, and its row."""

        @score.host
        def _(
            best: Tile[f32],
            where: Tile[i32],
            x: Floats,
            gains: Floats,
            table: NDArray[W],
        ) -> None:
            share = -(-len(table) // blocks)
            begin = min(best.index[0] * share, len(table))
            logits = single(table[begin : min(begin + share, len(table))]) @ normalised(
                x, gains[0]
            )
            best[0] = logits.max(initial=-np.inf)
            where[0] = begin + logits.argmax() if len(logits) else 0

        self.blocks = blocks = min(SCORE_BLOCKS, -(-sizes.vocabulary // 8))
        """Number of blocks of the table."""
        self.embed = embed
        self.score = score.shared_memory(4 * sizes.hidden)


@kernel(cuda=WARPS + PICK, block=32, early_reads=())
def pick(token: Out[i32], best: In[f32], where: In[i32]) -> None:
    """token (1,) = where[i] of the largest best[i]; the first of equal ones."""


@pick.host
def _(token: Tile[i32], best: Floats, where: NDArray[i32]) -> None:
    token[0] = where[best.argmax()]
