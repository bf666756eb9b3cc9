// CUDA C++ as plain C++: enough of the device's built-ins to run kernels without barriers on the CPU, thread by thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>

#define DAGPU_EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__

struct Dim3 { unsigned int x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

inline unsigned int __float_as_uint(float x) { unsigned int u; std::memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned int u) { float x; std::memcpy(&x, &u, 4); return x; }
inline long long __double_as_longlong(double x) { long long n; std::memcpy(&n, &x, 8); return n; }
inline double __longlong_as_double(long long n) { double x; std::memcpy(&x, &n, 8); return x; }
inline unsigned int __umulhi(unsigned int a, unsigned int b) { return static_cast<std::uint64_t>(a) * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned __int128>(a) * b >> 64;
}
inline float __fdividef(float a, float b) { return a * (1.0f / b); }  // its error may be larger, as the device's may
inline double __dadd_rn(double a, double b) { return a + b; }         // compiled without contraction
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline void __threadfence_system() {}
inline int atomicCAS(int* at, int expected, int wanted) {
    const int old = *at;
    if (old == expected) *at = wanted;
    return old;
}

namespace dagpu {
// To float16 from any double, rounded once: to a whole multiple of the unit in the last place, ties to even.
inline unsigned short half_bits(double x) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) return sign | 0x7e00;
    if (x == 0) return sign;
    int exponent;
    std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
    const int unit = (std::isinf(x) || exponent > 17 ? 17 : exponent < -13 ? -13 : exponent) - 11;
    const double units = std::nearbyint(std::fabs(x) * std::ldexp(1.0, -unit));
    if (units * std::ldexp(1.0, unit) >= 65536.0) return sign | 0x7c00;
    // 1024 units are the next exponent up, where the units carry over into the exponent's bits by themselves.
    return sign | static_cast<unsigned short>((unit + 24) * 1024 + static_cast<int>(units));
}
inline unsigned short half_bits(float x) { return half_bits(static_cast<double>(x)); }
inline float half_value(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                                      : std::ldexp(static_cast<float>(fraction), -24);
    return bits & 0x8000 ? -size : size;
}
}  // namespace dagpu

namespace emulation {
template <class T> T take(const unsigned char* packed, std::size_t& offset) {
    offset = (offset + alignof(T) - 1) / alignof(T) * alignof(T);
    T value;
    std::memcpy(&value, packed + offset, sizeof(T));
    offset += sizeof(T);
    return value;
}

// Runs a kernel on parameters that are packed as the driver takes them; gives how many bytes they took.
template <class... A>
std::size_t launch(void (*kernel)(A...), const unsigned int* grid, const unsigned int* block, const unsigned char* packed) {
    std::size_t offset = 0;
    const std::tuple<A...> arguments{take<A>(packed, offset)...};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    Dim3 &b = blockIdx, &t = threadIdx;
    for (b.z = 0; b.z < gridDim.z; ++b.z)
        for (b.y = 0; b.y < gridDim.y; ++b.y)
            for (b.x = 0; b.x < gridDim.x; ++b.x)
                for (t.z = 0; t.z < blockDim.z; ++t.z)
                    for (t.y = 0; t.y < blockDim.y; ++t.y)
                        for (t.x = 0; t.x < blockDim.x; ++t.x) std::apply(kernel, arguments);
    return offset;
}
}  // namespace emulation

// Makes a kernel callable from outside under a name of its own.
#define EMULATED(name, kernel)                                                                                  \
    extern "C" std::size_t name(const unsigned int* grid, const unsigned int* block, const unsigned char* packed) { \
        return emulation::launch(&kernel, grid, block, packed);                                                 \
    }
