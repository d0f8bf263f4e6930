// One thread of the host at a time is in the runtime: launches, copies and allocations take turns.
//
// A process that forks meanwhile waits until the turn is over, so that the child finds everything in order. Where that
// takes too long, the child can do without the runtime only: its launches and copies fail.
#pragma once
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <chrono>
#include <mutex>
#include <new>
#include "machine.h"

namespace simt {
inline namespace SIMT_ABI {

inline pid_t thread_id() { return (pid_t)syscall(SYS_gettid); }

struct Turns {
    std::recursive_timed_mutex mutex;
    volatile pid_t launching = 0;  // the thread that runs a kernel
    bool held_for_fork = false;
    bool orphaned = false;  // forked in the middle of another thread's turn
};
static Turns turns;

// Does this thread of the host run a kernel now?
inline bool in_kernel() { return current && turns.launching == thread_id(); }

inline void before_fork() {
    turns.held_for_fork = !in_kernel() && turns.mutex.try_lock_for(std::chrono::seconds(10));
}
inline void after_fork_in_parent() {
    if (turns.held_for_fork) turns.mutex.unlock();
}
inline void after_fork_in_child() {
    turns.orphaned = turns.orphaned || !turns.held_for_fork;
    new (&turns.mutex) std::recursive_timed_mutex();  // its owner was the parent's thread
}

// For a call of the host's API: false in a kernel, which has no such calls, and in an orphaned child.
struct Turn {
    std::unique_lock<std::recursive_timed_mutex> lock;
    int error;
    Turn() : error(in_kernel() ? cudaErrorNotSupported : turns.orphaned ? cudaErrorInitializationError : cudaSuccess) {
        if (!error) lock = std::unique_lock<std::recursive_timed_mutex>(turns.mutex);
    }
};

}  // namespace SIMT_ABI
}  // namespace simt
