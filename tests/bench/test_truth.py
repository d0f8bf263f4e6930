"""The float64 result that a bench checks against is the oracle's, whatever the length, and a wrong one is told."""

import itertools

import pytest
import torch

from pav2gen.bench.measuring import float64_reference as truth
from pav2gen.bench.measuring import problem
from pav2gen.bench.measuring.problem import Problem
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.oracle import reference

PLAIN = Key(64, 3, 16, "float16", "auto", False, False)
KEYS = {
    "plain": PLAIN,
    "alibi": PLAIN._replace(alibi=True),
    "sparse": PLAIN._replace(blocksparse=True),
    "fp8": PLAIN._replace(kv_cache_dtype="fp8_e4m3"),
    "float32": PLAIN._replace(dtype="float32", block_size=32),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("length", [1, 63, 64, 700])
def test_it_is_the_oracles(key, length, monkeypatch):
    monkeypatch.setattr(truth, "STRETCH", 64)
    call = problem.make(Problem(key, 2, 3, length), torch.device("cpu"), cache_bytes=1).small
    expected = reference(call, key.kv_cache_dtype, 512).out
    found = truth.truth(call, key.kv_cache_dtype, [0, 1, 2])
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_seqs, rows", [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (100, [0, 33, 66, 99])])
def test_of_a_large_batch_some_sequences_are_checked(num_seqs, rows):
    assert truth.sequences(num_seqs) == rows


def test_the_inputs_are_more_than_the_cache_and_the_same_in_each_set():
    held = Problem(PLAIN, 2, 2, 100)
    inputs = problem.make(held, torch.device("cpu"), cache_bytes=300_000)
    assert inputs.count * held.kv_bytes >= 2 * 300_000 > (inputs.count - 1) * held.kv_bytes
    sets = list(itertools.islice(problem.rotation(inputs), inputs.count))
    pages = [page for each in sets for page in each.block_tables.flatten().tolist()]
    assert len(set(pages)) == len(pages) == inputs.count * 2 * 7, "no block serves twice"
    assert max(pages) < sets[0].key_cache.shape[0] and pages[:14] != sorted(pages[:14]), "blocks lie in disorder"
    for each in sets:
        assert torch.equal(
            each.key_cache[each.block_tables.long()], inputs.small.key_cache[inputs.small.block_tables.long()]
        )
        assert torch.equal(
            each.value_cache[each.block_tables.long()], inputs.small.value_cache[inputs.small.block_tables.long()]
        )
    again = next(itertools.islice(problem.rotation(inputs), inputs.count, None))
    assert torch.equal(again.block_tables, sets[0].block_tables)


def test_few_values_are_drawn_for_a_large_cache(monkeypatch):
    monkeypatch.setattr(problem, "DRAWN_BYTES", 8192)
    inputs = problem.make(Problem(PLAIN, 1, 1, 1600), torch.device("cpu"), cache_bytes=1)
    assert inputs.small.key_cache.shape[0] == 4 and inputs.first.key_cache.shape[0] == 103
    assert torch.equal(inputs.first.key_cache[4:8], inputs.small.key_cache)


def test_the_bytes_of_a_problem():
    held = Problem(Key(256, 6, 16, "float16", "auto", False, False), 4, 1, 100_000)
    assert held.kv_bytes == 2 * 100_000 * 4 * 256 * 2 == 409_600_000
    assert held.io_bytes - held.kv_bytes == 2 * 24 * 256 * 2
    assert Problem(held.key._replace(kv_cache_dtype="fp8_e5m2"), 4, 1, 100_000).kv_bytes == 204_800_000
