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
PROMPTS, STEPS, TOKENS = (37, 50), 20, 96
#: The pieces of both prompts in a chunked prefill: two edges lie inside a page, and a sequence may wait.
PIECES = ((20, 17), (0, 30), (17, 3))
#: Tokens that a speculative decode verifies in one call for each sequence: a token and its drafts. How many it accepts.
VERIFIED, ACCEPTED = (5, 4), (3, 2)


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


def attended(q: Any, k: Any, v: Any, scale: float, softcap: float | None, window: int | None) -> torch.Tensor:
    """Causal attention of the last tokens of a sequence, in float64. q: [tokens, kv heads, group, head size]."""
    scores = scale * torch.einsum("qhgd,khd->hgqk", q, k)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = k.shape[0] - q.shape[0] + torch.arange(q.shape[0])[:, None] - torch.arange(k.shape[0])
    scores = scores.masked_fill((ahead < 0) | (ahead >= (window or k.shape[0])), float("-inf"))
    return torch.einsum("hgqk,khd->qhgd", scores.softmax(-1), v)


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
        self.drawn = [0] * len(PROMPTS)
        self.tokens = [[self.draw() for _ in PROMPTS] for _ in range(LAYERS)]
        self.worst = 0.0
        self.wrong_codes = 0

    def slots(self, s: int, start: int, stop: int) -> torch.Tensor:
        """The slots of some tokens of a sequence."""
        tokens = torch.arange(start, stop)
        return self.tables[s, tokens // PAGE].long() * PAGE + tokens % PAGE

    def draw(self) -> tuple[torch.Tensor, ...]:
        """The query, key and value of all tokens that a sequence can get in a layer: [tokens, heads * head size]."""
        return tuple(
            torch.randn(TOKENS, heads * HEAD_SIZE, generator=self.generator).half()
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )

    def next_tokens(self, index: int, counts: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The query, key and value of the next tokens of the sequences in a layer, one sequence behind the other."""
        rows = [slice(start, start + count) for start, count in zip(self.drawn, counts)]
        query, key, value = (
            torch.cat([each[which][row] for each, row in zip(self.tokens[index], rows)]) for which in range(3)
        )
        return query, key, value

    def step(self, counts: tuple[int, ...], context: bool = False, decodes: int = 0) -> list[torch.Tensor]:
        """Give each sequence new tokens: a prompt, with or without cached tokens before it, or a token to decode.

        decodes: how many of the last sequences decode a token, in one batch with the others. Returns each layer's
        output.
        """
        slots = torch.cat([self.slots(s, n, n + count) for s, (n, count) in enumerate(zip(self.lens, counts))])
        before = self.lens
        self.lens = [n + count for n, count in zip(self.lens, counts)]
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
        decodes = len(counts) if set(counts) == {1} and not context else decodes
        metadata = self.describe(counts, before, slots, context, decodes)
        outs = []
        for index, layer in enumerate(self.layers):
            query, key, value = self.next_tokens(index, counts)
            out = layer(query, key, value, self.engine.gpu_cache[index], metadata)
            for s in range(len(counts)):
                rows = slice(starts[s], starts[s + 1])
                for which, given in enumerate((key, value)):
                    old = self.given[index][s][which]
                    self.given[index][s][which] = torch.cat([old, given[rows].view(-1, KV_HEADS, HEAD_SIZE)])
                if counts[s] and (decodes or context or self.softcap):
                    self.compare(index, s, before[s], query[rows], out[rows])
            outs.append(out)
        self.drawn = [drawn + count for drawn, count in zip(self.drawn, counts)]
        return outs

    def describe(
        self, counts: tuple[int, ...], before: list[int], slots: torch.Tensor, context: bool, decodes: int
    ) -> Any:
        """vLLM's metadata of a batch. before: tokens of each sequence that the cache holds already."""
        tokens, prefills = sum(counts), len(counts) - decodes
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
        common = {"slot_mapping": slots, "seq_lens_tensor": torch.tensor(self.lens, dtype=torch.int32)}
        common |= {"num_prefills": prefills, "num_decode_tokens": decodes, "num_prefill_tokens": tokens - decodes}
        common |= {"max_decode_seq_len": max(self.lens[prefills:], default=0), "use_cuda_graph": False}
        if not prefills:
            return self.metadata(max_prefill_seq_len=0, block_tables=self.tables, **common)
        return self.metadata(
            seq_lens=list(self.lens), max_prefill_seq_len=max(self.lens[:prefills]),
            block_tables=self.tables if context else torch.empty(0, dtype=torch.int32),
            query_start_loc=torch.tensor(starts, dtype=torch.int32), max_query_len=max(counts[:prefills]),
            context_lens_tensor=torch.tensor(before, dtype=torch.int32), **common,
        )  # fmt: skip

    def forget(self, counts: tuple[int, ...]) -> None:
        """Take back the last tokens of each sequence, as after drafts that were not accepted. The cache keeps them."""
        self.lens = [n - count for n, count in zip(self.lens, counts)]
        for layer in self.given:
            for s, length in enumerate(self.lens):
                layer[s] = [given[:length] for given in layer[s]]

    def speculate(self) -> None:
        """Twice verify drafts in one call and accept some. Then decode, until new tokens stand where the others did."""
        for _ in range(2):
            self.step(VERIFIED, context=True)
            self.forget(tuple(verified - accepted for verified, accepted in zip(VERIFIED, ACCEPTED)))
        for _ in range(2):
            self.step((1, 1))

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


def decode_and_move(life: Life, steps: int) -> None:
    """Two prompts, decodes, and more decodes after all blocks were copied and swapped."""
    life.step(PROMPTS)
    for _ in range(steps):
        life.step((1, 1))
    life.check_codes()
    life.move()
    for _ in range(3):
        life.step((1, 1))
    life.check_codes()


def prefill_in_pieces(life: Life) -> list[torch.Tensor]:
    """The prompts piece by piece, then a batch in which one sequence prefills and the other decodes.

    Returns the output of the prompts in each layer, one sequence behind the other.
    """
    found: list[list[list[torch.Tensor]]] = [[[] for _ in PROMPTS] for _ in range(LAYERS)]
    for piece in PIECES:
        for parts, out in zip(found, life.step(piece, context=True)):
            for part, rows in zip(parts, out.split(list(piece))):
                part.append(rows)
    life.step((7, 1), context=True, decodes=1)
    life.check_codes()
    return [torch.cat([row for part in parts for row in part]) for parts in found]


def pieces_apart(job: dict[str, Any]) -> tuple[Life, float]:
    """A chunked prefill, and its largest difference from the same prompts in one piece, relative to their norm."""
    life, whole = Life(job), Life(job)
    pieces = prefill_in_pieces(life)
    apart = [
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in zip(pieces, whole.step(PROMPTS, context=True))
    ]
    return life, max(apart)


def live(job: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """One job: what was called, the errors, and the log."""
    apart = 0.0
    with environment(job.get("env", {})), logged() as log:
        try:
            if job.get("chunked"):
                life, apart = pieces_apart(job)
            else:
                life = Life(job)
                decode_and_move(life, job.get("steps", STEPS))
            if job.get("context"):
                life.step((5, 3), context=True)
                life.speculate()
                life.check_codes()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "log": log}
    return {
        "called": sorted(set(kernels.called)), "worst": life.worst, "wrong_codes": life.wrong_codes, "log": log,
        "bytes_per_block": life.bytes_per_block, "dtype": str(life.engine.gpu_cache[0].dtype), "apart": apart,
    }  # fmt: skip


def main() -> None:
    """Run the jobs of a file."""
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    results = []
    for job in jobs:
        with environment(job.get("env", {})):
            kernels = import_tree(job["tree"], job.get("plugin", ""))
            results.append(live(job, kernels))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
