"""The built-in modifications: softcap, ALiBi and the sliding window.

A kernel changes a score in this order: softcap, ALiBi, the modification that the spec defines. Then the kernel applies
all masks. The attention of vLLM and ONNX's attention operator use this order too.
"""

from __future__ import annotations

from pav2gen.family.modifications.modification import Modification
from pav2gen.family.variant import AttentionVariant

#: The name of ALiBi's parameter tensor, which has one slope for each query head.
SLOPES = "alibi_slopes"


def softcap(cap: float) -> Modification:
    """The modification that limits a score s to between -cap and cap: ``cap * tanh(s / cap)``. Scores near 0 hardly
    change.
    """
    return Modification("softcap", f"{cap!r} * tanh(s / {cap!r})", None)


def alibi() -> Modification:
    """The modification that adds ALiBi's bias to a score: ``slope * (k - q)``, with one slope for each query head.

    k is the position of the key, and q is the position of the query. k is at most q, so that k - q is 0 or less.
    """
    return Modification("ALiBi", f"s + {SLOPES}[h] * (k - q)", None, {SLOPES: "heads"})


def sliding_window(window: int) -> Modification:
    """The mask that lets a query attend to the last ``window`` tokens, the query's own token included.

    A query at position q attends to keys at positions k with q - k < window. Hugging Face and vLLM count the window in
    this way. ``window_left`` of FlashAttention and FlashInfer is window - 1.
    """
    return Modification("sliding window", None, f"q - k < {window}")


def entries(variant: AttentionVariant) -> tuple[Modification, ...]:
    """The modifications that the kernel ``variant`` has, in this order: softcap, ALiBi, the modification that the spec
    defines, sliding window.
    """
    found = (
        softcap(variant.softcap) if variant.softcap is not None else None,
        alibi() if variant.alibi else None,
        variant.own,
        sliding_window(variant.sliding_window) if variant.sliding_window is not None else None,
    )
    return tuple(entry for entry in found if entry is not None)
