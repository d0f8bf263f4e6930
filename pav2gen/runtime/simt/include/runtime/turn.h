// Lets one host thread at a time into the runtime. Launches, copies and allocations each take a turn.
//
// fork() waits until the turn of another thread is over, so that the child has a consistent state. If the wait is too
// long, the fork goes on, and the child's launches and copies fail.
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

// Holds the runtime during a call of the host API. `error` is set, and nothing is held, in a kernel and in a child that
// was forked during another thread's turn.
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
