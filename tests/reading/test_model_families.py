"""What configs leave out, call by other names or stretch: the numbers are those that vLLM works with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pav2gen.errors import UserError
from pav2gen.reading.model_config import Attention, read_attention

Read = Callable[..., Attention]


@pytest.fixture
def read(folder: Path) -> Read:
    """The attention of a config."""

    def read(config: dict[str, Any]) -> Attention:
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        return read_attention("config.json")

    return read


class Shape(NamedTuple):
    """Heads, KV heads, head size, length, and the windows of the layers."""

    heads: int
    kv_heads: int
    head_size: int
    length: int
    windows: tuple[int | None, ...] = (None,)


GEMMA3_ROPE = {"factor": 8.0, "rope_type": "linear"}

#: model -> its config.json as published, and its shape as its model card or its code has it.
MODELS: dict[str, tuple[dict[str, Any], Shape]] = {
    "gemma-3-1b-it": (
        {
            "model_type": "gemma3_text", "hidden_size": 1152, "head_dim": 256, "num_attention_heads": 4,
            "num_key_value_heads": 1, "num_hidden_layers": 26, "max_position_embeddings": 32768, "sliding_window": 512,
            "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "rope_scaling": None,
        },
        Shape(4, 1, 256, 32768, (None, 512)),
    ),
    "gemma-3-4b-it": (
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "rope_scaling": GEMMA3_ROPE, "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
        },
        Shape(8, 4, 256, 131072, (None, 1024)),
    ),
    "gemma-3-12b-it": (
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 3840, "model_type": "gemma3_text", "num_attention_heads": 16, "num_hidden_layers": 48,
                "num_key_value_heads": 8, "rope_scaling": GEMMA3_ROPE, "sliding_window": 1024,
            },
        },
        Shape(16, 8, 256, 131072, (None, 1024)),
    ),
    "llava-1.5-7b-hf": (
        {"model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096}},
        Shape(32, 32, 128, 4096),
    ),
    "a llava that names no type": (
        {"model_type": "llava", "text_config": {"vocab_size": 32064}},
        Shape(32, 32, 128, 2048),
    ),
    "paligemma-3b": (
        {
            "model_type": "paligemma",
            "text_config": {"hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1},
        },
        Shape(8, 1, 256, 8192),
    ),
    "Mistral-Small-3.1": (
        {
            "model_type": "mistral3",
            "text_config": {
                "model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40,
                "sliding_window": None, "max_position_embeddings": 131072,
            },
        },
        Shape(32, 8, 128, 131072),
    ),
    "Qwen2.5-Omni-7B": (
        {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"hidden_size": 3584}}, "talker_config": {}},
        Shape(28, 4, 128, 32768),
    ),
    "Qwen3-Omni-30B": (
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": {
                    "model_type": "qwen3_omni_moe_text", "hidden_size": 2048, "num_attention_heads": 32,
                    "head_dim": 128, "max_position_embeddings": 65536,
                },
            },
        },
        Shape(32, 4, 128, 65536),
    ),
    "gpt2-xl": (
        {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024},
        Shape(25, 25, 64, 1024),
    ),
    "step3": (
        {
            "model_type": "step3_text", "num_attention_heads": 64, "num_attention_groups": 1, "head_dim": 256,
            "hidden_size": 7168, "max_seq_len": 65536,
        },
        Shape(64, 1, 256, 65536),
    ),
    "moshi-like": (
        {"model_type": "other", "n_heads": 32, "n_kv_heads": 8, "d_model": 4096, "max_seq_len": 8192},
        Shape(32, 8, 128, 8192),
    ),
    "chatglm without its flag": (
        {
            "model_type": "chatglm", "num_attention_heads": 32, "multi_query_group_num": 2, "kv_channels": 128,
            "hidden_size": 4096, "seq_length": 8192,
        },
        Shape(32, 2, 128, 8192),
    ),
    "heads by kind of layer": (
        {
            "model_type": "other", "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
            "num_global_key_value_heads": 4, "global_head_dim": 512, "hidden_size": 5376, "sliding_window": 1024,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "max_position_embeddings": 131072,
        },
        Shape(32, 4, 512, 131072),
    ),
    "c4ai-command-r-v01": (
        {
            "model_type": "cohere", "num_attention_heads": 64, "num_key_value_heads": 64, "hidden_size": 8192,
            "max_position_embeddings": 8192, "model_max_length": 131072,
        },
        Shape(64, 64, 128, 131072),
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "hidden_size": 2880, "num_hidden_layers": 24, "max_position_embeddings": 131072, "sliding_window": 128,
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        },
        Shape(64, 8, 64, 131072, (None, 128)),
    ),
    "recurrentgemma-2b": (
        {
            "model_type": "recurrent_gemma", "num_attention_heads": 10, "num_key_value_heads": 1, "hidden_size": 2560,
            "num_hidden_layers": 26, "attention_window_size": 2048, "max_position_embeddings": 8192,
        },
        Shape(10, 1, 256, 8192, (2048,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_the_shape_of_a_model(read: Read, model: str) -> None:
    config, shape = MODELS[model]
    found = read(config)
    assert Shape(found.num_heads, found.num_kv_heads, found.head_size, found.max_seq_len, found.windows) == shape


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 4096),
        ({"rope_scaling": {"type": "longrope", "short_factor": [], "long_factor": []}}, 4096),
        ({"rope_scaling": {"type": "su", "factor": 32.0}}, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 163840),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}}, 4096),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}, 8192),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0},
                              "sliding_attention": {"rope_type": "default"}}}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 1e30}}, 2**31 - 1),
        ({"max_position_embeddings": 10**400}, 2**31 - 1),
        ({"rope_scaling": {"type": "linear", "factor": None}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 1e17}}, 2**31 - 1),
        ({"seq_length": 2048}, 2048),
        ({"model_max_length": 1024}, 1024),
    ],
)  # fmt: skip
def test_the_length_is_what_vllm_derives(read: Read, fields: dict[str, Any], length: int) -> None:
    assert read(LLAMA | fields).max_seq_len == length


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"model_type": "jamba", "num_hidden_layers": 32}, "28 of 32 layers have no attention (Mamba or convolution)"),
        (
            {"layer_types": [*["mamba"] * 9, "attention"] * 4},
            "36 of 40 layers have no",
        ),
        ({"layers_block_type": ["mamba", "mamba", "hybrid"]}, "2 of 3 layers have no attention"),
        ({"attn_layer_indices": [9, 18, 27]}, "29 of 32 layers have no attention"),
        ({"full_attn_idxs": [2, 5]}, "30 of 32 layers have no attention"),
        ({"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10}, "70 of 80 layers are linear attention"),
        ({"hybrid_override_pattern": "M-M-*-"}, "5 of 6 layers have no attention"),
        ({"full_attention_interval": 4}, "24 of 32 layers are linear attention"),
        ({"linear_attn_config": {"full_attn_layers": [4, 8]}}, "30 of 32 layers are linear attention"),
        ({"model_type": "falcon_h1"}, "each layer has attention and Mamba side by side"),
        (
            {"num_key_value_heads": None, "num_kv_head_sets": 4},
            "the config has num_kv_head_sets: 4, a name that pav2gen",
        ),
        (
            {"swa_num_key_value_heads": 4, "swa_head_dim": 192},
            "the spec is for the layers without a window; layers with a window",
        ),
        ({"attention_multiplier": 0.0078125}, "the model scales its scores by 0.0078125, not by head_size ** -0.5"),
    ],
)
def test_what_there_is_to_know_is_a_note(read: Read, fields: dict[str, Any], note: str) -> None:
    assert [found.startswith(note) for found in read(LLAMA | fields).notes] == [True]


@pytest.mark.parametrize(
    ("config", "notes"),
    [
        (
            {**LLAMA, "model_type": "zork", "attn_softcap": 30, "local_window": 512},
            [
                "model type 'zork' is not known: only keys with common names were read (not attn_softcap, "
                "local_window); compare the spec with the model's code"
            ],
        ),
        (
            {**LLAMA, "model_type": "zork", "sliding_window": 512},
            [
                "model type 'zork' is not known: only keys with common names were read; compare the spec with the "
                "model's code"
            ],
        ),
        (
            {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"},
            [
                "the config leaves out some values, so the defaults of model type 'llama' are taken: "
                "max_position_embeddings 2048"
            ],
        ),
        (
            {"model_type": "gemma2"},
            [
                "the config leaves out some values, so the defaults of model type 'gemma2' are taken: "
                "num_attention_heads 8, num_key_value_heads 4, head_dim 256, max_position_embeddings 8192, "
                "sliding_window 4096, attn_logit_softcapping 50.0"
            ],
        ),
        (
            {"model_type": "bloom", "n_head": 32, "n_embed": 4096},
            [
                "the config gives no context length: max_seq_len 2048 is assumed, as in vLLM; correct it if the model "
                "has another"
            ],
        ),
        (
            LLAMA | {"max_position_embeddings": 10**20},
            ["the model's context length is over the largest int32: max_seq_len is limited to 2147483647"],
        ),
    ],
)
def test_what_was_assumed_is_a_note(read: Read, config: dict[str, Any], notes: list[str]) -> None:
    assert list(read(config).notes) == notes


@pytest.mark.parametrize("value", [0, -1, False, None])
def test_a_value_may_turn_a_feature_off(read: Read, value: object) -> None:
    config = {"model_type": "gemma2", "sliding_window": value, "attn_logit_softcapping": value}
    assert (read(config).windows, read(config).softcap) == ((None,), None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_key_value_heads": None},
        {"num_key_value_heads": None, "kv_head_dim": 4, "query_group_size": 4, "swa_kv_heads": 2},
        {"layer_types": ["full_attention"] * 32},
        {"attention_multiplier": 128**-0.5},
    ],
)
def test_what_needs_no_note(read: Read, fields: dict[str, Any]) -> None:
    assert read(LLAMA | fields).notes == ()


@pytest.mark.parametrize(
    ("fields", "windows", "said"),
    [
        ({"sliding_window": 1024}, (None, 1024), ["a sliding window of 1024 tokens, in some or all layers"]),
        ({"sliding_window": 8192}, (None,), []),
        (
            {"model_type": "mistral", "sliding_window": 1024},
            (1024,),
            ["a sliding window of 1024 tokens, in all layers"],
        ),
        ({"model_type": "mistral"}, (None,), []),  # the default of its class is not below this model's length
        ({"model_type": "mistral", "max_position_embeddings": 32768}, (4096,), ["a sliding window of 4096 tokens"]),
        ({"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": None}, (None,), []),
        ({"model_type": "qwen2", "sliding_window": 1024}, (None,), []),
        (
            {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 28},
            (None, 1024),
            ["a sliding window of 1024 tokens, in 4 of 32 layers"],
        ),
        (
            {"sliding_window": [None, 1024, 2048, 1024]},
            (None, 1024, 2048),
            ["a sliding window of 1024 and 2048 tokens"],
        ),
        (
            {"model_type": "exaone4", "sliding_window": 1024, "sliding_window_pattern": "LLLG"},
            (None, 1024),
            ["a sliding window of 1024 tokens, in 24 of 32 layers"],
        ),
        (
            {"model_type": "cohere2", "sliding_window": 1024},
            (None, 1024),
            ["a sliding window of 1024 tokens, in 24 of 32 layers"],
        ),
        (
            {"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1], "add_swa_attention_sink_bias": True},
            (None, 128),
            ["a sliding window of 128 tokens, in 3 of 4 layers", "attention sinks"],
        ),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 2048},
            (None,),
            ["attention within chunks of 2048 tokens, in 24 of 32 layers"],
        ),
        ({"head_dim": 192, "v_head_dim": 128}, (None,), ["heads of V of size 128, unlike those of Q and K"]),
    ],
)
def test_what_layers_look_back_on(
    read: Read, fields: dict[str, Any], windows: tuple[int | None, ...], said: list[str]
) -> None:
    found = read(LLAMA | fields)
    assert found.windows == windows
    sentences = (*found.features, *found.uncovered)
    assert len(sentences) == len(said)
    assert all(sentence.startswith(words) for sentence, words in zip(sorted(sentences), sorted(said), strict=True))


def test_softcap_scale_and_sinks(read: Read) -> None:
    gemma = {"model_type": "gemma2", "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}
    found = read({**gemma, "query_pre_attn_scalar": 144, "hidden_size": 4608})
    assert (found.softcap, found.scale, found.sinks) == (50.0, 144**-0.5, False)
    assert found.windows == (None, 4096)
    assert read({**gemma, "query_pre_attn_scalar": 128, "attn_logit_softcapping": None}).scale is None
    assert read({**gemma, "attn_logit_softcapping": None}).softcap is None
    assert read(MODELS["gpt-oss-20b"][0]).sinks
    assert read(LLAMA | {"attn_config": {"softmax_scale": 0.25}}).scale == 0.25
    found = read(LLAMA)
    assert (found.softcap, found.scale, found.sinks) == (None, None, False)


def test_a_part_whose_type_is_not_known_is_not_guessed(read: Read) -> None:
    said = (
        r"^config\.json: lacks num_attention_heads; the defaults of model type 'novel' are not known: write the key "
        r"into a copy of the file, if it is the config\.json of a language model$"
    )
    with pytest.raises(UserError, match=said):
        read({"model_type": "novel_vl", "text_config": {"model_type": "novel", "hidden_size": 4096}})
    with pytest.raises(UserError, match=r"lacks hidden_size; the defaults of model type 'novel' are not known"):
        read({"model_type": "novel", "num_attention_heads": 32})
