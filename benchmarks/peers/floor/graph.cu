// The floor of calls of a CUDA graph: what C++ pays to write its kernels' arguments anew, to launch it, and to see its end.
//
// ../graph_floor.py builds it as a shared library, beside floor.cu, whose "chain N graph" is one of these graphs with
// nothing changed. As a program it prints the seconds of graphs of which every argument changes:
//
//     nvcc -O3 -arch=native -cubin -o kernels.cubin kernels.cu
//     nvcc -x c++ -cudart none -O3 -std=c++17 -o graph graph.cu -ldl
//     ./graph kernels.cubin 1000 9

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "driver.h"

#define GRAPH_CALLS(X)                                                                                       \
    X(cuDeviceGetCount) X(cuGraphCreate) X(cuGraphAddKernelNode) X(cuGraphExecKernelNodeSetParams) X(cuStreamQuery)

namespace {

constexpr int SIZE = 2048, BLOCK = 256;  // floats of a tiny kernel, threads of its blocks, as in floor.cu

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

// Makes a context current, and leaves the thread as it was.
struct Current {
    explicit Current(CUcontext context) { CHECK(driver.cuCtxPushCurrent(context)); }
    ~Current() {
        CUcontext old;
        driver.cuCtxPopCurrent(&old);
    }
};

// A GPU with the kernels, in its primary context, which PyCUDA, CuPy and PyTorch use too.
struct Gpu {
    CUcontext context;
    CUfunction scale, saxpy;

    Gpu(int number, const char* cubin) {
        CUdevice device;
        CHECK(driver.cuDeviceGet(&device, number));
        CHECK(driver.cuDevicePrimaryCtxRetain(&context, device));
        Current current(context);
        CUmodule module;
        CHECK(driver.cuModuleLoad(&module, cubin));
        CHECK(driver.cuModuleGetFunction(&scale, module, "scale"));
        CHECK(driver.cuModuleGetFunction(&saxpy, module, "saxpy"));
    }
    CUdeviceptr ones() const {
        Current current(context);
        CUdeviceptr memory;
        CHECK(driver.cuMemAlloc(&memory, SIZE * sizeof(float)));
        CHECK(driver.cuMemsetD32(memory, 0x3f800000, SIZE));  // the bits of 1.0f
        CHECK(driver.cuStreamSynchronize(nullptr));           // our stream does not wait for this one
        return memory;
    }
};

std::vector<Gpu> gpus;
CUstream stream;          // of the first GPU
CUdeviceptr memories[2];  // a chain whose addresses change works on one of them, then on the other

void open(const char* cubin) {
    driver.load();
    graphs.load();
    CHECK(driver.cuInit(0));
    int count;
    CHECK(graphs.cuDeviceGetCount(&count));
    for (int number = 0; number < count && number < 2; ++number) gpus.emplace_back(number, cubin);
    for (CUdeviceptr& memory : memories) memory = gpus[0].ones();
    Current current(gpus[0].context);
    CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

// One kernel of a graph, with its arguments: y *= a, or y += a x where it has an x.
struct Kernel {
    const Gpu* gpu;
    CUdeviceptr y, x = 0;
    float a = 1.0f;
    int n = SIZE;
    CUgraphNode node = nullptr;

    // Gives the parameters of the node to `use`, which may not keep them.
    template <class Use> void with_parameters(const Use& use) {
        void* scaled[] = {&y, &a, &n};
        void* summed[] = {&y, &a, &x, &n};
        CUDA_KERNEL_NODE_PARAMS parameters = {};
        parameters.func = x ? gpu->saxpy : gpu->scale;
        parameters.gridDimX = x ? 1 : SIZE / BLOCK;  // a block of saxpy has 4,096 elements
        parameters.gridDimY = parameters.gridDimZ = 1;
        parameters.blockDimX = BLOCK;
        parameters.blockDimY = parameters.blockDimZ = 1;
        parameters.kernelParams = x ? summed : scaled;
        use(&parameters);
    }
};

struct Graph {
    std::vector<Kernel> kernels;

    // With `in_a_row` each kernel starts after the one before it, otherwise all may run at once.
    Graph(std::vector<Kernel> all, bool in_a_row) : kernels(std::move(all)) {
        CHECK(graphs.cuGraphCreate(&graph, 0));
        const CUgraphNode* before = nullptr;
        for (Kernel& kernel : kernels) {
            kernel.with_parameters([&](const CUDA_KERNEL_NODE_PARAMS* parameters) {
                CHECK(graphs.cuGraphAddKernelNode(&kernel.node, graph, before, before ? 1 : 0, parameters));
            });
            if (in_a_row) before = &kernel.node;
        }
        CHECK(driver.cuGraphInstantiateWithFlags(&ready, graph, 0));
        CHECK(driver.cuGraphUpload(ready, stream));
        CHECK(driver.cuStreamSynchronize(stream));
    }
    ~Graph() {
        if (ready) driver.cuGraphExecDestroy(ready);
        if (graph) driver.cuGraphDestroy(graph);
    }
    Graph(const Graph&) = delete;

    void write_arguments() {
        for (Kernel& kernel : kernels)
            kernel.with_parameters([&](const CUDA_KERNEL_NODE_PARAMS* parameters) {
                CHECK(graphs.cuGraphExecKernelNodeSetParams(ready, kernel.node, parameters));
            });
    }
    void launch() { CHECK(driver.cuGraphLaunch(ready, stream)); }

   private:
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
};

void poll() {
    CUresult code;
    while ((code = graphs.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {}
    CHECK(code);
}

// Seconds of each time: all nodes pointed at the other memory, the launch, and its sync.
std::vector<double> changed(int length, int repeats) {
    Graph chain(std::vector<Kernel>(length, Kernel{&gpus[0], memories[0]}), true);
    std::vector<double> seconds;
    for (int turn = -1; turn < repeats; ++turn) {
        auto start = std::chrono::steady_clock::now();
        for (Kernel& kernel : chain.kernels) kernel.y = memories[(turn + 1) % 2];
        chain.write_arguments();
        chain.launch();
        CHECK(driver.cuStreamSynchronize(stream));
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (turn >= 0) seconds.push_back(taken.count());
    }
    return seconds;
}

std::vector<std::unique_ptr<Graph>> kept;  // what the caller has made, by its number
std::string failure;                       // of the last call

// Does `work` on the first GPU; 0, or 1 with the reason in `failure`.
template <class Work> int attempt(const Work& work) {
    try {
        Current current(gpus.at(0).context);
        work();
        return 0;
    } catch (const std::exception& error) {
        failure = error.what();
        return 1;
    }
}

// Keeps a graph of kernels that `make` gives. Gives its number, or -1.
template <class Make> int keep(const Make& make, bool in_a_row) {
    int failed = attempt([&] { kept.push_back(std::make_unique<Graph>(make(), in_a_row)); });
    return failed ? -1 : static_cast<int>(kept.size()) - 1;
}

}  // namespace

extern "C" {

// What went wrong in the last call that gave 1 or -1. Lives until the next one.
const char* graph_failure() { return failure.c_str(); }

int graph_open(const char* cubin) {
    try {
        if (gpus.empty()) open(cubin);
        return 0;
    } catch (const std::exception& error) {
        failure = error.what();
        return 1;
    }
}

// Writes the seconds of `repeats` turns; see `changed`.
int graph_changed(int length, int repeats, double* seconds) {
    return attempt([&] {
        std::vector<double> found = changed(length, repeats);
        for (int i = 0; i < repeats; ++i) seconds[i] = found[i];
    });
}

// `length` times y *= a in a row, on one memory of ones.
int graph_chain(int length) {
    return keep([&] { return std::vector<Kernel>(length, Kernel{&gpus[0], gpus[0].ones()}); }, true);
}

// `count` times y += a x side by side, each on memories of its own.
int graph_side_by_side(int count) {
    auto make = [&] {
        std::vector<Kernel> kernels;
        for (int i = 0; i < count; ++i) kernels.push_back(Kernel{&gpus[0], gpus[0].ones(), gpus[0].ones()});
        return kernels;
    };
    return keep(make, false);
}

// y *= a on each of two GPUs.
int graph_on_two_gpus() {
    auto make = [&] {
        if (gpus.size() < 2) throw std::runtime_error("there is one GPU");
        return std::vector<Kernel>{Kernel{&gpus[0], gpus[0].ones()}, Kernel{&gpus[1], gpus[1].ones()}};
    };
    return keep(make, false);
}

// Launches a graph `count` times, and polls for the end of each. Before each launch every kernel is given the number
// `even`, then `odd`, in turns; if they are equal, once before the first.
int graph_calls(int number, int count, float even, float odd) {
    return attempt([&] {
        Graph& graph = *kept.at(number);
        for (int turn = 0; turn < count; ++turn) {
            if (turn == 0 || even != odd) {
                for (Kernel& kernel : graph.kernels) kernel.a = turn % 2 ? odd : even;
                graph.write_arguments();
            }
            graph.launch();
            poll();
        }
    });
}

// Copies the y of a kernel, SIZE floats.
int graph_read(int number, int kernel, float* out) {
    return attempt([&] {
        const Kernel& read = kept.at(number)->kernels.at(kernel);
        Current current(read.gpu->context);
        CHECK(driver.cuMemcpyDtoH(out, read.y, SIZE * sizeof(float)));
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
