"""A whole life of a cache through vLLM's own files on the CPU: allocate, write prompts, decode, copy and swap blocks.

    python life_driver.py JOBS.json

A process of its own: stubs stand where vLLM's compiled parts, xformers and transformers are. The tree's CacheConfig,
CacheEngine, Attention, XFormersImpl and PagedAttention run, as they are after an install. For each job prints what was
served, and the largest error in units of what is allowed. The truth is float64 of the codes in the cache, and the codes
are compared, bit for bit, with those of an encoder that is written here.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from decode_driver import apply_plugin, environment, logged
from stubs import Kernels, Stub, stub_vllm

PAGE, BLOCKS, LAYERS = 16, 24, 2
HEADS, KV_HEADS, HEAD_SIZE = 24, 4, 256
PROMPTS, STEPS = (37, 50), 20


class CausalMask:
    """xformers' mask of prompts one behind the other."""

    def __init__(self, lens: list[int], window: int | None = None) -> None:
        self.lens, self.window = lens, window

    @classmethod
    def from_seqlens(cls, lens: list[int]) -> CausalMask:
        return cls(lens)

    def make_local_attention(self, window: int) -> CausalMask:
        return CausalMask(self.lens, window)


def plain_prefill(query: Any, key: Any, value: Any, attn_bias: CausalMask, p: float, scale: float) -> torch.Tensor:
    """xformers' attention of prompts: [1, tokens, kv heads, group, head size], keys and values alike."""
    out, start = torch.empty_like(query), 0
    for length in attn_bias.lens:
        rows = slice(start, start + length)
        q, k, v = (tensor[0, rows].double().permute(1, 2, 0, 3) for tensor in (query, key, value))
        ahead = torch.arange(length)[:, None] - torch.arange(length)
        hidden = (ahead < 0) | (ahead >= (attn_bias.window or length))
        scores = (scale * q @ k.transpose(2, 3)).masked_fill(hidden, float("-inf"))
        out[0, rows] = (scores.softmax(-1) @ v).permute(2, 0, 1, 3).to(out.dtype)
        start += length
    return out


def import_tree(tree: str, plugin: str) -> Kernels:
    """Make the tree's own files importable, and what they import a stub."""
    kernels = Kernels()
    stub_vllm(tree, kernels)
    for name in ("vllm.attention", "vllm.attention.layer"):
        del sys.modules[name]
    names = ["psutil", "transformers", "xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"]
    names += ["vllm.tracing", "vllm.transformers_utils", "vllm.transformers_utils.config", "vllm.model_executor"]
    names += [f"vllm.model_executor.{name}" for name in ("models", "layers", "layers.quantization")]
    names += [f"vllm.model_executor.layers.quantization.{name}" for name in ("base_config", "kv_cache")]
    for name in names:
        sys.modules[name] = Stub(name)
    sys.modules["xformers"].ops = sys.modules["xformers.ops"]  # type: ignore[attr-defined]
    sys.modules["xformers.ops"].memory_efficient_attention_forward = plain_prefill  # type: ignore[attr-defined]
    sys.modules["xformers.ops.fmha.attn_bias"].BlockDiagonalCausalMask = CausalMask  # type: ignore[attr-defined]
    sys.modules["vllm.transformers_utils.config"].ConfigFormat = SimpleNamespace(AUTO="auto")  # type: ignore[attr-defined]
    sys.modules["vllm.envs"].VLLM_ATTENTION_BACKEND = None  # type: ignore[attr-defined]
    sys.modules["vllm.worker"] = ModuleType("vllm.worker")
    sys.modules["vllm.worker"].__path__ = [os.path.join(tree, "vllm/worker")]
    torch.ops._C_cache_ops.copy_blocks = copy_blocks
    torch.ops._C_cache_ops.swap_blocks = swap_blocks
    if plugin:
        importlib.import_module("vllm.attention")
        apply_plugin(plugin)
    return kernels


def copy_blocks(key_caches: list[torch.Tensor], value_caches: list[torch.Tensor], mapping: torch.Tensor) -> None:
    """Copy whole blocks, whatever is in them."""
    for cache in (*key_caches, *value_caches):
        for source, target in mapping.tolist():
            cache[target] = cache[source]


def swap_blocks(source: torch.Tensor, target: torch.Tensor, mapping: torch.Tensor) -> None:
    """Copy whole blocks to another cache."""
    for old, new in mapping.tolist():
        target[new] = source[old]


def plain_extend(
    *, out: Any, query: Any, key_cache: Any, value_cache: Any, num_kv_heads: int, scale: float, block_tables: Any,
    query_start_loc: Any, seq_lens: Any, block_size: int, max_query_len: int, max_seq_len: int, alibi_slopes: Any,
    kv_cache_dtype: str, k_scale: float, v_scale: float, softcap: Any = None, sliding_window: Any = None,
) -> None:  # fmt: skip
    """What the extend operator computes, one sequence after the other, in float64."""
    starts, group = query_start_loc.tolist(), query.shape[1] // num_kv_heads
    assert max_query_len >= int(query_start_loc.diff().max()) and max_seq_len >= int(seq_lens.max())
    for s, length in enumerate(seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        slots = torch.arange(length)
        block, row = block_tables[s, slots // block_size].long(), slots % block_size
        k = key_cache[block, :, :, row, :].flatten(2)
        v = value_cache[block, :, :, row]
        if kv_cache_dtype == "auto":
            k, v = k.double(), v.double()
        else:
            k, v = (decoded(x.view(torch.uint8), y, kv_cache_dtype) for x, y in ((k, k_scale), (v, v_scale)))
        q = query[rows].double().unflatten(1, (num_kv_heads, group))
        out[rows] = attended(q, k, v, scale, softcap, sliding_window).flatten(1, 2).to(out.dtype)


def attended(q: Any, k: Any, v: Any, scale: float, softcap: float | None, window: int | None) -> torch.Tensor:
    """Causal attention of the last tokens of a sequence, in float64. q: [tokens, kv heads, group, head size]."""
    scores = scale * torch.einsum("qhgd,khd->hgqk", q, k)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = k.shape[0] - q.shape[0] + torch.arange(q.shape[0])[:, None] - torch.arange(k.shape[0])
    scores = scores.masked_fill((ahead < 0) | (ahead >= (window or k.shape[0])), float("-inf"))
    return torch.einsum("hgqk,khd->qhgd", scores.softmax(-1), v)


def add_extend(package: str) -> None:
    """Give a generated package the plain extend operator, for any shape."""
    module, serving = (importlib.import_module(name) for name in (package, f"{package}.serving"))
    supports = serving.supports
    module.paged_attention_extend = plain_extend  # type: ignore[attr-defined]
    serving.supports = lambda operator="decode", **shape: operator == "extend" or supports(operator=operator, **shape)


def encoded(values: torch.Tensor, scale: float, dtype: str) -> torch.Tensor:
    """The codes of ``values``: to nearest even, saturating."""
    if dtype == "int8":
        return torch.clamp(torch.round(values.float() / scale), -127, 127).to(torch.int8).view(torch.uint8)
    kind = torch.float8_e5m2 if dtype == "fp8_e5m2" else torch.float8_e4m3fn
    return (values.float() / scale).clamp(-torch.finfo(kind).max, torch.finfo(kind).max).to(kind).view(torch.uint8)


def decoded(codes: torch.Tensor, scale: float, dtype: str) -> torch.Tensor:
    """What codes stand for, in float64."""
    kinds = {"int8": torch.int8, "fp8_e5m2": torch.float8_e5m2}
    return codes.view(kinds.get(dtype, torch.float8_e4m3fn)).double() * scale


class Life:
    """A model's attention layers, its cache, and two sequences that grow."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.named, self.dtype = job["kv_cache_dtype"], job["stored"]
        self.scales = job["scales"] if self.named != "auto" else [1.0, 1.0]
        self.window, self.softcap = job.get("window"), job.get("softcap")
        config = importlib.import_module("vllm.config").CacheConfig(
            PAGE, 0.9, 1, self.named, sliding_window=self.window
        )
        config.num_gpu_blocks, config.num_cpu_blocks = BLOCKS, BLOCKS
        engine = importlib.import_module("vllm.worker.cache_engine")
        engine.is_pin_memory_available = lambda: False
        model = SimpleNamespace(
            dtype=torch.float16, is_attention_free=False, get_head_size=lambda: HEAD_SIZE,
            get_num_attention_layers=lambda parallel: LAYERS, get_num_kv_heads=lambda parallel: KV_HEADS,
            get_sliding_window=lambda: self.window,
        )  # fmt: skip
        parallel, device = SimpleNamespace(pipeline_parallel_size=1), SimpleNamespace(device_type="cpu")
        self.bytes_per_block = engine.CacheEngine.get_cache_block_size(config, model, parallel)
        self.engine = engine.CacheEngine(config, model, parallel, device)
        torch.set_default_dtype(torch.float16)
        attention = importlib.import_module("vllm.attention").Attention
        more = {"logits_soft_cap": job["softcap"]} if "softcap" in job else {}
        self.layers = [
            attention(HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, cache_config=config, **more) for _ in range(LAYERS)
        ]
        torch.set_default_dtype(torch.float32)
        for layer in self.layers:
            layer._k_scale, layer._v_scale = self.scales
        self.metadata = importlib.import_module("vllm.attention.backends.xformers").XFormersMetadata
        self.generator = torch.Generator().manual_seed(5)
        self.tables = torch.randperm(BLOCKS, generator=self.generator)[: len(PROMPTS) * 6].view(len(PROMPTS), 6).int()
        self.lens = [0] * len(PROMPTS)
        empty = torch.empty(0, KV_HEADS, HEAD_SIZE, dtype=torch.float16)
        self.given = [[[empty, empty] for _ in PROMPTS] for _ in range(LAYERS)]
        self.worst = 0.0
        self.wrong_codes = 0

    def slots(self, s: int, start: int, stop: int) -> torch.Tensor:
        """The slots of some tokens of a sequence."""
        tokens = torch.arange(start, stop)
        return self.tables[s, tokens // PAGE].long() * PAGE + tokens % PAGE

    def step(self, counts: tuple[int, ...], context: bool = False) -> None:
        """Give each sequence new tokens: a prompt, with or without cached tokens before it, or a token to decode."""
        slots = torch.cat([self.slots(s, n, n + count) for s, (n, count) in enumerate(zip(self.lens, counts))])
        before = self.lens
        self.lens = [n + count for n, count in zip(self.lens, counts)]
        common = {"slot_mapping": slots, "seq_lens_tensor": torch.tensor(self.lens, dtype=torch.int32)}
        tokens, starts = sum(counts), [0, *torch.tensor(counts).cumsum(0).tolist()]
        decode = set(counts) == {1} and not context
        if decode:
            metadata = self.metadata(
                num_prefills=0, num_prefill_tokens=0, num_decode_tokens=tokens, max_prefill_seq_len=0,
                max_decode_seq_len=max(self.lens), use_cuda_graph=False, block_tables=self.tables, **common,
            )  # fmt: skip
        else:
            metadata = self.metadata(
                num_prefills=len(counts), num_prefill_tokens=tokens, num_decode_tokens=0, seq_lens=list(self.lens),
                max_prefill_seq_len=max(self.lens), max_decode_seq_len=0, use_cuda_graph=False,
                block_tables=self.tables if context else torch.empty(0, dtype=torch.int32),
                query_start_loc=torch.tensor(starts, dtype=torch.int32), max_query_len=max(counts),
                context_lens_tensor=torch.tensor(before, dtype=torch.int32), **common,
            )  # fmt: skip
        for index, layer in enumerate(self.layers):
            query = torch.randn(tokens, HEADS * HEAD_SIZE, generator=self.generator).half()
            key, value = (torch.randn(tokens, KV_HEADS * HEAD_SIZE, generator=self.generator).half() for _ in "kv")
            out = layer(query, key, value, self.engine.gpu_cache[index], metadata)
            for s in range(len(counts)):
                rows = slice(starts[s], starts[s + 1])
                for which, given in enumerate((key, value)):
                    old = self.given[index][s][which]
                    self.given[index][s][which] = torch.cat([old, given[rows].view(-1, KV_HEADS, HEAD_SIZE)])
                if decode or context or self.softcap:
                    self.compare(index, s, before[s], query[rows], out[rows])

    def compare(self, index: int, s: int, before: int, query: torch.Tensor, out: torch.Tensor) -> None:
        """Hold the output of a sequence's new tokens to float64 of what the cache should hold."""
        q = query.view(-1, KV_HEADS, HEADS // KV_HEADS, HEAD_SIZE).double()
        k, v = (self.stored(given, scale) for given, scale in zip(self.given[index][s], self.scales))
        assert k.shape[0] == before + q.shape[0]
        truth = attended(q, k, v, HEAD_SIZE**-0.5, self.softcap, self.window).reshape(-1, HEADS, HEAD_SIZE)
        allowed = 1.25 * (truth.half().double() - truth).norm(dim=2) + 2e-6 * truth.norm(dim=2)
        error = (out.view(truth.shape).double() - truth).norm(dim=2)
        self.worst = max(self.worst, float((error / allowed).nan_to_num(nan=1e9).max()))

    def stored(self, given: torch.Tensor, scale: float) -> torch.Tensor:
        """What the cache holds of given keys or values, in float64."""
        if self.named == "auto":
            return given.double()
        return decoded(encoded(given, scale, self.dtype), scale, self.dtype)

    def check_codes(self) -> None:
        """Compare every code in the cache with the encoder's, and every other byte with the zeros it began with."""
        attention = importlib.import_module("vllm.attention.ops.paged_attn").PagedAttention
        for index, cache in enumerate(self.engine.gpu_cache):
            expected = [torch.zeros_like(part) for part in attention.split_kv_cache(cache, KV_HEADS, HEAD_SIZE)]
            for s, length in enumerate(self.lens):
                slots = self.slots(s, 0, length)
                block, row = slots // PAGE, slots % PAGE
                key, value = self.given[index][s]
                if self.named != "auto":
                    key, value = (encoded(x, scale, self.dtype) for x, scale in zip((key, value), self.scales))
                x = expected[0].shape[4]
                expected[0][block, :, :, row, :] = key.view(length, KV_HEADS, -1, x)
                expected[1][block, :, :, row] = value
            found = attention.split_kv_cache(cache, KV_HEADS, HEAD_SIZE)
            self.wrong_codes += sum(int((a != b).sum()) for a, b in zip(found, expected))

    def move(self) -> None:
        """Move the sequences to other blocks: by copies, then out to the CPU, and in again to other blocks still."""
        used = self.tables.flatten().tolist()
        free = [block for block in range(BLOCKS) if block not in used]
        self.engine.copy(torch.tensor([*zip(used, free)]))
        self.engine.swap_out(torch.tensor([*zip(free, used)]))
        for cache in self.engine.gpu_cache:
            cache.zero_()
        order = free[::-1]
        self.engine.swap_in(torch.tensor([*zip(used, order)]))
        self.tables = torch.tensor(order, dtype=torch.int32).view(self.tables.shape)


def live(job: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """One job: what was called, the errors, and the log."""
    with environment(job.get("env", {})), logged() as log:
        try:
            life = Life(job)
            life.step(PROMPTS)
            for _ in range(STEPS):
                life.step((1, 1))
            life.check_codes()
            life.move()
            for _ in range(3):
                life.step((1, 1))
            life.check_codes()
            if job.get("context"):
                life.step((5, 3), context=True)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "log": log}
    return {
        "called": sorted(set(kernels.called)), "worst": life.worst, "wrong_codes": life.wrong_codes, "log": log,
        "bytes_per_block": life.bytes_per_block, "dtype": str(life.engine.gpu_cache[0].dtype),
    }  # fmt: skip


def main() -> None:
    """Run the jobs of a file."""
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    results = []
    for job in jobs:
        with environment(job.get("env", {})):
            kernels = import_tree(job["tree"], job.get("plugin", ""))
            if job.get("extend"):
                add_extend("pav2_kernels" if job.get("plugin") else "vllm.attention.ops.pav2")
            results.append(live(job, kernels))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
