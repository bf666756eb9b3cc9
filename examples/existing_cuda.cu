// A histogram of 256 bins: each block counts in shared memory, then adds to the result.
#define BINS 256

__global__ void histogram(unsigned int* counts, const unsigned char* values, int n) {
    __shared__ unsigned int local[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[values[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&counts[b], local[b]);
}

// The place of each bin in the sorted values: a scan of the counts, by one block.
__global__ void starts(unsigned int* place, const unsigned int* counts) {
    __shared__ unsigned int sums[BINS];
    const int t = threadIdx.x;
    sums[t] = counts[t];
    __syncthreads();
    for (int by = 1; by < BINS; by *= 2) {
        const unsigned int before = t >= by ? sums[t - by] : 0;
        __syncthreads();
        sums[t] += before;
        __syncthreads();
    }
    place[t] = sums[t] - counts[t];
}
