// Threads that do what a table tells them: for comparing the race checks with a model.
#include "common.h"

struct Step {
    int what, address;
    unsigned low, high;  // the mask of a __syncwarp
};
enum { rest, load_word, store_word, load_byte, store_byte, add, barrier, sync_warp };

__device__ void follow(unsigned* words, const Step* steps, int n, int* out) {
    unsigned char* bytes = reinterpret_cast<unsigned char*>(words);
    unsigned sum = 0;
    for (int i = 0; i < n; i++) {
        const Step step = steps[i * blockDim.x + threadIdx.x];
        switch (step.what) {
            case load_word: sum += words[step.address / 4]; break;
            case store_word: words[step.address / 4] = sum; break;
            case load_byte: sum += bytes[step.address]; break;
            case store_byte: bytes[step.address] = sum; break;
            case add: atomicAdd(&words[step.address / 4], 1u); break;
            case barrier: __syncthreads(); break;
            case sync_warp: __syncwarp((u64)step.high << 32 | step.low); break;
        }
    }
    if (out) out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void follow_shared(const Step* steps, int n, int* out) {
    __shared__ unsigned words[8];
    follow(words, steps, n, out);
}
__global__ void follow_global(unsigned* words, const Step* steps, int n, int* out) {
    follow(words, steps + blockIdx.x * n * blockDim.x, n, out);
}
EXPORT int run_shared(const void* steps, int n, int threads) {
    follow_shared<<<1, threads>>>((const Step*)steps, n, nullptr);
    return cudaGetLastError();
}
EXPORT int run_global(unsigned* words, const void* steps, int n, int blocks, int threads) {
    follow_global<<<blocks, threads>>>(words, (const Step*)steps, n, nullptr);
    return cudaGetLastError();
}
