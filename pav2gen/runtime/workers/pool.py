"""Worker threads that share the work of one call of any function.

A long call on a CPU consists of hundreds of short PyTorch operations. If each operation is split among OpenMP threads,
all threads wait for each other at the end of each operation. On a busy machine, such waits take most of the time. The
worker threads of this module work on separate tasks, and each worker computes its operations alone.

All callers of a process share the workers. A process forked from this one starts workers of its own.

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
    """The workers that may share a call of this thread. Their number is that of its torch threads, or 1 for no workers.

    The environment variable PAV2_WORKERS says which calls they may share: ``auto`` long ones, and medium ones on a
    crowded machine; ``always`` long and medium ones. The number is 1 in a worker, if torch does not use OpenMP, if a
    torch dispatch mode or the profiler observes this thread, or if the variable is ``never``. Raises ValueError if the
    variable has another value.
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
    """Call ``compute`` for each task, in ``count`` workers, and ``combine`` for each task and its result.

    ahead: how many tasks per worker may be started before the result of the oldest one is combined.

    ``combine`` is called in the order of the tasks, by one worker at a time. So the outcome does not depend on which
    worker computes which task. When this function returns or raises, no worker uses the arguments any more. If a call
    of ``compute`` or ``combine`` fails, no further tasks are started, and the first exception is raised. If the
    interpreter does not allow threads any more, because it is about to exit, the calling thread does all the work.
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
        """Compute tasks until none is left or one has failed. Each worker calls this method once."""
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
        """Start no further tasks."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self) -> int | None:
        """The number of the next task, or None if there is no next task. Waits while too many results wait."""
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
        """The task that is to be combined next, with its result; None if it is not computed yet."""
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
    """Let ``count`` workers call ``work``, and append their futures to ``futures``. Starts workers if there are fewer.

    Raises RuntimeError if the interpreter does not allow it any more.
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
    """Start ``count`` threads that compute every torch operation alone.

    ``torch.set_num_threads`` sets the number for the calling thread, and for all threads that start to use torch later.
    A further thread restores the latter, so that neither the caller nor another thread of the process changes.
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
    """Forget the workers. A forked process has none, and the lock may be held by a thread that it does not have."""
    global _lock, _executor, _size
    _lock, _executor, _size = threading.Lock(), None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
