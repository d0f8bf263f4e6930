// Device functions that all kernels share: loads of 4, 8 and 16 bytes, conversion of cache elements to float, and
// reductions over a warp. The compiler's command line defines the warp size: 64 for BI-V100, 32 for NVIDIA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef PAV2_WARP_SIZE
#error "define PAV2_WARP_SIZE: 64 for the BI-V100 and other Iluvatar cards, 32 for NVIDIA"
#endif

namespace pav2 {

constexpr int kWarp = PAV2_WARP_SIZE;
static_assert(kWarp == 32 || kWarp == 64, "a warp has 32 or 64 lanes");

// The mask of all lanes of a warp. CUDA's functions take a mask of 32 bits; CoreX interprets this mask as all 64 lanes.
constexpr unsigned kFullMask = 0xffffffffu;

// Stands in for a maximum of -inf where it is subtracted: exp(-inf - kLowest) is 0, while -inf - -inf is NaN.
constexpr float kLowest = -3.402823466e+38f;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The sum and the maximum over all lanes of a warp. Every lane gets the result.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kFullMask, x, lanes, kWarp);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, lanes, kWarp));
    return x;
}

// The sum over all lanes whose numbers differ only in the bits First, 2 * First, 4 * First, ... below End.
template <int First, int End>
__device__ __forceinline__ float lane_sum(float x) {
#pragma unroll
    for (int lanes = First; lanes < End; lanes *= 2) x += __shfl_xor_sync(kFullMask, x, lanes, kWarp);
    return x;
}

// The result of one load of N 32-bit words: 4, 8 or 16 bytes.
template <int N>
struct Words {
    unsigned word[N];
};

template <int N>
__device__ __forceinline__ Words<N> load(const char* address);

template <>
__device__ __forceinline__ Words<1> load<1>(const char* address) {
    return {{*reinterpret_cast<const unsigned*>(address)}};
}

template <>
__device__ __forceinline__ Words<2> load<2>(const char* address) {
    const uint2 v = *reinterpret_cast<const uint2*>(address);
    return {{v.x, v.y}};
}

template <>
__device__ __forceinline__ Words<4> load<4>(const char* address) {
    const uint4 v = *reinterpret_cast<const uint4*>(address);
    return {{v.x, v.y, v.z, v.w}};
}

// Stores N words (4, 8 or 16 bytes) at once.
template <int N>
__device__ __forceinline__ void store(char* address, const Words<N>& words) {
    if constexpr (N == 4) {
        *reinterpret_cast<uint4*>(address) = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
    } else if constexpr (N == 2) {
        *reinterpret_cast<uint2*>(address) = make_uint2(words.word[0], words.word[1]);
    } else {
        *reinterpret_cast<unsigned*>(address) = words.word[0];
    }
}

// Sets all bytes after the first `bytes` bytes to 0. If `bytes` is negative, all bytes become 0.
template <int N>
__device__ __forceinline__ void clear_from(int bytes, Words<N>& words) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int kept = bytes - 4 * i;
        const unsigned mask = kept >= 4 ? 0xffffffffu : kept <= 0 ? 0u : (1u << 8 * kept) - 1u;
        words.word[i] &= mask;
    }
}

// Reads N floats from shared memory, with the widest loads that N allows.
template <int N>
__device__ __forceinline__ void read_floats(const float* from, float* x) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(from + i);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
    } else if constexpr (N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const float2 v = *reinterpret_cast<const float2*>(from + i);
            x[i] = v.x, x[i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = from[i];
    }
}

// The storage formats of a cache. A word of 32 bits holds kPerWord elements. unpack() converts a word to floats. Each
// float is the element's value divided by kCodeScale, without rounding. The caller includes kCodeScale in its scale.
struct Float32 {
    static constexpr int kPerWord = 1;
    static constexpr float kCodeScale = 1.0f;
    static __device__ __forceinline__ void unpack(unsigned word, float* x) { x[0] = __uint_as_float(word); }
};

struct Float16 {
    static constexpr int kPerWord = 2;
    static constexpr float kCodeScale = 1.0f;
    static __device__ __forceinline__ void unpack(unsigned word, float* x) {
        x[0] = __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu)));
        x[1] = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
    }
};

struct BFloat16 {
    static constexpr int kPerWord = 2;
    static constexpr float kCodeScale = 1.0f;
    static __device__ __forceinline__ void unpack(unsigned word, float* x) {
        x[0] = __uint_as_float(word << 16);  // a bfloat16 is the upper half of a float
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
};

// The fp8 format E5M2 of the Open Compute Project (OCP): the upper byte of a float16.
struct E5M2 {
    static constexpr int kPerWord = 4;
    static constexpr float kCodeScale = 1.0f;
    static __device__ __forceinline__ void unpack(unsigned word, float* x) {
        Float16::unpack((word & 0x000000ffu) << 8 | (word & 0x0000ff00u) << 16, x);
        Float16::unpack((word & 0x00ff0000u) >> 8 | (word & 0xff000000u), x + 2);
    }
};

// The fp8 format E4M3 of OCP. Exponent and fraction are moved to the bits where a float16 has them. A float16 has the
// exponent bias 15 and E4M3 has 7, so the resulting float16 is too small by a factor of 2^8. A code is NaN if all its
// exponent and fraction bits are set. Only for this code does adding 0x80 to the moved bits carry into bit 14. Setting
// bit 14 makes all exponent bits of the float16 one, which is a NaN.
struct E4M3 {
    static constexpr int kPerWord = 4;
    static constexpr float kCodeScale = 256.0f;
    static __device__ __forceinline__ unsigned to_half2(unsigned low, unsigned high) {
        const unsigned codes = low | high << 16;
        const unsigned magnitude = (codes & 0x007f007fu) << 7;
        const unsigned nan = (magnitude + 0x00800080u) & 0x40004000u;
        return magnitude | nan | (codes & 0x00800080u) << 8;
    }
    static __device__ __forceinline__ void unpack(unsigned word, float* x) {
        Float16::unpack(to_half2(word & 0xffu, word >> 8 & 0xffu), x);
        Float16::unpack(to_half2(word >> 16 & 0xffu, word >> 24), x + 2);
    }
};

// Symmetric int8: the element is the code itself, a signed integer.
struct Int8 {
    static constexpr int kPerWord = 4;
    static constexpr float kCodeScale = 1.0f;
    static __device__ __forceinline__ void unpack(unsigned word, float* x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = static_cast<float>(static_cast<int>(word << (24 - 8 * i)) >> 24);
    }
};

template <class Stored, int N>
__device__ __forceinline__ void unpack(const Words<N>& loaded, float* x) {
#pragma unroll
    for (int w = 0; w < N; ++w) Stored::unpack(loaded.word[w], x + w * Stored::kPerWord);
}

// Unpacks kWords of the loaded words: those from word part * kWords on.
template <class Stored, int kWords, int N>
__device__ __forceinline__ void unpack_part(const Words<N>& loaded, int part, float* x) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) Stored::unpack(loaded.word[part * kWords + w], x + w * Stored::kPerWord);
}

// The address of element number `element` of a cache. The element must begin at a whole byte.
template <class Stored>
__device__ __forceinline__ const char* address_of(const void* cache, int64_t element) {
    return static_cast<const char*>(cache) + element * 4 / Stored::kPerWord;
}

// Conversions between float and the element types of query, out and tmp_out.
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

}  // namespace pav2
