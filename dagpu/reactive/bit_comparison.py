"""The kernel that compares two tensors of one layout bit for bit, for cutoffs on the device."""

from functools import cache
from typing import Any, Final

import numpy as np

from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin
from dagpu.kernels.generated_launch import generated_kernel, output, tensor_input
from dagpu.ops.kernel_spec import KernelSpec

FLAG: Final = np.dtype(np.uint32)
"""The type of a flag: 1 if the elements that one block has compared differ, else 0."""

_THREADS: Final = 256
_EACH: Final = 1 << 14
"""The bytes of each tensor that a block compares, where one wave of blocks is enough."""

_MOST_BLOCKS: Final = 1 << 10
"""The most blocks, and flags. An H200 runs this many blocks of 256 threads at a time: 8 on each of 132 processors."""

_BYTES: Final = """\
struct alignas(16) Sixteen {
    unsigned long long low, high;
};
DAGPU_INLINE bool unlike(Sixteen a, Sixteen b) { return ((a.low ^ b.low) | (a.high ^ b.high)) != 0; }
DAGPU_INLINE bool unlike(unsigned int a, unsigned int b) { return a != b; }

template <class Word> DAGPU_INLINE bool any_unlike(
    const unsigned char* x, const unsigned char* y, unsigned long long count, unsigned long long at,
    unsigned long long step
) {
    const Word *left = reinterpret_cast<const Word*>(x), *right = reinterpret_cast<const Word*>(y);
    bool found = false;
    for (; at + 3 * step < count; at += 4 * step) {  // the loads of four words begin before the first one ends
#pragma unroll
        for (int k = 0; k < 4; ++k) found |= unlike(left[at + k * step], right[at + k * step]);
    }
    for (; at < count; at += step) found |= unlike(left[at], right[at]);
    return found;
}

__global__ void differ(Tile<unsigned int, 1> out, View<const unsigned char, 1> x, View<const unsigned char, 1> y) {
    const unsigned long long length = x.extent(0), step = 1ull * out.extent(0) * blockDim.x;
    const unsigned long long first = 1ull * out.origin(0) * blockDim.x + threadIdx.x;
    const unsigned long long both =
        reinterpret_cast<unsigned long long>(x.data()) | reinterpret_cast<unsigned long long>(y.data());
    const unsigned int word = both % 16 == 0 ? 16 : both % 4 == 0 ? 4 : 1;
    bool found = false;
    if (word == 16) found = any_unlike<Sixteen>(x.data(), y.data(), length / 16, first, step);
    if (word == 4) found = any_unlike<unsigned int>(x.data(), y.data(), length / 4, first, step);
    for (unsigned long long at = (word == 1 ? 0 : length / word * word) + first; at < length; at += step)
        found |= x.data()[at] != y.data()[at];
    const int any = __syncthreads_or(found);
    if (threadIdx.x == 0) out(out.origin(0)) = any != 0;
}
"""

_ELEMENTS: Final = """\
__global__ void differ(Tile<unsigned int, 1> out, View<const {word}, {rank}> x, View<const {word}, {rank}> y) {{
    const unsigned long long length = 1ull * x.size(), step = 1ull * out.extent(0) * blockDim.x;
    bool found = false;
    for (unsigned long long n = 1ull * out.origin(0) * blockDim.x + threadIdx.x; n < length; n += step) {{
        Index<{rank}> i;
        dagpu::index_t rest = static_cast<dagpu::index_t>(n);
#pragma unroll
        for (int axis = {rank} - 1; axis >= 0; --axis) {{
            i.at[axis] = rest % x.extent(axis);
            rest /= x.extent(axis);
        }}
        found |= x[i] != y[i];
    }}
    const int any = __syncthreads_or(found);
    if (threadIdx.x == 0) out(out.origin(0)) = any != 0;
}}
"""

_WORDS: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def bits_of(layout: Layout) -> Layout:
    """Return the layout of the same bits as unsigned numbers: bytes where the elements have no gaps between them."""
    if layout.contiguous:
        whole = contiguous_layout((layout.nbytes,), np.dtype(np.uint8))
        return Layout(whole.dtype, whole.shape, whole.strides, layout.offset)
    return Layout(np.dtype(f"u{layout.dtype.itemsize}"), layout.shape, layout.strides, layout.offset)


def flag_count(layout: Layout) -> int:
    """Return the number of flags that a comparison of tensors of this layout writes: one for each block."""
    return min(max(1, -(-layout.nbytes // _EACH)), _MOST_BLOCKS)


@cache
def differ_kernel(itemsize: int, rank: int, dense: bool) -> KernelSpec:
    """Return the kernel `differ(out, x, y)`: it sets at least one of the flags `out` if the bits of `x` and `y` differ,
    and clears all if they are the same.

    `x` and `y` have one layout, that of `bits_of`: `dense` bytes, or elements of `itemsize` bytes along `rank` axes.
    `out` has the shape (flag_count,) and is cut into tiles of 1.
    """
    word = np.dtype(f"u{itemsize}")
    text = _BYTES
    if not dense:
        text = _ELEMENTS.format(word=_WORDS[itemsize], rank=rank)
    params = [output("out", FLAG, 1), tensor_input("x", word, rank), tensor_input("y", word, rank)]
    return generated_kernel("differ", params, text, _differ, _ORIGIN, block=(_THREADS,))


def _differ(out: Any, x: Any, y: Any) -> None:
    out[...] = 0
    out[0] = not np.array_equal(x, y)


_ORIGIN: Final[Origin] = (differ_kernel.__wrapped__.__code__, 0)
