"""Makes the sentences of ``install`` and ``status`` about the work that the generated kernels do in a vLLM tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pav2gen.install.editing.patch import Fork


def served(fork: Fork, operators: Mapping[str, int], writer: str) -> Iterator[str]:
    """Yield sentences that say whether generated kernels or vLLM's own code do three kinds of work.

    The sentences are about writes to the KV cache, prefills with a cached prefix, and models with a softcap (a limit on
    scores). The sentence about the softcap is left out if vLLM's XFormers backend raises no error for a softcap.

    fork: which of vLLM's own attention functions work.
    operators: maps the name of each operator, such as ``decode``, to the number of its installed kernels.
    writer: which caches the generated cache writers fill, as in ``apply.InstallOptions``.
    """
    yield f"cache writes: {_writes(fork.writer, operators.get('cache', 0), writer)}"
    yield f"prefills with a cached prefix: {_prefixes(fork.prefix, operators.get('extend', 0))}"
    if fork.refuses_softcap:
        yield f"softcap in the XFormers backend: {_softcap(operators.get('extend', 0))}"


def _softcap(kernels: int) -> str:
    """Return a text that says whether models with a softcap run in vLLM's XFormers backend, which cannot compute a
    softcap itself.

    kernels: the number of installed extend kernels.
    """
    if not kernels:
        return "refused when the model loads; no extend kernels are installed"
    return "kernels with this softcap serve decodes and prompts; without them the model is refused at load"


def _writes(own: str, kernels: int, writer: str) -> str:
    """Return a text that says whether vLLM's own function or the generated cache writers write the KV cache.

    own: which caches vLLM's own function can write, as one of ``WRITER_KINDS``, or empty if the function was not found.
    kernels: the number of installed cache writers.
    writer: which caches the generated cache writers fill, as in ``apply.InstallOptions``.
    """
    if not own or (own == "whole" and writer != "always"):
        return "the tree's own writer"
    if not kernels:
        ours = "no cache kernels are installed: add cache to the spec's operators"
        return f"the tree's own writer; {ours}" if own == "whole" else f"auto caches by the tree's own writer; {ours}"
    if writer == "always":
        return f"the generated writer ({kernels} kernels)"
    return f"compressed caches by the generated writer ({kernels} kernels), others by the tree's own"


def _prefixes(own: str, kernels: int) -> str:
    """Return a text that says whether vLLM's own function or extend kernels compute prefills with a cached prefix.

    own: whether vLLM's own function works, as one of ``PREFIX_KINDS``, or empty if the function was not found.
    kernels: the number of installed extend kernels.
    """
    if own in ("hangs", "none"):
        why = "its Triton kernel hangs this card" if own == "hangs" else "it is a stub"
        there = f"the extend kernels ({kernels})" if kernels else "no extend kernels are installed"
        return f"{there}; the tree's own path is not taken: {why}"
    if not own or not kernels:
        return "the tree's own path"
    return f"the extend kernels ({kernels}), else the tree's own path"
