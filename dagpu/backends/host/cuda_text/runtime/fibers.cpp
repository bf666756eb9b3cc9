// Threads of blocks as fibers: their stacks, the order in which they run, and blocks that wait for each other.
#include <sys/mman.h>
#include <time.h>
#include "runtime.h"
#include "switching.h"

extern "C" {
OF_THREAD Extents threadIdx, blockIdx, blockDim, gridDim;
OF_THREAD int dagpu_patience, dagpu_budget;
}
OF_THREAD Worker* worker;

constexpr int BUDGET = 1 << 15, PATIENCE = 1000;
constexpr u64 ASK_EVERY = 20'000'000;  // nanoseconds
static void fiber_main();

Worker::~Worker() {
    for (Fiber* f : fibers) delete f;
    for (char* stacks : mapped) munmap(stacks, STACKS * STACK_BYTES);
    delete spare;
}

u64 random_number(Worker& w) {  // xorshift64 (Marsaglia 2003)
    w.random ^= w.random << 13;
    w.random ^= w.random >> 7;
    w.random ^= w.random << 17;
    return w.random;
}
void shuffle(Worker& w, std::vector<u32>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random_number(w) % i]);
}

// ---- fibers -----------------------------------------------------------------------------------------------------------
static Fiber* take_fiber(Worker& w) {
    if (w.idle.empty()) {
        char* stacks = nullptr;
        if (w.fibers.size() < MOST_FIBERS) {
            void* made = mmap(nullptr, STACKS * STACK_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (made != MAP_FAILED) stacks = static_cast<char*>(made);
        }
        if (!stacks) return nullptr;
        w.mapped.push_back(stacks);
        for (size_t i = STACKS; i-- > 0;) {
            Fiber* f = new Fiber{nullptr, stacks + i * STACK_BYTES};
            mprotect(f->stack, 4096, PROT_NONE);
            f->sp = fresh_stack(f->stack + STACK_BYTES, fiber_main);
            w.fibers.push_back(f);
            w.idle.push_back(f);
        }
    }
    Fiber* f = w.idle.back();
    w.idle.pop_back();
    return f;
}
static void jump(Worker& w, void** save, Fiber* to) {
    w.now = to;
    w.stack_low = reinterpret_cast<u64>(to->stack);
    limit_stack(w.stack_low + RUNTIME_STACK);
    dagpu_switch(save, to->sp);
}
static void to_scheduler(Worker& w, void** save) {
    w.stack_low = 0;
    limit_stack(0);
    dagpu_switch(save, w.scheduler);
}
static void set_current(Worker& w, u32 t) {
    w.current = t;
    const u32 x = blockDim.x, y = blockDim.y;
    if (t < x) threadIdx = {t, 0, 0};  // most blocks have one axis, and a division takes as long as a switch
    else threadIdx = {t % x, t / x % y, t / x / y};
    w.block->threads[t].state = RUNNING;
}
// Leaves the running thread, or an idle fiber, and goes on with a thread that has not begun, a ready one, the scheduler.
void leave(void** save) {
    Worker& w = *worker;
    Block& b = *w.block;
    if (b.next < b.count) {
        Fiber* fiber = take_fiber(w);
        if (fiber) return jump(w, save, fiber);
        if (w.now) fail(fault(TOO_MANY, nullptr));
        add_report(fault(TOO_MANY, nullptr));
        w.launch->failed = true;
        return;
    }
    if (b.head < b.ready.size()) {
        const u32 t = b.ready[b.head++];
        if (b.head == b.ready.size()) b.ready.clear(), b.head = 0;
        set_current(w, t);
        if (b.threads[t].fiber != w.now) jump(w, save, b.threads[t].fiber);
        return;
    }
    w.now = nullptr;
    to_scheduler(w, save);
}
void make_ready(Worker& w, std::vector<u32>& list) {
    Block& b = *w.block;
    if (w.launch->in->thread_order == 2) shuffle(w, list);
    for (u32 t : list) b.threads[t].state = READY;
    b.ready.insert(b.ready.end(), list.begin(), list.end());
    list.clear();
}
static void ended(Worker& w) {
    Block& b = *w.block;
    const u32 t = w.current;
    settle(w);
    b.threads[t].state = ENDED;
    --b.alive;
    Warp& warp = b.warps[t / 32];
    warp.alive &= ~(1u << t % 32);
    if (b.arrived && b.arrived == b.alive) release_block(w);
    for (Meeting* m : warp.meetings) check_meeting(w, warp, *m);
}
static void fiber_main() {
    for (;;) {
        {
            Worker& w = *worker;
            Block& b = *w.block;
            if (b.next >= b.count) {
                Fiber* self = w.now;
                w.idle.push_back(self);
                leave(&self->sp);
                continue;
            }
            const u32 t = b.order[b.next++];
            b.threads[t].fiber = w.now;
            set_current(w, t);
            call_alone(w.launch->in->thunk, w.launch->in->arguments);
        }
        ended(*worker);
    }
}

// ---- asking the caller --------------------------------------------------------------------------------------------------
static u64 now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return u64(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
static bool is_stopped(Worker& w) {  // on the stack of the host thread: the caller runs Python
    Launch& l = *w.launch;
    w.asked = now();
    if (w.asks_caller && l.in->stop && l.in->stop()) l.in->stopped = 1, l.failed = true;
    return l.failed;
}
// Asks whether to stop, from a fiber, if that was not done for a while.
void ask() {
    dagpu_budget = BUDGET;
    Worker* w = worker;
    if (!w || !w->now || now() - w->asked < ASK_EVERY) return;
    w->asks = true;
    Fiber* self = w->now;
    to_scheduler(*w, &self->sp);
}

// ---- reports ------------------------------------------------------------------------------------------------------------
u64 relative(void* pc) { return pc ? reinterpret_cast<u64>(pc) - 1 - worker->launch->in->base : 0; }
Report fault(u32 kind, void* pc) {
    Report r{};
    r.kind = kind;
    r.pc = relative(pc);
    r.thread = worker->current;
    r.block = worker->block->number;
    r.region = ~0u;
    return r;
}
void add_report(Report r, const char* text) {
    LaunchIn& in = *worker->launch->in;
    if (!in.checked && r.kind != ASSERTION && r.kind != TRAP && r.kind != DEADLOCK && r.kind != TOO_MANY) return;
    auto [at, is_new] = worker->launch->known.emplace(std::make_pair(r.pc * 32 + r.kind, r.other_pc), in.report_count);
    if (!is_new) {
        if (at->second < in.most_reports) ++in.reports[at->second].count;
        return;
    }
    if (in.report_count >= in.most_reports) return;
    r.count = 1;
    in.reports[in.report_count++] = r;
    if (text && !in.text[0]) strncpy(in.text, text, sizeof in.text - 1);
}
// Ends the launch: no thread of it goes on. Its access has not been carried out.
[[noreturn]] void fail(Report r, const char* text) {
    add_report(r, text);
    worker->launch->failed = true;
    void* lost;
    to_scheduler(*worker, &lost);
    __builtin_unreachable();
}
void settle_pending(Worker& w) {
    w.pending.is = false;
    if (memcmp(w.pending.at, w.pending.was, w.pending.size)) add_report(w.pending.report);
}

// ---- blocks -------------------------------------------------------------------------------------------------------------
static void begin_block(Worker& w, Block& b, u32 number) {
    LaunchIn& in = *w.launch->in;
    const u32 n = in.block.x * in.block.y * in.block.z;
    b.number = number;
    b.index = {number % in.grid.x, number / in.grid.x % in.grid.y, number / in.grid.x / in.grid.y};
    b.alive = n;
    b.arrived = b.next = b.spins = b.at_grid = b.turn = 0;
    b.head = 0;
    b.epoch = 1;
    b.reduced[0] = b.reduced[1] = 0;
    b.serial = ++w.serial;
    b.ready.clear(), b.waiting.clear(), b.acquired.clear(), b.shared.clear();
    b.count = n;
    b.threads.resize(n), b.order.resize(n), b.warps.resize((n + 31) / 32);
    for (u32 t = 0; t < n; ++t) {
        b.order[t] = in.thread_order == 1 ? n - 1 - t : t;
        Thread& thread = b.threads[t];
        delete thread.acquired;
        thread = {nullptr, UNSTARTED, 0, 0, nullptr, nullptr};
    }
    if (in.thread_order == 2) shuffle(w, b.order);
    for (u32 v = 0; v < b.warps.size(); ++v) {
        const u32 lanes = std::min(32u, n - v * 32);
        b.warps[v].alive = lanes == 32 ? ~0u : (1u << lanes) - 1;
        for (Meeting* m : b.warps[v].meetings) m->arrived = 0, m->round = 0, m->waiting.clear();
    }
}
// The shadow of the shared memory of a block that waits for others: they use the same memory meanwhile.
static void keep_cells(Worker& w, Block& b, bool save) {
    if (save) b.cells.clear();
    size_t at = 0;
    for (Region& g : w.launch->regions) {
        if (g.kind != SHARED) continue;
        const size_t n = g.cell_count * sizeof(Cell);
        char* cells = reinterpret_cast<char*>(g.cells);
        if (save) b.cells.insert(b.cells.end(), cells, cells + n);
        else memcpy(cells, b.cells.data() + at, n), at += n;
    }
}
static void report_deadlock(Worker& w, Block& b) {
    Report r = fault(DEADLOCK, nullptr);
    bool first = true;
    for (u32 t = 0; t < b.count; ++t) {
        Thread& thread = b.threads[t];
        if (thread.state != AT_BLOCK && thread.state != AT_WARP && thread.state != AT_GRID) continue;
        if (first) r.thread = t, r.pc = relative(thread.pc), r.flags = thread.state, first = false;
        else if (thread.state != r.flags) { r.other_thread = t, r.other_pc = relative(thread.pc); break; }
    }
    add_report(r);
    w.launch->failed = true;
}
// Runs a block until it has ended (true), or only waits for other blocks (false).
static bool run_block(Worker& w, Block& b) {
    w.block = &b;
    w.now = nullptr;
    blockIdx = b.index;
    if (!b.shared.empty()) memcpy(w.shared, b.shared.data(), b.shared.size()), keep_cells(w, b, false);
    leave(&w.scheduler);
    while (w.asks) {
        w.asks = false;
        if (is_stopped(w)) break;
        jump(w, &w.scheduler, w.now);
    }
    if (w.launch->failed || !b.alive) return true;
    bool waits = false;
    for (Thread& t : b.threads) waits |= t.state == AT_GRID || t.state == SPINNING;
    if (!waits) {
        report_deadlock(w, b);
        return true;
    }
    b.shared.assign(w.shared, w.shared + w.shared_bytes);
    keep_cells(w, b, true);
    return false;
}
// Lets blocks go on that have all reached a barrier of the grid.
static void pass_grid(Worker& w, const std::vector<Block*>& parked) {
    u32 top = 0;
    for (Block* p : parked) top = std::max(top, p->epoch);
    w.launch->grid_floor = top + 1;
    for (Block* p : parked) {
        w.block = p;
        p->epoch = top + 1;
        p->at_grid = 0;
        std::vector<u32> all;
        for (u32 t : p->order) if (p->threads[t].state == AT_GRID) all.push_back(t), p->threads[t].warp_epoch = 0;
        make_ready(w, all);
    }
}
// Runs blocks that wait for each other, in turns. Returns those that are left where the launch has failed.
static void run_parked(Worker& w, std::vector<Block*>& parked) {
    Launch& l = *w.launch;
    while (!parked.empty() && !l.failed) {
        u32 alive = 0, at_grid = 0, ready = 0;
        for (Block* p : parked) alive += p->alive, at_grid += p->at_grid;
        if (at_grid == alive && l.next >= l.blocks) pass_grid(w, parked);
        std::vector<Block*> kept;
        for (Block* p : parked) {
            if (l.failed) { kept.push_back(p); continue; }
            w.block = p;
            std::vector<u32> all;
            for (u32 t = 0; t < p->count; ++t) if (p->threads[t].state == SPINNING) all.push_back(t);
            make_ready(w, all);
            p->spins = 0;
            ready += p->ready.size();
            if (p->ready.empty() || !run_block(w, *p)) kept.push_back(p); else delete p;
        }
        parked.swap(kept);
        if (l.failed || parked.empty()) continue;
        if (!ready) w.block = parked[0], report_deadlock(w, *parked[0]);
        else if (now() - w.asked > ASK_EVERY) is_stopped(w);
    }
}
void work(Launch& l, Worker& w) {
    LaunchIn& in = *l.in;
    worker = &w;
    w.launch = &l;
    w.random = 88172645463325252ull + in.seed * 7919ull;
    w.pending.is = w.asks = false;
    w.serial = 0;
    w.asked = now();
    std::fill(std::begin(w.near), std::end(w.near), nullptr);
    blockDim = in.block;
    gridDim = in.grid;
    dagpu_patience = PATIENCE;
    dagpu_budget = BUDGET;
    void* dynamic;
    in.dynamic(&dynamic);
    w.shared = static_cast<char*>(dynamic) - in.dynamic_offset;
    w.shared_bytes = in.shared_bytes;
    std::vector<Block*> parked;
    Block* b = w.spare ? w.spare : new Block{};
    w.spare = nullptr;
    for (u32 n; (n = l.next++) < l.blocks && !l.failed;) {
        begin_block(w, *b, l.block_order.empty() ? n : l.block_order[n]);
        if (!run_block(w, *b)) parked.push_back(b), b = new Block{};
        if (now() - w.asked > ASK_EVERY) is_stopped(w);
    }
    run_parked(w, parked);
    if (!l.failed) w.block = b, settle(w);
    for (Block* p : parked) delete p;
    if (l.failed) {
        w.idle.clear();
        for (Fiber* f : w.fibers) f->sp = fresh_stack(f->stack + STACK_BYTES, fiber_main), w.idle.push_back(f);
    }
    w.spare = b;
    worker = nullptr;
}
