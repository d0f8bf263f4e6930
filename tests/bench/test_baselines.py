"""The baselines compute what they should, or say why they have no part in a problem."""

import importlib
import sys
import types

import pytest
import torch

from pav2gen.bench.measuring import baselines, problem
from pav2gen.bench.measuring import float64_reference as truth
from pav2gen.bench.measuring.baselines import NotApplicable, baseline
from pav2gen.bench.measuring.problem import Problem
from pav2gen.runtime.choice.key import Key

try:
    FLEX = importlib.import_module("torch.nn.attention.flex_attention")
except ImportError:
    FLEX = None
KEY = Key(64, 3, 16, "float32", "auto", False, False)


def inputs_of(key, length=600):
    inputs = problem.make(Problem(key, 2, 2, length), torch.device("cpu"), cache_bytes=1)
    return inputs.first, truth.truth(inputs.small, key.kv_cache_dtype, [0, 1])


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """FlexAttention as it is: to compile it takes most of a minute."""
    if FLEX:
        monkeypatch.setattr(baselines, "_compiled_flex_attention", lambda: FLEX.flex_attention)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["seed", "sdpa", "flex"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("length", [1, 16, 600])
def test_they_are_right(name, dtype, length):
    call, expected = inputs_of(KEY._replace(dtype=dtype), length)
    if name == "flex" and not FLEX:
        pytest.skip("this torch has no FlexAttention")
    baseline(name, KEY)(call)
    assert (call.out.double() - expected).norm() / expected.norm() < baselines.TOLERANCE[dtype]


def test_an_empty_sequence_gives_zeros():
    call, _ = inputs_of(KEY)
    call.seq_lens[1] = 0
    for run in (run for name, run in baselines.BASELINES.items() if FLEX or name != "flex"):
        call.out.fill_(float("nan"))
        run(call)
        assert not call.out[0].isnan().any() and (call.out[1] == 0).all()


@pytest.mark.parametrize("change", [{"alibi": True}, {"blocksparse": True}, {"kv_cache_dtype": "fp8_e4m3"}])
def test_plain_attention_has_no_part_in_other_problems(change):
    for name in baselines.BASELINES:
        with pytest.raises(NotApplicable, match="plain attention"):
            baseline(name, KEY._replace(**change))


def test_without_flex_attention_it_is_absent(monkeypatch):
    monkeypatch.undo()
    baselines._compiled_flex_attention.cache_clear()
    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    with pytest.raises(NotApplicable, match=r"torch .* has no FlexAttention"):
        baseline("flex", KEY)


def test_without_vllm_its_operator_is_absent():
    with pytest.raises(NotApplicable, match="vLLM is not installed"):
        baseline("vllm", KEY)


@pytest.fixture
def vllm(monkeypatch):
    """A vLLM with the custom ops that a test puts in."""
    ops = types.ModuleType("vllm._custom_ops")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", ops)
    return ops


V2 = (
    "paged_attention_v2(Tensor(a!) out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, Tensor query, "
    "Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, Tensor seq_lens, "
    "int block_size, int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, {scale} k_scale, {scale} v_scale, "
    "int tp_rank, int local, int stride, int block, int step) -> ()"
)


@pytest.mark.parametrize("scale", ["float", "Tensor"])
def test_vllms_v2_is_called_as_its_schema_asks(vllm, monkeypatch, scale):
    library = torch.library.Library(f"pav2_stub_{scale.lower()}", "DEF")
    library.define(V2.format(scale=scale))
    seen = []

    def stub(out, *rest):
        out.fill_(1)
        seen.append(rest)

    library.impl("paged_attention_v2", stub, "CPU")
    namespace = types.SimpleNamespace(paged_attention_v2=getattr(torch.ops, library.ns).paged_attention_v2)
    monkeypatch.setattr(torch.ops, "_C", namespace, raising=False)
    call, _ = inputs_of(KEY)
    baseline("vllm", KEY)(call)
    (rest,) = seen
    assert (call.out == 1).all() and rest[6] == 2 and rest[10:12] == (16, 600) and rest[13] == "auto"
    assert isinstance(rest[14], torch.Tensor) == (scale == "Tensor") and float(rest[14]) == 1.0
    assert rest[16:] == (0, 0, 0, 64, 0)


def test_the_forks_v1_gets_a_head_mapping(vllm, monkeypatch):
    seen = []
    vllm.paged_attention_v1 = lambda *arguments: seen.append(arguments)
    monkeypatch.setattr(torch.ops, "_C", types.SimpleNamespace(), raising=False)
    call, _ = inputs_of(KEY)
    baseline("vllm", KEY)(call)
    assert seen[0][4].tolist() == [0, 0, 0, 1, 1, 1] and seen[0][8:10] == (16, 600)
    with pytest.raises(NotApplicable, match="V1 of this fork"):
        baseline("vllm", KEY._replace(kv_cache_dtype="fp8_e4m3"))(call)


def test_a_vllm_without_kernels_or_that_does_not_load_is_absent(vllm, monkeypatch):
    monkeypatch.setattr(torch.ops, "_C", types.SimpleNamespace(), raising=False)
    with pytest.raises(NotApplicable, match="no paged_attention_v2 of its own"):
        baseline("vllm", KEY)
    monkeypatch.setattr(baselines.importlib, "import_module", lambda name: (_ for _ in ()).throw(OSError("no driver")))
    with pytest.raises(NotApplicable, match="does not load: no driver"):
        baseline("vllm", KEY)
