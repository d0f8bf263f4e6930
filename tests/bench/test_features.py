"""A bench of kernels with features: their inputs have the features, and float64 knows them."""

import re
from dataclasses import replace

import pytest
import torch

from pav2gen.bench.measuring import bench as benching
from pav2gen.bench.measuring import contestants, problem
from pav2gen.bench.measuring import float64_reference as truth
from pav2gen.bench.measuring.problem import Problem
from pav2gen.reading.selection import load
from pav2gen.runtime.choice.dispatch_row import Modification
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.oracle import reference

from .conftest import options

PLAIN = Key(64, 2, 16, "float16", "auto", False, False)
TILT = Modification(
    "s + tilt[h] * tanh((k - q) / 16) + base[kvh]", "k % 5 != 2", (("tilt", "heads"), ("base", "kv_heads"))
)
#: A key with each feature, then with those that go together.
KEYS = {
    "softcap": PLAIN._replace(softcap=2.0),
    "window": PLAIN._replace(sliding_window=100),
    "one token": PLAIN._replace(sliding_window=1),
    "sinks": PLAIN._replace(sinks=True),
    "modification": PLAIN._replace(modification="tilt"),
    "all": PLAIN._replace(
        alibi=True, blocksparse=True, softcap=2.0, sliding_window=100, sinks=True, modification="tilt"
    ),
}
SPEC = """\
schema: 1
name: featured
target: bi-v100
model: {num_heads: 4, num_kv_heads: 2, max_seq_len: 2048}
axes: {head_size: 64, gqa_ratio: 2, partition_size: 64}
features: {softcap: 2.0, sliding_window: 100, sinks: true, modification: [null, tilt]}
modifications: {tilt: {score: "s + tilt[h] * tanh((k - q) / 16)", tensors: {tilt: [heads]}}}
backends: [torch]
"""


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("length", [1, 63, 64, 99, 100, 101, 700])
def test_the_reference_is_the_oracles(key, length, monkeypatch):
    monkeypatch.setattr(truth, "STRETCH", 64)
    own = TILT if key.modification else None
    call = problem.make(Problem(key, 2, 2, length, own), torch.device("cpu"), cache_bytes=1).small
    expected = reference(call, "auto", 512, own).out
    assert torch.allclose(truth.truth(call, "auto", [0, 1], own), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("feature", ["softcap", "sliding_window", "sinks", "modification"])
def test_the_inputs_have_the_features_and_they_matter(feature):
    call = problem.make(Problem(KEYS["all"], 2, 2, 300, TILT), torch.device("cpu"), cache_bytes=1).small
    key = KEYS["all"]
    assert (call.softcap, call.sliding_window, call.modification) == (key.softcap, key.sliding_window, "tilt")
    assert call.sinks is not None and [tensor.shape for tensor in call.tensors] == [(4,), (2,)]
    whole = truth.truth(call, "auto", [0, 1], TILT)
    without = truth.truth(call._replace(**{feature: None}), "auto", [0, 1], None if feature == "modification" else TILT)
    assert contestants.excess(without.half(), whole) > 1


@pytest.fixture
def featured(tmp_path):
    """A small spec of kernels with features."""
    (tmp_path / "featured.yaml").write_text(SPEC)
    return load([tmp_path / "featured.yaml"])[0]


def test_kernels_with_features_are_right_and_timed(featured):
    document = benching.bench(featured, options(seq_lens=(300,)))
    assert [point["key"]["modification"] for point in document["points"]] == [None, "tilt"]
    for point in document["points"]:
        kernel, *peers = point["contestants"]
        assert kernel["because"] == "" and 0 < kernel["error"] <= 1 and kernel["median_ms"] > 0
        assert all(peer["because"] for peer in peers), "no peer has these features"


@pytest.mark.parametrize("dropped", ["", "softcap", "sliding_window", "sinks"])
def test_a_kernel_that_drops_a_feature_is_found_wrong(featured, dropped, monkeypatch):
    def operate(package, call, row, backend):
        """Write the rounded result, without one feature."""
        without = call._replace(**{dropped: None} if dropped else {})
        call.out.copy_(truth.truth(without, "auto", [0, 1], row.modification))

    monkeypatch.setattr(contestants, "operate", operate)
    document = benching.bench(featured, options(seq_lens=(300,), against=()))
    for point in document["points"]:
        verdict = point["contestants"][0]["because"]
        assert re.match("wrong: its error is", verdict) if dropped else verdict == ""


def test_a_kernel_with_the_sink_of_another_head_is_found_wrong(featured, monkeypatch):
    real = contestants.operate

    def operate(package, call, row, backend):
        real(package, call._replace(sinks=call.sinks.roll(1)), row, backend)

    monkeypatch.setattr(contestants, "operate", operate)
    document = benching.bench(featured, options(seq_lens=(300,), against=()))
    assert [bool(point["contestants"][0]["because"]) for point in document["points"]] == [True, True]


def test_the_bytes_of_a_window_are_those_that_it_attends():
    full = Problem(PLAIN, 2, 3, 700)
    windowed = replace(full, key=KEYS["window"])
    assert windowed.kv_bytes == full.kv_bytes
    query = full.io_bytes - full.kv_bytes
    assert windowed.io_bytes - query == full.kv_bytes // 7
    assert replace(full, key=PLAIN._replace(sliding_window=5000)).io_bytes == full.io_bytes
