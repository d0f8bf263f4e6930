// The data of each kernel, by its symbol: its name, its shared arrays, and the counters of its launches.
#pragma once
#include "regions.h"
#include "scheduler.h"

namespace simt {
inline namespace SIMT_ABI {

struct Kernel {
    std::string name;
    std::vector<std::pair<size_t, size_t>> arrays;  // its static shared arrays: offset in the TLS block, bytes
    size_t own_shared = 0, dynamic_limit = 0;
    // Counters of its launches in this session. static_shared includes the arrays of the functions that it calls.
    size_t static_shared = 0, dynamic_shared = 0;
    u64 launches = 0, blocks = 0, threads = 0, barriers = 0, collectives = 0;

    void forget_launches() {
        static_shared = dynamic_shared = 0;
        launches = blocks = threads = barriers = collectives = 0;
    }
};

inline std::map<std::pair<const void*, std::string>, Kernel>& kernels() {
    static auto& all = *new std::map<std::pair<const void*, std::string>, Kernel>();
    return all;
}

inline Kernel& kernel_of(const void* function, const std::string& where) {
    const std::pair<const void*, std::string> key(function, function ? "" : where);
    auto found = kernels().find(key);
    if (found != kernels().end()) return found->second;
    Kernel& k = kernels()[key];
    const Symbol* symbol = symbol_of_kernel(function);
    k.name = symbol ? short_name(demangled(symbol->name)) : where;
    if (!symbol) return k;
    const std::string prefix = Module::local_prefix(symbol->name);
    for (const Symbol& s : Module::self().shared)
        if (s.name.compare(0, prefix.size(), prefix) == 0) {
            k.arrays.emplace_back(s.start, s.size);
            k.own_shared += s.size;
        }
    return k;
}

#if SIMT_CHECKED
// A shared array of a function that the kernel calls also counts as the kernel's, if the launch has touched it.
inline size_t static_shared_touched() {
    size_t bytes = 0;
    const Symbol* kernel = symbol_of_kernel(machine.launch.kernel);
    const std::string own = kernel ? Module::local_prefix(kernel->name) : "none";
    const auto& symbols = Module::self().shared;
    for (size_t i = 0; i < regions.statics.size(); i++)
        if (regions.statics[i]->launch == machine.totals.launches && symbols[i].name.compare(0, own.size(), own) != 0)
            bytes += symbols[i].size;
    return bytes;
}
#endif

}  // namespace SIMT_ABI
}  // namespace simt
