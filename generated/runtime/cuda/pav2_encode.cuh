// Converts floats to the codes of a compressed cache: it rounds to nearest even and saturates. It uses integer
// arithmetic, so that cards without fp8 instructions can run it.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace pav2 {

// A float's bits with the last `bits` of its fraction rounded away, ties to even. A carry goes into the exponent.
__device__ __forceinline__ unsigned rounded(unsigned x, int bits) {
    return (x + (1u << (bits - 1)) - 1u + (x >> bits & 1u)) >> bits;
}

// OCP E4M3: 3 bits of fraction, exponent bias 7, no infinity; NaN is 0x7f.
struct ToE4M3 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
        if (x != x) return static_cast<Code>(0x7fu | sign);
        const float size = fminf(fabsf(x), 448.0f);
        // Below 2^-6 codes count steps of 2^-9, the last place of 2^14; else they are a float's upper bits, rebiased.
        const unsigned code = size < 0.015625f ? __float_as_uint(size + 16384.0f) - __float_as_uint(16384.0f)
                                               : rounded(__float_as_uint(size), 20) - (120u << 3);
        return static_cast<Code>(code | sign);
    }
};

// OCP E5M2: 2 bits of fraction, exponent bias 15. Infinity saturates too.
struct ToE5M2 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
        if (x != x) return static_cast<Code>(0x7eu | sign);
        const float size = fminf(fabsf(x), 57344.0f);
        // Below 2^-14 codes count steps of 2^-16, the last place of 2^7.
        const unsigned code = size < 6.103515625e-05f ? __float_as_uint(size + 128.0f) - __float_as_uint(128.0f)
                                                      : rounded(__float_as_uint(size), 21) - (112u << 2);
        return static_cast<Code>(code | sign);
    }
};

// Symmetric int8: -127 to 127. The format has no NaN; NaN becomes 0.
struct ToInt8 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const float clamped = x != x ? 0.0f : fmaxf(-127.0f, fminf(x, 127.0f));
        return static_cast<Code>(__float_as_uint(clamped + 12582912.0f));  // + 1.5 * 2^23: the last byte is the code
    }
};

}  // namespace pav2
