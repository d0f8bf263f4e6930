"""merge_states: against attention over all keys, its neutral element, and decode over two ranks by gloo."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pav2gen.runtime.operators.merge import merge_states

from .conftest import GENERATED

INF = float("inf")


def states(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    outs = torch.randn(count, 5, 3, 8, generator=generator).to(dtype)
    return outs, torch.randn(count, 5, 3, generator=generator) * 4


def merged(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.full_like(outs[0], 7.0) if len(outs) else torch.empty(0), torch.full(lses.shape[1:], 7.0)
    merge_states(out, lse, outs, lses)
    return out, lse


@pytest.mark.parametrize("count", [1, 2, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_it_is_the_attention_over_all_ranges(count, dtype):
    scores = torch.randn(count, 6, dtype=torch.float64) * 3  # of 6 keys in each range
    values = torch.randn(count, 6, 8, dtype=torch.float64)
    outs = (torch.softmax(scores, 1).unsqueeze(1) @ values).squeeze(1)
    out, lse = merged(outs.to(dtype).view(count, 1, 1, 8), torch.logsumexp(scores, 1).float().view(count, 1, 1))
    truth = torch.softmax(scores.flatten(), 0) @ values.flatten(0, 1)
    assert torch.allclose(out[0, 0].double(), truth, atol=2e-3 if dtype == torch.float16 else 1e-6)
    assert torch.allclose(lse[0, 0].double(), torch.logsumexp(scores.flatten(), 0), atol=1e-6)


def test_nothing_attended_is_neutral_whatever_stands_in_its_output():
    outs, lses = states(3)
    expected = merged(outs, lses)
    empty, nothing = torch.full((1, 5, 3, 8), float("nan")), torch.full((1, 5, 3), -INF)
    for place in range(4):
        found = merged(torch.cat([outs[:place], empty, outs[place:]]), torch.cat([lses[:place], nothing, lses[place:]]))
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_nothing_with_nothing_is_nothing():
    out, lse = merged(torch.full((2, 1, 1, 4), float("nan")), torch.full((2, 1, 1), -INF))
    assert out.eq(0).all() and lse.eq(-INF).all()
    out, lse = torch.full((1, 1, 4), 7.0), torch.full((1, 1), 7.0)
    merge_states(out, lse, torch.empty(0, 1, 1, 4), torch.empty(0, 1, 1))
    assert out.eq(0).all() and lse.eq(-INF).all()


def test_large_logits_and_one_state_alone():
    outs, _ = states(2)
    out, lse = merged(outs, torch.stack([torch.full((5, 3), 1e4), torch.full((5, 3), -1e4)]))
    assert torch.equal(out, outs[0]) and torch.equal(lse, torch.full((5, 3), 1e4))


def test_a_states_own_tensors_may_take_the_result():
    outs, lses = states(2)
    expected = merged(outs.clone(), lses.clone())
    merge_states(outs[0], lses[0], outs, lses)
    assert torch.equal(outs[0], expected[0]) and torch.equal(lses[0], expected[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lse": torch.zeros(5, 3, dtype=torch.float16)}, "lse must be float32 [5, 3], got float16"),
        ({"lses": torch.zeros(2, 5, 4)}, "lses must be float32 [2, 5, 3]"),
        ({"out": torch.zeros(5, 3, 8).half()}, "out must be float32 [5, 3, 8], got float16"),
        ({"outs": torch.zeros(5, 3, 8)}, "outs must be [states, rows, heads, head size]"),
        ({"lses": [torch.zeros(5, 3)] * 2}, "lses must be a tensor, got list"),
        ({"out": None}, "out must be a tensor, got None"),
    ],
)
def test_other_shapes_are_refused(package, change, words):
    outs, lses = states(2)
    given = {"out": torch.zeros(5, 3, 8), "lse": torch.zeros(5, 3), "outs": outs, "lses": lses, **change}
    for merge in (merge_states, package.merge_states):
        with pytest.raises(ValueError, match=r"^merge_states: ") as raised:
            merge(**given)
        assert words in str(raised.value) and "\n" not in str(raised.value)


#: Each rank decodes over its half of the pages of every sequence, then both merge what they have.
RANK = """
import importlib.util, sys
import torch, torch.distributed as dist
rank, meeting, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
spec = importlib.util.spec_from_file_location("package", root + "/__init__.py")
package = sys.modules["package"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from package.runtime.testing import cases, oracle
row = next(row for row in package.operator.table.rows if row.spec == "qwen25_05b" and row.key.is_plain)
call = cases.make(cases.Case(row.key, row.partition_size, (700, 5, 16, 0), poison=False))
truth = oracle.reference(call, row.key.kv_cache_dtype, row.partition_size)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
page = row.key.block_size
half = (-(-call.seq_lens // page) + 1) // 2 * page  # tokens of the first rank
lengths = torch.minimum(call.seq_lens, half) if rank == 0 else (call.seq_lens - half).clamp_min(0)
shift = (half // page).tolist() if rank else [0] * len(half)
tables = torch.stack([table.roll(-by) for table, by in zip(call.block_tables, shift)])
kernel = package.kernels.module(row).paged_attention
kernel(call._replace(block_tables=tables, seq_lens=lengths.int(), scratch=None))
outs, lses = [torch.empty_like(call.out) for _ in range(2)], [torch.empty_like(call.lse) for _ in range(2)]
dist.all_gather(outs, call.out)
dist.all_gather(lses, call.lse)
package.merge_states(call.out, call.lse, torch.stack(outs), torch.stack(lses))
assert torch.allclose(call.out.double(), truth.out, atol=3e-3), (call.out.double() - truth.out).abs().max()
assert torch.allclose(call.lse.double(), truth.lse, atol=1e-5), (call.lse, truth.lse)
print("merged", flush=True)
dist.barrier()
dist.destroy_process_group()  # a process that exits while its peer still talks to it may abort
"""


def test_decode_with_the_context_over_two_ranks(tmp_path):
    argv = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*argv, str(rank), str(tmp_path / "meeting"), str(GENERATED)], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0] and all(b"merged" in words for words in said)
