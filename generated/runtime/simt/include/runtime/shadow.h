// Records the last accesses to each byte, and finds races and reads of shared memory that has not been written.
//
// Time is a counter of synchronization points ("ticks"). A record tells the time, the thread and the site of an
// access. Two accesses of different threads are ordered if a barrier (or what the policy accepts within a
// warp) lies between them. Words of four bytes share a record until parts of them are accessed alone.
#pragma once
#include <algorithm>
#include <array>
#include <bitset>
#include <unordered_map>
#include "handover.h"
#include "regions.h"
#include "traffic.h"

namespace simt {
inline namespace SIMT_ABI {

// tick (32 bits), site (22 bits), thread (10 bits); 0 is none.
struct Record {
    u64 bits = 0;
    Record() = default;
    Record(uint32_t tick, unsigned site, unsigned thread)
        : bits((u64)tick << 32 | (u64)(site & 0x3fffff) << 10 | thread) {}
    uint32_t tick() const { return (uint32_t)(bits >> 32); }
    unsigned site() const { return bits >> 10 & 0x3fffff; }
    unsigned thread() const { return bits & 1023; }
};

// Plain accesses to a word: the last write and up to three reads after it. The reads are the last one, the one before
// it by another lane of the same warp, and one by another warp or block.
struct Cell {
    Record write, read, sibling, stranger;
};
// Atomics since the last plain write: the last one, and the last one before it by another thread.
struct Atomics {
    Record last, other;
};

struct Shadow {
    static constexpr size_t words = 1024;
    struct Page {
        std::array<Cell, words> word;
        std::unique_ptr<std::array<Cell, 4 * words>> byte;
        std::bitset<words> split;
        std::unique_ptr<std::unordered_map<size_t, Atomics>> atomics;  // by byte
    };
    std::vector<std::unique_ptr<Page>> pages;
    Page& page(size_t word) {
        const size_t i = word / words;
        return i < pages.size() && pages[i] ? *pages[i] : make(i);
    }
    __attribute__((noinline)) Page& make(size_t i) {
        if (i >= pages.size()) pages.resize(i + 1);
        pages[i] = std::make_unique<Page>();
        return *pages[i];
    }
};

// Ticks of the launch, and the order of blocks that atomics establish.
struct Clock {
    uint32_t now = 1, launch = 1, block = 1, barrier = 1;
    std::vector<uint32_t> block_start;                          // of each block run so far
    std::vector<u64> block_index;                               // its linear index
    bool fenced = false;                                        // __threadfence was called in this block
    std::unordered_map<uintptr_t, std::vector<unsigned>> published;  // atomic's address: blocks that used it
    std::unordered_map<uintptr_t, size_t> seen;                 // number of `published` blocks that this block has met
    std::vector<bool> acquired;                                 // blocks ordered before this one
    Handover handover;                                          // within the block

    void begin_launch() {
        launch = block = barrier = ++now;
        block_start.clear();
        block_index.clear();
        published.clear();
    }
    void begin_block(u64 linear) {
        block = barrier = ++now;
        block_start.push_back(now);
        block_index.push_back(linear);
        fenced = false;
        seen.clear();
        acquired.clear();
        handover.begin_block();
    }
    size_t block_of(uint32_t tick) const {
        return (size_t)(std::upper_bound(block_start.begin(), block_start.end(), tick) - block_start.begin()) - 1;
    }
    // A later atomic at the same address is ordered after the accesses that were fenced before this atomic.
    void meet(uintptr_t address) {
        std::vector<unsigned>& blocks = published[address];
        const unsigned me = (unsigned)block_start.size() - 1;
        for (size_t& i = seen[address]; i < blocks.size(); i++) {
            if (acquired.size() <= me) acquired.resize(me + 1);
            acquired[blocks[i]] = true;
        }
        if (fenced && (blocks.empty() || blocks.back() != me)) blocks.push_back(me);
    }
    bool has_acquired(uint32_t tick) const {
        const size_t b = block_of(tick);
        return b < acquired.size() && acquired[b];
    }
};
static Clock timekeeper;

inline uint32_t heard_of(const Warp& warp, unsigned lane, unsigned other) {
    return std::max(warp.sync_tick, warp.heard.empty() ? 0 : warp.heard[lane * 64 + other]);
}

// Every block has its own shared memory.
inline bool ordered(Record r, Space space, const Lane& me) {
    const Clock& c = timekeeper;
    const uint32_t tick = r.tick();
    if (tick < c.barrier) return space == Space::shared || tick >= c.block || tick < c.launch || c.has_acquired(tick);
    const unsigned other = r.thread();
    if (other == me.flat) return true;
    if (c.handover.knows(me.flat, other, tick)) return true;
    if (other / SIMT_WARP_SIZE != me.warp) return false;
    return tick < heard_of(machine.warp[me.warp], me.lane, other % SIMT_WARP_SIZE);
}

struct Visit {
    Region& region;
    size_t offset;
    unsigned size;
    Operation operation;
    Site& site;
    Lane& lane;
    Record record;
    bool unwritten;  // some bytes that were read have not been written in this block
};

inline Place place_of(Record other, Operation operation, uintptr_t pc) {
    Place p = place(text("%s before it", operation_names[(int)operation]), pc);
    p.in_block = true;
    p.block = other.tick() >= timekeeper.block
                  ? machine.block_index
                  : block_at(timekeeper.block_index[timekeeper.block_of(other.tick())]);
    p.threads = thread_name(other.thread());
    return p;
}

constexpr const char* within_warp = "__syncwarp() between the two";

// The call that would order two accesses.
inline const char* advice(const Lane& me, Record other) {
    if (other.tick() < timekeeper.block)
        return "blocks of a launch are independent, or both use atomics, or __threadfence() and an atomic lie "
               "between";
    if (timekeeper.handover.share_a_word(me.flat, other.thread()))
        return "__threadfence_block() before the atomic that hands over, if a lock or a flag orders the two; "
               "otherwise __syncthreads() between them";
    const bool warp = other.thread() / SIMT_WARP_SIZE == me.warp;
    return warp && machine.policy.warp_order != WarpOrder::syncthreads ? within_warp : "__syncthreads() between the two";
}

__attribute__((noinline)) inline void report_race(const Visit& v, Record other, Operation earlier) {
    Site& site = *sites.list[other.site()];
    const FindingKey key{"race", v.site.pc, site.pc, &v.region};
    if (findings.repeated(key)) {  // __syncwarp may be enough for one pair of threads, but not for the next
        Finding& known = findings.list[findings.latest];
        if (known.expected == within_warp) known.expected = advice(v.lane, other);
        return;
    }
    Finding& f = findings.add(key, "race", text("two threads touch '%s' with no order between them",
                                                v.region.name.c_str()));
    f.buffer = v.region.name;
    f.offset = (long long)v.offset;
    f.places.push_back(by(place(text("%s of %u bytes", operation_names[(int)v.operation], v.size), v.site.pc), v.lane));
    f.places.push_back(place_of(other, earlier, site.pc));
    f.expected = advice(v.lane, other);
}

inline bool check_against(Record r, Operation what, const Visit& v) {
    if (!r.bits || ordered(r, v.region.space, v.lane)) return true;
    report_race(v, r, what);
    return false;
}

// Forgets the readers that no later access can conflict with.
inline void remember_reader(Cell& cell, Record reader, const Lane& me) {
    const Clock& c = timekeeper;
    const bool foreign = reader.tick() < c.block;
    if (!foreign && reader.thread() / SIMT_WARP_SIZE == me.warp)
        cell.sibling = reader;
    else if (foreign || cell.stranger.tick() < c.launch || cell.stranger.tick() >= c.block)
        cell.stranger = reader;
}

inline void read_cell(Cell& cell, Visit& v) {
    const Clock& c = timekeeper;
    const bool shared = v.region.space == Space::shared;
    const uint32_t settled = shared ? c.barrier : c.launch;  // earlier accesses are ordered
    const uint32_t written = cell.write.tick();
    if (written < c.block) v.unwritten = true;
    if (written >= settled) check_against(cell.write, Operation::store, v);
    const Record r = cell.read;
    if (r.tick() >= settled && (r.thread() != v.lane.flat || r.tick() < c.block)) remember_reader(cell, r, v.lane);
    cell.read = v.record;
}

// One finding is enough for all the reads of a word.
inline void check_against_reads(const Cell& cell, const Visit& v) {
    check_against(cell.read, Operation::load, v) && check_against(cell.sibling, Operation::load, v) &&
        check_against(cell.stranger, Operation::load, v);
}

// Checks an atomic. It orders nothing itself, so the records of earlier plain accesses stay.
inline void update_cell(Cell& cell, Visit& v) {
    if (cell.write.tick() < timekeeper.block) v.unwritten = true;
    check_against(cell.write, Operation::store, v);
    check_against_reads(cell, v);
}

inline void write_cell(Cell& cell, Visit& v) {
    check_against(cell.write, Operation::store, v);
    check_against_reads(cell, v);
    cell = Cell();
    cell.write = v.record;
}

// Checks an access against earlier atomics to its bytes. `unwritten` is the value that v.unwritten had before these
// bytes. It is restored if an atomic of this block has written them.
__attribute__((noinline)) inline void meet_atomics(Shadow::Page& page, size_t from, size_t to, bool unwritten,
                                                   Visit& v) {
    if (!page.atomics) page.atomics = std::make_unique<std::unordered_map<size_t, Atomics>>();
    for (size_t byte = from; byte < to; byte++) {
        auto found = page.atomics->find(byte);
        if (found != page.atomics->end()) {
            const Atomics& a = found->second;
            if (a.last.tick() >= timekeeper.block) v.unwritten = unwritten;
            if (v.operation != Operation::atomic) {
                check_against(a.last, Operation::atomic, v);
                check_against(a.other, Operation::atomic, v);
            }
            if (v.operation == Operation::store) page.atomics->erase(found);
        }
        if (v.operation == Operation::atomic) {
            Atomics& a = (*page.atomics)[byte];
            if (a.last.thread() != v.lane.flat || a.last.tick() < timekeeper.block) a.other = a.last;
            a.last = v.record;
        }
    }
}

// For a word whose bytes are accessed separately: each byte has its own cell.
template <void (*touch)(Cell&, Visit&)>
__attribute__((noinline)) void visit_bytes(Shadow::Page& page, size_t word, Visit& v) {
    const size_t i = word % Shadow::words, end = v.offset + v.size;
    if (!page.byte) page.byte = std::make_unique<std::array<Cell, 4 * Shadow::words>>();
    Cell* bytes = &(*page.byte)[4 * i];
    if (!page.split[i]) std::fill(bytes, bytes + 4, page.word[i]);
    for (size_t b = std::max(v.offset, word * 4); b < std::min(end, word * 4 + 4); b++) touch(bytes[b % 4], v);
    const bool whole = v.offset <= word * 4 && word * 4 + 4 <= end;
    page.split[i] = !whole || v.operation != Operation::store;
    if (!page.split[i]) page.word[i] = bytes[0];
}

template <void (*touch)(Cell&, Visit&)>
inline void visit_words(Visit& v) {
    const size_t end = v.offset + v.size;
    for (size_t word = v.offset / 4; word * 4 < end; word++) {
        Shadow::Page& page = v.region.shadow->page(word);
        const size_t i = word % Shadow::words;
        const bool unwritten = v.unwritten;
        if (v.offset <= word * 4 && word * 4 + 4 <= end && !page.split[i])
            touch(page.word[i], v);
        else
            visit_bytes<touch>(page, word, v);
        if (page.atomics || v.operation == Operation::atomic)
            meet_atomics(page, std::max(v.offset, word * 4), std::min(end, word * 4 + 4), unwritten, v);
    }
}

inline void visit(Visit& v) {
    if (!v.region.shadow) v.region.shadow = std::make_shared<Shadow>();
    switch (v.operation) {
        case Operation::load: return visit_words<read_cell>(v);
        case Operation::store: return visit_words<write_cell>(v);
        case Operation::atomic: return visit_words<update_cell>(v);
    }
}

}  // namespace SIMT_ABI
}  // namespace simt
