// CUDA C++'s words, vectors and built-in variables as plain C++. It comes before a CUDA text.
#pragma once
#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#define DAGPU_EMULATED 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 700  // the last one that lacks no C++ for what later ones have in PTX alone
#define __device__
#define __host__
#define __global__
#define __managed__
#define __shared__ static __attribute__((used)) __thread  // used: what nothing writes is not zero by that
#define __constant__ static __attribute__((section("dagpu_constant"), used))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define warpSize 32
#ifdef __clang__
#define DAGPU_QUIET __attribute__((disable_sanitizer_instrumentation))  // no_sanitize("thread") keeps those of atomics
#define DAGPU_HERE inline __attribute__((always_inline, nodebug))       // its code has the place of the call
#else
#define DAGPU_QUIET __attribute__((no_sanitize("thread", "bounds", "alignment"), no_sanitize_coverage))
#define DAGPU_HERE inline __attribute__((always_inline))
#endif
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;

// ---- vectors ------------------------------------------------------------------------------------------------------------
#define DAGPU_VECTOR(T, name, of2, of4)                                                  \
    struct name##1 { T x; };                                                             \
    struct alignas(of2) name##2 { T x, y; };                                             \
    struct name##3 { T x, y, z; };                                                       \
    struct alignas(of4) name##4 { T x, y, z, w; };                                       \
    DAGPU_HERE name##1 make_##name##1(T x) { return {x}; }                               \
    DAGPU_HERE name##2 make_##name##2(T x, T y) { return {x, y}; }                       \
    DAGPU_HERE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }               \
    DAGPU_HERE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
DAGPU_VECTOR(signed char, char, 2, 4)
DAGPU_VECTOR(unsigned char, uchar, 2, 4)
DAGPU_VECTOR(short, short, 4, 8)
DAGPU_VECTOR(unsigned short, ushort, 4, 8)
DAGPU_VECTOR(int, int, 8, 16)
DAGPU_VECTOR(unsigned int, uint, 8, 16)
DAGPU_VECTOR(long, long, 16, 16)
DAGPU_VECTOR(unsigned long, ulong, 16, 16)
DAGPU_VECTOR(long long, longlong, 16, 16)
DAGPU_VECTOR(unsigned long long, ulonglong, 16, 16)
DAGPU_VECTOR(float, float, 8, 16)
DAGPU_VECTOR(double, double, 16, 16)
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};

// ---- what the runtime has -------------------------------------------------------------------------------------------------
#define DAGPU_OF_THREAD __thread __attribute__((tls_model("initial-exec")))
extern "C" {
extern const DAGPU_OF_THREAD uint3 threadIdx, blockIdx, blockDim, gridDim;  // no hooks see constants of a plain type
extern DAGPU_OF_THREAD int dagpu_patience;
extern __thread __attribute__((aligned(128))) char dagpu_dynamic_memory[] __asm("dagpu_dynamic");
int dagpu_sync_block(int, int);
void dagpu_sync_warp(unsigned);
void dagpu_shuffle(unsigned, const void*, void*, unsigned, unsigned);
unsigned dagpu_gather(unsigned, const void*, void*, unsigned);
unsigned dagpu_lane();
unsigned dagpu_thread();
unsigned dagpu_alive();
void dagpu_sync_grid();
void dagpu_yield();
void dagpu_fence();
[[noreturn]] void dagpu_assert_fail(const char*, const char*, unsigned);
[[noreturn]] void dagpu_trap();
void dagpu_atomic(void*, unsigned, void*);
struct dagpu_value { unsigned kind; union { const char* text; double number; long long whole; }; };
int dagpu_print(const char*, const dagpu_value*, unsigned);
}
namespace dagpu_emulated {
template <class T> struct Same { using type = T; };
template <class To, class From> DAGPU_HERE To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    return __builtin_bit_cast(To, x);
}
}  // namespace dagpu_emulated

#include "dagpu_threads.h"
#include "dagpu_atomics.h"
#include "dagpu_arithmetic.h"
#include "dagpu_memory.h"
#include "dagpu_entry.h"

// PTX runs on a GPU alone. The headers of the system that use these words have been read; dagpu says __asm.
#define asm _Pragma("GCC error \"inline assembly\"")
#define __asm__ _Pragma("GCC error \"inline assembly\"")
