// Access patterns whose counts are known.
#include "common.h"

// Thread i of `threads` reads element first + i * stride of `in`, and writes element i of `out`.
template <class T>
__global__ void strided(T* out, const T* in, int first, int stride, int active) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if ((int)threadIdx.x >= active) return;
    out[i] = in[first + i * stride];
}
EXPORT int run_strided(int width, void* out, const void* in, int first, int stride, int blocks, int threads,
                       int active) {
#define CASE(WIDTH, T) \
    case WIDTH: strided<T><<<blocks, threads>>>((T*)out, (const T*)in, first, stride, active); break;
    switch (width) {
        CASE(1, unsigned char)
        CASE(2, __half)
        CASE(4, float)
        CASE(8, uint2)
        CASE(16, uint4)
    }
#undef CASE
    return cudaGetLastError();
}

// The lane's own number of rounds, with and without shuffles between.
__global__ void rounds(float* out, const float* in, const int* count) {
    float sum = 0;
    for (int i = 0; i < count[threadIdx.x]; i++) sum += in[i * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
}
EXPORT int run_rounds(float* out, const float* in, const int* count, int threads) {
    rounds<<<1, threads>>>(out, in, count);
    return cudaGetLastError();
}

// An inner loop whose number of rounds differs between lanes, in an outer loop: lanes wait for each other after it.
__global__ void nested(float* out, const float* in, const int* count, int outer) {
    float sum = 0;
    for (int i = 0; i < outer; i++) {
        const int n = count[(i * blockDim.x + threadIdx.x)];
        for (int j = 0; j < n; j++) sum += in[(i * 8 + j) * blockDim.x + threadIdx.x];
    }
    out[threadIdx.x] = sum;
}
EXPORT int run_nested(float* out, const float* in, const int* count, int outer, int threads) {
    nested<<<1, threads>>>(out, in, count, outer);
    return cudaGetLastError();
}

// Each round some of the lanes load, decided by a bit of the round's mask.
__global__ void masked(float* out, const float* in, const u64* mask, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        if (mask[i] >> (threadIdx.x % W) & 1)
            sum += in[i * blockDim.x + threadIdx.x];
        else
            sum -= 1.0f;
    }
    out[threadIdx.x] = sum;
}
EXPORT int run_masked(float* out, const float* in, const u64* mask, int n, int threads) {
    masked<<<1, threads>>>(out, in, mask, n);
    return cudaGetLastError();
}

// One condition twice: what lies between is one access of all lanes, on whichever way they came.
__global__ void same_condition(float* out, const float* some, const float* all, int n) {
    const int t = threadIdx.x;
    float v = 0;
    if (t < n) v += some[t];
    v += all[t];
    if (t < n)
        v *= 2;
    else
        v -= 1;
    v += all[t + blockDim.x];
    out[t] = v;
}
EXPORT int run_same_condition(float* out, const float* some, const float* all, int n, int threads) {
    same_condition<<<1, threads>>>(out, some, all, n);
    return cudaGetLastError();
}

// Helpers that are inlined, called from two lines.
__device__ __forceinline__ uint4 load(const uint4* p) { return *p; }
__global__ void through_helper(uint4* out, const uint4* a, const uint4* b) {
    const int t = threadIdx.x;
    const uint4 x = load(a + t);  // line a
    const uint4 y = load(b + t);  // line b
    out[t] = make_uint4(x.x + y.x, x.y, y.z, x.w);
}
EXPORT int run_through_helper(void* out, const void* a, const void* b, int threads) {
    through_helper<<<1, threads>>>((uint4*)out, (const uint4*)a, (const uint4*)b);
    return cudaGetLastError();
}

// Shared memory: thread i writes and reads element i * stride.
template <class T>
__global__ void banks(float* out, int stride) {
    __shared__ T data[W * 4 * 33 * 4 / sizeof(T) < 12288 / sizeof(T) ? W * 4 * 33 * 4 / sizeof(T) : 12288 / sizeof(T)];
    const int i = threadIdx.x * stride;
    T value = T();
    data[i] = value;
    __syncthreads();
    value = data[i];
    out[threadIdx.x] = *reinterpret_cast<const char*>(&value);
}
EXPORT int run_banks(int width, float* out, int stride, int threads) {
    if (width == 4) banks<float><<<1, threads>>>(out, stride);
    if (width == 8) banks<uint2><<<1, threads>>>(out, stride);
    if (width == 16) banks<uint4><<<1, threads>>>(out, stride);
    return cudaGetLastError();
}

// Shared and global memory at any places.
template <class T>
__global__ void gather(T* out, const T* in, const int* places) {
    __shared__ T data[512];
    for (int i = threadIdx.x; i < 512; i += blockDim.x) data[i] = in[i];
    __syncthreads();
    const int at = places[threadIdx.x];
    out[threadIdx.x] = data[at];  // gathered from shared memory
    __syncthreads();
    out[threadIdx.x + blockDim.x] = in[at];  // and from global memory
}
EXPORT int run_gather(int width, void* out, const void* in, const int* places, int threads) {
    if (width == 4) gather<<<1, threads>>>((float*)out, (const float*)in, places);
    if (width == 8) gather<<<1, threads>>>((uint2*)out, (const uint2*)in, places);
    if (width == 16) gather<<<1, threads>>>((uint4*)out, (const uint4*)in, places);
    return cudaGetLastError();
}

// Dot products as an attention kernel does them: half8 against float4 in shared memory, then a warp's sum.
template <int N>
__global__ void __launch_bounds__(2 * W) dots(float* out, const __half* rows, const __half* vector, int n) {
    __shared__ float4 staged[N / 4];
    for (int i = threadIdx.x; i < N / 4; i += blockDim.x) {
        const uint2 raw = reinterpret_cast<const uint2*>(vector)[i];
        const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
        const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
        staged[i] = make_float4(a.x, a.y, b.x, b.y);
    }
    __syncthreads();
    for (int row = threadIdx.x / W; row < n; row += blockDim.x / W) {
        float sum = 0;
        for (int i = threadIdx.x % W; i < N / 8; i += W) {
            const uint4 raw = *reinterpret_cast<const uint4*>(rows + (size_t)row * N + i * 8);
            const __half2* h = reinterpret_cast<const __half2*>(&raw);
            const float4 lo = staged[2 * i], hi = staged[2 * i + 1];
            const float2 p0 = __half22float2(h[0]), p1 = __half22float2(h[1]);
            const float2 p2 = __half22float2(h[2]), p3 = __half22float2(h[3]);
            sum += p0.x * lo.x + p0.y * lo.y + p1.x * lo.z + p1.y * lo.w;
            sum += p2.x * hi.x + p2.y * hi.y + p3.x * hi.z + p3.y * hi.w;
        }
        for (int offset = W / 2; offset; offset /= 2) sum += __shfl_xor_sync(FULL, sum, offset);
        if (threadIdx.x % W == 0) out[row] = sum;
    }
}
EXPORT int run_dots(float* out, const void* rows, const void* vector, int n) {
    dots<512><<<1, 2 * W>>>(out, (const __half*)rows, (const __half*)vector, n);
    return cudaGetLastError();
}
