"""The figures of a plan, worked out a second time from the spec's text."""

from pathlib import Path

import pytest
import yaml

from pav2gen.reading.selection import load

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_bytes_of_the_cache_and_ranks(path):
    text = yaml.safe_load(path.read_text("utf-8"))
    model = text["model"]
    ranks = {
        size: (model["num_heads"] // size, max(1, model["num_kv_heads"] // size))
        for size in model.get("tensor_parallel", [1])
    }
    (chosen,) = load([path])
    for v, p in chosen.kernels:
        heads, kv_heads = next(shape for shape in ranks.values() if shape[0] // shape[1] == v.gqa_ratio)
        item = ITEM_BYTES[v.dtype] if v.kv_cache_dtype == "auto" else 1
        kv_bytes = 2 * kv_heads * v.head_size * item * model["max_seq_len"]
        assert p.figures["heads"] == f"{heads}/{kv_heads}"
        assert p.figures["kv_mib"] == round(kv_bytes / 2**20, 1)
        assert p.figures["partitions"] == -(-model["max_seq_len"] // v.partition_size)
        assert p.figures["tokens"] == model["max_seq_len"]


def test_the_floor_of_the_card_s_bandwidth():
    (chosen,) = load([path for path in SPECS if path.stem == "qwen36"])
    floors = {p.figures["floor_ms"] for v, p in chosen.kernels if v.gqa_ratio == 6 and v.kv_cache_dtype == "auto"}
    # K and V of 262,144 tokens: 2 * 4 heads * 256 elements * 2 bytes each, at the 584.2 GB/s of a measured copy.
    assert floors == {round(2 * 4 * 256 * 2 * 262144 / 584.2e9 * 1e3, 2)} == {1.84}


def test_one_title_and_one_row_for_each_kernel():
    for chosen in load(SPECS):
        for v, p in chosen.kernels:
            row = p.row()
            assert (row.symbol, row.key, row.partition_size) == (v.symbol, v.key, v.partition_size)
            assert p.title.startswith(f"head size {v.head_size}, ") and f"pages of {v.block_size}" in p.title


def test_an_empty_block_and_the_times_predicted():
    (chosen,) = load([Path("specs/qwen36.yaml")], ["hd256_g6_b16_f16_p1024"])
    (plan,) = [p for _, p in chosen.kernels]
    row = plan.row()
    # 400 ns and a load of 600 ns, of 584.2 / 16 bytes a nanosecond, are 35.66 tokens of 2 x 256 x 2 bytes.
    assert (row.resident_blocks, row.saturating_blocks, row.empty_tokens) == (3, 6, 36)
    token_ms = 1024 / (584.2e6 / 16)
    # 256 partitions of 4 KV heads on 16 x 3 places are 22 rounds. The merge takes 4 rounds of loads.
    expected = 2 * 0.0062 + (22 * (1024 + 32) * 6 + 64 + 4 * 16) * token_ms
    assert plan.figures["predicted_ms"] == round(expected, 3)
    # One token: 4 places are busy for 33 x 6 = 198. They take 16 of the 1020 empty blocks each, until 774. The other 44
    # places take 21 each, until 756. The last 32 blocks end at 792.
    assert 4 * 16 + 44 * 21 + 32 == 1020
    assert plan.figures["replay_ms"] == round(2 * 0.0062 + (792 + 64 + 16) * token_ms, 3)


def test_a_target_without_bandwidth_has_no_prediction(tmp_path):
    text = Path("specs/qwen36.yaml").read_text("utf-8").replace("target: bi-v100", "target: mr-v100")
    (tmp_path / "other.yaml").write_text(text, "utf-8")
    (chosen,) = load([tmp_path / "other.yaml"], ["hd256_g6_b16_f16_p1024"])
    (plan,) = [p for _, p in chosen.kernels]
    assert plan.figures["predicted_ms"] is plan.figures["replay_ms"] is None
    assert plan.row().empty_tokens == 40  # 24 KiB are assumed to arrive in 600 ns
