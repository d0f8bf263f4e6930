"""The built-in modifications: softcap, ALiBi and the sliding window.

A kernel changes a score in this order: softcap, ALiBi, the modification that the spec defines. After that, the kernel
applies all masks. vLLM and ONNX's attention operator use the same order.
"""

from __future__ import annotations

from pav2gen.family.modifications.modification import Modification
from pav2gen.family.variant import AttentionVariant

#: The name of ALiBi's parameter tensor, which has one slope for each query head.
SLOPES = "alibi_slopes"


def softcap(cap: float) -> Modification:
    """Return the modification that replaces a score s by ``cap * tanh(s / cap)``, which lies between -cap and cap."""
    return Modification("softcap", f"{cap!r} * tanh(s / {cap!r})", None)


def alibi() -> Modification:
    """Return the modification that adds ALiBi's bias to a score: ``slope * (k - q)``, with one slope per query head.

    q and k are the positions of the query and the key, so that the bias is 0 or less for a positive slope.
    """
    return Modification("ALiBi", f"s + {SLOPES}[h] * (k - q)", None, {SLOPES: "heads"})


def sliding_window(window: int) -> Modification:
    """Return the mask with which a query attends only to the last ``window`` tokens, its own token included.

    Hugging Face and vLLM count the tokens of a window in this way, too. ``window_left`` of FlashAttention and
    FlashInfer is window - 1.
    """
    return Modification("sliding window", None, f"q - k < {window}")


def entries(variant: AttentionVariant) -> tuple[Modification, ...]:
    """Return the modifications of the kernel ``variant``.

    Their order is softcap, ALiBi, the modification that the spec defines, sliding window.
    """
    found = (
        softcap(variant.softcap) if variant.softcap is not None else None,
        alibi() if variant.alibi else None,
        variant.own,
        sliding_window(variant.sliding_window) if variant.sliding_window is not None else None,
    )
    return tuple(entry for entry in found if entry is not None)
