// The functions that a checked kernel calls: at accesses (-fsanitize=thread), at basic blocks
// (-fsanitize-coverage=trace-pc), and at faults of arithmetic or of an index (-fsanitize=bounds and others).
// The sanitizers' own libraries are not linked.
#pragma once
#include "check.h"

namespace simt {
inline namespace SIMT_ABI {

inline void hook(Operation op, void* address, unsigned size, void* pc) {
    if (current) check(*current, op, (uintptr_t)address, size, (uintptr_t)pc, true);
}
inline void range_hook(Operation op, void* address, size_t size, void* pc) {
    if (current) check_pieces(*current, op, (uintptr_t)address, size, (uintptr_t)pc);
}

// The beginning of every UBSan record.
struct SourceLocation {
    const char* file;
    uint32_t line, column;
};

inline void undefined(const SourceLocation* at, void* pc, const char* kind, std::string what, const char* expected) {
    if (findings.repeated({kind, (uintptr_t)at, 0, nullptr})) return;
    Finding& f = findings.add({kind, (uintptr_t)at, 0, nullptr}, kind, std::move(what));
    Place p = place("computed", at->file, (int)at->line);
    p.pc = (uintptr_t)pc;
    f.places.push_back(current ? by(p, *current) : p);
    f.expected = expected;
}
inline void overflow(const SourceLocation* at, void* pc, const char* operation) {
    if (machine.policy.integer_overflow)
        undefined(at, pc, "integer-overflow", text("a signed %s overflows", operation),
                  "an integer type wide enough for the result (the policy integer_overflow=False accepts this)");
}

}  // namespace SIMT_ABI
}  // namespace simt

#define SIMT_HOOK extern "C" __attribute__((visibility("hidden")))
#define SIMT_SITE __builtin_return_address(0)

#define SIMT_ACCESS(N)                                                                                    \
    SIMT_HOOK void __tsan_read##N(void* p) { simt::hook(simt::Operation::load, p, N, SIMT_SITE); }        \
    SIMT_HOOK void __tsan_write##N(void* p) { simt::hook(simt::Operation::store, p, N, SIMT_SITE); }      \
    SIMT_HOOK void __tsan_unaligned_read##N(void* p) {                                                    \
        simt::range_hook(simt::Operation::load, p, N, SIMT_SITE);                                         \
    }                                                                                                     \
    SIMT_HOOK void __tsan_unaligned_write##N(void* p) {                                                   \
        simt::range_hook(simt::Operation::store, p, N, SIMT_SITE);                                        \
    }                                                                                                     \
    SIMT_HOOK void __tsan_volatile_read##N(void* p) { simt::hook(simt::Operation::load, p, N, SIMT_SITE); } \
    SIMT_HOOK void __tsan_volatile_write##N(void* p) { simt::hook(simt::Operation::store, p, N, SIMT_SITE); }
SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)
SIMT_HOOK void __tsan_read_range(void* p, unsigned long n) {
    simt::range_hook(simt::Operation::load, p, n, SIMT_SITE);
}
SIMT_HOOK void __tsan_write_range(void* p, unsigned long n) {
    simt::range_hook(simt::Operation::store, p, n, SIMT_SITE);
}
SIMT_HOOK void __tsan_init() {}
SIMT_HOOK void __tsan_vptr_update(void**, void*) {}
SIMT_HOOK void __tsan_vptr_read(void**) {}
SIMT_HOOK void __tsan_func_entry(void* call) {
    if (!simt::current) return;
    simt::step(*simt::current, (uintptr_t)call);
    simt::current->position.enter((uintptr_t)call);
}
SIMT_HOOK void __tsan_func_exit() {
    if (simt::current) simt::current->position.exit();
}
SIMT_HOOK void __sanitizer_cov_trace_pc() {
    if (simt::current) simt::step(*simt::current, (uintptr_t)SIMT_SITE);
}

// Atomics of the C++ language. Host code uses them (the guard of a function's static variable is one).
#define SIMT_LANGUAGE_ATOMIC(BITS, T)                                                                        \
    SIMT_HOOK T __tsan_atomic##BITS##_load(const volatile T* a, int) {                                       \
        simt::atomic_access(a, sizeof(T), SIMT_SITE);                                                        \
        return *a;                                                                                           \
    }                                                                                                        \
    SIMT_HOOK void __tsan_atomic##BITS##_store(volatile T* a, T v, int) {                                    \
        simt::atomic_access(a, sizeof(T), SIMT_SITE);                                                        \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                        \
    SIMT_LANGUAGE_UPDATE(BITS, T, exchange, __atomic_exchange_n)                                             \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_add, __atomic_fetch_add)                                             \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_sub, __atomic_fetch_sub)                                             \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_and, __atomic_fetch_and)                                             \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_or, __atomic_fetch_or)                                               \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_xor, __atomic_fetch_xor)                                             \
    SIMT_LANGUAGE_UPDATE(BITS, T, fetch_nand, __atomic_fetch_nand)                                           \
    SIMT_HOOK int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* a, T* c, T v, int, int) {        \
        simt::atomic_access(a, sizeof(T), SIMT_SITE);                                                        \
        return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    }                                                                                                        \
    SIMT_HOOK int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* a, T* c, T v, int, int) {          \
        simt::atomic_access(a, sizeof(T), SIMT_SITE);                                                        \
        return __atomic_compare_exchange_n(a, c, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
    }
#define SIMT_LANGUAGE_UPDATE(BITS, T, NAME, BUILTIN)                       \
    SIMT_HOOK T __tsan_atomic##BITS##_##NAME(volatile T* a, T v, int) {    \
        simt::atomic_access(a, sizeof(T), SIMT_SITE);                      \
        return BUILTIN(a, v, __ATOMIC_SEQ_CST);                            \
    }
SIMT_LANGUAGE_ATOMIC(8, unsigned char)
SIMT_LANGUAGE_ATOMIC(16, unsigned short)
SIMT_LANGUAGE_ATOMIC(32, unsigned)
SIMT_LANGUAGE_ATOMIC(64, unsigned long)
SIMT_HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_HOOK void __tsan_atomic_signal_fence(int) {}

using simt::SourceLocation;
SIMT_HOOK void __ubsan_handle_out_of_bounds(const SourceLocation* at, unsigned long index) {
    simt::undefined(at, SIMT_SITE, "array-bounds", simt::text("index %ld is outside of an array", (long)index),
                    "an index below the array's declared length");
}
SIMT_HOOK void __ubsan_handle_add_overflow(const SourceLocation* at, unsigned long, unsigned long) {
    simt::overflow(at, SIMT_SITE, "addition");
}
SIMT_HOOK void __ubsan_handle_sub_overflow(const SourceLocation* at, unsigned long, unsigned long) {
    simt::overflow(at, SIMT_SITE, "subtraction");
}
SIMT_HOOK void __ubsan_handle_mul_overflow(const SourceLocation* at, unsigned long, unsigned long) {
    simt::overflow(at, SIMT_SITE, "multiplication");
}
SIMT_HOOK void __ubsan_handle_negate_overflow(const SourceLocation* at, unsigned long) {
    simt::overflow(at, SIMT_SITE, "negation");
}
SIMT_HOOK void __ubsan_handle_divrem_overflow(const SourceLocation* at, unsigned long, unsigned long) {
    simt::undefined(at, SIMT_SITE, "division", "a division by zero, or of the least integer by -1",
                    "a divisor other than zero");
}
