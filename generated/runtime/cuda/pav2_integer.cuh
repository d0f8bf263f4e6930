// Integer division and remainder as Python defines them: the quotient is rounded down, and the remainder has the sign
// of the divisor. C rounds the quotient towards zero instead. The divisor must not be 0.
#pragma once

namespace pav2 {

__device__ __forceinline__ int floor_div(int a, int b) {
    const int quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

__device__ __forceinline__ int floor_mod(int a, int b) {
    const int rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace pav2
