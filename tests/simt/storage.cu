// Atomics and the kinds of storage: also run by the checked build.
#include "common.h"

// ---- atomics: the threads of a block, one value each, on one word for each function
template <class T>
__global__ void atomics(T* words, const T* in, T* old) {
    const T v = in[threadIdx.x];
    old[threadIdx.x] = atomicAdd(&words[0], v);
    atomicMin(&words[1], v);
    atomicMax(&words[2], v);
    atomicAnd(&words[3], v);
    atomicOr(&words[4], v);
    atomicXor(&words[5], v);
    atomicExch(&words[6], v);
    atomicCAS(&words[7], (T)threadIdx.x, (T)(threadIdx.x + 1));  // counts up, whatever the order is
}
__global__ void other_atomics(float* floats, double* doubles, unsigned* words, __half2* halves) {
    atomicAdd(&floats[0], 0.5f);
    atomicExch(&floats[1], 7.0f);
    atomicAdd(&doubles[0], 0.25);
    atomicInc(&words[0], 9);
    atomicDec(&words[1], 9);
    atomicSub(&words[2], 2u);
    atomicAdd(&halves[0], __floats2half2_rn(1.0f, 2.0f));
}
EXPORT int run_atomics(int type, void* words, const void* in, void* old, int threads) {
    if (type == 0) atomics<int><<<1, threads>>>((int*)words, (const int*)in, (int*)old);
    if (type == 1) atomics<unsigned><<<1, threads>>>((unsigned*)words, (const unsigned*)in, (unsigned*)old);
    if (type == 2) atomics<u64><<<1, threads>>>((u64*)words, (const u64*)in, (u64*)old);
    return cudaGetLastError();
}
EXPORT int run_other_atomics(float* floats, double* doubles, unsigned* words, void* halves, int threads) {
    other_atomics<<<1, threads>>>(floats, doubles, words, (__half2*)halves);
    return cudaGetLastError();
}

// ---- storage: static shared memory of templates, dynamic shared memory in a namespace, constants, globals
__constant__ float scale[4];
__device__ int calls;

namespace inner {
template <class T, int N>
__global__ void storage(T* out, const T* in) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ T fixed[N];
    T* dynamic = reinterpret_cast<T*>(raw);
    const int t = threadIdx.x;
    fixed[t] = in[blockIdx.x * N + t];
    dynamic[t] = in[blockIdx.x * N + (N - 1 - t)];
    __syncthreads();
    out[blockIdx.x * N + t] = fixed[N - 1 - t] + (T)scale[t % 4] * dynamic[t];
    if (t == 0) atomicAdd(&calls, 1);
}
}  // namespace inner
EXPORT int run_storage(float* out, const float* in, const float* scales, int blocks, int* called) {
    *called = 0;
    cudaMemcpyToSymbol(calls, called, sizeof(int));
    cudaMemcpyToSymbol(scale, scales, sizeof scale);
    void* arguments[] = {&out, &in};
    const auto kernel = inner::storage<float, 96>;
    const int error = cudaLaunchKernel(kernel, dim3(blocks), dim3(96), arguments, 96 * sizeof(float), 0);
    cudaMemcpyFromSymbol(called, calls, sizeof(int));
    return error;
}

// ---- vector types, and memory in pieces larger than a register
static_assert(sizeof(char4) == 4 && alignof(char4) == 4, "char4");
static_assert(sizeof(uchar2) == 2 && alignof(uchar2) == 2, "uchar2");
static_assert(sizeof(short4) == 8 && alignof(short4) == 8, "short4");
static_assert(sizeof(float3) == 12 && alignof(float3) == 4, "float3");
static_assert(sizeof(int2) == 8 && alignof(int2) == 8, "int2");
static_assert(sizeof(uint4) == 16 && alignof(uint4) == 16, "uint4");
static_assert(sizeof(double2) == 16 && alignof(double2) == 16, "double2");
static_assert(sizeof(longlong2) == 16 && alignof(longlong2) == 16, "longlong2");
static_assert(sizeof(__half) == 2 && sizeof(__half2) == 4 && alignof(__half2) == 4, "half2");
static_assert(sizeof(__nv_bfloat162) == 4 && alignof(__nv_bfloat162) == 4, "bfloat162");

struct Row {
    int item[12];
};
__global__ void vectors(uint4* out, const uint4* in, Row* rows, const Row* more) {
    const int t = threadIdx.x;
    union {
        uint4 whole;
        unsigned short part[8];
    } u;
    u.whole = __ldg(in + t);
    uint4 v = u.whole;
    v.x = u.part[7];
    const uchar4 c = make_uchar4(1, 2, 3, 4);
    const float3 f = make_float3(1.0f, 2.0f, 3.0f);
    v.w = (unsigned)(c.w + f.z);
    out[t] = v;
    memcpy(&rows[t], &more[t], sizeof(Row));
    memset(&rows[t].item[10], 0, 2 * sizeof(int));
}
EXPORT int run_vectors(void* out, const void* in, void* rows, const void* more, int threads) {
    vectors<<<1, threads>>>((uint4*)out, (const uint4*)in, (Row*)rows, (const Row*)more);
    return cudaGetLastError();
}

// ---- a workspace that a launcher keeps
__global__ void fill(float* out, int value) { out[threadIdx.x] = threadIdx.x * value; }
__global__ void copy(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }
EXPORT int through_workspace(float* out, int value) {
    static float* workspace = nullptr;
    if (!workspace) cudaMalloc(&workspace, 64 * sizeof(float));
    fill<<<1, 64>>>(workspace, value);
    copy<<<1, 64>>>(out, workspace);
    return cudaGetLastError();
}
