"""What no kernel takes is refused in one sentence that names it, before anything is written."""

import pytest
import torch

from pav2gen.runtime.call import BlockSparse
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, copy_outputs, make

KEY = Key(256, 6, 16, "float16", "auto", False, False)


def call_with(package, options=None, **changes):
    """Call the operator on a good call with some fields changed; scratch fields go by their own names."""
    call = copy_outputs(make(Case(KEY, 512, (20, 600))))
    scratch = call.scratch._replace(**{k: changes.pop(k) for k in list(changes) if k in call.scratch._fields})
    call = call._replace(**changes)
    arguments = {
        "out": call.out,
        "exp_sums": scratch.exp_sums,
        "max_logits": scratch.max_logits,
        "tmp_out": scratch.tmp_out,
        "query": call.query,
        "key_cache": call.key_cache,
        "value_cache": call.value_cache,
        "num_kv_heads": 2,
        "scale": call.scale,
        "block_tables": call.block_tables,
        "seq_lens": call.seq_lens,
        "block_size": 16,
        "max_seq_len": call.max_seq_len,
        "alibi_slopes": call.alibi_slopes,
        "kv_cache_dtype": "auto",
        "k_scale": 1.0,
        "v_scale": 1.0,
        **(options or {}),
    }
    outputs = [tensor for tensor in (call.out, *scratch) if tensor is not None]
    before = [tensor.clone() for tensor in outputs]
    try:
        package.paged_attention_v2(**arguments)
    finally:
        unchanged = all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(outputs, before))
        call_with.unchanged = unchanged
    return call


good = make(Case(KEY, 512, (20, 600)))
q, k, v = good.query, good.key_cache, good.value_cache

REFUSED = {
    **{
        f"no {name}": ({name: None}, {}, f"{name} must be a tensor, got None")
        for name in ("out", "exp_sums", "tmp_out", "query", "key_cache", "value_cache", "block_tables", "seq_lens")
    },
    "query in 2 dimensions": ({"query": q[0]}, {}, "query must be"),
    "query in float64": ({"query": q.double()}, {}, "query must be"),
    "query with strided heads": ({"query": torch.zeros(2, 12, 512).half()[:, :, ::2]}, {}, "heads of a row"),
    "query with a gap between heads": ({"query": torch.zeros(2, 24, 256).half()[:, ::2]}, {}, "heads of a row"),
    "out of another dtype": ({"out": torch.zeros(2, 12, 256)}, {}, "out must be like query"),
    "out of another shape": ({"out": torch.zeros(2, 6, 256).half()}, {}, "out must be like query"),
    "out with strides": ({"out": torch.zeros(2, 12, 512).half()[..., ::2]}, {}, "out must be contiguous"),
    "keys in another dtype": ({"key_cache": k.float()}, {}, "key_cache must be float16"),
    "values in another dtype": ({"value_cache": v.bfloat16()}, {}, "value_cache must be float16"),
    "codes for an auto cache": ({"key_cache": torch.zeros(9, 2, 16, 16, 16, dtype=torch.uint8)}, {}, "must be float16"),
    "half for an fp8 cache": ({}, {"kv_cache_dtype": "fp8"}, "key_cache must be uint8"),
    "a scale that is not finite": ({"scale": float("nan")}, {}, "scale must be finite in float32, got nan"),
    "a scale beyond float32": ({"scale": -1e39}, {}, "scale must be finite in float32, got -1e+39"),
    "a scale in words": ({"scale": "x"}, {}, "scale must be a number, got the str 'x'"),
    "a length with a point": ({}, {"max_seq_len": 5.0}, "max_seq_len must be an int, got the float 5.0"),
    "a length of 65 bits": ({}, {"max_seq_len": 2**64}, "max_seq_len must be an int of 64 bits"),
    "no cache dtype": ({}, {"kv_cache_dtype": None}, "kv_cache_dtype must be a text, got None"),
    "a cache without blocks": ({"key_cache": k[:0], "value_cache": v[:0]}, {}, "key_cache has 0 blocks"),
    "an unknown cache dtype": ({}, {"kv_cache_dtype": "int4"}, "is not one of auto, fp8, fp8_e4m3, fp8_e5m2, int8"),
    "keys of another head size": ({"key_cache": k[:, :, :16]}, {}, "[blocks, kv heads, 256 / 8, block size, 8]"),
    "keys with another grain": ({"key_cache": k.reshape(*k.shape[:2], 64, 16, 4)}, {}, "256 / 8"),
    "keys in 4 dimensions": ({"key_cache": k.flatten(3)}, {}, "must be [blocks, kv heads, head size / x"),
    "values of another page": ({"value_cache": v[..., :8]}, {}, "value_cache must be"),
    "values of fewer blocks": ({"value_cache": v[1:]}, {}, "value_cache must be"),
    "a page with strides": ({"value_cache": v.transpose(2, 3).contiguous().transpose(2, 3)}, {}, "must be contiguous"),
    "another number of KV heads": ({}, {"num_kv_heads": 4}, "num_kv_heads is 4"),
    "a block size in words": ({}, {"block_size": "16"}, "block_size must be an int, got the str '16'"),
    "heads in words": ({}, {"num_kv_heads": "2"}, "num_kv_heads must be an int, got the str '2'"),
    "another block size": ({}, {"block_size": 32}, "block_size is 32"),
    "heads that do not divide": (
        {"query": torch.zeros(2, 13, 256).half(), "out": torch.zeros(2, 13, 256).half()},
        {},
        "13 query heads cannot be divided evenly among 2",
    ),
    "tables in int64": ({"block_tables": good.block_tables.long()}, {}, "block_tables must be int32 [2, max blocks]"),
    "tables of too few sequences": ({"block_tables": good.block_tables[:1]}, {}, "block_tables must be int32 [2"),
    "tables with strides": ({"block_tables": good.block_tables.t().contiguous().t()}, {}, "row of block_tables"),
    "lengths in int64": ({"seq_lens": good.seq_lens.long()}, {}, "seq_lens must be contiguous int32 [2]"),
    "lengths of too few sequences": ({"seq_lens": good.seq_lens[:1]}, {}, "seq_lens must be"),
    "a negative length": ({"max_seq_len": -1}, {}, "must not be negative"),
    "sums in half": ({"exp_sums": torch.zeros(2, 12, 2).half()}, {}, "exp_sums must be float32 [2, 12, partitions]"),
    "maxima of another shape": ({"max_logits": torch.zeros(2, 6, 2)}, {}, "max_logits must be float32 [2, 12"),
    "partials in float32": ({"tmp_out": torch.zeros(2, 12, 2, 256)}, {}, "tmp_out must be float16 [2, 12, partitions"),
    "partials of another head size": ({"tmp_out": torch.zeros(2, 12, 2, 128).half()}, {}, "tmp_out must be float16"),
    "slopes in half": ({"alibi_slopes": torch.ones(12).half()}, {}, "alibi_slopes must be contiguous float32 [12]"),
    "slopes of too few heads": ({"alibi_slopes": torch.ones(6)}, {}, "alibi_slopes must be"),
    "a scale for too many heads": ({}, {"k_scale": torch.ones(3)}, "k_scale must be a float, one float32 element or"),
    "a scale in half": (
        {},
        {"v_scale": torch.ones(1).half()},
        "v_scale must be a float, one float32 element or contig",
    ),
    **{
        f"{name} as a list": ({}, {name: [1]}, f"{name} must be a tensor, got list")
        for name in ("query", "seq_lens", "block_tables", "alibi_slopes", "sinks", "lse")
    },
    "a scale as a text": ({}, {"k_scale": "1.0"}, "k_scale must be a number or a float32 tensor, got the str"),
    "a scale beyond float64": ({}, {"k_scale": 10**400}, "k_scale must be a number or a float32 tensor, got an int"),
    "a length of several numbers": ({}, {"max_seq_len": torch.zeros(2)}, "max_seq_len must be an int, got a Tensor"),
    "scales as a list": ({}, {"v_scale": [1.0, 1.0]}, "v_scale must be a number or a float32 tensor, got a list"),
    **{
        f"a scale of {scale}": ({}, {"v_scale": scale}, f"v_scale must be positive and finite in float32, got {scale}")
        for scale in (0.0, -1.0, float("nan"), float("inf"), 1e39, 1e-60)
    },
    "tensors for no modification": (
        {},
        {"modification_tensors": {"bias": torch.ones(12)}},
        "a call without a modification has no tensor bias",
    ),
    "tensors in a list": (
        {},
        {"modification_tensors": [torch.ones(12)]},
        "modification_tensors must be a mapping of names to tensors, got list",
    ),
    "a sparse block of half a page": (
        {},
        {"blocksparse_vert_stride": 2, "blocksparse_block_size": 24},
        "positive multiple of block_size 16, got 24",
    ),
    "a sparse block of nothing": ({}, {"blocksparse_vert_stride": 2, "blocksparse_block_size": 0}, "got 0"),
    "a stride beyond int32": (
        {},
        {"blocksparse_vert_stride": 2**40},
        "vert_stride of the sparse pattern must be an int32",
    ),
    "a negative rank": ({}, {"blocksparse_vert_stride": 2, "tp_rank": -1}, "tp_rank must not be negative"),
    "an unknown backend": ({}, {"backend": "triton"}, "neither 'torch' nor 'cuda'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(package, name):
    changes, options, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=r"^paged_attention_v2: ") as raised:
        call_with(package, options, **changes)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)
    assert call_with.unchanged, "something was written"


def test_tensors_of_two_devices_are_refused(package):
    call = good._replace(seq_lens=good.seq_lens.to("meta"))  # past the dispatcher, which would go by the meta tensor
    with pytest.raises(ValueError, match=r"seq_lens is on meta, query on cpu"):
        package.runtime.check.check_devices(call)


@pytest.mark.parametrize("name", ["query", "key_cache", "block_tables", "seq_lens"])
def test_one_tensor_without_data_is_refused(package, name):
    meta = getattr(good, name).to("meta")
    with pytest.raises(ValueError, match=r"^paged_attention_v2: all tensors must be on one device, got cpu, meta"):
        call_with(package, {}, **{name: meta})


def misaligned(cache):
    """The same cache, two bytes further on in memory."""
    storage = torch.zeros(cache.numel() + 1, dtype=cache.dtype)
    return storage[1:].view(cache.shape)


def test_pages_that_start_between_grains_are_refused(package):
    with pytest.raises(
        ValueError, match=r"key_cache must start at a multiple of 16 bytes; its address is 2 bytes past such a multiple"
    ):
        call_with(package, key_cache=misaligned(k))
    gap = torch.zeros(k.shape[0], k[0].numel() + 4).half()[:, : k[0].numel()].view(k.shape)
    with pytest.raises(ValueError, match=r"pages of key_cache must start at multiples of 16 bytes"):
        call_with(package, key_cache=gap)


def test_what_vllm_passes_is_taken(package):
    done = call_with(package)
    assert not done.out.isnan().any()
    mapping = torch.arange(2, dtype=torch.int32).repeat_interleave(6)
    call_with(package, {"num_kv_heads": mapping, "k_scale": torch.ones(1), "v_scale": torch.tensor(1.0)})
    assert BlockSparse._fields[1] == "vert_stride"
    call_with(package, {"blocksparse_vert_stride": 1, "blocksparse_block_size": 24})  # 0 and 1 mean dense
