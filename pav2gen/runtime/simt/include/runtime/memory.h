// The memory that a program allocates for the device, and the host's copies to and from it.
#pragma once
#include "host_access.h"
#include "run.h"

namespace simt {
inline namespace SIMT_ABI {

constexpr size_t device_bytes = (size_t)32 << 30;

inline Region* register_buffer(const void* base, size_t bytes, std::string name, bool writable, bool initialised) {
    Region& r = regions.add(std::move(name), (uintptr_t)base, bytes, Space::global);
    r.writable = writable;
    r.registered = true;
    if (!initialised && SIMT_CHECKED) r.initialised.resize(bytes);
    return &r;
}

// Sets the next result of cudaGetLastError.
int failed(int error) { return last_error = error; }

inline const char* base_name(const char* file) {
    const char* slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

// Adds a finding of the host's API at the line of the call. Null if the finding is known already.
inline Finding* host_finding(const char* kind, const char* call, std::string what, const char* file, int line) {
    const FindingKey key{kind, (uintptr_t)file, (uintptr_t)line, call};
    if (findings.repeated(key)) return nullptr;
    Finding& f = findings.add(key, kind, std::move(what));
    f.kernel.clear();
    f.places.push_back(place(call, file, line));
    return &f;
}

// ---- allocating and freeing
inline bool name_allocation(void* base, size_t bytes, size_t mapped, MemoryKind kind, const char* file, int line) {
    try {
        const std::string name = text("allocation %u (%s:%d)", ++regions.allocations, base_name(file), line);
        Region* r = register_buffer(base, bytes, name, true, kind != MemoryKind::device);
        r->owned = true;
        r->kind = kind;
        r->mapped = mapped;
        regions.allocated += bytes;
        if (kind == MemoryKind::device) hide(*r);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Each allocation has its own pages, with some unused bytes behind its end.
int allocate(void** pointer, size_t bytes, MemoryKind kind, const char* file, int line) {
    const Turn turn;
    if (turn.error) return turn.error;
    if (!pointer) return failed(cudaErrorInvalidValue);
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > device_bytes - regions.allocated) return failed(cudaErrorMemoryAllocation);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + 256 + page - 1) / page * page;
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    if (kind == MemoryKind::device) watch_host();
    if (!name_allocation(base, bytes, mapped, kind, file, line)) {
        munmap(base, mapped);
        return failed(cudaErrorMemoryAllocation);
    }
    *pointer = base;
    return cudaSuccess;
}

// Why a pointer can't be freed. Empty if it can.
inline std::string unfit_for_release(uintptr_t base, bool host) {
    const Region* r = regions.owned(base);
    if (!r) return "no allocation contains this address, " + nearest(base);
    if (r->released) return text("'%s' was freed before", r->name.c_str());
    if (r->base != base) return text("the address is %zu bytes after the beginning of '%s'", base - r->base,
                                     r->name.c_str());
    if (host != (r->kind == MemoryKind::host))
        return text("'%s' is memory of the %s", r->name.c_str(), host ? "device" : "host");
    return "";
}

// Freed memory keeps its addresses for a while, so that a later access is reported as an access to freed memory.
inline void retire(Region& r) {
    constexpr size_t most = (size_t)1 << 30;
    regions.allocated -= r.size;
    r.released = true;
    r.size = 0;
    r.shadow.reset();
    r.initialised = {};
    void* base = reinterpret_cast<void*>(r.base);
    mmap(base, r.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    r.exposed = false;
    regions.freed.push_back(&r);
    for (regions.quarantined += r.mapped; regions.quarantined > most; regions.freed.pop_front()) {
        regions.quarantined -= regions.freed.front()->mapped;
        regions.forget(regions.freed.front());
    }
}

int release(void* base, bool host, const char* file, int line) {
    const Turn turn;
    if (turn.error || !base) return turn.error;
    const std::string wrong = unfit_for_release((uintptr_t)base, host);
    if (wrong.empty()) return retire(*regions.owned((uintptr_t)base)), cudaSuccess;
    if (Finding* f = host_finding("invalid-free", host ? "cudaFreeHost" : "cudaFree", wrong, file, line))
        f->expected = "each pointer is freed once: by cudaFree if it is from cudaMalloc, by cudaFreeHost if it is from "
                      "cudaMallocHost";
    return failed(cudaErrorInvalidValue);
}

void memory_left(size_t* free, size_t* total) {
    *free = device_bytes - regions.allocated;
    *total = device_bytes;
}

// ---- copies
// One side of a copy or a fill: rows of `width` bytes, `pitch` bytes apart.
struct Rows {
    uintptr_t base;
    size_t pitch, width, rows;
    bool write;
    Region* region = nullptr;  // null on the host's side

    // The bytes from the first to the last; false if they exceed the address space.
    bool extent(size_t* bytes) const {
        return !__builtin_mul_overflow(rows - 1, pitch, bytes) && !__builtin_add_overflow(*bytes, width, bytes);
    }
    const char* verb() const { return write ? "write" : "read"; }
};

struct HostCall {
    const char* file;
    int line;
};

inline bool refuse_rows(const Rows& side, const char* kind, std::string what, const char* expected, HostCall at) {
    size_t bytes = 0;
    side.extent(&bytes);
    const FindingKey key{kind, (uintptr_t)at.file, (uintptr_t)at.line, nullptr};
    if (findings.repeated(key)) return false;
    Finding& f = findings.add(key, kind, std::move(what));
    f.kernel.clear();
    f.places.push_back(place(text("host %s of %zu bytes", side.verb(), bytes), at.file, at.line));
    f.expected = expected;
    f.stopped = true;
    return false;
}

inline bool check_device_side(Rows& side, HostCall at) {
    size_t bytes;
    Region* r = regions.find(side.base);
    if (!r) r = regions.variable(side.base);
    if (r && side.extent(&bytes) && r->holds(side.base, bytes)) return side.region = r;
    std::string what = !r ? "device memory that was not allocated, " + nearest(side.base)
                       : !side.extent(&bytes)
                           ? std::string("more bytes than the address space has")
                           : text("%zu of %zu bytes are past the end of '%s' (%zu bytes)",
                                  side.base + bytes - r->base - r->size, bytes, r->name.c_str(), r->size);
    return refuse_rows(side, "out-of-bounds", std::move(what), "a range within one allocation", at);
}

inline bool check_host_side(const Rows& side, HostCall at) {
    const Region* r = regions.owned(side.base);
    if (!r || r->kind != MemoryKind::device) return true;
    return refuse_rows(side, "copy-direction",
                       text("'%s' is device memory, but the copy's cudaMemcpyKind treats it as host memory",
                            r->name.c_str()),
                       "the cudaMemcpyKind for the direction of this copy, or cudaMemcpyDefault", at);
}

// Adds no finding after a stopped launch, because that launch might have written the bytes later.
inline void report_unwritten(const Rows& from, size_t offset, HostCall at) {
    if (machine.cut_short) return;
    const Region& r = *from.region;
    const FindingKey key{"uninitialised", (uintptr_t)at.file, (uintptr_t)at.line, &r};
    if (findings.repeated(key)) return;
    Finding& f = findings.add(key, "uninitialised",
                              text("bytes of '%s' are copied before they are written", r.name.c_str()));
    f.kernel.clear();
    f.places.push_back(place(text("host read of %zu bytes", from.width * from.rows), at.file, at.line));
    f.buffer = r.name;
    f.offset = (long long)offset;
    f.expected = "a store to these bytes before";
}

// A copy to the host must read written bytes. A copy between device buffers copies the record of written bytes, too.
inline void carry_initialised(const Rows& to, const Rows& from, HostCall at) {
    uint8_t* source = from.region && !from.region->initialised.empty() ? from.region->initialised.data() : nullptr;
    uint8_t* target = to.region && !to.region->initialised.empty() ? to.region->initialised.data() : nullptr;
    for (size_t row = 0; row < from.rows; row++) {
        uint8_t* s = source ? source + (from.base - from.region->base) + row * from.pitch : nullptr;
        uint8_t* t = target ? target + (to.base - to.region->base) + row * to.pitch : nullptr;
        const void* gap = s && !t ? memchr(s, 0, from.width) : nullptr;
        if (t && s) memmove(t, s, from.width);
        if (t && !s) memset(t, 1, to.width);
        if (gap) return report_unwritten(from, (size_t)(static_cast<const uint8_t*>(gap) - source), at);
    }
}

inline bool known(uintptr_t base) { return regions.find(base) || regions.owned(base); }

inline int check_copy(Rows& to, Rows& from, int kind, HostCall at) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (from.rows > 1 && (from.width > from.pitch || to.width > to.pitch)) return cudaErrorInvalidPitchValue;
    const bool anywhere = kind == cudaMemcpyDefault;
    const bool from_device = anywhere ? known(from.base)
                                      : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool to_device = anywhere ? known(to.base)
                                    : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (!(from_device ? check_device_side(from, at) : check_host_side(from, at))) return cudaErrorInvalidValue;
    if (!(to_device ? check_device_side(to, at) : check_host_side(to, at))) return cudaErrorInvalidValue;
    return cudaSuccess;
}

// While this object exists, the pages of one side of a copy are open. Other pages of the allocation stay closed.
struct Opening {
    uintptr_t low = 0;
    size_t bytes = 0;

    explicit Opening(const Rows& side) {
        if (!side.region || side.region->exposed) return;
        const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        size_t extent = 0;
        side.extent(&extent);
        low = side.base / page * page;
        bytes = (side.base + extent + page - 1) / page * page - low;
        mprotect(reinterpret_cast<void*>(low), bytes, PROT_READ | PROT_WRITE);
    }
    ~Opening() {
        if (bytes) mprotect(reinterpret_cast<void*>(low), bytes, PROT_NONE);
    }
    Opening(const Opening&) = delete;
};

int copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int kind,
              const char* file, int line) {
    const Turn turn;
    if (turn.error || width == 0 || rows == 0) return turn.error;
    Rows target{(uintptr_t)to, to_pitch, width, rows, true}, source{(uintptr_t)from, from_pitch, width, rows, false};
    const HostCall at{file, line};
    if (const int error = check_copy(target, source, kind, at)) return failed(error);
    if (SIMT_CHECKED) carry_initialised(target, source, at);
    hide_all();
    const Opening to_pages(target), from_pages(source);
    for (size_t row = 0; row < rows; row++)
        memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}

int fill_rows(void* to, size_t pitch, int byte, size_t width, size_t rows, const char* file, int line) {
    const Turn turn;
    if (turn.error || width == 0 || rows == 0) return turn.error;
    if (rows > 1 && width > pitch) return failed(cudaErrorInvalidPitchValue);
    Rows target{(uintptr_t)to, pitch, width, rows, true};
    if (!check_device_side(target, {file, line})) return failed(cudaErrorInvalidValue);
    hide_all();
    const Opening pages(target);
    for (size_t row = 0; row < rows; row++) {
        memset(static_cast<char*>(to) + row * pitch, byte, width);
        if (!target.region->initialised.empty())
            memset(&target.region->initialised[target.base - target.region->base + row * pitch], 1, width);
    }
    return cudaSuccess;
}

bool device_memory(const void* pointer, MemoryKind* kind) {
    const Region* r = regions.owned((uintptr_t)pointer);
    if (!r || r->released) return false;
    *kind = r->kind;
    return true;
}

size_t set_dynamic_limit(const void* kernel, size_t bytes) { return kernel_of(kernel, "").dynamic_limit = bytes; }
size_t static_shared_of(const void* kernel) { return kernel_of(kernel, "").own_shared; }
size_t shared_limit() { return machine.policy.shared_limit; }
int take_error(bool clear) {
    const int error = last_error;
    if (clear) last_error = cudaSuccess;
    return error;
}
u64 ticks() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}

}  // namespace SIMT_ABI
}  // namespace simt
