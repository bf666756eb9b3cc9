// Random numbers: Philox 4x32-10 (J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC'11) and the formulas `Uniform` and `Normal` of dagpu.ops.initializers, which say how counters become
// elements.
#pragma once

namespace dagpu {

struct Words { unsigned int at[4]; };

// The words of block `counter`; `stream` is counter word 3: 0 for uniform numbers, 1 for normal ones.
DAGPU_INLINE Words philox(u64 counter, unsigned int stream, u64 seed) {
    unsigned int w0 = static_cast<unsigned int>(counter), w1 = static_cast<unsigned int>(counter >> 32);
    unsigned int w2 = 0, w3 = stream;
    unsigned int k0 = static_cast<unsigned int>(seed), k1 = static_cast<unsigned int>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned int low0 = 0xD2511F53u * w0, high0 = __umulhi(0xD2511F53u, w0);
        const unsigned int low1 = 0xCD9E8D57u * w2, high1 = __umulhi(0xCD9E8D57u, w2);
        w0 = high1 ^ w1 ^ k0;
        w1 = low1;
        w2 = high0 ^ w3 ^ k1;
        w3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{w0, w1, w2, w3}};
}

// Two words as one number, of which the 53 bits that a double holds.
DAGPU_INLINE double bits_53(unsigned int low, unsigned int high, u64 more) {
    const u64 word = static_cast<u64>(high) << 32 | low;
    return static_cast<double>(static_cast<i64>((word >> 11) + more)) * 0x1p-53;
}

// One word as a fraction: as many of its high bits as the significand holds, so that each product is exact.
DAGPU_INLINE float fraction(unsigned int word, float*) { return static_cast<float>(word >> 8) * 0x1p-24f; }
DAGPU_INLINE float16 fraction(unsigned int word, float16*) {
    return To<float16>::from(static_cast<float>(word >> 21) * 0x1p-11f);
}
DAGPU_INLINE bfloat16 fraction(unsigned int word, bfloat16*) {
    return To<bfloat16>::from(static_cast<float>(word >> 24) * 0x1p-8f);
}

// Each function that draws has a stream of its own (dagpu.ops.initializers).
template <class T, int stream> struct Uniform {
    typedef T element;
    static constexpr int lanes = 4;
    u64 seed;

    DAGPU_INLINE void pack(u64 i, T (&values)[4]) const {
        const Words words = philox(i / 4, stream, seed);
#pragma unroll
        for (int k = 0; k < 4; ++k) values[k] = fraction(words.at[k], static_cast<T*>(nullptr));
    }
    DAGPU_INLINE T at(u64 i) const {
        const Words words = philox(i / 4, stream, seed);
        const unsigned int low = i & 1 ? words.at[1] : words.at[0], high = i & 1 ? words.at[3] : words.at[2];
        return fraction(i & 2 ? high : low, static_cast<T*>(nullptr));
    }
};

template <int stream> struct Uniform<double, stream> {
    typedef double element;
    static constexpr int lanes = 2;
    u64 seed;

    DAGPU_INLINE void pack(u64 i, double (&values)[2]) const {
        const Words words = philox(i / 2, stream, seed);
        values[0] = bits_53(words.at[0], words.at[1], 0);
        values[1] = bits_53(words.at[2], words.at[3], 0);
    }
    DAGPU_INLINE double at(u64 i) const {
        double values[2];
        pack(i & ~1ull, values);
        return i & 1 ? values[1] : values[0];
    }
};

// By Box and Muller. Log, sine and cosine are CUDA's, within 2 units in the last place: the only place where elements
// may differ from the host's.
template <class T> struct Normal {
    typedef T element;
    static constexpr int lanes = 2;
    double mean, deviation;
    u64 seed;

    DAGPU_INLINE void pack(u64 i, T (&values)[2]) const {
        const Words words = philox(i / 2, 1, seed);
        const double u = bits_53(words.at[0], words.at[1], 1), v = bits_53(words.at[2], words.at[3], 0);
        const double radius = __dsqrt_rn(-2.0 * log(u));
        double sine, cosine;
        sincos(v * 6.283185307179586, &sine, &cosine);
        values[0] = placed(__dmul_rn(radius, cosine));
        values[1] = placed(__dmul_rn(radius, sine));
    }
    DAGPU_INLINE T at(u64 i) const {
        T values[2];
        pack(i & ~1ull, values);
        return i & 1 ? values[1] : values[0];
    }

private:
    DAGPU_INLINE T placed(double z) const {
        return land(__dadd_rn(mean, __dmul_rn(deviation, z)), static_cast<T*>(nullptr));
    }
};

}  // namespace dagpu
