// Switching between the threads of a block: each runs on a stack of its own, and gives way only by a call.
//
// Assembly for x86-64 and AArch64, ucontext elsewhere or with -DSIMT_UCONTEXT.
#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstdint>

#if !defined(SIMT_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define SIMT_UCONTEXT 1
#endif

#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#else
extern "C" __attribute__((visibility("hidden"))) void simt_switch(void** save, void* load);
#endif

#if !defined(SIMT_UCONTEXT) && defined(__x86_64__)
// Saves the registers that a call must keep, stores the stack pointer at *save, continues from `load`.
asm(R"(
    .text
    .p2align 4
    .globl simt_switch
    .hidden simt_switch
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, .-simt_switch
)");
#elif !defined(SIMT_UCONTEXT)
asm(R"(
    .text
    .p2align 4
    .globl simt_switch
    .hidden simt_switch
    .type simt_switch, %function
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size simt_switch, .-simt_switch
)");
#endif

namespace simt {
inline namespace SIMT_ABI {

struct Fiber {
#ifdef SIMT_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer;
#endif
};

#ifdef SIMT_UCONTEXT
inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
inline void start_fiber(Fiber& fiber, char* low, char* high, void (*entry)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = low;
    fiber.context.uc_stack.ss_size = (size_t)(high - low);
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
}
#else
inline void switch_fiber(Fiber& from, Fiber& to) { simt_switch(&from.stack_pointer, to.stack_pointer); }
inline void start_fiber(Fiber& fiber, char*, char* high, void (*entry)()) {
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(high) & ~(uintptr_t)15);
#ifdef __x86_64__
    void** frame = top - 8;  // six registers, the entry as return address, and none above it
    for (int i = 0; i < 8; i++) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void*>(entry);
#else
    void** frame = top - 20;
    for (int i = 0; i < 20; i++) frame[i] = nullptr;
    frame[11] = reinterpret_cast<void*>(entry);  // x30
#endif
    fiber.stack_pointer = frame;
}
#endif

// Stacks of equal size, side by side, with inaccessible pages below each. Compilers for AArch64 take it that 64 KiB
// guard a stack.
struct Stacks {
    static constexpr size_t guard_bytes = 64 << 10;
    char* base = nullptr;
    size_t each = 0, count = 0, guard = 0, asked = 0;

    char* low(size_t i) const { return base + i * each + guard; }
    // Tops are staggered, or the same variable of every thread would fall into the same cache set.
    char* high(size_t i) const { return base + (i + 1) * each - (i % 31) * 1088; }
    bool in_guard(size_t i, const void* address) const {
        const char* a = static_cast<const char*>(address);
        return a >= base + i * each && a < low(i);
    }
    bool allocate(size_t number, size_t bytes) {
        release();
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        guard = std::max(guard_bytes, page);
        each = (bytes + 31 * 1088 + 2 * page - 1) / page * page + guard;
        void* memory = mmap(nullptr, number * each, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return false;
        base = static_cast<char*>(memory);
        count = number;
        asked = bytes;
        for (size_t i = 0; i < number; i++) mprotect(base + i * each, guard, PROT_NONE);
        return true;
    }
    void release() {
        if (base) munmap(base, count * each);
        base = nullptr;
        count = asked = 0;
    }
};

}  // namespace SIMT_ABI
}  // namespace simt
