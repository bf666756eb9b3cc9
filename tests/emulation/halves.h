// __half and __nv_bfloat16 as numbers in memory: what generated kernels use of cuda_fp16.h and cuda_bf16.h. After device.h.
#pragma once

struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };

inline float __half2float(__half x) { return dagpu::half_value(x.bits); }
inline __half __float2half_rn(float x) { return {dagpu::half_bits(x)}; }
inline __half __double2half(double x) { return {dagpu::half_bits(x)}; }
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<unsigned int>(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    const unsigned int all = __float_as_uint(x);
    if (x != x) return {static_cast<unsigned short>(all >> 16 | 0x7fc0)};
    return {static_cast<unsigned short>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
}
