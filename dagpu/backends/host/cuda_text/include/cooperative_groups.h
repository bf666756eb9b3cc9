// Cooperative groups: the block, the grid and tiles of a warp.
#pragma once
#include "dagpu_device.h"

namespace cooperative_groups {
struct thread_block {
    DAGPU_HERE static void sync() { dagpu_sync_block(0, 0); }
    DAGPU_HERE static unsigned thread_rank() { return dagpu_thread(); }
    DAGPU_HERE static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    DAGPU_HERE static unsigned num_threads() { return size(); }
    DAGPU_HERE static dim3 group_index() { return blockIdx; }
    DAGPU_HERE static dim3 thread_index() { return threadIdx; }
    DAGPU_HERE static dim3 group_dim() { return blockDim; }
    DAGPU_HERE static dim3 dim_threads() { return blockDim; }
};
DAGPU_HERE thread_block this_thread_block() { return {}; }
struct grid_group {
    DAGPU_HERE void sync() const { dagpu_sync_grid(); }
    DAGPU_HERE bool is_valid() const { return true; }
    DAGPU_HERE unsigned long long block_rank() const {
        return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
    }
    DAGPU_HERE unsigned long long num_blocks() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    DAGPU_HERE unsigned long long thread_rank() const { return block_rank() * thread_block::size() + dagpu_thread(); }
    DAGPU_HERE unsigned long long size() const { return num_blocks() * thread_block::size(); }
    DAGPU_HERE unsigned long long num_threads() const { return size(); }
    DAGPU_HERE dim3 group_dim() const { return gridDim; }
};
DAGPU_HERE grid_group this_grid() { return {}; }
template <unsigned N, class Parent = void> struct thread_block_tile {
    static_assert(N <= 32, "tiles of more than a warp run on a GPU alone");
    thread_block_tile() = default;
    template <class Q> DAGPU_HERE thread_block_tile(thread_block_tile<N, Q>) {}
    DAGPU_HERE unsigned thread_rank() const { return dagpu_lane() % N; }
    static constexpr DAGPU_HERE unsigned size() { return N; }
    static constexpr DAGPU_HERE unsigned num_threads() { return N; }
    DAGPU_HERE unsigned meta_group_rank() const { return dagpu_thread() / N; }
    DAGPU_HERE unsigned meta_group_size() const { return (thread_block::size() + N - 1) / N; }
    DAGPU_HERE unsigned first() const { return N == 32 ? 0 : dagpu_lane() / N * N; }
    DAGPU_HERE unsigned mask() const { return N == 32 ? ~0u : ((1u << N % 32) - 1) << first(); }
    DAGPU_HERE void sync() const { __syncwarp(mask()); }
    template <class T> DAGPU_HERE T shfl(T v, int from) const { return __shfl_sync(mask(), v, from, N); }
    template <class T> DAGPU_HERE T shfl_up(T v, unsigned by) const { return __shfl_up_sync(mask(), v, by, N); }
    template <class T> DAGPU_HERE T shfl_down(T v, unsigned by) const { return __shfl_down_sync(mask(), v, by, N); }
    template <class T> DAGPU_HERE T shfl_xor(T v, int by) const { return __shfl_xor_sync(mask(), v, by, N); }
    DAGPU_HERE unsigned ballot(int p) const { return __ballot_sync(mask(), p) >> first(); }
    DAGPU_HERE int any(int p) const { return __any_sync(mask(), p); }
    DAGPU_HERE int all(int p) const { return __all_sync(mask(), p); }
    template <class T> DAGPU_HERE unsigned match_any(T v) const { return __match_any_sync(mask(), v) >> first(); }
};
template <unsigned N, class G> DAGPU_HERE thread_block_tile<N, G> tiled_partition(const G&) { return {}; }
template <class G> DAGPU_HERE void sync(const G& g) { g.sync(); }
template <class T> struct plus { DAGPU_HERE T operator()(T a, T b) const { return a + b; } };
template <class T> struct greater { DAGPU_HERE T operator()(T a, T b) const { return a > b ? a : b; } };
template <class T> struct less { DAGPU_HERE T operator()(T a, T b) const { return a < b ? a : b; } };
template <unsigned N, class P, class T, class F> DAGPU_HERE T reduce(const thread_block_tile<N, P>& g, T v, F f) {
    for (unsigned o = N / 2; o; o /= 2) v = f(v, g.shfl_xor(v, o));
    return v;
}
}  // namespace cooperative_groups
