"""Worker threads: the pool by itself, then kernels that use it."""

import functools
import importlib
import io
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter

import pytest
import torch

from pav2gen.plan import kernel as plan
from pav2gen.reading import spec_file as spec
from pav2gen.runtime.attention.rows import Rows
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, copy_outputs, make
from pav2gen.runtime.workers import pool
from pav2gen.runtime.workers.shares import AHEAD, CROWDED_BYTES, LONG_BYTES, MEDIUM_BYTES

MIB = 1 << 20
QWEN = spec.load("specs/qwen36.yaml")
(PLAN,) = (
    plan.plan(v, QWEN) for v in spec.variants(QWEN) if (*v.key[:4], v.partition_size) == (256, 6, 16, "bfloat16", 512)
)


def run(count, tasks, compute, combine=lambda task, result: None, ahead=AHEAD):
    pool.run(count, tasks, compute, combine, ahead)


# The pool


@pytest.mark.parametrize("count", [1, 2, 5])
def test_results_are_combined_in_order_one_at_a_time(count):
    combined, running = [], []

    def compute(task):
        time.sleep(0.001 * (task * 7 % 5))
        return task * task

    def combine(task, result):
        running.append(task)
        time.sleep(0.0005)
        combined.append((task, result))
        running.remove(task)
        assert not running

    run(count, range(40), compute, combine)
    assert combined == [(task, task * task) for task in range(40)]


def test_workers_work_at_the_same_time():
    met = threading.Barrier(3, timeout=20)
    run(3, range(3), lambda task: met.wait())


def test_few_results_wait():
    started, most = [], []

    def compute(task):
        started.append(task)
        if task == 0:
            time.sleep(0.1)
            most.append(len(started))

    run(2, range(20), compute, ahead=2)
    assert most == [4] and len(started) == 20


def test_a_worker_computes_alone_and_nobody_else_does():
    script = (
        "import torch, threading\n"
        "from pav2gen.runtime.workers import pool\n"
        "{first}\n"
        "def number(*_): return torch.get_num_threads()\n"
        "def new():\n"
        "    found = []\n"
        "    thread = threading.Thread(target=lambda: found.append(number())); thread.start(); thread.join()\n"
        "    return found[0]\n"
        "before, seen = (number(), new()), []\n"
        "pool.run(3, range(9), number, lambda task, result: seen.append(result), 3)\n"
        "assert (number(), new()) == before, (number(), new(), before)\n"
        "assert seen == [1] * 9, seen\n"
        "print(*before)\n"
    )
    assert in_process(script.format(first="torch.set_num_threads(5)")) == "5 5"
    later = "other = threading.Thread(target=torch.set_num_threads, args=(7,)); other.start(); other.join()"
    assert in_process(script.format(first=f"torch.get_num_threads(); torch.set_num_threads(5); {later}")) == "5 7"
    in_process(script.format(first=""))


def in_process(script):
    """The output of a script in a process of its own, which must end well, in time, and without a message."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_first_error_is_raised_when_all_tasks_have_ended():
    started, ended = [], []

    def compute_or_fail(task):
        started.append(task)
        if task == 1:
            raise KeyError("first")
        time.sleep(0.1)
        ended.append(task)
        raise ValueError("second")

    with pytest.raises(KeyError, match="first") as caught:
        run(2, range(50), compute_or_fail)
    assert started in ([0, 1], [1, 0]) and ended == [0]
    assert "compute_or_fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    test_results_are_combined_in_order_one_at_a_time(2)


def test_an_error_of_the_combination_is_raised():
    combined = []

    def combine(task, result):
        combined.append(task)
        if task == 3:
            raise ValueError("sum")

    with pytest.raises(ValueError, match="sum"):
        run(3, range(50), lambda task: task, combine)
    assert combined == [0, 1, 2, 3]


def test_an_interrupted_caller_waits_for_its_tasks(monkeypatch):
    waits, ended = [], []

    def wait(futures):
        waits.append(len(futures))
        if len(waits) == 1:
            raise KeyboardInterrupt
        return finish(futures)

    def compute(task):
        time.sleep(0.05)
        ended.append(task)

    finish = pool.wait
    monkeypatch.setattr(pool, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run(2, range(50), compute)
    number = len(ended)
    time.sleep(0.12)
    assert len(ended) == number <= 2 and waits == [2, 2]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("inference", [True, False])
def test_workers_have_the_modes_of_the_caller(grad, inference):
    seen = set()

    def modes(*_):
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        run(
            2, range(8), lambda task: (modes(), time.sleep(0.001))[0], lambda task, found: seen.update({found, modes()})
        )
        assert seen == {modes()}


def test_eight_callers_at_once():
    found = {}

    def call(caller):
        for _ in range(5):
            combined = []
            run(2 + caller % 3, range(20), lambda task: task * caller, lambda _, result, to=combined: to.append(result))
            found.setdefault(caller, []).append(combined)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == {caller: [[task * caller for task in range(20)]] * 5 for caller in range(8)}
    assert sum(thread.name.startswith("pav2-worker") for thread in threading.enumerate()) <= 5 + 4 + 3 + 2


@pytest.mark.skipif(not hasattr(pool.os, "fork"), reason="no fork")
def test_a_forked_process_has_workers_of_its_own():
    in_process(
        "import os, time\n"
        "from pav2gen.runtime.workers import pool\n"
        "def total():\n"
        "    found = []\n"
        "    pool.run(2, range(9), lambda task: os.getpid(), lambda task, pid: found.append(pid), 3)\n"
        "    return found\n"
        "assert total() == [os.getpid()] * 9\n"
        "pool._lock.acquire()  # as if another thread were about to use the pool\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(total() != [os.getpid()] * 9)\n"
        "pool._lock.release()\n"
        "deadline, status = time.monotonic() + 30, None\n"
        "while time.monotonic() < deadline and status is None:\n"
        "    pid, code = os.waitpid(child, os.WNOHANG)\n"
        "    status = code if pid else time.sleep(0.02)\n"
        "if status is None:\n"
        "    os.kill(child, 9)\n"
        "assert status == 0, status\n"
        "assert total() == [os.getpid()] * 9\n"
    )


def test_the_interpreter_exits_beside_calls():
    script = (
        "import threading, time\n"
        "from pav2gen.runtime.workers import pool\n"
        "def call():\n"
        "    while True:\n"
        "        pool.run(2, range(20), lambda task: time.sleep(0.001), lambda task, result: None, 3)\n"
        "threading.Thread(target=call, daemon=True).start()\n"
        "time.sleep(0.1)\n"
    )
    assert in_process(script) == ""


@pytest.mark.parametrize("started", [True, False])
def test_a_call_while_the_interpreter_exits(started):
    script = (
        "import atexit\n"
        "from pav2gen.runtime.workers import pool\n"
        "def call():\n"
        "    found = []\n"
        "    pool.run(2, range(9), lambda task: task, lambda task, result: found.append(result), 3)\n"
        "    return found\n"
        "atexit.register(lambda: print(call()))\n"
    )
    assert in_process(script + ("call()\n" if started else "")) == str(list(range(9)))


def test_fewer_workers_are_some_of_the_same():
    run(3, range(3), lambda task: None)
    kept = pool._executor
    run(2, range(3), lambda task: None)
    assert pool._executor is kept


# Whether a call gets workers


def test_the_variable_forbids_workers(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.delenv("PAV2_WORKERS", raising=False)
    monkeypatch.setattr(pool, "crowded", lambda: False)
    assert pool.available() == (4, False, False)
    for value, expected in (("auto", (4, False)), ("", (4, False)), ("always", (4, True)), ("never", (1, False))):
        monkeypatch.setenv("PAV2_WORKERS", value)
        assert pool.available() == (*expected, False)
    monkeypatch.setenv("PAV2_WORKERS", "2")
    with pytest.raises(ValueError, match="PAV2_WORKERS is '2'; it must be auto, always or never"):
        pool.available()


def test_a_caller_with_one_thread_gets_none():
    in_process(
        "import torch\n"
        "from pav2gen.runtime.workers import pool\n"
        "torch.set_num_threads(1)\n"
        "assert pool.available().workers == 1\n"
        "torch.set_num_threads(3)\n"
        "assert pool.available().workers == 3\n"
    )


def test_a_worker_gets_none():
    found = []
    run(2, range(4), lambda task: pool.available().workers, lambda task, result: found.append(result))
    assert found == [1] * 4


def test_a_thread_that_is_observed_gets_none(package, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.delenv("PAV2_WORKERS", raising=False)
    probe = importlib.import_module(f"{package.__name__}.runtime.testing.probe")
    with probe.CallCounter():
        assert pool.available().workers == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert pool.available().workers == 1
    assert pool.available().workers == 4


@pytest.mark.parametrize(
    "text, expected",
    [
        (b"1.20 0.80 0.50 3/412 999\n", True),
        (b"9.00 9.00 9.00 2/412 999\n", False),  # only now counts, not the last minutes
        (b"", False),
        (b"1 2 3 many/412 9\n", False),
        (OSError(), False),
    ],
)
def test_a_machine_is_crowded_if_more_threads_run_than_it_has_processors(monkeypatch, text, expected):
    def read(*_, **__):
        if isinstance(text, OSError):
            raise text
        return io.BytesIO(text)

    monkeypatch.setattr(pool, "open", read, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(pool, "_compete", False)
    assert not pool.crowded()  # once may be a moment
    assert pool.crowded() == expected
    for policy, offered in (("auto", expected), ("always", False), ("never", False)):
        monkeypatch.setenv("PAV2_WORKERS", policy)
        assert pool.available().crowded == offered


def test_other_processes_make_a_machine_crowded():
    if not os.path.exists("/proc/loadavg"):
        pytest.skip("no /proc/loadavg")
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(1 + (os.cpu_count() or 1))]
    try:
        deadline = time.monotonic() + 20
        while not pool.crowded() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pool.crowded()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def tiling_of(lengths, threads, medium=False, workspace=64 * MIB, crowded=False):
    shares = PLAN.torch.shares._replace(workspace=workspace)
    offer = pool.Offer(threads, medium, crowded)
    return shares.fit(PLAN.torch.cpu, lengths, 4, 512, 16, known=True, available=lambda: offer)


def workers_of(*given, **options):
    return tiling_of(*given, **options).workers


def test_on_a_crowded_machine_calls_of_medium_length_get_workers_and_keep_their_tiles():
    least = 2 * CROWDED_BYTES // MIB * 128  # tokens
    for lengths in ([least], [100_000 - 2048], [8192] * 8, [40, 36_000, 700, *[40] * 13]):
        alone, crowded = tiling_of(lengths, 2), tiling_of(lengths, 2, crowded=True)
        assert alone.workers == 1 and crowded == alone._replace(workers=2)
    assert workers_of([least - 16], 2, crowded=True) == 1
    assert tiling_of([1 << 17], 2, crowded=True) == tiling_of([1 << 17], 2)  # a long call has the tiles of workers
    assert workers_of([least], 1, crowded=True) == 1


def test_openmp_computes_a_call_whose_tiles_would_leave_half_of_the_threads_idle():
    (row_tile,) = tiling_of([60_000], 4).row_tiles
    tiles = len(row_tile.tiles)
    assert tiles > 1
    assert workers_of([60_000], 2 * tiles, workspace=1 << 30, crowded=True) == 2 * tiles
    assert workers_of([60_000], 2 * tiles + 1, workspace=1 << 30, crowded=True) == 1


@pytest.mark.parametrize("medium, least", [(False, LONG_BYTES), (True, MEDIUM_BYTES)])
def test_calls_get_a_worker_for_each_thread(medium, least):
    long = 2 * least // MIB * 128  # tokens of two shares: a token takes 8 KiB in the buffers of a chunk
    assert workers_of([long], 2, medium) == 2 and workers_of([long - 16], 2, medium) == 1
    assert workers_of([long // 2] * 2, 2, medium) == 2
    assert workers_of([long], 3, medium) == 1 and workers_of([2 * long], 3, medium) == 3
    assert workers_of([long], 1, medium) == 1


def test_no_more_workers_than_their_memory_allows():
    each = PLAN.torch.worker.most_bytes(32, 4)
    assert workers_of([1 << 20], 3, workspace=3 * each) == 3
    assert workers_of([1 << 20], 3, workspace=3 * each - 1) == 1


@pytest.mark.parametrize("count", [2, 3, 4])
def test_workers_have_the_same_number_of_tiles_of_a_sequence(count):
    tiling = PLAN.torch.worker.fit([196 * 512], 4, 512, 16, known=True, workers=count)
    sizes = [tile.num_parts for tile in tiling.tiles()]
    assert sum(sizes) == 196 and len(sizes) % count == 0 and max(sizes) - min(sizes) <= 1


def test_workers_clamp_lengths_once():
    class Lengths:
        clamps = 0

        def clamp(self, *_):
            self.clamps += 1
            time.sleep(0.05)
            return self

    lengths = Lengths()
    rows, met = Rows(lengths, ordered=False, longest=5), threading.Barrier(3)
    run(3, range(3), lambda task: (met.wait(), rows.seq_lens))
    assert lengths.clamps == 1


# Kernels


@functools.cache
def call_of(*lengths, requires_grad=False):
    case = Case(Key(*PLAN.variant.key), 512, lengths, kv_heads=4, shared_blocks=512)
    return make(case)._replace(lse=None)


@pytest.fixture
def kernel(package, monkeypatch):
    """The kernel of ``PLAN``. Calls of it get two workers, if they are long, unless ``workers`` sets another number."""
    name = PLAN.variant.torch_path.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(f"{package.__name__}.{name}")
    module.pool = importlib.import_module(f"{package.__name__}.runtime.workers.pool")
    monkeypatch.setattr(module.pool, "available", lambda: pool.Offer(2, medium=True))
    return module


def outputs(module, call):
    call = copy_outputs(call)
    module.paged_attention(call)
    return call


def same(one, two):
    tensors = [(one.out, two.out), *zip(one.scratch, two.scratch)]
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in tensors)


#: One long sequence; two; a long one among short ones, which are ordered; sequences with a few partitions each.
BATCHES = [(40_000,), (33_000, 20_000), (40, 36_000, 700, *[40] * 13), (1500,) * 24]


@pytest.mark.parametrize("lengths", [(2100,), (8192,), (20_000,), (8192,) * 8, (1000,) * 8, *BATCHES])
def test_the_result_on_a_crowded_machine_is_the_same_to_the_bit(kernel, monkeypatch, lengths):
    call, used = call_of(*lengths), []
    monkeypatch.setattr(kernel.pool, "run", lambda *given, run=kernel.pool.run: (used.append(given[0]), run(*given)))
    monkeypatch.setattr(kernel.pool, "available", lambda: pool.Offer(2, False))
    alone = outputs(kernel, call)
    assert not used
    monkeypatch.setattr(kernel.pool, "available", lambda: pool.Offer(2, False, crowded=True))
    assert same(outputs(kernel, call), alone) and used == [2]


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("count", [2, 3])
def test_the_result_is_that_of_one_thread(kernel, monkeypatch, lengths, count):
    call = call_of(*lengths)
    monkeypatch.setattr(kernel.pool, "available", lambda: pool.Offer(1, medium=True))
    alone = outputs(kernel, call)
    used = []
    monkeypatch.setattr(kernel.pool, "available", lambda: pool.Offer(count, medium=True))
    monkeypatch.setattr(kernel, "SHARES", kernel.SHARES._replace(worker=kernel.SHARES.worker._replace(padding=0)))
    monkeypatch.setattr(kernel.pool, "run", lambda *given, run=kernel.pool.run: (used.append(given[0]), run(*given)))
    shares = importlib.import_module(kernel.Shares.__module__)
    monkeypatch.setattr(shares, "MEDIUM_BYTES", 16 * MIB)
    shared = outputs(kernel, call)
    assert used == [count]
    for ours, theirs in [(shared.out, alone.out), *zip(shared.scratch, alone.scratch)]:
        rounding = 1e-5 if ours.dtype == torch.float32 else 8e-3
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=1e-5, equal_nan=True)
    for _ in range(3):
        assert same(outputs(kernel, call), shared)


def test_the_result_does_not_depend_on_who_computes_what(kernel, monkeypatch):
    call, shared = call_of(*BATCHES[1]), outputs(kernel, call_of(*BATCHES[1]))

    def slow(task, compute):
        time.sleep(0.02 * (threading.get_ident() % 3))
        return compute(task)

    def run(count, tasks, compute, *rest, run=kernel.pool.run):
        run(count, tasks, functools.partial(slow, compute=compute), *rest)

    monkeypatch.setattr(kernel.pool, "run", run)
    assert same(outputs(kernel, call), shared)


def test_calls_are_as_planned(package, kernel, monkeypatch):
    probe = importlib.import_module(f"{package.__name__}.runtime.testing.probe")
    counts = Counter()

    def counted(function, *arguments):
        counter = probe.CallCounter()
        with counter:
            result = function(*arguments)
        counts.update(counter.counts)
        return result

    def run(count, tasks, compute, combine, ahead, run=kernel.pool.run):
        run(count, tasks, lambda task: counted(compute, task), lambda *found: counted(combine, *found), ahead)

    monkeypatch.setattr(kernel.pool, "run", run)
    for lengths in BATCHES[:3]:
        tiling = PLAN.torch.worker.fit(lengths, 4, 512, 16, known=True, workers=2)
        counts.clear()
        counts.update(probe.count_calls(lambda lengths=lengths: kernel.paged_attention(call_of(*lengths))))
        made = counts.pop("empty", 0)  # the workspaces of workers that have none yet
        assert made <= 2
        clears = 2 * (tiling.covered * 512 < max(lengths))
        assert sum(counts.values()) == PLAN.torch.calls(tiling) - 2 + clears, lengths


@pytest.mark.parametrize("lengths", BATCHES)
def test_workspaces_together_are_within_the_limit(kernel, monkeypatch, lengths):
    sizes = []

    def run(count, tasks, compute, combine, ahead, run=kernel.pool.run):
        state_bytes = 24 * (256 + 2) * 4
        waiting = ahead * count * state_bytes * max(tile.rows for _, tile in tasks)
        memory = importlib.import_module(kernel.Workspace.__module__)
        memory_of = lambda task: (compute(task), memory._kept.workspace.num_bytes)  # noqa: E731
        run(count, tasks, memory_of, lambda task, found: (sizes.append(found[1]), combine(task, found[0])), ahead)
        assert count * max(sizes) + waiting <= count * PLAN.torch.worker.most_bytes(32, 4) <= 64 * MIB

    for module in {name: held for name, held in sys.modules.items() if name.startswith("pav2_of")}.values():
        if module.__name__.endswith(".workspace"):
            module.forget()
    kernel.pool._forget()  # new workers have no workspace of an earlier test
    monkeypatch.setattr(kernel.pool, "run", run)
    outputs(kernel, call_of(*lengths))


def test_workspaces_of_a_crowded_call_are_within_the_limit(package, kernel):
    total = importlib.import_module(kernel.Workspace.__module__).total
    chance, shared = random.Random(5), 0
    for _ in range(300):
        lengths = [chance.choice((40, 600, 5000, 40_000)) for _ in range(chance.choice((1, 2, 5, 20, 60)))]
        kv_heads, threads = chance.choice((1, 2, 4, 8)), chance.randrange(2, 9)
        offer = pool.Offer(threads, medium=False, crowded=True)
        given = kernel.CPU, lengths, kv_heads, 512, 16
        tiling = kernel.SHARES.fit(*given, known=True, available=lambda offer=offer: offer)
        if tiling.workers > 1 and tiling == kernel.CPU.fit(*given[1:], known=True)._replace(workers=tiling.workers):
            each = max(total(kernel.buffer_sizes(*tile.shape, kv_heads)) for tile in tiling.shapes)
            states = AHEAD * 6 * kv_heads * (256 + 2) * 4 * max(tile.rows for tile in tiling.tiles())
            assert tiling.workers * (each + states) <= 64 * MIB
            shared += 1
    assert shared > 50


def test_tensors_of_inference_mode_and_queries_with_a_gradient(package, kernel, monkeypatch):
    first = call_of(40_000)
    expected, used = outputs(kernel, first), []
    kernel.pool._forget()  # new workers, with no views of an earlier call
    monkeypatch.setattr(kernel.pool, "run", lambda *given, run=kernel.pool.run: (used.append(1), run(*given)))
    for inference in (True, False, True):
        call = first._replace(query=first.query.clone().requires_grad_(not inference))
        with torch.inference_mode(inference):
            call = copy_outputs(call._replace(query=call.query.clone()))
            assert call.query.requires_grad != inference and call.out.is_inference() == inference
            package.paged_attention_v2(
                call.out, *call.scratch, call.query, call.key_cache, call.value_cache, 4, call.scale,
                call.block_tables, call.seq_lens, 16, call.max_seq_len, None, "auto", 1.0, 1.0, partition_size=512,
            )  # fmt: skip
            assert same(call, expected) and not call.out.requires_grad
    assert len(used) == 3


def test_eight_calls_at_once(kernel):
    calls = [call_of(*lengths) for lengths in BATCHES[:2]] * 4
    expected, found = [outputs(kernel, call) for call in calls[:2]] * 4, {}
    threads = [
        threading.Thread(target=lambda number=number, call=call: found.update({number: outputs(kernel, call)}))
        for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(same(found[number], call) for number, call in enumerate(expected))
