// __nv_bfloat16 and __nv_bfloat162: storage, conversions. Their arithmetic is in float16.inc.
#pragma once
#include "narrow.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

namespace simt {
inline namespace SIMT_ABI {

inline uint16_t bfloat16_from_float(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace SIMT_ABI
}  // namespace simt

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    constexpr __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
    __nv_bfloat16(float value) : bits(simt::bfloat16_from_float(value)) {}
    __nv_bfloat16(double value) : bits(simt::narrow<8, 7>(value)) {}
    __nv_bfloat16(int value) : __nv_bfloat16((double)value) {}
    __nv_bfloat16(unsigned value) : __nv_bfloat16((double)value) {}
    __nv_bfloat16(long value) : __nv_bfloat16((double)value) {}
    __nv_bfloat16(unsigned long value) : __nv_bfloat16((double)value) {}
    __nv_bfloat16(long long value) : __nv_bfloat16((double)value) {}
    __nv_bfloat16(unsigned long long value) : __nv_bfloat16((double)value) {}
    operator float() const { return simt::bits_as<float>((uint32_t)bits << 16); }
    operator __nv_bfloat16_raw() const { return {bits}; }

    static constexpr __nv_bfloat16 from_bits(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
    static __nv_bfloat16 rounded(double value, simt::Rounding mode) {
        return from_bits(simt::narrow<8, 7>(value, mode));
    }
    // A product in float could be rounded twice where it is subnormal, as both formats end at the same exponent.
    using Wide = double;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    constexpr __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

#define SIMT_T __nv_bfloat16
#define SIMT_T2 __nv_bfloat162
#define SIMT_F bfloat16
#include "float16.inc"
#undef SIMT_T
#undef SIMT_T2
#undef SIMT_F
