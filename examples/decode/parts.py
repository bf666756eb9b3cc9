"""Shared parts of the kernels of examples/decode: sizes, and CUDA code to read rows of
weights and multiply them.

A decode step reads every weight once and uses it once, so memory bandwidth bounds its
time. Therefore, a warp owns a row of weights (or two, used together), and each of its
threads has 8 loads of 16 bytes in flight for each row. Between two kernels, memory
would be idle for longer than some kernels take. So each kernel starts while the one
before it still runs, and loads its first weights; then it waits, and reads what the
other has computed (`early_reads`). Sums are computed in a fixed order, so every run
gives the same numbers.

Weights and the cache have elements of one type, float32 or bfloat16; everything else is
float32. The weights of all layers are in one array, whose first axis is the layer: a
step has nine arrays of weights, not a hundred.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu import bf16, f32

W = TypeVar("W", bound=np.generic)
Floats: TypeAlias = NDArray[f32]

EPSILON = 1e-5  # the epsilon of the norms, also in CUDA
DEPTH = 8  # loads of 16 bytes that a thread has in flight for each row
# floats after the sums of a query: their maximum, their total, and two zeros, to keep
# to 16 bytes
PADDING = 4


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model and its cache.

    `head` is the size of a head; `positions` are cut into `splits`.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    ffn: int = 192
    vocabulary: int = 512
    positions: int = 64
    splits: int = 4
    theta: float = 10_000.0

    @property
    def group(self) -> int:
        """Number of queries of a key-value head."""
        return self.heads // self.kv_heads

    @property
    def turns(self) -> int:
        """Number of warps that share the positions of a split, for each query.

        The warps of all queries are a block.
        """
        return max(1, 16 // self.group)

    @property
    def partial(self) -> int:
        """Number of floats in the result of attention to one split of the cache, for
        one key-value head."""
        return self.group * (self.head + PADDING)

    def check(self, positions: int) -> None:
        """Check that the sizes are consistent, and that the cache has room for
        `positions`.

        Raises:
            ValueError: they are not; the message has the reason.
        """
        sizes = self.hidden | self.ffn | self.head
        longest = max(self.hidden, self.ffn, self.heads * self.head)
        rules = (
            (
                self.heads % self.kv_heads == 0,
                "--heads must be a multiple of --kv-heads",
            ),
            (sizes % 8 == 0, "--hidden, --ffn and --head must be multiples of 8"),
            (
                self.head in (8, 16, 32, 64, 128),
                "--head must be a power of two, at most 128",
            ),
            (self.group <= 16, "--heads must be at most 16 times --kv-heads"),
            (
                self.positions >= positions,
                f"--positions must be at least {positions}, which are to be decoded",
            ),
            (
                self.positions % self.splits == 0,
                "--positions must be a multiple of --splits",
            ),
            (
                # floats: 48 KiB, which is the shared memory that a block may have
                longest <= 12_288,
                "--hidden, --ffn and --heads times --head must be at most 12,288",
            ),
        )
        broken = [rule for holds, rule in rules if not holds]
        if broken:
            raise ValueError("; ".join(broken))


def single(x: "NDArray[Any]") -> Floats:
    """Return the elements as float32."""
    return x.astype(np.float32)


def normalised(x: Floats, gain: Floats) -> Floats:
    """Return the RMSNorm of x (arXiv:1910.07467, equation 4)."""
    scale = 1 / np.sqrt(np.mean(x * x, dtype=np.float32) + np.float32(EPSILON))
    return np.asarray(x * gain * scale)


WARPS = """
__device__ inline int lane() { return threadIdx.x % 32; }
__device__ inline int warp() { return threadIdx.x / 32; }
__device__ inline int warps() { return blockDim.x / 32; }

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
"""

LOADS = """
constexpr int WIDE = 16 / sizeof(Weight);  // elements of a 16-byte load

extern __shared__ float4 staged[];  // see place_of

// Elements as float, from the bits of a 16-byte load: a bfloat16 is the upper half of a
// float.
__device__ inline void widen(uint4 bits, const float*, float (&out)[4]) {
    out[0] = __uint_as_float(bits.x), out[1] = __uint_as_float(bits.y);
    out[2] = __uint_as_float(bits.z), out[3] = __uint_as_float(bits.w);
}
template <class Bfloat16>
__device__ inline void widen(uint4 bits, const Bfloat16*, float (&out)[8]) {
    const unsigned int pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __uint_as_float(pairs[i] << 16);
        out[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}

// Starts to bring elements to the L2 cache. One thread asks for all of them.
__device__ inline void prefetch(const Weight* from, int elements) {
    const unsigned int bytes = elements * sizeof(Weight);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes)
                 : "memory");
}

// Weights and the cache are read once in a step: they need no place in the caches.
__device__ inline uint4 load_once(const Weight* from) {
    return __ldcs(reinterpret_cast<const uint4*>(from));
}
"""

PRODUCTS = """
// Where four consecutive elements of a vector lie in `staged`. A thread takes WIDE of
// them at a time, four by four; in planes of four the threads of a warp read
// neighbouring words, without bank conflicts.
__device__ inline int place_of(int quad, int columns) {
    constexpr int planes = WIDE / 4;
    return quad % planes * (columns / WIDE) + quad / planes;
}

// Gives each four elements of a vector to `use`, with their place in `staged`. A thread
// has 4 loads in flight.
template <class Use>
__device__ inline void each_quad(const float* vector, int columns, Use use) {
    constexpr int AT_ONCE = 4;
    const float4* quads = reinterpret_cast<const float4*>(vector);
    for (int first = threadIdx.x; first < columns / 4; first += AT_ONCE * blockDim.x) {
        float4 found[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int quad = first + i * blockDim.x;
            if (quad < columns / 4) found[i] = quads[quad];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int quad = first + i * blockDim.x;
            if (quad < columns / 4) use(found[i], staged[place_of(quad, columns)]);
        }
    }
}

// Rows of weights, each `stride` elements after the one before. `first` is null for no
// rows.
struct Rows {
    const Weight* first;
    size_t stride;
};

// Scalar products of ROWS rows with the staged vector, by one warp; every thread of it
// has the sums. A thread has DEPTH loads of each row in flight: as soon as it has used
// one, it starts the load that takes its place.
template <int ROWS> struct Products {
    // elements of a row that the warp has in flight
    static constexpr int CHUNK = 32 * DEPTH * WIDE;

    uint4 ahead[ROWS][DEPTH];
    float sum[ROWS];

    __device__ void load(int i, Rows from, int columns) {
        const int column = (32 * i + lane()) * WIDE;
        if (from.first == nullptr || column >= columns) return;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            ahead[r][i] = load_once(from.first + r * from.stride + column);
    }
    __device__ void begin(Rows rows, int columns) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) load(i, rows, columns);
    }
    // Computes the products of `rows`, which were begun, and begins the rows that come
    // next.
    __device__ void finish(Rows rows, Rows next, int columns) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = 0.0f;
        for (int from = 0; from < columns; from += CHUNK) {
            const bool more = from + CHUNK < columns;
            const Rows coming =
                more ? Rows{rows.first + from + CHUNK, rows.stride} : next;
            const int left = more ? columns - from - CHUNK : columns;
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                const int column = from + (32 * i + lane()) * WIDE;
                if (column < columns) add(i, column, columns);
                load(i, coming, left);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = warp_sum(sum[r]);
    }
    __device__ void add(int i, int column, int columns) {
        float x[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; j += 4) {
            const float4 four = staged[place_of((column + j) / 4, columns)];
            x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float w[WIDE];
            widen(ahead[r][i], static_cast<const Weight*>(nullptr), w);
#pragma unroll
            for (int j = 0; j < WIDE; ++j) sum[r] = fmaf(w[j], x[j], sum[r]);
        }
    }
};
"""

NORM = """
constexpr float EPSILON = 1e-5f;

// Stages the gains of a layer. No kernel of a step writes them, so this comes before
// the wait for the one before.
__device__ inline void stage_gains(View<const float, 2> gains, int layer) {
    const int columns = gains.extent(1);
    each_quad(&gains(layer, 0), columns, [](float4 gain, float4& place) {
        place = gain;
    });
}

// Multiplies the staged gains by x, and gives what the products are to be multiplied
// by: 1 / rms(x). That factor comes last, when the products are there, so that the
// threads of a block wait for each other once and not twice.
__device__ inline float stage_normalised(View<const float, 1> x) {
    __shared__ float squares[32];
    const int columns = x.extent(0);
    float sum = 0.0f;
    each_quad(x.data(), columns, [&](float4 a, float4& place) {
        sum += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
        place = float4{a.x * place.x, a.y * place.y, a.z * place.z, a.w * place.w};
    });
    sum = warp_sum(sum);
    if (lane() == 0) squares[warp()] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < warps(); ++w) total += squares[w];
    return rsqrtf(total / columns + EPSILON);
}
"""


def head_of(element: type[Any], products: bool = True) -> str:
    """Return the beginning of a kernel's CUDA text."""
    products_text = f"constexpr int DEPTH = {DEPTH};\n{PRODUCTS}"
    name = {np.dtype(f32): "float", np.dtype(bf16): "__nv_bfloat16"}[np.dtype(element)]
    return f"using Weight = {name};\n{WARPS}{LOADS}{products_text if products else ''}"
