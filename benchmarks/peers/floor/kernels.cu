// The kernels of the GPU benchmarks on plain pointers, as existing CUDA code has them. Compiled once to a cubin that
// the C++ floor, PyCUDA, cuda.core and CuPy load, so that all of them launch the same machine code; dagpu is given
// this same text with abi="pointers". The versions on Tile and View are in ../gpu_kernels.py.

// y *= a: a tiny kernel, for what a launch costs.
extern "C" __global__ void scale(float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= a;
}

// Takes its time, whatever the GPU's clock, and adds 1 to each element, so that a result shows how often it ran.
extern "C" __global__ void spin(float* y, float microseconds, int n) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < static_cast<unsigned long long>(microseconds * 1000.0f));
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += 1.0f;
}

// y += a x, a block for each 4,096 elements.
extern "C" __global__ void saxpy(float* y, float a, const float* x, int n) {
    int first = blockIdx.x * 4096;
    int end = min(n, first + 4096);
    for (int i = first + threadIdx.x; i < end; i += blockDim.x) y[i] += a * x[i];
}

// c = a b, row-major; a block of 256 threads for each 64 x 64 of c, whose row is blockIdx.x; extents are multiples
// of 64. Each thread holds 4 x 4 sums, 16 apart. Rows of `left` are padded against bank conflicts.
extern "C" __global__ void gemm(float* c, const float* a, const float* b, int m, int n, int k) {
    __shared__ float left[64][17], right[16][64];
    int row = blockIdx.x * 64, column = blockIdx.y * 64;
    int down = threadIdx.x / 16, across = threadIdx.x % 16;
    float sum[4][4] = {};
    for (int start = 0; start < k; start += 16) {
        for (int t = threadIdx.x; t < 64 * 16; t += 256) {
            left[t / 16][t % 16] = a[(row + t / 16) * k + start + t % 16];
            right[t / 64][t % 64] = b[(start + t / 64) * n + column + t % 64];
        }
        __syncthreads();
        for (int step = 0; step < 16; ++step)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += left[down + 16 * i][step] * right[step][across + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) c[(row + down + 16 * i) * n + column + across + 16 * j] = sum[i][j];
}
