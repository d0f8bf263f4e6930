"""The operator as PyTorch and vLLM see it: registration, compilation, model load, environment, empty calls."""

import importlib
import sys

import pytest
import torch

from pav2gen.runtime.choice import models
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, copy_outputs, make
from pav2gen.runtime.testing.oracle import excess, reference

from .conftest import GENERATED, load

KEY = Key(256, 6, 16, "float16", "auto", False, False)
MODEL = dict(num_heads=24, num_kv_heads=4, head_size=256, block_size=16, dtype=torch.float16)


def arguments(call):
    """The arguments of the registered operator for a call."""
    return (
        *(call.out, *call.scratch, call.query, call.key_cache, call.value_cache, call.scale),
        *(call.block_tables, call.seq_lens, call.max_seq_len, call.alibi_slopes, "auto", 1.0, 1.0, None, None),
        *(0, 0, 0, 64, 0, None, None, None, "", [], None, "", 0),
    )


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck is of torch 2.4 and later")
def test_opcheck(package):
    results = torch.library.opcheck(package.operator.op, arguments(make(Case(KEY, 512, (5, 17, 0)))))
    assert set(results.values()) == {"SUCCESS"}


def test_a_compiled_function_takes_the_operator_whole(package):
    call = make(Case(KEY, 512, (5, 17, 600)))

    def step(out, exp_sums, max_logits, tmp_out, query, keys, values, tables, lens):
        package.paged_attention_v2(
            *(out, exp_sums, max_logits, tmp_out, query, keys, values, 2, call.scale, tables, lens, 16, 600, None),
            *("auto", 1.0, 1.0),
        )
        return out + 1

    def run(function):
        own = copy_outputs(call)
        tensors = (own.query, own.key_cache, own.value_cache, own.block_tables, own.seq_lens)
        return function(own.out, *own.scratch, *tensors)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(compiled), run(step))
    assert not run(step).isnan().any()


def test_fake_tensors_go_through(package):
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = arguments(make(Case(KEY, 512, (5,))))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in real]
        assert package.operator.op(*fake) is None


def test_two_packages_live_in_one_process(package):
    other = load(GENERATED, "pav2_another_copy")
    call = make(Case(KEY, 512, (40,)))
    outs = []
    for copy in (package, other, load(GENERATED, "pav2_another_copy")):  # the last: the same name once more
        done = copy_outputs(call)
        copy.operator.op(*arguments(done))
        outs.append(done.out)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
    assert package.operator.op is not other.operator.op


def test_gradients_are_not_asked_for(package):
    call = make(Case(KEY, 512, (40,)))
    package.operator.op(*arguments(call._replace(query=call.query.requires_grad_())))
    assert not call.out.requires_grad


@pytest.mark.parametrize("seq_lens, max_seq_len", [((), 0), ((), 100), ((0, 0), 0), ((5, 0), 0)])
def test_calls_without_tokens(package, seq_lens, max_seq_len):
    call = make(Case(KEY, 512, seq_lens, max_seq_len=max_seq_len, spare_partitions=1))
    package.operator.op(*arguments(call))
    assert not call.out.any() and not call.scratch.exp_sums.any()
    assert (call.scratch.max_logits == -torch.inf).all()


def test_padding_rows_of_a_captured_graph(package):
    call = make(Case(KEY, 512, (700, 1, 1), poison=False))  # vLLM pads with length 1 and block 0
    call.block_tables[1:] = 0
    truth = reference(call, "auto", 512)
    package.operator.op(*arguments(call))
    assert excess(call.out, truth.out) <= 1


def test_lengths_of_uninitialised_metadata_are_clamped(package):
    call = make(Case(KEY, 512, (600, 600)))
    call.seq_lens.copy_(torch.tensor([0x7FFF7FFF, -5], dtype=torch.int32))
    truth = reference(call, "auto", 512)
    package.operator.op(*arguments(call))
    assert excess(call.out, truth.out) <= 1 and not call.out[1].any()


def test_work_is_bounded_by_what_the_block_table_holds(package):
    call = make(Case(KEY, 512, (600, 20)))
    wide = copy_outputs(call)._replace(max_seq_len=2**31 - 1)
    probe = importlib.import_module(f"{package.__name__}.runtime.testing.probe")
    calls, again = (
        probe.count_calls(lambda each=each: package.operator.run(*arguments(each)[:-1], 512)) for each in (call, wide)
    )
    assert again == calls
    assert torch.equal(wide.out, call.out) and torch.equal(wide.scratch.exp_sums, call.scratch.exp_sums)


def test_offsets_pass_two_to_the_31(package):
    # Blocks 2**31 elements apart: memory that is asked for and never touched.
    small = make(Case(KEY, 512, (40,), kv_heads=1))
    stride = 2**31 // 2 + 2**20
    blocks = small.key_cache.shape[0]

    def spread(cache):
        storage = torch.empty(stride * (blocks - 1) + cache[0].numel(), dtype=cache.dtype)
        wide = storage.as_strided(cache.shape, (stride, *cache.stride()[1:]))
        return wide.copy_(cache)

    assert stride * (blocks - 1) > 2**31
    call = copy_outputs(small)._replace(key_cache=spread(small.key_cache), value_cache=spread(small.value_cache))
    package.operator.op(*arguments(small))
    package.operator.op(*arguments(call))
    assert torch.equal(small.out, call.out) and not call.out.isnan().any()


def test_a_miss_comes_before_anything_is_written(package):
    call = make(Case(KEY._replace(gqa_ratio=11), 512, (5,)))
    with pytest.raises(package.NoKernelError, match=r"gqa_ratio 11 .*Nearest: .*pav2gen build specs/"):
        package.operator.op(*arguments(call))
    assert call.out.isnan().all() and call.scratch.max_logits.isnan().all()


def test_backend_of_the_environment(package, monkeypatch):
    monkeypatch.setenv("PAV2_BACKEND", "opencl")
    with pytest.raises(ValueError, match=r"backend 'opencl' is neither 'torch' nor 'cuda'"):
        package.operator.op(*arguments(make(Case(KEY, 512, (5,)))))


def test_the_spec_s_policy_of_host_lengths_reaches_the_kernel(package, monkeypatch):
    operator = importlib.import_module(f"{package.__name__}.runtime.op")
    asked = []
    monkeypatch.setattr(operator, "may_read", lambda device, policy: asked.append((device.type, policy)) or False)
    call = make(Case(KEY, 512, (5, 600)))
    kernel = importlib.import_module(f"{package.__name__}.{package.operator.table.serving(KEY)[0].torch}")
    given = []
    monkeypatch.setattr(kernel, "paged_attention", given.append)
    package.operator.op(*arguments(call)[:-1], package.operator.table.serving(KEY)[0].partition_size)
    assert asked == [("cpu", "auto")] and [each.read_lengths for each in given] == [False]


@pytest.mark.parametrize("capturing", [False, True])
def test_the_choice_is_told_of_a_capture(package, monkeypatch, capturing):
    table, told = package.operator.table, []

    def choose(*args):
        told.append(args[7])
        return type(table).choose(table, *args)

    monkeypatch.setattr(sys.modules[f"{package.__name__}.runtime.op"], "is_captured", lambda device: capturing)
    monkeypatch.setattr(table, "choose", choose)
    package.operator.run(*arguments(make(Case(KEY, 512, (5, 17)))))
    assert told == [capturing]


def test_supports(package):
    assert package.supports(**MODEL)
    assert package.supports(**{**MODEL, "dtype": "float16"}, kv_cache_dtype="fp8")
    assert not package.supports(**{**MODEL, "num_heads": 44})
    assert not package.supports(**{**MODEL, "num_heads": 23})
    assert not package.supports(**MODEL, kv_cache_dtype="int4")
    assert not package.supports(**MODEL, alibi=True)
    assert not package.supports(**{**MODEL, "num_kv_heads": None}) and not package.supports(
        **{**MODEL, "num_heads": "24"}
    )


#: Values that no model has, of types that look like numbers.
STRANGE = (10**400, -(2**70), torch.zeros(2), torch.ones(2, dtype=torch.int64), "1", b"1", [], float("nan"))


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("axis", [*MODEL, "kv_cache_dtype", "softcap", "sliding_window", "modification", "alibi"])
def test_a_strange_value_is_not_supported_and_raises_nothing(package, axis, value):
    assert not package.supports(**{**MODEL, axis: value})
    assert not package.prefer_v2(2000, 2, **{**MODEL, axis: value})
    with pytest.raises((ValueError, package.NoKernelError)):
        package.check_model(**{**MODEL, axis: value})


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_check_model_takes_what_vllm_shards(package, tp_size):
    package.check_model(24, 4, 256, 16, torch.float16, "auto", tp_size)


def test_check_model_refuses_at_load(package):
    with pytest.raises(package.NoKernelError, match=r"gqa_ratio 24"):
        package.check_model(24, 1, 256, 16, torch.float16, "auto", 1)
    with pytest.raises(ValueError, match=r"24 query and 4 KV heads cannot be divided evenly among 5 ranks"):
        package.check_model(24, 4, 256, 16, torch.float16, "auto", 5)
    with pytest.raises(ValueError, match=r"-24 query and 4 KV heads cannot be divided evenly among 1 ranks"):
        package.check_model(-24, 4, 256, 16, torch.float16, "auto", 1)
    with pytest.raises(ValueError, match=r"24 query and 0 KV heads cannot be divided evenly among 1 ranks"):
        package.check_model(24, 0, 256, 16, torch.float16, "auto", 1)


def test_prefer_v2_above_the_threshold_only(package, monkeypatch):
    ask = {**MODEL, "num_seqs": 1}
    assert not package.prefer_v2(8192, **ask) and package.prefer_v2(8193, **ask)
    assert not package.prefer_v2(600, **{**ask, "num_seqs": 256})
    assert package.prefer_v2(16, **ask, kv_cache_dtype="fp8")  # the fork's V1 would drop it
    assert not package.prefer_v2(100_000, **{**ask, "num_heads": 44})
    assert not package.prefer_v2(None, **ask)
    monkeypatch.setenv("PAV2_DISABLE", "true")
    assert not package.prefer_v2(100_000, **ask)


def test_sharding_is_vllm_s():
    assert models.shard(24, 4, 8) == (3, 1)
    assert models.shard(16, 2, 4) == (4, 1)
    assert models.shard(64, 8, 8) == (8, 1)


def test_kernels_are_imported_when_they_are_needed(package):
    name = "pav2_lazy_copy"
    lazy = load(GENERATED, name)
    assert not [module for module in sys.modules if module.startswith(f"{name}.") and "torch_kernels" in module]
    lazy.operator.op(*arguments(make(Case(KEY, 512, (5,)))))
    assert importlib.import_module(f"{name}.{lazy.operator.table.serving(KEY)[0].torch}")
