"""Offsets in the workspace beyond 2^31 elements: one thread writes and reads where the last of many rows lies.

A call with so much workspace would take hours here. Only the memory that the thread must touch is registered, so an
offset computed in 32 bits is a finding.
"""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from pav2gen.runtime import launch, simt
from pav2gen.runtime.testing import cases

HERE = Path(__file__).parent
HEADERS = Path(launch.__file__).parent / "cuda"
SEQS, HEADS, PARTITIONS, HEAD_SIZE = 65_535, 64, 1_024, 64
ROWS = SEQS * HEADS
#: A header, what stands before an offset of 64 bits in it, the offset, and the function that must show it in 32 bits.
FAULTS = {
    "state": ("partition", "= ", "(static_cast<int64_t>(at.seq) * a.num_heads + head) * a.partitions", "launch_write"),
    "element": ("partition", "partial_out[", "(row * a.partitions + at.slot) * head_size", "launch_write"),
    "merged m": ("reduce", "a.partial_m + ", "row * a.partitions", "launch_merge"),
    "merged z": ("reduce", "a.partial_z + ", "row * a.partitions", "launch_merge"),
    "merged o": ("reduce", "a.partial_out + ", "row * a.partitions * kHeadSize", "launch_merge"),
}


@pytest.fixture(scope="module")
def memory():
    """Workspace of a huge call: (o, m, z), backed only where it is touched."""
    count = ROWS * PARTITIONS
    assert count > cases.FAR
    try:
        return [cases.reserve(size * count, torch.float32) for size in (HEAD_SIZE, 1, 1)]
    except OSError as error:
        pytest.skip(f"no address space for {count} partitions: {error}")


def arguments(memory, out):
    args = launch.Args(num_seqs=SEQS, num_heads=HEADS, partitions=PARTITIONS)
    args.partial_out, args.partial_m, args.partial_z = (tensor.data_ptr() for tensor in memory)
    args.out = out.data_ptr()
    return args


def run(program, name, memory, partition, out):
    """Launch one kernel that may touch only ``partition`` of the last row."""
    o, m, z = memory
    at = (ROWS - 1) * PARTITIONS + partition
    with program.session() as session:
        session.buffer("out", out)
        session.buffer("m", m[at : at + 1])
        session.buffer("z", z[at : at + 1])
        session.buffer("o", o[at * HEAD_SIZE : (at + 1) * HEAD_SIZE])
        program.fn(name)(ctypes.byref(arguments(memory, out)))
        session.report.raise_for_findings()


def test_the_last_partition_is_written_where_it_lies(memory):
    program = simt.build([HERE / "partials.cu"], checked=True, include=[HEADERS])
    run(program, "launch_write", memory, PARTITIONS - 1, torch.zeros(6))
    o, m, z = memory
    assert (m[-1], z[-1]) == (2.0, 3.0)
    assert o[-HEAD_SIZE:].tolist() == list(range(HEAD_SIZE))


def test_the_last_row_is_merged_from_where_it_lies(memory):
    program = simt.build([HERE / "partials.cu"], checked=True, include=[HEADERS])
    o, m, z = memory
    first, out = (ROWS - 1) * PARTITIONS, torch.zeros(6)
    m[first], z[first] = 1.5, 4.0
    o[first * HEAD_SIZE : (first + 1) * HEAD_SIZE] = torch.arange(HEAD_SIZE).float()
    run(program, "launch_merge", memory, 0, out)
    assert out.tolist() == [8.0, 9.0, 10.0, 11.0, 4.0, 1.5]


@pytest.mark.parametrize("name", FAULTS)
def test_an_offset_in_32_bits_is_found(memory, tmp_path, name):
    header, before, offset, function = FAULTS[name]
    folder = tmp_path / "cuda"
    shutil.copytree(HEADERS, folder)
    file = folder / f"pav2_{header}.cuh"
    text = file.read_text()
    assert before + offset in text
    file.write_text(text.replace(before + offset, f"{before}static_cast<int>({offset})"))
    program = simt.build([HERE / "partials.cu"], checked=True, include=[folder])
    with pytest.raises(simt.FindingsError, match="out"):
        run(program, function, memory, PARTITIONS - 1 if function == "launch_write" else 0, torch.zeros(6))
