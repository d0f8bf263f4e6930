"""The default values of the keys of a config.json, by ``model_type``.

A config.json often leaves out a value that equals the default. The defaults in this module are those of the
configuration classes in transformers 4.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The keys of a config.json whose defaults are in the columns of ``_TABLE``.
_COLUMNS = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "num_hidden_layers",
    "max_position_embeddings",
)

# fmt: off
#: Model type -> its default of each key in ``_COLUMNS``. None: the default is None, or the model type lacks the key.
_TABLE: Mapping[str, tuple[int | None, ...]] = {
    "apertus": (32, None, None, 4096, 32, 65536),
    "arcee": (32, None, None, 2560, 32, 4096),
    "aria_text": (32, None, None, 4096, 32, 2048),
    "bamba": (32, 8, None, 4096, 32, 262144),
    "bitnet": (20, 5, None, 2560, 30, 2048),
    "code_llama": (32, None, None, 4096, 32, 2048),
    "codegen": (16, None, None, 4096, 28, 2048),
    "cohere": (64, None, None, 8192, 40, 8192),
    "cohere2": (64, None, None, 8192, 40, 8192),
    "deepseek_v2": (32, None, None, 4096, 32, 2048),
    "deepseek_v3": (128, 128, None, 7168, 61, 4096),
    "dots1": (32, 32, None, 4608, 62, 2048),
    "ernie4_5": (16, 2, 128, 1024, 18, 131072),
    "ernie4_5_moe": (20, 4, None, 2560, 28, 131072),
    "exaone4": (32, 32, None, 4096, 32, 2048),
    "falcon": (71, None, None, 4544, 32, 2048),
    "falcon_h1": (32, 8, None, 4096, 32, 8192),
    "flex_olmo": (32, None, None, 4096, 32, 4096),
    "gemma": (16, 16, 256, 3072, 28, 8192),
    "gemma2": (8, 4, 256, 2304, 26, 8192),
    "gemma3_text": (8, 4, 256, 2304, 26, 131072),
    "gemma3n_text": (8, 2, 256, 2048, 35, 32768),
    "glm": (32, 2, 128, 4096, 40, 131072),
    "glm4": (32, 2, 128, 4096, 40, 131072),
    "glm4_moe": (96, 8, None, 4096, 46, 131072),
    "glm4v_moe_text": (96, 8, None, 4096, 46, 65536),
    "glm4v_text": (32, 2, None, 4096, 40, 32768),
    "gpt2": (12, None, None, 768, 12, 1024),
    "gpt_neo": (16, None, None, 2048, 24, 2048),
    "gpt_neox": (64, None, None, 6144, 44, 2048),
    "gpt_oss": (64, 8, 64, 2880, 36, 131072),
    "gptj": (16, None, None, 4096, 28, 2048),
    "granite": (32, None, None, 4096, 32, 2048),
    "granitemoe": (32, None, None, 4096, 32, 2048),
    "granitemoehybrid": (32, None, None, 4096, 32, 2048),
    "granitemoeshared": (32, None, None, 4096, 32, 2048),
    "helium": (20, 20, 128, 2560, 24, 4096),
    "hunyuan_v1_dense": (32, None, None, 4096, 32, 2048),
    "hunyuan_v1_moe": (32, None, None, 4096, 32, 2048),
    "jamba": (32, 8, None, 4096, 32, 262144),
    "lfm2": (32, 8, None, 2560, 32, 128000),
    "llama": (32, None, None, 4096, 32, 2048),
    "llama4_text": (40, 8, 128, 5120, 48, 131072),
    "minimax": (32, 8, None, 4096, 32, 131072),
    "ministral": (32, 8, None, 4096, 32, 131072),
    "mistral": (32, 8, None, 4096, 32, 131072),
    "mixtral": (32, 8, None, 4096, 32, 131072),
    "mllama_text_model": (32, 8, None, 4096, 40, 131072),
    "nemotron": (48, None, None, 6144, 32, 4096),
    "olmo": (32, None, None, 4096, 32, 2048),
    "olmo2": (32, None, None, 4096, 32, 2048),
    "olmo3": (32, None, None, 4096, 32, 2048),
    "olmoe": (16, None, None, 2048, 16, 4096),
    "opt": (12, None, None, 768, 12, 2048),
    "persimmon": (64, None, None, 4096, 36, 16384),
    "phi": (32, None, None, 2048, 24, 2048),
    "phi3": (32, None, None, 3072, 32, 4096),
    "phi4_multimodal": (32, 8, None, 3072, 32, 131072),
    "phimoe": (32, 8, None, 4096, 32, 131072),
    "qwen2": (32, 32, None, 4096, 32, 32768),
    "qwen2_5_omni_text": (28, 4, None, 3584, 28, 32768),
    "qwen2_5_vl_text": (64, 8, None, 8192, 80, 32768),
    "qwen2_moe": (16, 16, None, 2048, 24, 32768),
    "qwen2_vl_text": (64, 8, None, 8192, 80, 32768),
    "qwen3": (32, 32, 128, 4096, 32, 32768),
    "qwen3_moe": (32, 4, None, 2048, 24, 32768),
    "qwen3_next": (16, 2, 256, 2048, 48, 32768),
    "qwen3_omni_moe_text": (28, 4, None, 2048, 28, 32768),
    "qwen3_vl_moe_text": (16, 16, None, 2048, 24, 128000),
    "qwen3_vl_text": (32, 32, 128, 4096, 32, 128000),
    "recurrent_gemma": (10, None, None, 2560, 26, None),
    "seed_oss": (80, 8, 128, 4096, 64, 524288),
    "smollm3": (16, 4, None, 2048, 36, 32768),
    "stablelm": (32, 32, None, 2560, 32, 4096),
    "starcoder2": (24, 2, None, 3072, 30, 4096),
    "vaultgemma": (8, 4, 256, 2304, 26, 8192),
}

_WINDOW_THAT_IS_OFF: Mapping[str, Any] = {"sliding_window": 4096, "use_sliding_window": False}

#: Model type -> its further defaults, by key. These keys are about windows, patterns of layers, and scores.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "exaone4": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gemma2": {
        "sliding_window": 4096, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 256,
    },
    "gemma3_text": {"sliding_window": 4096, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256},
    "gemma3n_text": {"sliding_window": 512, "sliding_window_pattern": 5},
    "gpt_neo": {"window_size": 256, "attention_types": [[["global", "local"], 12]]},
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "granite": {"attention_multiplier": 1.0},
    "granitemoe": {"attention_multiplier": 1.0},
    "granitemoehybrid": {"attention_multiplier": 1.0},
    "granitemoeshared": {"attention_multiplier": 1.0},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4},
    "llama4_text": {"attention_chunk_size": 8192},
    "ministral": {"sliding_window": 4096},
    "mistral": {"sliding_window": 4096},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "qwen2": _WINDOW_THAT_IS_OFF,
    "qwen2_5_omni_text": _WINDOW_THAT_IS_OFF,
    "qwen2_5_vl_text": _WINDOW_THAT_IS_OFF,
    "qwen2_moe": _WINDOW_THAT_IS_OFF,
    "qwen2_vl_text": _WINDOW_THAT_IS_OFF,
    "qwen3": _WINDOW_THAT_IS_OFF,
    "qwen3_moe": _WINDOW_THAT_IS_OFF,
    "qwen3_next": {"full_attention_interval": 4},
    "recurrent_gemma": {"attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"]},
    "vaultgemma": {
        "sliding_window": 4096, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 256,
    },
}
# fmt: on

#: Type of a model of several parts, such as text and images -> the type of its language model. It is used if the
#: config.json does not state the latter.
TEXT_TYPES: Mapping[str, str] = {
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "vipllava": "llama",
}

#: Model types that pav2gen reads without a table of defaults, because their configs state every value.
READ_WITHOUT_DEFAULTS = frozenset(
    {
        "albert", "aquila", "baichuan", "bert", "bloom", "chatglm", "dbrx", "deberta", "deci", "electra", "exaone",
        "gemma4_text", "gpt_bigcode", "internlm", "internlm2", "internlm3", "kimi_linear", "mimo", "mimo_v2_flash",
        "minicpm", "minicpm3", "minimax_m2", "mpt", "nemotron_h", "nemotron-nas", "phi3small", "qwen", "qwen3_5",
        "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "roberta", "step3_text", "xlm-roberta", "xverse", "zamba2",
    }
)  # fmt: skip


def defaults_of(model_type: object) -> dict[str, Any]:
    """Return the default values for ``model_type``, by key of a config.json.

    The result is empty for an unknown model type.
    """
    if not isinstance(model_type, str):
        return {}
    row = _TABLE.get(model_type, ())
    given = {name: value for name, value in zip(_COLUMNS, row) if value is not None}
    return {**given, **_MORE.get(model_type, {})}
