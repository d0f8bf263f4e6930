"""Decodes by the real ``PagedAttention.forward_decode`` of vLLM trees, on the CPU, and measures it against float64.

    python decode_driver.py JOBS.json

A process of its own: stubs stand where vLLM's compiled parts do. V1 and vLLM's own V2 are one plain implementation
that notes which of them was called. Prints a JSON list: for each case
of each job the kernel that ran, its error, and what was logged.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from typing import Any, NamedTuple

import torch
from stubs import Kernels, Stub, stub_vllm

#: Parameters of forward_decode that differ from tree to tree, under our names.
KNOWN_AS = {"context_lens": "seq_lens", "max_context_len": "max_seq_len", "kv_scale": "k_scale"}
PAGE = 16

#: The code of each source that was imported. Most files of two trees are alike, and no bytecode is written.
_compiled: dict[bytes, Any] = {}
_compile = SourceFileLoader.source_to_code


def compile_once(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> Any:
    """What ``SourceFileLoader.source_to_code`` returns. A file of another tree with the same bytes shares the code."""
    if data not in _compiled:
        _compiled[data] = _compile(loader, data, path, **options)
    return _compiled[data]


SourceFileLoader.source_to_code = compile_once  # type: ignore[method-assign]


def import_tree(tree: str, plugin: str) -> tuple[Any, Kernels]:
    """``PagedAttention`` of a tree, with stubs around it, and the kernels it calls."""
    kernels = Kernels()
    stub_vllm(tree, kernels)
    attention = importlib.import_module("vllm.attention.ops.paged_attn").PagedAttention
    if plugin:
        apply_plugin(plugin)
    return attention, kernels


def apply_plugin(folder: str) -> None:
    """What vLLM does with the entry point of the wheel that was unpacked to ``folder``."""
    from importlib.metadata import distributions

    if isinstance(sys.modules["vllm.attention.layer"], Stub):
        sys.modules["vllm.attention.layer"].__file__ = __file__  # some source to read
    sys.path.insert(0, folder)
    try:
        (point,) = [
            point
            for found in distributions(path=[folder])
            for point in found.entry_points.select(group="vllm.general_plugins")
        ]
        point.load()()
        point.load()()  # vLLM may load a plugin more than once
    finally:
        sys.path.remove(folder)


class Inputs(NamedTuple):
    """A call's values, and its float64 result with the error that each (sequence, head) is allowed.

    key and value: [seqs, tokens, kv heads, head size], as they are stored. query: [seqs, heads, head size], rows apart.
    """

    key: torch.Tensor
    value: torch.Tensor
    query: torch.Tensor
    truth: torch.Tensor
    allowed: torch.Tensor


@functools.lru_cache(maxsize=12)
def make_inputs(lens: tuple[int, ...], heads: int, kv_heads: int, head_size: int, kv_cache_dtype: str) -> Inputs:
    """N(0,1) values in float16; an fp8 cache holds e4m3 at a scale of 1, and the truth is of what is read from that."""
    generator = torch.Generator().manual_seed(max(lens))
    shape = (len(lens), max(lens), kv_heads, head_size)
    key, value = (torch.randn(shape, generator=generator).half() for _ in "kv")
    fused = torch.randn(len(lens), heads * head_size + 64, generator=generator).half()
    query = fused[:, : heads * head_size].view(len(lens), heads, head_size)
    stored = key, value
    if kv_cache_dtype == "fp8":
        stored = tuple(tensor.to(torch.float8_e4m3fn).view(torch.uint8) for tensor in (key, value))
        key, value = (tensor.view(torch.float8_e4m3fn).half() for tensor in stored)
    truth = torch.empty(query.shape, dtype=torch.float64)
    for s, length in enumerate(lens):
        for head in range(kv_heads):
            rows = slice(head * heads // kv_heads, (head + 1) * heads // kv_heads)
            k, v = key[s, :length, head].double(), value[s, :length, head].double()
            truth[s, rows] = torch.softmax(head_size**-0.5 * query[s, rows].double() @ k.T, -1) @ v
    allowed = 1.25 * (truth.half().double() - truth).norm(dim=2) + 2e-6 * truth.norm(dim=2)
    return Inputs(*stored, query, truth, allowed)


def make_cache(attention: Any, inputs: Inputs, lens: list[int], tensor_scales: bool) -> tuple[torch.Tensor, ...]:
    """The caches, poisoned where no token is, and written by vLLM's own write_to_paged_cache; the block table."""
    _, longest, kv_heads, head_size = inputs.key.shape
    pages = -(-longest // PAGE)
    shape = attention.get_kv_cache_shape(len(lens) * pages + 1, PAGE, kv_heads, head_size)
    poison = 0x7F if inputs.key.dtype == torch.uint8 else float("nan")  # a NaN in either
    empty = torch.full(shape, poison, dtype=inputs.key.dtype)
    key_cache, value_cache = attention.split_kv_cache(empty, kv_heads, head_size)
    order = torch.randperm(len(lens) * pages, generator=torch.Generator().manual_seed(longest))
    table = order.add_(1).view(len(lens), pages).int()
    scale = torch.tensor(1.0) if tensor_scales else 1.0
    scales = [scale] * (len(inspect.signature(attention.write_to_paged_cache).parameters) - 6)
    for s, length in enumerate(lens):
        tokens = torch.arange(length)
        slots = table[s, tokens // PAGE].long() * PAGE + tokens % PAGE
        key, value = inputs.key[s, :length], inputs.value[s, :length]
        few = torch.tensor([0, length - 1])  # by the plain model, token by token
        attention.write_to_paged_cache(key[few], value[few], key_cache, value_cache, slots[few], "auto", *scales)
        write_many(key, value, key_cache, value_cache, slots)
    return key_cache, value_cache, table


def write_many(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """The plain model for many tokens at once; what it finds written must be what it would write."""
    block, row, x = slots // PAGE, slots % PAGE, key_cache.shape[4]
    grains = key.view(*key.shape[:2], -1, x)
    for end in (0, -1):
        assert torch.equal(key_cache[block[end], :, :, row[end], :], grains[end])
        assert torch.equal(value_cache[block[end], :, :, row[end]], value[end])
    key_cache[block, :, :, row, :] = grains
    value_cache[block, :, :, row] = value


def decode(attention: Any, kernels: Kernels, case: dict[str, Any]) -> dict[str, Any]:
    """Run one case: the kernel that ran, and the largest error of a (sequence, head), in units of what is allowed."""
    lens, heads, kv_heads, head_size = case["lens"], case["heads"], case["kv"], case["head_size"]
    kv_cache_dtype, tensor_scales = case.get("kv_cache_dtype", "auto"), case.get("tensor_scales", False)
    inputs = make_inputs(tuple(lens), heads, kv_heads, head_size, kv_cache_dtype)
    key_cache, value_cache, table = make_cache(attention, inputs, lens, tensor_scales)
    mapping = torch.arange(kv_heads, dtype=torch.int32).repeat_interleave(heads // kv_heads)
    values = {
        "query": inputs.query, "key_cache": key_cache, "value_cache": value_cache, "block_tables": table,
        "seq_lens": torch.tensor(lens, dtype=torch.int32), "max_seq_len": max(lens), "kv_cache_dtype": kv_cache_dtype,
        "scale": head_size**-0.5, "alibi_slopes": None,
        "num_kv_heads": mapping if case.get("head_mapping") else kv_heads,
    }  # fmt: skip
    values["k_scale"] = values["v_scale"] = torch.tensor(1.0) if tensor_scales else 1.0
    if case.get("int64"):
        values["block_tables"], values["seq_lens"] = table.long(), values["seq_lens"].long()
    if "owner" in case:
        attention = getattr(sys.modules[attention.__module__], case["owner"])
    parameters = inspect.signature(attention.forward_decode).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    kernels.called.clear()
    with environment(case.get("env", {})), logged() as log:
        try:
            out = attention.forward_decode(*(values[KNOWN_AS.get(name, name)] for name in required))
        except Exception as error:
            return {"kernel": f"{type(error).__name__}: {error}", "log": log}
    excess = ((out.double() - inputs.truth).norm(dim=2) / inputs.allowed).nan_to_num(nan=float("inf")).max()
    return {"kernel": "+".join(kernels.called) or "ours", "excess": float(excess), "log": log}


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables, set for a while."""
    before = {name: os.environ.pop(name, None) for name in changes}
    os.environ.update(changes)
    yield
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


@contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged below vLLM's logger meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)


def main() -> None:
    """Run the jobs of a file."""
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    results = []
    for job in jobs:
        with environment(job.get("env", {})):
            attention, kernels = import_tree(job["tree"], job.get("plugin", ""))
            results.append([decode(attention, kernels, case) for case in job["cases"]])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
