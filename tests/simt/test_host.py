"""The host's side of CUDA: device memory that it must not touch, copies, allocations, errors."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from pav2gen.runtime import simt

from .helpers import HERE, call, kinds, marks, run


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "fast"])
def either(request, cache) -> simt.Program:
    return simt.build([HERE / "host.cu"], warp_size=64, checked=request.param, cache_dir=cache)


@pytest.fixture(scope="module")
def host(cache) -> simt.Program:
    return simt.build([HERE / "host.cu"], warp_size=64, checked=True, cache_dir=cache)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


@pytest.mark.parametrize(
    "function, mark, offset, value",
    [("host_reads", "read", 20, 6), ("host_writes", "write", 28, 70), ("libc_reads", "libc", 0, 1)],
)
def test_the_host_touches_device_memory(either, function, mark, offset, value):
    """It is found at the host's line, and the program goes on."""
    seen = ints(8)
    code, report = run(either, function, seen)
    assert (code, kinds(report)) == (0, ["host-access"]), str(report)
    finding = report.findings[0]
    assert (marks(finding, "host.cu"), finding.offset, finding.kernel) == ({mark}, offset, "")
    assert value in seen and "cudaMemcpy" in finding.expected


def test_the_host_touches_freed_memory(either):
    _, report = run(either, "host_reads_freed", ints(1))
    assert kinds(report) == ["host-access"] and marks(report.findings[0], "host.cu") == {"freed"}
    assert "freed device memory" in report.findings[0].what


def test_memory_of_both(either):
    seen = ints(1)
    code, report = run(either, "host_uses_its_own", seen)
    assert (code, kinds(report), seen[0]) == (0, [], 3)


def test_copying_what_nobody_has_written(host):
    """Between device buffers it is no fault yet; the copy to the host is."""
    out = ints(64)
    assert kinds(run(host, "copy_what_was_written", out, 64)[1]) == [] and out.tolist() == list(range(1, 65))
    _, report = run(host, "copy_what_was_written", out, 60)
    assert kinds(report) == ["uninitialised"]
    finding = report.findings[0]
    assert (marks(finding, "host.cu"), finding.offset) == ({"unwritten"}, 240)
    assert "allocation 2" in finding.what


def test_copying_the_wrong_way(either):
    code, report = run(either, "copy_the_wrong_way", ints(64))
    assert code == 1001 and kinds(report) == ["copy-direction", "copy-direction"]
    assert [marks(f, "host.cu") for f in report.findings] == [{"device"}, {"direction"}]


def test_arguments_that_no_copy_has(either):
    assert call(either, "odd_arguments") == 21012


def test_pitched_memory(either):
    rows = 6
    matrix = np.arange(rows * 8, dtype=np.int32).reshape(rows, 8)
    out = np.zeros((rows, 5), np.int32)
    code, report = run(either, "through_pitched_memory", out, matrix, rows)
    assert (code, kinds(report)) == (512, [])
    expected = matrix[:, :5].copy()
    expected[:, 4] = 0x07070707
    assert (out == expected).all()


def test_rows_beyond_the_end(either):
    code, report = run(either, "a_pitch_too_long", ints(8), 8)
    assert code == 1 and kinds(report) == ["out-of-bounds"] and marks(report.findings[0], "host.cu") == {"pitch"}
    assert "past the end of 'allocation 1" in report.findings[0].what


def test_allocations_that_no_card_gives(either):
    assert call(either, "too_much", ints(1)) == 2002
    assert call(either, "memory_left") == 0


@pytest.mark.parametrize(
    "how, words",
    [(0, "was freed before"), (1, "4 bytes after the beginning"), (2, "no allocation"), (3, "memory of the host")],
)
def test_freeing_what_is_not_to_be_freed(either, how, words):
    code, report = run(either, "free_wrongly", how)
    assert code == 1001 and kinds(report) == ["invalid-free"]
    assert marks(report.findings[0], "host.cu") == {"free"} and words in report.findings[0].what


@pytest.mark.parametrize("limit, answer", [(0, 32 * 10000 + 1024), (256, 128 * 10000 + 256), (5000, 32 * 10000 + 1024)])
def test_a_size_for_blocks(either, limit, answer):
    assert call(either, "block_size", limit) == answer


def test_a_child_forked_while_another_thread_is_in_a_launch(library):
    """It waits until that launch is over, and then launches on its own."""
    program = library(64, False)
    with program.session(time_limit=1):
        busy = threading.Thread(target=call, args=(program, "hang", ints(1)))
        busy.start()
        time.sleep(0.3)
        child = multiprocessing.get_context("fork").Process(target=launch_and_leave, args=(program,))
        child.start()
        child.join(60)
        alive = child.is_alive()
        child.kill()
        busy.join()
    assert (alive, child.exitcode) == (False, 7)


def launch_and_leave(program: simt.Program) -> None:
    out = np.zeros(1, np.int32)
    os._exit(7 if call(program, "same_write", out, 1, 1) == 0 and out[0] == 7 else 1)
