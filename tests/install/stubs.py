"""Stubs of vLLM's compiled parts, for processes in which vLLM's own Python files run on the CPU."""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

#: The modules of vLLM that are not its own files here.
STUBBED = ("envs", "logger", "platforms", "_core_ext", "scalar_type", "triton_utils", "attention.layer", "_C")


class Platform:
    """A platform that is CUDA, as far as imports ask."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: name in ("is_cuda", "is_cuda_alike")


class Stub(ModuleType):
    """A module of which every name can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Kernels:
    """The operators of vLLM's compiled part, by one plain implementation; ``called`` notes which were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def paged_attention_v1(self, out, query, key_cache, value_cache, num_kv_heads, scale, tables, lens, *rest):  # type: ignore[no-untyped-def]
        self.called.append("v1")
        plain_attention(out, query, key_cache, value_cache, scale, tables, lens)

    def paged_attention_v2(self, out, exp_sums, max_logits, tmp_out, *rest):  # type: ignore[no-untyped-def]
        self.called.append("v2")
        query, key_cache, value_cache, _, scale, tables, lens = rest[:7]
        plain_attention(out, query, key_cache, value_cache, scale, tables, lens)


def plain_attention(out, query, key_cache, value_cache, scale, block_tables, seq_lens) -> None:  # type: ignore[no-untyped-def]
    """What V1 and V2 compute, one sequence and KV head after the other, in float32."""
    page = value_cache.shape[3]
    group = query.shape[1] // key_cache.shape[1]
    for s, length in enumerate(seq_lens.tolist()):
        blocks = block_tables[s, : -(-length // page)].long()
        for head in range(key_cache.shape[1]):
            k = key_cache[blocks, head].permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:length].float()
            v = value_cache[blocks, head].transpose(1, 2).flatten(0, 1)[:length].float()
            rows = slice(head * group, (head + 1) * group)
            out[s, rows] = (torch.softmax(scale * query[s, rows].float() @ k.T, -1) @ v).to(out.dtype)


def plain_reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, *rest) -> None:  # type: ignore[no-untyped-def]
    """Token t goes to slot_mapping[t]: K[block, head, d // x, slot, d % x], V[block, head, d, slot]."""
    page, x = value_cache.shape[3], key_cache.shape[4]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, row = divmod(slot, page)
        key_cache[block, :, :, row, :] = key[token].view(key.shape[1], -1, x)
        value_cache[block, :, :, row] = value[token]


def convert_fp8(output: torch.Tensor, given: torch.Tensor, scale: float, kv_dtype: str) -> None:
    """To or from e4m3 in bytes, in the order of memory, whatever the shapes."""
    output, given = output.view(-1), given.view(-1)
    if output.dtype == torch.uint8:
        output.copy_((given.float() / scale).to(torch.float8_e4m3fn).view(torch.uint8))
    else:
        output.copy_((given.view(torch.float8_e4m3fn).float() * scale).to(output.dtype))


def stub_vllm(tree: str, kernels: Kernels) -> None:
    """Make ``vllm`` importable from ``tree``, with stubs for all that is compiled."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "ixformer", "pav2_kernels")]:
        del sys.modules[name]
    for name in ("vllm", "vllm.attention", "vllm.attention.ops"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(tree, *name.split("."))]
    if not hasattr(torch.library, "register_fake"):  # torch 2.1, for which the BI-V100 fork has a substitute of its own
        torch.library.register_fake = torch.library.impl_abstract = lambda name: lambda function: function
    for name in STUBBED:
        sys.modules[f"vllm.{name}"] = Stub(f"vllm.{name}")
    sys.modules["vllm.logger"].init_logger = logging.getLogger  # type: ignore[attr-defined]
    sys.modules["vllm.platforms"].current_platform = Platform()  # type: ignore[attr-defined]
    sys.modules["vllm.triton_utils"].HAS_TRITON = False  # type: ignore[attr-defined]
    sys.modules["vllm.attention.ops.prefix_prefill"] = Stub("vllm.attention.ops.prefix_prefill")
    caches = SimpleNamespace(reshape_and_cache=plain_reshape_and_cache)
    sys.modules["vllm._C"].ops, sys.modules["vllm._C"].cache_ops = kernels, caches  # type: ignore[attr-defined]
    for name in ("paged_attention_v1", "paged_attention_v2"):
        setattr(torch.ops._C, name, getattr(kernels, name))
    torch.ops._C_cache_ops.reshape_and_cache = plain_reshape_and_cache
    torch.ops._C_cache_ops.convert_fp8 = convert_fp8
    vendor = sys.modules["ixformer"] = ModuleType("ixformer")
    vendor.functions = sys.modules["ixformer.functions"] = Stub("ixformer.functions")  # type: ignore[attr-defined]
    vendor.functions.vllm_single_query_cached_kv_attention = kernels.paged_attention_v1
    vendor.functions.vllm_cache_ops_reshape_and_cache = plain_reshape_and_cache
