// Checks of accesses: what the compiler calls before each of them with -fsanitize=thread. The hooks are ours (as those of
// the Linux kernel's KCSAN are), and libtsan is not linked. An access that no region has is not carried out.
#include "runtime.h"

enum { WRITES = 1, ATOMIC = 2, VOLATILE = 4, RANGE = 8 };  // a range of bytes has no alignment

// ---- what is ordered ----------------------------------------------------------------------------------------------------
// An epoch counts the barriers of the block in its upper half, and those of the warp since then in the lower one.
static bool is_ordered(Worker& w, u32 previous, u64 epoch) {
    Block& b = *w.block;
    const u32 n = b.count, block = (previous - 1) / n, thread = (previous - 1) % n, barriers = epoch >> 32;
    if (block == b.number) {
        if (thread == w.current || barriers < b.epoch) return true;
        if (auto* own = b.threads[w.current].acquired) {
            auto at = own->find(thread);
            if (at != own->end() && barriers <= at->second) return true;
        }
        return thread / 32 == w.current / 32 && static_cast<u32>(epoch) < b.threads[w.current].warp_epoch;
    }
    if (barriers < w.launch->grid_floor) return true;
    if (!w.launch->fences) return false;
    auto at = b.acquired.find(block);
    if (at == b.acquired.end()) return false;
    return barriers < at->second.epoch || (thread == at->second.thread && barriers <= at->second.epoch);
}
static void merge(std::unordered_map<u32, Clock>& into, const std::unordered_map<u32, Clock>& from) {
    for (auto& [block, clock] : from) {
        Clock& mine = into[block];
        if (mine.epoch <= clock.epoch) mine = clock;
    }
}
// An atomic access acquires what was released there; after a fence a write releases what its thread knows.
static void synchronise(Launch& l, Block& b, u32 current, u64 address, bool writes) {
    Thread& me = b.threads[current];
    if (auto at = l.released.find(address); at != l.released.end()) {
        merge(b.acquired, at->second.blocks);
        for (auto& [number, epoch] : at->second.threads) {
            if (number / b.count != b.number) continue;
            if (!me.acquired) me.acquired = new std::unordered_map<u32, u32>;
            u32& mine = (*me.acquired)[number % b.count];
            mine = std::max(mine, epoch);
        }
    }
    if (!writes || !me.fenced) return;
    Released& to = l.released[address];
    merge(to.blocks, b.acquired);
    to.blocks[b.number] = {current, b.epoch};
    if (me.acquired) for (auto& [thread, epoch] : *me.acquired) {
        u32& mine = to.threads[b.number * b.count + thread];
        mine = std::max(mine, epoch);
    }
    to.threads[b.number * b.count + current] = b.epoch;
}

// ---- the shadow of a region ---------------------------------------------------------------------------------------------
struct Access { u64 at; u32 size; int flags; void* pc; };
static Report report_of(u32 kind, const Region& g, const Access& a) {
    Report r = fault(kind, a.pc);
    r.region = g.number;
    r.offset = a.at - g.low;
    r.size = a.size;
    r.flags = a.flags;
    return r;
}
static void report_race(Worker& w, const Region& g, u32 kind, const Access& a, u32 previous, u32 other_pc) {
    Report r = report_of(kind, g, a);
    r.other_thread = (previous - 1) % w.block->count;
    r.other_block = (previous - 1) / w.block->count;
    r.other_pc = other_pc;
    if (!(a.flags & WRITES) || a.flags & ATOMIC) return add_report(r);
    auto& p = w.pending;  // two threads may write the same value
    p.is = true;
    p.at = reinterpret_cast<void*>(a.at);
    p.size = std::min(a.size, 16u);
    memcpy(p.was, p.at, p.size);
    p.report = r;
}
// Checks one element, and takes note of the access. Returns true if it has reported something.
static bool see(Worker& w, Region& g, Cell& c, const Access& a, uint8_t bytes, u32 me, u64 epoch, bool atomic, bool told) {
    const bool writes = a.flags & WRITES;
    if (g.kind == SHARED && c.serial != w.block->serial) c = Cell{}, c.serial = w.block->serial;
    if (g.fresh && !c.writer && (!writes || a.flags & ATOMIC) && !told) {
        told = true;
        add_report(report_of(UNINITIALISED, g, a));
    }
    if (!told && c.writer && c.writer != me && c.written_bytes & bytes && !(atomic && c.atomic_write) &&
        !is_ordered(w, c.writer, c.written)) {
        told = true;
        report_race(w, g, writes ? RACE_WRITE_WRITE : RACE_READ_WRITE, a, c.writer, c.writer_pc);
    }
    if (writes) {
        if (!told && c.read_bytes & bytes && !(atomic && c.atomic_read))
            for (int k = 0; k < 3 && !told; ++k)
                if (c.readers[k] && c.readers[k] != me && !is_ordered(w, c.readers[k], c.read[k])) {
                    told = true;
                    report_race(w, g, RACE_WRITE_READ, a, c.readers[k], c.reader_pc);
                }
        c.writer = me, c.written = epoch, c.writer_pc = relative(a.pc), c.written_bytes = bytes, c.atomic_write = atomic;
        c.readers[0] = c.readers[1] = c.readers[2] = 0, c.read_bytes = 0;
        return told;
    }
    if (c.readers[0] != me) {  // the last reader, another of its block, and one of another block
        const u32 last = c.readers[0];
        if (last && (last - 1) / w.block->count == w.block->number) c.readers[1] = last, c.read[1] = c.read[0];
        else if (last) c.readers[2] = last, c.read[2] = c.read[0], c.readers[1] = 0;
        c.readers[0] = me;
    }
    c.read[0] = epoch, c.reader_pc = relative(a.pc), c.read_bytes |= bytes, c.atomic_read = atomic;
    return told;
}
static void see_all(Worker& w, Region& g, const Access& a) {
    Block& b = *w.block;
    const u32 me = b.number * b.count + w.current + 1;
    const u64 epoch = u64{b.epoch} << 32 | b.threads[w.current].warp_epoch;
    // A volatile flag in global memory is how old code waits.
    const bool atomic = a.flags & ATOMIC || (a.flags & VOLATILE && g.kind != SHARED);
    if (atomic && w.launch->fences) synchronise(*w.launch, b, w.current, a.at, a.flags & WRITES);
    const u64 offset = a.at - g.low, n = g.granule;
    bool told = false;
    for (u64 i = offset / n; i <= (offset + a.size - 1) / n; ++i) {
        const u64 low = std::max(offset, i * n), high = std::min(offset + a.size, (i + 1) * n);
        told = see(w, g, g.cells[i], a, ((1u << (high - low)) - 1) << (low - i * n), me, epoch, atomic, told);
    }
}

// ---- the regions --------------------------------------------------------------------------------------------------------
static bool contains(const Region& g, u64 at, u32 size) { return at - g.low < g.size && size <= g.size - (at - g.low); }
static Region* find(Launch& l, u64 at, u32 size) {
    for (Region& g : l.regions) if (contains(g, at, size)) return &g;
    return nullptr;
}
[[noreturn]] static void refuse(Launch& l, const Access& a) {
    Report r = fault(a.at < 4096 ? NULL_POINTER : BOUNDS, a.pc);
    r.size = a.size;
    r.flags = a.flags;
    u64 nearest = ~0ull;
    for (const Region& g : l.regions) {
        if (g.kind == PRIVATE || g.kind == READABLE) continue;
        const u64 end = g.low + g.size;
        const u64 distance = a.at < g.low ? g.low - a.at : a.at + a.size > end ? a.at + a.size - end : 0;
        if (distance < nearest && (g.kind <= OUTPUT || distance < 4096)) {
            nearest = distance;
            r.region = g.number;
            r.offset = a.at - g.low;
        }
    }
    fail(r);
}
__attribute__((noinline)) static void check(Worker& w, const Access& a) {
    Launch& l = *w.launch;
    settle(w);
    Region*& near = w.near[reinterpret_cast<u64>(a.pc) >> 1 & 63];
    if (!near || !contains(*near, a.at, a.size)) {
        Region* found = find(l, a.at, a.size);
        if (!found) refuse(l, a);
        near = found;
    }
    Region& g = *near;
    if (g.kind == PRIVATE) return;
    if (!(a.flags & RANGE) && a.at & (a.size - 1) && !(a.size & (a.size - 1)) && a.size <= 16) fail(report_of(MISALIGNED, g, a));
    if (g.cells) return see_all(w, g, a);
    if (a.flags & WRITES) fail(report_of(INPUT_WRITTEN, g, a));
    if (g.kind == CONSTANT && g.fresh) add_report(report_of(UNSET, g, a));
}

// ---- the stack of a thread ----------------------------------------------------------------------------------------------
// A write may not change where a function returns to: frame pointers lead from one frame to the next (System V ABI, 3.2.2;
// AAPCS64, 6.4.6). A pointer into the stack of another thread is wrong everywhere.
static void check_stack(u64 at, u32 size, int flags, void* pc) {
    if (!(flags & WRITES)) return;
    u64 frame = reinterpret_cast<u64>(__builtin_frame_address(0));
    while (frame && frame + 16 <= at) {
        const u64 next = *reinterpret_cast<u64*>(frame);
        if (next <= frame) break;
        frame = next;
    }
    if (frame < at + size && at < frame + 16) fail(fault(LOCAL, pc));
}
static inline __attribute__((always_inline)) void access(void* at, u32 size, int flags, void* pc) {
    Worker* w = worker;
    if (!w) return;
    const u64 a = reinterpret_cast<u64>(at);
    if (a - w->stack_low < STACK_BYTES) {
        if (a + size > w->stack_low + STACK_BYTES || a < w->stack_low + 4096) fail(fault(LOCAL, pc));
        return check_stack(a, size, flags, pc);
    }
    check(*w, Access{a, size, flags, pc});
}

void check_text(const char* text, void* pc) {
    do access(const_cast<char*>(text), 1, 0, pc); while (*text++);
}

// ---- the hooks ------------------------------------------------------------------------------------------------------------
static void be_patient() { if (worker && --dagpu_patience <= 0) dagpu_yield(); }
#pragma GCC visibility push(default)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define HOOKS(N)                                                                                              \
    void __tsan_read##N(void* a) { access(a, N, 0, CALLER); }                                                 \
    void __tsan_write##N(void* a) { access(a, N, WRITES, CALLER); }                                           \
    void __tsan_read_write##N(void* a) { access(a, N, 0, CALLER), access(a, N, WRITES, CALLER); }             \
    void __tsan_unaligned_read##N(void* a) { access(a, N, 0, CALLER); }                                       \
    void __tsan_unaligned_write##N(void* a) { access(a, N, WRITES, CALLER); }                                 \
    void __tsan_unaligned_read_write##N(void* a) { access(a, N, 0, CALLER), access(a, N, WRITES, CALLER); }   \
    void __tsan_volatile_read##N(void* a) { be_patient(), access(a, N, VOLATILE, CALLER); }                   \
    void __tsan_volatile_write##N(void* a) { access(a, N, VOLATILE | WRITES, CALLER); }                       \
    void __tsan_unaligned_volatile_read##N(void* a) { be_patient(), access(a, N, VOLATILE, CALLER); }         \
    void __tsan_unaligned_volatile_write##N(void* a) { access(a, N, VOLATILE | WRITES, CALLER); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
static void access_range(void* at, u64 n, int flags, void* pc) {
    if (n >> 31) fail(fault(BOUNDS, pc));
    if (n) access(at, static_cast<u32>(n), flags | RANGE, pc);
}
void __tsan_read_range(void* a, unsigned long n) { access_range(a, n, 0, CALLER); }
void __tsan_write_range(void* a, unsigned long n) { access_range(a, n, WRITES, CALLER); }
// The linker sends calls of these functions here (--wrap), and clang those that it makes of assignments.
#define MEMORY(name, f, V, source)                                                                            \
    void* name(void* to, V from, size_t n) {                                                                  \
        if (worker) { source; access_range(to, n, WRITES, CALLER); }                                          \
        return f(to, from, n);                                                                                \
    }
#define FROM access_range(const_cast<void*>(from), n, 0, CALLER)
MEMORY(__wrap_memcpy, memcpy, const void*, FROM) MEMORY(__wrap_memmove, memmove, const void*, FROM)
MEMORY(__wrap_memset, memset, int, ) MEMORY(__tsan_memcpy, memcpy, const void*, FROM)
MEMORY(__tsan_memmove, memmove, const void*, FROM) MEMORY(__tsan_memset, memset, int, )
int __wrap_memcmp(const void* a, const void* b, size_t n) {
    if (worker) access_range(const_cast<void*>(a), n, 0, CALLER), access_range(const_cast<void*>(b), n, 0, CALLER);
    return memcmp(a, b, n);
}
void dagpu_atomic(void* a, u32 size, void* pc) { access(a, size, WRITES | ATOMIC, pc); }
void __sanitizer_cov_trace_pc() { if (--dagpu_budget <= 0) ask(); }

struct Place { const char* file; u32 line, column; };
struct Type { uint16_t kind, info; char name[1]; };
struct Mismatch { Place place; const Type* type; uint8_t log_alignment, kind; };
void __ubsan_handle_type_mismatch_v1(Mismatch* m, u64 at) {
    if (!worker || !at || !(at & ((1ull << m->log_alignment) - 1)) || at - worker->stack_low < STACK_BYTES) return;
    Report r = fault(MISALIGNED, CALLER);
    r.size = 1u << m->log_alignment;
    if (Region* g = find(*worker->launch, at, 1)) {
        if (g->kind == PRIVATE) return;
        r.region = g->number;
        r.offset = at - g->low;
    }
    fail(r);
}
void __ubsan_handle_out_of_bounds(void* d, u64 index) {
    if (!worker) return;
    Report r = fault(INDEX, CALLER);
    r.flags = index;
    fail(r, (*reinterpret_cast<const Type**>(static_cast<char*>(d) + sizeof(Place)))->name);
}
void __ubsan_handle_divrem_overflow(void*, u64, u64 divisor) {
    if (!worker) return;
    Report r = fault(DIVISION, CALLER);
    r.flags = divisor;
    fail(r);
}
void __stack_chk_fail() { fail(fault(LOCAL, CALLER)); }
// What -fsplit-stack calls, with any alignment, where a function needs more stack than there is.
#ifdef __x86_64__
__attribute__((force_align_arg_pointer))
#endif
void __morestack() { fail(fault(STACK, CALLER)); }
}
#pragma GCC visibility pop
