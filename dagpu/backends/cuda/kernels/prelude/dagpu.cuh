// What a kernel sees of its arguments: Tile (an output), View (an input) and Index (a place in either).
//
// The layout of View and Tile in a kernel's parameters is packed by dagpu on the host. Macros choose the variant:
//   DAGPU_STRIDED      arrays carry strides; without it every array is dense and in C order
//   DAGPU_WIDE         index_t has 64 bits; without it 32, and all arrays of the launch are smaller than that
//   DAGPU_LINEAR_GRID  blocks are numbered in blockIdx.x alone, in C order over the output's grid
//   DAGPU_TILE_LIST    block i makes the tile whose number, in C order over the output's grid, is at place i of a list; a
//                      number that is no tile's gives the block an empty one
//   DAGPU_SEES         with DAGPU_CHECKED: inputs are held against what the kernel declares to look at, too
//   DAGPU_CHECKED      accesses are held against the bounds; the first violation is reported, none is carried out
//   DAGPU_HALF, DAGPU_BFLOAT16  bring in the header of __half and of __nv_bfloat16, which cost compile time
//
// Contiguous data costs what raw pointers cost: nothing is stored that can be computed from what is needed anyway,
// and the threads of a block walk through its tile by adding, without a division for each element.
#pragma once

#ifdef DAGPU_HALF
# include <cuda_fp16.h>
#endif
#ifdef DAGPU_BFLOAT16
# include <cuda_bf16.h>
#endif

#ifndef __CUDACC_RTC__
# include <cstdint>
#else
// NVRTC knows no host headers. These are the names that kernels expect from them all the same, with the very types
// that <cuda/std/cstdint> gives them, so that both may be there.
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
typedef long ssize_t;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::intptr_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::uintptr_t;
}
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#endif

#define DAGPU_INLINE __device__ __forceinline__

namespace dagpu {

#ifdef DAGPU_WIDE
typedef long long index_t;
typedef unsigned long long unsigned_t;
#else
typedef int index_t;
typedef unsigned int unsigned_t;
#endif

// ---- complex numbers ---------------------------------------------------------------------------------------------------
// An element of c64 or c128. Its operators are NumPy's: the plain formula of a product, and Smith's division (Algorithm
// 116, 1962).
template <class T> struct alignas(2 * sizeof(T)) complex {
    T real, imag;

    complex() = default;
    DAGPU_INLINE constexpr complex(T real_part, T imaginary_part = T(0)) : real(real_part), imag(imaginary_part) {}

    friend DAGPU_INLINE complex operator+(complex a, complex b) { return complex(a.real + b.real, a.imag + b.imag); }
    friend DAGPU_INLINE complex operator-(complex a, complex b) { return complex(a.real - b.real, a.imag - b.imag); }
    friend DAGPU_INLINE complex operator-(complex a) { return complex(-a.real, -a.imag); }
    friend DAGPU_INLINE complex operator*(complex a, complex b) {
        return complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real);
    }
    friend DAGPU_INLINE complex operator/(complex a, complex b) {
        const T x = fabs(b.real), y = fabs(b.imag);
        if (x == 0 && y == 0) return complex(a.real / x, a.imag / x);
        if (x >= y) {
            const T ratio = b.imag / b.real, scale = T(1) / (b.real + b.imag * ratio);
            return complex((a.real + a.imag * ratio) * scale, (a.imag - a.real * ratio) * scale);
        }
        const T ratio = b.real / b.imag, scale = T(1) / (b.imag + b.real * ratio);
        return complex((a.real * ratio + a.imag) * scale, (a.imag * ratio - a.real) * scale);
    }
    friend DAGPU_INLINE bool operator==(complex a, complex b) { return a.real == b.real && a.imag == b.imag; }
    friend DAGPU_INLINE bool operator!=(complex a, complex b) { return !(a == b); }
};

// ---- the order of kernels ------------------------------------------------------------------------------------------
// For a kernel that is declared with early_reads. In a CUDA graph its blocks may start while the kernel before still
// runs. Until a thread has called this, it may read those inputs alone, and it may write no memory of the device.
DAGPU_INLINE void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The blocks of the next kernel, if it has early_reads, may start once every block of this one has called this or ended.
DAGPU_INLINE void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- places ---------------------------------------------------------------------------------------------------------
// A place in an array: one coordinate for each axis, rows first.
template <int N> struct Index {
    index_t at[N];

    DAGPU_INLINE index_t operator[](int axis) const { return at[axis]; }
    DAGPU_INLINE operator index_t() const {
        static_assert(N == 1, "only an Index<1> is one number: take i[0], i[1], ... of this one");
        return at[0];
    }
};

template <> struct Index<0> {};

// ---- the report of a checked kernel -----------------------------------------------------------------------------------
#ifdef DAGPU_CHECKED
typedef long long coordinate_t;  // wide, so that what is out of bounds is not cut into them

// Memory of the host, zero at first. state: 0 nothing, 1 being written, 2 complete. kind: 0 a View, 1 a Tile (outside
// the tensor), 2 a Tile (inside the tensor, outside this block's tile), 3 a View (outside what the block's tile may see;
// then extent[0] is the number of the tile).
struct Report {
    int state, argument, rank, kind;
    long long index[8], extent[8];
};

// What a refused access reads, and what it writes to.
alignas(16) static __device__ const unsigned long long nothing[2] = {};
alignas(16) static __device__ unsigned long long wasted[2];

template <class T> DAGPU_INLINE T& scratch(T*) { return *reinterpret_cast<T*>(wasted); }
template <class T> DAGPU_INLINE const T& scratch(const T*) { return *reinterpret_cast<const T*>(nothing); }

struct Guard {
    Report* report;
    int argument;

    // The first violation of all threads and launches that share the report wins.
    template <int N, int M>
    __device__ __noinline__ void refuse(int kind, const coordinate_t (&at)[N], const index_t (&extent)[M]) const {
        if (!report || atomicCAS(&report->state, 0, 1) != 0) return;
        report->argument = argument;
        report->rank = N;
        report->kind = kind;
        for (int d = 0; d < N && d < 8; ++d) {
            report->index[d] = at[d];
            if (d < M) report->extent[d] = extent[d];
        }
        __threadfence_system();
        *static_cast<volatile int*>(&report->state) = 2;
    }
};
#define DAGPU_GUARD Guard guard_;
#else
typedef index_t coordinate_t;
#define DAGPU_GUARD
#endif

// ---- extents and strides ----------------------------------------------------------------------------------------------
template <int N> struct Shape {
    index_t extent[N];
#ifdef DAGPU_STRIDED
    index_t stride[N];  // elements
#endif

    DAGPU_INLINE index_t size() const {
        index_t product = 1;
#pragma unroll
        for (int d = 0; d < N; ++d) product *= extent[d];
        return product;
    }

    DAGPU_INLINE index_t step(int axis) const {
#ifdef DAGPU_STRIDED
        return stride[axis];
#else
        index_t product = 1;
#pragma unroll
        for (int d = 1; d < N; ++d)
            if (d > axis) product *= extent[d];
        return product;
#endif
    }

    // Distance from the first element to the one at `at`.
    template <class C> DAGPU_INLINE index_t offset(const C (&at)[N]) const {
#ifdef DAGPU_STRIDED
        index_t sum = static_cast<index_t>(at[0]) * stride[0];
#pragma unroll
        for (int d = 1; d < N; ++d) sum += static_cast<index_t>(at[d]) * stride[d];
        return sum;
#else
        index_t row = 0;  // apart from the column: so compilers see that it stays the same along a row
#pragma unroll
        for (int d = 1; d < N; ++d) row = (row + static_cast<index_t>(at[d - 1])) * extent[d];
        return row + static_cast<index_t>(at[N - 1]);
#endif
    }

    DAGPU_INLINE bool contains(const long long (&at)[N]) const {
        bool inside = true;
#pragma unroll
        for (int d = 0; d < N; ++d)  // as unsigned numbers: what is negative is large
            inside &= static_cast<unsigned long long>(at[d]) < static_cast<unsigned long long>(extent[d]);
        return inside;
    }
};

// What an access gives: a reference; of a bool of an input its truth, as the bytes of a mask may be others than 0 and 1.
template <class T> struct Access {
    using type = T&;
    static DAGPU_INLINE T& of(T& x) { return x; }
};
template <> struct Access<const bool> {
    using type = bool;
    static DAGPU_INLINE bool of(const bool& x) { return *reinterpret_cast<const unsigned char*>(&x) != 0; }
};

// What Tile and View have in common: access by an Index or by coordinates, extents, strides. `allowed` is each one's own.
#ifdef DAGPU_CHECKED
#define DAGPU_CHECK(at) \
    if (!allowed(at)) return scratch(data_);
#else
#define DAGPU_CHECK(at)
#endif
#define DAGPU_ARRAY(T, N)                                                                                            \
    static constexpr int rank = N;                                                                                   \
    DAGPU_INLINE T* data() const { return data_; }                                                                   \
    DAGPU_INLINE index_t extent(int axis) const { return shape_.extent[axis]; }                                      \
    DAGPU_INLINE index_t stride(int axis) const { return shape_.step(axis); }                                        \
    DAGPU_INLINE index_t size() const { return shape_.size(); }                                                      \
    DAGPU_INLINE typename Access<T>::type operator[](const Index<N>& i) const {                                      \
        coordinate_t at[N];                                                                                          \
        _Pragma("unroll") for (int d = 0; d < N; ++d) at[d] = i.at[d];                                               \
        DAGPU_CHECK(at)                                                                                              \
        return Access<T>::of(data_[shape_.offset(at)]);                                                              \
    }                                                                                                                \
    template <class I> DAGPU_INLINE typename Access<T>::type operator[](I i) const {                                 \
        static_assert(N == 1, "one number reaches into one axis: use x(row, column, ...) or an Index of this rank"); \
        const coordinate_t at[1] = {static_cast<coordinate_t>(i)};                                                   \
        DAGPU_CHECK(at)                                                                                              \
        return Access<T>::of(data_[shape_.offset(at)]);                                                              \
    }                                                                                                                \
    template <class... I> DAGPU_INLINE typename Access<T>::type operator()(I... i) const {                           \
        static_assert(sizeof...(I) == N, "give one coordinate for each axis");                                       \
        const coordinate_t at[N] = {static_cast<coordinate_t>(i)...};                                                \
        DAGPU_CHECK(at)                                                                                              \
        return Access<T>::of(data_[shape_.offset(at)]);                                                              \
    }

// ---- what a tile may see of an input, where that is checked -------------------------------------------------------------
#if defined(DAGPU_CHECKED) && defined(DAGPU_SEES)
template <int N> struct Sight {
    // For each axis: the axis of the output that it follows, -1 where all may be seen; margins before and after; extents
    // of a tile and of the output along that axis; the number of its tiles, and of tiles from one to the next.
    index_t axis[N], before[N], after[N], tile[N], extent[N], count[N], step[N];

    DAGPU_INLINE bool contains(const coordinate_t (&at)[N], unsigned long long number) const {
        bool seen = true;
#pragma unroll
        for (int d = 0; d < N; ++d) {
            if (axis[d] < 0) continue;
            const unsigned long long index =
                number / static_cast<unsigned long long>(step[d]) % static_cast<unsigned long long>(count[d]);
            const long long begin = static_cast<long long>(index) * tile[d];
            const long long end = begin + tile[d] < extent[d] ? begin + tile[d] : extent[d];
            seen &= at[d] >= begin - before[d] && at[d] < end + after[d];
        }
        return seen;
    }
};
// The number of this block's tile, in C order over the output's grid.
DAGPU_INLINE unsigned long long tile_number(const int* list) {
#if defined(DAGPU_TILE_LIST)
    return static_cast<unsigned int>(list[blockIdx.x]);
#elif defined(DAGPU_LINEAR_GRID)
    return blockIdx.x;
#else
    return (1ull * blockIdx.x * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z;
#endif
}
#ifdef DAGPU_TILE_LIST
#define DAGPU_SIGHT(N) Sight<N> sight_; const int* list_;
#else
#define DAGPU_SIGHT(N) Sight<N> sight_; static constexpr const int* list_ = nullptr;
#endif
#else
#define DAGPU_SIGHT(N)
#endif

// ---- View: an input ---------------------------------------------------------------------------------------------------
template <class T, int N> struct View {
    T* data_;
    Shape<N> shape_;
    DAGPU_SIGHT(N)
    DAGPU_GUARD

    DAGPU_ARRAY(T, N)

#ifdef DAGPU_CHECKED
private:
    DAGPU_INLINE bool allowed(const coordinate_t (&at)[N]) const {
        const bool inside = shape_.contains(at);
        if (!inside) guard_.refuse(0, at, shape_.extent);
#ifdef DAGPU_SEES
        const unsigned long long tile = tile_number(list_);
        if (inside && !sight_.contains(at, tile)) {
            const index_t number[1] = {static_cast<index_t>(tile)};
            guard_.refuse(3, at, number);
            return false;
        }
#endif
        return inside;
    }
#endif
};

template <class T> struct View<T, 0> {
    T* data_;
    DAGPU_GUARD

    static constexpr int rank = 0;
    DAGPU_INLINE T* data() const { return data_; }
    DAGPU_INLINE index_t size() const { return 1; }
    DAGPU_INLINE typename Access<T>::type operator[](Index<0>) const { return Access<T>::of(*data_); }
    DAGPU_INLINE typename Access<T>::type operator()() const { return Access<T>::of(*data_); }
};

// ---- blocks and threads -------------------------------------------------------------------------------------------------
// The thread's number in its block: the x axis first, so that neighbours in a warp are neighbours in memory.
DAGPU_INLINE unsigned int thread_number() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

DAGPU_INLINE unsigned int thread_count() { return blockDim.x * blockDim.y * blockDim.z; }

// Has the launch's grid an axis that a tile of N axes lacks, and is this block off its start? Then it has no tile.
template <int N> DAGPU_INLINE bool beside_the_grid() {
#if defined(DAGPU_LINEAR_GRID) || defined(DAGPU_TILE_LIST)
    return N < 1 && blockIdx.x != 0;
#else
    return ((N < 1 ? blockIdx.x : 0) | (N < 2 ? blockIdx.y : 0) | (N < 3 ? blockIdx.z : 0)) != 0;
#endif
}

// As a divisor of numbers below 2^31 the same as the extent, in 32 bits, and never 0.
DAGPU_INLINE unsigned int divisor(index_t extent) {
    return extent < 1 ? 1u : extent > 0x7fffffff ? 0x7fffffffu : static_cast<unsigned int>(extent);
}

// number / extent, for a number of threads (at most 1024), in a sixth of an integer division's instructions. Exact: the
// true quotient of number + 1/2 is 1 / (2 extent) or more away from a whole number, which is more than the error, of at
// most 2^-21 of it. Extents from 4096 on all give 0.
DAGPU_INLINE unsigned int threads_by(unsigned int number, unsigned int extent) {
    return static_cast<unsigned int>(__fdividef(static_cast<float>(number) + 0.5f, static_cast<float>(extent)));
}

struct End {};

// A thread's place on its way through its block's tile. It goes `thread_count()` elements ahead at a time: that number
// is cut into coordinates once, then added with carry.
template <int N> struct Cursor {
    index_t at[N], end[N], width[N], step[N];

    DAGPU_INLINE Cursor(const index_t (&origin)[N], const index_t (&extent)[N]) {
        unsigned int first = thread_number(), ahead = thread_count();
        unsigned int by[N];
        index_t size = extent[0];
#pragma unroll
        for (int d = 1; d < N; ++d) {
            size *= extent[d];
            by[d] = extent[d] < 1 ? 1u : extent[d] > 4096 ? 4096u : static_cast<unsigned int>(extent[d]);
        }
#pragma unroll
        for (int d = 0; d < N; ++d) {
            step[d] = d ? 0 : extent[0];  // past the end, should one step be enough
            width[d] = extent[d];
            end[d] = origin[d] + extent[d];
        }
#pragma unroll
        for (int d = N - 1; d > 0; --d) {
            const unsigned int quotient = threads_by(first, by[d]);
            at[d] = origin[d] + static_cast<index_t>(first - quotient * by[d]);
            first = quotient;
        }
        at[0] = size ? origin[0] + static_cast<index_t>(first) : end[0];
        if (static_cast<index_t>(ahead) >= size) return;
#pragma unroll
        for (int d = N - 1; d > 0; --d) {
            const unsigned int quotient = threads_by(ahead, by[d]);
            step[d] = static_cast<index_t>(ahead - quotient * by[d]);
            ahead = quotient;
        }
        step[0] = static_cast<index_t>(ahead);
    }
    DAGPU_INLINE bool operator!=(End) const { return at[0] < end[0]; }
    DAGPU_INLINE Index<N> operator*() const {
        Index<N> i;
#pragma unroll
        for (int d = 0; d < N; ++d) i.at[d] = at[d];
        return i;
    }
    DAGPU_INLINE Cursor& operator++() {
        index_t carry = 0;
#pragma unroll
        for (int d = N - 1; d > 0; --d) {
            at[d] += step[d] + carry;
            carry = at[d] >= end[d];
            if (carry) at[d] -= width[d];
        }
        at[0] += step[0] + carry;
        return *this;
    }
};

template <> struct Cursor<1> {
    index_t at, end, step;

    DAGPU_INLINE Cursor(const index_t (&origin)[1], const index_t (&extent)[1])
        : at(origin[0] + static_cast<index_t>(thread_number())),
          end(origin[0] + extent[0]),
          step(static_cast<index_t>(thread_count())) {}
    DAGPU_INLINE bool operator!=(End) const { return at < end; }
    DAGPU_INLINE Index<1> operator*() const { return Index<1>{{at}}; }
    DAGPU_INLINE Cursor& operator++() {
        // As unsigned numbers: of a signed sum that may not overflow, the compiler computes the number of turns, by a
        // division that every thread pays for, to unroll a loop that seldom has more than a few.
        at = static_cast<index_t>(static_cast<unsigned_t>(at) + static_cast<unsigned_t>(step));
        return *this;
    }
};

template <> struct Cursor<0> {
    bool ahead;

    DAGPU_INLINE bool operator!=(End) const { return ahead; }
    DAGPU_INLINE Index<0> operator*() const { return Index<0>{}; }
    DAGPU_INLINE Cursor& operator++() {
        ahead = false;
        return *this;
    }
};

// ---- Tile: an output ------------------------------------------------------------------------------------------------------
// This block's tile of an output. Indices are those of the whole tensor. `for (auto i : y)` gives each thread of the
// block its share of the tile.
template <class T, int N> struct Tile {
    T* data_;
    Shape<N> shape_;
    index_t tile_[N];
#if defined(DAGPU_LINEAR_GRID) || defined(DAGPU_TILE_LIST)
    index_t grid_[N];
#endif
#ifdef DAGPU_TILE_LIST
    const int* list_;
#endif
    DAGPU_GUARD

    DAGPU_ARRAY(T, N)

    // The tile's place in the output's grid.
    DAGPU_INLINE index_t tile_index(int axis) const {
#if defined(DAGPU_LINEAR_GRID) || defined(DAGPU_TILE_LIST)
#ifdef DAGPU_TILE_LIST
        unsigned int number = static_cast<unsigned int>(list_[blockIdx.x]);
#else
        unsigned int number = blockIdx.x;
#endif
#pragma unroll
        for (int d = N - 1; d > 0; --d) {
            if (d == axis) return static_cast<index_t>(number % divisor(grid_[d]));
            if (d > axis) number /= divisor(grid_[d]);
        }
        return static_cast<index_t>(number);
#else
        return static_cast<index_t>(axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : axis == 2 ? blockIdx.z : 0);
#endif
    }
    // The tile's first coordinate; the tensor's extent where the block lies outside the output's grid.
    DAGPU_INLINE index_t origin(int axis) const {
        const index_t extent = shape_.extent[axis];
        const unsigned long long index = static_cast<unsigned long long>(tile_index(axis));
        const unsigned long long tile = static_cast<unsigned long long>(tile_[axis]);
#ifdef DAGPU_WIDE
        if (__umul64hi(index, tile)) return extent;
#endif
        return index * tile < static_cast<unsigned long long>(extent) ? static_cast<index_t>(index * tile) : extent;
    }
    // How many coordinates the tile has: what was asked for, less at the edge, 0 outside the output's grid.
    DAGPU_INLINE index_t tile_extent(int axis) const {
        const index_t left = shape_.extent[axis] - origin(axis);
        return beside_the_grid<N>() ? 0 : left < tile_[axis] ? left : tile_[axis];
    }

    DAGPU_INLINE Cursor<N> begin() const {
        index_t origins[N], extents[N];
#pragma unroll
        for (int d = 0; d < N; ++d) {
            origins[d] = origin(d);
            extents[d] = tile_extent(d);
        }
        return Cursor<N>(origins, extents);
    }
    DAGPU_INLINE End end() const { return End{}; }

#ifdef DAGPU_CHECKED
private:
    DAGPU_INLINE bool allowed(const coordinate_t (&at)[N]) const {
        const bool in_tensor = shape_.contains(at);
        bool in_tile = in_tensor;
#pragma unroll
        for (int d = 0; d < N; ++d)
            in_tile &= static_cast<unsigned long long>(at[d] - origin(d)) <
                       static_cast<unsigned long long>(tile_extent(d));
        if (!in_tile) guard_.refuse(in_tensor ? 2 : 1, at, shape_.extent);
        return in_tile;
    }
#endif
};

template <class T> struct Tile<T, 0> {
    T* data_;
    DAGPU_GUARD

    static constexpr int rank = 0;
    DAGPU_INLINE T* data() const { return data_; }
    DAGPU_INLINE index_t size() const { return 1; }
    DAGPU_INLINE T& operator[](Index<0>) const { return *data_; }
    DAGPU_INLINE T& operator()() const { return *data_; }
    DAGPU_INLINE Cursor<0> begin() const { return Cursor<0>{!beside_the_grid<0>() && thread_number() == 0}; }
    DAGPU_INLINE End end() const { return End{}; }
};

// ---- neighbours in memory, read and written by one instruction ------------------------------------------------------------
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Side { T at[N]; };

// True if the elements of a vector that begin at a multiple of N can be accessed as a Side.
template <int N, class T> DAGPU_INLINE bool has_sides(T* data, index_t stride) {
    return (stride == 1) & (reinterpret_cast<unsigned long long>(data) % alignof(Side<T, N>) == 0);
}

template <int N, class T> DAGPU_INLINE Side<T, N> read_side(T* data, index_t at) {
    return *reinterpret_cast<const Side<T, N>*>(data + at);
}

template <int N, class T, class F, class... S> DAGPU_INLINE Side<T, N> computed_side(const F& f, const S&... sides) {
    Side<T, N> made;
#pragma unroll
    for (int n = 0; n < N; ++n) made.at[n] = f(sides.at[n]...);
    return made;
}

// Writes f(elements of the inputs) to this block's tile, N neighbours at a time. Returns false, and writes nothing, where
// strides, addresses or extents do not allow that, and where each access is checked.
template <int N, class T, class F, class... X>
DAGPU_INLINE bool by_sides(const Tile<T, 1>& out, const F& f, const X&... inputs) {
#ifdef DAGPU_CHECKED
    return false;
#else
    const index_t origin = out.origin(0), count = out.tile_extent(0);
    const bool fits[] = {
        (origin | count) % N == 0, has_sides<N>(out.data(), out.stride(0)), has_sides<N>(inputs.data(), inputs.stride(0))...
    };
    for (bool fit : fits)
        if (!fit) return false;
    for (unsigned_t k = N * thread_number(); k < static_cast<unsigned_t>(count); k += N * thread_count()) {
        const index_t at = origin + static_cast<index_t>(k);
        const Side<T, N> made = computed_side<N, T>(f, read_side<N>(inputs.data(), at)...);
        *reinterpret_cast<Side<T, N>*>(out.data() + at) = made;
    }
    return true;
#endif
}

// ---- several outputs of one form ------------------------------------------------------------------------------------------
// The results of one index, the first one and the rest. `return {a, b};` makes those of two outputs.
template <class... T> struct Results {};
template <class T, class... R> struct Results<T, R...> { T first; Results<R...> rest; };

// Writes the results of an index to the outputs.
template <class I> DAGPU_INLINE void write_results(const I&, const Results<>&) {}
template <class I, class... T, class O, class... P>
DAGPU_INLINE void write_results(const I& i, const Results<T...>& made, const O& out, const P&... outs) {
    out[i] = made.first;
    write_results(i, made.rest, outs...);
}

template <class... T> struct Tiles {};
template <class T, class... R> struct Tiles<T, R...> { const Tile<T, 1>& first; Tiles<R...> rest; };

DAGPU_INLINE Tiles<> tiles() { return {}; }
template <class T, class... R>
DAGPU_INLINE Tiles<T, R...> tiles(const Tile<T, 1>& out, const Tile<R, 1>&... outs) { return {out, tiles(outs...)}; }

template <int N> DAGPU_INLINE bool have_sides(const Tiles<>&) { return true; }
template <int N, class T, class... R> DAGPU_INLINE bool have_sides(const Tiles<T, R...>& outs) {
    return has_sides<N>(outs.first.data(), outs.first.stride(0)) & have_sides<N>(outs.rest);
}

// Puts the results of neighbour n into the Side of each output.
DAGPU_INLINE void put_results(Results<>&, int, const Results<>&) {}
template <class S, class... Q, class T, class... R>
DAGPU_INLINE void put_results(Results<S, Q...>& sides, int n, const Results<T, R...>& made) {
    sides.first.at[n] = made.first;
    put_results(sides.rest, n, made.rest);
}

template <int N, class... T, class F, class... S>
DAGPU_INLINE Results<Side<T, N>...> computed_sides(const Tiles<T...>&, const F& f, const S&... sides) {
    Results<Side<T, N>...> made;
#pragma unroll
    for (int n = 0; n < N; ++n) put_results(made, n, f(sides.at[n]...));
    return made;
}

DAGPU_INLINE void write_sides(const Tiles<>&, index_t, const Results<>&) {}
template <class T, class... R, class S, class... Q>
DAGPU_INLINE void write_sides(const Tiles<T, R...>& outs, index_t at, const Results<S, Q...>& made) {
    *reinterpret_cast<S*>(outs.first.data() + at) = made.first;
    write_sides(outs.rest, at, made.rest);
}

// As for one output. All inputs of an index are read before one of its results is written.
template <int N, class T, class... R, class F, class... X>
DAGPU_INLINE bool by_sides(const Tiles<T, R...>& outs, const F& f, const X&... inputs) {
#ifdef DAGPU_CHECKED
    return false;
#else
    const index_t origin = outs.first.origin(0), count = outs.first.tile_extent(0);
    const bool fits[] = {
        (origin | count) % N == 0, have_sides<N>(outs), has_sides<N>(inputs.data(), inputs.stride(0))...
    };
    for (bool fit : fits)
        if (!fit) return false;
    for (unsigned_t k = N * thread_number(); k < static_cast<unsigned_t>(count); k += N * thread_count()) {
        const index_t at = origin + static_cast<index_t>(k);
        write_sides(outs, at, computed_sides<N>(outs, f, read_side<N>(inputs.data(), at)...));
    }
    return true;
#endif
}

#undef DAGPU_ARRAY
#undef DAGPU_CHECK
#undef DAGPU_GUARD
#undef DAGPU_SIGHT

}  // namespace dagpu

using dagpu::Index;
using dagpu::Tile;
using dagpu::View;
using dagpu::launch_dependents;
using dagpu::wait_for_inputs;
