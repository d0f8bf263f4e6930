// Atomic read-modify-write operations.
//
// A thread is never interrupted between a load and a store, so a plain read and write is atomic here. The checked
// build sees the access. It conflicts with plain accesses, but not with other atomics.
#pragma once
#include <type_traits>
#include "abi.h"

namespace simt {
inline namespace SIMT_ABI {

template <class T>
T wrapping_add(T a, T b) {
    using U = std::make_unsigned_t<T>;
    return (T)((U)a + (U)b);
}
inline float wrapping_add(float a, float b) { return a + b; }
inline double wrapping_add(double a, double b) { return a + b; }

}  // namespace SIMT_ABI
}  // namespace simt

#if SIMT_CHECKED
#define SIMT_NOTE_ATOMIC(address, T) ::simt::atomic_access(address, sizeof(T), __builtin_return_address(0))
#else
#define SIMT_NOTE_ATOMIC(address, T) (void)0
#endif

// WAITS: whether kernels may repeat this atomic to wait for a lock or a flag. If it changes nothing, the thread yields.
#define SIMT_ATOMIC(NAME, T, WAITS, EXPRESSION)               \
    SIMT_UNSEEN inline T NAME(T* address, T value) {          \
        SIMT_NOTE_ATOMIC(address, T);                         \
        const T old = *address;                               \
        *address = EXPRESSION;                                \
        if (WAITS && *address == old) simt::spun(address);    \
        return old;                                           \
    }
#define SIMT_ATOMIC_INTEGERS(NAME, WAITS, EXPRESSION) \
    SIMT_ATOMIC(NAME, int, WAITS, EXPRESSION)         \
    SIMT_ATOMIC(NAME, unsigned, WAITS, EXPRESSION)    \
    SIMT_ATOMIC(NAME, long long, WAITS, EXPRESSION)   \
    SIMT_ATOMIC(NAME, unsigned long long, WAITS, EXPRESSION)

SIMT_ATOMIC_INTEGERS(atomicAdd, true, simt::wrapping_add(old, value))
SIMT_ATOMIC(atomicAdd, float, true, old + value)
SIMT_ATOMIC(atomicAdd, double, true, old + value)
SIMT_ATOMIC(atomicSub, int, false, simt::wrapping_add(old, simt::wrapping_add(~value, 1)))
SIMT_ATOMIC(atomicSub, unsigned, false, old - value)
SIMT_ATOMIC_INTEGERS(atomicMin, false, value < old ? value : old)
SIMT_ATOMIC_INTEGERS(atomicMax, false, old < value ? value : old)
SIMT_ATOMIC_INTEGERS(atomicAnd, false, old& value)
SIMT_ATOMIC_INTEGERS(atomicOr, true, old | value)
SIMT_ATOMIC_INTEGERS(atomicXor, false, old ^ value)
SIMT_ATOMIC_INTEGERS(atomicExch, true, value)
SIMT_ATOMIC(atomicExch, float, true, value)
SIMT_ATOMIC(atomicInc, unsigned, false, old >= value ? 0 : old + 1)
SIMT_ATOMIC(atomicDec, unsigned, false, old == 0 || old > value ? value : old - 1)

#undef SIMT_ATOMIC
#undef SIMT_ATOMIC_INTEGERS

#define SIMT_COMPARE_AND_SWAP(T)                                  \
    SIMT_UNSEEN inline T atomicCAS(T* address, T expected, T value) { \
        SIMT_NOTE_ATOMIC(address, T);                             \
        const T old = *address;                                   \
        if (old == expected)                                      \
            *address = value;                                     \
        else                                                      \
            simt::spun(address);                                  \
        return old;                                               \
    }
SIMT_COMPARE_AND_SWAP(int)
SIMT_COMPARE_AND_SWAP(unsigned)
SIMT_COMPARE_AND_SWAP(long long)
SIMT_COMPARE_AND_SWAP(unsigned long long)
SIMT_COMPARE_AND_SWAP(unsigned short)
#undef SIMT_COMPARE_AND_SWAP
