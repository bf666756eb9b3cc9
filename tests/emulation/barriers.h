// Blocks whose threads meet at barriers, on the CPU; to come after device.h.
//
// Each thread of a block is a coroutine, and goes on until its next barrier or its end before another one does. Between
// two barriers they go in the order of their numbers, or against it: a result that depends on which is a race.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
using std::max;
using std::min;
struct float4 { float x, y, z, w; };

namespace emulation {
struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool ended;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static Thread* running;
static std::function<void()> body;

inline void thread_main() {
    body();
    running->ended = true;
    swapcontext(&running->context, &scheduler);
}

// Runs one block. False where some threads wait at a barrier that others have ended without.
inline bool run_block(bool backwards) {
    const unsigned int count = blockDim.x * blockDim.y * blockDim.z;
    if (threads.size() < count) threads.resize(count);
    for (unsigned int n = 0; n < count; ++n) {
        Thread& thread = threads[n];
        thread.stack.resize(128 << 10);
        thread.ended = false;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, thread_main, 0);
    }
    for (unsigned int ended = 0; ended == 0;) {
        for (unsigned int k = 0; k < count; ++k) {
            const unsigned int n = backwards ? count - 1 - k : k;
            threadIdx = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
            running = &threads[n];
            swapcontext(&scheduler, &running->context);
            ended += running->ended;
        }
        if (ended != 0) return ended == count;
    }
    return true;
}

// As `launch` in device.h; 0 where a barrier was not met by all threads of its block.
template <class... A>
std::size_t launch_blocks(
    void (*kernel)(A...), const unsigned int* grid, const unsigned int* block, const unsigned char* packed, bool backwards
) {
    std::size_t offset = 0;
    const std::tuple<A...> arguments{take<A>(packed, offset)...};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    body = [&] { std::apply(kernel, arguments); };
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                if (!run_block(backwards)) return 0;
    return offset;
}
}  // namespace emulation

inline void __syncthreads() { swapcontext(&emulation::running->context, &emulation::scheduler); }
inline void __syncwarp() { __syncthreads(); }  // so all threads of the block must come

// Non-zero in all threads of the block if it is so in one. The barriers after the first keep two calls apart.
inline int __syncthreads_or(int mine) {
    static int any;
    any |= mine != 0;
    __syncthreads();
    const int found = any;
    __syncthreads();
    any = 0;
    __syncthreads();
    return found;
}

// Makes a kernel callable from outside, in either order.
#define EMULATED_BLOCKS(name, kernel)                                                                                 \
    extern "C" std::size_t name##_forwards(const unsigned int* g, const unsigned int* b, const unsigned char* p) {    \
        return emulation::launch_blocks(&kernel, g, b, p, false);                                                     \
    }                                                                                                                 \
    extern "C" std::size_t name##_backwards(const unsigned int* g, const unsigned int* b, const unsigned char* p) {   \
        return emulation::launch_blocks(&kernel, g, b, p, true);                                                      \
    }
