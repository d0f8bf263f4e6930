// Faults of the processor inside a launch (a wild address, a division by zero, an overrun stack) and launches that do
// not end: they stop the launch with a finding, and the process lives on.
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <time.h>
#include "host_access.h"
#include "scheduler.h"

namespace simt {
inline namespace SIMT_ABI {

constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
inline int timer_signal() { return SIGRTMIN + 5; }

struct Guard {
    static constexpr size_t alternate_bytes = 64 << 10;
    sigjmp_buf escape;
    pid_t thread = 0;
    int signal = 0;
    uintptr_t address = 0, pc = 0;
    struct sigaction before[4], timer_before;
    stack_t stack_before;
    timer_t timer;
    bool timed = false;
    std::unique_ptr<char[]> alternate;

    void arm();
    void disarm();
};
static Guard guard;

inline void on_fault(int number, siginfo_t* info, void* context) {
    if (!current || thread_id() != guard.thread) {  // not in a kernel: restore the earlier handlers
        for (int i = 0; i < 4; i++)
            if (fault_signals[i] == number) sigaction(number, &guard.before[i], nullptr);
        return;
    }
    guard.address = reinterpret_cast<uintptr_t>(info->si_addr);
    Region* closed = number == SIGSEGV ? regions.find(guard.address) : nullptr;
    if (closed && !closed->exposed) return expose(*closed);
    guard.signal = number;
    guard.pc = program_counter(context);
    siglongjmp(guard.escape, 1);
}

inline void on_timer(int number, siginfo_t*, void* context) {
    if (!current || thread_id() != guard.thread) return;
#if SIMT_CHECKED
    if (!time_is_up) {
        time_is_up = true;  // the next hook stops the launch; no malloc or the like runs there
        for (Warp& warp : machine.warp) warp.epoch = warp.epoch + 1;
        return;
    }
    time_is_up = false;  // no hook ran for a second: the kernel is in a loop without hooks
#endif
    guard.signal = number;
    guard.pc = program_counter(context);
    siglongjmp(guard.escape, 1);
}

inline void Guard::arm() {
    if (!alternate) alternate.reset(new char[alternate_bytes]);
    thread = thread_id();
    signal = 0;
    stack_t stack{};
    stack.ss_sp = alternate.get();
    stack.ss_size = alternate_bytes;
    sigaltstack(&stack, &stack_before);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 4; i++) sigaction(fault_signals[i], &action, &before[i]);
    timed = time_is_up = false;
    if (machine.policy.time_limit_ms == 0) return;
    action.sa_sigaction = on_timer;
    sigaction(timer_signal(), &action, &timer_before);
    struct sigevent event {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = timer_signal();
#ifdef sigev_notify_thread_id
    event.sigev_notify_thread_id = thread;
#else
    event._sigev_un._tid = thread;
#endif
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;
    const u64 ms = machine.policy.time_limit_ms;
    struct itimerspec when {};
    when.it_value = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    when.it_interval = {1, 0};
    timer_settime(timer, 0, &when, nullptr);
    timed = true;
}

inline void Guard::disarm() {
    if (timed) {
        timer_delete(timer);
        sigaction(timer_signal(), &timer_before, nullptr);
    }
    for (int i = 0; i < 4; i++) sigaction(fault_signals[i], &before[i], nullptr);
    if (stack_before.ss_flags & SS_DISABLE) stack_before.ss_size = alternate_bytes;
    sigaltstack(&stack_before, nullptr);
}

inline const char* signal_name(int number) {
    switch (number) {
        case SIGSEGV: return "SIGSEGV";
        case SIGBUS: return "SIGBUS";
        case SIGFPE: return "SIGFPE";
        default: return "SIGILL";
    }
}

// After siglongjmp: adds a finding for the fault of the current thread, and returns the error code.
inline int report_fault() {
    const Lane& lane = *current;
    const size_t i = (size_t)(&lane - machine.lanes);
    const char* kind = "crash";
    std::string what, expected = "no fault; the checked build finds the access before it happens";
    int error = cudaErrorIllegalAddress;
    if (guard.signal == timer_signal()) {
        kind = "hang";
        what = text("the launch was stopped after %llu ms", machine.policy.time_limit_ms);
        expected = "the launch ends within the session's time limit";
        error = cudaErrorLaunchTimeout;
    } else if (guard.signal == SIGSEGV && machine.stacks.in_guard(i, (void*)guard.address)) {
        kind = "stack-overflow";
        what = text("local variables need more than the %zu bytes of a thread's stack", machine.policy.stack_bytes);
        expected = "a larger stack_bytes in the session's policy, or smaller local arrays";
        error = cudaErrorLaunchFailure;
    } else if (guard.signal == SIGFPE) {
        what = "SIGFPE: an integer division by zero";
        expected = "a divisor other than zero";
        error = cudaErrorLaunchFailure;
    } else {
        what = text("%s at address %#zx", signal_name(guard.signal), guard.address);
        const std::string near = nearest(guard.address);
        if (near.find('\'') != std::string::npos) what += ", " + near;
    }
    Finding& f = findings.add({kind, guard.pc, 0, nullptr}, kind, what);
    f.expected = expected;
    f.stopped = true;
    f.places.push_back(by(place("was here", guard.pc + 1), lane));
    return error;
}

}  // namespace SIMT_ABI
}  // namespace simt
