// __half and __nv_bfloat16 over arithmetic in float, rounded once to nearest even.
#pragma once
#include "dagpu_device.h"

namespace dagpu_emulated {
struct HalfFormat {
    static DAGPU_HERE float up(uint16_t b) { return (float)bits<_Float16>(b); }
    static DAGPU_HERE uint16_t down(float x) { return bits<uint16_t>((_Float16)x); }
    static DAGPU_HERE uint16_t down(double x) { return bits<uint16_t>((_Float16)x); }
};
struct Bf16Format {
    static DAGPU_HERE float up(uint16_t b) { return bits<float>((uint32_t)b << 16); }
    static DAGPU_HERE uint16_t down(float x) {
        const uint32_t a = bits<uint32_t>(x);
        return x != x ? 0x7fff : (a + 0x7fff + (a >> 16 & 1)) >> 16;
    }
    static DAGPU_HERE uint16_t down(double x) {  // by way of a float that is rounded to odd, so that it is rounded once
        float f = (float)x;
        if (f != x && !(bits<uint32_t>(f) & 1) && std::isfinite(f)) {
            const bool away = std::fabs((double)f) > std::fabs(x);
            f = bits<float>(bits<uint32_t>(f) + (away ? -1 : 1));
        }
        return down(f);
    }
};
template <class F> struct Small {
    uint16_t __x;
    Small() = default;
    DAGPU_HERE Small(float x) : __x(F::down(x)) {}
    DAGPU_HERE Small(double x) : __x(F::down(x)) {}
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>> DAGPU_HERE Small(I x) : __x(F::down((double)x)) {}
    DAGPU_HERE operator float() const { return F::up(__x); }
    DAGPU_HERE Small& operator+=(Small b) { return *this = Small((float)*this + (float)b); }
    DAGPU_HERE Small& operator-=(Small b) { return *this = Small((float)*this - (float)b); }
    DAGPU_HERE Small& operator*=(Small b) { return *this = Small((float)*this * (float)b); }
    DAGPU_HERE Small& operator/=(Small b) { return *this = Small((float)*this / (float)b); }
};
#define DAGPU_SMALL_OP(o) \
    template <class F> DAGPU_HERE Small<F> operator o(Small<F> a, Small<F> b) { return Small<F>((float)a o (float)b); }
DAGPU_SMALL_OP(+) DAGPU_SMALL_OP(-) DAGPU_SMALL_OP(*) DAGPU_SMALL_OP(/)
template <class F> DAGPU_HERE Small<F> operator-(Small<F> a) { Small<F> r; r.__x = a.__x ^ 0x8000; return r; }
#define DAGPU_SMALL_COMPARED(o) \
    template <class F> DAGPU_HERE bool operator o(Small<F> a, Small<F> b) { return (float)a o (float)b; }
DAGPU_SMALL_COMPARED(<) DAGPU_SMALL_COMPARED(>) DAGPU_SMALL_COMPARED(<=)
DAGPU_SMALL_COMPARED(>=) DAGPU_SMALL_COMPARED(==) DAGPU_SMALL_COMPARED(!=)
template <class F> struct alignas(4) Small2 { Small<F> x, y; };
}  // namespace dagpu_emulated
#define DAGPU_SMALL(S, S2)                                                                                             \
    DAGPU_HERE S __hadd(S a, S b) { return a + b; }                                                                    \
    DAGPU_HERE S __hsub(S a, S b) { return a - b; }                                                                    \
    DAGPU_HERE S __hmul(S a, S b) { return a * b; }                                                                    \
    DAGPU_HERE S __hdiv(S a, S b) { return a / b; }                                                                    \
    DAGPU_HERE S __hneg(S a) { return -a; }                                                                            \
    DAGPU_HERE S __habs(S a) { a.__x &= 0x7fff; return a; }                                                            \
    DAGPU_HERE S __hfma(S a, S b, S c) { return S((double)(float)a * (double)(float)b + (double)(float)c); }           \
    DAGPU_HERE S __hmax(S a, S b) { return a > b ? a : b; }                                                            \
    DAGPU_HERE S __hmin(S a, S b) { return a < b ? a : b; }                                                            \
    DAGPU_HERE bool __hgt(S a, S b) { return a > b; }                                                                  \
    DAGPU_HERE bool __hlt(S a, S b) { return a < b; }                                                                  \
    DAGPU_HERE bool __hge(S a, S b) { return a >= b; }                                                                 \
    DAGPU_HERE bool __hle(S a, S b) { return a <= b; }                                                                 \
    DAGPU_HERE bool __heq(S a, S b) { return a == b; }                                                                 \
    DAGPU_HERE bool __hisnan(S a) { return (float)a != (float)a; }                                                     \
    DAGPU_HERE S hexp(S a) { return S(std::exp((float)a)); }                                                           \
    DAGPU_HERE S hlog(S a) { return S(std::log((float)a)); }                                                           \
    DAGPU_HERE S hsqrt(S a) { return S(std::sqrt((float)a)); }                                                         \
    DAGPU_HERE S hrsqrt(S a) { return S(1.0f / std::sqrt((float)a)); }                                                 \
    DAGPU_HERE S htanh(S a) { return S(std::tanh((float)a)); }                                                         \
    DAGPU_HERE S2 __hadd2(S2 a, S2 b) { return {a.x + b.x, a.y + b.y}; }                                               \
    DAGPU_HERE S2 __hsub2(S2 a, S2 b) { return {a.x - b.x, a.y - b.y}; }                                               \
    DAGPU_HERE S2 __hmul2(S2 a, S2 b) { return {a.x * b.x, a.y * b.y}; }                                               \
    DAGPU_HERE S2 __hfma2(S2 a, S2 b, S2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }                 \
    DAGPU_HERE S2 operator+(S2 a, S2 b) { return __hadd2(a, b); }                                                      \
    DAGPU_HERE S2 operator*(S2 a, S2 b) { return __hmul2(a, b); }                                                      \
    DAGPU_HERE S2 operator-(S2 a, S2 b) { return __hsub2(a, b); }                                                      \
    DAGPU_HERE S2 __hmax2(S2 a, S2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                                 \
    DAGPU_HERE S2 __hmin2(S2 a, S2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                                 \
    DAGPU_HERE bool __hne(S a, S b) { return a != b; }                                                                 \
    DAGPU_HERE bool __hisinf(S a) { return std::isinf((float)a); }                                                     \
    DAGPU_HERE S hsin(S a) { return S(std::sin((float)a)); }                                                           \
    DAGPU_HERE S hcos(S a) { return S(std::cos((float)a)); }                                                           \
    DAGPU_HERE S hrcp(S a) { return S(1.0f / (float)a); }                                                              \
    DAGPU_HERE S hfloor(S a) { return S(std::floor((float)a)); }                                                       \
    DAGPU_HERE S hceil(S a) { return S(std::ceil((float)a)); }
