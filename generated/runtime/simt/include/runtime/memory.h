// What the host API tells the checks: buffers that come and go, copies to and from them.
#pragma once
#include "run.h"

namespace simt {
inline namespace SIMT_ABI {

inline Region* register_buffer(const void* base, size_t bytes, std::string name, bool writable, bool initialised) {
    Region& r = regions.add(std::move(name), (uintptr_t)base, bytes, Space::global);
    r.writable = writable;
    r.registered = true;
    if (!initialised && SIMT_CHECKED) r.initialised.assign(bytes, 0);
    return &r;
}

void note_allocation(void* base, size_t bytes, bool initialised, const char* file, int line) {
    const char* slash = strrchr(file, '/');
    const unsigned n = ++regions.allocations;
    Region* r = register_buffer(base, bytes, text("allocation %u (%s:%d)", n, slash ? slash + 1 : file, line), true,
                                initialised);
    r->owned = true;
}

// Freed memory is kept for a while, so that a later access to it is found for what it is.
bool note_release(void* base) {
    constexpr size_t most = (size_t)64 << 20;
    auto found = regions.global.find((uintptr_t)base);
    if (found == regions.global.end() || !found->second->owned || found->second->released) return false;
    Region* r = found->second;
    r->released = true;
    r->size = 0;
    r->shadow.reset();
    r->initialised = {};
    regions.quarantined += r->full_size;
    for (size_t i = 0; i < regions.all.size() && (!SIMT_CHECKED || regions.quarantined > most); i++) {
        Region* old = regions.all[i].get();
        if (!old->released || !old->owned) continue;
        regions.quarantined -= old->full_size;
        regions.forget(old);
    }
    return true;
}

bool host_access(const void* base, size_t bytes, bool write, const char* file, int line) {
    Region* r = regions.find((uintptr_t)base);
    if (r && r->holds((uintptr_t)base, bytes)) {
        if (write && !r->initialised.empty()) memset(&r->initialised[(uintptr_t)base - r->base], 1, bytes);
        return true;
    }
    if (!r && regions.variable((uintptr_t)base)) return true;
    const FindingKey key{"out-of-bounds", (uintptr_t)file, (uintptr_t)line, nullptr};
    if (!findings.repeated(key)) {
        const std::string what =
            r ? text("%zu of %zu bytes are past the end of '%s' (%zu bytes)",
                     (uintptr_t)base + bytes - r->base - r->size, bytes, r->name.c_str(), r->size)
              : "device memory that was not allocated, " + nearest((uintptr_t)base);
        Finding& f = findings.add(key, "out-of-bounds", what);
        f.kernel.clear();
        f.places.push_back(place(text("host %s of %zu bytes", write ? "write" : "read", bytes), file, line));
        f.expected = "a range within one allocation";
        f.stopped = true;
    }
    machine.sticky = cudaErrorInvalidValue;
    return false;
}

size_t set_dynamic_limit(const void* kernel, size_t bytes) { return kernel_of(kernel, "").dynamic_limit = bytes; }
size_t static_shared_of(const void* kernel) { return kernel_of(kernel, "").own_shared; }
size_t shared_limit() { return machine.policy.shared_limit; }
int take_error(bool clear) {
    const int error = machine.sticky;
    if (clear) machine.sticky = cudaSuccess;
    return error;
}
u64 ticks() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}

}  // namespace SIMT_ABI
}  // namespace simt
