"""The built-in modifications of attention scores: softcap, ALiBi and the sliding window.

A kernel changes a score in this order: softcap, ALiBi, the modification that the spec file defines, all masks. The same
order is used by vLLM and by ONNX's attention operator.
"""

from __future__ import annotations

from pav2gen.family.modifications.modification import Modification
from pav2gen.family.variant import AttentionVariant

#: The name of ALiBi's parameter tensor, which has one slope for each query head.
SLOPES = "alibi_slopes"


def softcap(cap: float) -> Modification:
    """Return the modification that replaces a score s by ``cap * tanh(s / cap)``.

    The new score is between -cap and cap.
    """
    return Modification("softcap", f"{cap!r} * tanh(s / {cap!r})", None)


def alibi() -> Modification:
    """Return the modification that adds ALiBi's bias to a score: ``slope * (k - q)``, with one slope per query head.

    q and k are the positions of the query and the key. If the slope is positive, the bias is 0 or less.
    """
    return Modification("ALiBi", f"s + {SLOPES}[h] * (k - q)", None, {SLOPES: "heads"})


def sliding_window(window: int) -> Modification:
    """Return the mask with which a query attends only to the last ``window`` tokens, including its own token.

    Hugging Face and vLLM also count the query's own token. The left window size of FlashAttention and FlashInfer does
    not count this token, and so equals ``window`` - 1.
    """
    return Modification("sliding window", None, f"q - k < {window}")


def entries(variant: AttentionVariant) -> tuple[Modification, ...]:
    """Return the modifications that the kernel ``variant`` applies to attention scores.

    The modifications have this order: softcap, ALiBi, the modification that the spec file defines, sliding window.
    """
    found = (
        softcap(variant.softcap) if variant.softcap is not None else None,
        alibi() if variant.alibi else None,
        variant.own,
        sliding_window(variant.sliding_window) if variant.sliding_window is not None else None,
    )
    return tuple(entry for entry in found if entry is not None)
