// A launch, from its configuration to its last block.
#pragma once
#include <numeric>
#include "fault.h"
#include "kernels.h"
#if SIMT_CHECKED
#include "check.h"
#endif

// Defined by the library if a kernel in it declares `extern __shared__` memory.
extern "C" __attribute__((weak, visibility("hidden"))) void* simt_dynamic_base(size_t* capacity) {
    *capacity = 0;
    return nullptr;
}

namespace simt {
inline namespace SIMT_ABI {

#if !SIMT_CHECKED
inline void begin_checks() {}
inline void begin_block_checks(u64) {}
inline void end_block_checks() {}
inline size_t static_shared_touched() { return 0; }
void fence(bool) {}
void atomic_access(const volatile void*, unsigned, const void*) {}
void checked_copy(void* to, const void* from, size_t bytes, const void*) { memmove(to, from, bytes); }
void checked_fill(void* to, int byte, size_t bytes, const void*) { memset(to, byte, bytes); }
#endif

// A kernel's name for a message. Without a symbol the name is "(scale)"; the result is "scale launched at k.cu:12".
inline std::string place_name(const Launch& l) {
    const std::string name = l.name ? l.name : "(a kernel)";
    return name.substr(1, name.size() - 2) + text(" launched at %s:%d", l.file, l.line);
}

inline int refuse_launch(const Launch& l, int error, std::string what, std::string expected) {
    const FindingKey key{"launch of " + what, (uintptr_t)l.file, (uintptr_t)l.line, nullptr};
    if (!findings.repeated(key)) {
        Finding& f = findings.add(key, "launch", std::move(what));
        f.places.push_back(place("launched", l.file, l.line));
        f.expected = std::move(expected);
        f.stopped = true;
    }
    return error;
}

inline int validate(const Launch& l, const Kernel& k) {
    const dim3 &g = l.grid, &b = l.block;
    const u64 threads = (u64)b.x * b.y * b.z;
    if (threads == 0 || (u64)g.x * g.y * g.z == 0)
        return refuse_launch(l, cudaErrorInvalidConfiguration, "the launch has 0 blocks or 0 threads",
                             "at least 1 block of at least 1 thread");
    if (threads > max_threads || b.z > 64)
        return refuse_launch(l, cudaErrorInvalidConfiguration,
                             text("a block of %u x %u x %u threads", b.x, b.y, b.z),
                             text("at most %u threads a block, 64 in z", max_threads));
    if (g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return refuse_launch(l, cudaErrorInvalidConfiguration, text("a grid of %u x %u x %u blocks", g.x, g.y, g.z),
                             "at most 65535 blocks in y and z");
    const size_t limit = std::max<size_t>(k.dynamic_limit, 48 << 10);
    if (l.dynamic_shared > limit || l.dynamic_shared + k.own_shared > machine.policy.shared_limit)
        return refuse_launch(l, cudaErrorInvalidValue,
                             text("%zu bytes of dynamic and %zu of static shared memory", l.dynamic_shared,
                                  k.own_shared),
                             text("at most %zu dynamic (more after cudaFuncSetAttribute), %zu in all", limit,
                                  machine.policy.shared_limit));
    return cudaSuccess;
}

inline std::vector<u64> shuffled_blocks(u64 n) {
    std::vector<u64> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (u64 i = n; i > 1; i--) std::swap(order[i - 1], order[random_bits() % i]);
    return order;
}

inline void poison(const Kernel& k, uintptr_t tls_base) {
    if (!machine.policy.poison) return;
    for (const auto& array : k.arrays) memset(reinterpret_cast<void*>(tls_base + array.first), 0xff, array.second);
    if (machine.dynamic_bytes) memset(machine.dynamic, 0xff, machine.dynamic_bytes);
}

inline void run_block(u64 linear, const Kernel& k, uintptr_t tls_base) {
    prepare_block(linear);
    prepare_fibers();
    poison(k, tls_base);
    begin_block_checks(linear);
    Lane* first = next_lane(0);
    current = first;
    switch_fiber(machine.host, first->fiber);
    if (machine.error) return;
    end_block_checks();
    machine.totals.blocks++;
    machine.totals.threads += machine.threads;
}

inline void run_blocks(const Kernel& k) {
    const uintptr_t tls_base = k.arrays.empty() ? 0 : Module::tls_base();
    const u64 n = machine.blocks;
    const Order order = machine.policy.block_order;
    const std::vector<u64> random = order == Order::random ? shuffled_blocks(n) : std::vector<u64>();
    for (u64 i = 0; i < n && !machine.error; i++)
        run_block(order == Order::ascending ? i : order == Order::descending ? n - 1 - i : random[i], k, tls_base);
}

inline void prepare_launch(const Launch& l, const Kernel& k) {
    machine.launch = l;
    machine.kernel = k.name;
    machine.error = 0;
    machine.threads = l.block.x * l.block.y * l.block.z;
    machine.warps = (machine.threads + SIMT_WARP_SIZE - 1) / SIMT_WARP_SIZE;
    machine.blocks = (u64)l.grid.x * l.grid.y * l.grid.z;
    machine.totals.launches++;
    machine.random = machine.policy.seed * 0x2545f4914f6cdd1dull + machine.totals.launches;
    machine.dynamic = static_cast<char*>(simt_dynamic_base(&machine.dynamic_capacity));
    machine.dynamic_bytes = std::min(l.dynamic_shared, machine.dynamic_capacity);
}

inline void account(Kernel& k, const Totals& before) {
    const Totals& now = machine.totals;
    k.launches++;
    k.blocks += now.blocks - before.blocks;
    k.threads += now.threads - before.threads;
    k.barriers += now.barriers - before.barriers;
    k.collectives += now.collectives - before.collectives;
    k.dynamic_shared = std::max(k.dynamic_shared, machine.launch.dynamic_shared);
    k.static_shared = std::max(k.static_shared, k.own_shared + static_shared_touched());
}

inline int run_guarded(Kernel& k) {
    const Totals before = machine.totals;
    turns.launching = thread_id();
    begin_checks();
    guard.arm();
    if (sigsetjmp(guard.escape, 1) == 0) {
        run_blocks(k);
    } else {
        machine.error = report_fault();
        machine.fibers = 0;
        current = nullptr;
    }
    guard.disarm();
    turns.launching = 0;
    hide_all();
    if (machine.error) end_block_checks();
    machine.cut_short |= machine.error != 0;
    account(k, before);
    return machine.error;
}

inline int refuse_stacks(const Launch& l) {
    return refuse_launch(l, cudaErrorMemoryAllocation,
                         text("no address space for %u stacks of %zu bytes", machine.threads,
                              machine.policy.stack_bytes),
                         "a smaller stack_bytes in the session's policy");
}

int launch(const Launch& l) {
    const Turn turn;
    if (turn.error) return turn.error;
    findings.latest = Findings::none;
    Kernel& k = kernel_of(l.kernel, place_name(l));
    int error = validate(l, k);
    if (!error) {
        prepare_launch(l, k);
        error = make_stacks() ? run_guarded(k) : refuse_stacks(l);
    }
    if (error) last_error = error;
    return error;
}

void trap(const char* file, int line) {
    if (!current) abort();
    const FindingKey key{"trap", (uintptr_t)file, (uintptr_t)line, nullptr};
    Finding& f = findings.add(key, "trap", "the kernel called __trap()");
    f.places.push_back(by(place("was called", file, line), *current));
    f.expected = "no trap";
    f.stopped = true;
    stop_launch(cudaErrorIllegalInstruction);
}

inline void fail_assertion(const char* expression, const char* file, int line) {
    Finding& f = findings.add({"assert", (uintptr_t)file, (uintptr_t)line, nullptr}, "assert",
                              text("assertion `%s' failed", expression));
    f.places.push_back(by(place("was asserted", file, line), *current));
    f.expected = "the asserted expression is true";
    f.stopped = true;
    stop_launch(cudaErrorAssert);
}

}  // namespace SIMT_ABI
}  // namespace simt
