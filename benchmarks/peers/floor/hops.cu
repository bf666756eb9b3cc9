// What a wait between two devices costs within one CUDA graph: an edge, nodes of memory operations, flags in kernels; and
// ways to add one summand of each device, with what they wait for. ../../hops.py builds it, and explains the rows.
//
//     nvcc -O3 -arch=native -o hops hops.cu && ./hops 50      prints a line for each row: its name and microseconds

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        if (auto code_ = (call)) {                                                           \
            fprintf(stderr, "%s: error %d\n", #call, int(code_));                            \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

using Graph = cudaGraph_t;
using Node = cudaGraphNode_t;

// ---- kernels

__device__ void set(unsigned* flag) { __threadfence_system(), *(volatile unsigned*)flag = 1; }
__device__ void await(unsigned* flag) {  // and leave it as it was
    while (!*(volatile unsigned*)flag) {}
    *(volatile unsigned*)flag = 0, __threadfence_system();
}

__global__ void tiny(float* y) { y[0] += 1; }
__global__ void tell(float* y, unsigned* flag) { y[0] += 1, set(flag); }
__global__ void listen(float* y, unsigned* flag) { await(flag), y[0] += 1; }

__global__ void add(const float4* a, const float4* b, float4* sum, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 x = a[i], y = b[i];
        sum[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

// Each block waits until its twin on the other device has begun, and at the end until that has read.
__global__ void add_by_flags(const float4* a, const float4* b, float4* sum, int n, unsigned* mine, unsigned* its) {
    int block = blockIdx.x, most = gridDim.x;
    if (!threadIdx.x) set(its + block), await(mine + block);
    __syncthreads();
    for (int i = block * blockDim.x + threadIdx.x; i < n; i += most * blockDim.x) {
        float4 x = a[i], y = b[i];
        sum[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
    __syncthreads();
    if (!threadIdx.x) set(its + most + block), await(mine + most + block);
}

// ---- graphs

template <typename... Args>
Node kernel(Graph graph, int device, void (*f)(Args...), int blocks, std::vector<Node> after, Args... args) {
    void* each[] = {&args...};
    cudaKernelNodeParams params{};
    params.func = (void*)f, params.gridDim = dim3(blocks), params.blockDim = dim3(blocks == 1 ? 1 : 512);
    params.kernelParams = each;
    Node made;
    CHECK(cudaSetDevice(device));
    CHECK(cudaGraphAddKernelNode(&made, graph, after.data(), after.size(), &params));
    return made;
}

// Write 1 to one flag, then wait for another one and clear it; either may be null.
Node operations(Graph graph, int device, unsigned* written, unsigned* awaited, std::vector<Node> after) {
    static decltype(&cuGraphAddBatchMemOpNode) add_node;
    static decltype(&cuCtxGetCurrent) current;
    if (!add_node) {
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPoint("cuGraphAddBatchMemOpNode", (void**)&add_node, cudaEnableDefault, &found));
        CHECK(cudaGetDriverEntryPoint("cuCtxGetCurrent", (void**)&current, cudaEnableDefault, &found));
    }
    std::vector<CUstreamBatchMemOpParams> all;
    auto write = [&](unsigned* to, unsigned value) {
        CUstreamBatchMemOpParams each{};
        each.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, (CUdeviceptr)to};
        each.writeValue.value = value, all.push_back(each);
    };
    if (written) write(written, 1);
    if (awaited) {
        CUstreamBatchMemOpParams each{};
        each.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, (CUdeviceptr)awaited};
        each.waitValue.value = 1, each.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ, all.push_back(each);
        write(awaited, 0);
    }
    CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
    CHECK(cudaSetDevice(device));
    CHECK(current(&params.ctx));
    params.count = unsigned(all.size()), params.paramArray = all.data();
    CUgraphNode made;
    CHECK(add_node(&made, graph, after.data(), after.size(), &params));
    return made;
}

int rounds = 50;

template <typename Fill>
void measure(const std::string& name, Fill fill) {
    using Clock = std::chrono::steady_clock;
    Graph graph;
    cudaGraphExec_t exec;
    cudaStream_t stream;
    CHECK(cudaGraphCreate(&graph, 0));
    fill(graph);
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("%s\t", name.c_str());
    for (int turn = -10; turn < rounds; ++turn) {
        auto begin = Clock::now();
        auto spent = [&] { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); };
        CHECK(cudaGraphLaunch(exec, stream));
        cudaError_t state;
        while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady)
            if (spent() > 2e6) fprintf(stderr, "%s hangs\n", name.c_str()), exit(1);
        CHECK(state);
        if (turn >= 0) printf("%.3f ", spent());
    }
    printf("\n");
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
    if (argc > 1) rounds = atoi(argv[1]);
    constexpr size_t MOST = 256 << 20;
    float *y[2], *sum[2];
    unsigned* flag[2];
    for (int device : {0, 1}) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaDeviceEnablePeerAccess(1 - device, 0));
        CHECK(cudaMalloc(&y[device], MOST));
        CHECK(cudaMalloc(&sum[device], MOST));
        CHECK(cudaMalloc(&flag[device], 1 << 16));
        CHECK(cudaMemset(y[device], 0, MOST));
        CHECK(cudaMemset(flag[device], 0, 1 << 16));
    }
    auto small = [&](Graph g, int device, std::vector<Node> after = {}) { return kernel(g, device, tiny, 1, after, y[device]); };
    measure("a kernel on each, no wait", [&](Graph g) { small(g, 0), small(g, 1); });
    measure("each waits for both: edges", [&](Graph g) {
        Node one = small(g, 0), other = small(g, 1);
        small(g, 0, {one, other}), small(g, 1, {one, other});
    });
    measure("each waits for both: memory operations", [&](Graph g) {
        for (int device : {0, 1})
            small(g, device, {operations(g, device, flag[1 - device], flag[device], {small(g, device)})});
    });
    measure("one waits for the other: an edge", [&](Graph g) { small(g, 1, {small(g, 0)}); });
    measure("one waits for the other: a flag in the kernels", [&](Graph g) {
        kernel(g, 0, tell, 1, {}, y[0], flag[1]), kernel(g, 1, listen, 1, {}, y[1], flag[1]);
    });
    for (size_t nbytes : {size_t(16) << 10, size_t(256) << 10, size_t(1) << 20, size_t(16) << 20, MOST}) {
        int n = int(nbytes / 16), blocks = n < 4096 ? 4 : n < 1 << 18 ? 64 : 264;
        auto named = [&](const char* how) { return std::to_string(nbytes >> 10) + " KiB, " + how; };
        auto a = [&](int device) { return (const float4*)y[device]; };
        measure(named("edges, then each adds both"), [&](Graph g) {
            Node one = small(g, 0), other = small(g, 1);
            for (int device : {0, 1})
                kernel(g, device, add, blocks, {one, other}, a(device), a(1 - device), (float4*)sum[device], n);
        });
        measure(named("each adds both behind flags"), [&](Graph g) {
            for (int device : {0, 1})
                kernel(g, device, add_by_flags, blocks, {small(g, device)}, a(device), a(1 - device), (float4*)sum[device], n,
                       flag[device], flag[1 - device]);
        });
        measure(named("edges, each adds a half, and copies it to the other"), [&](Graph g) {
            Node one = small(g, 0), other = small(g, 1);
            for (int device : {0, 1}) {
                size_t at = size_t(device) * n / 2;
                Node made = kernel(g, device, add, blocks, {one, other}, a(device) + at, a(1 - device) + at,
                                   (float4*)sum[device] + at, n / 2), copied;
                CHECK(cudaSetDevice(device));
                CHECK(cudaGraphAddMemcpyNode1D(&copied, g, &made, 1, (float4*)sum[1 - device] + at, (float4*)sum[device] + at,
                                               nbytes / 2, cudaMemcpyDeviceToDevice));
            }
        });
    }
}
