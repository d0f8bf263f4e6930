// CUDA's vector types and their make_ functions.
//
// Plain aggregates with CUDA's alignment. Copying one is one access of its whole size in the checked build, because
// that build is compiled without scalar replacement of aggregates (-fno-tree-sra).
#pragma once
#include "abi.h"

#define SIMT_VECTOR1(NAME, SCALAR)                              \
    struct NAME {                                               \
        SCALAR x;                                               \
    };                                                          \
    inline constexpr NAME make_##NAME(SCALAR x) { return {x}; }
#define SIMT_VECTOR2(NAME, SCALAR, ALIGNMENT)                             \
    struct alignas(ALIGNMENT) NAME {                                      \
        SCALAR x, y;                                                      \
    };                                                                    \
    inline constexpr NAME make_##NAME(SCALAR x, SCALAR y) { return {x, y}; }
#define SIMT_VECTOR3(NAME, SCALAR)                                                     \
    struct NAME {                                                                      \
        SCALAR x, y, z;                                                                \
    };                                                                                 \
    inline constexpr NAME make_##NAME(SCALAR x, SCALAR y, SCALAR z) { return {x, y, z}; }
#define SIMT_VECTOR4(NAME, SCALAR, ALIGNMENT)                                                       \
    struct alignas(ALIGNMENT) NAME {                                                                \
        SCALAR x, y, z, w;                                                                          \
    };                                                                                              \
    inline constexpr NAME make_##NAME(SCALAR x, SCALAR y, SCALAR z, SCALAR w) { return {x, y, z, w}; }

SIMT_VECTOR1(char1, signed char)
SIMT_VECTOR2(char2, signed char, 2)
SIMT_VECTOR3(char3, signed char)
SIMT_VECTOR4(char4, signed char, 4)
SIMT_VECTOR1(uchar1, unsigned char)
SIMT_VECTOR2(uchar2, unsigned char, 2)
SIMT_VECTOR3(uchar3, unsigned char)
SIMT_VECTOR4(uchar4, unsigned char, 4)
SIMT_VECTOR1(short1, short)
SIMT_VECTOR2(short2, short, 4)
SIMT_VECTOR3(short3, short)
SIMT_VECTOR4(short4, short, 8)
SIMT_VECTOR1(ushort1, unsigned short)
SIMT_VECTOR2(ushort2, unsigned short, 4)
SIMT_VECTOR3(ushort3, unsigned short)
SIMT_VECTOR4(ushort4, unsigned short, 8)
SIMT_VECTOR1(int1, int)
SIMT_VECTOR2(int2, int, 8)
SIMT_VECTOR3(int3, int)
SIMT_VECTOR4(int4, int, 16)
SIMT_VECTOR1(uint1, unsigned int)
SIMT_VECTOR2(uint2, unsigned int, 8)
SIMT_VECTOR4(uint4, unsigned int, 16)
SIMT_VECTOR1(long1, long)
SIMT_VECTOR2(long2, long, 16)
SIMT_VECTOR3(long3, long)
SIMT_VECTOR4(long4, long, 16)
SIMT_VECTOR1(ulong1, unsigned long)
SIMT_VECTOR2(ulong2, unsigned long, 16)
SIMT_VECTOR3(ulong3, unsigned long)
SIMT_VECTOR4(ulong4, unsigned long, 16)
SIMT_VECTOR1(longlong1, long long)
SIMT_VECTOR2(longlong2, long long, 16)
SIMT_VECTOR3(longlong3, long long)
SIMT_VECTOR4(longlong4, long long, 16)
SIMT_VECTOR1(ulonglong1, unsigned long long)
SIMT_VECTOR2(ulonglong2, unsigned long long, 16)
SIMT_VECTOR3(ulonglong3, unsigned long long)
SIMT_VECTOR4(ulonglong4, unsigned long long, 16)
SIMT_VECTOR1(float1, float)
SIMT_VECTOR2(float2, float, 8)
SIMT_VECTOR3(float3, float)
SIMT_VECTOR4(float4, float, 16)
SIMT_VECTOR1(double1, double)
SIMT_VECTOR2(double2, double, 16)
SIMT_VECTOR3(double3, double)
SIMT_VECTOR4(double4, double, 16)
inline constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

#undef SIMT_VECTOR1
#undef SIMT_VECTOR2
#undef SIMT_VECTOR3
#undef SIMT_VECTOR4
