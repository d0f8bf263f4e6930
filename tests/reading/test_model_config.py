"""A model's config.json becomes a spec that loads, has the model's heads, and says what the kernels don't cover."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pav2gen.commands.init import init
from pav2gen.errors import UserError
from pav2gen.reading.model_config import read_attention
from pav2gen.reading.spec_file import Spec, parse
from pav2gen.render.spec_draft import draft_spec

LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]

#: model -> its config.json: the keys and numbers that matter, as published.
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3.6-27B": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "hidden_size": 5120,
            "head_dim": 256,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "num_hidden_layers": 64,
            "full_attention_interval": 4,
            "layer_types": LAYERS * 16,
            "max_position_embeddings": 262144,
            "partial_rotary_factor": 0.25,
            "sliding_window": None,
        },
        "vision_config": {"hidden_size": 1152, "num_heads": 16},
    },
    "Qwen3.6-35B-A3B": {
        "model_type": "qwen3_5_moe",
        "text_config": {
            "head_dim": 256,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "num_hidden_layers": 40,
            "full_attention_interval": 4,
            "max_position_embeddings": 262144,
            "torch_dtype": "bfloat16",
        },
    },
    "Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "sliding_window": 131072,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    "Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "Qwen3-14B": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "head_dim": 128,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Llama-2-7b-hf": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    },
    "Llama-3.1-405B": {
        "model_type": "llama",
        "hidden_size": 16384,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    },
    "Mistral-7B-v0.1": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "torch_dtype": "bfloat16",
    },
    "gemma-2-27b": {
        "model_type": "gemma2",
        "hidden_size": 4608,
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 144,
        "sliding_window": 4096,
        "torch_dtype": "float32",
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "Phi-3.5-mini-instruct": {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 131072,
        "sliding_window": 262144,
        "torch_dtype": "bfloat16",
    },
    "phi-2": {
        "model_type": "phi",
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
    },
    "falcon-7b": {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "num_kv_heads": 71,
        "multi_query": True,
        "new_decoder_architecture": False,
        "alibi": False,
        "torch_dtype": "bfloat16",
    },
    "falcon-40b": {
        "model_type": "falcon",
        "hidden_size": 8192,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "multi_query": True,
        "new_decoder_architecture": True,
        "alibi": False,
        "torch_dtype": "bfloat16",
    },
    "falcon-rw-1b": {
        "model_type": "falcon",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "multi_query": False,
        "new_decoder_architecture": False,
        "alibi": True,
    },
    "Baichuan2-13B-Chat": {
        "model_type": "baichuan",
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "model_max_length": 4096,
        "torch_dtype": "bfloat16",
    },
    "Baichuan2-7B-Chat": {
        "model_type": "baichuan",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "model_max_length": 4096,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    },
    "mpt-30b": {
        "model_type": "mpt",
        "d_model": 7168,
        "n_heads": 64,
        "max_seq_len": 8192,
        "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
        "torch_dtype": "bfloat16",
    },
    "bloom-7b1": {"model_type": "bloom", "n_embed": 4096, "n_head": 32, "seq_length": 2048},
    "chatglm3-6b": {
        "model_type": "chatglm",
        "hidden_size": 4096,
        "kv_channels": 128,
        "num_attention_heads": 32,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "seq_length": 8192,
        "torch_dtype": "float16",
    },
    "Phi-3-small-8k-instruct": {
        "model_type": "phi3small",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "blocksparse_block_size": 64,
        "blocksparse_vert_stride": 8,
        "torch_dtype": "bfloat16",
    },
}

#: model -> heads, KV heads, head size, length, ranks and the ratio of each, ALiBi, words of what is not covered.
EXPECTED: dict[str, tuple[int, int, int, int, dict[int, int], bool, tuple[str, ...]]] = {
    "Qwen3.6-27B": (24, 4, 256, 262144, {1: 6, 2: 6, 4: 6, 8: 3}, False, ()),
    "Qwen3.6-35B-A3B": (16, 2, 256, 262144, {1: 8, 2: 8, 4: 4, 8: 2}, False, ()),
    "Qwen2.5-7B-Instruct": (28, 4, 128, 32768, {1: 7, 2: 7, 4: 7}, False, ()),
    "Qwen2.5-0.5B": (14, 2, 64, 32768, {1: 7, 2: 7}, False, ()),
    "Qwen3-14B": (40, 8, 128, 40960, {1: 5, 2: 5, 4: 5, 8: 5}, False, ()),
    "Llama-2-7b-hf": (32, 32, 128, 4096, {1: 1, 2: 1, 4: 1, 8: 1}, False, ()),
    "Llama-3.1-405B": (128, 8, 128, 131072, {1: 16, 2: 16, 4: 16, 8: 16}, False, ()),
    "Mistral-7B-v0.1": (32, 8, 128, 32768, {1: 4, 2: 4, 4: 4, 8: 4}, False, ("window of 4096 tokens, in all layers",)),
    "gemma-2-27b": (32, 16, 128, 8192, {1: 2, 2: 2, 4: 2, 8: 2}, False, ("window of 4096 tokens", "softcap of 50 on")),
    "gpt-oss-20b": (64, 8, 64, 131072, {1: 8, 2: 8, 4: 8, 8: 8}, False, ("128 tokens, in 12 of 24 layers", "sinks")),
    "Phi-3.5-mini-instruct": (32, 32, 96, 131072, {1: 1, 2: 1, 4: 1, 8: 1}, False, ()),
    "phi-2": (32, 32, 80, 2048, {1: 1, 2: 1, 4: 1, 8: 1}, False, ()),
    "falcon-7b": (71, 1, 64, 2048, {1: 71}, False, ()),
    "falcon-40b": (128, 8, 64, 2048, {1: 16, 2: 16, 4: 16, 8: 16}, False, ()),
    "falcon-rw-1b": (32, 32, 64, 2048, {1: 1, 2: 1, 4: 1, 8: 1}, True, ()),
    "Baichuan2-13B-Chat": (40, 40, 128, 4096, {1: 1, 2: 1, 4: 1, 8: 1}, True, ()),
    "Baichuan2-7B-Chat": (32, 32, 128, 4096, {1: 1, 2: 1, 4: 1, 8: 1}, False, ()),
    "mpt-30b": (64, 64, 112, 8192, {1: 1, 2: 1, 4: 1, 8: 1}, True, ()),
    "bloom-7b1": (32, 32, 128, 2048, {1: 1, 2: 1, 4: 1, 8: 1}, True, ()),
    "chatglm3-6b": (32, 2, 128, 8192, {1: 16, 2: 16, 4: 8, 8: 4}, False, ()),
    "Phi-3-small-8k-instruct": (32, 8, 128, 8192, {1: 4, 2: 4, 4: 4, 8: 4}, False, ()),
}

Write = Callable[..., Path]


@pytest.fixture
def write(folder: Path) -> Write:
    """Writes a config.json into a folder of the model's name."""

    def write(config: object, model: str = "Some-Model") -> Path:
        path = folder / model / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    return write


def drafted(path: Path, **options: str) -> tuple[str, Spec]:
    """The text of the spec for a config, and the spec that it is."""
    text = draft_spec(path, **options)
    return text, parse(text.encode(), "drafted.yaml")


def test_every_model_is_expected() -> None:
    assert CONFIGS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("model", CONFIGS)
def test_the_spec_of_a_model(model: str, write: Write) -> None:
    heads, kv_heads, head_size, length, ranks, alibi, uncovered = EXPECTED[model]
    text, spec = drafted(write(CONFIGS[model], model))
    assert (spec.model.num_heads, spec.model.num_kv_heads, spec.model.max_seq_len) == (heads, kv_heads, length)
    assert {rank.tensor_parallel: rank.gqa_ratio for rank in spec.model.ranks()} == ranks
    assert spec.axes["head_size"] == (head_size,)
    assert spec.axes["gqa_ratio"] == tuple(sorted(set(ranks.values())))
    assert spec.axes["alibi"] == (alibi,)
    comments = [line for line in text.splitlines() if line.startswith("#   ")]
    assert len(comments) == len(uncovered)
    assert all(any(words in comment for comment in comments) for words in uncovered)
    assert ("NOT COVERED" in text or "Built as features" in text) == bool(uncovered)
    assert max(map(len, text.splitlines())) <= 120


def test_what_is_said_of_linear_layers(write: Write) -> None:
    listed = draft_spec(write(CONFIGS["Qwen3.6-27B"]))
    assert "# 48 of 64 layers are linear attention, without a paged cache: the kernels serve the others." in listed
    counted = draft_spec(write(CONFIGS["Qwen3.6-35B-A3B"]))
    assert "# 30 of 40 layers are linear attention" in counted
    assert "linear" not in draft_spec(write(CONFIGS["Qwen3-14B"]))


def test_the_dtypes_are_that_of_the_card_and_that_of_the_model(write: Write) -> None:
    assert drafted(write(CONFIGS["Qwen3-14B"]))[1].axes["dtype"] == ("float16", "bfloat16")
    assert drafted(write(CONFIGS["phi-2"]))[1].axes["dtype"] == ("float16",)
    assert drafted(write(CONFIGS["gemma-2-27b"]))[1].axes["dtype"] == ("float16",)


def test_a_draft_builds_extend_where_vllm_needs_it_for_a_softcap(write):
    assert drafted(write(CONFIGS["gemma-2-27b"]))[1].operators == ("decode", "extend")
    wide = {"num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 256}
    assert drafted(write(CONFIGS["gemma-2-27b"] | wide))[1].operators == ("decode", "extend")
    without = {key: value for key, value in CONFIGS["gemma-2-27b"].items() if key != "attn_logit_softcapping"}
    assert drafted(write(without | {"model_type": "llama", "attn_logit_softcapping": None}))[1].operators == ("decode",)
    assert drafted(write(CONFIGS["Qwen3-14B"] | {"torch_dtype": "torch.bfloat16"}))[1].axes["dtype"][-1] == "bfloat16"


def test_a_sliding_window_may_be_turned_off(write: Write) -> None:
    windowed = CONFIGS["Qwen3-14B"] | {"sliding_window": 4096, "use_sliding_window": True}
    assert "a sliding window of 4096 tokens" in draft_spec(write(windowed))
    assert "window" not in draft_spec(write(windowed | {"use_sliding_window": False}))
    assert "window" not in draft_spec(write(windowed | {"layer_types": ["full_attention"] * 40}))


def test_the_fields_around_the_text_config_stand_in_for_its_own(write: Write) -> None:
    config = {"torch_dtype": "bfloat16", "text_config": CONFIGS["Qwen3-14B"] | {"torch_dtype": None}}
    assert drafted(write(config))[1].axes["dtype"] == ("float16", "bfloat16")


def test_a_block_sparse_model_has_both_kinds_of_layers(write: Write) -> None:
    assert drafted(write(CONFIGS["Phi-3-small-8k-instruct"]))[1].axes["blocksparse"] == (False, True)


def test_the_ratio_of_each_rank_is_said_where_they_differ(write: Write) -> None:
    text = draft_spec(write(CONFIGS["Qwen3.6-27B"]))
    assert "gqa_ratio: [3, 6]  # 6 on 1, 2, 4 ranks; 3 on 8 ranks" in text


def test_a_short_model_has_a_bound_that_it_reaches(write: Write) -> None:
    spec = drafted(write(CONFIGS["phi-2"]))[1]
    assert (spec.dispatch.min_seq_len, spec.axes["partition_size"]) == (1024, (256, 512))
    spec = drafted(write(CONFIGS["Qwen3-14B"]))[1]
    assert (spec.dispatch.min_seq_len, spec.axes["partition_size"]) == (8192, (256, 512, 1024))


def test_the_workspace_grows_with_the_model(write: Write) -> None:
    wide = CONFIGS["Llama-2-7b-hf"] | {"num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 256}
    assert drafted(write(wide))[1].limits.workspace_mib > 64
    assert drafted(write(CONFIGS["Llama-2-7b-hf"]))[1].limits.workspace_mib == 64


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen2.5-7B-Instruct", "qwen2_5_7b_instruct"),
        ("7B", "model_7b"),
        ("runtime", "runtime_model"),
        ("An-extremely-long-name_of-a-model-that-ends-here", "an_extremely_long_name_of_a_mode"),
        ("天垓", "model"),
    ],
)
def test_the_name_is_made_from_the_folder(model: str, name: str, write: Write) -> None:
    assert drafted(write(CONFIGS["phi-2"], model))[1].name == name


def test_the_name_may_be_in_the_config_or_be_given(write: Write) -> None:
    config = CONFIGS["phi-2"] | {"_name_or_path": "microsoft/phi-2"}
    assert drafted(write(config, "0a1b2c"))[1].name == "phi_2"
    spec = drafted(write(config), name="phi2", target="sm_80")[1]
    assert (spec.name, spec.target.name) == ("phi2", "sm_80")


def test_the_text_is_the_same_each_time(write: Write) -> None:
    path = write(CONFIGS["gpt-oss-20b"])
    assert draft_spec(path) == draft_spec(path)


def test_what_a_config_says_cannot_break_out_of_its_comment(write: Write) -> None:
    config = CONFIGS["phi-2"] | {"_name_or_path": 'x/"a: b\n#* {', "model_type": "phi\nname: evil"}
    config |= {"torch_dtype": "bfloat16\n", "window\nname: evil": 1, "\u2028sinks": 1}
    text, spec = drafted(write(config))
    assert spec.name == "a_b"
    assert "evil" in text and "\nname: evil" not in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_spec_never_replaces_its_config(write: Write) -> None:
    path = write(CONFIGS["Llama-2-7b-hf"])
    before = path.read_bytes()
    with pytest.raises(UserError, match="is an input of this command"):
        init(path, path, force=True)
    assert path.read_bytes() == before


def test_more_kv_heads_than_query_heads(write: Write) -> None:
    path = write(CONFIGS["Llama-2-7b-hf"] | {"num_key_value_heads": 64})
    with pytest.raises(UserError, match="num_heads 32 is not a multiple of num_kv_heads 64"):
        draft_spec(path)


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "num_key_value_heads": 2}


def test_latent_attention_is_as_vllm_0_6_expands_it(write: Write) -> None:
    """deepseek_v2.py pads heads of 192 to 256, minicpm3.py does not; both have a KV head for each query head."""
    found = read_attention(write(CONFIGS["Llama-2-7b-hf"] | LATENT | {"model_type": "deepseek_v2"}))
    assert (found.num_heads, found.num_kv_heads, found.head_size) == (32, 32, 256)
    assert "from 0.7 on keeps the latent vector instead" in found.notes[0]
    small = {"model_type": "minicpm3", "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
    assert read_attention(write(CONFIGS["Llama-2-7b-hf"] | LATENT | small)).head_size == 96
    with pytest.raises(UserError, match=r"config.json: lacks qk_nope_head_dim"):
        draft_spec(write(CONFIGS["Llama-2-7b-hf"] | {"kv_lora_rank": 512}))
    assert read_attention(write(CONFIGS["Llama-2-7b-hf"] | {"kv_lora_rank": None})).notes == ()


def test_kv_heads_that_differ_by_layer(write: Write) -> None:
    plain = {key: value for key, value in CONFIGS["Llama-2-7b-hf"].items() if key != "num_key_value_heads"}
    found = read_attention(write(plain | {"num_key_value_heads_per_layer": [4, 4, 2, 1]}))
    assert found.num_kv_heads == 4 and "until all have the most" in found.notes[0]
    blocks = [{"attention": {"n_heads_in_group": group}} for group in (8, None, 8)]
    assert read_attention(write(plain | {"block_configs": blocks})).num_kv_heads == 4
    blocks.append({"attention": {"n_heads_in_group": 4}})
    with pytest.raises(UserError, match=r"block_configs: the query heads for each KV head differ by layer, 4 or 8"):
        draft_spec(write(plain | {"block_configs": blocks}))


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"attention_types": [[["global", "local"], 12]], "window_size": 256}, "local attention of 256 tokens"),
        ({"attention_types": [[["global"], 12]], "window_size": 256}, ""),
        ({"max_attn_value": 30.0}, "a softcap of 30 on the logits"),
        ({"is_encoder_decoder": True}, "cross attention"),
        ({"cross_attention_layers": [3, 8]}, "cross attention"),
        ({"model_type": "bert"}, "attention of an encoder"),
        ({"model_type": "bert", "is_decoder": True}, ""),
        ({"attention_chunk_size": 1024}, "attention within chunks of 1024 tokens, in some or all layers"),
    ],
)
def test_what_no_kernel_covers_is_said(write: Write, fields: dict[str, object], said: str) -> None:
    found = read_attention(write(CONFIGS["Llama-2-7b-hf"] | fields))
    sentences = found.features if "softcap" in said else found.uncovered
    assert [sentence.startswith(said) for sentence in sentences] == [True] * bool(said)


def test_features_go_into_the_spec(write: Write) -> None:
    fields = {
        "attn_logit_softcapping": 50.0,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    spec = drafted(write(CONFIGS["Llama-2-7b-hf"] | fields))[1]
    assert (spec.axes["softcap"], spec.axes["sliding_window"], spec.axes["sinks"]) == ((50.0,), (None, 512), (False,))


#: In the style of Gemma 4: the layers with a window have more KV heads, and smaller ones.
OTHER_HEADS: dict[str, Any] = {
    "model_type": "gemma4_text", "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4,
    "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 6, "max_position_embeddings": 131072,
}  # fmt: skip


def test_a_spec_leaves_out_layers_with_other_heads(write: Write) -> None:
    text, spec = drafted(write(OTHER_HEADS))
    assert (spec.axes["head_size"], spec.model.num_kv_heads, spec.axes["sliding_window"]) == ((512,), 1, (None,))
    heads = "they have other heads (KV heads 4, head size 256)"
    said = f"a sliding window of 512 tokens, in 24 of 30 layers: {heads}"
    found = read_attention(write(OTHER_HEADS))
    assert (found.features, found.uncovered) == ((), (said,))
    assert f"# NOT COVERED by any kernel, so do not route these layers to them:\n#   {said}\n" in text
    assert "Built as features" not in text


def test_other_heads_matter_for_any_window(write: Write) -> None:
    """A window as long as the context limits nothing, but its layers still have their own heads."""
    assert read_attention(write(OTHER_HEADS | {"sliding_window": 131072})).uncovered != ()
    assert read_attention(write(OTHER_HEADS | {"sliding_window": None})).uncovered != ()
    same = OTHER_HEADS | {"num_global_key_value_heads": 4, "global_head_dim": 256}
    found = read_attention(write(same))
    assert (found.windows, found.uncovered, found.notes) == ((None, 512), (), ())
    without = OTHER_HEADS | {"sliding_window": None, "layer_types": ["full_attention"] * 30}
    assert read_attention(write(without)).uncovered == ()


def test_sinks_of_layers_with_other_heads_are_not_built(write: Write) -> None:
    sinks = {"add_swa_attention_sink_bias": True}
    assert not read_attention(write(OTHER_HEADS | sinks)).sinks
    assert read_attention(write(OTHER_HEADS | {"add_full_attention_sink_bias": True})).sinks
    assert read_attention(write(CONFIGS["Mistral-7B-v0.1"] | sinks)).sinks


def test_compressed_caches_are_advised_where_a_build_takes_them(write: Write) -> None:
    for size, advised in ((72, False), (128, True), (120, False), (80, True)):
        text, spec = drafted(write(CONFIGS["Qwen3-14B"] | {"head_dim": size}))
        assert ("add fp8_e4m3" in text) == advised
        assert spec.axes["kv_cache_dtype"] == ("auto",)


BAD = {
    "nothing": ("", r"config.json:1: is not JSON: Expecting value"),
    "cut short": ('{\n"a": 1,\n', r"config.json:3: is not JSON: "),
    "a list": ("[]", r"config.json: is not a model's config.json: it must hold an object"),
    "nested without end": ("[" * 100_000, r"config.json: is not a model's config.json: a number or a nesting"),
    "a number without end": ('{"a": ' + "9" * 5000 + "}", r"config.json: is not a model's config.json"),
    "another file": ({"bos_token": "<s>"}, r"config.json: lacks num_attention_heads; is it the config.json of a lang"),
    "no size": ({"num_attention_heads": 32}, r"config.json: lacks hidden_size"),
    "text for heads": (
        {"num_attention_heads": "32"},
        r"num_attention_heads must be a positive whole number, not the text '32'",
    ),
    "true for heads": (
        {"num_attention_heads": True},
        r"num_attention_heads must be a positive whole number, not true",
    ),
    "no heads": ({"num_attention_heads": 0}, r"num_attention_heads must be a positive whole number, not 0$"),
    "text for KV heads": (
        {"num_attention_heads": 8, "attn_config": {"kv_n_heads": "x"}},
        r"config.json: kv_n_heads must be a positive whole number, not the text 'x'",
    ),
    "true for a window": (
        {"model_type": "mistral", "sliding_window": True},
        r"config.json: sliding_window must be a positive whole number, not true$",
    ),
    "true in a list of windows": (
        {"model_type": "llama", "sliding_window": [None, True]},
        r"config.json: sliding_window must hold positive whole numbers or null, not true$",
    ),
    "text for layers": (
        {"model_type": "gpt_oss", "layer_types": "full"},
        r"config.json: layer_types must be a list, not the text 'full'$",
    ),
    "text for a softcap": (
        {"model_type": "gemma2", "attn_logit_softcapping": "1\nname: evil"},
        r"config.json: attn_logit_softcapping must be a positive finite number, not the text '1\\nname: evil'$",
    ),
    "a softcap without end": (
        '{"model_type": "gemma2", "attn_logit_softcapping": Infinity}',
        r"config.json: attn_logit_softcapping must be a positive finite number, not inf$",
    ),
    "text for a flag": (
        {"model_type": "qwen2", "use_sliding_window": "false"},
        r"config.json: use_sliding_window must be true or false, not the text 'false'$",
    ),
    "text for a factor": (
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": "4"}},
        r"config.json: factor must be a positive finite number, not the text '4'$",
    ),
    "text for a mapping": (
        {"model_type": "llama", "rope_scaling": "linear"},
        r"config.json: rope_scaling must be a mapping of keys to values, not the text 'linear'$",
    ),
    "a number for a dtype": (
        {"model_type": "llama", "torch_dtype": 16},
        r"config.json: torch_dtype must be a text, not 16$",
    ),
    "text for the heads of layers with a window": (
        {"model_type": "llama", "swa_num_key_value_heads": "4"},
        r"config.json: swa_num_key_value_heads must be a positive whole number, not the text '4'$",
    ),
    "heads that do not divide": (
        {"num_attention_heads": 7, "hidden_size": 512},
        r"config.json: lacks head_dim, and hidden_size 512 is not a multiple of num_attention_heads 7",
    ),
    "a head size without a kernel": (
        {"num_attention_heads": 8, "head_dim": 576},
        r"config.json: no spec can serve this model: head_size cannot be 576: .*nearest is 512 \(rule head-size\)",
    ),
    "KV heads that do not divide": (
        {"num_attention_heads": 8, "num_key_value_heads": 3, "head_dim": 64},
        r"config.json: no spec can serve this model: model.num_heads 8 is not a multiple of num_kv_heads 3",
    ),
    "more KV heads than heads": (
        {"num_attention_heads": 8, "num_key_value_heads": 16, "head_dim": 64},
        r"config.json: no spec can serve this model: ",
    ),
    "a crowd of heads": (
        {"num_attention_heads": 10**30, "head_dim": 64},
        r"config.json: no spec can serve this model: model.num_heads must be a whole number",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=BAD)
def test_a_config_that_is_none(case: str, write: Write) -> None:
    config, message = BAD[case]
    path = write(config)
    start = time.perf_counter()
    with pytest.raises(UserError, match=message) as raised:
        draft_spec(path)
    assert time.perf_counter() - start < 0.5
    assert str(raised.value).isprintable()


def test_a_config_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^nowhere/config.json: there is no such file$"):
        draft_spec("nowhere/config.json")
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UserError, match=r"^config.json: is not JSON: not UTF-8$"):
        draft_spec("config.json")
    with pytest.raises(UserError, match=r"is a folder; name a file$"):
        draft_spec(folder)


SCALARS = st.none() | st.booleans() | st.integers(-2, 600) | st.floats() | st.text(max_size=6)
ANYTHING = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=3)
RARE = {
    *LATENT, "num_key_value_heads_per_layer", "block_configs", "attention_types", "window_size", "max_attn_value",
    "rope_scaling", "rope_parameters", "sliding_window_pattern", "attn_layer_period", "attn_layer_offset",
    "attn_type_list", "hybrid_override_pattern", "block_types", "no_rope_layers", "linear_attn_config",
    "global_head_dim", "swa_head_dim", "v_head_dim", "attention_multiplier", "query_pre_attn_scalar", "thinker_config",
    "text_config", "attention_chunk_size", "use_sliding_window", "num_attention_groups", "num_kv_head_sets",
}  # fmt: skip
KEYS = sorted({key for config in CONFIGS.values() for key in config | config.get("text_config", {})} | RARE)


@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=4))
@settings(max_examples=300)
def test_any_config_is_drafted_or_answered_in_one_line(model: str, changes: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(CONFIGS[model] | changes))
        try:
            parse(draft_spec(path).encode(), "drafted.yaml")
        except UserError as error:
            assert str(error).isprintable() and error.where.startswith(str(path))


def test_the_attention_of_a_model(write: Write) -> None:
    attention = read_attention(write(CONFIGS["gpt-oss-20b"], "gpt-oss-20b"))
    assert (attention.title, attention.model_type, attention.dtype) == ("gpt-oss-20b", "gpt_oss", "")
