"""The built-in modifications: softcap, ALiBi and the sliding window.

``entries`` returns all modifications of a kernel in the order in which they apply: softcap, ALiBi, the spec's own
score, then all masks. This is the order of vLLM and of ONNX's attention.
"""

from __future__ import annotations

from pav2gen.family.modifications.modification import Modification
from pav2gen.family.variant import AttentionVariant

#: The parameter tensor of ALiBi.
SLOPES = "alibi_slopes"


def softcap(cap: float) -> Modification:
    """Scores become ``cap * tanh(s / cap)``: between -cap and cap, and unchanged near 0."""
    return Modification("softcap", f"{cap!r} * tanh(s / {cap!r})", None)


def alibi() -> Modification:
    """ALiBi's bias: the slope of a head times k - q, which is 0 or less."""
    return Modification("ALiBi", f"s + {SLOPES}[h] * (k - q)", None, {SLOPES: "heads"})


def sliding_window(window: int) -> Modification:
    """A query attends to the last ``window`` tokens, its own included: at position q, to keys k with q - k < window.

    Hugging Face and vLLM count in this way. ``window_left`` of FlashAttention and FlashInfer is window - 1.
    """
    return Modification("sliding window", None, f"q - k < {window}")


def entries(variant: AttentionVariant) -> tuple[Modification, ...]:
    """All modifications of a kernel, in the order in which they apply."""
    found = (
        softcap(variant.softcap) if variant.softcap is not None else None,
        alibi() if variant.alibi else None,
        variant.own,
        sliding_window(variant.sliding_window) if variant.sliding_window is not None else None,
    )
    return tuple(entry for entry in found if entry is not None)
