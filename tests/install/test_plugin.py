"""The plugin's edits in memory, on small modules: what it replaces, and that it replaces all or nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pav2gen.install.package_contents import PAYLOAD

OPS = """
calls = []
def paged_attention_v1(*args):
    calls.append("v1")
def paged_attention_v2(out, exp_sum, max_logits, tmp_out, query, key_cache, value_cache, num_kv_heads, scale,
                       block_tables, seq_lens, block_size, max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale,
                       zero=0.0):
    calls.append("v2")
"""
DECODE = """
from __future__ import annotations
import small_ops as ops
class PagedAttention:
    @staticmethod
    def forward_decode(query: Undefined, key_cache, value_cache, block_tables, seq_lens, max_seq_len, kv_cache_dtype,
                       alibi_slopes) -> Unknown:
        if max_seq_len <= 8192:
            ops.paged_attention_v1(query, kv_cache_dtype)
        else:
            ops.paged_attention_v2(*range(17))
        return "done"
"""
LAYER = """
class Attention:
    def __init__(self, num_heads, head_size, num_kv_heads=None, alibi_slopes=None, cache_config=None):
        self.impl = "impl"
"""


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    """The plugin, in a package without kernels whose hooks note what they are told."""
    package = ModuleType("pav2_small")
    package.__path__ = [str(PAYLOAD), str(PAYLOAD.parents[1])]  # the runtime is the real one
    told: list[Any] = []
    stand_ins = {
        "hooks": {
            "__name__": "pav2_small.hooks",
            "told": told,
            "choose_v1": lambda use_v1, **asked: told.append((use_v1, asked)) or not use_v1,
            "serve_v2": lambda **call: bool(told.append(call)),
            "check_layer": lambda impl, **asked: told.append((impl, asked)),
        },
        "cache_hooks": {"serve_write": lambda **call: bool(told.append(call))},
        "softcap_hooks": {"take_softcap": lambda impl, softcap: told.append(softcap)},
        "prefix_hooks": {"serve_prefix": lambda **call: told.append(call)},
        "serving": {"log_once": lambda level, message: None},
    }
    sys.modules["pav2_small"] = package
    for name, functions in stand_ins.items():
        sys.modules[f"pav2_small.{name}"] = SimpleNamespace(**functions)  # type: ignore[assignment]
        setattr(package, name, sys.modules[f"pav2_small.{name}"])
    yield importlib.import_module("pav2_small.plugin")
    for name in [name for name in sys.modules if name.startswith(("pav2_small", "small_"))]:
        del sys.modules[name]


@pytest.fixture
def modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    monkeypatch.syspath_prepend(str(folder))
    for name, text in (("ops", OPS), ("decode", DECODE), ("layer", LAYER)):
        (folder / f"small_{name}.py").write_text(text)
    return [importlib.import_module(f"small_{name}") for name in ("ops", "decode", "layer")]


def test_the_choice_is_told_what_the_tree_would_do(plugin: ModuleType, modules: list[ModuleType]) -> None:
    ops, decode, _ = modules
    plugin.apply(*modules)
    assert decode.PagedAttention.forward_decode("q", "k", "v", "b", "l", 100, "auto", None) == "done"
    asked = {
        "query": "q", "key_cache": "k", "value_cache": "v", "block_tables": "b", "seq_lens": "l", "max_seq_len": 100,
        "kv_cache_dtype": "auto", "alibi_slopes": None,
    }  # fmt: skip
    choice, call = plugin.hooks.told
    assert choice == (True, {"v1": "whole", "v2": "works", **asked})
    assert call["fallback"] is True
    assert (call["out"], call["exp_sums"], call["v_scale"]) == (0, 1, 16)
    assert ops.calls == ["v2"]


def test_a_parameter_that_is_not_known_goes_to_the_tree(plugin: ModuleType, modules: list[ModuleType]) -> None:
    plugin.apply(*modules)
    modules[0].paged_attention_v2(*range(17), zero=1.0)
    assert plugin.hooks.told == []
    modules[0].paged_attention_v2(*range(17), zero=0.0)
    assert len(plugin.hooks.told) == 1
    assert modules[0].calls == ["v2", "v2"]


def test_a_layer_is_checked_when_it_is_made(plugin: ModuleType, modules: list[ModuleType]) -> None:
    plugin.apply(*modules)
    made = modules[2].Attention(24, head_size=256)
    assert made.impl == "impl"
    expected = {
        "writer": "", "prefix": "", "num_heads": 24, "num_kv_heads": None, "head_size": 256, "alibi_slopes": None,
        "cache_config": None,
    }  # fmt: skip
    assert plugin.hooks.told == [("impl", expected)]


def test_twice_is_once(plugin: ModuleType, modules: list[ModuleType]) -> None:
    plugin.apply(*modules)
    plugin.apply(*modules)
    modules[2].Attention(24, 256)
    assert len(plugin.hooks.told) == 1


@pytest.mark.parametrize(
    ("module", "old", "new"), [(0, "exp_sum,", "sums,"), (1, "ops.paged_attention_v2(*range(17))", "raise X")]
)
def test_all_or_nothing(plugin: ModuleType, modules: list[ModuleType], module: int, old: str, new: str) -> None:
    file = Path(str(modules[module].__file__))
    file.write_text(file.read_text().replace(old, new))
    importlib.invalidate_caches()
    modules[module] = importlib.reload(modules[module])
    before = [dict(vars(modules[0])), dict(vars(modules[1].PagedAttention)), dict(vars(modules[2].Attention))]
    with pytest.raises(plugin.Unfit):
        plugin.apply(*modules)
    after = [dict(vars(modules[0])), dict(vars(modules[1].PagedAttention)), dict(vars(modules[2].Attention))]
    assert before == after


WRITER = """
def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    {body}
"""
PREFIX = """
    @staticmethod
    def forward_prefix(query, key, value, kv_cache_dtype, key_cache, value_cache, block_tables, query_start_loc,
                       seq_lens_tensor, context_lens, max_query_len, alibi_slopes, sliding_window, k_scale, v_scale):
        return "own"
"""


def grown(modules: list[ModuleType], number: int, text: str) -> None:
    """A module of which the source has another ``text`` at its end."""
    file = Path(str(modules[number].__file__))
    file.write_text(file.read_text() + text)
    importlib.invalidate_caches()
    modules[number] = importlib.reload(modules[number])


@pytest.mark.parametrize(
    ("body", "wanted", "told"),
    [
        ("calls.append(kv_cache_dtype)", "", None),
        ("calls.append(kv_cache_dtype)", "always", {"writer": "whole", "always": True}),
        ("calls.append(key)", "", {"writer": "plain", "always": False}),
        ("raise NotImplementedError", "", {"writer": "none", "always": False}),
    ],
)
def test_a_writer_that_cannot_write_all_is_replaced(
    plugin: ModuleType, modules: list[ModuleType], body: str, wanted: str, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAV2_WRITER", wanted)
    grown(modules, 0, WRITER.format(body=body))
    plugin.apply(*modules)
    write = modules[0].reshape_and_cache
    assert hasattr(write, plugin.MARK) is (told is not None)
    if told:
        names = ("key", "value", "key_cache", "value_cache", "slot_mapping", "kv_cache_dtype", "k_scale", "v_scale")
        with suppress(NotImplementedError):
            write(*range(5), kv_cache_dtype=5, k_scale=6, v_scale=7)
        assert plugin.hooks.told == [{**told, **dict(zip(names, range(8)))}]


def test_prefixes_are_served_where_they_are_taken_over(
    plugin: ModuleType, modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(modules, 1, PREFIX)
    plugin.apply(*modules)
    attention = modules[1].PagedAttention
    assert attention.forward_prefix(*range(15)) == "own"
    (told,) = plugin.hooks.told
    assert told["own"] == "works"
    assert (told["query"], told["key_cache"], told["seq_lens"], told["max_query_len"]) == (0, 4, 8, 10)
    monkeypatch.setattr(plugin.prefix_hooks, "serve_prefix", lambda **call: "ours")
    assert attention.forward_prefix(*range(15)) == "ours"


BACKEND = """
class XFormersImpl:
    def __init__(self, num_heads, logits_soft_cap=None):
        if logits_soft_cap is not None:
            raise ValueError("no")
        self.num_heads = num_heads
    def forward(self, query, key, value, kv_cache, attn_metadata):
        pass
    def _run_memory_efficient_xformers_forward(self, query, key, value, attn_metadata):
        pass
"""


def test_a_backend_that_refuses_a_softcap_asks_first(
    plugin: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "small_backend.py").write_text(BACKEND)
    backend = importlib.import_module("small_backend")
    for _ in range(2):
        plugin.apply_softcap(backend)
    assert backend.XFormersImpl(3, logits_soft_cap=50.0).num_heads == 3
    assert backend.XFormersImpl(3).num_heads == 3
    assert plugin.hooks.told == [50.0]
    monkeypatch.setattr(plugin.softcap_hooks, "take_softcap", lambda impl, softcap: softcap)
    with pytest.raises(ValueError, match="no"):
        backend.XFormersImpl(3, 50.0)
