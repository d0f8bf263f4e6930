// exit() and the like. A call in a kernel is a finding and stops the launch. A call by host code goes to the C library.
#pragma once
#include <dlfcn.h>
#include "run.h"

namespace simt {
inline namespace SIMT_ABI {

[[noreturn]] inline void refuse_to_leave(const char* function, uintptr_t pc) {
    const FindingKey key{"exit", pc, 0, nullptr};
    if (!findings.repeated(key)) {
        Finding& f = findings.add(key, "exit", text("the kernel called %s()", function));
        f.places.push_back(by(place("was called", pc), *current));
        f.expected = "a kernel ends with its last statement, with return, or with __trap()";
        f.stopped = true;
    }
    stop_launch(cudaErrorLaunchFailure);
}

}  // namespace SIMT_ABI
}  // namespace simt

// These use assembler names. A plain declaration would be visible outside the library, as in the system's headers.
#define SIMT_LEAVE(FUNCTION, PARAMETER, ARGUMENT)                                                                     \
    extern "C" __attribute__((visibility("hidden"), noreturn)) void simt_leave_##FUNCTION(PARAMETER) asm(#FUNCTION); \
    extern "C" void simt_leave_##FUNCTION(PARAMETER) {                                                                \
        if (simt::in_kernel()) simt::refuse_to_leave(#FUNCTION, (uintptr_t)__builtin_return_address(0));              \
        reinterpret_cast<void (*)(PARAMETER)>(dlsym(RTLD_NEXT, #FUNCTION))(ARGUMENT);                                 \
        __builtin_unreachable();                                                                                      \
    }
SIMT_LEAVE(exit, int code, code)
SIMT_LEAVE(_exit, int code, code)
SIMT_LEAVE(_Exit, int code, code)
SIMT_LEAVE(quick_exit, int code, code)
SIMT_LEAVE(abort, , )
#undef SIMT_LEAVE
