"""Computes the edits that make the source files of a vLLM tree call the generated kernels.

The edits insert calls of hooks: functions that an install copies from the folder ``payload`` into the tree. Each hook
runs a generated kernel or a check, or leaves the work to vLLM's own code, which stays in the files. If the environment
variable PAV2_DISABLE is 1, only vLLM's own code runs.

V1 and V2 are vLLM's operators ``paged_attention_v1`` and ``paged_attention_v2``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pav2gen.errors import UserError
from pav2gen.install.editing.source_edit import Insertion, SourceFile, insert_lines
from pav2gen.install.payload.cache_structure import Prefix, Writer, find_prefixes, find_writers
from pav2gen.install.payload.softcap_structure import BACKEND, SOFTCAP, find_refusals
from pav2gen.install.payload.structure import (
    DECODE,
    LAYER,
    OPS,
    Decode,
    Decodes,
    Layer,
    Operator,
    Unfit,
    find_decode,
    find_layers,
    find_v2,
    v1_works,
)
from pav2gen.install.tree.decode_callers import foreign_note
from pav2gen.install.tree.trees import PAV2

Found = TypeVar("Found")

#: The name by which the edited source files of vLLM import the installed package.
HOOKS = f"vllm.{PAV2.replace('/', '.')}"

#: Maps each value of ``Fork.scales`` to words for messages: how vLLM's V2 takes the scales of keys and values, and
#: which versions of vLLM have such a V2.
FAMILIES = {
    "one": "one kv_scale, as vLLM 0.4.3 to 0.5.2",
    "float": "float scales, as vLLM 0.5.3 to 0.6",
    "tensor": "tensor scales, as vLLM 0.7 to 0.11",
}

#: Maps each value of ``Fork.v1`` to words for messages: whether vLLM's own V1 works.
V1_KINDS = {
    "whole": "V1 works",
    "plain": "V1 works, but takes neither kv_cache_dtype nor the block-sparse pattern",
    "none": "V1 is a stub",
}


#: WRITER_KINDS: which KV caches vLLM's own ``reshape_and_cache`` can write: all, only those with dtype "auto", or none.
#: PREFIX_KINDS: whether vLLM's own ``forward_prefix`` works, hangs the GPU, or only raises an error.
WRITER_KINDS = ("whole", "plain", "none")
PREFIX_KINDS = ("works", "hangs", "none")


@dataclass(frozen=True)
class Fork:
    """Which of the attention functions of a vLLM tree work without the generated kernels.

    scales: how the tree's ``paged_attention_v2`` takes the scales of keys and values, as a key of ``FAMILIES``.
    v1: whether the tree's ``paged_attention_v1`` works and takes all arguments, as a key of ``V1_KINDS``.
    v2_works: whether the tree's ``paged_attention_v2`` does more than raise an error.
    writer: which KV caches the tree's ``reshape_and_cache`` can write, as one of ``WRITER_KINDS``, or empty if this
    function is missing or has an unexpected form.
    prefix: whether the tree's ``forward_prefix`` works, as one of ``PREFIX_KINDS``, or empty if this function is
    missing or has an unexpected form.
    refuses_softcap: whether the tree's XFormers backend raises an error for a model with a softcap (a limit on scores).
    """

    scales: str
    v1: str
    v2_works: bool
    writer: str = ""
    prefix: str = ""
    refuses_softcap: bool = False

    def __str__(self) -> str:
        v2 = "V2 works and stays as the fallback" if self.v2_works else "V2 is a stub"
        return f"{FAMILIES[self.scales]}; {V1_KINDS[self.v1]}; {v2}"


@dataclass(frozen=True)
class PatchedSources:
    """The source files of a vLLM tree after the edits of an install.

    fork: which of the tree's own attention functions work.
    sources: maps the path of each edited file, relative to vLLM's folder, to its new content.
    notes: sentences that tell the user which parts of vLLM will not call the kernels.
    """

    fork: Fork
    sources: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def patch_sources(sources: Mapping[str, bytes], shown: str, writer: str = "auto") -> PatchedSources:
    """Compute vLLM's source files with calls of the generated kernels. Nothing is written to the disk.

    sources: maps the path of each source file, relative to vLLM's folder, to its content. The attention layer
    (``LAYER``) and the XFormers backend (``BACKEND``) may be missing.
    shown: the name that messages give to the vLLM tree.
    writer: which caches the generated cache writers fill, as in ``apply.InstallOptions``.

    Raises UserError if a file differs from every vLLM that pav2gen knows, or already calls hooks.
    """
    parsed = {path: SourceFile.parse(content, f"{shown}/{path}") for path, content in sources.items()}
    for source in parsed.values():
        if HOOKS in source.text:
            raise UserError(
                "has the calls of an install that left no record; restore it from version control", source.where
            )
    operators, works = _found(parsed[OPS], find_v2), _found(parsed[OPS], v1_works)
    decodes = _found(parsed[DECODE], find_decode)
    layers = find_layers(parsed[LAYER].tree) if LAYER in parsed else []
    writers, prefixes, missing = _optional(parsed[OPS], parsed[DECODE])
    refusals = find_refusals(parsed[BACKEND].tree) if BACKEND in parsed and layers else []
    fork = Fork(
        scales=operators[-1].scales,
        v1=v1_kind(works, any(decode.plain for decode in decodes.choices)),
        v2_works=any(operator.works for operator in operators),
        writer=least(WRITER_KINDS, (found.kind for found in writers)),
        prefix=least(PREFIX_KINDS, (found.own for found in prefixes)),
        refuses_softcap=bool(refusals),
    )
    always = writer == "always"
    writes = [_write_call(found, always) for found in writers if found.kind != "whole" or always]
    choices = [_choice(decode, works, fork.v2_works) for decode in decodes.choices]
    tests = {decode.choice.lineno: "use_v1" for decode in decodes.choices}
    patched = {
        OPS: insert_lines(parsed[OPS], [*map(_v2_call, operators), *writes]),
        DECODE: insert_lines(parsed[DECODE], [*choices, *map(_prefix_call, prefixes)], tests),
    }
    if layers:
        patched[LAYER] = insert_lines(parsed[LAYER], [_layer_check(layer, fork) for layer in layers])
    if refusals:
        patched[BACKEND] = insert_lines(parsed[BACKEND], [_softcap(function) for function in refusals])
    return PatchedSources(fork, patched, (*_notes(decodes), *missing))


def _optional(ops: SourceFile, decode: SourceFile) -> tuple[list[Writer], list[Prefix], list[str]]:
    """Return vLLM's functions that write the KV cache, vLLM's functions that attend to a cached prefix, and notes for
    the user.

    If a kind of function is missing or has an unexpected form, its list is empty, and a note says why.
    """
    writers: list[Writer] = []
    prefixes: list[Prefix] = []
    missing = []
    try:
        writers = find_writers(ops.tree)
    except Unfit as reason:
        missing.append(f"{OPS} {reason}: the tree's own writer fills every cache")
    try:
        prefixes = find_prefixes(decode.tree, ops.tree)
    except Unfit as reason:
        missing.append(f"{DECODE} {reason}: prefills with a cached prefix stay on the tree's own path")
    return writers, prefixes, missing


def least(kinds: Sequence[str], found: Iterable[str]) -> str:
    """Return the kind in ``found`` that serves the fewest calls, or an empty string if ``found`` is empty.

    kinds: all kinds of a function, such as ``WRITER_KINDS``. The first kind serves all calls, and the last kind serves
    none.
    found: the kinds of all definitions of this function in a vLLM tree.
    """
    there = set(found)
    return next((kind for kind in reversed(kinds) if kind in there), "")


def v1_kind(works: bool, plain: bool) -> str:
    """Return the key of ``V1_KINDS`` that describes vLLM's ``paged_attention_v1``.

    works: whether this function does more than raise an error.
    plain: whether vLLM calls this function without kv_cache_dtype or without the block-sparse pattern.
    """
    return "none" if not works else "plain" if plain else "whole"


def _found(source: SourceFile, find: Callable[[ast.Module], Found]) -> Found:
    """Return the result of ``find`` for the syntax tree of ``source``.

    Raises UserError if ``find`` raises Unfit, which means that the file does not have the expected form.
    """
    try:
        return find(source.tree)
    except Unfit as reason:
        raise UserError(str(reason), source.where) from reason


def _v2_call(operator: Operator) -> Insertion:
    """Return the insertion of a call of the hook ``serve_v2`` at the start of ``paged_attention_v2``."""
    lines = _served("hooks", "serve_v2", operator, [f"fallback={operator.works}"])
    comment = "pav2gen: the generated kernels first; PAV2_DISABLE=1 skips them."
    return Insertion(operator.function.lineno, "start", comment, lines)


def _write_call(writer: Writer, always: bool) -> Insertion:
    """Return the insertion of a call of the hook ``serve_write`` at the start of ``reshape_and_cache``.

    always: whether the generated cache writer is preferred to vLLM's own writer.
    """
    lines = _served("cache_hooks", "serve_write", writer, [f'writer="{writer.kind}"', f"always={always}"])
    comment = "pav2gen: the generated writer, for what the code below cannot write."
    return Insertion(writer.function.lineno, "start", comment, lines)


def _served(module: str, hook: str, found: Operator | Writer, first: Sequence[str]) -> str:
    """Return Python lines that make a function of vLLM call a hook first, and return if the hook has served the call.

    module: the module that defines the hook.
    hook: the name of the hook, such as ``serve_v2``.
    found: the function of vLLM. The lines pass its parameters on to the hook.
    first: the arguments of the hook that come before these parameters, as source text.
    """
    at_default = [f"{name} {'is' if default == 'None' else '=='} {default}" for name, default in found.extras.items()]
    arguments = [*first, *(f"{ours}={theirs}" for ours, theirs in found.arguments.items())]
    test = " and ".join([*at_default, _call(hook, arguments).rstrip("\n")])
    return f"{_import(hook, module)}if {test}:\n    return\n"


def _prefix_call(prefix: Prefix) -> Insertion:
    """Return the insertion of a call of the hook ``serve_prefix`` at the start of ``forward_prefix``."""
    arguments = [f'own="{prefix.own}"', *(f"{ours}={theirs}" for ours, theirs in prefix.arguments.items())]
    lines = (
        f"{_import('serve_prefix', 'prefix_hooks')}served = {_call('serve_prefix', arguments)}"
        "if served is not None:\n    return served\n"
    )
    comment = "pav2gen: the generated extend kernels; PAV2_DISABLE=1 skips them."
    return Insertion(prefix.function.lineno, "start", comment, lines)


def _choice(decode: Decode, v1_runs: bool, v2_runs: bool) -> Insertion:
    """Return the insertion of a call of the hook ``choose_v1`` above the ``if`` that chooses vLLM's decode operator.

    v1_runs, v2_runs: whether vLLM's ``paged_attention_v1`` and ``paged_attention_v2`` do more than raise an error.
    """
    v1, v2 = v1_kind(v1_runs, decode.plain), "works" if v2_runs or decode.detours else "stub"
    told = (f"{ours}={theirs}" for ours, theirs in decode.arguments.items())
    call = _call("choose_v1", ("TEST", f'v1="{v1}"', f'v2="{v2}"', *told))
    comment = "pav2gen: V2 where its kernels serve and the length is worth it."
    return Insertion(decode.first.lineno, "before", comment, f"{_import('choose_v1')}use_v1 = {call}")


def _softcap(function: ast.FunctionDef) -> Insertion:
    """Return the insertion of a call of the hook ``take_softcap`` at the start of ``function``.

    function: the constructor of an attention backend that raises an error for a softcap.
    """
    lines = f"{_import('take_softcap', 'softcap_hooks')}{SOFTCAP} = take_softcap(self, {SOFTCAP})\n"
    comment = "pav2gen: a softcap that the generated kernels serve is not refused."
    return Insertion(function.lineno, "start", comment, lines)


def _layer_check(layer: Layer, fork: Fork) -> Insertion:
    """Return the insertion of a call of the hook ``check_layer`` at the end of an attention layer's constructor."""
    told = [f'writer="{fork.writer}"', f'prefix="{fork.prefix}"']
    arguments = [f"{ours}={theirs}" for ours, theirs in layer.arguments.items()]
    lines = _call("check_layer", ("self.impl", *told, *arguments))
    comment = "pav2gen: a shape without a kernel is reported when the model loads."
    return Insertion(layer.function.lineno, "end", comment, _import("check_layer") + lines)


def _notes(decodes: Decodes) -> Iterator[str]:
    """Yield a sentence for the user for each place in ``DECODE`` where vLLM may bypass the generated kernels."""
    for decode in decodes.choices:
        for test in (*decode.others, *decode.detours):
            yield (
                f"{DECODE} line {test.lineno}: if `{ast.unparse(test.test)}` chooses another kernel of vLLM, that "
                "kernel decodes, and the generated ones do not"
            )
    for method in decodes.foreign:
        yield foreign_note(method, DECODE)


def _import(name: str, module: str = "hooks") -> str:
    """Return the line that imports the hook ``name`` from ``module`` of the installed package."""
    # It is inserted into a function, so that the module is loaded only when vLLM calls this function.
    return f"from {HOOKS}.{module} import {name}\n"


def _call(name: str, arguments: Iterable[str]) -> str:
    """Return the source text of a call of ``name``, with one argument on each line."""
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")\n"
