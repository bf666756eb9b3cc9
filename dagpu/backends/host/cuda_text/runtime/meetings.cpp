// Where threads wait for each other: barriers of a block, of a warp and of the grid; lanes that show each other values.
#include <cstdio>
#include "runtime.h"

void release_block(Worker& w) {
    Block& b = *w.block;
    if (b.alive != b.count && w.launch->in->checked) {  // GPUs since Volta let it pass, and the language does not
        Report r = fault(DIVERGED, b.threads[b.waiting[0]].pc);
        r.thread = b.waiting[0];
        while (b.threads[r.other_thread].state != ENDED) ++r.other_thread;
        add_report(r);
    }
    b.arrived = 0;
    ++b.epoch;
    b.turn ^= 1;
    b.reduced[b.turn] = 0;
    for (u32 t : b.waiting) b.threads[t].warp_epoch = 0;
    make_ready(w, b.waiting);
}
void check_meeting(Worker& w, Warp& warp, Meeting& m) {
    Block& b = *w.block;
    const u32 need = m.mask & warp.alive;
    if (m.waiting.empty() || (m.arrived & need) != need) return;
    u32 top = 0;
    for (u32 t : m.waiting) top = std::max(top, b.threads[t].warp_epoch);
    for (u32 t : m.waiting) b.threads[t].warp_epoch = top + 1;
    m.came[m.round & 1] = m.arrived;
    m.arrived = 0;
    ++m.round;
    make_ready(w, m.waiting);
}
static Meeting& meeting_of(Warp& warp, u32 mask) {
    for (Meeting* m : warp.meetings) if (m->mask == mask) return *m;
    Meeting* m = new Meeting{};
    m->mask = mask;
    warp.meetings.push_back(m);
    return *m;
}
// Meets the lanes of a mask, and gives what they show; returns who came.
static u32 meet(u32 mask, const void* mine, u32 size, const u64 (**shown)[2], void* pc) {
    Worker& w = *worker;
    Block& b = *w.block;
    const u32 t = w.current;
    settle(w);
    b.threads[t].pc = pc;
    if (!(mask >> t % 32 & 1)) {
        Report r = fault(SHUFFLE, pc);
        r.flags = mask;
        fail(r);
    }
    Warp& warp = b.warps[t / 32];
    Meeting& m = meeting_of(warp, mask);
    const unsigned round = m.round;
    if (mine) memcpy(m.data[round & 1][t % 32], mine, size);
    m.arrived |= 1u << t % 32;
    b.threads[t].state = AT_WARP;
    m.waiting.push_back(t);
    check_meeting(w, warp, m);
    leave(&b.threads[t].fiber->sp);
    *shown = m.data[round & 1];
    return m.came[round & 1];
}

#pragma GCC visibility push(default)
extern "C" {
int dagpu_sync_block(int operation, int mine) {  // 0 none, 1 count, 2 and, 3 or
    Worker& w = *worker;
    Block& b = *w.block;
    Thread& me = b.threads[w.current];
    const unsigned turn = b.turn;
    settle(w);
    me.pc = CALLER;
    if (operation == 2) b.reduced[turn] += !mine;
    else if (operation) b.reduced[turn] += mine != 0;
    me.state = AT_BLOCK;
    b.waiting.push_back(w.current);
    if (++b.arrived == b.alive) release_block(w);
    leave(&me.fiber->sp);
    const int sum = b.reduced[turn];
    return operation == 1 ? sum : operation == 2 ? sum == 0 : sum != 0;
}
void dagpu_sync_warp(u32 mask) {
    const u64(*shown)[2];
    meet(mask, nullptr, 0, &shown, CALLER);
}
// Shows up to 16 bytes to the lanes of a mask, and gives those of the lane `from`.
void dagpu_shuffle(u32 mask, const void* mine, void* theirs, u32 size, u32 from) {
    const u64(*shown)[2];
    void* pc = CALLER;
    const u32 came = meet(mask, mine, size, &shown, pc);
    const bool is_there = from < 32 && came >> from & 1;
    memcpy(theirs, is_there ? static_cast<const void*>(shown[from]) : mine, size);
    if (!is_there) add_report(fault(SHUFFLE, pc));
}
u32 dagpu_gather(u32 mask, const void* mine, void* theirs, u32 size) {
    const u64(*shown)[2];
    const u32 came = meet(mask, mine, size, &shown, CALLER);
    for (u32 i = 0; i < 32; ++i)
        if (came >> i & 1) memcpy(static_cast<char*>(theirs) + i * size, shown[i], size);
    return came;
}
u32 dagpu_lane() { return worker->current % 32; }
u32 dagpu_thread() { return worker->current; }
u32 dagpu_alive() { return worker->block->warps[worker->current / 32].alive; }
void dagpu_sync_grid() {
    Worker& w = *worker;
    Block& b = *w.block;
    Thread& me = b.threads[w.current];
    settle(w);
    me.pc = CALLER;
    me.state = AT_GRID;
    ++b.at_grid;
    leave(&me.fiber->sp);
}
// Lets the other threads of the block go on, and then other blocks: this thread may wait for one of them.
void dagpu_yield() {
    Worker& w = *worker;
    Block& b = *w.block;
    Thread& me = b.threads[w.current];
    dagpu_patience = 1000;
    settle(w);
    ask();
    if (++b.spins < 64 + 4 * b.count) me.state = READY, b.ready.push_back(w.current);
    else me.state = SPINNING;
    leave(&me.fiber->sp);
}
void dagpu_fence() {
    worker->launch->fences = true;
    worker->block->threads[worker->current].fenced = 1;
}
[[noreturn]] void dagpu_assert_fail(const char* text, const char* file, unsigned line) {
    char all[256];
    snprintf(all, sizeof all, "%s:%u: %s", file, line, text);
    fail(fault(ASSERTION, CALLER), all);
}
[[noreturn]] void dagpu_trap() { fail(fault(TRAP, CALLER)); }
}
#pragma GCC visibility pop
