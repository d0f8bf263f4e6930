// __half and __half2: storage, conversions. Their arithmetic is in float16.inc.
#pragma once
#include "narrow.h"

struct __half_raw {
    unsigned short x;
};

namespace simt {
inline namespace SIMT_ABI {

#if defined(__F16C__)  // uses the compiler's built-in names: reading immintrin.h takes a third of a second
typedef short Shorts __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
#endif

inline float half_to_float(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude > 0x7c00) return bits_as<float>(0x7fffffffu);
#if defined(__F16C__)
    (void)sign;
    return __builtin_ia32_vcvtph2ps(Shorts{(short)bits})[0];
#else
    if (magnitude == 0x7c00) return bits_as<float>(sign | 0x7f800000u);
    if (magnitude < 0x0400) return bits_as<float>(sign | bits_as<uint32_t>((float)magnitude * 0x1p-24f));
    return bits_as<float>(sign | ((magnitude << 13) + (112u << 23)));
#endif
}

inline uint16_t half_from_float(float value) {
#if defined(__F16C__)
    if (value != value) return 0x7fff;
    return (uint16_t)__builtin_ia32_vcvtps2ph(Floats{value}, 0)[0];
#else
    return narrow<5, 10>(value);
#endif
}

}  // namespace SIMT_ABI
}  // namespace simt

struct alignas(2) __half {
    unsigned short bits;
    __half() = default;
    constexpr __half(__half_raw raw) : bits(raw.x) {}
    __half(float value) : bits(simt::half_from_float(value)) {}
    __half(double value) : bits(simt::narrow<5, 10>(value)) {}
    __half(int value) : __half((double)value) {}
    __half(unsigned value) : __half((double)value) {}
    __half(long value) : __half((double)value) {}
    __half(unsigned long value) : __half((double)value) {}
    __half(long long value) : __half((double)value) {}
    __half(unsigned long long value) : __half((double)value) {}
    operator float() const { return simt::half_to_float(bits); }
    operator __half_raw() const { return {bits}; }

    static constexpr __half from_bits(unsigned short bits) { return __half(__half_raw{bits}); }
    static __half rounded(double value, simt::Rounding mode) { return from_bits(simt::narrow<5, 10>(value, mode)); }
    // float holds every sum, product and quotient of two halves to more than twice their precision, so that a
    // second rounding does no harm.
    using Wide = float;
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    constexpr __half2(__half x, __half y) : x(x), y(y) {}
};
using half = __half;
using half2 = __half2;
using __nv_half = __half;
using __nv_half2 = __half2;

#define SIMT_T __half
#define SIMT_T2 __half2
#define SIMT_F half
#include "float16.inc"
#undef SIMT_T
#undef SIMT_T2
#undef SIMT_F
