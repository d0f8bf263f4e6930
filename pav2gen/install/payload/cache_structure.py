"""Finds the functions of a vLLM tree that write the KV cache, and the functions that attend to a cached prefix."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from .structure import Unfit, named, refuse_rebinding
from .syntax import block_only_raises, functions, has_call, imports, methods, only_raises, parameters, rebinding

#: WRITER is vLLM's operator that fills the KV cache. WRITE has its parameters: each entry has the names that vLLM and
#: its forks give to one parameter.
WRITER = "reshape_and_cache"
WRITE = (
    ("key",),
    ("value",),
    ("key_cache",),
    ("value_cache",),
    ("slot_mapping",),
    ("kv_cache_dtype",),
    ("k_scale", "kv_scale"),
    ("v_scale", "kv_scale"),
)
#: The parameters of ``forward_prefix`` that the hook ``serve_prefix`` needs. Each entry of PREFIX has the names of one
#: parameter. The parameters in PREFIX_OPTIONAL may be missing in a vLLM tree.
PREFIX = (
    ("query",),
    ("key_cache",),
    ("value_cache",),
    ("block_tables",),
    ("query_start_loc",),
    ("seq_lens", "seq_lens_tensor"),
    ("max_query_len",),
    ("alibi_slopes",),
)
PREFIX_OPTIONAL = ("kv_cache_dtype", "sliding_window", "k_scale", "v_scale")

#: VENDOR is Iluvatar's Python package, which its forks of vLLM import. HANGING is the function of vLLM with the Triton
#: kernel that hangs Iluvatar's GPUs.
VENDOR, HANGING = "ixformer", "context_attention_fwd"


class Writer(NamedTuple):
    """A definition of ``reshape_and_cache`` in a vLLM tree.

    arguments: maps each argument of the hook ``serve_write`` to the name of the same parameter in this definition.
    extras: maps each further parameter to the source text of its default.
    kind: "none" if the function only raises an error; "plain" if it ignores kv_cache_dtype, or raises an error for some
    values of kv_cache_dtype; else "whole".
    """

    function: ast.FunctionDef
    arguments: Mapping[str, str]
    extras: Mapping[str, str]
    kind: str


class Prefix(NamedTuple):
    """A definition of ``PagedAttention.forward_prefix`` in a vLLM tree.

    arguments: maps each argument of the hook ``serve_prefix`` to the name of the same parameter in this definition.
    own: "none" if the function only raises an error; "hangs" if it runs a Triton kernel that hangs the GPU; else
    "works".
    """

    function: ast.FunctionDef
    arguments: Mapping[str, str]
    own: str


def find_writers(tree: ast.Module) -> list[Writer]:
    """Return every definition of ``reshape_and_cache`` in a module.

    Raises Unfit if there is no definition, or if a definition lacks a parameter or has an unknown parameter without a
    default. Also raises Unfit if the module assigns another value to ``reshape_and_cache``.
    """
    found = [_writer(function) for function in functions(tree.body, WRITER)]
    if not found:
        raise Unfit(f"defines no function {WRITER}")
    refuse_rebinding(rebinding(tree, WRITER), WRITER)
    return found


def find_prefixes(decode: ast.Module, ops: ast.Module) -> list[Prefix]:
    """Return every definition of ``PagedAttention.forward_prefix`` in the module ``decode``.

    ops: the module of the same tree that defines vLLM's operators.

    Raises Unfit if there is no definition, if a definition lacks a parameter of ``PREFIX``, or if the module assigns
    another value to ``forward_prefix``.
    """
    vendor = imports(ops, VENDOR)
    found = [_prefix(method.function, vendor) for method in methods(decode, "PagedAttention", "forward_prefix")]
    if not found:
        raise Unfit("has no PagedAttention.forward_prefix")
    refuse_rebinding(rebinding(decode, "forward_prefix", "PagedAttention"), "PagedAttention.forward_prefix")
    return found


def _writer(function: ast.FunctionDef) -> Writer:
    given = parameters(function)
    arguments = named(function, WRITE, WRITER)
    extras = {name: given[name] for name in given if name not in arguments.values()}
    unknown = [name for name, default in extras.items() if not default]
    if unknown or function.args.vararg or function.args.kwarg:
        names = ", ".join(unknown) or "* or **"
        raise Unfit(f"line {function.lineno}: {WRITER} has parameters that are not vLLM's: {names}")
    return Writer(function, arguments, extras, _kind(function, arguments["kv_cache_dtype"]))


def _kind(function: ast.FunctionDef, dtype: str) -> str:
    """Return the kind of a ``reshape_and_cache``, as in ``Writer.kind``.

    dtype: the name that ``function`` gives to the parameter kv_cache_dtype.
    """
    if only_raises(function):
        return "none"
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    used = any(isinstance(node, ast.Name) and node.id == dtype for node in nodes)
    return "whole" if used and not any(_refuses(node, dtype) for node in nodes) else "plain"


def _refuses(node: ast.AST, dtype: str) -> bool:
    """Whether ``node`` is an ``if`` that tests the variable ``dtype``, and only raises an error in one branch."""
    if not isinstance(node, ast.If):
        return False
    tested = any(isinstance(each, ast.Name) and each.id == dtype for each in ast.walk(node.test))
    return tested and any(block and block_only_raises(block) for block in (node.body, node.orelse))


def _prefix(function: ast.FunctionDef, vendor: bool) -> Prefix:
    given = parameters(function)
    arguments = named(function, PREFIX, "forward_prefix")
    arguments.update({name: name for name in PREFIX_OPTIONAL if name in given})
    hangs = vendor and has_call([function], HANGING)
    return Prefix(function, arguments, "none" if only_raises(function) else "hangs" if hangs else "works")
