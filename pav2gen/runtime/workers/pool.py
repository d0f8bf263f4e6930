"""Worker threads that share the work of one call of any function.

A long call on a CPU consists of hundreds of short PyTorch operations. If OpenMP splits each operation among its
threads, all threads wait for each other at the end of each operation. On a busy machine, the waits of OpenMP threads
take most of the time. The worker threads of this module compute separate tasks, and each worker runs its PyTorch
operations on a single thread.

All threads of a process that run kernels share the same workers. A forked process starts its own workers.

Each thread has its own grad mode and inference mode in torch. Workers use the caller's modes. A caller that uses a
torch dispatch mode or the profiler gets no workers, because both observe only the operations of the caller's own
thread. Workers do not use the caller's autocast.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, NamedTuple, TypeVar

import torch

from ..environment import choice

#: The values of the environment variable PAV2_WORKERS.
POLICIES = ("auto", "always", "never")

T = TypeVar("T")
R = TypeVar("R")


class Offer(NamedTuple):
    """The workers that may share a call.

    workers: the number of workers, or 1 if no workers may share the call.
    medium: whether workers may share calls of medium length, too.
    crowded: whether the threads of this machine now compete for its processors.
    """

    workers: int
    medium: bool
    crowded: bool = False


def available() -> Offer:
    """Return the workers that may share a call of the current thread.

    The environment variable PAV2_WORKERS says which calls workers may share: ``auto`` means long calls, and shorter
    ones on a crowded machine; ``always`` means long calls and calls of medium length; ``never`` means no calls.

    The number of workers is the number of torch threads of the current thread. It is 1 in a worker, if torch does not
    use OpenMP, if a torch dispatch mode or the profiler observes the current thread, and for ``never``. Raises
    ValueError if PAV2_WORKERS has another value.
    """
    policy = choice("PAV2_WORKERS", POLICIES) or "auto"
    if policy == "never" or not torch.backends.openmp.is_available() or _observed():
        return Offer(1, False)
    return Offer(torch.get_num_threads(), policy == "always", policy == "auto" and crowded())


_compete = False  # what the last call of ``crowded`` found


def crowded() -> bool:
    """Whether more threads want to run than this machine has processors, now and at the last call of this function.

    A process that runs for a moment only does not make a machine crowded. The result is False if the system does not
    count threads. Linux counts the threads of all processes that run or wait for a processor, in the fourth field of
    /proc/loadavg.
    """
    global _compete
    before, _compete = _compete, False
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            runnable, _, _ = file.read(128).split()[3].partition(b"/")
        _compete = int(runnable) > (os.cpu_count() or int(runnable))
    except (OSError, ValueError, IndexError):
        pass
    return before and _compete


def _observed() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._autograd._profiler_enabled()


def run(count: int, tasks: Sequence[T], compute: Callable[[T], R], combine: Callable[[T, R], None], ahead: int) -> None:
    """Call ``compute`` for each task, in ``count`` workers, and call ``combine`` for each task and its result.

    One worker at a time calls ``combine``, in the order of the tasks. The outcome therefore does not depend on which
    worker computes which task.

    If a call of ``compute`` or ``combine`` raises an exception, no further tasks start, and ``run`` raises the first
    exception. When ``run`` returns or raises, no worker uses the arguments any more. If the interpreter is about to
    exit and allows no new threads, the calling thread computes all tasks.

    ahead: the maximum number of tasks per worker that have started, but whose results are not combined yet.
    """
    job = _Job(tasks, compute, combine, ahead * count)
    futures: list[Future[None]] = []
    try:
        _submit(job.work, count, futures)
    except RuntimeError:  # no new threads, or no new tasks, while the interpreter exits
        job.work()
    try:
        wait(futures)
    except BaseException:  # for example KeyboardInterrupt
        job.stop()
        wait(futures)
        raise
    if job.error is not None:
        try:
            raise job.error
        finally:
            job.error = None  # the exception refers to this frame: leave no cycle


class _Job(Generic[T, R]):
    """The tasks of one call of ``run``, and the results that are not combined yet."""

    def __init__(
        self, tasks: Sequence[T], compute: Callable[[T], R], combine: Callable[[T, R], None], ahead: int
    ) -> None:
        self.error: BaseException | None = None
        self._tasks, self._compute, self._combine, self._ahead = tasks, compute, combine, ahead
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self._changed = threading.Condition()
        self._taken = self._combined = 0  # tasks
        self._results: dict[int, R] = {}  # computed, but not combined
        self._combining = self._stopped = False

    def work(self) -> None:
        """Compute tasks until no task is left or a task has failed. Each worker calls this method once."""
        inference, grad = self._modes
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                while (number := self._take()) is not None:
                    self._give(number, self._compute(self._tasks[number]))
        except BaseException as error:
            with self._changed:
                self.error = self.error or error
            self.stop()

    def stop(self) -> None:
        """Prevent further tasks from starting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self) -> int | None:
        """Return the number of the next task, or None if no task is left or the job was stopped.

        If too many results are not combined yet, the method first waits until another worker has combined a result.
        """
        with self._changed:
            while not self._stopped and self._combined + self._ahead <= self._taken < len(self._tasks):
                self._changed.wait()
            if self._stopped or self._taken == len(self._tasks):
                return None
            self._taken += 1
            return self._taken - 1

    def _give(self, number: int, result: R) -> None:
        """Store the result of a task.

        Combine all results that are next in order, unless another worker is combining results.
        """
        with self._changed:
            self._results[number] = result
            if self._combining:
                return
            self._combining = True
        while (following := self._following()) is not None:
            self._combine(*following)

    def _following(self) -> tuple[T, R] | None:
        """Return the next task to combine with its result, or None if the result is not computed yet or the job was
        stopped.
        """
        with self._changed:
            number = self._combined
            if self._stopped or number not in self._results:
                self._combining = False
                return None
            self._combined += 1
            self._changed.notify_all()
            return self._tasks[number], self._results.pop(number)


_lock = threading.Lock()
_executor: ThreadPoolExecutor | None = None
_size = 0


def _submit(work: Callable[[], None], count: int, futures: list[Future[None]]) -> None:
    """Call ``work`` in ``count`` workers, and append the futures of these calls to ``futures``.

    The function starts new workers if fewer than ``count`` exist. Raises RuntimeError if the interpreter is about to
    exit and allows no new threads or tasks.
    """
    global _executor, _size
    with _lock:  # so that no other thread replaces the executor before all calls are submitted
        if _executor is None or _size < count:
            started = _start(count)
            if _executor is not None:
                _executor.shutdown(wait=False)  # its threads end when their calls have ended
            _executor, _size = started, count
        for _ in range(count):
            futures.append(_executor.submit(work))


def _start(count: int) -> ThreadPoolExecutor:
    """Start ``count`` threads, each of which runs every torch operation on a single thread.

    ``torch.set_num_threads`` changes the number for the calling thread, and also the default for threads that use torch
    later. An additional thread therefore starts the workers and then restores the default. The settings of the caller
    and of other threads stay unchanged.
    """
    failed: list[BaseException] = []
    executor = ThreadPoolExecutor(count, thread_name_prefix="pav2-worker")
    met = threading.Barrier(count)  # each thread waits there, so each gets one of the calls

    def start() -> None:
        try:
            inherited = torch.get_num_threads()
            try:
                for future in [executor.submit(_become_worker, met) for _ in range(count)]:
                    future.result()
            finally:
                torch.set_num_threads(inherited)
        except BaseException as error:
            met.abort()  # threads that have started wait for the others
            failed.append(error)

    thread = threading.Thread(target=start, name="pav2-starter")
    thread.start()
    thread.join()
    if failed:
        executor.shutdown(wait=False)
        raise failed[0]
    return executor


def _become_worker(met: threading.Barrier) -> None:
    met.wait()
    torch.get_num_threads()  # at its first use in a thread, torch sets the thread's number to the inherited one
    torch.set_num_threads(1)


def _forget() -> None:
    """Forget the workers in a forked process, and replace the lock of this module.

    Threads do not survive a fork, and a thread of the parent process may have held the lock during the fork.
    """
    global _lock, _executor, _size
    _lock, _executor, _size = threading.Lock(), None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
