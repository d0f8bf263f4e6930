// One thread of the host at a time is in the runtime: launches, copies and allocations take turns.
//
// A process that forks meanwhile waits until the turn is over, so that the child finds a consistent state. If that
// takes too long, the child can't use the runtime: its launches and copies fail.
#pragma once
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "machine.h"

namespace simt {
inline namespace SIMT_ABI {

inline pid_t thread_id() { return (pid_t)syscall(SYS_gettid); }

struct Turns {
    pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    volatile pid_t launching = 0;  // the thread that runs a kernel
    bool held_for_fork = false;
    bool orphaned = false;  // forked in the middle of another thread's turn
};
static Turns turns;

// Whether this thread of the host runs a kernel now.
inline bool in_kernel() { return current && turns.launching == thread_id(); }

inline void before_fork() {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    turns.held_for_fork = !in_kernel() && pthread_mutex_timedlock(&turns.mutex, &until) == 0;
}
inline void after_fork_in_parent() {
    if (turns.held_for_fork) pthread_mutex_unlock(&turns.mutex);
}
inline void after_fork_in_child() {
    turns.orphaned = turns.orphaned || !turns.held_for_fork;
    turns.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;  // its owner was the parent's thread
}

// For a call of the host's API: false in a kernel, which has no such calls, and in an orphaned child.
struct Turn {
    const int error;
    Turn() : error(in_kernel() ? cudaErrorNotSupported : turns.orphaned ? cudaErrorInitializationError : cudaSuccess) {
        if (!error) pthread_mutex_lock(&turns.mutex);
    }
    ~Turn() {
        if (!error) pthread_mutex_unlock(&turns.mutex);
    }
    Turn(const Turn&) = delete;
};

}  // namespace SIMT_ABI
}  // namespace simt
