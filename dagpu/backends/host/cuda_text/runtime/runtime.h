// What the files of the runtime share: a launch and its blocks, warps, threads and fibers.
//
// A launch runs its blocks one after the other on each host thread (a Worker). A block's threads are fibers. A fiber runs
// thread after thread until one has to wait, so a kernel without barriers never switches.
#pragma once
#include <atomic>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

typedef uint64_t u64;
typedef uint32_t u32;
struct Extents { u32 x, y, z; };
#define OF_THREAD __thread __attribute__((tls_model("initial-exec")))
#define CALLER __builtin_return_address(0)

#pragma GCC visibility push(default)
extern "C" {
// CUDA's built-in variables; the headers declare them as constants.
extern OF_THREAD Extents threadIdx, blockIdx, blockDim, gridDim;
extern OF_THREAD int dagpu_patience;  // atomic accesses and reads of volatile memory until others get their turn
extern OF_THREAD int dagpu_budget;    // steps until the caller is asked whether to stop
void dagpu_yield();
}
#pragma GCC visibility pop

// ---- what a launch is told, and what it tells. launching.py and found_faults.py have the same numbers and structures.
enum RegionKind : u32 { INPUT, OUTPUT, VARIABLE, CONSTANT, SHARED, PRIVATE, READABLE };
struct RegionIn {
    u64 low, size;
    u32 kind, granule;  // bytes of an element of the shadow
    u32 fresh, number;  // fresh: nothing has been written to it. The number is for messages.
};
enum FaultKind : u32 {
    BOUNDS = 1, INPUT_WRITTEN, UNINITIALISED, RACE_WRITE_WRITE, RACE_READ_WRITE, RACE_WRITE_READ, UNWRITTEN, DIVERGED,
    DEADLOCK, ASSERTION, TRAP, UNSET, SHUFFLE, NULL_POINTER, MISALIGNED, INDEX, DIVISION, STACK, LOCAL, TOO_MANY
};
struct Report {
    u32 kind, region, thread, block, other_thread, other_block, count, size;
    u64 pc, other_pc, offset, flags;
};
typedef void (*Thunk)(const void*);
struct LaunchIn {
    Thunk thunk;
    const void* arguments;
    void (*dynamic)(void**);        // gives the dynamic shared memory of the calling host thread
    void (*print)(const char*);     // takes what the threads have printed
    int (*stop)();                  // true if the launch is to end; null: it runs to its end
    u64 base;                       // address at which the kernel's library is loaded
    RegionIn* regions;
    Report* reports;
    u64 shared_bytes, dynamic_offset;  // of all shared memory; where the dynamic part begins in it
    Extents grid, block;
    u32 thread_order, block_order;  // 0 forwards, 1 backwards, 2 random
    u32 seed, workers, checked, cooperative, region_count, most_reports;
    u32 report_count, stopped;
    char text[256];
};

// ---- blocks and their threads -----------------------------------------------------------------------------------------
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t RUNTIME_STACK = 32 << 10;  // of it, what a hook may need, with the page that nobody may access
constexpr size_t STACKS = 256;          // that are mapped at once
constexpr size_t MOST_FIBERS = 1 << 16;
enum State : uint8_t { UNSTARTED, READY, RUNNING, AT_BLOCK, AT_WARP, AT_GRID, SPINNING, ENDED };
struct Fiber { void* sp; char* stack; };
struct Thread {
    Fiber* fiber;
    State state;
    uint8_t fenced;
    u32 warp_epoch;
    void* pc;
    std::unordered_map<u32, u32>* acquired;  // the threads of its block of which it has acquired something: thread, epoch
};
// One rendezvous of the lanes of a mask. Data of two rounds, since a lane may come to the next one before another reads.
struct Meeting {
    u32 mask, arrived, came[2];
    unsigned round;
    u64 data[2][32][2];
    std::vector<u32> waiting;
};
struct Warp { u32 alive; std::vector<Meeting*> meetings; };
struct Clock { u32 thread, epoch; };
// What was released at an address: of each block the epochs below, and of one of its threads that epoch too.
struct Released { std::unordered_map<u32, Clock> blocks; std::unordered_map<u32, u32> threads; };
struct Block {
    u32 number, count, alive, arrived, next, epoch, serial, spins, at_grid;
    Extents index;
    int reduced[2];
    unsigned turn;
    size_t head;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<u32> order, ready, waiting;
    std::vector<char> shared, cells;  // of a block that waits for others
    std::unordered_map<u32, Clock> acquired;
    ~Block() {
        for (Thread& t : threads) delete t.acquired;
        for (Warp& w : warps) for (Meeting* m : w.meetings) delete m;
    }
};

// ---- a launch ---------------------------------------------------------------------------------------------------------
// The shadow of an element: its last writer and three readers, each with its epoch. Threads are counted from 1.
struct Cell {
    u64 written, read[3];
    u32 writer, readers[3], writer_pc, reader_pc, serial;
    uint8_t written_bytes, read_bytes, atomic_write, atomic_read;
};
struct Region : RegionIn { Cell* cells; size_t cell_count, cell_bytes; };
struct Launch {
    LaunchIn* in;
    std::atomic<u32> next{0};
    std::atomic<bool> failed{false};
    std::vector<Region> regions;
    std::vector<u32> block_order;
    u32 blocks = 0;
    bool fences = false;
    u32 grid_floor = 0;  // epochs of other blocks below this one are ordered by a barrier of the grid
    std::unordered_map<u64, Released> released;
    std::map<std::pair<u64, u64>, u32> known;  // reports by place
    std::mutex printing;
    std::string printed;
};
struct Worker {
    Launch* launch = nullptr;
    Block* block = nullptr;
    u32 current = 0, serial = 0;
    void* scheduler = nullptr;
    Fiber* now = nullptr;
    u64 stack_low = 0;  // of the fiber that runs
    std::vector<Fiber*> fibers, idle;
    std::vector<char*> mapped;
    Block* spare = nullptr;
    char* shared = nullptr;
    size_t shared_bytes = 0;
    u64 random = 0;
    bool asks = false, asks_caller = false;
    u64 asked = 0;
    Region* near[64] = {};  // the region of the last access by an instruction, by its address
    struct { bool is; void* at; u32 size; char was[16]; Report report; } pending = {};
    ~Worker();
};
extern OF_THREAD Worker* worker;

u64 random_number(Worker& w);
void shuffle(Worker& w, std::vector<u32>& list);
void make_ready(Worker& w, std::vector<u32>& list);
void leave(void** save);
void ask();
void add_report(Report report, const char* text = nullptr);
[[noreturn]] void fail(Report report, const char* text = nullptr);
Report fault(u32 kind, void* pc);
u64 relative(void* pc);
void settle_pending(Worker& w);
inline void settle(Worker& w) {  // a write that raced counts if it has changed something
    if (w.pending.is) settle_pending(w);
}
void release_block(Worker& w);
void check_meeting(Worker& w, Warp& warp, Meeting& m);
void work(Launch& l, Worker& w);
void check_text(const char* text, void* pc);  // is it readable up to its end?
