"""Reads how a model computes its attention scores: scale, softcap, ALiBi and sinks."""

from __future__ import annotations

from typing import Any

from pav2gen.reading.model.fields import Fields
from pav2gen.reading.model.heads import is_latent

#: Keys that say whether layers have sinks: layers with a window, layers without a window, and all layers.
SINK_FLAGS = ("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "attention_sink_bias")


def uses_alibi(fields: Fields) -> bool:
    """Whether the model adds ALiBi's bias to the scores."""
    kind = fields.model_type
    by_type = kind == "bloom" or (kind == "baichuan" and fields.get("hidden_size") != 4096)
    named = fields.get("alibi") or fields.part("attn_config").get("alibi")
    return bool(by_type or named or fields.get("position_embedding_type") == "alibi")


def softcap(fields: Fields) -> float | None:
    """The softcap on the scores. None if the config has no softcap, or if its value is not a positive number."""
    return _positive(fields.get("attn_logit_softcapping", "max_attn_value"))


def sinks(fields: Fields) -> bool:
    """Whether each head has a learned logit that takes part in the softmax."""
    return fields.model_type == "gpt_oss" or any(fields.get(flag) is True for flag in SINK_FLAGS)


def scale(fields: Fields, head_size: int) -> float | None:
    """The factor of the scores. None if the factor is the usual ``head_size ** -0.5``, and for latent attention.

    The factor of latent attention also depends on the rotary embedding and is not computed here.
    """
    if is_latent(fields):
        return None
    found = _positive(fields.get("attention_multiplier"))  # Granite
    scalar = _positive(fields.get("query_pre_attn_scalar"))  # Gemma 2 and 3
    given = _positive(fields.part("attn_config").get("softmax_scale"))  # MPT
    if scalar is not None:
        found = scalar**-0.5
    if given is not None:
        found = given
    if fields.model_type == "gpt_neo":
        found = 1.0
    usual = float(head_size) ** -0.5
    return None if found is None or abs(found - usual) <= 1e-6 * usual else found


def _positive(value: Any) -> float | None:
    """``value`` if it is a number above 0, else None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e18 else None
