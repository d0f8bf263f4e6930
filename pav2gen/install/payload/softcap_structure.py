"""Finds the constructors in vLLM's XFormers backend that raise an error for a softcap (a limit on scores)."""

from __future__ import annotations

import ast

from .syntax import block_only_raises, methods, parameters

#: The file of the backend XFormers, relative to the folder of the package ``vllm``, and the name of its class.
BACKEND, IMPL = "attention/backends/xformers.py", "XFormersImpl"

#: SOFTCAP is the constructor's parameter for the softcap. NEEDED maps each other method that the class must have, so
#: that the hooks work, to parameters that the method must have.
SOFTCAP = "logits_soft_cap"
NEEDED = {
    "forward": {"kv_cache", "attn_metadata"},
    "_run_memory_efficient_xformers_forward": {"query", "key", "value", "attn_metadata"},
}


def find_refusals(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return every definition of the backend's constructor that raises an error for a softcap.

    The list is empty if the backend's class lacks a method or a parameter of ``NEEDED``.

    tree: the syntax tree of the backend's file.
    """
    for name, wanted in NEEDED.items():
        found = methods(tree, IMPL, name)
        if not found or not all(wanted <= parameters(method.function).keys() for method in found):
            return []
    return [method.function for method in methods(tree, IMPL, "__init__") if _refuses(method.function)]


def _refuses(function: ast.FunctionDef) -> bool:
    """Whether a constructor raises an error for some values of the softcap."""
    return SOFTCAP in parameters(function) and any(
        isinstance(node, ast.If)
        and any(isinstance(name, ast.Name) and name.id == SOFTCAP for name in ast.walk(node.test))
        and block_only_raises(node.body)
        for node in ast.walk(function)
    )
