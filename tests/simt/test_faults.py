"""Every planted fault is found, with its lines; the same kernel without the fault has no findings."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

from pav2gen.runtime import simt

from .helpers import HERE, call, kinds, marks, run

ORDERS = ["ascending", "descending", "random"]


def floats(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def only(report: simt.Report, kind: str) -> simt.Finding:
    """The one finding, of this kind."""
    assert kinds(report) == [kind], str(report)
    return report.findings[0]


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def either(library, warp, request):
    return library(warp, request.param)


# ---- global memory


@pytest.mark.parametrize("order", ORDERS)
def test_beyond_the_end_of_a_buffer(checked, order):
    memory = floats(4096)  # far apart, as nothing is found where an access ends in the other buffer
    out, data = memory[:128], memory[2048:2176]
    assert run(checked, "beyond_end", out, data, 0, readonly=(1,), lane_order=order, block_order=order)[0] == 0
    code, report = run(checked, "beyond_end", out, data, 10, readonly=(1,), lane_order=order, block_order=order)
    finding = only(report, "out-of-bounds")
    assert (code, finding.stopped, marks(finding)) == (700, True, {"beyond"})
    assert "past the end of 'a1' (512 bytes)" in finding.what
    assert finding.places[0].block == (1, 0, 0)


def test_an_unregistered_buffer_and_a_null_pointer(checked):
    out, data = floats(128), floats(128)
    with checked.session() as session:
        session.buffer("out", out)
        assert call(checked, "beyond_end", out, data, 0) == 700
        assert call(checked, "beyond_end", out, 0, 0) == 700
    first, second = session.report.findings
    assert first.kind == second.kind == "out-of-bounds"
    assert "null pointer" in second.what and marks(first) == {"beyond"}


@pytest.mark.parametrize("order", ORDERS)
def test_misaligned(checked, order):
    out, data = floats(32), floats(136)
    assert kinds(run(checked, "misaligned_load", out, data, 4)[1]) == []
    code, report = run(checked, "misaligned_load", out, data, 1, lane_order=order)
    finding = only(report, "misaligned")
    assert (code, finding.stopped, finding.buffer, marks(finding)) == (716, True, "a1", {"misaligned"})
    assert finding.offset is not None and finding.offset % 16 == 4


def test_write_to_a_readonly_buffer_is_not_performed(checked):
    data = floats(32)
    code, report = run(checked, "write_readonly", data, readonly=(0,))
    assert (code, marks(only(report, "read-only"))) == (700, {"readonly"})
    assert data.tolist() == floats(32).tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_unwritten_scratch(checked, order):
    out, scratch = floats(64), floats(64)
    assert kinds(run(checked, "unwritten_scratch", out, scratch, 64, scratch=(1,))[1]) == []
    code, report = run(checked, "unwritten_scratch", out, scratch, 60, scratch=(1,), lane_order=order)
    finding = only(report, "uninitialised")
    assert (code, marks(finding), finding.buffer, finding.count) == (0, {"unwritten"}, "a1", 4)
    assert not finding.stopped


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("blocks, threads", [(1, 64), (1, 200), (3, 1), (3, 64)])
def test_several_threads_write_one_word(checked, order, blocks, threads):
    _, report = run(checked, "same_write", ints(1), blocks, threads, lane_order=order, block_order=order)
    finding = only(report, "race")
    assert marks(finding) == {"samewrite"} and len(finding.places) == 2
    assert finding.places[0].threads != finding.places[1].threads or blocks > 1
    assert kinds(run(checked, "same_write", ints(1), 1, 1)[1]) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_reads_what_another_writes(checked, order):
    _, report = run(checked, "cross_block", ints(4), block_order=order, lane_order=order)
    pairs = [marks(f) for f in report.findings if f.kind == "race"]
    assert {"crossread", "crosswrite"} in pairs
    assert len({p.block for f in report.findings for p in f.places}) > 1


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_block_may_read_all_parts_behind_fence_and_atomic(checked, order):
    total, parts = floats(1), floats(5)
    code, report = run(checked, "last_block_sum", total, parts, 1, block_order=order, lane_order=order)
    assert (code, kinds(report), total[0]) == (0, [], 10)
    _, report = run(checked, "last_block_sum", total, parts, 0, block_order=order, lane_order=order)
    assert {f.kind for f in report.findings} == {"race"}
    assert marks(report.findings[0]) == {"partwrite", "partread"}


@pytest.mark.parametrize("order", ORDERS)
def test_atomics_conflict_with_plain_accesses_only(checked, order):
    counter = ints(1)
    code, report = run(checked, "atomic_counter", counter, 0, lane_order=order, block_order=order)
    assert (code, kinds(report), counter[0]) == (0, [], 192)
    _, report = run(checked, "atomic_counter", counter, 1, lane_order=order, block_order=order)
    assert set(kinds(report)) == {"race"} and {"plainwrite", "atomic"} in [marks(f) for f in report.findings]


# ---- shared memory


@pytest.mark.parametrize("order", ORDERS)
def test_missing_barrier(checked, order):
    out, data = floats(128), floats(128)
    assert kinds(run(checked, "missing_barrier", out, data, 1, lane_order=order)[1]) == []
    _, report = run(checked, "missing_barrier", out, data, 0, lane_order=order)
    races = [f for f in report.findings if f.kind == "race"]
    assert races and all(marks(f) == {"racewrite", "raceread"} and f.buffer == "tile" for f in races)
    assert set(kinds(report)) == {"race", "uninitialised"}


@pytest.mark.parametrize("order", ORDERS)
def test_missing_barrier_before_reuse(checked, order):
    out, data = floats(128), floats(384)
    assert kinds(run(checked, "missing_second_barrier", out, data, 1, lane_order=order)[1]) == []
    _, report = run(checked, "missing_second_barrier", out, data, 0, lane_order=order)
    assert {f.kind for f in report.findings} == {"race"}
    assert all(marks(f) == {"reusewrite", "reuseread"} for f in report.findings)


@pytest.mark.parametrize("order", ORDERS)
def test_bytes_of_a_word_are_told_apart(checked, order):
    out = np.zeros(256, np.uint8)
    assert kinds(run(checked, "byte_race", out, 0, lane_order=order)[1]) == []
    _, report = run(checked, "byte_race", out, 1, lane_order=order)
    assert marks(only(report, "race")) == {"bytewrite", "byterace"}
    assert report.findings[0].offset == 201


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "policy, ordered_by",
    [("collective", {"__syncwarp", "shuffle", "__syncthreads"}), ("syncwarp", {"__syncwarp", "__syncthreads"}),
     ("syncthreads", {"__syncthreads"})],
)  # fmt: skip
def test_what_orders_the_lanes_of_a_warp_is_policy(checked, warp, order, policy, ordered_by):
    out, data = floats(warp), floats(warp)
    for kind, what in enumerate(["__syncwarp", "shuffle", "nothing", "__syncthreads"]):
        _, report = run(checked, "warp_tree", out, data, kind, lane_order=order, warp_order=policy)
        races = [f for f in report.findings if f.kind == "race"]
        assert bool(races) == (what not in ordered_by), what
        assert all(marks(f) == {"treewrite", "treeread"} for f in races)


@pytest.mark.parametrize("order", ORDERS)
def test_parts_of_a_warp_that_synchronize_alone(checked, warp, order):
    out = floats(warp)
    assert kinds(run(checked, "part_warps", out, 0, lane_order=order)[1]) == []
    _, report = run(checked, "part_warps", out, 1, lane_order=order)
    assert "race" in kinds(report) and marks(report.findings[-1]) <= {"partwrite16", "partread16"}


@pytest.mark.parametrize("order", ORDERS)
def test_unwritten_shared_memory(checked, order):
    out, data = floats(96), floats(96)
    policy = {"lane_order": order, "block_order": order}
    with checked.session(**policy) as session:  # both blocks write the same: that is not what is looked for
        session.buffer("out", out)
        session.buffer("in", data, writable=False)
        call(checked, "unwritten_tail", out, data, 90)
    found = [f for f in session.report.findings if f.kind == "uninitialised"]
    assert len(found) == 1 and marks(found[0]) == {"uninitshared"} and found[0].count == 12
    assert found[0].buffer == "tile" and found[0].offset is not None and 360 <= found[0].offset < 384


def test_an_atomic_writes_what_it_touches(checked):
    """Both blocks find the word unwritten once, at the exchange (which reads, too), and not after it."""
    out = ints(32)
    _, report = run(checked, "written_by_atomics", out)
    found = [f for f in report.findings if f.kind == "uninitialised"]
    assert [(marks(f), f.count) for f in found] == [({"exchange"}, 2)]
    assert {f.kind for f in report.findings} == {"uninitialised", "race"}  # the race is that of two blocks on `out`
    assert out.tolist() == [37] * 32


def test_shared_memory_is_poisoned(fast):
    """What the fast build shows of the same fault: NaN, whatever the block before has left there."""
    out, data = floats(96), floats(96)
    assert call(fast, "unwritten_tail", out, data, 90) == 0
    assert np.isnan(out[:6]).all() and not np.isnan(out[6:]).any()


def test_an_array_index_outside(checked):
    out = floats(32)
    assert kinds(run(checked, "array_overrun", out, 0)[1]) == []
    _, report = run(checked, "array_overrun", out, 1)
    assert "array-bounds" in kinds(report)
    finding = next(f for f in report.findings if f.kind == "array-bounds")
    assert marks(finding) == {"arrayindex"} and "32" in finding.what


@pytest.mark.parametrize("order", ORDERS)
def test_a_pointer_that_leaves_its_shared_array(checked, order):
    out = floats(8)
    assert kinds(run(checked, "stray_pointer", out, 3)[1]) == []
    code, report = run(checked, "stray_pointer", out, 4, lane_order=order)
    finding = only(report, "out-of-bounds")
    assert (code, marks(finding)) == (700, {"strayed"})
    assert "0 bytes past the end of shared array" in finding.what and "(128 bytes)" in finding.what


def test_beyond_dynamic_shared_memory(checked):
    out = floats(32)
    assert kinds(run(checked, "dynamic_overrun", out, 31)[1]) == []
    code, report = run(checked, "dynamic_overrun", out, 32)
    finding = only(report, "out-of-bounds")
    assert (code, marks(finding)) == (700, {"dynamic"}) and "dynamic shared memory (128 bytes)" in finding.what


def test_far_outside_shared_memory(checked):
    code, report = run(checked, "far_outside", floats(32), 1 << 40)
    assert (code, marks(only(report, "out-of-bounds"))) == (700, {"far"})


def test_a_pointer_to_anothers_local_variable(checked):
    code, report = run(checked, "leaked_local", ints(32))
    finding = only(report, "out-of-bounds")
    assert (code, marks(finding)) == (700, {"leaked"}) and "local memory of thread 0" in finding.what


# ---- locks and flags


@pytest.mark.parametrize("order", ORDERS)
def test_a_lock_with_fences_orders_the_threads_of_a_block(checked, order):
    out = ints(1)
    code, report = run(checked, "spin_lock", out, 0, lane_order=order)
    assert (code, kinds(report), out[0]) == (0, [], 160)
    count = ints(1)
    code, report = run(checked, "global_spin_lock", count, lane_order=order, block_order=order)
    assert (code, kinds(report), count[0]) == (0, [], 480)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind, places", [(1, {"inside"}), (2, {"inside"}), (3, {"inside", "notheld"})])
def test_a_lock_that_orders_nothing(checked, order, kind, places):
    """The advice for a lock is a fence: a barrier in it would wait for ever."""
    _, report = run(checked, "spin_lock", ints(1), kind, lane_order=order)
    assert set(kinds(report)) == {"race"}
    assert set().union(*(marks(f) for f in report.findings)) == places
    assert kind == 2 or all(f.expected.startswith("__threadfence_block()") for f in report.findings)


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_holds_a_lock(checked, warp, order):
    """Its lanes meet while it does: what they did before is handed over too, and who waits lets them go on."""
    out = ints(warp)
    code, report = run(checked, "warp_lock", out, 1, lane_order=order, time_limit=20)
    assert (code, kinds(report), out.tolist()) == (0, [], [6] * warp)
    _, report = run(checked, "warp_lock", out, 0, lane_order=order, time_limit=20)
    assert {f.kind for f in report.findings} == {"race"}
    assert all(marks(f) == {"first", "second"} for f in report.findings)


@pytest.mark.parametrize("order", ORDERS)
def test_a_thread_waits_for_a_flag(either, order):
    out = ints(1)
    code, report = run(either, "wait_for_flag", out, lane_order=order, time_limit=20)
    assert (code, kinds(report), out[0]) == (0, [], 9)


@pytest.mark.parametrize("order", ORDERS)
def test_a_word_that_is_passed_on(checked, order):
    out = ints(1)
    code, report = run(checked, "relay", out, 1, lane_order=order, time_limit=20)
    assert (code, kinds(report), out[0]) == (0, [], 4)
    _, report = run(checked, "relay", out, 0, lane_order=order, time_limit=20)
    assert marks(only(report, "race")) == {"sent", "received"}


def test_the_advice_is_the_least_that_orders_all(checked, warp):
    """Lanes of one warp need __syncwarp only; where threads of others meet there too, it is __syncthreads."""
    _, report = run(checked, "warp_tree", floats(warp), floats(warp), 2)
    races = [f for f in report.findings if f.kind == "race"]
    assert {f.expected for f in races} == {"__syncwarp() between the two"}
    _, report = run(checked, "warp_tree", floats(warp), floats(warp), 2, warp_order="syncthreads")
    assert {f.expected for f in report.findings if f.kind == "race"} == {"__syncthreads() between the two"}
    _, report = run(checked, "missing_barrier", floats(128), floats(128), 0)
    assert {f.expected for f in report.findings if f.kind == "race"} == {"__syncthreads() between the two"}


# ---- barriers and collectives: found by both builds


@pytest.mark.parametrize("order", ORDERS)
def test_divergent_barriers(either, order):
    out = floats(64)
    assert kinds(run(either, "divergent_barriers", out, 0, lane_order=order)[1]) == []
    _, report = run(either, "divergent_barriers", out, 1, lane_order=order)
    finding = only(report, "barrier-divergence")
    assert marks(finding) == {"even", "odd"}
    assert sorted(p.threads.split(",")[0] for p in finding.places) == ["threads 0", "threads 1"]


@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_have_returned(either, order):
    out = floats(128)
    assert kinds(run(either, "exited_threads", out, 128, lane_order=order)[1]) == []
    code, report = run(either, "exited_threads", out, 100, lane_order=order)
    finding = only(report, "exited-thread")
    assert (code, marks(finding)) == (0, {"early"}) and "threads 100-127" in finding.what
    assert kinds(run(either, "exited_threads", out, 100, lane_order=order, strict_exit=False)[1]) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_shuffle_that_not_all_lanes_reach(either, warp, order):
    out = floats(2 * warp)
    assert kinds(run(either, "shuffle_in_branch", out, warp, lane_order=order)[1]) == []
    code, report = run(either, "shuffle_in_branch", out, 8, lane_order=order)
    finding = only(report, "deadlock")
    assert (code, finding.stopped, marks(finding)) == (702, True, {"stuck", "others"})
    text = str(finding)
    assert f"waits in a shuffle of warp 1 for lanes 8-{warp - 1}" in text
    assert f"threads {warp}-{warp + 7}" in text and "waits at a barrier" in text


@pytest.mark.parametrize("order", ORDERS)
def test_a_shuffle_after_lanes_have_returned(either, warp, order):
    out = floats(warp)
    assert kinds(run(either, "shuffle_after_exit", out, warp, lane_order=order)[1]) == []
    _, report = run(either, "shuffle_after_exit", out, 20, lane_order=order)
    assert set(kinds(report)) == {"absent-lane"} and marks(report.findings[0]) == {"gone"}
    _, report = run(either, "shuffle_after_exit", out, 20, lane_order=order, strict_exit=False)
    assert "lane 19 reads lane 20, which has returned" in only(report, "absent-lane").what


def test_reading_a_lane_outside_the_mask(either, warp):
    out = floats(warp)
    assert kinds(run(either, "read_outside_mask", out, 7)[1]) == [] and out[0] == 7
    _, report = run(either, "read_outside_mask", out, 9)
    finding = only(report, "absent-lane")
    assert marks(finding) == {"outside"} and "reads lane 9, which is not in the mask" in finding.what
    assert np.isnan(out[:8]).all()  # undefined, and visibly so


def test_a_lane_outside_its_own_mask(either, warp):
    _, report = run(either, "lane_not_in_mask", floats(warp))
    finding = report.findings[0]
    assert (
        finding.kind == "absent-lane"
        and marks(finding) == {"notinmask"}
        and "lane 7 passes a mask without itself" in finding.what
    )


def test_a_mask_of_32_ones(either, warp):
    out = floats(warp)
    assert kinds(run(either, "mask_of_32", out)[1]) == []
    assert out.tolist() == [t ^ warp // 2 for t in range(warp)]
    _, report = run(either, "mask_of_32", out, full_mask_32=False)
    assert kinds(report) == ([] if warp == 32 else ["absent-lane"])


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_meet_in_different_calls(either, warp, order):
    _, report = run(either, "divergent_calls", floats(warp), lane_order=order)
    assert marks(only(report, "divergent-collective")) == {"callodd", "calleven"}


def test_a_width_that_is_no_power_of_two(either, warp):
    _, report = run(either, "shuffle_width", floats(warp))
    assert marks(only(report, "absent-lane")) == {"width"}


def test_a_sum_over_32_lanes_of_a_warp_of_64_is_visibly_wrong(fast, warp):
    out = floats(1)
    _, report = run(fast, "sum_of_width", out, 32)
    assert kinds(report) == [] and out[0] == 32  # half of the 64 at warp size 64
    run(fast, "sum_of_width", out, warp)
    assert out[0] == warp


# ---- crashes: the process lives, and a launch after it works


def works(program: simt.Program) -> None:
    out = floats(128)
    assert call(program, "missing_barrier", out, floats(128), 1) == 0
    assert out.tolist() == floats(128)[::-1].tolist()


def test_a_wild_address(library, warp):
    program, data, out = library(warp, False), ints(4), ints(32)
    code, report = run(program, "wild_load", data, out, 1 << 40)
    finding = only(report, "crash")
    assert (code, finding.stopped, marks(finding)) == (700, True, {"wild"})
    assert "SIGSEGV" in finding.what and finding.places[0].threads == "thread 0"
    assert "SIGSEGV" in program.message or program.message == ""
    works(program)


def test_division_by_zero(library, warp):
    program, out = library(warp, False), ints(32)
    code, report = run(program, "divide_by", out, 7)
    finding = only(report, "crash")
    assert (code, marks(finding), finding.places[0].threads) == (719, {"divide"}, "thread 7")
    works(program)
    _, report = run(library(warp, True), "divide_by", out, 7)
    assert kinds(report)[0] == "division" and marks(report.findings[0]) == {"divide"}


def test_a_stack_that_is_too_small(either):
    out = ints(32)
    code, report = run(either, "deep_stack", out, 500)
    finding = only(report, "stack-overflow")
    assert code == 719 and "131072 bytes" in finding.what
    code, report = run(either, "deep_stack", out, 500, stack_bytes=1 << 20)
    assert (code, kinds(report)) == (0, [])


@pytest.mark.parametrize("kilobytes", [160, 300, 65536])
def test_a_local_array_larger_than_a_stack(either, kilobytes):
    """It never reaches into another thread's stack, however far beyond its own it goes."""
    out = ints(64)
    code, report = run(either, "large_locals", out, kilobytes)
    assert (code, kinds(report), out.any()) == (719, ["stack-overflow"], False)
    if kilobytes < 1000:
        code, report = run(either, "large_locals", out, kilobytes, stack_bytes=400 << 10)
        assert (code, kinds(report), out.tolist()) == (0, [], list(range(64)))


@pytest.mark.parametrize("how, name", enumerate(["exit", "_exit", "_Exit", "quick_exit", "abort"]))
def test_a_kernel_that_leaves_the_process(either, how, name):
    code, report = run(either, "leave_process", how)
    finding = only(report, "exit")
    assert (code, finding.stopped, finding.places[0].threads) == (719, True, "thread 3")
    assert marks(finding) == {f"exit{how}"} and f"called {name}()" in finding.what
    assert run(either, "launch_size", 1, 32, 0)[0] == 0


def test_stacks_that_cannot_be_mapped(either):
    code, report = run(either, "launch_size", 1, 1024, 0, stack_bytes=1 << 30)
    assert (code, kinds(report)) in [(0, []), (2, ["launch"])]  # a terabyte of addresses: the system decides
    assert run(either, "launch_size", 1, 32, 0)[0] == 0


@pytest.mark.parametrize("name", ["hang", "spin"])
def test_a_launch_without_end(either, name):
    code, report = run(either, name, ints(1), time_limit=0.2)
    finding = only(report, "hang")
    assert (code, finding.stopped) == (702, True) and finding.locations
    works_after, _ = run(either, "shuffle_width", floats(64))
    assert works_after == 0


def test_a_message_is_of_the_last_launch(either):
    for threads in (2000, 3000, 2000):
        assert call(either, "launch_size", 1, threads, 0) == 9
        assert f"a block of {threads} x 1 x 1 threads" in either.message
    assert call(either, "launch_size", 1, 32, 0) == 0 and either.message == ""


def test_launches_from_two_threads_take_turns(library, warp):
    program, outs = library(warp, False), [ints(32) for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda i: call(program, "deep_stack", outs[i % 4], 40), range(200)))
    assert set(codes) == {0}


def test_assertions_and_traps(either):
    out = ints(32)
    assert run(either, "failed_assertion", out, 32)[0] == 0
    code, report = run(either, "failed_assertion", out, 31)
    finding = only(report, "assert")
    assert (code, marks(finding), finding.places[0].threads) == (710, {"assert"}, "thread 31")
    code, report = run(either, "trapped", out)
    assert (code, marks(only(report, "trap"))) == (715, {"trap"})


def test_overflow_of_32_bits(checked):
    out = ints(1)
    assert kinds(run(checked, "overflow_32_bits", out, 46340, 46340)[1]) == []
    _, report = run(checked, "overflow_32_bits", out, 46341, 46341)
    finding = only(report, "integer-overflow")
    assert marks(finding) == {"overflow"} and "multiplication" in finding.what
    assert kinds(run(checked, "overflow_32_bits", out, 46341, 46341, integer_overflow=False)[1]) == []


@pytest.mark.parametrize(
    "blocks, threads, bytes, code", [(0, 32, 0, 9), (1, 0, 0, 9), (1, 1025, 0, 9), (1, 32, 49153, 1)]
)
def test_sizes_that_no_card_takes(either, blocks, threads, bytes, code):
    assert run(either, "launch_size", 1, 1024, 49152)[0] == 0
    got, report = run(either, "launch_size", blocks, threads, bytes)
    assert (got, kinds(report)) == (code, ["launch"])


def test_dynamic_shared_memory_above_48_kib_is_asked_for(kept, warp):
    program = simt.build([HERE / "faults.cu"], warp_size=warp, cache_dir=kept)
    assert run(program, "raised_limit", 0)[0] == 1
    assert run(program, "raised_limit", 65536)[0] == 0
    assert run(program, "raised_limit", 0)[0] == 0  # the attribute stays


def test_a_report_with_findings_raises(checked):
    _, report = run(checked, "same_write", ints(1), 1, 64)
    with pytest.raises(simt.FindingsError, match="race: two threads touch 'a0'"):
        report.raise_for_findings()
    assert "samewrite" in {m for f in report.findings for m in marks(f)}
    _, clean = run(checked, "same_write", ints(1), 1, 1)
    clean.raise_for_findings()


def test_faults_of_a_session_are_gone_in_the_next(checked):
    run(checked, "same_write", ints(1), 1, 64)
    _, report = run(checked, "same_write", ints(1), 1, 1)
    assert report.findings == () and report.totals.launches == 1 and list(report.buffers) == ["a0"]
