"""The CUDA texts of a radix sort of rows, least significant digit first: elements are moved into the order of one digit
of 8 bits after another, and equal digits keep their order.

`sort_tile` sorts a tile of a row in one block. A longer row takes three launches for each digit. `count_digits` counts
the digits of each tile, `add_up_counts` adds up what lies before each tile, and `scatter_by_digit` moves the elements.

Elements are unsigned numbers with the bits of the elements, so that every bit of a NaN and the sign of a zero survive.
`digit_of` alone knows their order.
"""

from typing import Any, Final

import numpy as np

BITS: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
"""The C++ type of as many bits as an element of this many bytes has."""

ORDER: Final = """\
typedef {element} Element;
typedef {key} Key;
constexpr int THREADS = {threads}, EACH = {each}, SPAN = THREADS * EACH, WARPS = THREADS / 32;

// A digit of a number that has the order of the elements, and is equal for equal ones.
__device__ __forceinline__ int digit_of(Element element, int shift) {{
    const Key x = element;
{order}
    return static_cast<int>(ordered >> shift & 255);
}}

// How many of a block's elements there are, of those that are left of a row.
__device__ __forceinline__ int elements_of(dagpu::index_t left) {{
    return left < SPAN ? static_cast<int>(left) : SPAN;
}}
"""

RANKS: Final = """
// The lanes of this warp whose threads give the same digit. The compiler makes twice as many instructions of C++.
__device__ __forceinline__ unsigned int lanes_with(int digit) {
    unsigned int same = 0xffffffffu;
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
        unsigned int alike;
#if defined(__CUDA_ARCH__) && !defined(DAGPU_EMULATED)
        asm volatile("{ .reg .pred set; .reg .b32 masked; and.b32 masked, %1, %2; setp.ne.u32 set, masked, 0;"
            "  vote.sync.ballot.b32 %0, set, 0xffffffff; @!set not.b32 %0, %0; }"
            : "=r"(alike) : "r"(digit), "r"(1 << bit));
#else
        const bool set = digit >> bit & 1;
        alike = __ballot_sync(0xffffffffu, set) ^ (set ? 0u : 0xffffffffu);
#endif
        same &= alike;
    }
    return same;
}

// The sum of the numbers of all threads of the block before this one. A barrier must lie between two calls.
template <class T> __device__ __forceinline__ T sum_before(T mine) {
    __shared__ T sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    T before = sum - mine;
    // With `other < warp` as the loop's end, the compiler would read beyond `sums` what it does not use.
#pragma unroll
    for (int other = 0; other < WARPS - 1; ++other)
        if (other < warp) before += sums[other];
    return before;
}

// Gives each element of the block its place in the order of the digits, and starts[d] the first place of digit d.
// Elements come in the order of warps, then of k, then of lanes, and equal digits keep it. `counts` is memory for the
// counts of the warps, of 16 bits each.
__device__ __forceinline__ void rank_digits(
    const int (&digits)[EACH], int (&places)[EACH], int* starts, unsigned int (&counts)[WARPS * 128]
) {
    const int thread = threadIdx.x;
#pragma unroll
    for (int n = 0; n < WARPS * 128; n += THREADS) counts[n + thread] = 0;
    __syncthreads();
    unsigned short* const every = reinterpret_cast<unsigned short*>(counts);
    unsigned short* const own = every + thread / 32 * 256;
    const unsigned int lower = (1u << thread % 32) - 1;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const unsigned int same = lanes_with(digits[k]);
        const int before = __popc(same & lower), earlier = own[digits[k]];
        __syncwarp();
        if (before == 0) own[digits[k]] = earlier + __popc(same);
        __syncwarp();
        places[k] = earlier + before;
    }
    __syncthreads();
    // Of a few digits a thread makes the counts of warps the places where the elements of each warp begin.
    constexpr int FEW = THREADS < 256 ? 256 / THREADS : 1;
    const bool has_digits = thread * FEW < 256;
    int sum = 0;
    if (has_digits) {
#pragma unroll
        for (int n = 0; n < FEW; ++n)
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) sum += every[warp * 256 + thread * FEW + n];
    }
    int start = sum_before(sum);
    if (has_digits) {
#pragma unroll
        for (int n = 0; n < FEW; ++n) {
            starts[thread * FEW + n] = start;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) {
                unsigned short& count = every[warp * 256 + thread * FEW + n];
                const int more = count;
                count = start;
                start += more;
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k) places[k] += own[digits[k]];
}
"""

SORT: Final = """
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) sort_tile({outputs}, View<const Element, 2> x{inputs}) {{
    __shared__ Element part[SPAN];{shared_numbers}
    __shared__ int starts[256];
    __shared__ unsigned int counts[WARPS * 128];
    launch_dependents();
    wait_for_inputs();
    const int thread = threadIdx.x, begin = thread / 32 * 32 * EACH + thread % 32;
    const dagpu::index_t row = out.tile_index(0), first = out.tile_index(1) * SPAN;
    const int most = elements_of(x.extent(1) - first) - begin;
    const Element* const x_row = x.data() + row * x.stride(0) + first + begin;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        part[begin + k * 32] = k * 32 < most ? x_row[k * 32] : Element(0);{first_number}
    }}
#pragma unroll 1
    for (int shift = 0; shift < 8 * int(sizeof(Element)); shift += 8) {{
        int digits[EACH], places[EACH];
        // What is beyond the row stays behind it: it has the largest digit, and comes last.
#pragma unroll
        for (int k = 0; k < EACH; ++k) digits[k] = k * 32 < most ? digit_of(part[begin + k * 32], shift) : 255;
        rank_digits(digits, places, starts, counts);
        Element moved[EACH];{own_numbers}
#pragma unroll
        for (int k = 0; k < EACH; ++k) {{
            moved[k] = part[begin + k * 32];{take_number}
        }}
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; ++k) {{
            part[places[k]] = moved[k];{move_number}
        }}
        __syncthreads();
    }}
    for (int at = thread; at < out.tile_extent(1); at += THREADS) {{{write}
    }}
}}
"""

COUNT: Final = """
__global__ void __launch_bounds__(THREADS) count_digits(Tile<{where}, 3> out, View<const Element, 2> x, int shift) {{
    __shared__ int counts[256];
    launch_dependents();
    wait_for_inputs();
    const int thread = threadIdx.x;
    const dagpu::index_t row = out.origin(0), tile = out.origin(2), first = tile * SPAN;
    const int most = elements_of(x.extent(1) - first) - thread;
    const Element* const x_row = x.data() + row * x.stride(0) + first + thread;
#pragma unroll
    for (int digit = 0; digit < 256; digit += THREADS)
        if (digit + thread < 256) counts[digit + thread] = 0;
    Element mine[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) mine[k] = k * THREADS < most ? x_row[k * THREADS] : Element(0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        const int digit = digit_of(mine[k], shift);
        if (k * THREADS < most) atomicAdd(&counts[digit], 1);
    }}
    __syncthreads();
#pragma unroll
    for (int digit = 0; digit < 256; digit += THREADS)
        if (digit + thread < 256) out(row, digit + thread, tile) = counts[digit + thread];
}}
"""

ADD_UP: Final = """\
// Counts (row, digit, tile) become what comes before each tile among those of its digit; the last one is their sum.
__global__ void __launch_bounds__({threads}) add_up_counts(Tile<{where}, 3> out, View<const {where}, 3> counts) {{
    __shared__ {where} sums[{threads}];
    launch_dependents();
    wait_for_inputs();
    const int thread = threadIdx.x, lane = thread % {lanes};
    const dagpu::index_t row = out.origin(0), digit = out.origin(1) + thread / {lanes}, tiles = counts.extent(2);
    const dagpu::index_t each = (tiles + {lanes} - 1) / {lanes}, begin = lane * each;
    const dagpu::index_t end = begin + each < tiles ? begin + each : tiles;
    {where} own = 0;
    for (dagpu::index_t tile = begin; tile < end; ++tile) own += counts(row, digit, tile);
    {where} sum = own;
    for (int step = 1; step < {lanes}; step *= 2) {{
        sums[thread] = sum;
        __syncthreads();
        if (lane >= step) sum += sums[thread - step];
        __syncthreads();
    }}
    {where} before = sum - own;
    for (dagpu::index_t tile = begin; tile < end; ++tile) {{
        out(row, digit, tile) = before;
        before += counts(row, digit, tile);
    }}
    if (lane == {lanes} - 1) out(row, digit, tiles) = before;
}}
"""

SCATTER: Final = """
// Each element has a place of its own in the whole row, so no two blocks write to the same one.
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) scatter_by_digit(
    {outputs}, View<const Element, 2> x{inputs}, View<const {where}, 3> offsets, int shift
) {{
    __shared__ unsigned long long room[SPAN * {widest} / 8];
    __shared__ int starts[256];
    __shared__ {where} targets[256];
    __shared__ unsigned int counts[WARPS * 128];
    launch_dependents();
    wait_for_inputs();
    const int thread = threadIdx.x, begin = thread / 32 * 32 * EACH + thread % 32;
    const dagpu::index_t row = out.tile_index(0), tile = out.tile_index(1), first = tile * SPAN;
    const int all = elements_of(x.extent(1) - first), most = all - begin;
    const Element* const x_row = x.data() + row * x.stride(0) + first + begin;{place_row}
    int digits[EACH], places[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) digits[k] = k * 32 < most ? digit_of(x_row[k * 32], shift) : 255;
    rank_digits(digits, places, starts, counts);
    {where} offset = 0, total = 0;
    if (thread < 256) offset = offsets(row, thread, tile), total = offsets(row, thread, offsets.extent(2) - 1);
    const {where} lower = sum_before(total);
    if (thread < 256) targets[thread] = lower + offset - starts[thread];
    // Elements are written in the order of their places, so that neighbours write to neighbours.
    Element* const part = reinterpret_cast<Element*>(room);
    unsigned char* const digit_at = reinterpret_cast<unsigned char*>(counts);  // which nobody reads any more
    static_assert(SPAN <= sizeof(counts), "");
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        digit_at[places[k]] = digits[k];
        if (k * 32 < most) part[places[k]] = x_row[k * 32];
    }}
    __syncthreads();{own_targets}
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        const int at = k * THREADS + thread;
        const {where} to = targets[digit_at[at]] + at;{write_element}{keep_target}
    }}{move_places}
}}
"""


def order_text(dtype: "np.dtype[Any]", threads: int, each: int, descending: bool) -> str:
    """Return the text of an element type's order: that of NumPy's sorts, where a NaN is larger than any number."""
    bits = 8 * dtype.itemsize
    every, sign, suffix = (1 << bits) - 1, 1 << bits - 1, "ULL" if bits == 64 else "U"
    lines: list[str] = []
    if dtype.kind == "b":
        ordered = "Key(x != 0)"  # any byte but 0 is true
    elif dtype.kind == "u":
        ordered = "x"
    elif dtype.kind == "i":
        ordered = f"x ^ {sign:#x}{suffix}"
    else:
        infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0xFF << 23, "float64": 0x7FF << 52}[dtype.name]
        lines = [
            f"const Key turned = x & {sign:#x}{suffix} ? x ^ {every:#x}{suffix} : x | {sign:#x}{suffix};",
            f"const bool odd = (x & {sign - 1:#x}{suffix}) > {infinity:#x}{suffix};  // a NaN",
        ]
        ordered = f"odd ? {every:#x}{suffix} : x == {sign:#x}{suffix} ? x : turned"
    lines.append(f"const Key ordered = {f'({ordered}) ^ {every:#x}{suffix}' if descending else ordered};")
    return ORDER.format(
        element=BITS[dtype.itemsize],
        key=BITS[max(4, dtype.itemsize)],
        threads=threads,
        each=each,
        order="\n".join([f"    {line}" for line in lines]),
    )
