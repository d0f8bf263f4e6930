// The runtime that executes CUDA kernels on the CPU: compiled once for a warp size and a kind of build (fast or
// checked), and linked to the objects of the kernels. See docs/simt.md.
#define SIMT_RUNTIME 1
#include "runtime/control.h"
#if SIMT_CHECKED
#include "runtime/hooks.h"
#endif

// A failed assert() in a kernel ends the launch. A failed assert() in host code ends the process.
extern "C" __attribute__((visibility("hidden"), noreturn)) void __assert_fail(const char* expression, const char* file,
                                                                             unsigned line, const char* function) {
    if (simt::current) simt::fail_assertion(expression, file, (int)line);
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, expression);
    abort();
}

// The last object of this file. It is made after all others, so its exit handler runs before they are destroyed.
static const struct Start {
    Start() {
        pthread_atfork(&simt::before_fork, &simt::after_fork_in_parent, &simt::after_fork_in_child);
        simt::read_environment();
    }
} start;
