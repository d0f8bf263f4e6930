// Ordering within a block by fences and atomics, as through a lock or a flag (release and acquire).
//
// "Knowledge" of a thread is the set of accesses, its own and those of other threads, that are ordered before its next
// access. A thread that calls a fence and then an atomic leaves its knowledge at the fence with the atomic's word. A
// thread with a later atomic at that word adds it to its own knowledge.
#pragma once
#include <algorithm>
#include <bitset>
#include <unordered_map>
#include <vector>
#include "machine.h"

namespace simt {
inline namespace SIMT_ABI {

// For each thread of the block, a tick: its accesses before that tick are known. Empty if nothing is known.
using Knowledge = std::vector<uint32_t>;

inline void learn(Knowledge& mine, const Knowledge& other) {
    if (other.empty()) return;
    if (mine.empty()) mine.resize(machine.threads);
    for (unsigned i = 0; i < machine.threads; i++) mine[i] = std::max(mine[i], other[i]);
}

struct Handover {
    Knowledge fences;             // the tick of each thread's last fence; empty if none has fenced in this block
    std::vector<Knowledge> of;    // what each thread knows
    // The knowledge left at each word. Up to most_words words have their own place; all others share one.
    static constexpr size_t most_words = 1 << 14;
    std::unordered_map<uintptr_t, Knowledge> at;
    std::unordered_map<uintptr_t, std::bitset<max_threads>> visitors;  // threads with an atomic at a word

    void begin_block() {
        visitors.clear();
        if (fences.empty()) return;
        fences.clear();
        of.clear();
        at.clear();
    }
    void fence(unsigned thread, uint32_t tick) {
        if (fences.empty()) fences.resize(machine.threads), of.resize(machine.threads);
        fences[thread] = tick;
    }
    // `heard`: the tick before which each lane of the thread's warp has synchronized with the thread.
    template <class Heard>
    void meet(uintptr_t address, const Lane& me, Heard heard) {
        if (visitors.size() < most_words) visitors[address].set(me.flat);
        if (fences.empty()) return;
        auto left = at.find(address);
        if (left == at.end() && at.size() >= most_words) left = at.find(address = 0);
        if (left != at.end()) learn(of[me.flat], left->second);
        const uint32_t fence = fences[me.flat];
        if (!fence) return;
        Knowledge& here = at[address];
        here.resize(machine.threads);
        learn(here, of[me.flat]);
        here[me.flat] = std::max(here[me.flat], fence);
        const unsigned first = me.warp * SIMT_WARP_SIZE;
        for (unsigned i = 0; i < SIMT_WARP_SIZE && first + i < machine.threads; i++)
            here[first + i] = std::max(here[first + i], std::min(heard(i), fence));
    }
    // Call this when lanes of a warp have met in a call that orders their accesses.
    void share(unsigned first, Mask lanes) {
        if (fences.empty()) return;
        Knowledge all;
        for (Mask m = lanes; m; m &= m - 1) learn(all, of[first + (unsigned)__builtin_ctzll(m)]);
        if (all.empty()) return;
        for (Mask m = lanes; m; m &= m - 1) of[first + (unsigned)__builtin_ctzll(m)] = all;
    }
    bool knows(unsigned thread, unsigned other, uint32_t tick) const {
        return !fences.empty() && !of[thread].empty() && tick < of[thread][other];
    }
    bool share_a_word(unsigned a, unsigned b) const {
        for (const auto& word : visitors)
            if (word.second[a] && word.second[b]) return true;
        return false;
    }
};

}  // namespace SIMT_ABI
}  // namespace simt
