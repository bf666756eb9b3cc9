// Blocks whose threads meet at barriers, on the CPU; to come after device.h.
//
// Each thread of a block is a coroutine, and goes on until its next barrier or its end before another one does. Between
// two barriers they go in the order of their numbers, or against it: a result that depends on which is a race.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
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
    int turn;
    unsigned long long word[2];  // what it shows to its warp: at one turn, and at the next
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
        thread.turn = 0;
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
inline void __syncwarp() { __syncthreads(); }  // so all threads of the block must come, as for what follows

namespace emulation {
// Shows a number to the threads of the warp, and gives a function of theirs. A thread that shows another one at its next
// turn does not hide this one; before the turn after that, all have come to a barrier, and so have read it.
template <class T> auto shown(T mine) {
    Thread* const self = running;
    const int turn = self->turn ^= 1;
    std::memcpy(&self->word[turn], &mine, sizeof(T));
    __syncthreads();
    return [self, turn](unsigned int lane) {
        Thread* const warp = &threads[(self - threads.data()) / 32 * 32];
        T theirs;
        std::memcpy(&theirs, &warp[lane].word[turn], sizeof(T));
        return theirs;
    };
}

inline unsigned int lane() { return (running - threads.data()) % 32; }
}  // namespace emulation

inline unsigned int __ballot_sync(unsigned int, bool mine) {
    const auto of = emulation::shown(mine);
    unsigned int found = 0;
    for (unsigned int lane = 0; lane < 32; ++lane) found |= static_cast<unsigned int>(of(lane)) << lane;
    return found;
}
template <class T> T __shfl_up_sync(unsigned int, T mine, unsigned int step) {
    const auto of = emulation::shown(mine);
    const unsigned int lane = emulation::lane();
    return of(lane < step ? lane : lane - step);
}
template <class T> T __shfl_xor_sync(unsigned int, T mine, int mask) {
    return emulation::shown(mine)(emulation::lane() ^ mask);
}
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int atomicAdd(int* at, int more) {
    const int old = *at;
    *at = old + more;
    return old;
}

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
