"""The reduction's work: of a sequence's own partitions alone, and in rounds of independent loads."""

import importlib

import pytest

from pav2gen.runtime.choice.waves import REDUCTION_PARTITIONS
from pav2gen.runtime.testing.cases import make

SYMBOL = "pav2_qwen25_05b_hd64_g7_b16_f16_p256"
REDUCE_THREADS, LOADS_IN_FLIGHT = 256, 4


@pytest.fixture(scope="module", params=["warp64", "warp32"])
def kernel(request, package):
    row = next(row for row in package.operator.table.rows if row.symbol == SYMBOL)
    harness = importlib.import_module(f"{package.__name__}.runtime.testing.cuda_harness")
    return harness.CheckedKernel(package, row, request.param, [row])


def test_a_short_sequence_in_a_call_of_a_million_tokens(kernel):
    kernel.check_empty_work(seq_lens=[100], max_seq_len=1 << 20)


@pytest.mark.parametrize("partitions", [1, 64, 65, 130])
def test_the_chain_of_loads_is_a_round_for_each_64_partitions(kernel, partitions):
    """Each element of a partial result is loaded once, by threads that each have four loads in flight."""
    tokens = partitions * kernel.partition_size
    case = kernel.case([tokens], kv_heads=1, shared_blocks=8, max_seq_len=max(tokens, 2 * kernel.partition_size))
    kernel.run(make(case))
    loads = [
        line.traffic
        for line in kernel.report.lines
        if (line.buffer, line.operation, line.width) == ("partials", "load", 16)
    ]
    heads, head_size = kernel.key.gqa_ratio, kernel.key.head_size
    assert sum(load.bytes for load in loads) == heads * partitions * head_size * 4, "each element once"
    warps = heads * REDUCE_THREADS // kernel.report.warp_size  # a head of 64 elements is one block
    rounds = -(-partitions // REDUCTION_PARTITIONS)
    assert sum(load.accesses for load in loads) <= warps * rounds * LOADS_IN_FLIGHT, "loads of a warp, four a round"
