// Chooses the thread that runs next, and tells the checks where threads meet.
#pragma once
#include "findings.h"
#if SIMT_CHECKED
#include "shadow.h"
#endif

namespace simt {
inline namespace SIMT_ABI {

#if SIMT_CHECKED
inline void warp_together(Warp& warp, unsigned index) {
    settle(index);
    warp.epoch = warp.epoch + 1;
}
// Called when all lanes of `mask` have met. The policy decides whether that orders their accesses.
inline void lanes_met(Warp& warp, unsigned index, Mask mask, Collective kind) {
    if (mask == warp.live) warp_together(warp, index);
    const WarpOrder order = machine.policy.warp_order;
    if (order == WarpOrder::syncthreads || (order == WarpOrder::syncwarp && kind != Collective::sync)) return;
    const uint32_t tick = ++timekeeper.now;
    timekeeper.handover.share(index * SIMT_WARP_SIZE, mask);
    if (mask == warp.present) {
        warp.sync_tick = tick;
        return;
    }
    if (warp.heard.empty()) warp.heard.resize(64 * 64);
    uint32_t joined[64] = {};
    for (Mask m = mask; m; m &= m - 1) {
        const uint32_t* row = &warp.heard[(size_t)__builtin_ctzll(m) * 64];
        for (int b = 0; b < 64; b++) joined[b] = std::max(joined[b], row[b]);
    }
    for (Mask m = mask; m; m &= m - 1) joined[__builtin_ctzll(m)] = tick;
    for (Mask m = mask; m; m &= m - 1)
        std::copy(joined, joined + 64, &warp.heard[(size_t)__builtin_ctzll(m) * 64]);
}
inline void block_together() {
    for (unsigned w = 0; w < machine.warps; w++) warp_together(machine.warp[w], w);
    timekeeper.barrier = ++timekeeper.now;
}
#else
inline void lanes_met(Warp&, unsigned, Mask, Collective) {}
inline void block_together() {}
#endif

inline unsigned pick(Mask ready) {
    switch (machine.policy.lane_order) {
        case Order::ascending: return (unsigned)__builtin_ctzll(ready);
        case Order::descending: return 63 - (unsigned)__builtin_clzll(ready);
        case Order::random: break;
    }
    // The first ready lane at or after a random one: lanes after a gap are more likely, but any order can occur.
    const Mask later = ready & ~0ull << (random_bits() >> 32) % SIMT_WARP_SIZE;
    return (unsigned)__builtin_ctzll(later ? later : ready);
}

inline Lane* next_lane(unsigned warp) {
    const unsigned n = machine.warps;
    const bool down = machine.policy.lane_order == Order::descending;
    if (machine.policy.lane_order == Order::random) warp = (unsigned)((random_bits() >> 32) * n >> 32);
    for (unsigned k = 0; k < n; k++) {
        const Mask ready = machine.warp[warp].ready;
        if (ready) return &machine.lanes[warp * SIMT_WARP_SIZE + pick(ready)];
        if (down)
            warp = warp ? warp - 1 : n - 1;
        else if (++warp == n)
            warp = 0;
    }
    return nullptr;
}

inline void switch_to(Lane& lane) {
    Lane& from = *current;
    machine.totals.switches++;
    current = &lane;
    switch_fiber(from.fiber, lane.fiber);
}

// Leaves the launch and does not return. The threads' stacks are discarded without unwinding.
[[noreturn]] inline void stop_launch(int error) {
    machine.error = error;
    machine.fibers = 0;
    Lane& from = *current;
    current = nullptr;
    switch_fiber(from.fiber, machine.host);
    __builtin_unreachable();
}

void report_deadlock();

// A thread that waits for another thread may repeat an atomic that changes nothing. At the second such atomic on the
// same word, this thread yields to all other threads that can run.
void spun(const volatile void* address) {
    if (!current) return;
    if (current->spun_at != address) {
        current->spun_at = address;
        return;
    }
    for (unsigned i = 1; i < machine.threads; i++) {
        Lane& lane = machine.lanes[(current->flat + i) % machine.threads];
        if (warp_of(lane).ready & bit_of(lane)) return switch_to(lane);
    }
}

// Switches to other threads until one of them makes this thread ready again.
inline void give_way() {
    Lane* next = next_lane(current->warp);
    if (!next) {
        report_deadlock();
        stop_launch(cudaErrorLaunchTimeout);
    }
    if (next != current) switch_to(*next);
}

}  // namespace SIMT_ABI
}  // namespace simt
