// The floor of the GPU benchmarks: the least that each measured thing costs from C++ through the CUDA driver API.
//
// ../gpu.py builds it as a shared library and calls it in the process that measures the others, so that all of them
// share one context, one clock and one moment. As a program it prints the same JSON:
//
//     nvcc -O3 -arch=native -cubin -o kernels.cubin kernels.cu
//     nvcc -x c++ -cudart none -O3 -std=c++17 -o floor floor.cu -ldl
//     ./floor kernels.cubin "chain 1000 end 9" "forkjoin four 9" "copy h2d 1048576 9" "spin 200 9"
//
// A request names what to do and, last, how often; the answer holds the seconds of each time, from the first submit
// to the last byte: {"seconds": [...]}, or {"error": "..."}. One more, uncounted, is done before.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <sstream>
#include <vector>

#include "driver.h"

namespace {

constexpr int SIZE = 2048, BLOCK = 256;             // floats of a tiny kernel, threads of its blocks
constexpr int BRANCHES = 4, DEPTH = 8, WIDTH = 1024;  // of the fork-join; floats of each branch
constexpr float SPIN = 47.0f;                       // microseconds of each of its kernels

CUcontext context;
CUfunction scale, spin;
CUstream streams[BRANCHES];
CUevent forked, joined[BRANCHES], started, ended, marked;
CUdeviceptr tiny, branches[BRANCHES];
CUdeviceptr copied = 0;
void* pinned = nullptr;
size_t copied_bytes = 0;

// Makes the primary context current, as PyCUDA, CuPy and PyTorch use it, and leaves the thread as it was.
struct Current {
    Current() { CHECK(driver.cuCtxPushCurrent(context)); }
    ~Current() {
        CUcontext old;
        driver.cuCtxPopCurrent(&old);
    }
};

void open(const char* cubin) {
    driver.load();
    CHECK(driver.cuInit(0));
    CUdevice device;
    CHECK(driver.cuDeviceGet(&device, 0));
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, device));
    Current current;
    CUmodule module;
    CHECK(driver.cuModuleLoad(&module, cubin));
    CHECK(driver.cuModuleGetFunction(&scale, module, "scale"));
    CHECK(driver.cuModuleGetFunction(&spin, module, "spin"));
    for (CUevent* event : {&started, &ended}) CHECK(driver.cuEventCreate(event, CU_EVENT_DEFAULT));
    for (CUevent* event : {&forked, &marked}) CHECK(driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    CHECK(driver.cuMemAlloc(&tiny, SIZE * sizeof(float)));
    CHECK(driver.cuMemsetD32(tiny, 0, SIZE));
    for (int branch = 0; branch < BRANCHES; ++branch) {
        CHECK(driver.cuStreamCreate(&streams[branch], CU_STREAM_NON_BLOCKING));
        CHECK(driver.cuEventCreate(&joined[branch], CU_EVENT_DISABLE_TIMING));
        CHECK(driver.cuMemAlloc(&branches[branch], WIDTH * sizeof(float)));
    }
}

void launch_scale(CUstream stream) {
    float a = 1.0f;
    int n = SIZE;
    void* arguments[] = {&tiny, &a, &n};
    CHECK(driver.cuLaunchKernel(scale, SIZE / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, arguments, nullptr));
}

void launch_spin(CUstream stream, CUdeviceptr y, float microseconds, int n) {
    void* arguments[] = {&y, &microseconds, &n};
    int blocks = (n + BLOCK - 1) / BLOCK;
    CHECK(driver.cuLaunchKernel(spin, blocks, 1, 1, BLOCK, 1, 1, 0, stream, arguments, nullptr));
}

std::vector<double> timed(int repeats, const std::function<void()>& work) {
    std::vector<double> seconds;
    for (int turn = -1; turn < repeats; ++turn) {
        auto start = std::chrono::steady_clock::now();
        work();
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (turn >= 0) seconds.push_back(taken.count());
    }
    return seconds;
}

// What `submit` puts on the first stream, and on streams that it forks from it, as a graph: replayed, with its sync.
std::vector<double> replayed(int repeats, const std::function<void()>& submit) {
    CUgraph graph;
    CUgraphExec ready;
    CHECK(driver.cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    submit();
    CHECK(driver.cuStreamEndCapture(streams[0], &graph));
    CHECK(driver.cuGraphInstantiateWithFlags(&ready, graph, 0));
    CHECK(driver.cuGraphUpload(ready, streams[0]));
    auto seconds = timed(repeats, [&] {
        CHECK(driver.cuGraphLaunch(ready, streams[0]));
        CHECK(driver.cuStreamSynchronize(streams[0]));
    });
    CHECK(driver.cuGraphExecDestroy(ready));
    CHECK(driver.cuGraphDestroy(graph));
    return seconds;
}

// chain N end|each|graph: N launches of the tiny kernel in a row, one sync at the end, after each, or as a graph.
std::vector<double> chain(int n, const std::string& how, int repeats) {
    auto submit = [&] {
        for (int i = 0; i < n; ++i) launch_scale(streams[0]);
    };
    if (how == "graph") return replayed(repeats, submit);
    if (how != "end" && how != "each") throw std::runtime_error("chain N end|each|graph REPEATS");
    bool each = how == "each";
    return timed(repeats, [&] {
        for (int i = 0; i < n; ++i) {
            launch_scale(streams[0]);
            if (each || i == n - 1) CHECK(driver.cuStreamSynchronize(streams[0]));
        }
    });
}

// spin MICROSECONDS: one launch of the kernel that takes this long, and its sync.
std::vector<double> one_spin(float microseconds, int repeats) {
    return timed(repeats, [&] {
        launch_spin(streams[0], tiny, microseconds, SIZE);
        CHECK(driver.cuStreamSynchronize(streams[0]));
    });
}

void branch_on(CUstream stream, int branch) {
    CHECK(driver.cuMemsetD32Async(branches[branch], 0, WIDTH, stream));
    for (int i = 0; i < DEPTH; ++i) launch_spin(stream, branches[branch], SPIN, WIDTH);
}

void four_streams() {
    CHECK(driver.cuEventRecord(forked, streams[0]));
    for (int branch = 1; branch < BRANCHES; ++branch) CHECK(driver.cuStreamWaitEvent(streams[branch], forked, 0));
    for (int branch = 0; branch < BRANCHES; ++branch) branch_on(streams[branch], branch);
    for (int branch = 1; branch < BRANCHES; ++branch) {
        CHECK(driver.cuEventRecord(joined[branch], streams[branch]));
        CHECK(driver.cuStreamWaitEvent(streams[0], joined[branch], 0));
    }
}

void check_branches() {
    std::vector<float> found(WIDTH);
    for (CUdeviceptr branch : branches) {
        CHECK(driver.cuMemcpyDtoH(found.data(), branch, WIDTH * sizeof(float)));
        for (float y : found)
            if (y != DEPTH) throw std::runtime_error("the fork-join is broken: a branch holds " + std::to_string(y));
    }
}

// forkjoin one|four|graph: each branch zeroes its buffer and runs DEPTH kernels; then all are joined.
std::vector<double> fork_join(const std::string& how, int repeats) {
    std::vector<double> seconds;
    auto sync = [] { CHECK(driver.cuStreamSynchronize(streams[0])); };
    if (how == "one")
        seconds = timed(repeats, [&] {
            for (int branch = 0; branch < BRANCHES; ++branch) branch_on(streams[0], branch);
            sync();
        });
    else if (how == "four")
        seconds = timed(repeats, [&] {
            four_streams();
            sync();
        });
    else if (how == "graph")
        seconds = replayed(repeats, four_streams);
    else
        throw std::runtime_error("forkjoin one|four|graph REPEATS");
    check_branches();
    return seconds;
}

// copy h2d|d2h BYTES: one copy between the GPU and pinned memory, and its sync. The buffers stay for the next request.
std::vector<double> copy(const std::string& way, size_t bytes, int repeats) {
    if (way != "h2d" && way != "d2h") throw std::runtime_error("copy h2d|d2h BYTES REPEATS");
    if (bytes > copied_bytes) {
        if (copied) CHECK(driver.cuMemFree(copied));
        if (pinned) CHECK(driver.cuMemFreeHost(pinned));
        copied = 0, pinned = nullptr, copied_bytes = 0;
        CHECK(driver.cuMemAlloc(&copied, bytes));
        CHECK(driver.cuMemHostAlloc(&pinned, bytes, 0));
        copied_bytes = bytes;
    }
    return timed(repeats, [&] {
        if (way == "h2d")
            CHECK(driver.cuMemcpyHtoDAsync(copied, pinned, bytes, streams[0]));
        else
            CHECK(driver.cuMemcpyDtoHAsync(pinned, copied, bytes, streams[0]));
        CHECK(driver.cuStreamSynchronize(streams[0]));
    });
}

std::vector<double> answer(std::istringstream request) {
    std::string what, how;
    double amount = 0;
    int repeats = 0;
    request >> what;
    if (what == "chain" && request >> amount >> how >> repeats) return chain(static_cast<int>(amount), how, repeats);
    if (what == "spin" && request >> amount >> repeats) return one_spin(static_cast<float>(amount), repeats);
    if (what == "forkjoin" && request >> how >> repeats) return fork_join(how, repeats);
    if (what == "copy" && request >> how >> amount >> repeats) return copy(how, static_cast<size_t>(amount), repeats);
    throw std::runtime_error("no such request: " + request.str());
}

std::string json_error(const std::exception& error) {
    std::string text;
    for (char c : std::string(error.what())) text += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return "{\"error\": \"" + text + "\"}";
}

// Does `work` in the context; 0, or 1 with the reason on stderr.
template <class Work>
int attempt(const Work& work) {
    try {
        Current current;
        work();
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "floor: %s\n", error.what());
        return 1;
    }
}

}  // namespace

extern "C" {

// Loads the driver and the kernels. Gives an empty text, or {"error": "..."}; texts live until the next call.
const char* floor_open(const char* cubin) {
    static std::string text;
    try {
        open(cubin);
        text = "";
    } catch (const std::exception& error) {
        text = json_error(error);
    }
    return text.c_str();
}

const char* floor_answer(const char* request) {
    static std::string text;
    try {
        Current current;
        std::ostringstream out;
        out.precision(9);
        for (double seconds : answer(std::istringstream(request))) out << (out.tellp() > 0 ? ", " : "") << seconds;
        text = "{\"seconds\": [" + out.str() + "]}";
    } catch (const std::exception& error) {
        text = json_error(error);
    }
    return text.c_str();
}

// Memory for a peer: `n` floats of 1; 0 where there is none.
uint64_t floor_ones(int n) {
    CUdeviceptr memory = 0;
    int failed = attempt([&] {
        CHECK(driver.cuMemAlloc(&memory, n * sizeof(float)));
        CHECK(driver.cuMemsetD32(memory, 0x3f800000, n));  // the bits of 1.0f
    });
    return failed ? 0 : memory;
}

int floor_read(uint64_t memory, float* out, int n) {
    return attempt([&] { CHECK(driver.cuMemcpyDtoH(out, memory, n * sizeof(float))); });
}

// Launches the tiny kernel, or for microseconds > 0 the one that takes this long, on a stream of its own.
int floor_submit(float microseconds) {
    return attempt([&] {
        if (microseconds > 0)
            launch_spin(streams[0], tiny, microseconds, SIZE);
        else
            launch_scale(streams[0]);
    });
}

// Has the driver close a file descriptor once all that was submitted is done: no Python on the driver's thread.
int floor_close_after(int descriptor) {
    auto function = [](void* data) { close(static_cast<int>(reinterpret_cast<intptr_t>(data))); };
    void* data = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    return attempt([&] { CHECK(driver.cuLaunchHostFunc(streams[0], function, data)); });
}

int floor_mark() {
    return attempt([] { CHECK(driver.cuEventRecord(marked, streams[0])); });
}

// 1 once the work before the mark is done.
int floor_reached() {
    bool done = false;
    int failed = attempt([&] {
        CUresult code = driver.cuEventQuery(marked);
        if (code != CUDA_ERROR_NOT_READY) CHECK(code);
        done = code == CUDA_SUCCESS;
    });
    return done || failed;
}

int floor_wait() {
    return attempt([] { CHECK(driver.cuEventSynchronize(marked)); });
}

// Keeps a stream busy while what is to be measured is submitted to it, then starts the GPU's clock.
int floor_begin(uint64_t stream, float hold_microseconds) {
    auto on = reinterpret_cast<CUstream>(stream);
    return attempt([&] {
        launch_spin(on, tiny, hold_microseconds, BLOCK);
        CHECK(driver.cuEventRecord(started, on));
    });
}

// Milliseconds on the GPU's clock since floor_begin, once the stream is done; negative if that failed.
float floor_end(uint64_t stream) {
    auto on = reinterpret_cast<CUstream>(stream);
    float milliseconds = -1;
    attempt([&] {
        CHECK(driver.cuEventRecord(ended, on));
        CHECK(driver.cuEventSynchronize(ended));
        CHECK(driver.cuEventElapsedTime(&milliseconds, started, ended));
    });
    return milliseconds;
}
}

int main(int count, char** words) {
    if (count < 3) {
        std::fprintf(stderr, "usage: %s kernels.cubin REQUEST...\n", words[0]);
        return 2;
    }
    std::string error = floor_open(words[1]);
    if (!error.empty()) {
        std::puts(error.c_str());
        return 1;
    }
    for (int i = 2; i < count; ++i)
        std::printf("{\"request\": \"%s\", \"answer\": %s}\n", words[i], floor_answer(words[i]));
}
