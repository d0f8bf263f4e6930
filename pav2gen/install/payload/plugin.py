"""The vLLM plugin of a wheel. When vLLM starts, the plugin makes vLLM's functions call the hooks.

The plugin replaces functions in memory; the files of vLLM do not change. In every process, vLLM calls the entry point
(group ``vllm.general_plugins``), which is the small module ``entry_point.py``. The entry point imports this module and
calls ``register`` only if PAV2_PLUGIN is switched on.
"""

from __future__ import annotations

import ast
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from . import cache_hooks, hooks, prefix_hooks, softcap_hooks
from .cache_structure import Prefix, Writer, find_prefixes, find_writers
from .runtime.environment import choice
from .serving import log_once
from .softcap_structure import IMPL, SOFTCAP, find_refusals
from .structure import Decode, Layer, Operator, Unfit, find_decode, find_layers, find_v2, v1_works

#: The attribute that marks the functions that the plugin puts into vLLM. A second call of ``register`` finds it, and
#: changes nothing.
MARK = "__pav2__"

Definition = TypeVar("Definition", Operator, Decode, Layer, Writer, Prefix, "Refusal")


def register() -> None:
    """Make the vLLM of this process call the hooks, unless ``pav2gen install`` has put the calls into vLLM's files.

    Raises Unfit, and changes nothing, if vLLM's source does not have the expected form. vLLM then logs the error and
    goes on.
    """
    if find_spec("vllm.attention.ops.pav2") is not None:
        log_once(logging.INFO, "kernels are installed in this vLLM's own tree; the plugin changes nothing")
        return
    apply(*map(import_module, ("vllm._custom_ops", "vllm.attention.ops.paged_attn", "vllm.attention.layer")))
    with suppress(ImportError):  # xformers may not be installed
        apply_softcap(import_module("vllm.attention.backends.xformers"))


def apply_softcap(backend: ModuleType) -> None:
    """Make the constructor of the backend XFormers call ``take_softcap`` before the constructor can raise an error for
    a softcap.

    A second call changes nothing.

    backend: vLLM's module that defines this backend.
    """
    impl = getattr(backend, IMPL, None)
    if impl is None or hasattr(impl.__init__, MARK):
        return
    refusals = [Refusal(function) for function in find_refusals(parsed(backend))]
    if matching(refusals, impl.__init__):
        impl.__init__ = replaced_refusal(impl.__init__)


class Refusal(NamedTuple):
    """The definition of a backend's constructor that raises an error for a softcap."""

    function: ast.FunctionDef


def replaced_refusal(original: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that calls ``take_softcap``, and then calls ``original`` with the result as the softcap.

    original: the constructor of a vLLM backend, which raises an error for a softcap.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        if SOFTCAP in bound.arguments:
            bound.arguments[SOFTCAP] = softcap_hooks.take_softcap(self, bound.arguments[SOFTCAP])
        original(*bound.args, **bound.kwargs)

    setattr(__init__, MARK, True)
    return __init__


def apply(ops: ModuleType, decode: ModuleType, layer: ModuleType) -> None:
    """Replace in memory the functions of vLLM that ``pav2gen install`` would edit in vLLM's files.

    ops: vLLM's module that defines the operators.
    decode: vLLM's module that defines ``PagedAttention``.
    layer: vLLM's module that defines the attention layer.

    ``paged_attention_v2``, and each ``forward_decode`` that calls this operator, are always replaced.
    ``reshape_and_cache``, ``forward_prefix`` and ``Attention.__init__`` are replaced if their source has the expected
    form. A second call changes nothing.

    Raises Unfit, and replaces nothing, if the source of ``paged_attention_v2`` or of ``forward_decode`` is not found.
    """
    if hasattr(ops.paged_attention_v2, MARK):
        return
    trees = parsed(ops), parsed(decode)
    attention, v1_runs = decode.PagedAttention, v1_works(trees[0])
    operator = live(find_v2(trees[0]), ops.paged_attention_v2)
    choices = find_decode(trees[1]).choices
    decodes = {attention: live(choices, attention.forward_decode)}
    for owner in overriding(attention):
        decodes.update((owner, choice) for choice in matching(choices, owner.forward_decode))
    methods = {owner: replaced_decode(found, decode, v1_runs, operator) for owner, found in decodes.items()}
    writers = wanted_writers(trees[0], ops)
    prefixes = optional(find_prefixes, trees[1], trees[0], live_one=getattr(attention, "forward_prefix", None))
    layers = matching(find_layers(parsed(layer)), layer.Attention.__init__)
    ops.paged_attention_v2 = replaced_v2(operator, ops.paged_attention_v2)  # type: ignore[attr-defined]
    for owner, method in methods.items():
        owner.forward_decode = staticmethod(method)
    for writer in writers:
        ops.reshape_and_cache = replaced_writer(writer, ops.reshape_and_cache)  # type: ignore[attr-defined]
    for prefix in prefixes:
        attention.forward_prefix = staticmethod(replaced_prefix(prefix, attention.forward_prefix))
    told = {"writer": "".join(found.kind for found in writers), "prefix": "".join(found.own for found in prefixes)}
    for found in layers:
        layer.Attention.__init__ = replaced_init(found, layer.Attention.__init__, told)
    log_once(logging.INFO, "the plugin applied the generated kernels to this process")


def wanted_writers(tree: ast.Module, ops: ModuleType) -> list[Writer]:
    """Return the definition of the ``reshape_and_cache`` that the plugin replaces, in a list.

    The list is empty if the definition is not found. The list is also empty if this function can write every cache
    dtype and PAV2_WRITER is not "always".

    tree: the syntax tree of ``ops``.
    ops: vLLM's module that defines the operators.
    """
    found: list[Writer] = optional(find_writers, tree, live_one=getattr(ops, "reshape_and_cache", None))
    return [writer for writer in found if writer.kind != "whole" or always()]


def always() -> bool:
    """Whether the user set PAV2_WRITER=always, to use the generated writer even if vLLM's own writer works.

    Raises ValueError for a value other than auto and always.
    """
    return choice("PAV2_WRITER", ("auto", "always")) == "always"


def optional(find: Callable[..., list[Any]], *trees: ast.Module, live_one: Any) -> list[Any]:
    """Return the definition of the function ``live_one`` in a list. The list is empty if the definition is not found.

    find: a function that takes the syntax trees ``trees`` and returns definitions. If the function raises Unfit, the
    log says why.
    live_one: the function that vLLM calls now, or None if there is none.
    """
    try:
        return matching(find(*trees), live_one) if live_one else []
    except Unfit as reason:
        log_once(logging.INFO, f"vLLM {reason}; that part of vLLM is not changed")
        return []


def overriding(base: type) -> list[Any]:
    """Return the subclasses of ``base`` that are defined in the module of ``base`` and override ``forward_decode``."""
    found: list[Any] = [*base.__subclasses__()]
    for each in found:
        found += each.__subclasses__()
    return [each for each in found if each.__module__ == base.__module__ and "forward_decode" in vars(each)]


def matching(definitions: Sequence[Definition], function: Callable[..., Any]) -> list[Definition]:
    """Return a list with the one of ``definitions`` that begins on the same line as ``function``.

    The list is empty if no definition does, for example because another plugin replaced the function.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = code.co_firstlineno if code else 0
    return [each for each in definitions if first_line(each.function) == line]


def first_line(function: ast.FunctionDef) -> int:
    """Return the number of the line on which a function begins, including the function's decorators."""
    return min([function.lineno, *(node.lineno for node in function.decorator_list)])


def live(definitions: Sequence[Definition], function: Callable[..., Any]) -> Definition:
    """Return the one of ``definitions`` that begins on the same line as ``function``. Raises Unfit if there is none."""
    found = matching(definitions, function)
    if not found:
        raise Unfit(f"{function.__module__}: {function.__qualname__} is not one of the definitions in the file")
    return found[0]


def parsed(module: ModuleType) -> ast.Module:
    """Return the syntax tree of a module's source. Raises Unfit if the source cannot be read."""
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, SyntaxError) as error:
        raise Unfit(f"{module.__name__} has no source to read ({error})") from error


def replaced_v2(found: Operator, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``paged_attention_v2`` that calls ``original`` only if the generated kernels do not serve a call.

    original: vLLM's own function.
    found: the definition of ``original``.
    """
    return replaced_operator(found, original, functools.partial(hooks.serve_v2, fallback=found.works))


def replaced_writer(found: Writer, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``reshape_and_cache`` that calls ``original`` only if the generated cache writer does not serve a call.

    original: vLLM's own function.
    found: the definition of ``original``.
    """
    serve = functools.partial(cache_hooks.serve_write, writer=found.kind, always=always())
    return replaced_operator(found, original, serve)


def replaced_operator(
    found: Operator | Writer, original: Callable[..., Any], serve: Callable[..., bool]
) -> Callable[..., Any]:
    """Return a function that calls the hook ``serve``, and calls ``original`` only if the hook returned False.

    The hook is not called if a parameter that the hook lacks gets a value other than its default.

    original: vLLM's own operator.
    found: the definition of ``original``.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        plain = all(_is_default(given[name], signature.parameters[name].default) for name in found.extras)
        if plain and serve(**{ours: given[theirs] for ours, theirs in found.arguments.items()}):
            return None
        return original(*args, **kwargs)

    setattr(run, MARK, True)
    return run


def replaced_prefix(found: Prefix, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``forward_prefix`` that calls ``original`` only if the generated extend kernels do not serve a call.

    original: vLLM's own method.
    found: the definition of ``original``.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {ours: bound.arguments[theirs] for ours, theirs in found.arguments.items()}
        served = prefix_hooks.serve_prefix(own=found.own, **given)
        return original(*args, **kwargs) if served is None else served

    return run


def _is_default(value: Any, default: Any) -> bool:
    """Whether the argument ``value`` is the default of its parameter, or a number or text equal to the default."""
    return value is default or (isinstance(value, (int, float, str)) and bool(value == default))


def replaced_decode(found: Decode, module: ModuleType, v1_runs: bool, operator: Operator) -> Callable[..., Any]:
    """Return a copy of vLLM's ``forward_decode`` in which the hook ``choose_v1`` decides which operator to call.

    The operators are ``paged_attention_v1`` (V1) and ``paged_attention_v2`` (V2). The copy is made from the syntax tree
    in ``found``. This function changes that syntax tree.

    found: the choice between V1 and V2 in vLLM's method.
    module: the module of vLLM that defines the method.
    v1_runs: whether vLLM's V1 does more than raise an error.
    operator: the definition of vLLM's V2.
    """
    told = ", ".join(f"{ours}={theirs}" for ours, theirs in found.arguments.items())
    v1 = "none" if not v1_runs else "plain" if found.plain else "whole"
    v2 = "works" if operator.works or found.detours else "stub"
    choice = f"use_v1 = choose_v1(0, v1={v1!r}, v2={v2!r}, {told})"
    hook = ast.parse(f"from {hooks.__name__} import choose_v1\n{choice}").body
    assign = hook[1]
    assert isinstance(assign, ast.Assign) and isinstance(assign.value, ast.Call)
    assign.value.args[0] = found.choice.test
    for node in (node for statement in hook for node in ast.walk(statement)):
        ast.copy_location(node, found.first)
    found.choice.test = ast.copy_location(ast.Name("use_v1", ast.Load()), found.first)
    block = _block_of(found.function, found.first)
    block[block.index(found.first) : block.index(found.first)] = hook
    found.function.decorator_list = []
    for node in ast.walk(found.function.args):
        if isinstance(node, ast.arg):
            node.annotation = None  # a name that exists only for type checkers would raise a NameError
    found.function.returns = None
    names: dict[str, Any] = {}
    code = compile(ast.Module([found.function], []), inspect.getsourcefile(module) or module.__name__, "exec")
    exec(code, vars(module), names)
    return names[found.function.name]  # type: ignore[no-any-return]


def _block_of(function: ast.FunctionDef, statement: ast.stmt) -> list[ast.stmt]:
    """Return the list of statements in ``function`` that contains ``statement``."""
    return next(
        block
        for node in ast.walk(function)
        for block in (getattr(node, "body", None), getattr(node, "orelse", None), getattr(node, "finalbody", None))
        if isinstance(block, list) and statement in block
    )


def replaced_init(found: Layer, original: Callable[..., None], told: dict[str, Any]) -> Callable[..., None]:
    """Return an ``Attention.__init__`` that calls ``original`` and then the hook ``check_layer``.

    original: vLLM's own constructor.
    found: the definition of ``original``.
    told: the arguments ``writer`` and ``prefix`` for ``check_layer``.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {ours: bound.arguments[theirs] for ours, theirs in found.arguments.items()}
        hooks.check_layer(self.impl, **told, **given)

    return __init__
