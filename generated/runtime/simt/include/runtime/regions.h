// The memory that a kernel may touch: registered buffers, shared arrays, the library's own variables.
#pragma once
#include <map>
#include <memory>
#include "elf.h"
#include "findings.h"

namespace simt {
inline namespace SIMT_ABI {

struct Shadow;

enum class Space { global, shared };

struct Region {
    std::string name, scope;             // the scope of a variable, if that is a function
    uintptr_t base = 0;
    size_t size = 0;                     // 0 once it is released
    size_t full_size = 0;
    Space space = Space::global;
    bool writable = true, owned = false, released = false, dynamic = false, registered = false;
    bool kept = false;                   // from a session before
    unsigned id = 0;
    u64 launch = 0;                      // the last launch that touched it
    std::vector<uint8_t> initialised;    // a byte for each, where reading before writing is to be found
    std::vector<uint64_t> read_bytes, written_bytes;  // a bit for each byte that was loaded, that was stored
    std::shared_ptr<Shadow> shadow;

    bool holds(uintptr_t address, size_t bytes) const {
        const size_t offset = address - base;
        return offset < size && bytes <= size - offset;
    }
};

struct Regions {
    std::vector<std::unique_ptr<Region>> all;
    std::map<uintptr_t, Region*> global;       // registered buffers and module variables, by base
    std::vector<Region*> statics;              // by offset in the TLS block, parallel to Module::shared
    Region* dynamic = nullptr;
    Region nowhere;                            // holds nothing
    size_t quarantined = 0;
    unsigned allocations = 0;

    Region& add(std::string name, uintptr_t base, size_t size, Space space) {
        all.push_back(std::make_unique<Region>());
        Region& r = *all.back();
        r.name = std::move(name);
        r.base = base;
        r.size = r.full_size = size;
        r.space = space;
        r.id = (unsigned)all.size();
        if (space == Space::global) global[base] = &r;
        return r;
    }
    Region& add_variable(const Symbol& symbol, uintptr_t base, Space space) {
        VariableName v = variable_name(symbol.name);
        Region& r = add(std::move(v.name), base, symbol.size, space);
        r.scope = std::move(v.scope);
        return r;
    }
    Region* find(uintptr_t address) const {
        auto after = global.upper_bound(address);
        if (after == global.begin()) return nullptr;
        Region* r = std::prev(after)->second;
        return address - r->base < r->size ? r : nullptr;
    }
    Region* overlapping(uintptr_t base, size_t size) const {
        auto at = global.lower_bound(base + size);
        if (at == global.begin()) return nullptr;
        Region* r = std::prev(at)->second;
        return r->base + r->size > base ? r : nullptr;
    }
    Region* variable(uintptr_t address) {
        const Module& module = Module::self();
        const Symbol* s = module.contains(address) ? Module::at(module.objects, address) : nullptr;
        if (!s) return nullptr;
        return &add_variable(*s, s->start, Space::global);
    }
    void forget(Region* r) {
        global.erase(r->base);
        if (r->owned) free(reinterpret_cast<void*>(r->base));
        r->owned = false;
    }
    // Shared arrays keep their place in the TLS block, whose address depends on the OS thread.
    void place_shared(uintptr_t tls_base, char* dynamic_base, size_t dynamic_size) {
        const auto& symbols = Module::self().shared;
        if (statics.empty())
            for (const Symbol& s : symbols) statics.push_back(&add_variable(s, 0, Space::shared));
        for (size_t i = 0; i < statics.size(); i++) statics[i]->base = tls_base + symbols[i].start;
        if (!dynamic) {
            dynamic = &add("dynamic shared memory", 0, 0, Space::shared);
            dynamic->dynamic = true;
        }
        dynamic->base = reinterpret_cast<uintptr_t>(dynamic_base);
        dynamic->size = dynamic_size;
        dynamic->full_size = std::max(dynamic->full_size, dynamic_size);
    }
    // Forgets all but what the program has allocated and not freed.
    void clear() {
        std::vector<std::unique_ptr<Region>> old;
        old.swap(all);
        global.clear();
        statics.clear();
        dynamic = nullptr;
        quarantined = 0;
        for (auto& r : old) {
            if (!r->owned) continue;
            if (r->released) {
                free(reinterpret_cast<void*>(r->base));
                continue;
            }
            Region& kept = add(r->name, r->base, r->size, Space::global);
            kept.owned = kept.registered = kept.kept = true;
            kept.initialised.swap(r->initialised);
        }
    }
};
static Regions regions;

// "12 bytes past the end of 'partials' (4096 bytes), 20 bytes before 'out' (512 bytes)": the registered buffers below
// and above an address.
inline std::string nearest(uintptr_t address) {
    constexpr u64 far = 1 << 20;
    std::string s;
    auto after = regions.global.upper_bound(address);
    for (auto below = after; below != regions.global.begin();) {
        const Region& r = *(--below)->second;
        if (address - r.base >= r.full_size + far) break;
        if (!r.registered) continue;
        if (r.released && address - r.base < r.full_size) return text("'%s' was freed", r.name.c_str());
        if (!r.released) s = text("%zu bytes past the end of '%s' (%zu bytes)", address - r.base - r.size,
                                  r.name.c_str(), r.size);
        break;
    }
    for (; after != regions.global.end() && after->second->base - address < far; ++after) {
        const Region& r = *after->second;
        if (!r.registered || r.released) continue;
        if (!s.empty()) s += ", ";
        s += text("%zu bytes before '%s' (%zu bytes)", r.base - address, r.name.c_str(), r.size);
        break;
    }
    if (!s.empty()) return s;
    return regions.global.empty() ? "no buffer is registered" : "no registered buffer is near";
}

}  // namespace SIMT_ABI
}  // namespace simt
