// Arithmetic of CUDA C++: bits, whole numbers, rounding, functions of the math library that C++ lacks, printf.
#pragma once

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_LN2_F 0.693147181f
#define CUDART_MIN_DENORM_F __builtin_bit_cast(float, 1u)
#define CUDART_MAX_NORMAL_F 3.402823466e+38f

using std::abs; using std::acos; using std::asin; using std::atan; using std::atan2; using std::cbrt; using std::ceil;
using std::copysign; using std::cos; using std::cosh; using std::erf; using std::erfc; using std::exp; using std::exp2;
using std::expm1; using std::fabs; using std::floor; using std::fma; using std::fmax; using std::fmin; using std::fmod;
using std::hypot; using std::isfinite; using std::isinf; using std::isnan; using std::lgamma; using std::log;
using std::log10; using std::log1p; using std::log2; using std::max; using std::min; using std::nearbyint; using std::pow;
using std::rint; using std::round; using std::signbit; using std::sin; using std::sinh; using std::sqrt; using std::tan;
using std::tanh; using std::tgamma; using std::trunc;
#define DAGPU_MIXED(name, order)                                                                                   \
    template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> &&     \
                                                         !std::is_same_v<A, B>>>                                   \
    constexpr DAGPU_HERE auto name(A a, B b) {                                                                     \
        using C = std::common_type_t<A, B>;                                                                        \
        return (C)a order (C)b ? (C)a : (C)b;                                                                      \
    }
DAGPU_MIXED(max, >) DAGPU_MIXED(min, <)
// The functions that write through pointers: the text's own stores, which the hooks see.
DAGPU_HERE void sincospif(float x, float* s, float* c) { const double a = x * 3.14159265358979323846; *s = std::sin(a); *c = std::cos(a); }
DAGPU_HERE void __sincosf(float x, float* s, float* c) { const float a = std::sin(x), b = std::cos(x); *s = a; *c = b; }
namespace dagpu_emulated {
template <class T> DAGPU_HERE void sine_and_cosine(T x, T* s, T* c) { const T a = std::sin(x), b = std::cos(x); *s = a; *c = b; }
template <class T> DAGPU_HERE T parted(T x, T* whole) { const T w = std::trunc(x); *whole = w; return std::isinf(x) ? std::copysign(T(0), x) : std::copysign(x - w, x); }
template <class T> DAGPU_HERE T cut(T x, int* exponent) {
    const bool plain = std::isfinite(x) && x != 0;
    const int e = plain ? std::ilogb(x) + 1 : 0;
    *exponent = e;
    return plain ? std::scalbn(x, -e) : x;
}
}  // namespace dagpu_emulated
#define sincosf(x, s, c) dagpu_emulated::sine_and_cosine<float>(x, s, c)  // functions of their names are the system's
#define sincos(x, s, c) dagpu_emulated::sine_and_cosine<std::remove_reference_t<decltype(*(s))>>(x, s, c)
#define modf(x, p) dagpu_emulated::parted<std::remove_reference_t<decltype(*(p))>>(x, p)
#define modff(x, p) dagpu_emulated::parted<float>(x, p)
#define frexp(x, p) dagpu_emulated::cut((x) + 0 * (x), p)
#define frexpf(x, p) dagpu_emulated::cut<float>(x, p)

DAGPU_HERE unsigned __float_as_uint(float x) { return dagpu_emulated::bits<unsigned>(x); }
DAGPU_HERE int __float_as_int(float x) { return dagpu_emulated::bits<int>(x); }
DAGPU_HERE float __uint_as_float(unsigned x) { return dagpu_emulated::bits<float>(x); }
DAGPU_HERE float __int_as_float(int x) { return dagpu_emulated::bits<float>(x); }
DAGPU_HERE long long __double_as_longlong(double x) { return dagpu_emulated::bits<long long>(x); }
DAGPU_HERE double __longlong_as_double(long long x) { return dagpu_emulated::bits<double>(x); }
DAGPU_HERE int __double2hiint(double x) { return dagpu_emulated::bits<uint64_t>(x) >> 32; }
DAGPU_HERE int __double2loint(double x) { return (int)dagpu_emulated::bits<uint64_t>(x); }
DAGPU_HERE double __hiloint2double(int h, int l) { return dagpu_emulated::bits<double>((uint64_t)(uint32_t)h << 32 | (uint32_t)l); }
DAGPU_HERE unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
DAGPU_HERE int __mulhi(int a, int b) { return (int64_t)a * b >> 32; }
DAGPU_HERE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
DAGPU_HERE int __mul24(int a, int b) { return a * b; }
DAGPU_HERE unsigned __umul24(unsigned a, unsigned b) { return a * b; }
DAGPU_HERE int __popc(unsigned x) { return __builtin_popcount(x); }
DAGPU_HERE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
DAGPU_HERE int __clz(int x) { return x ? __builtin_clz(x) : 32; }
DAGPU_HERE int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
DAGPU_HERE int __ffs(int x) { return __builtin_ffs(x); }
DAGPU_HERE int __ffsll(long long x) { return __builtin_ffsll(x); }
DAGPU_HERE unsigned __brev(unsigned x) { unsigned r = 0; for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i); return r; }
DAGPU_HERE unsigned __byte_perm(unsigned a, unsigned b, unsigned s) { uint64_t v = (uint64_t)b << 32 | a; unsigned r = 0; for (int i = 0; i < 4; ++i) { unsigned k = s >> 4 * i & 15, by = v >> 8 * (k & 7) & 255; if (k & 8) by = by & 128 ? 255 : 0; r |= by << 8 * i; } return r; }
DAGPU_HERE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return ((uint64_t)hi << 32 | lo) << (s & 31) >> 32; }
DAGPU_HERE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return ((uint64_t)hi << 32 | lo) >> (s & 31); }
DAGPU_HERE int __dp4a(int a, int b, int c) { for (int i = 0; i < 4; ++i) c += (int)(signed char)(a >> 8 * i) * (signed char)(b >> 8 * i); return c; }
DAGPU_HERE unsigned __dp4a(unsigned a, unsigned b, unsigned c) { for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255); return c; }
DAGPU_HERE float __fdividef(float a, float b) { return a / b; }
DAGPU_HERE float __expf(float x) { return std::exp(x); }
DAGPU_HERE float __exp10f(float x) { return std::pow(10.0f, x); }
DAGPU_HERE float __logf(float x) { return std::log(x); }
DAGPU_HERE float __log2f(float x) { return std::log2(x); }
DAGPU_HERE float __sinf(float x) { return std::sin(x); }
DAGPU_HERE float __cosf(float x) { return std::cos(x); }
DAGPU_HERE float __tanf(float x) { return std::tan(x); }
DAGPU_HERE float __powf(float x, float y) { return std::pow(x, y); }
DAGPU_HERE float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
DAGPU_HERE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
DAGPU_HERE float rsqrt(float x) { return rsqrtf(x); }
DAGPU_HERE float __frsqrt_rn(float x) { return rsqrtf(x); }
DAGPU_HERE float __fsqrt_rn(float x) { return std::sqrt(x); }
DAGPU_HERE double __dsqrt_rn(double x) { return std::sqrt(x); }
DAGPU_HERE float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
DAGPU_HERE float exp10f(float x) { return std::pow(10.0f, x); }
DAGPU_HERE float sinpif(float x) { return std::sin(3.14159265358979323846 * x); }
DAGPU_HERE float cospif(float x) { return std::cos(3.14159265358979323846 * x); }
DAGPU_HERE float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
#define DAGPU_ROUNDED(T, p)                                                                     \
    DAGPU_HERE T __##p##add_rn(T a, T b) { return dagpu_emulated::alone(a + b); }             \
    DAGPU_HERE T __##p##sub_rn(T a, T b) { return dagpu_emulated::alone(a - b); }             \
    DAGPU_HERE T __##p##mul_rn(T a, T b) { return dagpu_emulated::alone(a * b); }             \
    DAGPU_HERE T __##p##div_rn(T a, T b) { return a / b; }
namespace dagpu_emulated {
// A result that is never contracted with the operation that follows.
#ifdef __x86_64__
template <class T> DAGPU_HERE T alone(T x) { __asm__("" : "+x"(x)); return x; }
#else
template <class T> DAGPU_HERE T alone(T x) { __asm__("" : "+w"(x)); return x; }
#endif
}  // namespace dagpu_emulated
DAGPU_ROUNDED(float, f) DAGPU_ROUNDED(double, d)
DAGPU_HERE float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
DAGPU_HERE double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
DAGPU_HERE int __float2int_rn(float x) { return (int)std::nearbyint(x); }
DAGPU_HERE int __float2int_rz(float x) { return (int)x; }
DAGPU_HERE int __float2int_rd(float x) { return (int)std::floor(x); }
DAGPU_HERE unsigned __float2uint_rn(float x) { return (unsigned)std::nearbyint(x); }
DAGPU_HERE float __int2float_rn(int x) { return (float)x; }
DAGPU_HERE float __uint2float_rn(unsigned x) { return (float)x; }
DAGPU_HERE float __double2float_rn(double x) { return (float)x; }
DAGPU_HERE int __double2int_rn(double x) { return (int)std::nearbyint(x); }
DAGPU_HERE int __sad(int a, int b, int c) { return c + std::abs(a - b); }
DAGPU_HERE unsigned __vadd4(unsigned a, unsigned b) { unsigned r = 0; for (int i = 0; i < 32; i += 8) r |= ((a >> i) + (b >> i) & 255) << i; return r; }
DAGPU_HERE int __float2int_ru(float x) { return (int)std::ceil(x); }
DAGPU_HERE unsigned __float2uint_rz(float x) { return (unsigned)x; }
DAGPU_HERE unsigned __float2uint_rd(float x) { return (unsigned)std::floor(x); }
DAGPU_HERE long long __float2ll_rn(float x) { return (long long)std::nearbyint(x); }
DAGPU_HERE double __int2double_rn(int x) { return (double)x; }
DAGPU_HERE long long __double2ll_rn(double x) { return (long long)std::nearbyint(x); }
DAGPU_HERE int __double2int_rz(double x) { return (int)x; }
DAGPU_HERE int __hadd(int a, int b) { return (int)(((int64_t)a + b) >> 1); }
DAGPU_HERE int __rhadd(int a, int b) { return (int)(((int64_t)a + b + 1) >> 1); }
DAGPU_HERE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
DAGPU_HERE unsigned long long __brevll(unsigned long long x) { return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32)); }
DAGPU_HERE float __frcp_rn(float x) { return 1.0f / x; }
DAGPU_HERE double __drcp_rn(double x) { return 1.0 / x; }
DAGPU_HERE float fdividef(float a, float b) { return a / b; }
DAGPU_HERE float rhypotf(float a, float b) { return 1.0f / std::hypot(a, b); }
DAGPU_HERE float norm3df(float a, float b, float c) { return std::sqrt(a * a + b * b + c * c); }
DAGPU_HERE float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
DAGPU_HERE double sinpi(double x) { return std::sin(3.14159265358979323846 * x); }
DAGPU_HERE double cospi(double x) { return std::cos(3.14159265358979323846 * x); }
DAGPU_HERE double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
DAGPU_HERE float rcbrtf(float x) { return 1.0f / std::cbrt(x); }

#define clock64() dagpu_emulated::ticks()
#define clock() ((int)dagpu_emulated::ticks())
namespace dagpu_emulated {
DAGPU_QUIET inline long long ticks() { static long long t; return __atomic_add_fetch(&t, 100, __ATOMIC_RELAXED); }
DAGPU_HERE dagpu_value shown(const char* text) { dagpu_value v{0, {}}; v.text = text; return v; }
DAGPU_HERE dagpu_value shown(double x) { dagpu_value v{1, {}}; v.number = x; return v; }
template <class T> DAGPU_HERE std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>, dagpu_value> shown(T x) {
    dagpu_value v{2, {}};
    v.whole = (long long)x;
    return v;
}
template <class T> DAGPU_HERE dagpu_value shown(T* p) { dagpu_value v{2, {}}; v.whole = (long long)p; return v; }
template <class... A> DAGPU_QUIET inline int print(const char* form, A... values) {
    const dagpu_value all[] = {shown(values)..., dagpu_value{}};
    return dagpu_print(form, all, sizeof...(values));
}
}  // namespace dagpu_emulated
#define printf(...) dagpu_emulated::print(__VA_ARGS__)
