// Arithmetic that CUDA has and C++ does not have: fast math, rounding modes, bit counting, bit casts, cached loads.
//
// The fast functions (such as __expf) are as precise here as the slow ones. On a GPU they are less precise.
#pragma once
#include <cstddef>
#ifndef SIMT_SPECIAL_FUNCTIONS  // std::legendre and the like make up most of <cmath> and of its compile time
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "abi.h"

#define SIMT_MATH inline __attribute__((always_inline))

// ---- bit casts
SIMT_MATH int __float_as_int(float value) { return simt::bits_as<int>(value); }
SIMT_MATH unsigned __float_as_uint(float value) { return simt::bits_as<unsigned>(value); }
SIMT_MATH float __int_as_float(int value) { return simt::bits_as<float>(value); }
SIMT_MATH float __uint_as_float(unsigned value) { return simt::bits_as<float>(value); }
SIMT_MATH long long __double_as_longlong(double value) { return simt::bits_as<long long>(value); }
SIMT_MATH double __longlong_as_double(long long value) { return simt::bits_as<double>(value); }

// ---- single precision. glibc's <math.h> declares some of these names already, so they are macros.
#define __expf(x) ::expf(x)
#define __exp10f(x) ::exp10f(x)
#define __logf(x) ::logf(x)
#define __log2f(x) ::log2f(x)
#define __log10f(x) ::log10f(x)
#define __powf(x, y) ::powf(x, y)
#define __sinf(x) ::sinf(x)
#define __cosf(x) ::cosf(x)
#define __tanf(x) ::tanf(x)
SIMT_MATH void __sincosf(float x, float* sine, float* cosine) {
    *sine = ::sinf(x);
    *cosine = ::cosf(x);
}
SIMT_MATH float __fdividef(float a, float b) { return a / b; }
SIMT_MATH float fdividef(float a, float b) { return a / b; }
SIMT_MATH float __frcp_rn(float x) { return 1.0f / x; }
SIMT_MATH float __fsqrt_rn(float x) { return ::sqrtf(x); }
SIMT_MATH float rsqrtf(float x) { return 1.0f / ::sqrtf(x); }
SIMT_MATH float __frsqrt_rn(float x) { return (float)(1.0 / ::sqrt((double)x)); }
SIMT_MATH double rsqrt(double x) { return 1.0 / ::sqrt(x); }
SIMT_MATH float __fadd_rn(float a, float b) { return a + b; }
SIMT_MATH float __fsub_rn(float a, float b) { return a - b; }
SIMT_MATH float __fmul_rn(float a, float b) { return a * b; }
SIMT_MATH float __fdiv_rn(float a, float b) { return a / b; }
SIMT_MATH float __fmaf_rn(float a, float b, float c) { return ::fmaf(a, b, c); }
SIMT_MATH double __dadd_rn(double a, double b) { return a + b; }
SIMT_MATH double __dmul_rn(double a, double b) { return a * b; }
SIMT_MATH double __fma_rn(double a, double b, double c) { return ::fma(a, b, c); }
SIMT_MATH float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }  // NaN gives 0

// ---- conversions saturate, and NaN becomes 0
namespace simt {
inline namespace SIMT_ABI {
template <class Integer>
SIMT_MATH Integer saturated(float rounded) {
    constexpr bool is_signed = Integer(-1) < Integer(0);
    const float top = is_signed ? 2147483648.0f : 4294967296.0f, bottom = is_signed ? -2147483648.0f : 0.0f;
    if (rounded != rounded) return 0;
    if (rounded >= top) return (Integer)(is_signed ? 0x7fffffffu : 0xffffffffu);
    return rounded <= bottom ? (Integer)bottom : (Integer)rounded;
}
}  // namespace SIMT_ABI
}  // namespace simt
SIMT_MATH int __float2int_rn(float x) { return simt::saturated<int>(::nearbyintf(x)); }
SIMT_MATH int __float2int_rz(float x) { return simt::saturated<int>(::truncf(x)); }
SIMT_MATH int __float2int_rd(float x) { return simt::saturated<int>(::floorf(x)); }
SIMT_MATH int __float2int_ru(float x) { return simt::saturated<int>(::ceilf(x)); }
SIMT_MATH unsigned __float2uint_rn(float x) { return simt::saturated<unsigned>(::nearbyintf(x)); }
SIMT_MATH unsigned __float2uint_rz(float x) { return simt::saturated<unsigned>(::truncf(x)); }
SIMT_MATH unsigned __float2uint_rd(float x) { return simt::saturated<unsigned>(::floorf(x)); }
SIMT_MATH unsigned __float2uint_ru(float x) { return simt::saturated<unsigned>(::ceilf(x)); }
SIMT_MATH float __int2float_rn(int x) { return (float)x; }
SIMT_MATH float __uint2float_rn(unsigned x) { return (float)x; }
SIMT_MATH float __ll2float_rn(long long x) { return (float)x; }
SIMT_MATH float __ull2float_rn(unsigned long long x) { return (float)x; }
SIMT_MATH float __double2float_rn(double x) { return (float)x; }

// ---- bits
SIMT_MATH int __popc(unsigned x) { return __builtin_popcount(x); }
SIMT_MATH int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SIMT_MATH int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
SIMT_MATH int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
SIMT_MATH int __ffs(int x) { return __builtin_ffs(x); }
SIMT_MATH int __ffsll(long long x) { return __builtin_ffsll(x); }
SIMT_MATH unsigned long long __brevll(unsigned long long x) {
    x = (x >> 1 & 0x5555555555555555ull) | (x & 0x5555555555555555ull) << 1;
    x = (x >> 2 & 0x3333333333333333ull) | (x & 0x3333333333333333ull) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0full) | (x & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(x);
}
SIMT_MATH unsigned __brev(unsigned x) { return (unsigned)(__brevll(x) >> 32); }
// Four bytes of the eight in (high, low), each chosen by a nibble; bit 3 of a nibble spreads the byte's sign.
SIMT_MATH unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned nibble = selector >> (4 * i) & 15;
        unsigned byte = (unsigned)(bytes >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}
SIMT_MATH unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
SIMT_MATH unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
SIMT_MATH int __mul24(int a, int b) {
    const long long product = (long long)((int)((unsigned)a << 8) >> 8) * ((int)((unsigned)b << 8) >> 8);
    return (int)(unsigned)product;
}
SIMT_MATH unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
SIMT_MATH int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
SIMT_MATH unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
SIMT_MATH long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
SIMT_MATH unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
SIMT_MATH unsigned __sad(int a, int b, unsigned c) {
    return c + (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a);
}
SIMT_MATH unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
SIMT_MATH int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++) sum += (unsigned)((signed char)(a >> (8 * i)) * (signed char)(b >> (8 * i)));
    return (int)sum;
}
SIMT_MATH unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
    return c;
}

// ---- minimum and maximum, with CUDA's rules for mixed signs
#define SIMT_MIN_MAX(RESULT, A, B)                                                        \
    SIMT_MATH RESULT min(A a, B b) { return (RESULT)b < (RESULT)a ? (RESULT)b : (RESULT)a; } \
    SIMT_MATH RESULT max(A a, B b) { return (RESULT)a < (RESULT)b ? (RESULT)b : (RESULT)a; }
SIMT_MIN_MAX(int, int, int)
SIMT_MIN_MAX(unsigned, unsigned, unsigned)
SIMT_MIN_MAX(unsigned, int, unsigned)
SIMT_MIN_MAX(unsigned, unsigned, int)
SIMT_MIN_MAX(long, long, long)
SIMT_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIMT_MIN_MAX(unsigned long, long, unsigned long)
SIMT_MIN_MAX(unsigned long, unsigned long, long)
SIMT_MIN_MAX(long long, long long, long long)
SIMT_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
SIMT_MIN_MAX(unsigned long long, long long, unsigned long long)
SIMT_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef SIMT_MIN_MAX
SIMT_MATH float min(float a, float b) { return ::fminf(a, b); }
SIMT_MATH float max(float a, float b) { return ::fmaxf(a, b); }
SIMT_MATH double min(double a, double b) { return ::fmin(a, b); }
SIMT_MATH double max(double a, double b) { return ::fmax(a, b); }
SIMT_MATH double min(float a, double b) { return ::fmin(a, b); }
SIMT_MATH double max(float a, double b) { return ::fmax(a, b); }
SIMT_MATH double min(double a, float b) { return ::fmin(a, b); }
SIMT_MATH double max(double a, float b) { return ::fmax(a, b); }
SIMT_MATH unsigned umin(unsigned a, unsigned b) { return b < a ? b : a; }
SIMT_MATH unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }

// ---- loads and stores with a cache hint are plain ones
#define SIMT_LOAD(NAME)                   \
    template <class T>                    \
    SIMT_MATH T NAME(const T* address) {  \
        return *address;                  \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldcv)
SIMT_LOAD(__ldlu)
#undef SIMT_LOAD
#define SIMT_STORE(NAME)                          \
    template <class T>                            \
    SIMT_MATH void NAME(T* address, T value) {    \
        *address = value;                         \
    }
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwb)
SIMT_STORE(__stwt)
#undef SIMT_STORE

// ---- the rest
SIMT_MATH long long clock64() { return (long long)simt::ticks(); }
SIMT_MATH void __nanosleep(unsigned) {}
SIMT_MATH void __trap(SIMT_HERE) { simt::trap(file, line); }

// ---- memcpy and memset of more than a register: libc's own would be invisible to the checks
#if SIMT_CHECKED && !defined(SIMT_RUNTIME)
SIMT_UNSEEN inline void* simt_copy(void* to, const void* from, size_t bytes) {
    simt::checked_copy(to, from, bytes, __builtin_return_address(0));
    return to;
}
SIMT_UNSEEN inline void* simt_fill(void* to, int byte, size_t bytes) {
    simt::checked_fill(to, byte, bytes, __builtin_return_address(0));
    return to;
}
SIMT_MATH void* simt_memcpy(void* to, const void* from, size_t bytes) {
    if (__builtin_constant_p(bytes) && bytes <= 16 && (bytes & (bytes - 1)) == 0)
        return __builtin_memcpy(to, from, bytes);
    return simt_copy(to, from, bytes);
}
namespace std {
using ::simt_copy;
using ::simt_fill;
using ::simt_memcpy;
}  // namespace std
#define memcpy(to, from, bytes) simt_memcpy(to, from, bytes)
#define memmove(to, from, bytes) simt_copy(to, from, bytes)
#define memset(to, byte, bytes) simt_fill(to, byte, bytes)
#endif
