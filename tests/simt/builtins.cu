// Every builtin, applied to data that a test gives, so that it can be compared with a model.
#include "common.h"

// ---- coordinates
__global__ void coordinates(unsigned* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned* o = out + ((size_t)block * blockDim.x * blockDim.y * blockDim.z + thread) * 8;
    o[0] = threadIdx.x, o[1] = threadIdx.y, o[2] = threadIdx.z;
    o[3] = blockIdx.x, o[4] = blockIdx.y, o[5] = blockIdx.z;
    o[6] = warpSize, o[7] = thread % warpSize;
}
EXPORT int run_coordinates(unsigned* out, int gx, int gy, int gz, int bx, int by, int bz) {
    coordinates<<<dim3(gx, gy, gz), dim3(bx, by, bz)>>>(out);
    return cudaGetLastError();
}

// ---- shuffles
template <class T>
__global__ void shuffle(T* out, const T* in, int kind, int operand, int width) {
    const T value = in[threadIdx.x];
    T got = value;
    if (kind == 0) got = __shfl_sync(FULL, value, operand, width);
    if (kind == 1) got = __shfl_up_sync(FULL, value, operand, width);
    if (kind == 2) got = __shfl_down_sync(FULL, value, operand, width);
    if (kind == 3) got = __shfl_xor_sync(FULL, value, operand, width);
    out[threadIdx.x] = got;
}
template <class T>
int run_shuffle(void* out, const void* in, int threads, int kind, int operand, int width) {
    shuffle<<<1, threads>>>(static_cast<T*>(out), static_cast<const T*>(in), kind, operand, width);
    return cudaGetLastError();
}
EXPORT int run_shuffles(int type, void* out, const void* in, int threads, int kind, int operand, int width) {
    switch (type) {
        case 0: return run_shuffle<float>(out, in, threads, kind, operand, width);
        case 1: return run_shuffle<int>(out, in, threads, kind, operand, width);
        case 2: return run_shuffle<unsigned>(out, in, threads, kind, operand, width);
        case 3: return run_shuffle<long long>(out, in, threads, kind, operand, width);
        case 4: return run_shuffle<u64>(out, in, threads, kind, operand, width);
        case 5: return run_shuffle<double>(out, in, threads, kind, operand, width);
        case 6: return run_shuffle<__half>(out, in, threads, kind, operand, width);
        default: return run_shuffle<__half2>(out, in, threads, kind, operand, width);
    }
}
__global__ void default_width(int* out) {
    const int t = threadIdx.x;
    out[t] = __shfl_sync(FULL, t, 3) + 1000 * __shfl_xor_sync(FULL, t, W / 2) + 1000000 * __shfl_down_sync(FULL, t, 1);
}
EXPORT int run_default_width(int* out) {
    default_width<<<1, W>>>(out);
    return cudaGetLastError();
}

// ---- votes
__global__ void votes(u64* out, const int* in, u64 mask) {
    const int t = threadIdx.x;
    if (!(mask >> (t % W) & 1)) return;
    const int predicate = in[t];
    u64* o = out + 5 * t;
    o[0] = __ballot_sync(mask, predicate);
    o[1] = __any_sync(mask, predicate);
    o[2] = __all_sync(mask, predicate);
    o[3] = __match_any_sync(mask, predicate);
    o[4] = __activemask();
}
EXPORT int run_votes(u64* out, const int* in, int threads, u64 mask) {
    votes<<<1, threads>>>(out, in, mask);
    return cudaGetLastError();
}
#if __CUDA_ARCH__ >= 800 || !defined(__CUDA_ARCH__)
__global__ void reductions(unsigned* out, const unsigned* in) {
    const unsigned value = in[threadIdx.x];
    unsigned* o = out + 8 * threadIdx.x;
    o[0] = __reduce_add_sync(FULL, value);
    o[1] = __reduce_min_sync(FULL, value);
    o[2] = __reduce_max_sync(FULL, value);
    o[3] = (unsigned)__reduce_min_sync(FULL, (int)value);
    o[4] = (unsigned)__reduce_max_sync(FULL, (int)value);
    o[5] = __reduce_and_sync(FULL, value);
    o[6] = __reduce_or_sync(FULL, value);
    o[7] = __reduce_xor_sync(FULL, value);
}
#else
__global__ void reductions(unsigned*, const unsigned*) {}
#endif
EXPORT int run_reductions(unsigned* out, const unsigned* in, int threads) {
    reductions<<<1, threads>>>(out, in);
    return cudaGetLastError();
}
__global__ void barrier_votes(int* out, const int* in) {
    const int predicate = in[threadIdx.x];
    int* o = out + 3 * threadIdx.x;
    o[0] = __syncthreads_count(predicate);
    o[1] = __syncthreads_and(predicate);
    o[2] = __syncthreads_or(predicate);
}
EXPORT int run_barrier_votes(int* out, const int* in, int threads) {
    barrier_votes<<<1, threads>>>(out, in);
    return cudaGetLastError();
}

// ---- bits and integers: each thread takes a triple, and writes the results of all functions
__global__ void integers(int* out, const int* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    const unsigned ua = a, ub = b, uc = c;
    int* o = out + 24 * i;
    o[0] = __popc(ua);
    o[1] = __clz(a);
    o[2] = __ffs(a);
    o[3] = (int)__brev(ua);
    o[4] = (int)__byte_perm(ua, ub, uc);
    o[5] = (int)__funnelshift_l(ua, ub, uc);
    o[6] = (int)__funnelshift_r(ua, ub, uc);
    o[7] = __mul24(a, b);
    o[8] = (int)__umul24(ua, ub);
    o[9] = __mulhi(a, b);
    o[10] = (int)__umulhi(ua, ub);
    o[11] = (int)__sad(a, b, uc);
    o[12] = (int)__usad(ua, ub, uc);
    o[13] = __dp4a(a, b, c);
    o[14] = (int)__dp4a(ua, ub, uc);
    o[15] = min(a, b);
    o[16] = max(a, b);
    o[17] = (int)min(ua, ub);
    o[18] = (int)max(ua, ub);
    o[19] = (int)min(a, ub);
    o[20] = (int)max(ua, b);
    const u64 wide = (u64)ua << 32 | ub;
    o[21] = __popcll(wide) | __clzll((long long)wide) << 8 | __ffsll((long long)wide) << 16;
    o[22] = (int)(__brevll(wide) >> 32);
    o[23] = (int)(__umul64hi(wide, (u64)uc << 32 | ua) >> 32) ^ (int)__mul64hi((long long)wide, (long long)c);
}
EXPORT int run_integers(int* out, const int* in, int n) {
    integers<<<(n + 127) / 128, 128>>>(out, in, n);
    return cudaGetLastError();
}

// ---- single precision
__global__ void floats(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    float* o = out + 24 * i;
    o[0] = __expf(a);
    o[1] = exp2f(a);
    o[2] = __logf(fabsf(a));
    o[3] = __fdividef(a, b);
    o[4] = __frcp_rn(a);
    o[5] = rsqrtf(fabsf(a));
    o[6] = fmaf(a, b, c);
    o[7] = __fmaf_rn(a, b, c);
    o[8] = __fadd_rn(a, b);
    o[9] = __fmul_rn(a, b);
    o[10] = __fdiv_rn(a, b);
    o[11] = __fsqrt_rn(fabsf(a));
    o[12] = __saturatef(a);
    o[13] = fminf(a, b);
    o[14] = fmaxf(a, b);
    o[15] = min(a, b);
    o[16] = __powf(fabsf(a), b);
    o[17] = __log2f(fabsf(a));
    o[18] = __sinf(a);
    o[19] = __cosf(a);
    o[20] = __fsub_rn(a, b);
    o[21] = __int_as_float(__float_as_int(a));
    o[22] = __uint_as_float(__float_as_uint(b));
    o[23] = (float)__longlong_as_double(__double_as_longlong((double)c));
}
EXPORT int run_floats(float* out, const float* in, int n) {
    floats<<<(n + 127) / 128, 128>>>(out, in, n);
    return cudaGetLastError();
}
__global__ void roundings(int* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float a = in[i];
    int* o = out + 8 * i;
    o[0] = __float2int_rn(a), o[1] = __float2int_rz(a), o[2] = __float2int_rd(a), o[3] = __float2int_ru(a);
    o[4] = (int)__float2uint_rn(a), o[5] = (int)__float2uint_rz(a);
    o[6] = (int)__float2uint_rd(a), o[7] = (int)__float2uint_ru(a);
}
EXPORT int run_roundings(int* out, const float* in, int n) {
    roundings<<<(n + 127) / 128, 128>>>(out, in, n);
    return cudaGetLastError();
}

// ---- 16-bit floats; both types have the same functions by overloads
template <class T>
struct Of;
template <>
struct Of<__half> {
    using Pair = __half2;
    static __device__ __half from(float a) { return __float2half(a); }
    static __device__ __half from(float a, int mode) {
        return mode == 0 ? __float2half_rn(a) : mode == 1 ? __float2half_rz(a)
                                            : mode == 2   ? __float2half_rd(a)
                                                          : __float2half_ru(a);
    }
    static __device__ float to(__half a) { return __half2float(a); }
    static __device__ unsigned short bits(__half a) { return __half_as_ushort(a); }
    static __device__ __half of(unsigned short a) { return __ushort_as_half(a); }
    static __device__ int integer(__half a, int mode) {
        return mode == 0   ? __half2int_rn(a)
               : mode == 1 ? __half2int_rz(a)
               : mode == 2 ? __half2int_rd(a)
                           : __half2int_ru(a);
    }
    static __device__ __half integer(int a) { return __int2half_rn(a); }
    static __device__ float2 pair(__half2 a) { return __half22float2(a); }
    static __device__ __half2 pair(float a, float b) { return __floats2half2_rn(a, b); }
    static __device__ __half2 pair(__half a, __half b) { return __halves2half2(a, b); }
    static __device__ __half low(__half2 a) { return __low2half(a); }
    static __device__ __half high(__half2 a) { return __high2half(a); }
};
template <>
struct Of<__nv_bfloat16> {
    using Pair = __nv_bfloat162;
    static __device__ __nv_bfloat16 from(float a) { return __float2bfloat16(a); }
    static __device__ __nv_bfloat16 from(float a, int mode) {
        return mode == 0 ? __float2bfloat16_rn(a) : mode == 1 ? __float2bfloat16_rz(a)
                                                : mode == 2   ? __float2bfloat16_rd(a)
                                                              : __float2bfloat16_ru(a);
    }
    static __device__ float to(__nv_bfloat16 a) { return __bfloat162float(a); }
    static __device__ unsigned short bits(__nv_bfloat16 a) { return __bfloat16_as_ushort(a); }
    static __device__ __nv_bfloat16 of(unsigned short a) { return __ushort_as_bfloat16(a); }
    static __device__ int integer(__nv_bfloat16 a, int mode) {
        return mode == 0   ? __bfloat162int_rn(a)
               : mode == 1 ? __bfloat162int_rz(a)
               : mode == 2 ? __bfloat162int_rd(a)
                           : __bfloat162int_ru(a);
    }
    static __device__ __nv_bfloat16 integer(int a) { return __int2bfloat16_rn(a); }
    static __device__ float2 pair(__nv_bfloat162 a) { return __bfloat1622float2(a); }
    static __device__ __nv_bfloat162 pair(float a, float b) { return __floats2bfloat162_rn(a, b); }
    static __device__ __nv_bfloat162 pair(__nv_bfloat16 a, __nv_bfloat16 b) { return __halves2bfloat162(a, b); }
    static __device__ __nv_bfloat16 low(__nv_bfloat162 a) { return __low2bfloat16(a); }
    static __device__ __nv_bfloat16 high(__nv_bfloat162 a) { return __high2bfloat16(a); }
};

template <class T>
__global__ void widen(float* out, int* integers, const unsigned short* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const T value = Of<T>::of(in[i]);
    out[i] = Of<T>::to(value);
    for (int mode = 0; mode < 4; mode++) integers[4 * i + mode] = Of<T>::integer(value, mode);
}
template <class T>
__global__ void narrow(unsigned short* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int mode = 0; mode < 4; mode++) out[4 * i + mode] = Of<T>::bits(Of<T>::from(in[i], mode));
}
template <class T>
__global__ void arithmetic(unsigned short* out, const unsigned short* in, int n) {
    using O = Of<T>;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const T a = O::of(in[3 * i]), b = O::of(in[3 * i + 1]), c = O::of(in[3 * i + 2]);
    unsigned short* o = out + 24 * i;
    o[0] = O::bits(__hadd(a, b)), o[1] = O::bits(__hsub(a, b)), o[2] = O::bits(__hmul(a, b));
    o[3] = O::bits(__hdiv(a, b)), o[4] = O::bits(__hfma(a, b, c)), o[5] = O::bits(__hneg(a));
    o[6] = O::bits(__habs(a)), o[7] = O::bits(__hmax(a, b)), o[8] = O::bits(__hmin(a, b));
    o[9] = O::bits(hsqrt(__habs(a)));
    o[10] = __heq(a, b) | __hne(a, b) << 1 | __hlt(a, b) << 2 | __hle(a, b) << 3 | __hgt(a, b) << 4 | __hge(a, b) << 5 |
            __hequ(a, b) << 6 | __hltu(a, b) << 7 | __hisnan(a) << 8;
    const typename O::Pair p = O::pair(a, b), q = O::pair(b, c), r = O::pair(c, a);
    const typename O::Pair sum = __hadd2(p, q), product = __hmul2(p, q), fused = __hfma2(p, q, r);
    o[11] = O::bits(O::low(sum)), o[12] = O::bits(O::high(sum));
    o[13] = O::bits(O::low(product)), o[14] = O::bits(O::high(product));
    o[15] = O::bits(O::low(fused)), o[16] = O::bits(O::high(fused));
    const float2 f = O::pair(p);
    o[17] = O::bits(O::low(O::pair(f.y, f.x)));
    T sum_of_operators = a + b;
    sum_of_operators += c;
    o[18] = O::bits(sum_of_operators), o[19] = O::bits(a * b), o[20] = O::bits(-a);
    o[21] = (a < b) | (a == b) << 1 | (a != b) << 2;
    o[22] = O::bits(O::integer((int)in[3 * i] * 3 - 70000));
    o[23] = O::bits(hexp(__hneg(__habs(a))));
}
#define RUN(NAME, ...)                                                   \
    if (bfloat)                                                          \
        NAME<__nv_bfloat16><<<(n + 127) / 128, 128>>>(__VA_ARGS__, n);   \
    else                                                                 \
        NAME<__half><<<(n + 127) / 128, 128>>>(__VA_ARGS__, n);          \
    return cudaGetLastError();
EXPORT int run_widen(int bfloat, float* out, int* integers, const unsigned short* in, int n) {
    RUN(widen, out, integers, in)
}
EXPORT int run_narrow(int bfloat, unsigned short* out, const float* in, int n) {
    RUN(narrow, out, in)
}
EXPORT int run_arithmetic(int bfloat, unsigned short* out, const unsigned short* in, int n) {
    RUN(arithmetic, out, in)
}

// ---- the host's side
EXPORT int host_api(int* values) {
    cudaDeviceGetAttribute(&values[0], cudaDevAttrWarpSize, 0);
    cudaDeviceGetAttribute(&values[1], cudaDevAttrMaxSharedMemoryPerBlock, 0);
    cudaDeviceGetAttribute(&values[2], cudaDevAttrMultiProcessorCount, 0);
    cudaStream_t stream;
    cudaEvent_t from, to;
    float ms = -1;
    if (cudaStreamCreate(&stream) || cudaEventCreate(&from) || cudaEventCreate(&to)) return 1;
    cudaEventRecord(from, stream), cudaEventRecord(to, stream), cudaEventSynchronize(to);
    cudaEventElapsedTime(&ms, from, to);
    values[3] = ms >= 0;
    cudaEventDestroy(from), cudaEventDestroy(to), cudaStreamDestroy(stream);
    int* memory = nullptr;
    int back[4] = {1, 2, 3, 4};
    if (cudaMalloc(&memory, sizeof back)) return 2;
    cudaMemset(memory, 0x11, sizeof back);
    cudaMemcpy(memory, back, 8, cudaMemcpyHostToDevice);
    cudaMemcpy(back, memory, sizeof back, cudaMemcpyDeviceToHost);
    values[4] = back[1], values[5] = back[3];
    values[6] = cudaFree(memory);
    values[7] = cudaSetDevice(5);
    coordinates<<<1, 4096>>>(nullptr);
    values[8] = cudaPeekAtLastError();
    values[9] = cudaGetLastError();
    values[10] = cudaGetLastError();
    values[11] = cudaGetErrorString(cudaErrorIllegalAddress)[0];
    return cudaDeviceSynchronize();
}
