// Kernels whose threads wait for each other, on the CPU: all threads of a block take turns, each on a stack of its own.
//
// A thread runs until it waits: for its block (__syncthreads) or for its warp (a shuffle). It begins on its stack by
// setcontext; from then on control goes to and fro by _longjmp, which asks nothing of the operating system. Blocks run
// one after another, so `__shared__` is `static`; in place of `extern __shared__ T name[]` a text must have memory of
// that name.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#define __shared__ static
#define __restrict__

using std::max;
using std::min;

struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline void sincosf(float x, float* sine, float* cosine) { *sine = std::sin(x), *cosine = std::cos(x); }
template <class T> T __ldcs(const T* from) { return *from; }

// Rounded to the nearest, of two as near to the even one. No infinities and no nan: nobody here has any.
struct __nv_bfloat16 {
    unsigned short bits = 0;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) {
        const unsigned int all = __float_as_uint(x);
        bits = static_cast<unsigned short>((all + 0x7fff + (all >> 16 & 1)) >> 16);
    }
    operator float() const { return __uint_as_float(static_cast<unsigned int>(bits) << 16); }
};

namespace emulation {
// Threads that wait for each other. Nobody passes before all `size` have come.
struct Barrier {
    unsigned int size = 0, arrived = 0, passed = 0;
};

struct Thread {
    ucontext_t start;
    jmp_buf place;  // where it goes on, once it has begun
    bool begun = false;
    std::unique_ptr<char[]> stack;
    Dim3 index;
    bool done = false;
    unsigned int word = 0;  // what it gives to a shuffle
};

static std::vector<Thread> threads;
static std::vector<Barrier> warp_barriers;
static Barrier block_barrier;
static jmp_buf scheduler;
static unsigned int current;
static constexpr std::size_t STACK = 64 * 1024;

inline void wait(Barrier& barrier) {
    const unsigned int round = barrier.passed;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.passed;
    }
    while (barrier.passed == round)
        if (!_setjmp(threads[current].place)) _longjmp(scheduler, 1);
}

template <class T> T exchange(T mine, unsigned int mask) {
    static_assert(sizeof(T) == 4, "a shuffle moves 32 bits");
    Barrier& warp = warp_barriers[current / 32];
    std::memcpy(&threads[current].word, &mine, 4);
    wait(warp);
    T theirs;
    std::memcpy(&theirs, &threads[current ^ mask].word, 4);
    wait(warp);  // nobody gives its next word before all have read this one
    return theirs;
}

// In place of a prefetch, which no compiler but the device's can be told of: a look at both ends, which there must be
// memory for. Address and size must be multiples of 16.
template <class T> void ask_for(const T* address, unsigned int bytes) {
    const char* const from = reinterpret_cast<const char*>(address);
    if (bytes % 16 || reinterpret_cast<std::uintptr_t>(from) % 16) std::abort();
    [[maybe_unused]] volatile const char seen[] = {bytes ? from[0] : '\0', bytes ? from[bytes - 1] : '\0'};
}

template <class Function, class Arguments> struct Call {
    static inline Function* function;
    static inline const Arguments* arguments;
    static void run() {
        std::apply(*function, *arguments);
        threads[current].done = true;
        _longjmp(scheduler, 1);
    }
};

// One block. A thread that has returned is waited for: a kernel that has threads return early must not wait after that.
inline void run_block(void (*entry)()) {
    block_barrier = {static_cast<unsigned int>(threads.size())};
    warp_barriers.assign((threads.size() + 31) / 32, Barrier{});
    for (std::size_t i = 0; i < threads.size(); ++i) {
        Thread& thread = threads[i];
        ++warp_barriers[i / 32].size;
        thread.begun = thread.done = false;
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.get();
        thread.start.uc_stack.ss_size = STACK;
        thread.start.uc_link = nullptr;
        makecontext(&thread.start, entry, 0);
    }
    for (std::size_t left = threads.size(); left;)
        for (current = 0; current < threads.size(); ++current) {
            Thread& thread = threads[current];
            if (thread.done) continue;
            threadIdx = thread.index;
            if (!_setjmp(scheduler)) {
                if (thread.begun) _longjmp(thread.place, 1);
                thread.begun = true;
                setcontext(&thread.start);
            }
            left -= thread.done;
        }
}

// As `launch`, for kernels whose threads wait for each other.
template <class... A>
std::size_t launch_together(
    void (*kernel)(A...), const unsigned int* grid, const unsigned int* block, const unsigned char* packed
) {
    std::size_t offset = 0;
    const std::tuple<A...> arguments{take<A>(packed, offset)...};
    using Here = Call<void (*)(A...), std::tuple<A...>>;
    Here::function = &kernel;
    Here::arguments = &arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads.clear();
    threads.resize(static_cast<std::size_t>(block[0]) * block[1] * block[2]);
    for (unsigned int i = 0; i < threads.size(); ++i) {
        threads[i].stack.reset(new char[STACK]);
        threads[i].index = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
    }
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block(&Here::run);
    return offset;
}
}  // namespace emulation

inline void __syncthreads() { emulation::wait(emulation::block_barrier); }
template <class T> T __shfl_xor_sync(unsigned int, T mine, int mask) {
    return emulation::exchange(mine, static_cast<unsigned int>(mask));
}

#define EMULATED_TOGETHER(name, kernel)                                                                         \
    extern "C" std::size_t name(const unsigned int* grid, const unsigned int* block, const unsigned char* packed) { \
        return emulation::launch_together(&kernel, grid, block, packed);                                        \
    }
