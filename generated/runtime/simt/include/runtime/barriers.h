// __syncthreads: records which threads wait, reports those that are missing, and lets all continue.
#pragma once
#include "switching.h"

namespace simt {
inline namespace SIMT_ABI {

inline std::vector<Place> waiting_places(Wait wait, const char* role) {
    std::vector<Place> places;
    std::vector<ThreadSet> threads;
    for (unsigned i = 0; i < machine.threads; i++) {
        const Lane& lane = machine.lanes[i];
        if (lane.wait != wait) continue;
        size_t k = 0;
        while (k < places.size() && (places[k].line != lane.line || strcmp(places[k].file, lane.file) != 0)) k++;
        if (k == places.size()) {
            places.push_back(by(place(role, lane.file, lane.line), lane));
            threads.emplace_back();
        }
        threads[k].members.push_back(i);
    }
    for (size_t k = 0; k < places.size(); k++) places[k].threads = threads[k].name();
    return places;
}

inline ThreadSet finished_threads() {
    ThreadSet set;
    for (unsigned i = 0; i < machine.threads; i++)
        if (machine.lanes[i].wait == Wait::finished) set.members.push_back(i);
    return set;
}

inline void report_divergence() {
    const FindingKey key{"barrier-divergence", (uintptr_t)machine.file, (uintptr_t)machine.line, nullptr};
    if (findings.repeated(key)) return;
    Finding& f = findings.add(key, "barrier-divergence", "threads of a block met at different barriers");
    f.places = waiting_places(Wait::barrier, "waits at a barrier");
    f.expected = "all threads of a block reach the same __syncthreads()";
}

inline void report_exited_at_barrier() {
    const FindingKey key{"exited-thread", (uintptr_t)machine.file, (uintptr_t)machine.line, nullptr};
    if (findings.repeated(key)) return;
    const std::string gone = finished_threads().name();
    Finding& f = findings.add(key, "exited-thread", text("%s had returned before a barrier", gone.c_str()));
    f.places = waiting_places(Wait::barrier, "waits at a barrier");
    f.expected = "every thread of the block reaches the barrier (the policy strict_exit=False accepts this)";
}

inline void release_barrier() {
    if (machine.diverged) report_divergence();
    if (machine.live != machine.threads && machine.policy.strict_exit) report_exited_at_barrier();
    for (unsigned w = 0; w < machine.warps; w++) {
        machine.warp[w].ready |= machine.warp[w].at_barrier;
        machine.warp[w].at_barrier = 0;
    }
    block_together();
    machine.result_count = machine.count;
    machine.result_of = machine.arrived;
    machine.arrived = 0;
    machine.count = 0;
    machine.diverged = false;
    machine.totals.barriers++;
}

int barrier(BarrierResult want, int predicate, const char* file, int line) {
    if (!current) return 0;
    Lane& me = *current;
    Warp& warp = warp_of(me);
    me.wait = Wait::barrier;
    me.file = file;
    me.line = line;
    if (machine.arrived++ == 0) {
        machine.file = file;
        machine.line = line;
    } else if (line != machine.line || (file != machine.file && strcmp(file, machine.file) != 0)) {
        machine.diverged = true;
    }
    machine.count += predicate != 0;
    warp.at_barrier |= bit_of(me);
    warp.ready &= ~bit_of(me);
    if (machine.arrived == machine.live)
        release_barrier();
    else
        give_way();
    me.wait = Wait::none;
    switch (want) {
        case BarrierResult::count: return machine.result_count;
        case BarrierResult::conjunction: return machine.result_count == (int)machine.result_of;
        case BarrierResult::disjunction: return machine.result_count > 0;
        default: return 0;
    }
}

}  // namespace SIMT_ABI
}  // namespace simt
