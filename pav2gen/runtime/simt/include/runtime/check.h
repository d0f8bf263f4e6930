// The checks of one memory access, before it is performed.
#pragma once
#include "scheduler.h"

namespace simt {
inline namespace SIMT_ABI {

inline Finding& access_finding(const char* kind, const Lane& lane, Operation op, unsigned size, uintptr_t pc,
                               std::string what) {
    Finding& f = findings.add({kind, pc, 0, nullptr}, kind, std::move(what));
    f.places.push_back(by(place(text("%s of %u bytes", operation_names[(int)op], size), pc), lane));
    return f;
}

[[noreturn]] inline void refuse(Finding& finding, int error) {
    finding.stopped = true;
    stop_launch(error);
}

inline std::string where_outside(uintptr_t address) {
    const Stacks& stacks = machine.stacks;
    if (address - reinterpret_cast<uintptr_t>(stacks.base) < stacks.each * stacks.count)
        return text("in the local memory of thread %zu",
                    (address - reinterpret_cast<uintptr_t>(stacks.base)) / stacks.each);
    if (address < 4096) return text("at address %#zx, a null pointer", address);
    const Region* d = regions.dynamic;
    if (address - d->base < machine.dynamic_capacity)
        return text("%zu bytes past the end of dynamic shared memory (%zu bytes)", address - d->base - d->size,
                    d->size);
    if (address - Module::tls_base() >= Module::self().tls_size) return nearest(address);
    const Region* last = nullptr;
    for (const Region* r : regions.statics)
        if (r->base <= address) last = r;
    if (!last) return "before the first shared array";
    return text("%zu bytes past the end of shared array '%s' (%zu bytes)", address - last->base - last->size,
                last->name.c_str(), last->size);
}

[[noreturn]] inline void wild(const Lane& lane, Operation op, uintptr_t address, unsigned size, uintptr_t pc) {
    Region* r = regions.find(address);
    std::string what = r ? text("the last %zu of %u bytes are past the end of '%s' (%zu bytes)",
                                (size_t)(address + size - r->base - r->size), size, r->name.c_str(), r->size)
                         : "no buffer is at this address, " + where_outside(address);
    Finding& f = access_finding("out-of-bounds", lane, op, size, pc, std::move(what));
    if (r) {
        f.buffer = r->name;
        f.offset = (long long)(address - r->base);
    }
    f.expected = "an address in a registered buffer, in shared memory or in the thread's own local memory";
    refuse(f, cudaErrorIllegalAddress);
}

inline Region& locate(Site& site, const Lane& lane, Operation op, uintptr_t address, unsigned size) {
    Region* found = nullptr;
    if (regions.dynamic->holds(address, 1)) found = regions.dynamic;
    for (size_t i = 0; !found && i < regions.statics.size(); i++)
        if (regions.statics[i]->holds(address, 1)) found = regions.statics[i];
    if (!found) found = regions.find(address);
    if (!found) found = regions.variable(address);
    if (!found || !found->holds(address, size)) wild(lane, op, address, size, site.pc);
    return *(site.region = found);
}

inline void refuse_misaligned(const Lane& lane, Operation op, unsigned size, const Region& r, size_t offset,
                              uintptr_t pc) {
    Finding& f = access_finding("misaligned", lane, op, size, pc,
                                text("the address of a %u-byte access is not a multiple of %u", size, size));
    f.buffer = r.name;
    f.offset = (long long)offset;
    f.expected = "an address that is a multiple of the access's size";
    refuse(f, cudaErrorMisalignedAddress);
}

inline void refuse_write(const Lane& lane, Operation op, unsigned size, const Region& r, size_t offset, uintptr_t pc) {
    Finding& f = access_finding("read-only", lane, op, size, pc, text("'%s' is read-only", r.name.c_str()));
    f.buffer = r.name;
    f.offset = (long long)offset;
    f.expected = "kernels only read a buffer that was registered with writable=False";
    refuse(f, cudaErrorIllegalAddress);
}

inline void report_uninitialised(const Lane& lane, Operation op, unsigned size, const Region& r, size_t offset,
                                 uintptr_t pc) {
    const FindingKey key{"uninitialised", pc, 0, &r};
    if (findings.repeated(key)) return;
    const bool shared = r.space == Space::shared;
    Finding& f = findings.add(key, "uninitialised",
                              text("bytes of '%s' are read before they are written%s", r.name.c_str(),
                                   shared ? " in this block" : ""));
    f.places.push_back(by(place(text("%s of %u bytes", operation_names[(int)op], size), pc), lane));
    f.buffer = r.name;
    f.offset = (long long)offset;
    f.expected = shared ? "a store to these bytes earlier in the same block" : "a store to these bytes before";
}

inline void check_initialised(Region& r, Operation op, size_t offset, unsigned size, const Lane& lane, uintptr_t pc) {
    uint8_t* bytes = r.initialised.data() + offset;
    if (op != Operation::store && memchr(bytes, 0, size)) report_uninitialised(lane, op, size, r, offset, pc);
    if (op != Operation::load) memset(bytes, 1, size);
}

inline void note_bytes(Zeros<uint64_t>& noted, const Region& r, size_t offset, unsigned size) {
    if (noted.empty()) noted.resize(r.size / 64 + 1);
    const u64 ones = ((u64)1 << size) - 1;  // an access has at most 16 bytes
    noted[offset / 64] |= ones << offset % 64;
    if (offset % 64 + size > 64) noted[offset / 64 + 1] |= ones >> (64 - offset % 64);
}

[[noreturn]] inline void give_up(const Lane& lane, uintptr_t pc) {
    time_is_up = false;
    Finding& f = findings.add({"hang", pc, 0, nullptr}, "hang",
                              text("the launch was stopped after %llu ms", machine.policy.time_limit_ms));
    f.places.push_back(by(place("was here", pc), lane));
    f.expected = "the launch ends within the session's time limit";
    refuse(f, cudaErrorLaunchTimeout);
}

// Called when the warp's epoch has changed. The watchdog changes it when the time limit has passed.
__attribute__((noinline)) inline void catch_up(Lane& lane, uintptr_t pc) {
    if (time_is_up) give_up(lane, pc);
    lane.position.restart(warp_of(lane).epoch);
}
inline void step(Lane& lane, uintptr_t pc) {
    if (lane.position.epoch != warp_of(lane).epoch) catch_up(lane, pc);
    lane.position.step(pc);
}

// An atomic passes on the accesses before a fence: within the block, and from block to block.
inline void meet(const Lane& lane, const Region& r, uintptr_t address) {
    const Warp& warp = machine.warp[lane.warp];
    timekeeper.handover.meet(address, lane, [&](unsigned other) { return heard_of(warp, lane.lane, other); });
    if (r.space == Space::global) timekeeper.meet(address);
}

__attribute__((noinline)) inline void check_memory(Lane& lane, Operation op, uintptr_t address, unsigned size,
                                                   uintptr_t pc, bool aligned) {
    Site& site = sites.at(pc);
    Region& r = site.region->holds(address, size) ? *site.region : locate(site, lane, op, address, size);
    const size_t offset = address - r.base;
    if (aligned && (address & (size - 1))) refuse_misaligned(lane, op, size, r, offset, pc);
    if (!r.writable && op != Operation::load) refuse_write(lane, op, size, r, offset, pc);
    r.launch = machine.totals.launches;
    step(lane, pc);
    count(site, op, r, offset, size, lane);
    if (r.space == Space::global) {
        if (op != Operation::store) note_bytes(r.read_bytes, r, offset, size);
        if (op != Operation::load) note_bytes(r.written_bytes, r, offset, size);
    }
    if (!r.initialised.empty()) check_initialised(r, op, offset, size, lane, pc);
    if (r.space == Space::shared || r.writable) {
        const Record record(timekeeper.now, site.id, lane.flat);
        Visit v{r, offset, size, op, site, lane, record, false};
        visit(v);
        if (v.unwritten && r.space == Space::shared) report_uninitialised(lane, op, size, r, offset, pc);
        if (op == Operation::atomic) meet(lane, r, address);
    }
}

inline void check(Lane& lane, Operation op, uintptr_t address, unsigned size, uintptr_t pc, bool aligned) {
    if (address - lane.stack_low < lane.stack_size)
        machine.totals.local_bytes += size;
    else
        check_memory(lane, op, address, size, pc, aligned);
}

// An access with a size or alignment that needs several GPU instructions.
inline void check_pieces(Lane& lane, Operation op, uintptr_t address, size_t bytes, uintptr_t pc) {
    unsigned piece = 16;
    while (piece > 1 && (address % piece || bytes % piece)) piece /= 2;
    for (size_t done = 0; done < bytes; done += piece) check(lane, op, address + done, piece, pc, false);
}

inline void begin_checks() {
    timekeeper.begin_launch();
    regions.place_shared(Module::tls_base(), machine.dynamic, machine.dynamic_bytes);
    if (timekeeper.now > 0xf0000000u) {  // restart the clock, and forget all earlier accesses
        for (auto& r : regions.all) r->shadow.reset();
        timekeeper = Clock();
        timekeeper.begin_launch();
    }
}
inline void begin_block_checks(u64 linear) {
    timekeeper.begin_block(linear);
    for (unsigned w = 0; w < machine.warps; w++) {
        Warp& warp = machine.warp[w];
        warp.sync_tick = timekeeper.now;
        warp.epoch = warp.epoch + 1;
        warp.heard.clear();
    }
    for (unsigned i = 0; i < machine.threads; i++)
        machine.lanes[i].position.start(machine.warp[machine.lanes[i].warp].epoch);
}
inline void end_block_checks() {
    for (unsigned w = 0; w < machine.warps; w++) settle(w);
}

void fence(bool of_device) {
    if (!current) return;
    timekeeper.handover.fence(current->flat, ++timekeeper.now);
    if (of_device) timekeeper.fenced = true;
}

void atomic_access(const volatile void* address, unsigned bytes, const void* site) {
    if (current)
        check(*current, Operation::atomic, (uintptr_t)address, bytes, (uintptr_t)site, true);
}
void checked_copy(void* to, const void* from, size_t bytes, const void* site) {
    if (current && bytes) {
        check_pieces(*current, Operation::load, (uintptr_t)from, bytes, (uintptr_t)site);
        check_pieces(*current, Operation::store, (uintptr_t)to, bytes, (uintptr_t)site);
    }
    memmove(to, from, bytes);
}
void checked_fill(void* to, int byte, size_t bytes, const void* site) {
    if (current && bytes) check_pieces(*current, Operation::store, (uintptr_t)to, bytes, (uintptr_t)site);
    memset(to, byte, bytes);
}

}  // namespace SIMT_ABI
}  // namespace simt
