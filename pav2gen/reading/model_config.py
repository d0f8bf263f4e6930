"""A model's config.json, as Hugging Face publishes it: what it says of the attention.

It is read as vLLM reads it (``ModelConfig.get_total_num_kv_heads``, ``_get_and_verify_max_len``), so that both agree.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pav2gen.errors import UserError
from pav2gen.reading.yaml_file import printable, read_file
from pav2gen.wording import one_of, quoted

MAX_BYTES = 4 << 20
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: What vLLM assumes for a model that names no length.
DEFAULT_LENGTH = 2048
#: DeepSeek's heads of 192 as vLLM 0.6 keeps them in the cache: padded (deepseek_v2.py).
PADDED_LATENT = 256
ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", "deberta", "albert")


@dataclass(frozen=True)
class Attention:
    """What a config.json says of a model's attention.

    ``uncovered`` has a sentence for each feature that no kernel has, ``notes`` one for each other thing to know.
    """

    title: str
    model_type: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_seq_len: int
    dtype: str
    alibi: bool
    blocksparse: bool
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]


def read_attention(path: str | os.PathLike[str]) -> Attention:
    """The attention of the model whose config.json is at ``path``.

    Raises UserError, naming file and key, for what is no such file, and where layers differ in their KV heads.
    """
    fields = _Fields(_read_json(path), printable(os.fspath(path)))
    heads = fields.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    length = min((fields.count(key) for key in LENGTHS if fields.get(key) is not None), default=DEFAULT_LENGTH)
    return Attention(
        title=_title(fields, Path(path)),
        model_type=_words(fields.get("model_type")) or "unknown",
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_size=_head_size(fields, heads),
        max_seq_len=min(length, 2**31 - 1),
        dtype=_words(fields.get("torch_dtype", "dtype")).removeprefix("torch."),
        alibi=_uses_alibi(fields),
        blocksparse=fields.get("blocksparse_block_size") is not None,
        uncovered=tuple(_uncovered(fields, length)),
        notes=tuple(_notes(fields, heads)),
    )


class _Fields:
    """The fields of a config: those of the nested text config first, then those around it."""

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        nested: dict[str, Any] = next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), dict)), {})
        self.values = {**config, **{key: value for key, value in nested.items() if value is not None}}
        self.file = file

    def get(self, *keys: str) -> Any:
        """The first value of ``keys`` that is there and not null; None if there is none."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str) -> int:
        """The first of ``keys`` that is there. Raises UserError where none is, or it is no positive whole number."""
        key = next((key for key in keys if self.values.get(key) is not None), None)
        if key is None:
            raise self.fail(f"lacks {keys[0]}; is it the config.json of a language model?")
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{key} must be a positive whole number, not {quoted(value)}")
        return value

    def part(self, key: str) -> dict[str, Any]:
        """The mapping at ``key``; empty if there is none."""
        value = self.values.get(key)
        return value if isinstance(value, dict) else {}

    def layer_types(self) -> list[str]:
        """The kind of attention of each layer, if the config lists them."""
        kinds = self.values.get("layer_types")
        return [str(kind) for kind in kinds] if isinstance(kinds, list) else []

    def fail(self, message: str) -> UserError:
        """A UserError that names the file."""
        return UserError(message, self.file)


def _read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in the file at ``path``."""
    file = printable(os.fspath(path))
    try:
        config = json.loads(read_file(path, MAX_BYTES).decode())
    except json.JSONDecodeError as error:
        raise UserError(f"is not JSON: {error.msg}", f"{file}:{error.lineno}") from None
    except UnicodeDecodeError:
        raise UserError("is not JSON: not UTF-8", file) from None
    except (ValueError, RecursionError):
        raise UserError("is no config.json of a model: it holds a number or a nesting without end", file) from None
    if not isinstance(config, dict):
        raise UserError("is no config.json of a model: it must hold an object", file)
    return config


def _kv_heads(fields: _Fields, heads: int) -> int:
    """The number of KV heads, by the names that models give it; as many as query heads if none is there."""
    if _is_latent(fields):
        return heads
    if each := _kv_heads_by_layer(fields, heads):
        return max(each)
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return 1  # Falcon-7B, StarCoder
    if "kv_n_heads" in fields.part("attn_config"):
        return _Fields(fields.part("attn_config"), fields.file).count("kv_n_heads")  # MPT, DBRX
    names = ["num_key_value_heads", "num_kv_heads", "n_head_kv"]
    if fields.get("multi_query_attention"):
        names.insert(0, "multi_query_group_num")  # ChatGLM
    return fields.count(*names) if fields.get(*names) is not None else heads


def _kv_heads_by_layer(fields: _Fields, heads: int) -> set[int]:
    """The numbers of KV heads that layers have, where a config gives them by layer.

    Raises UserError where they differ and vLLM has no one number for them.
    """
    listed = fields.get("num_key_value_heads_per_layer")
    if isinstance(listed, list):  # DeciLM: vLLM repeats KV heads until all layers have the most
        return {count for count in listed if _is_count(count, heads)}
    blocks = fields.get("block_configs")
    parts = [block.get("attention") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    found: list[Any] = [part.get("n_heads_in_group") for part in parts if isinstance(part, dict)]
    groups = {group for group in found if _is_count(group, heads)}
    if len(groups) > 1:
        raise fields.fail(
            f"block_configs: the query heads for each KV head differ by layer, {one_of(sorted(groups))}; a spec is of "
            "one model with one number of KV heads: init from a copy that names one of them as num_key_value_heads"
        )
    return {heads // group for group in groups}


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def _is_latent(fields: _Fields) -> bool:
    """Whether attention is latent: keys and values come from one small vector for all heads."""
    return fields.get("kv_lora_rank") is not None


def _latent_head_size(fields: _Fields) -> int:
    """The size of a head as vLLM 0.6 expands it. Raises UserError where the config doesn't say."""
    size = fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
    return PADDED_LATENT if str(fields.get("model_type")).startswith("deepseek") else size


def _head_size(fields: _Fields, heads: int) -> int:
    """The size of a head: given, or the hidden size shared out over the heads."""
    if _is_latent(fields):
        return _latent_head_size(fields)
    names = ("head_dim", "kv_channels")
    if fields.get(*names) is not None:
        return fields.count(*names)
    hidden = fields.count("hidden_size", "n_embd", "n_embed", "d_model")
    if hidden % heads:
        raise fields.fail(f"lacks head_dim, and hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    return hidden // heads


def _uses_alibi(fields: _Fields) -> bool:
    """Whether attention is biased by ALiBi slopes."""
    model_type = fields.get("model_type")
    by_type = model_type == "bloom" or (model_type == "baichuan" and fields.get("hidden_size") != 4096)
    named = fields.get("alibi") or fields.part("attn_config").get("alibi")
    return bool(by_type or named or fields.get("position_embedding_type") == "alibi")


def _uncovered(fields: _Fields, max_seq_len: int) -> Iterator[str]:
    """A sentence for each feature of the attention that no kernel has."""
    kinds = fields.layer_types()
    windowed = sum(kind.startswith(("sliding", "chunked")) for kind in kinds)
    window = fields.get("sliding_window", "attention_chunk_size")
    on = fields.get("use_sliding_window") is not False and (windowed or not kinds)
    if on and isinstance(window, int) and 0 < window < max_seq_len:
        layers = f"{windowed} of {len(kinds)} layers" if kinds else "some or all layers"
        yield f"a sliding window of {window} tokens, in {layers}: right only up to that context"
    local = fields.get("window_size")
    if isinstance(local, int) and "local" in json.dumps(fields.get("attention_types", "attention_layers")):
        yield f"local attention of {local} tokens, in some layers: right only up to that context"  # GPT-Neo
    if fields.get("is_encoder_decoder") or fields.get("cross_attention_layers"):
        yield "cross attention to what an encoder has read: only the decoder's attention to itself is served"
    if fields.get("model_type") in ENCODERS and not fields.get("is_decoder"):
        yield "attention of an encoder, to tokens on both sides: it decodes nothing"
    softcap = fields.get("attn_logit_softcapping", "max_attn_value")
    if softcap is not None:
        yield f"a softcap of {softcap:g} on the logits" if isinstance(softcap, float) else "a softcap on the logits"
    if fields.get("model_type") == "gpt_oss":
        yield "attention sinks, a learned logit for each head"


def _notes(fields: _Fields, heads: int) -> Iterator[str]:
    """Other things to know of the attention."""
    kinds, interval = fields.layer_types(), fields.get("full_attention_interval")
    layers = len(kinds) or fields.get("num_hidden_layers")
    linear = kinds.count("linear_attention")
    if not kinds and isinstance(interval, int) and isinstance(layers, int) and interval > 0:
        linear = layers - layers // interval
    if linear:
        yield f"{linear} of {layers} layers are linear attention, without a paged cache: the kernels serve the others"
    if _is_latent(fields):
        yield (
            "attention is latent (kv_lora_rank): vLLM 0.6 expands it to a KV head for each query head, as here; vLLM "
            "from 0.7 on keeps the latent vector instead, which no kernel here reads"
        )
    if len(_kv_heads_by_layer(fields, heads)) > 1:
        yield "layers differ in their KV heads: vLLM 0.6 repeats them until all have the most, as here"


def _title(fields: _Fields, path: Path) -> str:
    """What the model is called: by its config, else by the folder of the file."""
    origin = str(fields.get("_name_or_path") or "")
    return _words(Path(origin).name) or _words(path.absolute().parent.name) or "model"


def _words(value: object) -> str:
    """``value`` if it is a text, of characters that need no quoting anywhere."""
    return re.sub(r"[^A-Za-z0-9._+-]+", " ", value).strip(" ._+-")[:64] if isinstance(value, str) else ""
