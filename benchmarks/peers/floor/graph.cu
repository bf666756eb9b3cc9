// The floor of a graph whose nodes' arguments change: what C++ pays to write them anew, and to launch it.
//
// ../graph_floor.py builds it as a shared library, beside floor.cu, whose "chain N graph" is the same graph with nothing
// changed. As a program it prints the same seconds:
//
//     nvcc -O3 -arch=native -cubin -o kernels.cubin kernels.cu
//     nvcc -x c++ -cudart none -O3 -std=c++17 -o graph graph.cu -ldl
//     ./graph kernels.cubin 1000 9

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "driver.h"

#define GRAPH_CALLS(X) X(cuGraphGetNodes) X(cuGraphKernelNodeGetParams) X(cuGraphExecKernelNodeSetParams)

namespace {

constexpr int SIZE = 2048, BLOCK = 256;  // floats of the tiny kernel, threads of its blocks, as in floor.cu

struct GraphDriver {
#define MEMBER(name) decltype(&::name) name = nullptr;
    GRAPH_CALLS(MEMBER)
#undef MEMBER

    void load() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (!library) throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
#define FIND(name)                                                          \
    name = reinterpret_cast<decltype(name)>(dlsym(library, SYMBOL(name))); \
    if (!name) throw std::runtime_error("this CUDA driver is too old: it has no " SYMBOL(name));
        GRAPH_CALLS(FIND)
#undef FIND
    }
} graphs;

CUcontext context;
CUfunction scale;
CUstream stream;
CUdeviceptr memories[2];  // the chain works on one of them, then on the other

// Makes the primary context current, and leaves the thread as it was.
struct Current {
    Current() { CHECK(driver.cuCtxPushCurrent(context)); }
    ~Current() {
        CUcontext old;
        driver.cuCtxPopCurrent(&old);
    }
};

void open(const char* cubin) {
    driver.load();
    graphs.load();
    CHECK(driver.cuInit(0));
    CUdevice device;
    CHECK(driver.cuDeviceGet(&device, 0));
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, device));
    Current current;
    CUmodule module;
    CHECK(driver.cuModuleLoad(&module, cubin));
    CHECK(driver.cuModuleGetFunction(&scale, module, "scale"));
    CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (CUdeviceptr& memory : memories) {
        CHECK(driver.cuMemAlloc(&memory, SIZE * sizeof(float)));
        CHECK(driver.cuMemsetD32(memory, 0x3f800000, SIZE));  // the bits of 1.0f
    }
}

// A chain of the tiny kernel, captured, and what is needed to point its nodes elsewhere.
struct Chain {
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
    std::vector<CUgraphNode> nodes;
    float a = 1.0f;
    int n = SIZE;

    explicit Chain(int length) {
        CHECK(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < length; ++i) {
            void* arguments[] = {&memories[0], &a, &n};
            CHECK(driver.cuLaunchKernel(scale, SIZE / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, arguments, nullptr));
        }
        CHECK(driver.cuStreamEndCapture(stream, &graph));
        CHECK(driver.cuGraphInstantiateWithFlags(&ready, graph, 0));
        CHECK(driver.cuGraphUpload(ready, stream));
        size_t count = 0;
        CHECK(graphs.cuGraphGetNodes(graph, nullptr, &count));
        nodes.resize(count);
        CHECK(graphs.cuGraphGetNodes(graph, nodes.data(), &count));
    }
    ~Chain() {
        if (ready) driver.cuGraphExecDestroy(ready);
        if (graph) driver.cuGraphDestroy(graph);
    }

    void point_at(CUdeviceptr* memory) {
        CUDA_KERNEL_NODE_PARAMS parameters;
        CHECK(graphs.cuGraphKernelNodeGetParams(nodes[0], &parameters));  // all are alike but for their arguments
        void* arguments[] = {memory, &a, &n};
        parameters.kernelParams = arguments;
        for (CUgraphNode node : nodes) CHECK(graphs.cuGraphExecKernelNodeSetParams(ready, node, &parameters));
    }
    void launch() {
        CHECK(driver.cuGraphLaunch(ready, stream));
        CHECK(driver.cuStreamSynchronize(stream));
    }
};

// Seconds of each time: all nodes pointed at the other memory, the launch, and its sync.
std::vector<double> changed(int length, int repeats) {
    Chain chain(length);
    std::vector<double> seconds;
    for (int turn = -1; turn < repeats; ++turn) {
        auto start = std::chrono::steady_clock::now();
        chain.point_at(&memories[(turn + 1) % 2]);
        chain.launch();
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (turn >= 0) seconds.push_back(taken.count());
    }
    return seconds;
}

std::string failure;  // of the last call

template <class Work> int attempt(const Work& work) {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        failure = error.what();
        return 1;
    }
}

}  // namespace

extern "C" {

// What went wrong in the last call that gave 1. Lives until the next one.
const char* graph_failure() { return failure.c_str(); }

int graph_open(const char* cubin) {
    return attempt([&] { open(cubin); });
}

// Writes the seconds of `repeats` turns; see `changed`.
int graph_changed(int length, int repeats, double* seconds) {
    return attempt([&] {
        Current current;
        std::vector<double> found = changed(length, repeats);
        for (int i = 0; i < repeats; ++i) seconds[i] = found[i];
    });
}
}

int main(int count, char** words) {
    if (count != 4) {
        std::fprintf(stderr, "usage: %s kernels.cubin LENGTH REPEATS\n", words[0]);
        return 2;
    }
    std::vector<double> seconds(std::atoi(words[3]));
    if (graph_open(words[1]) || graph_changed(std::atoi(words[2]), static_cast<int>(seconds.size()), seconds.data())) {
        std::fprintf(stderr, "graph: %s\n", graph_failure());
        return 1;
    }
    for (double each : seconds) std::printf("%.9f\n", each);
}
