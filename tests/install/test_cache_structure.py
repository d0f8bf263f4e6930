"""Where a tree fills its cache and attends to several query tokens, found by structure and by name."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from pav2gen.install.payload.cache_structure import find_prefixes, find_writers
from pav2gen.install.payload.structure import Unfit

WRITER = """
def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale{more}):
{body}
"""
PREFIX = """
class PagedAttention:
    @staticmethod
    def forward_prefix(query, key, value, kv_cache_dtype, key_cache, value_cache, block_tables, query_start_loc,
                       seq_lens_tensor, context_lens, max_query_len, alibi_slopes, sliding_window, k_scale, v_scale):
{body}
"""
TRITON = "output = torch.empty_like(query)\ncontext_attention_fwd(query, key, value, output)\nreturn output"
VENDOR = ast.parse("import torch\ntry:\n    import ixformer.functions as ixf_F\nexcept ImportError:\n    pass\n")


def writer(body: str, more: str = "") -> ast.Module:
    return ast.parse(WRITER.format(body=indent(body, "    "), more=more))


def prefix(body: str) -> ast.Module:
    return ast.parse(PREFIX.format(body=indent(body, " " * 8)))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("torch.ops._C_cache_ops.reshape_and_cache(key, value, kv_cache_dtype, k_scale)", "whole"),
        ("ops.write(key, value, dtype=kv_cache_dtype)", "whole"),
        ("slots = slot_mapping.to(torch.int32)\nixf_F.write(key, value, key_cache, value_cache, slots)", "plain"),
        ("if kv_cache_dtype != 'auto':\n    raise NotImplementedError('fp8')\nixf_F.write(key, value)", "plain"),
        ("if kv_cache_dtype == 'auto':\n    ixf_F.write(key)\nelse:\n    raise NotImplementedError", "plain"),
        ("if key.numel() == 0:\n    raise ValueError\nops.write(key, kv_cache_dtype)", "whole"),
        ("raise NotImplementedError()", "none"),
        ('"""Not here."""', "none"),
    ],
)
def test_what_a_writer_does_with_the_cache_dtype(body: str, kind: str) -> None:
    (found,) = find_writers(writer(body))
    assert found.kind == kind


def test_a_writer_of_one_scale_and_of_further_parameters() -> None:
    text = WRITER.format(body="    ops.write(kv_cache_dtype)", more=", layout='HND'")
    (found,) = find_writers(ast.parse(text.replace("k_scale, v_scale", "kv_scale")))
    assert (found.arguments["k_scale"], found.arguments["v_scale"]) == ("kv_scale", "kv_scale")
    assert found.extras == {"layout": "'HND'"}
    both = f"if rocm:\n{indent(text, '    ')}\nelse:\n{indent(text, '    ')}"
    assert len(find_writers(ast.parse(both))) == 2


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (ast.parse("x = 1"), "defines no function reshape_and_cache"),
        (writer("pass", ", stream"), "line 2: reshape_and_cache has parameters that are not vLLM's: stream"),
        (writer("pass", ", *more"), "line 2: reshape_and_cache has parameters that are not vLLM's: * or **"),
        (
            ast.parse(WRITER.format(body="    pass", more="").replace("slot_mapping", "slots")),
            "no parameter slot_mapping",
        ),
        (ast.parse(WRITER.format(body="    pass", more="") + "reshape_and_cache = fast\n"), "is also bound here"),
    ],
)
def test_a_writer_that_is_not_known_is_left_alone(tree: ast.Module, sentence: str) -> None:
    with pytest.raises(Unfit) as refusal:
        find_writers(tree)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("body", "ops", "own"),
    [
        (TRITON, ast.parse("import torch"), "works"),
        (TRITON, VENDOR, "hangs"),
        ("return vendor.prefix(query)", VENDOR, "works"),
        ("raise NotImplementedError", VENDOR, "none"),
        ("raise NotImplementedError", ast.parse("import torch"), "none"),
    ],
)
def test_what_a_trees_own_path_for_prefixes_does(body: str, ops: ast.Module, own: str) -> None:
    (found,) = find_prefixes(prefix(body), ops)
    assert found.own == own
    assert (found.arguments["seq_lens"], found.arguments["k_scale"]) == ("seq_lens_tensor", "k_scale")


def test_prefixes_of_the_older_signatures() -> None:
    text = PREFIX.format(body=indent(TRITON, " " * 8))
    old = text.replace("kv_cache_dtype, ", "").replace(", sliding_window, k_scale, v_scale", ", sliding_window")
    (found,) = find_prefixes(ast.parse(old), ast.parse(""))
    assert found.arguments.keys() & {"kv_cache_dtype", "k_scale", "v_scale", "sliding_window"} == {"sliding_window"}
    assert len(find_prefixes(ast.parse(text.replace("context_lens, ", "")), ast.parse(""))) == 1


def test_a_tree_without_prefixes_is_left_alone() -> None:
    with pytest.raises(Unfit, match=r"has no PagedAttention.forward_prefix"):
        find_prefixes(ast.parse("class PagedAttention: pass"), ast.parse(""))
    with pytest.raises(Unfit, match="forward_prefix has no parameter query_start_loc"):
        find_prefixes(ast.parse(PREFIX.format(body="        pass").replace("query_start_loc", "starts")), ast.parse(""))
