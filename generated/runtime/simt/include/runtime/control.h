// The C interface by which a session steers and reads the runtime of one library.
#pragma once
#include <cstdio>
#include "leave.h"
#include "report.h"

namespace simt {
inline namespace SIMT_ABI {

struct Setting {
    const char* name;
    void (*set)(Policy& policy, long long value);
};
constexpr Setting settings[] = {
    {"lane_order", [](Policy& p, long long v) { p.lane_order = (Order)v; }},
    {"block_order", [](Policy& p, long long v) { p.block_order = (Order)v; }},
    {"seed", [](Policy& p, long long v) { p.seed = (u64)v; }},
    {"warp_order", [](Policy& p, long long v) { p.warp_order = (WarpOrder)v; }},
    {"strict_exit", [](Policy& p, long long v) { p.strict_exit = v != 0; }},
    {"full_mask_32", [](Policy& p, long long v) { p.full_mask_32 = v != 0; }},
    {"poison", [](Policy& p, long long v) { p.poison = v != 0; }},
    {"integer_overflow", [](Policy& p, long long v) { p.integer_overflow = v != 0; }},
    {"stack_bytes", [](Policy& p, long long v) { p.stack_bytes = (size_t)v; }},
    {"shared_limit", [](Policy& p, long long v) { p.shared_limit = (size_t)v; }},
    {"time_limit_ms", [](Policy& p, long long v) { p.time_limit_ms = (u64)v; }},
};

inline bool set_policy(const std::string& name, long long value) {
    for (const Setting& s : settings)
        if (name == s.name) return s.set(machine.policy, value), true;
    return false;
}

inline void reset() {
    machine.policy = Policy();
    machine.totals = Totals();
    last_error = 0;
    machine.cut_short = false;
    findings.clear();
    for (auto& entry : kernels()) entry.second.forget_launches();
#if SIMT_CHECKED
    sites.clear();
#endif
    regions.clear();
}

// A program run by `simt run` takes its policy from the environment and leaves its report in a file.
inline void write_report() {
    const std::string json = report_json();
    if (FILE* file = fopen(getenv("SIMT_REPORT"), "w")) {
        fwrite(json.data(), 1, json.size(), file);
        fclose(file);
    }
}
inline void read_environment() {
    if (!getenv("SIMT_REPORT")) return;
    const std::string words = getenv("SIMT_POLICY") ? getenv("SIMT_POLICY") : "";
    for (size_t at = 0; at < words.size();) {
        const size_t end = std::min(words.find(' ', at), words.size()), equals = words.find('=', at);
        if (equals < end) set_policy(words.substr(at, equals - at), atoll(words.c_str() + equals + 1));
        at = end + 1;
    }
    atexit(write_report);
}

}  // namespace SIMT_ABI
}  // namespace simt

#define SIMT_API extern "C" __attribute__((visibility("default")))

SIMT_API int simt_format() { return 1; }
SIMT_API int simt_warp_size() { return SIMT_WARP_SIZE; }
SIMT_API int simt_checked() { return SIMT_CHECKED; }
SIMT_API void simt_reset() {
    const simt::Turn turn;
    simt::reset();
}
SIMT_API int simt_set(const char* name, long long value) {
    const simt::Turn turn;
    return simt::set_policy(name, value) ? 0 : -1;
}
// Returns the name of a registered buffer that overlaps, or null if none does.
SIMT_API const char* simt_buffer(const void* base, size_t bytes, const char* name, int writable, int initialised) {
    const simt::Turn turn;
    const simt::Region* other = simt::regions.overlapping((uintptr_t)base, bytes);
    if (other) return other->name.c_str();
    simt::register_buffer(base, bytes, name, writable != 0, initialised != 0);
    return nullptr;
}
SIMT_API const char* simt_report() {
    const simt::Turn turn;
    static std::string json;
    json = simt::report_json();
    return json.c_str();
}
SIMT_API const char* simt_message() {
    static std::string message;
    message = simt::last_message();
    return message.c_str();
}
