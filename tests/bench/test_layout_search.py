"""``tune --layouts``: many layouts of a kernel in one library, each checked and timed; here on the CPU."""

import pytest
import torch

from pav2gen.bench.measuring.problem import Problem
from pav2gen.bench.tuning import layout_search
from pav2gen.bench.tuning.layout_search import Layout, LayoutOptions, LayoutTimes
from pav2gen.errors import UserError
from pav2gen.reading.selection import load
from pav2gen.runtime.choice.key import Key

SPEC = """
schema: 1
name: tiny
target: bi-v100
model: {num_heads: 4, num_kv_heads: 2, max_seq_len: 1024}
axes: {head_size: 32, gqa_ratio: 2, partition_size: 256, block_size: 16}
backends: [torch, cuda]
"""
OPTIONS = LayoutOptions(torch.device("cpu"), (2,), (300,), rounds=1, warmups=0, most=3)


@pytest.fixture
def selection(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC)
    return load([path])[0]


def test_each_layout_has_a_symbol_and_is_right(selection):
    (found,) = layout_search.search(selection, OPTIONS)
    assert len(found.ms) == 3 and not found.wrong
    assert set(found.ms) == set(layout_search.candidates(selection, 3))
    assert all(time > 0 for time in found.ms.values())


def test_the_plan_s_own_layout_is_a_candidate(selection):
    g = selection.kernels[0].p.cuda.geometry
    assert layout_search.candidates(selection, 1) == [Layout(g.threads, g.step, g.runs)]


def test_a_layout_is_the_spec_s_and_keeps_the_key(selection):
    given = layout_search.with_layout(selection, Layout(256, 128, 2), 5)
    (kernel,) = given.kernels
    assert (kernel.v.spec, kernel.v.key) == ("tiny_layout5", selection.kernels[0].v.key)
    g = kernel.p.cuda.geometry
    assert (g.threads, g.step) == (256, 128) and g.runs <= 2


def test_the_ranking_is_the_geometric_mean_over_the_fastest():
    a, b, c = Layout(64, 64, 1), Layout(128, 64, 1), Layout(256, 64, 1)
    problem = Problem(Key(32, 2, 16, "float16", "auto", False, False), 2, 1, 100)
    found = [
        LayoutTimes("x", problem, {a: 1.0, b: 2.0, c: 1.0}, {}),
        LayoutTimes("y", problem, {a: 4.0, b: 1.0}, {c: "wrong: its error is 9 times the allowed error"}),
    ]
    assert layout_search.ranking(found) == [(b, pytest.approx(2**0.5)), (a, pytest.approx(2.0))]
    told = layout_search.lines(found, "specs/tiny.yaml")
    assert "  wrong: its error is 9 times the allowed error: threads: 256, step: 64, tokens: 1" in told
    assert "cuda: {threads: 128, step: 64, tokens: 1}" in told[-1]


def test_a_spec_without_cuda_kernels_is_refused(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC.replace("[torch, cuda]", "[torch]"))
    with pytest.raises(UserError, match="has no CUDA kernels"):
        layout_search.search(load([path])[0], OPTIONS)
