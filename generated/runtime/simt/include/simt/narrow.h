// Rounding to 16-bit floating point formats, exactly: the arithmetic behind __half and __nv_bfloat16.
#pragma once
#include <cmath>
#include <cstdint>
#include "abi.h"
#include "vectors.h"

namespace simt {
inline namespace SIMT_ABI {

enum class Rounding { nearest, zero, down, up };

// `value` in a format of one sign bit, `exponent_bits` and `fraction_bits`, rounded once. NaN becomes 0x7fff.
template <int exponent_bits, int fraction_bits>
inline uint16_t narrow(double value, Rounding mode = Rounding::nearest) {
    constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    constexpr uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
    const u64 bits = bits_as<u64>(value);
    const bool negative = bits >> 63;
    const uint16_t sign = negative ? 0x8000 : 0;
    const int exponent = bits >> 52 & 0x7ff;
    const u64 fraction = bits & 0xfffffffffffffull;
    if (exponent == 0x7ff) return fraction ? 0x7fff : sign | infinity;

    const u64 significand = fraction | (u64)(exponent != 0) << 52;
    const int target = (exponent ? exponent : 1) - 1023 + bias;  // the biased exponent, if the result is normal
    int shift = 52 - fraction_bits + (target < 1 ? 1 - target : 0);
    if (shift > 60) shift = 60;
    const u64 rest = significand & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    u64 kept = significand >> shift;
    if (mode == Rounding::nearest)
        kept += rest > half || (rest == half && (kept & 1));
    else if (mode != Rounding::zero)
        kept += rest != 0 && (mode == Rounding::up) != negative;

    const u64 result = (target > 1 ? (u64)(target - 1) << fraction_bits : 0) + kept;
    if (result < infinity) return sign | (uint16_t)result;
    const bool away = mode == Rounding::nearest || (mode != Rounding::zero && (mode == Rounding::up) != negative);
    return sign | (uint16_t)(away ? infinity : infinity - 1);
}

// a * b + c rounded to odd at 53 bits, so that a second rounding to 16 bits gives what one rounding would.
// a * b is exact in double for 16-bit operands.
inline double fused_to_odd(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    if (!(error != 0) || !std::isfinite(sum)) return sum;
    const u64 bits = bits_as<u64>(sum);
    if (bits & 1) return sum;
    return bits_as<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}



template <class Integer>
inline Integer clamp_to(double rounded) {
    constexpr bool is_signed = Integer(-1) < Integer(0);
    const double limit = std::ldexp(1.0, 8 * (int)sizeof(Integer) - is_signed);
    if (rounded != rounded) return 0;
    if (rounded >= limit) return (Integer)(is_signed ? ~((u64)1 << (8 * sizeof(Integer) - 1)) : ~(u64)0);
    if (rounded <= (is_signed ? -limit : 0.0)) return is_signed ? (Integer)((u64)1 << (8 * sizeof(Integer) - 1)) : 0;
    return (Integer)rounded;
}

}  // namespace SIMT_ABI
}  // namespace simt
