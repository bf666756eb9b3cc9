// Barriers, warps and what their lanes show each other. They are inlined, so that the runtime sees the caller's place.
#pragma once

DAGPU_HERE void __syncthreads() { dagpu_sync_block(0, 0); }
DAGPU_HERE int __syncthreads_count(int p) { return dagpu_sync_block(1, p); }
DAGPU_HERE int __syncthreads_and(int p) { return dagpu_sync_block(2, p); }
DAGPU_HERE int __syncthreads_or(int p) { return dagpu_sync_block(3, p); }
DAGPU_HERE void __syncwarp(unsigned mask = ~0u) { dagpu_sync_warp(mask); }
DAGPU_HERE void __threadfence() { dagpu_fence(); }
DAGPU_HERE void __threadfence_system() { dagpu_fence(); }
DAGPU_HERE void __threadfence_block() { dagpu_fence(); }
DAGPU_HERE void __nanosleep(unsigned) { dagpu_yield(); }
DAGPU_HERE void __trap() { dagpu_trap(); }
DAGPU_HERE void __brkpt() {}
DAGPU_HERE unsigned __activemask() { return dagpu_alive(); }
#undef assert
#define assert(e) ((e) ? (void)0 : dagpu_assert_fail(#e, __FILE__, __LINE__))

namespace dagpu_emulated {
// The value of a lane, or my own where that one does not take part.
template <class T> DAGPU_HERE T exchanged(unsigned mask, T mine, unsigned from) {
    static_assert(sizeof(T) <= 16, "a shuffle moves up to 16 bytes");
    T theirs;
    dagpu_shuffle(mask, &mine, &theirs, sizeof(T), from);
    return theirs;
}
template <class T, class F> DAGPU_HERE auto gathered(unsigned mask, T mine, F f) {
    T all[32];
    const unsigned came = dagpu_gather(mask, &mine, all, sizeof(T));
    return f(came, all);
}
}  // namespace dagpu_emulated

template <class T> DAGPU_HERE T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    const unsigned lane = dagpu_lane();
    return dagpu_emulated::exchanged(mask, v, (lane & ~(width - 1)) + (from & (width - 1)));
}
template <class T> DAGPU_HERE T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const unsigned lane = dagpu_lane();
    return dagpu_emulated::exchanged(mask, v, (lane & (width - 1)) < by ? lane : lane - by);
}
template <class T> DAGPU_HERE T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const unsigned lane = dagpu_lane();
    return dagpu_emulated::exchanged(mask, v, (lane & (width - 1)) + by >= (unsigned)width ? lane : lane + by);
}
template <class T> DAGPU_HERE T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
    const unsigned lane = dagpu_lane(), from = lane ^ by, group = ~(width - 1);
    return dagpu_emulated::exchanged(mask, v, (from & group) > (lane & group) ? lane : from);
}
DAGPU_HERE unsigned __ballot_sync(unsigned mask, int p) {
    return dagpu_emulated::gathered(mask, p, [](unsigned came, const int* of) DAGPU_QUIET {
        unsigned found = 0;
        for (int i = 0; i < 32; ++i) if (came >> i & 1 && of[i]) found |= 1u << i;
        return found;
    });
}
DAGPU_HERE int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
DAGPU_HERE int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <class T> DAGPU_HERE unsigned __match_any_sync(unsigned mask, T v) {
    return dagpu_emulated::gathered(mask, v, [v](unsigned came, const T* of) DAGPU_QUIET {
        unsigned found = 0;
        for (int i = 0; i < 32; ++i) if (came >> i & 1 && of[i] == v) found |= 1u << i;
        return found;
    });
}
template <class T> DAGPU_HERE unsigned __match_all_sync(unsigned mask, T v, int* all) {
    const unsigned same = __match_any_sync(mask, v);
    *all = same == (mask & dagpu_alive());
    return *all ? same : 0;
}
#define DAGPU_REDUCE(name, T, made)                                                                        \
    DAGPU_HERE T name(unsigned mask, T v) {                                                                \
        return dagpu_emulated::gathered(mask, v, [](unsigned came, const T* of) DAGPU_QUIET {              \
            bool first = true;                                                                             \
            T r = 0;                                                                                       \
            for (int i = 0; i < 32; ++i) if (came >> i & 1) { const T x = of[i]; r = first ? x : made; first = false; } \
            return r;                                                                                      \
        });                                                                                                \
    }
DAGPU_REDUCE(__reduce_add_sync, unsigned, r + x)
DAGPU_REDUCE(__reduce_add_sync, int, r + x)
DAGPU_REDUCE(__reduce_min_sync, unsigned, x < r ? x : r)
DAGPU_REDUCE(__reduce_min_sync, int, x < r ? x : r)
DAGPU_REDUCE(__reduce_max_sync, unsigned, x > r ? x : r)
DAGPU_REDUCE(__reduce_max_sync, int, x > r ? x : r)
DAGPU_REDUCE(__reduce_or_sync, unsigned, r | x)
DAGPU_REDUCE(__reduce_and_sync, unsigned, r & x)
DAGPU_REDUCE(__reduce_xor_sync, unsigned, r ^ x)
