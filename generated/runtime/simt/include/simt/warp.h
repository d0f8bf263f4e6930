// Barriers, shuffles, votes: operations that threads of a block or lanes of a warp do together.
#pragma once
#include <cstring>
#include <type_traits>
#include "language.h"

#define SIMT_CALL inline __attribute__((always_inline))

SIMT_CALL void __syncthreads(SIMT_HERE) { simt::barrier(simt::BarrierResult::none, 0, file, line); }
SIMT_CALL int __syncthreads_count(int predicate, SIMT_HERE) {
    return simt::barrier(simt::BarrierResult::count, predicate, file, line);
}
SIMT_CALL int __syncthreads_and(int predicate, SIMT_HERE) {
    return simt::barrier(simt::BarrierResult::conjunction, predicate, file, line);
}
SIMT_CALL int __syncthreads_or(int predicate, SIMT_HERE) {
    return simt::barrier(simt::BarrierResult::disjunction, predicate, file, line);
}
SIMT_CALL void __syncwarp(simt::Mask mask = simt::all_lanes, SIMT_HERE) {
    simt::collective(simt::Collective::sync, mask, 0, 0, 0, file, line);
}

SIMT_CALL void __threadfence() { simt::fence(true); }
SIMT_CALL void __threadfence_block() { simt::fence(false); }
SIMT_CALL void __threadfence_system() { simt::fence(true); }

namespace simt {
inline namespace SIMT_ABI {

// A lane's value as 64 bits and back; no memory is touched, so no hook fires.
template <class T>
SIMT_CALL u64 to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    static_assert(std::is_trivially_copyable<T>::value, "a shuffle moves plain values");
    u64 bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T>
SIMT_CALL T from_bits(u64 bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
SIMT_CALL int lane_index() {
    const dim3 size = block_dimensions();
    const uint3 at = thread_index();
    return ((at.z * size.y + at.y) * size.x + at.x) % SIMT_WARP_SIZE;
}
template <class T>
SIMT_CALL T shuffle(Mask mask, T value, int source, int width, const char* file, int line) {
    return from_bits<T>(collective(Collective::shuffle, mask, to_bits(value), source, width, file, line));
}
template <class T>
SIMT_CALL T reduce(Collective kind, Mask mask, T value, const char* file, int line) {
    const u64 wide = std::is_signed<T>::value ? (u64)(long long)value : (u64)value;
    return (T)collective(kind, mask, wide, 0, std::is_signed<T>::value, file, line);
}

}  // namespace SIMT_ABI
}  // namespace simt

// A width divides the warp into segments; a source outside the lane's own segment gives the lane its own value
// (for xor: only a source in a later segment does).
template <class T>
SIMT_CALL T __shfl_sync(simt::Mask mask, T value, int source, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane_index();
    return simt::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), width, file, line);
}
template <class T>
SIMT_CALL T __shfl_up_sync(simt::Mask mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane_index();
    const bool inside = (unsigned)(lane & (width - 1)) >= delta;
    return simt::shuffle(mask, value, inside ? lane - (int)delta : lane, width, file, line);
}
template <class T>
SIMT_CALL T __shfl_down_sync(simt::Mask mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane_index();
    const bool inside = (unsigned)(lane & (width - 1)) + (simt::u64)delta < (simt::u64)width;
    return simt::shuffle(mask, value, inside ? lane + (int)delta : lane, width, file, line);
}
template <class T>
SIMT_CALL T __shfl_xor_sync(simt::Mask mask, T value, int flip, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane_index(), source = lane ^ flip;
    const bool inside = source >= 0 && source <= (lane | (width - 1));
    return simt::shuffle(mask, value, inside ? source : lane, width, file, line);
}

// Votes give 32 bits at warp size 32 and 64 at 64.
using simt_ballot_t = std::conditional_t<SIMT_WARP_SIZE == 64, unsigned long long, unsigned>;
SIMT_CALL simt_ballot_t __ballot_sync(simt::Mask mask, int predicate, SIMT_HERE) {
    return (simt_ballot_t)simt::collective(simt::Collective::ballot, mask, predicate != 0, 0, 0, file, line);
}
SIMT_CALL int __any_sync(simt::Mask mask, int predicate, SIMT_HERE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
SIMT_CALL int __all_sync(simt::Mask mask, int predicate, SIMT_HERE) {
    return __ballot_sync(mask, !predicate, file, line) == 0;
}
template <class T>
SIMT_CALL simt_ballot_t __match_any_sync(simt::Mask mask, T value, SIMT_HERE) {
    return (simt_ballot_t)simt::collective(simt::Collective::match, mask, simt::to_bits(value), 0, 0, file, line);
}
SIMT_CALL simt_ballot_t __activemask() { return (simt_ballot_t)simt::active_lanes(); }

#define SIMT_REDUCE(NAME, KIND, T)                                        \
    SIMT_CALL T NAME(simt::Mask mask, T value, SIMT_HERE) {               \
        return simt::reduce(simt::Collective::KIND, mask, value, file, line); \
    }
SIMT_REDUCE(__reduce_add_sync, add, int)
SIMT_REDUCE(__reduce_add_sync, add, unsigned)
SIMT_REDUCE(__reduce_min_sync, minimum, int)
SIMT_REDUCE(__reduce_min_sync, minimum, unsigned)
SIMT_REDUCE(__reduce_max_sync, maximum, int)
SIMT_REDUCE(__reduce_max_sync, maximum, unsigned)
SIMT_REDUCE(__reduce_and_sync, bit_and, unsigned)
SIMT_REDUCE(__reduce_or_sync, bit_or, unsigned)
SIMT_REDUCE(__reduce_xor_sync, bit_xor, unsigned)
#undef SIMT_REDUCE
