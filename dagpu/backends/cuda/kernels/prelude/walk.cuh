// Walking through two arrays at once that hold the same elements in different orders.
//
// The host has merged the axes that lie alike in both, made the steps in the first array positive and put the axis with
// the smallest first. Positions 0, 1, ... count - 1 are then any order that goes well with the memory.
#pragma once

#ifndef DAGPU_INLINE
#define DAGPU_INLINE __device__ __forceinline__
#endif

namespace dagpu {

typedef unsigned long long u64;
typedef long long i64;

DAGPU_INLINE u64 global_thread() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
DAGPU_INLINE u64 global_threads() { return static_cast<u64>(gridDim.x) * blockDim.x; }

// position / extent = (high word of position * multiplier + position) >> shift, for positions below 2^31.
// T. Granlund, P. L. Montgomery, "Division by invariant integers using multiplication", PLDI'94, figure 4.1.
struct Axis {
    u64 extent;
    i64 first_step, second_step;
    unsigned int multiplier, shift;
};

// `first` and `second` are where the walk starts; the steps of the axes lead on from there.
template <int AXES> struct Walk {
    u64 count;
    i64 first, second, axes;
    Axis axis[AXES];

    // Calls body(first, second) for this thread's share of the positions.
    template <class Body> DAGPU_INLINE void each(const Body& body) const {
#pragma unroll 1
        for (u64 position = global_thread(); position < count; position += global_threads()) {
            u64 rest = position;
            i64 at_first = first, at_second = second;
            const int last = static_cast<int>(axes) - 1;
#pragma unroll 1
            for (int d = 0; d < last; ++d) {
                const u64 quotient = divided(rest, axis[d]);
                const i64 coordinate = static_cast<i64>(rest - quotient * axis[d].extent);
                at_first += coordinate * axis[d].first_step;
                at_second += coordinate * axis[d].second_step;
                rest = quotient;
            }
            if (last >= 0) {
                at_first += static_cast<i64>(rest) * axis[last].first_step;
                at_second += static_cast<i64>(rest) * axis[last].second_step;
            }
            body(at_first, at_second);
        }
    }

private:
    // A walk with room for few axes is one of fewer than 2^31 positions.
    static DAGPU_INLINE u64 divided(u64 position, const Axis& by) {
        if (AXES > 4) return position / by.extent;
        const unsigned int narrow = static_cast<unsigned int>(position);
        return (__umulhi(narrow, by.multiplier) + narrow) >> by.shift;
    }
};

}  // namespace dagpu
