// Counts memory traffic as a GPU would see it: it groups the accesses of a warp's lanes.
//
// Lanes run one after the other. The accesses of several lanes at the same site and the same position in the control
// flow are one access of the warp. It is counted at the next point where all lanes are together.
#pragma once
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>
#include "regions.h"

namespace simt {
inline namespace SIMT_ABI {

enum class Operation : uint8_t { load, store, atomic };
constexpr const char* operation_names[] = {"load", "store", "atomic"};

struct Site;

// The accesses of one site to one region.
struct Counter {
    Site* site;
    Region* region;
    unsigned width;
    Operation operation;
    u64 lanes = 0, bytes = 0, warps = 0;
    u64 sectors32 = 0, sectors64 = 0, sectors128 = 0;  // global memory
    u64 ideal_passes = 0, passes = 0;                  // shared memory: without bank conflicts, and with them
};

// A bit mask of the units that an access of the warp has touched in a window of memory. In global memory a window is 64
// sectors of 32 bytes. In shared memory it is the 32 banks of one row of 128 bytes, for the lanes of one pass.
struct Window {
    u64 id, bits;
    uint32_t next;
};
struct Group {
    u64 key;
    Counter* counter;
    uint32_t windows;  // first of a chain
};
// The open groups of a site in one warp, in the order of their first lane's access.
struct Stream {
    std::vector<Group> groups;
    uint32_t next[64] = {};  // for each lane, the group that it is expected to join next
    std::unordered_map<u64, uint32_t> index;
    size_t indexed = 0;
    Mask lanes = 0;  // lanes that have been here
};

struct Site {
    uintptr_t pc;
    unsigned id;
    Region* region;    // of its last access
    Counter* counter;  // of that region
    std::vector<std::unique_ptr<Counter>> counters;
    std::unique_ptr<Stream> streams[max_warps];

    Counter& counter_for(Region& r, unsigned width, Operation operation) {
        if (counter && counter->region == &r && counter->width == width) return *counter;
        for (auto& c : counters)
            if (c->region == &r && c->width == width) return *(counter = c.get());
        counters.push_back(std::make_unique<Counter>());
        counter = counters.back().get();
        counter->site = this;
        counter->region = &r;
        counter->width = width;
        counter->operation = operation;
        return *counter;
    }
};

// Sites by the return address of the hook.
struct Sites {
    struct Slot {
        uintptr_t pc;
        Site* site;
    };
    std::vector<Slot> table = std::vector<Slot>(1 << 12);
    std::vector<std::unique_ptr<Site>> list;

    static size_t hash(uintptr_t pc) { return (pc * 0x9e3779b97f4a7c15ull) >> 40; }
    Site& at(uintptr_t pc) {
        for (size_t i = hash(pc);; i++) {
            Slot& slot = table[i & (table.size() - 1)];
            if (slot.pc == pc) return *slot.site;
            if (!slot.site) return insert(slot, pc);
        }
    }
    Site& insert(Slot& slot, uintptr_t pc) {
        list.push_back(std::make_unique<Site>());
        Site* site = list.back().get();
        site->pc = pc;
        site->id = (unsigned)list.size() - 1;
        site->region = &regions.nowhere;
        site->counter = nullptr;
        slot = {pc, site};
        if (list.size() * 2 > table.size()) grow();
        return *site;
    }
    void grow() {
        table.assign(table.size() * 2, Slot{});
        for (auto& site : list) {
            size_t i = hash(site->pc);
            while (table[i & (table.size() - 1)].site) i++;
            table[i & (table.size() - 1)] = {site->pc, site.get()};
        }
    }
    void clear() {
        list.clear();
        std::fill(table.begin(), table.end(), Slot{});
    }
};
static Sites sites;

struct WarpTraffic {
    static constexpr size_t most_windows = 1 << 22;
    std::vector<Window> windows;
    std::vector<Stream*> active;
};
static WarpTraffic traffic[max_warps];

inline void mark(Group& group, std::vector<Window>& pool, u64 id, u64 bits) {
    Window* windows = pool.data();
    for (uint32_t i = group.windows; i; i = windows[i].next)
        if (windows[i].id == id) {
            windows[i].bits |= bits;
            return;
        }
    if (pool.empty()) pool.push_back({});  // index 0 ends a chain
    pool.push_back({id, bits, group.windows});
    group.windows = (uint32_t)pool.size() - 1;
}

inline uint32_t search(Stream& stream, u64 key) {
    for (; stream.indexed < stream.groups.size(); stream.indexed++)
        stream.index.emplace(stream.groups[stream.indexed].key, (uint32_t)stream.indexed);
    auto found = stream.index.find(key);
    return found == stream.index.end() ? (uint32_t)stream.groups.size() : found->second;
}

// Finds the group that a lane's access joins. Lanes usually make the same accesses in the same order, so the search
// begins at the group after the lane's last one. The first lane of a warp always adds a group.
inline Group& find_group(Stream& stream, unsigned lane, u64 key, Counter& counter) {
    std::vector<Group>& groups = stream.groups;
    const Mask me = (Mask)1 << lane;
    uint32_t at = stream.next[lane];
    if (at >= groups.size() ? stream.lanes & ~me : groups[at].key != key) at = search(stream, key);
    if (at >= groups.size()) {
        at = (uint32_t)groups.size();
        groups.push_back({key, &counter, 0});
    }
    stream.lanes |= me;
    stream.next[lane] = at + 1;
    return groups[at];
}

inline void settle_global(const Group& group, const std::vector<Window>& pool) {
    Counter& c = *group.counter;
    for (uint32_t i = group.windows; i; i = pool[i].next) {
        const u64 pairs = pool[i].bits | pool[i].bits >> 1, quads = pairs | pairs >> 2;
        c.sectors32 += (u64)__builtin_popcountll(pool[i].bits);
        c.sectors64 += (u64)__builtin_popcountll(pairs & 0x5555555555555555ull);
        c.sectors128 += (u64)__builtin_popcountll(quads & 0x1111111111111111ull);
    }
}

// Shared memory serves lanes in groups that request 128 bytes: 32 lanes of 4 bytes, or 8 lanes of 16 bytes. The number
// of passes of a group is the largest number of different words in one bank.
inline void settle_shared(const Group& group, const std::vector<Window>& pool) {
    unsigned rows[64] = {};
    bool conflicts = false;
    for (uint32_t i = group.windows; i; i = pool[i].next) conflicts |= rows[pool[i].id >> 32]++ != 0;
    Counter& c = *group.counter;
    for (unsigned served = 0; served < 64; served++) {
        if (!rows[served]) continue;
        c.ideal_passes++;
        unsigned most = 1, words[32] = {};
        for (uint32_t i = conflicts && rows[served] > 1 ? group.windows : 0; i; i = pool[i].next)
            for (u64 bits = pool[i].id >> 32 == served ? pool[i].bits : 0; bits; bits &= bits - 1)
                most = std::max(most, ++words[__builtin_ctzll(bits)]);
        c.passes += most;
    }
}

// Called at points where all lanes of a warp are together, and at the end of a block.
inline void settle(unsigned warp) {
    WarpTraffic& t = traffic[warp];
    for (Stream* stream : t.active) {
        for (const Group& group : stream->groups) {
            group.counter->warps++;
            group.counter->region->space == Space::shared ? settle_shared(group, t.windows)
                                                          : settle_global(group, t.windows);
        }
        stream->groups.clear();
        stream->index.clear();
        stream->indexed = 0;
        stream->lanes = 0;
        std::fill(stream->next, stream->next + 64, 0);
    }
    t.active.clear();
    t.windows.clear();
}

inline void count(Site& site, Operation operation, Region& region, size_t offset, unsigned size, const Lane& lane) {
    Counter& counter = site.counter_for(region, size, operation);
    counter.lanes++;
    counter.bytes += size;
    WarpTraffic& t = traffic[lane.warp];
    auto& stream = site.streams[lane.warp];
    if (!stream) stream = std::make_unique<Stream>();
    if (stream->groups.empty()) t.active.push_back(stream.get());
    Group& group = find_group(*stream, lane.lane, lane.position.key ^ (u64)region.id << 48, counter);
    if (region.space == Space::shared) {
        const size_t first = offset / 4, last = (offset + size - 1) / 4;
        const u64 served = (u64)(lane.lane * std::max(4u, size) / 128) << 32;
        const u64 banks = ((u64)2 << (last - first)) - 1;  // starting at the first
        mark(group, t.windows, served | first / 32, (uint32_t)(banks << first % 32));
        if (last / 32 != first / 32) mark(group, t.windows, served | last / 32, banks << first % 32 >> 32);
    } else {
        const size_t first = offset / 32, last = (offset + size - 1) / 32;
        mark(group, t.windows, first / 64, (u64)1 << first % 64);
        if (last != first) mark(group, t.windows, last / 64, (u64)1 << last % 64);
    }
    if (t.windows.size() > WarpTraffic::most_windows) {
        machine.totals.approximate = true;
        settle(lane.warp);
    }
}

}  // namespace SIMT_ABI
}  // namespace simt
