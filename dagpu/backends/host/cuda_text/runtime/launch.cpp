// Runs a launch to its end, on one or several host threads.
#include <sys/mman.h>
#include <thread>
#include "runtime.h"

static bool has_shadow(u32 kind) { return kind == OUTPUT || kind == VARIABLE || kind == SHARED; }
static void report_unwritten(LaunchIn& in, const Region& g) {
    u64 missing = 0, first = 0;
    const size_t n = (g.size + g.granule - 1) / g.granule;
    for (size_t i = 0; i < n; ++i)
        if (!g.cells[i].writer && missing++ == 0) first = i;
    if (!missing || in.report_count >= in.most_reports) return;
    Report r{};
    r.kind = UNWRITTEN;
    r.region = g.number;
    r.offset = first * g.granule;
    r.flags = missing;
    r.size = g.granule;
    r.count = 1;
    in.reports[in.report_count++] = r;
}
static void order_blocks(Launch& l, Worker& w) {
    if (!l.in->block_order) return;
    for (u32 i = 0; i < l.blocks; ++i) l.block_order.push_back(l.in->block_order == 1 ? l.blocks - 1 - i : i);
    w.random = 88172645463325252ull + l.in->seed;
    if (l.in->block_order == 2) shuffle(w, l.block_order);
}
// 0, or 1 where it has failed or was stopped, or 2 without memory for the shadow. Reports may be there either way.
extern "C" __attribute__((visibility("default"))) int dagpu_launch(LaunchIn* in) {
    Launch l;
    l.in = in;
    l.blocks = in->grid.x * in->grid.y * in->grid.z;
    in->report_count = in->stopped = 0;
    in->text[0] = 0;
    bool room = true;
    for (u32 i = 0; i < in->region_count; ++i) {
        Region g{};
        static_cast<RegionIn&>(g) = in->regions[i];
        if (has_shadow(g.kind)) {
            g.cell_count = (g.size + g.granule - 1) / g.granule + 1;
            g.cell_bytes = g.cell_count * sizeof(Cell);
            void* cells = mmap(nullptr, g.cell_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (cells == MAP_FAILED) room = false;
            else g.cells = static_cast<Cell*>(cells);
        }
        l.regions.push_back(g);
    }
    static thread_local Worker mine;
    mine.asks_caller = true;
    const u32 workers = in->checked || in->cooperative ? 1 : std::max(1u, std::min(in->workers, l.blocks));
    if (room) {
        order_blocks(l, mine);
        std::vector<std::thread> others;
        for (u32 i = 1; i < workers; ++i) others.emplace_back([&l] { Worker w; work(l, w); });
        work(l, mine);
        for (std::thread& t : others) t.join();
    }
    for (Region& g : l.regions) {
        if (!l.failed && g.cells && g.kind == OUTPUT && g.fresh) report_unwritten(*in, g);
        if (g.cells) munmap(g.cells, g.cell_bytes);
    }
    if (!l.printed.empty() && in->print) in->print(l.printed.c_str());
    return !room ? 2 : l.failed ? 1 : 0;
}
