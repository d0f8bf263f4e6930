// The findings of the checks: each finding once, with an example and a count.
#pragma once
#include <cstdarg>
#include <map>
#include <tuple>
#include "machine.h"

namespace simt {
inline namespace SIMT_ABI {

// One side of a finding: what happened, where in the source, in which block and by which threads.
struct Place {
    std::string role;
    uintptr_t pc = 0;  // or, if the call passed its place:
    const char* file = nullptr;
    int line = 0;
    bool in_block = false;
    uint3 block{};
    std::string threads;
};

struct Finding {
    std::string kind, what, expected, kernel, buffer;
    long long offset = -1;
    bool stopped = false;
    u64 count = 1;
    std::vector<Place> places;
};

// Two findings of the same kind at the same places in the code count as one.
using FindingKey = std::tuple<std::string, uintptr_t, uintptr_t, const void*>;

struct Findings {
    static constexpr size_t most = 1000, none = (size_t)-1;
    std::vector<Finding> list;
    size_t latest = none;  // the last one from the present launch
    std::map<FindingKey, size_t> index;

    bool repeated(const FindingKey& key) {
        auto found = index.find(key);
        if (found == index.end()) return false;
        list[found->second].count++;
        latest = found->second;
        return true;
    }
    Finding& add(const FindingKey& key, const char* kind, std::string what) {
        if (list.size() == most) list.pop_back();
        index[key] = latest = list.size();
        list.emplace_back();
        Finding& finding = list.back();
        finding.kind = kind;
        finding.what = std::move(what);
        finding.kernel = machine.kernel;
        return finding;
    }
    void clear() {
        list.clear();
        index.clear();
        latest = none;
    }
};
static Findings findings;

__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
    char buffer[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    return buffer;
}

inline std::string thread_name(unsigned flat) {
    const dim3& size = machine.launch.block;
    if (size.y == 1 && size.z == 1) return text("thread %u", flat);
    return text("thread %u (%u,%u,%u)", flat, flat % size.x, flat / size.x % size.y, flat / (size.x * size.y));
}

inline Place place(std::string role, uintptr_t pc) {
    Place p;
    p.role = std::move(role);
    p.pc = pc;
    return p;
}
inline Place place(std::string role, const char* file, int line) {
    Place p;
    p.role = std::move(role);
    p.file = file;
    p.line = line;
    return p;
}
inline Place by(Place p, const Lane& lane) {
    p.in_block = true;
    p.block = machine.block_index;
    p.threads = thread_name(lane.flat);
    return p;
}

// A set of threads, as "threads 0-31, 40".
struct ThreadSet {
    std::vector<unsigned> members;
    std::string name() const {
        std::string s = members.size() == 1 ? "thread " : "threads ";
        for (size_t i = 0, j; i < members.size(); i = j) {
            for (j = i + 1; j < members.size() && members[j] == members[j - 1] + 1;) j++;
            if (i) s += ", ";
            s += j - i > 1 ? text("%u-%u", members[i], members[j - 1]) : text("%u", members[i]);
        }
        return s;
    }
};

inline std::string lanes_name(Mask lanes) {
    ThreadSet set;
    for (unsigned i = 0; i < SIMT_WARP_SIZE; i++)
        if (lanes >> i & 1) set.members.push_back(i);
    std::string s = set.name();
    return (set.members.size() == 1 ? "lane" : "lanes") + s.substr(s.find(' '));
}

}  // namespace SIMT_ABI
}  // namespace simt
