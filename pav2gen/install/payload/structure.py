"""Where a vLLM tree decodes, found by structure and by name, never by line or by text.

``pav2gen install`` edits what is found here in the files, the plugin of the wheel in memory. Names that changed from
one vLLM to the next, or in a fork, are known under ``ALIASES``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

#: The files of a vLLM tree, below its package folder.
OPS = "_custom_ops.py"
DECODE = "attention/ops/paged_attn.py"
LAYER = "attention/layer.py"

#: The operator's parameters under the names that vLLM and its forks give them; the first is ours.
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
#: Parameters that a fork may lack: block-sparse attention came with vLLM 0.4.3.
OPTIONAL = (
    ("tp_rank",),
    ("blocksparse_local_blocks",),
    ("blocksparse_vert_stride",),
    ("blocksparse_block_size",),
    ("blocksparse_head_sliding_step",),
)
#: What the choice between V1 and V2, and the check at model load, are told.
CHOICE = ("query", "key_cache", "max_seq_len", "kv_cache_dtype", "alibi_slopes")
SHAPE = ("num_heads", "num_kv_heads", "head_size", "alibi_slopes", "cache_config")


class Unfit(Exception):
    """Why the calls cannot be put into a file: it ends a sentence that begins with the file's name."""


class Operator(NamedTuple):
    """A ``paged_attention_v2`` of a tree.

    arguments: our name of each parameter -> the tree's. extras: further parameters -> the source of their defaults.
    works: whether the body can do more than raise. scales: "float", "tensor", or "one" for a single kv_scale.
    """

    function: ast.FunctionDef
    arguments: Mapping[str, str]
    extras: Mapping[str, str]
    works: bool
    scales: str


class Decode(NamedTuple):
    """The choice in ``PagedAttention.forward_decode``.

    choice: the ``if`` with V1 in its body and V2 in its else branch. first: the ``if`` that an elif chain starts with.
    arguments: what ``choose_v1`` is told -> the tree's names. plain: V1 is not given kv_cache_dtype, or the pattern.
    """

    function: ast.FunctionDef
    first: ast.If
    choice: ast.If
    arguments: Mapping[str, str]
    plain: bool


class Layer(NamedTuple):
    """``Attention.__init__``, at whose end ``check_layer`` is told the ``arguments``."""

    function: ast.FunctionDef
    arguments: Mapping[str, str]


def find_v2(tree: ast.Module) -> list[Operator]:
    """Every ``paged_attention_v2`` of a module. Raises Unfit if there is none, or one whose parameters are unknown."""
    found = [_operator(function) for function in functions(tree.body, "paged_attention_v2")]
    if not found:
        raise Unfit("defines no function paged_attention_v2; vLLM 0.4.3 to 0.11 have one")
    return found


def v1_works(tree: ast.Module) -> bool:
    """Whether ``paged_attention_v1`` can do more than raise; one that is not defined here is taken to work."""
    found = list(functions(tree.body, "paged_attention_v1"))
    return not found or any(not only_raises(function) for function in found)


def find_decode(tree: ast.Module) -> Decode:
    """The choice between V1 and V2. Raises Unfit where it is not found, or does not know what it has to be told."""
    function = _method(tree, "PagedAttention", "forward_decode")
    if function is None:
        raise Unfit("has no PagedAttention.forward_decode; vLLM 0.4.3 to 0.11 have one")
    found = list(_choices(function.body))
    if len(found) != 1:
        raise Unfit(
            f"line {function.lineno}: forward_decode has {len(found) or 'no'} if statement{'s'[: len(found)]} with "
            "paged_attention_v1 in the body and paged_attention_v2 in the else branch, and needs exactly one"
        )
    first, choice = found[0]
    names = _named(function, [names for names in ALIASES if names[0] in CHOICE], "forward_decode")
    vert_stride = "blocksparse_vert_stride"
    if vert_stride in _parameters(function):
        names[vert_stride] = vert_stride
    passed = {node.id for node in _names_in_call(choice.body, "paged_attention_v1")}
    plain = not {names["kv_cache_dtype"], *names.keys() & {vert_stride}} <= passed
    return Decode(function, first, choice, names, plain)


def find_layer(tree: ast.Module) -> Layer | None:
    """Where an attention layer is made; None where that is not as vLLM does it: nothing is then told at model load."""
    function = _method(tree, "Attention", "__init__")
    if function is None or not set(SHAPE) <= set(_parameters(function)):
        return None
    if not any(isinstance(node, ast.Attribute) and node.attr == "impl" for node in ast.walk(function)):
        return None
    sparse = "blocksparse_params"
    optional = {sparse} & set(_parameters(function))
    return Layer(function, {name: name for name in (*SHAPE, *optional)})


def functions(body: Iterable[ast.stmt], name: str) -> Iterator[ast.FunctionDef]:
    """The functions called ``name`` of a module, also in its if and try blocks, but not in a class or a function."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            yield statement
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in blocks(statement):
                yield from functions(block, name)


def blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements in a compound statement."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if isinstance(block, list):
            yield block
    for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield handler.body


def only_raises(function: ast.FunctionDef) -> bool:
    """Whether a body is a stub: it does nothing, or has no branch and ends in a raise, or in ``assert False``."""
    body = [statement for statement in function.body if not _is_nothing(statement)]
    if not body:
        return True
    last = body[-1]
    never = isinstance(last, ast.Assert) and isinstance(last.test, ast.Constant) and not last.test.value
    return (isinstance(last, ast.Raise) or never) and not any(map(_branches, body))


def _is_nothing(statement: ast.stmt) -> bool:
    """Docstring, ``...``, ``pass``, ``return`` and ``return None``."""
    if isinstance(statement, ast.Return):
        return statement.value is None or (isinstance(statement.value, ast.Constant) and statement.value.value is None)
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


def _branches(statement: ast.stmt) -> bool:
    """Whether a statement can end the function in another way than the statements after it."""
    return isinstance(statement, ast.Return) or any(True for _ in blocks(statement))


def _operator(function: ast.FunctionDef) -> Operator:
    parameters = _parameters(function)
    arguments = _named(function, ALIASES, "paged_attention_v2")
    arguments.update({name: name for (name,) in OPTIONAL if name in parameters})
    extras = {name: parameters[name] for name in parameters if name not in arguments.values()}
    unknown = [name for name, default in extras.items() if not default]
    if unknown or function.args.vararg or function.args.kwarg:
        names = ", ".join(unknown) or "* or **"
        raise Unfit(f"line {function.lineno}: paged_attention_v2 has parameters that are not vLLM's: {names}")
    scales = "one" if arguments["k_scale"] == arguments["v_scale"] else _scales(function, arguments["k_scale"])
    if scales == "one" and "blocksparse_vert_stride" not in arguments:
        raise Unfit(
            f"line {function.lineno}: paged_attention_v2 is that of vLLM before 0.4.3, whose fp8 is another format"
        )
    extras = {name: default for name, default in extras.items() if default}
    return Operator(function, arguments, extras, not only_raises(function), scales)


def _scales(function: ast.FunctionDef, name: str) -> str:
    """Whether a scale is annotated as a tensor (vLLM 0.7 and later) or not."""
    args = function.args
    annotations = [arg.annotation for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.arg == name]
    return "tensor" if annotations[0] is not None and "Tensor" in ast.unparse(annotations[0]) else "float"


def _parameters(function: ast.FunctionDef) -> dict[str, str]:
    """The parameters of a function, each with the source of its default, empty where there is none."""
    args = function.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    found = dict.fromkeys(positional, "")
    found.update(zip(positional[len(positional) - len(args.defaults) :], map(ast.unparse, args.defaults)))
    found.update({a.arg: ast.unparse(d) if d else "" for a, d in zip(args.kwonlyargs, args.kw_defaults)})
    return found


def _named(function: ast.FunctionDef, wanted: Iterable[tuple[str, ...]], of: str) -> dict[str, str]:
    """Our name of each parameter -> the function's. Raises Unfit for one that it lacks under every known name."""
    parameters = _parameters(function)
    found: dict[str, str] = {}
    for names in wanted:
        known = [name for name in names if name in parameters]
        if not known:
            raise Unfit(f"line {function.lineno}: {of} has no parameter {' or '.join(names)}")
        found[names[0]] = known[0]
    return found


def _method(tree: ast.Module, owner: str, name: str) -> ast.FunctionDef | None:
    """The method ``name`` of the class ``owner``, if the module has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    return statement
    return None


def _choices(body: list[ast.stmt]) -> Iterator[tuple[ast.If, ast.If]]:
    """Each choice between V1 and V2 below ``body``, behind the ``if`` that its elif chain starts with."""
    for statement in body:
        if isinstance(statement, ast.If):
            for link in _chain(statement):
                if _calls(link.body, "paged_attention_v1") and _calls(link.orelse, "paged_attention_v2"):
                    yield statement, link
                else:
                    yield from _choices(link.body)
            yield from _choices(list(_else(statement)))
        else:
            for block in blocks(statement):
                yield from _choices(block)


def _chain(statement: ast.If) -> Iterator[ast.If]:
    """An ``if`` and the elifs behind it."""
    yield statement
    while _has_elif(statement):
        statement = statement.orelse[0]  # type: ignore[assignment]
        yield statement


def _has_elif(statement: ast.If) -> bool:
    """Whether the else branch is an elif: its ``if`` starts in the column of the ``if`` before it."""
    block = statement.orelse
    return len(block) == 1 and isinstance(block[0], ast.If) and block[0].col_offset == statement.col_offset


def _else(statement: ast.If) -> list[ast.stmt]:
    """The block behind the last elif."""
    *_, last = _chain(statement)
    return last.orelse


def _calls(body: Iterable[ast.stmt], name: str) -> bool:
    return any(True for _ in _calls_of(body, name))


def _calls_of(body: Iterable[ast.stmt], name: str) -> Iterator[ast.Call]:
    """The calls of ``name`` or ``anything.name`` below ``body``."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called == name:
                    yield node


def _names_in_call(body: Iterable[ast.stmt], name: str) -> Iterator[ast.Name]:
    """The variables that the calls of ``name`` below ``body`` pass on."""
    for call in _calls_of(body, name):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from (node for node in ast.walk(argument) if isinstance(node, ast.Name))
