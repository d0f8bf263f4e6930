// Detects accesses of host code to device memory: the memory's pages are protected while host code runs.
//
// A "closed" allocation has protected pages. When a kernel touches one, it is opened until the launch ends. When host
// code touches one, that is a finding. The allocation is then opened, so that the program continues and can show
// further faults.
#pragma once
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>
#include "regions.h"
#include "turn.h"

namespace simt {
inline namespace SIMT_ABI {

inline void expose(Region& r) {
    if (r.exposed) return;
    mprotect(reinterpret_cast<void*>(r.base), r.mapped, PROT_READ | PROT_WRITE);
    r.exposed = true;
    regions.exposed++;
}
inline void hide(Region& r) {
    mprotect(reinterpret_cast<void*>(r.base), r.mapped, PROT_NONE);
    r.exposed = false;
}
inline void hide_all() {
    if (!regions.exposed) return;
    for (auto& r : regions.all)
        if (r->owned && r->exposed && r->kind == MemoryKind::device) hide(*r);
    regions.exposed = 0;
}

inline uintptr_t program_counter(void* context) {
    const mcontext_t& m = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return (uintptr_t)m.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)m.pc;
#else
    (void)m;
    return 0;
#endif
}
// Whether the access that faulted was a store. Some processors do not tell.
inline bool was_store(void* context) {
#if defined(__x86_64__)
    return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    (void)context;
    return false;
#endif
}

// Whether the code belongs to the program and not to this runtime.
inline bool is_program(uintptr_t pc) {
    const Module& module = Module::self();
    const Symbol* s = module.contains(pc) ? Module::at(module.functions, pc) : nullptr;  // has none of namespace simt
    return s && s->name.compare(0, 8, "_Z9simt_") != 0;
}
// The innermost code address of the program on the stack. The fault may be in a libc function that the program called.
struct Caller {
    uintptr_t fault, found;
    bool passed;
};
inline _Unwind_Reason_Code look_for_caller(_Unwind_Context* frame, void* data) {
    Caller& c = *static_cast<Caller*>(data);
    const uintptr_t pc = _Unwind_GetIP(frame);
    if (pc == c.fault)
        c.passed = true;
    else if (c.passed && is_program(pc))
        return c.found = pc, _URC_END_OF_STACK;
    return _URC_NO_REASON;
}
inline uintptr_t place_of_fault(uintptr_t pc) {
    if (is_program(pc)) return pc + 1;
    Caller c{pc, 0, false};
    _Unwind_Backtrace(&look_for_caller, &c);
    return c.found;
}

inline void report_host_access(Region& r, uintptr_t address, void* context) {
    const bool store = was_store(context);
    if (store && !r.initialised.empty()) memset(r.initialised.data(), 1, r.initialised.size());
    const uintptr_t pc = place_of_fault(program_counter(context));
    const FindingKey key{"host-access", pc, 0, &r};
    if (findings.repeated(key)) return;
    Finding& f = findings.add(key, "host-access",
                              text("the host's code touches '%s', which is %s", r.name.c_str(),
                                   r.released ? "freed device memory" : "device memory"));
    f.kernel.clear();
    f.places.push_back(place(store ? "host store" : "host load", pc));
    f.buffer = r.name;
    f.offset = (long long)(address - r.base);
    f.expected = "cudaMemcpy to or from it; host code can't dereference a pointer that cudaMalloc returned";
}

static struct sigaction handler_before;
static bool handler_installed = false;

inline void on_host_fault(int number, siginfo_t* info, void* context) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    {
        const Turn turn;
        Region* r = turn.error ? nullptr : regions.owned(address);
        if (r && !r->exposed) {
            report_host_access(*r, address, context);
            return expose(*r);
        }
    }
    if (handler_before.sa_flags & SA_SIGINFO)
        handler_before.sa_sigaction(number, info, context);
    else if (handler_before.sa_handler == SIG_DFL || handler_before.sa_handler == SIG_IGN)
        sigaction(number, &handler_before, nullptr);  // the access runs again, with the earlier handler
    else
        handler_before.sa_handler(number);
}

inline void watch_host() {
    if (handler_installed) return;
    struct sigaction action {};
    action.sa_sigaction = on_host_fault;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    handler_installed = sigaction(SIGSEGV, &action, &handler_before) == 0;
}

}  // namespace SIMT_ABI
}  // namespace simt
