// Fills: element i of a tensor from i alone, by the formulas in dagpu.ops.initializers. Elements are numbered in C order.
//
// A formula has a type `element`, `at(i)`, and `pack(i, values)` for the `lanes` elements from i on, a multiple of `lanes`.
#pragma once

namespace dagpu {

// What every formula has that makes its elements one by one.
#define DAGPU_ONE_BY_ONE(T)                                                     \
    typedef T element;                                                          \
    static constexpr int lanes = 16 / sizeof(T);                                \
    DAGPU_INLINE void pack(u64 i, T (&values)[lanes]) const {                   \
        _Pragma("unroll") for (int k = 0; k < lanes; ++k) values[k] = at(i + k); \
    }

// T is an unsigned integer as wide as the element; its bits come from the host.
template <class T> struct Constant {
    DAGPU_ONE_BY_ONE(T)
    u64 bits;

    DAGPU_INLINE T at(u64) const { return static_cast<T>(bits); }
};

// The same for elements of 16 bytes.
struct Wide {
    u64 low, high;
};
struct ConstantWide {
    DAGPU_ONE_BY_ONE(Wide)
    u64 low, high;

    DAGPU_INLINE Wide at(u64) const { return Wide{low, high}; }
};

// start + i * step in f64, two roundings, landed; element `last` is `stop`.
template <class T> struct Line {
    DAGPU_ONE_BY_ONE(T)
    double start, step, stop;
    u64 last;

    DAGPU_INLINE T at(u64 i) const {
        const double x = __dadd_rn(start, __dmul_rn(static_cast<double>(static_cast<i64>(i)), step));
        return land(i == last ? stop : x, static_cast<T*>(nullptr));
    }
};

// start + i * step modulo 2^64, for integers and bool.
template <class T> struct Whole {
    DAGPU_ONE_BY_ONE(T)
    u64 start, step;

    DAGPU_INLINE T at(u64 i) const { return To<T>::from(start + i * step); }
};

// 1 where the row is the column: element row * (columns + 1), and row < columns.
template <class T> struct Eye {
    DAGPU_ONE_BY_ONE(T)
    u64 columns;

    DAGPU_INLINE T at(u64 i) const {
        const u64 row = i / (columns + 1);
        return To<T>::from(static_cast<float>(row < columns && row * (columns + 1) == i));
    }
};

// Contiguous outputs: `count` elements from `out + offset` on.
template <class Formula> DAGPU_INLINE void fill_dense(char* out, i64 offset, u64 count, const Formula& formula) {
    typedef typename Formula::element T;
    typedef Pack<T, Formula::lanes> P;
    constexpr int lanes = Formula::lanes;
    T* const to = reinterpret_cast<T*>(out + offset);
    const bool fits = P::fits(to);
    for (u64 i = global_thread() * lanes; i < count; i += global_threads() * lanes) {
        P values;
        formula.pack(i, values.at);
        if (fits && count - i >= lanes) {
            *reinterpret_cast<P*>(to + i) = values;
        } else {
#pragma unroll
            for (int k = 0; k < lanes; ++k)
                if (i + k < count) to[i + k] = values.at[k];
        }
    }
}

// Any other: the walk's first array is the output in bytes, its second the elements' numbers.
template <class Formula, int AXES> DAGPU_INLINE void fill_walk(char* out, const Walk<AXES>& walk, const Formula& formula) {
    typedef typename Formula::element T;
    walk.each([&](i64 byte, i64 i) { *reinterpret_cast<T*>(out + byte) = formula.at(static_cast<u64>(i)); });
}

}  // namespace dagpu
