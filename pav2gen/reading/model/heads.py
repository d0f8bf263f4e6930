"""Reads the number of query heads, the number of KV heads and the head size from a model's config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pav2gen.reading.model.fields import Fields, is_count
from pav2gen.wording import one_of

#: The head size in the KV cache for DeepSeek models, in elements. vLLM 0.6 pads their heads of 192 elements to this
#: size (deepseek_v2.py).
PADDED_LATENT = 256

QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")

#: Keys of a config.json that give the number of KV heads. The first key with a value counts.
KV_HEADS = (
    "num_global_key_value_heads",  # of the layers without a window, if these differ
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",  # Falcon
    "n_kv_heads",
    "num_attention_groups",  # Step
    "num_query_groups",
)
HEAD_SIZES = ("global_head_dim", "head_dim", "kv_channels", "attention_head_dim")
#: What may differ between layers with a window and layers without one. Each entry has a name and three tuples of keys
#: of a config.json: keys for both kinds of layers, for layers without a window, and for layers with a window.
_BY_KIND_OF_LAYER = (
    ("query heads", QUERY_HEADS, (), ("swa_num_attention_heads",)),
    ("KV heads", KV_HEADS[1:], KV_HEADS[:1], ("swa_num_key_value_heads",)),
    ("head size", HEAD_SIZES[1:], HEAD_SIZES[:1], ("swa_head_dim",)),
)
HIDDEN_SIZES = ("hidden_size", "n_embd", "n_embed", "d_model")

#: Matches a key of a config.json that pav2gen does not know and that may give the number of KV heads.
_LIKE_KV_HEADS = re.compile(
    r"(kv|key_?value|query|attention|attn).*(head|group)|(head|group).*(kv|key_?value|query)", re.I
)
_NOT_KV_HEADS = re.compile(r"dim|size|rank|scale|bias|norm|pattern|layer|window|swa", re.I)


def num_heads(fields: Fields) -> int:
    """Return the number of query heads.

    Raises UserError if the config.json does not state the number of query heads.
    """
    return fields.count(*QUERY_HEADS)


def num_kv_heads(fields: Fields, heads: int) -> int:
    """Return the number of KV heads of a model with ``heads`` query heads.

    If the config.json states a number for each layer, the result is the largest number. The result is ``heads`` for
    latent attention (MLA), and if no known key states a number.
    """
    if is_latent(fields):
        return heads
    if each := kv_heads_by_layer(fields, heads):
        return max(each)
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1  # Falcon-7B, StarCoder
    if "kv_n_heads" in fields.part("attn_config"):
        return fields.nested("attn_config").count("kv_n_heads")  # MPT, DBRX
    names = [*KV_HEADS]
    if fields.flag("multi_query_attention") is not False:
        names.insert(0, "multi_query_group_num")  # ChatGLM
    return fields.count(*names) if fields.get(*names) is not None else heads


def head_size(fields: Fields, heads: int) -> int:
    """Return the size of a head of Q and K, in elements.

    If no key states the size, the result is the hidden size divided by ``heads``.

    heads: the number of query heads.

    Raises UserError if the config.json states no usable size.
    """
    if is_latent(fields):
        return _latent_head_size(fields)
    if fields.get(*HEAD_SIZES) is not None:
        return fields.count(*HEAD_SIZES)
    hidden = fields.count(*HIDDEN_SIZES)
    if hidden % heads:
        raise fields.fail(f"lacks head_dim, and hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def kv_heads_by_layer(fields: Fields, heads: int) -> set[int]:
    """Return the distinct numbers of KV heads of the layers.

    The result is empty if the config.json does not state a number for each layer.

    heads: the number of query heads.

    Raises UserError if the layers have different numbers of KV heads, unless vLLM repeats KV heads to make the numbers
    equal.
    """
    if listed := fields.listed(
        "num_key_value_heads_per_layer"
    ):  # DeciLM: vLLM repeats KV heads until all layers have the most
        return {count for count in listed if is_count(count, heads)}
    parts = [block.get("attention") for block in fields.listed("block_configs") if isinstance(block, dict)]
    found: list[Any] = [part.get("n_heads_in_group") for part in parts if isinstance(part, dict)]
    groups = {group for group in found if is_count(group, heads)}
    if len(groups) > 1:
        raise fields.fail(
            f"block_configs: the query heads for each KV head differ by layer, {one_of(sorted(groups))}; a spec is of "
            "one model with one number of KV heads: write one of them into a copy, as num_key_value_heads, and run "
            "init again"
        )
    return {heads // group for group in groups}


def is_latent(fields: Fields) -> bool:
    """Return whether the model has latent attention (MLA).

    In latent attention, the keys and values of all heads are computed from one small vector per token.
    """
    return fields.get("kv_lora_rank") is not None


def _latent_head_size(fields: Fields) -> int:
    """Return the size of a head of K in vLLM 0.6's KV cache, in elements, for a model with latent attention (MLA)."""
    size = fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
    return PADDED_LATENT if fields.model_type.startswith("deepseek") else size


def head_notes(fields: Fields, heads: int) -> Iterator[str]:
    """Yield sentences for the user about unusual heads, such as layers with different numbers of KV heads.

    heads: the number of query heads.
    """
    if is_latent(fields):
        yield (
            "attention is latent (kv_lora_rank): vLLM 0.6 expands it to a KV head for each query head, as here; vLLM "
            "from 0.7 on keeps the latent vector instead, which no kernel here reads"
        )
        return
    if len(kv_heads_by_layer(fields, heads)) > 1:
        yield "layers differ in their KV heads: vLLM 0.6 repeats them until all have the most, as here"
    if windowed := windowed_heads(fields):
        yield f"the spec is for the layers without a window; layers with a window have other heads ({windowed})"
    if num_kv_heads(fields, heads) == heads:
        for key, value in _unknown_kv_heads(fields, heads):
            yield (
                f"the config has {key}: {value}, a name that pav2gen does not know: if it is the number of KV heads, "
                "write it as num_key_value_heads into a copy, and run init again"
            )


def value_size(fields: Fields, size: int) -> int:
    """Return the size of a head of V, in elements.

    The result is ``size``, the size of a head of K, unless the config.json states another size and the model has no
    latent attention (MLA).
    """
    value = fields.count_or_none("v_head_dim")
    return size if value is None or is_latent(fields) else value


def windowed_heads(fields: Fields) -> str:
    """Return how the heads of layers with a sliding window differ from the heads of other layers.

    The result is a text such as ``KV heads 4, head size 256``. The result is empty if the heads are the same.

    Raises UserError if a number of heads or a head size is not a positive integer.
    """
    said = []
    for what, shared, full, windowed in _BY_KIND_OF_LAYER:
        others = fields.count(*full, *shared) if fields.get(*full, *shared) is not None else None
        own = windowed if fields.get(*windowed) is not None else shared
        if fields.get(*own) is not None and fields.count(*own) != others:
            said.append(f"{what} {fields.count(*own)}")
    return ", ".join(said)


def _unknown_kv_heads(fields: Fields, heads: int) -> Iterator[tuple[str, int]]:
    """Yield each key that pav2gen does not know but that may give the number of KV heads, with the key's value."""
    known = {*KV_HEADS, *QUERY_HEADS, "multi_query_group_num", "num_key_value_groups"}
    for key, value in fields.own.items():
        looks = _LIKE_KV_HEADS.search(key) and not _NOT_KV_HEADS.search(key) and key.isidentifier() and len(key) < 64
        if looks and key not in known and is_count(value, heads - 1) and heads % value == 0:
            yield key, value
