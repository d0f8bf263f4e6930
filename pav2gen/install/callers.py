"""Whether anything in a vLLM tree still decodes by ``PagedAttention.forward_decode``."""

from __future__ import annotations

import re

from pav2gen.install.trees import VllmTree

#: Where backends of attention lie, below vLLM's folder, in the versions that have one of these.
BACKENDS = ("attention/backends", "v1/attention/backends")

_CALL = re.compile(rb"\b(PagedAttention|paged_attn)\.forward_decode\(")


def decodes(tree: VllmTree) -> bool:
    """Whether a backend calls it. A tree without any backend, such as an excerpt, counts as one that does."""
    files = [file for folder in BACKENDS for file in sorted((tree.folder / folder).glob("**/*.py"))]
    return not files or any(_CALL.search(file.read_bytes()) for file in files)
