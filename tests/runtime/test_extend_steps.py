"""What extend is for, with all operators of a package: a speculative-decoding step, a prefill in pieces, mixed batches.

The new tokens' K and V go into the cache by ``reshape_and_cache``, as in vLLM. The truth is decode, token by token.
"""

import pytest
import torch

from pav2gen.runtime.extend.cases import SENTINEL

from .extending import FLOAT, FP8, HALF, WINDOW, call_of, kernel_of

PAGE, BLOCKS, HEADS, KV_HEADS, SIZE = 16, 40, 6, 2, 64
SCALE = SIZE**-0.5


class Cache:
    """A paged cache of one sequence, its pages in any order, and the steps that a server takes with it.

    It begins full of NaN, or of the largest code.
    """

    def __init__(self, package, key, seed=0):
        self.package, self.key = package, key
        self.dtype = getattr(torch, key.dtype)
        stored = torch.uint8 if key.kv_cache_dtype != "auto" else self.dtype
        item = torch.empty(0, dtype=stored).element_size()
        empty = 0x7F if stored == torch.uint8 else float("nan")
        self.k = torch.full((BLOCKS, KV_HEADS, SIZE * item // 16, PAGE, 16 // item), empty, dtype=stored)
        self.v = torch.full((BLOCKS, KV_HEADS, SIZE, PAGE), empty, dtype=stored)
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randperm(BLOCKS, generator=generator).int().view(1, -1)
        self.shared = (KV_HEADS, SCALE)
        self.scales = (1.0, 1.0) if stored != torch.uint8 else (0.03, 0.04)

    def write(self, keys, values, start):
        """Put the K and V of tokens into the slots from position ``start`` on."""
        positions = torch.arange(start, start + len(keys))
        slots = self.table[0, positions // PAGE].long() * PAGE + positions % PAGE
        rows = (keys.to(self.dtype), values.to(self.dtype))
        self.package.reshape_and_cache(*rows, self.k, self.v, slots, self.key.kv_cache_dtype, *self.scales)

    def features(self):
        return {"sliding_window": self.key.sliding_window}

    def extend(self, query, length):
        """The attention of the last tokens of a sequence of ``length`` tokens: out, lse."""
        query = query.to(self.dtype)
        out, lse = torch.full_like(query, SENTINEL), torch.full(query.shape[:2], SENTINEL)
        self.package.paged_attention_extend(
            *(out, query, self.k, self.v, *self.shared, self.table),
            *(torch.tensor([0, len(query)]).int(), torch.tensor([length]).int(), PAGE, len(query), length, None),
            *(self.key.kv_cache_dtype, *self.scales),
            **self.features(),
            lse=lse,
        )
        return out, lse

    def decode(self, query, length):
        """The attention of the last token of a sequence of ``length`` tokens: out, lse."""
        query = query.to(self.dtype)
        out, lse = torch.empty_like(query), torch.empty(1, HEADS)
        no_scratch = torch.empty(1, HEADS, 0), torch.empty(1, HEADS, 0), torch.empty(1, HEADS, 0, SIZE).to(self.dtype)
        self.package.paged_attention_v2(
            *(out, *no_scratch, query, self.k, self.v, *self.shared, self.table, torch.tensor([length]).int()),
            *(PAGE, length, None, self.key.kv_cache_dtype, *self.scales),
            **self.features(),
            lse=lse,
        )
        return out, lse


def tokens(count, seed):
    """Query, K and V of some tokens: [count, heads, head size] each."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, heads, SIZE, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def step_by_step(package, key, query, keys, values, context):
    """Decode the tokens after the first ``context`` ones, one after the other."""
    cache = Cache(package, key)
    cache.write(keys[:context], values[:context], 0)
    found = []
    for position in range(context, len(keys)):
        cache.write(keys[position : position + 1], values[position : position + 1], position)
        found.append(cache.decode(query[position : position + 1], position + 1))
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])


def assert_equal(found, truth):
    """out within one rounding of the output, lse within float32's noise."""
    out, lse = found
    relative = {torch.float16: 2.0**-10, torch.float32: 2e-6}[out.dtype]
    torch.testing.assert_close(out, truth[0], rtol=relative, atol=1e-6)
    torch.testing.assert_close(lse, truth[1], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("key", [HALF, FLOAT, FP8, WINDOW], ids=["half", "float", "fp8", "window"])
@pytest.mark.parametrize("context", [0, 37])
def test_a_speculative_step(extending, key, context):
    """Verify 4 draft tokens, accept 2, continue: the rejected tokens' slots are written again."""
    query, keys, values = tokens(context + 6, seed=context)
    truth = step_by_step(extending, key, query, keys, values, context)
    cache = Cache(extending, key)
    cache.write(keys[:context], values[:context], 0)
    wrong = tokens(2, seed=99)  # drafts 3 and 4 are not what the model says
    draft = [torch.cat([part[context : context + 2], other]) for part, other in zip((query, keys, values), wrong)]
    cache.write(draft[1], draft[2], context)
    out, lse = cache.extend(draft[0], context + 4)
    assert_equal((out[:2], lse[:2]), [each[:2] for each in truth])
    cache.write(keys[context + 2 :], values[context + 2 :], context + 2)
    assert_equal(cache.extend(query[context + 2 :], context + 6), [each[2:] for each in truth])


@pytest.mark.parametrize("key", [HALF, FLOAT, FP8, WINDOW], ids=["half", "float", "fp8", "window"])
def test_a_prefill_in_three_pieces_is_one_prefill(extending, key):
    query, keys, values = tokens(120, seed=3)
    whole = Cache(extending, key)
    whole.write(keys, values, 0)
    truth = whole.extend(query, 120)
    pieces, cache = [], Cache(extending, key, seed=1)
    for start, end in ((0, 50), (50, 51), (51, 120)):
        cache.write(keys[start:end], values[start:end], start)
        pieces.append(cache.extend(query[start:end], end))
    assert_equal([torch.cat(each) for each in zip(*pieces)], truth)
    assert_equal([each[-3:] for each in truth], step_by_step(extending, key, query, keys, values, 117))


@pytest.mark.parametrize("captured", [False, True])
def test_a_chunk_of_a_prefill_beside_decodes(extending, captured):
    kernel = kernel_of(extending, HALF)
    kernel.check(kernel.case([1, 70, 1, 1], [300, 130, 0, 17], seed=1, trailing_rows=5), captured)


def test_a_batch_equals_its_sequences_one_by_one(extending):
    """Rows do not depend on the rest of the batch beyond float32's noise."""
    kernel, lengths, contexts = kernel_of(extending, FLOAT), [5, 0, 33, 1], [40, 3, 0, 270]
    call = call_of(lengths, contexts, FLOAT, seed=5)
    together, first = kernel.run(call), 0
    for s, rows in enumerate(lengths):
        taken, one = slice(first, first + rows), slice(s, s + 1)
        alone = kernel.run(
            call._replace(
                out=call.out[taken], lse=call.lse[taken], query=call.query[taken], block_tables=call.block_tables[one],
                query_start_loc=torch.tensor([0, rows]).int(), seq_lens=call.seq_lens[one],
            )
        )  # fmt: skip
        torch.testing.assert_close(alone.out, together.out[taken], rtol=2e-6, atol=1e-6)
        first += rows


@pytest.mark.parametrize("key", [HALF, WINDOW], ids=["half", "window"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_long_context(extending, key, captured):
    kernel = kernel_of(extending, key)
    case = kernel.case([4, 1, 2], [99_996, 77, 50_001], kv_heads=1, shared_blocks=40, seed=2)
    kernel.check(case, captured)


def test_strides_beyond_32_bits(extending):
    kernel = kernel_of(extending, HALF)
    kernel.check_far_strides(kernel.case([3, 2], [290, 0], seed=4, shared_blocks=3))


HOSTILE = [[0, 3, 2, 9], [-5, 3, -7, 4], [9, 0, 900, 901], [0, 2**31 - 1, -(2**31), 2], [2**31 - 1, -(2**31), 5, 8]]


@pytest.mark.parametrize("bounds", HOSTILE)
@pytest.mark.parametrize("captured", [False, True])
def test_offsets_of_rows_that_fall_or_leave_the_query(extending, bounds, captured):
    """Whatever query_start_loc holds, nothing outside the tensors is read or written.

    The rows around ``out`` and ``lse`` stay as they were; a row that sequences share has the result of one of them.
    """
    kernel = kernel_of(extending, HALF)
    call = call_of((3, 2, 4), (20, 40, 0), seed=7)._replace(read_lengths=not captured)
    rows = call.out.shape[0]
    guarded = [torch.full((rows + 8, *each.shape[1:]), SENTINEL, dtype=each.dtype) for each in (call.out, call.lse)]
    bounds = torch.tensor(bounds, dtype=torch.int32)
    hostile = call._replace(out=guarded[0][4:-4], lse=guarded[1][4:-4], query_start_loc=bounds)
    kernel.launch(hostile)
    truth = kernel.truth(hostile)
    for each in guarded:
        assert (each[:4] == SENTINEL).all() and (each[-4:] == SENTINEL).all()
    assert (hostile.out[~truth.owned] == SENTINEL).all() and (hostile.lse[~truth.owned] == SENTINEL).all()
    assert not (hostile.out[truth.owned] == SENTINEL).any()


@pytest.mark.parametrize("captured", [False, True])
def test_lengths_of_uninitialised_metadata(extending, captured):
    kernel = kernel_of(extending, HALF)
    call = call_of((3, 2, 1), (20, 40, 0), seed=8, poison=False)._replace(read_lengths=not captured)
    wild = torch.tensor([2**31 - 1, -(2**31), 5], dtype=torch.int32)
    kernel.compare(call._replace(seq_lens=wild))
