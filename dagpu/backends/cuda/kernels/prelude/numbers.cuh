// Element types, and conversion between them with the results that NumPy and ml_dtypes give on the host.
//
// float16 and bfloat16 are structs of 16 bits here: cuda_fp16.h alone would take longer to compile than all of this.
#pragma once

#ifndef DAGPU_INLINE
#define DAGPU_INLINE __device__ __forceinline__
#endif

namespace dagpu {

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
struct boolean { unsigned char bits; };  // of an element that is read: any byte but 0 is true

#ifndef DAGPU_EMULATED  // the tests run this file on the CPU, with these three written in C++
DAGPU_INLINE unsigned short half_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
DAGPU_INLINE unsigned short half_bits(double x) {  // rounded once: by way of float it would be twice
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
    return bits;
}
DAGPU_INLINE float half_value(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

// To bfloat16, to nearest, ties to even. A carry out of the fraction is the next exponent, up to infinity.
DAGPU_INLINE unsigned short brain_bits(float x) {
    const unsigned int bits = __float_as_uint(x);
    if (x != x) return static_cast<unsigned short>(bits >> 16 & 0x8000u | 0x7fc0u);
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// An element as a number of C++.
template <class T> DAGPU_INLINE T number(T x) { return x; }
DAGPU_INLINE float number(float16 x) { return half_value(x.bits); }
DAGPU_INLINE float number(bfloat16 x) { return __uint_as_float(static_cast<unsigned int>(x.bits) << 16); }
DAGPU_INLINE bool number(boolean x) { return x.bits != 0; }

// A number of C++ as an element: `To<T>::from(x)`. To integers fractions are cut off; out of the range of T, C++ leaves
// the result open, and the GPU gives the nearest end of the range.
template <class T> struct To {
    template <class X> static DAGPU_INLINE T from(X x) { return static_cast<T>(x); }
};
template <> struct To<bool> {
    template <class X> static DAGPU_INLINE bool from(X x) { return x != X(0); }
};
template <> struct To<float16> {
    template <class X> static DAGPU_INLINE float16 from(X x) { return float16{half_bits(static_cast<float>(x))}; }
    static DAGPU_INLINE float16 from(double x) { return float16{half_bits(x)}; }
};
template <> struct To<bfloat16> {
    template <class X> static DAGPU_INLINE bfloat16 from(X x) { return bfloat16{brain_bits(static_cast<float>(x))}; }
};

// A complex number of a real one.
template <class T> struct alignas(2 * sizeof(T)) Complex { T real, imag; };
template <class T> struct To<Complex<T>> {
    template <class X> static DAGPU_INLINE Complex<T> from(X x) { return Complex<T>{To<T>::from(x), T(0)}; }
};

// Landing an f64: the table in dagpu.ops.initializers. To integers it rounds down.
template <class T> DAGPU_INLINE T land(double x, T*) { return To<T>::from(floor(x)); }
DAGPU_INLINE bool land(double x, bool*) { return x != 0.0; }
DAGPU_INLINE double land(double x, double*) { return x; }
DAGPU_INLINE float land(double x, float*) { return static_cast<float>(x); }
DAGPU_INLINE float16 land(double x, float16*) { return To<float16>::from(x); }
DAGPU_INLINE bfloat16 land(double x, bfloat16*) { return To<bfloat16>::from(x); }

// COUNT neighbours in memory, moved by one instruction where the address is a multiple of their size.
template <class T, int COUNT> struct alignas(sizeof(T) * COUNT) Pack {
    T at[COUNT];

    static DAGPU_INLINE bool fits(const void* address) {
        return reinterpret_cast<unsigned long long>(address) % sizeof(Pack) == 0;
    }
};

}  // namespace dagpu
