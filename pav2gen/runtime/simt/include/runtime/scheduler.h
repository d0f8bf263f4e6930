// Runs the threads of a block from start to end, and describes their state if none can continue.
#pragma once
#include "collectives.h"

namespace simt {
inline namespace SIMT_ABI {

void report_deadlock() {
    const FindingKey key{"deadlock", findings.list.size(), 0, nullptr};
    Finding& f = findings.add(key, "deadlock", "no thread of the block can go on");
    f.stopped = true;
    f.places = waiting_places(Wait::barrier, "waits at a barrier");
    for (unsigned w = 0; w < machine.warps; w++) {
        const Warp& warp = machine.warp[w];
        for (Mask open = warp.open; open; open &= open - 1) {
            const Meeting& m = warp.meetings[__builtin_ctzll(open)];
            Place p = by(place(text("waits in a %s of warp %u for %s", collective_name(m.kind), w,
                                    lanes_name(m.mask & warp.live & ~m.arrived).c_str()),
                               m.file, m.line),
                         machine.lanes[w * SIMT_WARP_SIZE]);
            ThreadSet set;
            for (Mask a = m.arrived; a; a &= a - 1)
                set.members.push_back(w * SIMT_WARP_SIZE + (unsigned)__builtin_ctzll(a));
            p.threads = set.name();
            f.places.push_back(p);
        }
    }
    if (machine.live < machine.threads) f.what += "; " + finished_threads().name() + " returned";
    f.expected = "all threads reach the same barrier, all lanes of a mask the same call";
}

inline void finish() {
    Lane& me = *current;
    Warp& warp = warp_of(me);
    me.wait = Wait::finished;
    warp.live &= ~bit_of(me);
    warp.ready &= ~bit_of(me);
    machine.live--;
    for (Mask open = warp.open; open; open &= open - 1) {
        Meeting& m = warp.meetings[__builtin_ctzll(open)];
        if (m.arrived && m.arrived == (m.mask & warp.live)) conclude(warp, me.warp, m);
    }
    if (machine.live && machine.arrived == machine.live) release_barrier();
    if (machine.live) return give_way();
    Lane& from = me;
    current = nullptr;
    switch_fiber(from.fiber, machine.host);
}

inline void lane_main() {
    for (;;) {
        machine.launch.invoke(machine.launch.context);
        finish();  // returns here in the next block
    }
}

inline void prepare_block(u64 linear) {
    const dim3& size = machine.launch.block;
    machine.block = linear;
    machine.block_index = block_at(linear);
    machine.live = machine.threads;
    machine.arrived = 0;
    machine.count = 0;
    machine.diverged = false;
    for (unsigned w = 0; w < machine.warps; w++) {
        Warp& warp = machine.warp[w];
        const unsigned lanes = std::min<unsigned>(SIMT_WARP_SIZE, machine.threads - w * SIMT_WARP_SIZE);
        warp.present = warp.live = warp.ready = lanes == 64 ? ~0ull : ((Mask)1 << lanes) - 1;
        warp.at_barrier = warp.open = 0;
    }
    for (unsigned i = 0; i < machine.threads; i++) {
        Lane& lane = machine.lanes[i];
        lane.thread = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        lane.flat = (uint16_t)i;
        lane.warp = (uint16_t)(i / SIMT_WARP_SIZE);
        lane.lane = (uint16_t)(i % SIMT_WARP_SIZE);
        lane.wait = Wait::none;
        lane.spun_at = nullptr;
    }
}

// Keeps the stacks of the largest block so far. Each stack needs two mappings, and a process can have about 65,000.
inline bool make_stacks() {
    if (machine.stacks.asked == machine.policy.stack_bytes && machine.stacks.count >= machine.threads) return true;
    machine.fibers = 0;
    return machine.stacks.allocate(machine.threads, machine.policy.stack_bytes);
}

inline void prepare_fibers() {
    for (; machine.fibers < machine.threads; machine.fibers++) {
        Lane& lane = machine.lanes[machine.fibers];
        char *low = machine.stacks.low(machine.fibers), *high = machine.stacks.high(machine.fibers);
        lane.stack_low = reinterpret_cast<uintptr_t>(low);
        lane.stack_size = (size_t)(high - low);
        start_fiber(lane.fiber, low, high, lane_main);
    }
}

uint3 thread_index() { return current ? current->thread : uint3{0, 0, 0}; }
uint3 block_index() { return current ? machine.block_index : uint3{0, 0, 0}; }
dim3 block_dimensions() { return machine.launch.block; }
dim3 grid_dimensions() { return machine.launch.grid; }

}  // namespace SIMT_ABI
}  // namespace simt
