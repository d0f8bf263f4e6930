"""Forms that a vLLM tree takes in the world, made from vLLM's own files: the BI-V100 fork's, stubs, a fork's extras."""

from __future__ import annotations

import re
from pathlib import Path

from pav2gen.install.payload.structure import DECODE, OPS

#: The operators of the BI-V100 fork of vLLM 0.6.3, whose V1 is the vendor's, and whose V2 is not there.
BI_V1 = """\
def paged_attention_v1(
        output,
        query,
        key_cache,
        value_cache,
        head_mapping,
        scale,
        block_tables,
        context_lens,
        block_size,
        max_context_len,
        alibi_slopes=None,
        kv_cache_dtype=None,
):
    return torch.ops._C.paged_attention_v1(output, query, key_cache, value_cache, head_mapping, scale, block_tables,
                                           context_lens, block_size, max_context_len, alibi_slopes)
"""
STUB = "    raise NotImplementedError()\n"

#: The writer of that fork: the vendor's, which is not told the dtype of the cache.
BI_WRITER = """\
    slot_mapping = slot_mapping.to(torch.int32)
    ixf_F.vllm_cache_ops_reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
"""


def replace(file: Path, pattern: str, new: str, count: int = 1) -> None:
    """Replace what ``pattern`` matches, exactly ``count`` times, keeping the bytes of line ends."""
    text = file.read_bytes().decode()
    changed, made = re.subn(pattern, lambda match: match.expand(new) if "\\g" in new else new, text, flags=re.S | re.M)
    assert made == count, f"{pattern!r} matches {made} times in {file}"
    file.write_bytes(changed.encode())


def body_of(name: str) -> str:
    """A pattern of the head (group h) and the body of a function of a module that is formatted as vLLM's."""
    return rf"(?P<h>^def {name}\(.*?^\) -> None:\n).*?(?=^\S)"


def make_bi(vllm: Path) -> None:
    """The documented differences of the BI-V100 fork.

    V1 is forced and given 11 arguments, V2 is a stub, and the writer of the cache does not know its dtype.
    """
    replace(vllm / DECODE, r"num_seqs \* num_heads > 512\)\)\n$", "num_seqs * num_heads > 512))\n        use_v1 = True")
    replace(
        vllm / DECODE,
        r"(?P<h>ops\.paged_attention_v1\(.*?alibi_slopes,\n).*?(?=            \)\n)",
        r"\g<h>",
    )
    replace(vllm / OPS, body_of("paged_attention_v1"), f"{BI_V1}\n\n")
    replace(vllm / OPS, r"^import torch\n", "import ixformer.functions as ixf_F\nimport torch\n")
    replace(vllm / OPS, body_of("reshape_and_cache"), rf"\g<h>{BI_WRITER}" + "\n\n")
    make_v2_stub(vllm)


def make_v2_stub(vllm: Path, stub: str = STUB) -> None:
    """V2 only raises."""
    replace(vllm / OPS, body_of("paged_attention_v2"), rf"\g<h>{stub}" + "\n\n")


def make_v1_stub(vllm: Path, stub: str = STUB) -> None:
    """V1 only raises."""
    replace(vllm / OPS, body_of("paged_attention_v1"), rf"\g<h>{stub}" + "\n\n")
