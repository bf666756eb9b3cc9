// Atomic functions, over those of the compiler. A thread that makes many in a row lets others go on: it may wait for them.
#pragma once

namespace dagpu_emulated {
#ifdef DAGPU_CHECKS
#define DAGPU_ATOMICALLY DAGPU_QUIET __attribute__((noinline))
#define DAGPU_SEEN(at) dagpu_atomic((void*)(at), sizeof(*(at)), __builtin_return_address(0))
#else
#define DAGPU_ATOMICALLY inline
#define DAGPU_SEEN(at) (void)0
#endif
template <class T> using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
template <class T, class F> DAGPU_ATOMICALLY T atomically(T* at, F f) {
    DAGPU_SEEN(at);
    if (--dagpu_patience <= 0) dagpu_yield();
    Bits<T>* place = reinterpret_cast<Bits<T>*>(at);
    Bits<T> old = __atomic_load_n(place, __ATOMIC_RELAXED);
    for (;;) {
        const T now = __builtin_bit_cast(T, old), next = f(now);
        if (__atomic_compare_exchange_n(place, &old, __builtin_bit_cast(Bits<T>, next), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return now;
    }
}
}  // namespace dagpu_emulated
#define DAGPU_ATOMIC_IN(name, scope, made)                                                                    \
    template <class T> DAGPU_HERE T name##scope(T* p, typename dagpu_emulated::Same<T>::type v) {             \
        return dagpu_emulated::atomically(p, [v](T o) DAGPU_QUIET -> T { return made; });                     \
    }
#define DAGPU_ATOMIC(name, made) \
    DAGPU_ATOMIC_IN(name, , made) DAGPU_ATOMIC_IN(name, _block, made) DAGPU_ATOMIC_IN(name, _system, made)
DAGPU_ATOMIC(atomicAdd, o + v)
DAGPU_ATOMIC(atomicSub, o - v)
DAGPU_ATOMIC(atomicExch, v)
DAGPU_ATOMIC(atomicMin, v < o ? v : o)
DAGPU_ATOMIC(atomicMax, o < v ? v : o)
DAGPU_ATOMIC(atomicAnd, o & v)
DAGPU_ATOMIC(atomicOr, o | v)
DAGPU_ATOMIC(atomicXor, o ^ v)
DAGPU_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
DAGPU_ATOMIC(atomicDec, o == 0 || o > v ? v : o - 1)
#define DAGPU_CAS(scope)                                                                                      \
    template <class T> DAGPU_HERE T atomicCAS##scope(T* p, typename dagpu_emulated::Same<T>::type expected,   \
                                                     typename dagpu_emulated::Same<T>::type v) {              \
        return dagpu_emulated::atomically(p, [expected, v](T o) DAGPU_QUIET -> T { return o == expected ? v : o; }); \
    }
DAGPU_CAS() DAGPU_CAS(_block) DAGPU_CAS(_system)
