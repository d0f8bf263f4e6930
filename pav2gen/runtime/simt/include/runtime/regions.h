// The memory that a kernel may touch: registered buffers, shared arrays, the library's own variables.
#pragma once
#include <sys/mman.h>
#include <deque>
#include <map>
#include <memory>
#include "elf.h"
#include "findings.h"

namespace simt {
inline namespace SIMT_ABI {

struct Shadow;

enum class Space { global, shared };

// An array of zeros from calloc. Its pages take no memory until they are written.
template <class T>
struct Zeroed {
    using value_type = T;
    Zeroed() = default;
    template <class U>
    Zeroed(const Zeroed<U>&) {}
    T* allocate(size_t n) {
        if (void* p = calloc(n, sizeof(T))) return static_cast<T*>(p);
        throw std::bad_alloc();
    }
    void deallocate(T* p, size_t) { free(p); }
    template <class U>
    void construct(U*) {}
    template <class U, class... A>
    void construct(U* p, A&&... a) {
        ::new ((void*)p) U(std::forward<A>(a)...);
    }
    bool operator==(const Zeroed&) const { return true; }
    bool operator!=(const Zeroed&) const { return false; }
};
template <class T>
using Zeros = std::vector<T, Zeroed<T>>;

struct Region {
    std::string name, scope;             // scope: the function of a local variable
    uintptr_t base = 0;
    size_t size = 0;                     // 0 once it is released
    size_t full_size = 0;
    Space space = Space::global;
    bool writable = true, owned = false, released = false, dynamic = false, registered = false;
    MemoryKind kind = MemoryKind::host;  // of memory that the program allocated (owned)
    size_t mapped = 0;                   // bytes of its own pages, if it is owned
    bool exposed = true;                 // its pages can be accessed
    bool kept = false;                   // registered in an earlier session
    unsigned id = 0;
    u64 launch = 0;                      // the last launch that touched it
    Zeros<uint8_t> initialised;          // one for each byte; empty if reads before writes are not checked
    Zeros<uint64_t> read_bytes, written_bytes;  // a bit for each byte that was loaded, that was stored
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
    Region nowhere;                            // an empty region
    std::deque<Region*> freed;                 // released and still mapped, the oldest first
    size_t quarantined = 0;                    // their bytes
    size_t allocated = 0;                      // bytes that the program has allocated and not freed
    unsigned allocations = 0, exposed = 0;     // device allocations that the host could touch now

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
    // The program's allocation that contains an address, or ends less than a page before it.
    Region* owned(uintptr_t address) const {
        auto after = global.upper_bound(address);
        if (after == global.begin()) return nullptr;
        Region* r = std::prev(after)->second;
        return r->owned && address - r->base < r->mapped ? r : nullptr;
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
        if (r->owned) munmap(reinterpret_cast<void*>(r->base), r->mapped);
        r->owned = false;
    }
    // Shared arrays keep their offset in the TLS block. The address of that block depends on the OS thread.
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
    // Forgets all regions except those that the program has allocated and not freed.
    void clear() {
        std::vector<std::unique_ptr<Region>> old;
        old.swap(all);
        global.clear();
        statics.clear();
        dynamic = nullptr;
        freed.clear();
        quarantined = 0;
        for (auto& r : old) {
            if (!r->owned) continue;
            if (r->released) {
                munmap(reinterpret_cast<void*>(r->base), r->mapped);
                continue;
            }
            Region& kept = add(r->name, r->base, r->size, Space::global);
            kept.owned = kept.registered = kept.kept = true;
            kept.kind = r->kind;
            kept.mapped = r->mapped;
            kept.exposed = r->exposed;
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
