"""Finds the functions of a vLLM tree that decode, by their syntax and names, whatever their line numbers and
formatting.

V1 and V2 are vLLM's operators ``paged_attention_v1`` and ``paged_attention_v2``. ``forward_decode`` is the method of
vLLM that calls one of these two operators.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .syntax import (
    Method,
    block_only_raises,
    blocks,
    elif_chain,
    functions,
    has_call,
    methods,
    names_in_calls,
    only_delegates,
    only_raises,
    overrides,
    parameters,
    rebinding,
)

#: The files of vLLM that call hooks, relative to the folder of the package ``vllm``.
OPS = "_custom_ops.py"
DECODE = "attention/ops/paged_attn.py"
LAYER = "attention/layer.py"

#: The names of the operators of vLLM that decode.
V1, V2 = "paged_attention_v1", "paged_attention_v2"

#: The parameters of V2. Each entry has the names that vLLM and its forks give to one parameter. Hooks use the first
#: name.
ALIASES = (
    ("out", "output"),
    ("exp_sums", "exp_sum"),
    ("max_logits",),
    ("tmp_out", "tmp_output"),
    ("query",),
    ("key_cache",),
    ("value_cache",),
    ("num_kv_heads", "head_mapping"),
    ("scale",),
    ("block_tables",),
    ("seq_lens", "context_lens"),
    ("block_size",),
    ("max_seq_len", "max_context_len"),
    ("alibi_slopes",),
    ("kv_cache_dtype",),
    ("k_scale", "kv_scale"),
    ("v_scale", "kv_scale"),
)
#: Parameters of V2 that a fork may lack, because block-sparse attention came only with vLLM 0.4.3.
OPTIONAL = (
    "tp_rank",
    "blocksparse_local_blocks",
    "blocksparse_vert_stride",
    "blocksparse_block_size",
    "blocksparse_head_sliding_step",
)
#: The arguments of the hook ``choose_v1``. ``forward_decode`` must have a parameter for each, by any name in
#: ``ALIASES``.
CHOICE = (
    "query",
    "key_cache",
    "value_cache",
    "block_tables",
    "seq_lens",
    "max_seq_len",
    "kv_cache_dtype",
    "alibi_slopes",
)
#: The required arguments of the hook ``check_layer``. ``Attention.__init__`` must have a parameter for each.
SHAPE = ("num_heads", "num_kv_heads", "head_size", "alibi_slopes", "cache_config")
#: The optional arguments of the hook ``check_layer``. ``Attention.__init__`` may lack a parameter for them.
FEATURES = ("blocksparse_params", "logits_soft_cap", "per_layer_sliding_window")


class Unfit(Exception):
    """Raised if a source file of vLLM does not have the expected form.

    The message is the rest of a sentence that begins with the file's name, such as "defines no function ...".
    """


class Operator(NamedTuple):
    """A definition of ``paged_attention_v2`` in a vLLM tree.

    arguments: maps each argument of the hook ``serve_v2`` to the name of the same parameter in this definition.
    extras: maps each further parameter to the source text of its default.
    works: whether the function does more than raise an error.
    scales: the type of the parameters k_scale and v_scale, "float" or "tensor". The value is "one" if there is only
    kv_scale.
    """

    function: ast.FunctionDef
    arguments: Mapping[str, str]
    extras: Mapping[str, str]
    works: bool
    scales: str


class Decode(NamedTuple):
    """The ``if`` of a ``forward_decode`` that calls either ``paged_attention_v1`` (V1) or ``paged_attention_v2`` (V2).

    function: the definition of ``forward_decode``.
    first: the first ``if`` of the elif chain that contains ``choice``.
    choice: the ``if`` that calls V1 in its body and V2 in its else branch.
    arguments: maps each argument of the hook ``choose_v1`` to the name of the same parameter of ``function``.
    plain: whether ``choice`` calls V1 without kv_cache_dtype or without the block-sparse pattern.
    detours: the ``if`` statements in the else branch of ``choice`` that can call a kernel other than V2.
    others: the ``if`` statements outside of ``choice`` that can call a kernel other than V1 and V2.
    """

    function: ast.FunctionDef
    first: ast.If
    choice: ast.If
    arguments: Mapping[str, str]
    plain: bool
    detours: tuple[ast.If, ...]
    others: tuple[ast.If, ...]


class Decodes(NamedTuple):
    """All definitions of ``forward_decode`` in a module of vLLM that do more than call another ``forward_decode``.

    choices: the definitions that call ``paged_attention_v1`` or ``paged_attention_v2``.
    foreign: the overrides in subclasses that call neither of these operators.
    """

    choices: tuple[Decode, ...]
    foreign: tuple[Method, ...]


class Layer(NamedTuple):
    """A definition of ``Attention.__init__`` in a vLLM tree.

    arguments: maps each argument of the hook ``check_layer`` to the name of the same parameter in this definition.
    """

    function: ast.FunctionDef
    arguments: Mapping[str, str]


def find_v2(tree: ast.Module) -> list[Operator]:
    """Return every definition of ``paged_attention_v2`` in a module.

    Raises Unfit if there is no definition, or if a definition lacks a parameter or has an unknown parameter without a
    default. Also raises Unfit if the module assigns another value to ``paged_attention_v2``.
    """
    found = [_operator(function) for function in functions(tree.body, V2)]
    if not found:
        raise Unfit(f"defines no function {V2}; vLLM 0.4.3 to 0.11 have one")
    refuse_rebinding(rebinding(tree, V2), V2)
    return found


def v1_works(tree: ast.Module) -> bool:
    """Whether ``paged_attention_v1`` does more than raise an error.

    The answer is True if the module does not define this function.
    """
    found = list(functions(tree.body, V1))
    return not found or any(not only_raises(function) for function in found)


def find_decode(tree: ast.Module) -> Decodes:
    """Return the definitions of ``PagedAttention.forward_decode`` and of its overrides in a module.

    Raises Unfit if ``PagedAttention`` has no ``forward_decode`` that does more than raise an error. Also raises Unfit
    if a definition does not have exactly one choice between ``paged_attention_v1`` and ``paged_attention_v2``, or if
    the module assigns another value to ``forward_decode``.
    """
    defined = methods(tree, "PagedAttention", "forward_decode")
    if not defined:
        raise Unfit("has no PagedAttention.forward_decode; vLLM 0.4.3 to 0.11 have one")
    refuse_rebinding(rebinding(tree, "forward_decode", "PagedAttention"), "PagedAttention.forward_decode")
    derived = overrides(tree, "PagedAttention", "forward_decode")
    deciding = [method for method in derived if has_call([method.function], V1, V2)]
    foreign = [method for method in derived if method not in deciding and not only_delegates(method)]
    found = [method.function for method in defined if not only_raises(method.function)]
    if not found:
        raise Unfit(f"line {defined[0].function.lineno}: forward_decode only raises")
    choices = tuple(_decode(function) for function in (*found, *(method.function for method in deciding)))
    return Decodes(choices, tuple(foreign))


def find_layers(tree: ast.Module) -> list[Layer]:
    """Return those definitions of ``Attention.__init__`` in a module that make a backend object.

    Definitions without a parameter for each required argument of the hook ``check_layer`` are left out.
    """
    found = []
    for method in methods(tree, "Attention", "__init__"):
        function, given = method.function, parameters(method.function)
        made = any(isinstance(node, ast.Attribute) and node.attr == "impl" for node in ast.walk(function))
        if made and set(SHAPE) <= given.keys():
            found.append(Layer(function, {name: name for name in (*SHAPE, *FEATURES) if name in given}))
    return found


def refuse_rebinding(statement: ast.stmt | None, name: str) -> None:
    """Raise Unfit unless ``statement`` is None.

    statement: a statement that assigns another value to ``name``, so that calls may not reach the definition of
    ``name``.
    """
    if statement is not None:
        raise Unfit(
            f"line {statement.lineno}: {name} is also bound here, so that a call in its definition may never run"
        )


def _operator(function: ast.FunctionDef) -> Operator:
    """Return the ``Operator`` for ``function``, a definition of ``paged_attention_v2``.

    Raises Unfit if ``function`` lacks a parameter of ``ALIASES``, or has an unknown parameter without a default.
    """
    given = parameters(function)
    arguments = named(function, ALIASES, V2)
    arguments.update({name: name for name in OPTIONAL if name in given})
    extras = {name: given[name] for name in given if name not in arguments.values()}
    unknown = [name for name, default in extras.items() if not default]
    if unknown or function.args.vararg or function.args.kwarg:
        names = ", ".join(unknown) or "* or **"
        raise Unfit(f"line {function.lineno}: {V2} has parameters that are not vLLM's: {names}")
    scales = "one" if arguments["k_scale"] == arguments["v_scale"] else _scales(function, arguments["k_scale"])
    if scales == "one" and "blocksparse_vert_stride" not in arguments:
        raise Unfit(f"line {function.lineno}: {V2} is from vLLM before 0.4.3, with another fp8 format")
    extras = {name: default for name, default in extras.items() if default}
    return Operator(function, arguments, extras, not only_raises(function), scales)


def _scales(function: ast.FunctionDef, name: str) -> str:
    """Return the type of the parameter ``name``, a scale, by its annotation: "tensor" (since vLLM 0.7) or "float"."""
    args = function.args
    annotations = [arg.annotation for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.arg == name]
    return "tensor" if annotations[0] is not None and "Tensor" in ast.unparse(annotations[0]) else "float"


def named(function: ast.FunctionDef, wanted: Iterable[tuple[str, ...]], owner: str) -> dict[str, str]:
    """Return a dict from the first name of each wanted parameter to the parameter's name in ``function``.

    wanted: for each wanted parameter, all names in vLLM and its forks.
    owner: the name that the error message gives to ``function``.

    Raises Unfit if ``function`` lacks a wanted parameter.
    """
    given = parameters(function)
    found: dict[str, str] = {}
    for names in wanted:
        known = [name for name in names if name in given]
        if not known:
            raise Unfit(f"line {function.lineno}: {owner} has no parameter {' or '.join(names)}")
        found[names[0]] = known[0]
    return found


def _decode(function: ast.FunctionDef) -> Decode:
    """Return the ``Decode`` for ``function``, a definition of ``forward_decode``.

    Raises Unfit unless ``function`` has exactly one ``if`` that chooses between ``V1`` and ``V2``, and a parameter for
    each argument of ``CHOICE``.
    """
    found = list(_choices(function.body))
    if len(found) != 1:
        raise Unfit(
            f"line {function.lineno}: forward_decode has {len(found) or 'no'} if statement{'s'[: len(found)]} with "
            f"{V1} in the body and {V2} in the else branch; it must have exactly one"
        )
    first, choice = found[0]
    arguments = named(function, [names for names in ALIASES if names[0] in CHOICE], "forward_decode")
    vert_stride = "blocksparse_vert_stride"
    if vert_stride in parameters(function):
        arguments[vert_stride] = vert_stride
    passed = names_in_calls(choice.body, V1)
    plain = not {arguments["kv_cache_dtype"], *arguments.keys() & {vert_stride}} <= passed
    others = tuple(test for test in _detours(function.body, V2) if test is not choice)
    detours = tuple(test for test in _detours(choice.orelse, V2))
    return Decode(function, first, choice, arguments, plain, detours, tuple(t for t in others if t not in detours))


def _choices(body: list[ast.stmt]) -> Iterator[tuple[ast.If, ast.If]]:
    """Yield each choice between V1 and V2 in ``body``, as a pair: the first ``if`` of the elif chain, and the ``if``
    that calls V1 or V2.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            for link in elif_chain(statement):
                if has_call(link.body, V1) and has_call(link.orelse, V2):
                    yield statement, link
                else:
                    yield from _choices(link.body)
            *_, last = elif_chain(statement)
            yield from _choices(last.orelse)
        else:
            for block in blocks(statement):
                yield from _choices(block)


def _detours(body: list[ast.stmt], name: str) -> Iterator[ast.If]:
    """Yield each ``if`` in ``body`` that calls ``name`` in one branch, and another function in another branch."""
    for statement in body:
        for block in blocks(statement):
            if has_call(block, name):
                others = [other for other in blocks(statement) if other is not block and other]
                if isinstance(statement, ast.If) and any(map(_computes, others)):
                    yield statement
                yield from _detours(block, name)


def _computes(block: list[ast.stmt]) -> bool:
    """Whether a block of statements calls a function for another purpose than to raise an error."""
    called = any(isinstance(node, ast.Call) for statement in block for node in ast.walk(statement))
    return called and not block_only_raises(block)
