"""The edits of a vLLM tree: the call of our kernels, the choice between V1 and V2, and the check at model load.

Each puts lines in and takes none out, so that what stood there is still there: the fallback, and the path of
PAV2_DISABLE=1.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pav2gen.errors import UserError
from pav2gen.install.payload.structure import (
    DECODE,
    LAYER,
    OPS,
    Decode,
    Operator,
    Unfit,
    find_decode,
    find_layer,
    find_v2,
    v1_works,
)
from pav2gen.install.source_edit import Insertion, Source, insert
from pav2gen.install.trees import PAV2

Found = TypeVar("Found")

HOOKS = f"vllm.{PAV2.replace('/', '.')}.hooks"

#: The trees that are known, by what the operator takes for a scale.
FAMILIES = {
    "one": "one kv_scale, as vLLM 0.4.3 to 0.5.2",
    "float": "float scales, as vLLM 0.5.3 to 0.6",
    "tensor": "tensor scales, as vLLM 0.7 to 0.11",
}

#: What V1 is, by the word that ``choose_v1`` is told.
V1_KINDS = {
    "whole": "V1 works",
    "plain": "V1 works, but takes neither kv_cache_dtype nor the block-sparse pattern",
    "none": "V1 is a stub",
}


@dataclass(frozen=True)
class Fork:
    """What a tree is: the family of its operator, its V1 (a key of ``V1_KINDS``), and whether its own V2 works."""

    scales: str
    v1: str
    v2_works: bool

    def __str__(self) -> str:
        v2 = "V2 works and stays as the fallback" if self.v2_works else "V2 is a stub"
        return f"{FAMILIES[self.scales]}; {V1_KINDS[self.v1]}; {v2}"


@dataclass(frozen=True)
class Edited:
    """The sources of a tree after the edits, by path below vLLM's folder, and what the tree is."""

    fork: Fork
    sources: Mapping[str, bytes]


def edit(sources: Mapping[str, bytes], shown: str) -> Edited:
    """Put the calls into ``sources``, the files of the tree called ``shown`` by path; LAYER may be absent.

    Raises UserError where a file is not as a vLLM's, or has the calls already.
    """
    read = {path: Source.read(content, f"{shown}/{path}") for path, content in sources.items()}
    for source in read.values():
        if HOOKS in source.text:
            raise UserError(
                "has the calls of an install that left no record; restore it from version control", source.where
            )
    operators, works = _found(read[OPS], find_v2), _found(read[OPS], v1_works)
    decode = _found(read[DECODE], find_decode)
    fork = Fork(
        scales=operators[-1].scales,
        v1="none" if not works else "plain" if decode.plain else "whole",
        v2_works=any(operator.works for operator in operators),
    )
    edited = {
        OPS: insert(read[OPS], [_v2_call(operator) for operator in operators]),
        DECODE: _choice(read[DECODE], decode, fork.v1),
    }
    layer = find_layer(read[LAYER].tree) if LAYER in read else None
    if layer:
        lines = _call("check_layer", ("self.impl", *(f"{ours}={theirs}" for ours, theirs in layer.arguments.items())))
        comment = "pav2gen: a shape without a kernel is reported when the model loads."
        edited[LAYER] = insert(
            read[LAYER], [Insertion(layer.function.lineno, "end", comment, _import("check_layer") + lines)]
        )
    return Edited(fork, edited)


def _found(source: Source, find: Callable[[ast.Module], Found]) -> Found:
    """What ``find`` finds in a source. Raises UserError where it says that the source is unfit."""
    try:
        return find(source.tree)
    except Unfit as reason:
        raise UserError(str(reason), source.where) from reason


def _v2_call(operator: Operator) -> Insertion:
    """The call of the kernels at the start of ``paged_attention_v2``; what stands there follows it."""
    at_default = [
        f"{name} {'is' if default == 'None' else '=='} {default}" for name, default in operator.extras.items()
    ]
    arguments = [f"fallback={operator.works}", *(f"{ours}={theirs}" for ours, theirs in operator.arguments.items())]
    test = " and ".join([*at_default, _call("serve_v2", arguments).rstrip("\n")])
    lines = f"{_import('serve_v2')}if {test}:\n    return\n"
    comment = "pav2gen: the generated kernels first; PAV2_DISABLE=1 skips them."
    return Insertion(operator.function.lineno, "start", comment, lines)


def _choice(source: Source, decode: Decode, v1: str) -> bytes:
    """The choice between V1 and V2, in front of the ``if`` that acts on it."""
    told = (f"{ours}={theirs}" for ours, theirs in decode.arguments.items())
    call = _call("choose_v1", ("TEST", f'v1="{v1}"', *told))
    lines = f"{_import('choose_v1')}use_v1 = {call}"
    comment = "pav2gen: V2 where its kernels serve and the length is worth it."
    insertion = Insertion(decode.first.lineno, "before", comment, lines)
    return insert(source, [insertion], {decode.choice.lineno: "use_v1"})


def _import(name: str) -> str:
    """The import of a hook. It stands in the function: nothing of ours is loaded before it is needed."""
    return f"from {HOOKS} import {name}\n"


def _call(name: str, arguments: Iterable[str]) -> str:
    """A call with an argument on each line, as black and yapf leave it."""
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")\n"
