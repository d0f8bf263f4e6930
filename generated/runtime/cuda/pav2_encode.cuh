// Converts floats to the codes of a compressed cache. The conversions round to nearest even and saturate. They use only
// float32 and integer arithmetic, so that GPUs without fp8 instructions can run them.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace pav2 {

// Removes the last `bits` bits of a float's fraction and rounds to nearest even. x: the float's bits. The result is
// shifted right by `bits`. A carry out of the fraction increments the exponent, as it should.
__device__ __forceinline__ unsigned rounded(unsigned x, int bits) {
    return (x + (1u << (bits - 1)) - 1u + (x >> bits & 1u)) >> bits;
}

// OCP E4M3: 3 fraction bits, exponent bias 7, no infinity. NaN is 0x7f.
struct ToE4M3 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
        if (x != x) return static_cast<Code>(0x7fu | sign);
        const float size = fminf(fabsf(x), 448.0f);
        // Below 2^-6, a code is a multiple of 2^-9. Adding 2^14, where floats are 2^-9 apart, rounds to this multiple.
        // From 2^-6 on, a code is the upper bits of the float, with the exponent bias changed from 127 to 7.
        const unsigned code = size < 0.015625f ? __float_as_uint(size + 16384.0f) - __float_as_uint(16384.0f)
                                               : rounded(__float_as_uint(size), 20) - (120u << 3);
        return static_cast<Code>(code | sign);
    }
};

// OCP E5M2: 2 fraction bits, exponent bias 15. Infinity becomes the largest finite code.
struct ToE5M2 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
        if (x != x) return static_cast<Code>(0x7eu | sign);
        const float size = fminf(fabsf(x), 57344.0f);
        // Below 2^-14, a code is a multiple of 2^-16. Adding 2^7, where floats are 2^-16 apart, rounds to this
        // multiple.
        const unsigned code = size < 6.103515625e-05f ? __float_as_uint(size + 128.0f) - __float_as_uint(128.0f)
                                                      : rounded(__float_as_uint(size), 21) - (112u << 2);
        return static_cast<Code>(code | sign);
    }
};

// Symmetric int8: codes from -127 to 127. The format cannot represent NaN; a NaN becomes 0.
struct ToInt8 {
    using Code = uint8_t;
    static __device__ __forceinline__ Code encode(float x) {
        const float clamped = x != x ? 0.0f : fmaxf(-127.0f, fminf(x, 127.0f));
        // Adding 1.5 * 2^23, where floats are 1 apart, rounds to an integer and puts the code into the last byte.
        return static_cast<Code>(__float_as_uint(clamped + 12582912.0f));
    }
};

}  // namespace pav2
