// Half precision.
#pragma once
#include "dagpu_small.h"
typedef dagpu_emulated::Small<dagpu_emulated::HalfFormat> __half;
typedef dagpu_emulated::Small2<dagpu_emulated::HalfFormat> __half2;
typedef __half half;
typedef __half2 half2;
DAGPU_SMALL(__half, __half2)
DAGPU_HERE float __half2float(__half x) { return x; }
DAGPU_HERE __half __float2half(float x) { return x; }
DAGPU_HERE __half __float2half_rn(float x) { return x; }
DAGPU_HERE __half __double2half(double x) { return x; }
DAGPU_HERE __half __int2half_rn(int x) { return (float)x; }
DAGPU_HERE int __half2int_rn(__half x) { return (int)std::nearbyint((float)x); }
DAGPU_HERE float2 __half22float2(__half2 v) { return {v.x, v.y}; }
DAGPU_HERE __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
DAGPU_HERE __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
DAGPU_HERE __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
DAGPU_HERE __half2 __half2half2(__half x) { return {x, x}; }
DAGPU_HERE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
DAGPU_HERE __half2 make_half2(__half x, __half y) { return {x, y}; }
DAGPU_HERE __half __low2half(__half2 v) { return v.x; }
DAGPU_HERE __half __high2half(__half2 v) { return v.y; }
DAGPU_HERE float __low2float(__half2 v) { return v.x; }
DAGPU_HERE float __high2float(__half2 v) { return v.y; }
DAGPU_HERE unsigned short __half_as_ushort(__half x) { return x.__x; }
DAGPU_HERE __half __ushort_as_half(unsigned short b) { __half h; h.__x = b; return h; }
DAGPU_HERE __half __float2half_rz(float x) { const __half h = x; return std::fabs((float)h) > std::fabs(x) ? __ushort_as_half(h.__x - 1) : h; }
DAGPU_HERE __half __uint2half_rn(unsigned x) { return (double)x; }
