// bfloat16.
#pragma once
#include "dagpu_small.h"
typedef dagpu_emulated::Small<dagpu_emulated::Bf16Format> __nv_bfloat16;
typedef dagpu_emulated::Small2<dagpu_emulated::Bf16Format> __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
DAGPU_SMALL(__nv_bfloat16, __nv_bfloat162)
DAGPU_HERE float __bfloat162float(__nv_bfloat16 x) { return x; }
DAGPU_HERE __nv_bfloat16 __float2bfloat16(float x) { return x; }
DAGPU_HERE __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
DAGPU_HERE __nv_bfloat16 __double2bfloat16(double x) { return x; }
DAGPU_HERE float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
DAGPU_HERE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
DAGPU_HERE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
DAGPU_HERE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.__x; }
DAGPU_HERE __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { __nv_bfloat16 h; h.__x = b; return h; }
DAGPU_HERE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
DAGPU_HERE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
DAGPU_HERE float __low2float(__nv_bfloat162 v) { return v.x; }
DAGPU_HERE float __high2float(__nv_bfloat162 v) { return v.y; }
