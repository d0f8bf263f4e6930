"""The conftest of a run of vLLM's own tests/kernels/test_prefix_prefill.py on the CPU, against an installed operator.

It is copied, with vLLM's files, into a folder of its own. vLLM's tests call a Triton kernel, which takes the keys and
values of the new tokens beside the cache. Here that name is a function that does what vLLM does around the kernel: it
writes the new tokens into the cache, and calls ``PagedAttention.forward_prefix``. The tree's own files do both, and the
installed kernels serve them.

The expected results come from xformers. It does not run on a CPU, so a few lines of torch stand in for it. The
environment says how much is run: each EVERY-th case that has a kernel.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, os.environ["STUBS"])
from life_driver import import_tree


class Packed:
    """xformers' mask of sequences one behind the other: each row attends the tokens up to its own, or a window."""

    def __init__(self, query_lens: list[int], seq_lens: list[int], window: int = 0) -> None:
        self.query_lens, self.seq_lens, self.window = query_lens, seq_lens, window

    @classmethod
    def from_seqlens(cls, query_lens: list[int], seq_lens: list[int]) -> Packed:
        return cls(query_lens, seq_lens)

    def make_local_attention_from_bottomright(self, window: int) -> Packed:
        return Packed(self.query_lens, self.seq_lens, window)


class Biased:
    """xformers' causal mask with a bias: [1, ..heads, tokens, tokens]."""

    def __init__(self, bias: torch.Tensor) -> None:
        self.bias = bias


def attention(
    query: Any, key: Any, value: Any, attn_bias: Packed | Biased, p: float, scale: float, op: Any = None
) -> Any:
    """xformers' attention, in float32: [1, tokens, ..heads, head size] each."""
    heads = query.shape[2:-1]
    q, k, v = (tensor[0].flatten(1, -2).float().transpose(0, 1) for tensor in (query, key, value))
    if isinstance(attn_bias, Biased):
        bias = attn_bias.bias[0].reshape(-1, *attn_bias.bias.shape[-2:]).float()
        out = causal(q, k, v, scale, bias=bias)
    else:
        lens = attn_bias.query_lens, attn_bias.seq_lens
        pieces = zip(q.split(lens[0], 1), k.split(lens[1], 1), v.split(lens[1], 1))
        out = torch.cat([causal(*piece, scale, window=attn_bias.window) for piece in pieces], 1)
    return out.transpose(0, 1).unflatten(1, heads).to(query.dtype).unsqueeze(0)


def causal(q: Any, k: Any, v: Any, scale: float, window: int = 0, bias: Any = 0.0) -> torch.Tensor:
    """Attention of the last tokens of a sequence: [heads, tokens, head size] each."""
    scores = scale * q @ k.transpose(1, 2) + bias
    ahead = k.shape[1] - q.shape[1] + torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    hidden = (ahead < 0) | (ahead >= (window or k.shape[1]))
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


import_tree(os.environ["TREE"], "")
xformers = sys.modules["xformers.ops"]
xformers.fmha = SimpleNamespace(cutlass=SimpleNamespace(FwOp=object))  # type: ignore[attr-defined]
xformers.memory_efficient_attention_forward = attention  # type: ignore[attr-defined]
masks = sys.modules["xformers.ops.fmha.attn_bias"]
masks.BlockDiagonalCausalFromBottomRightMask = Packed  # type: ignore[attr-defined]
masks.LowerTriangularMaskWithTensorBias = Biased  # type: ignore[attr-defined]
torch.set_default_device = lambda device: None  # the CPU is the default
torch.cuda.set_device = torch.cuda.synchronize = lambda device=None: None

pav2 = importlib.import_module("vllm.attention.ops.pav2")
PagedAttention = importlib.import_module("vllm.attention.ops.paged_attn").PagedAttention
if os.environ["PAV2_BACKEND"] == "cuda":
    pav2.load("host")


def through_the_cache(
    query: Any, key: Any, value: Any, out: Any, kv_cache_dtype: str, key_cache: Any, value_cache: Any,
    block_tables: Any, starts: Any, seq_lens: Any, context_lens: Any, max_query_len: int, k_scale: float = 1.0,
    v_scale: float = 1.0, alibi_slopes: Any = None, sliding_window: int | None = None,
) -> None:  # fmt: skip
    """What vLLM does around its Triton kernel, and that kernel's arguments."""
    x, page = 16 // key_cache.element_size(), key_cache.shape[3]
    key_cache = key_cache.permute(0, 1, 3, 2, 4).flatten(3).unflatten(3, (-1, x)).transpose(2, 3).contiguous()
    query_lens = (seq_lens - context_lens).tolist()
    positions = torch.cat([torch.arange(c, c + n) for c, n in zip(context_lens.tolist(), query_lens)])
    rows = torch.arange(len(query_lens)).repeat_interleave(torch.tensor(query_lens))
    slots = block_tables[rows, positions // page] * page + positions % page
    PagedAttention.write_to_paged_cache(key, value, key_cache, value_cache, slots, kv_cache_dtype, k_scale, v_scale)
    found = PagedAttention.forward_prefix(
        query, key, value, kv_cache_dtype, key_cache, value_cache, block_tables.int(),
        torch.cat([starts, torch.tensor([len(slots)])]).int(), seq_lens.int(), context_lens.int(), max_query_len,
        alibi_slopes, sliding_window, k_scale, v_scale,
    )  # fmt: skip
    out.copy_(found)


sys.modules["vllm.attention.ops.prefix_prefill"].context_attention_fwd = through_the_cache  # type: ignore[attr-defined]


def served(case: dict[str, Any], alibi: bool) -> bool:
    """Whether the kernel of a case was built."""
    heads = case["num_heads"]
    window = {"sliding_window": case["sliding_window"]} if case.get("sliding_window") else {}
    shape = (heads, heads // case["num_queries_per_kv"], case["head_size"], 32, case["dtype"], case["kv_cache_dtype"])
    return bool(pav2.supports(*shape, alibi, operator="extend", **window))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the cases that have a kernel, on the CPU."""
    here = [item for item in items if item.callspec.params["device"] == "cuda:0"]
    print(f"cases: {len(here)}")
    wanted = [item for item in here if served(item.callspec.params, item.originalname.endswith("alibi"))]
    items[:] = wanted[:: int(os.environ["EVERY"])]
    for item in items:
        item.callspec.params["device"] = "cpu"


@pytest.fixture(autouse=True)
def ours() -> Any:
    """Our operator answers each call: the Triton kernel is a stub, so the tree's own path raises."""
    calls: list[int] = []
    operator = pav2.paged_attention_extend
    pav2.paged_attention_extend = lambda **call: (calls.append(1), operator(**call))
    yield
    pav2.paged_attention_extend = operator
    assert len(calls) == 2, "vLLM's tests call the operator twice"
