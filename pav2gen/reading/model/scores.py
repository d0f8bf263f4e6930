"""Reads from a config.json how a model computes its attention scores: scale, softcap, ALiBi and sinks."""

from __future__ import annotations

from pav2gen.reading.model.fields import Fields
from pav2gen.reading.model.heads import is_latent, windowed_heads

#: Keys of a config.json that say whether layers have attention sinks. The first key is about layers with a sliding
#: window, the second about layers without one, and the third about all layers.
SINK_FLAGS = ("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "attention_sink_bias")


def uses_alibi(fields: Fields) -> bool:
    """Return whether the model adds ALiBi's bias to the scores."""
    kind = fields.model_type
    by_type = kind == "bloom" or (kind == "baichuan" and fields.get("hidden_size") != 4096)
    named = fields.flag("alibi") or fields.nested("attn_config").flag("alibi")
    return bool(by_type or named or fields.text("position_embedding_type") == "alibi")


def softcap(fields: Fields) -> float | None:
    """Return the softcap on the scores, or None if the config.json has no softcap."""
    return fields.number_or_none("attn_logit_softcapping", "max_attn_value")


def sinks(fields: Fields) -> bool:
    """Return whether heads have an attention sink, a learned logit that takes part in the softmax.

    Sinks of layers with a sliding window do not count if these layers have other heads than the remaining layers.
    """
    flags = SINK_FLAGS[1:] if windowed_heads(fields) else SINK_FLAGS
    return fields.model_type == "gpt_oss" or any([fields.flag(flag) for flag in flags])


def scale(fields: Fields, head_size: int) -> float | None:
    """Return the factor by which the model multiplies its scores, or None if the factor is ``head_size ** -0.5``.

    For latent attention (MLA), the result is None too. This function does not compute the factor of latent attention,
    which also depends on the rotary embedding.
    """
    if is_latent(fields):
        return None
    found = fields.number_or_none("attention_multiplier")  # Granite
    scalar = fields.number_or_none("query_pre_attn_scalar")  # Gemma 2 and 3
    given = fields.nested("attn_config").number_or_none("softmax_scale")  # MPT
    if scalar is not None:
        found = scalar**-0.5
    if given is not None:
        found = given
    if fields.model_type == "gpt_neo":
        found = 1.0
    usual = float(head_size) ** -0.5
    return None if found is None or abs(found - usual) <= 1e-6 * usual else found
