"""``paged_attention_extend`` as PyTorch and vLLM see it: refusals, registration, choice of a kernel, empty calls."""

import importlib

import pytest
import torch

from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.miss import NoKernelError
from pav2gen.runtime.choice.select import Table
from pav2gen.runtime.extend import check, op
from pav2gen.runtime.extend.cases import SENTINEL
from pav2gen.runtime.extend.oracle import row_ranges

from .extending import FLOAT, FP8, HALF, WINDOW, call_of, extend, kernel_of

MODEL = dict(num_heads=6, num_kv_heads=2, head_size=64, block_size=16, dtype=torch.float16)

good = call_of()
q, k, v, starts = good.query, good.key_cache, good.value_cache, good.query_start_loc
NEEDED = ("out", "query", "key_cache", "value_cache", "block_tables", "query_start_loc", "seq_lens")

REFUSED = {
    **{f"no {name}": ({name: None}, f"{name} must be a tensor, got None") for name in NEEDED},
    "query in 2 dimensions": ({"query": q[0]}, "query must be [tokens, heads, head size] in float16"),
    "query with strided heads": ({"query": torch.zeros(4, 6, 128).half()[:, :, ::2]}, "heads of a row"),
    "out of another dtype": ({"out": torch.zeros(4, 6, 64)}, "out must be like query, float16 [4, 6, 64]"),
    "out of more rows": ({"out": torch.zeros(5, 6, 64).half()}, "out must be like query"),
    "out with strides": ({"out": torch.zeros(4, 6, 128).half()[..., ::2]}, "out must be contiguous"),
    "keys in another dtype": ({"key_cache": k.float()}, "key_cache must be float16"),
    "values of another page": ({"value_cache": v[..., :8]}, "value_cache must be"),
    "half for an fp8 cache": ({"kv_cache_dtype": "fp8"}, "key_cache must be uint8"),
    "an unknown cache dtype": ({"kv_cache_dtype": "int4"}, "is not one of auto, fp8, fp8_e4m3, fp8_e5m2, int8"),
    "another number of KV heads": ({"num_kv_heads": 3}, "num_kv_heads is 3"),
    "another block size": ({"block_size": 32}, "block_size is 32"),
    "keys in 4 dimensions": ({"key_cache": k.flatten(3)}, "must be [blocks, kv heads, head size / x"),
    "a page with strides": ({"value_cache": v.transpose(2, 3).contiguous().transpose(2, 3)}, "must be contiguous"),
    "tables in int64": ({"block_tables": good.block_tables.long()}, "int32 [2, max blocks] for 2 seq_lens"),
    "tables of fewer sequences": ({"block_tables": good.block_tables[:1]}, "int32 [2, max blocks] for 2 seq_lens"),
    "tables with strides": ({"block_tables": good.block_tables.t().contiguous().t()}, "row of block_tables"),
    "lengths in int64": ({"seq_lens": good.seq_lens.long()}, "seq_lens must be contiguous int32 [seqs]"),
    "lengths in 2 dimensions": ({"seq_lens": good.seq_lens.view(1, 2)}, "seq_lens must be contiguous int32 [seqs]"),
    "offsets in int64": ({"query_start_loc": starts.long()}, "query_start_loc must be contiguous int32 [3] for 2"),
    "offsets without the last": ({"query_start_loc": starts[:2]}, "the first row of each sequence, then the last end"),
    "offsets with strides": ({"query_start_loc": torch.zeros(6).int()[::2]}, "with strides (2,)"),
    "a negative query length": ({"max_query_len": -1}, "max_query_len must not be negative, got -1"),
    "a negative length": ({"max_seq_len": -1}, "max_seq_len must not be negative, got -1"),
    "slopes of too few heads": ({"alibi_slopes": torch.ones(5)}, "alibi_slopes must be contiguous float32 [6]"),
    "sinks in half": ({"sinks": torch.ones(6).half()}, "sinks must be float32"),
    "lse of sequences": ({"lse": torch.ones(2, 6)}, "lse must be contiguous float32 [4, 6]"),
    "a softcap of 0": ({"softcap": 0.0}, "softcap must be a positive number"),
    "a scale that is not finite": ({"scale": float("nan")}, "scale must be finite in float32, got nan"),
    "an infinite scale": ({"scale": float("inf")}, "scale must be finite in float32, got inf"),
    "a scale beyond float32": ({"scale": 1e39}, "scale must be finite in float32, got 1e+39"),
    "a scale in words": ({"scale": "x"}, "scale must be a number, got the str 'x'"),
    "no scale": ({"scale": None}, "scale must be a number, got None"),
    "a query length with a point": ({"max_query_len": 5.0}, "max_query_len must be an int, got the float 5.0"),
    "a query length in words": ({"max_query_len": "5"}, "max_query_len must be an int, got the str '5'"),
    "no length": ({"max_seq_len": None}, "max_seq_len must be an int, got None"),
    "a length of 65 bits": ({"max_seq_len": 2**64}, "max_seq_len must be an int of 64 bits, got an int of 65 bits"),
    "a softcap in words": ({"softcap": "x"}, "softcap must be a number, got the str 'x'"),
    "half a token": ({"sliding_window": 8.5}, "sliding_window must be an int, got the float 8.5"),
    "no cache dtype": ({"kv_cache_dtype": None}, "kv_cache_dtype must be a text, got None"),
    "a modification's number": ({"modification": 3}, "modification must be a text, got the int 3"),
    "a backend's number": ({"backend": 3}, "backend must be a text, got the int 3"),
    "a cache without blocks": ({"key_cache": k[:0], "value_cache": v[:0]}, "key_cache has 0 blocks"),
    "a cache at an odd address": (
        {"key_cache": torch.zeros(k.numel() + 1, dtype=k.dtype)[1:].view(k.shape)},
        "key_cache must start at a multiple of 16 bytes; its address is 2 bytes past such a multiple",
    ),
    "a window of 0": ({"sliding_window": 0}, "sliding_window must be 1 or more tokens"),
    "a scale for too many heads": ({"k_scale": torch.ones(3)}, "k_scale must be a float, one float32 element or"),
    "an unknown backend": ({"backend": "triton"}, "neither 'torch' nor 'cuda'"),
    "a tensor without a modification": (
        {"modification_tensors": {"bias": torch.ones(6)}},
        "a call without a modification has no tensor bias",
    ),
}


@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_offsets_that_fall_are_refused_on_the_cpu(extending, backend):
    """The layout of the call is known, so that only its values differ. Padding and empty sequences do not fall."""
    call = call_of((2, 0, 2), (5, 7, 0))
    extend(extending, call)
    fallen = torch.tensor([0, 3, 2, 4], dtype=torch.int32)
    out = call.out.clone()
    with pytest.raises(ValueError, match=r"^paged_attention_extend: query_start_loc must not fall, and entry 2 is 2 "):
        extend(extending, call, out=out, query_start_loc=fallen, backend=backend)
    assert torch.equal(out, call.out)
    check.check_starts(torch.tensor([-3, 0, 0, 4, 900, 900], dtype=torch.int32))
    check.check_starts(fallen.to("meta"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(extending, name):
    changes, sentence = REFUSED[name]
    outputs = [tensor.clone() for tensor in (good.out, good.lse)]
    with pytest.raises(ValueError, match=r"^paged_attention_extend: ") as raised:
        extend(extending, good, **{"out": outputs[0], "lse": outputs[1], **changes})
    assert sentence in str(raised.value) and "\n" not in str(raised.value)
    assert all((tensor == SENTINEL).all() for tensor in outputs), "something was written"


def test_one_tensor_without_data_is_refused(extending):
    for name in ("query", "block_tables", "query_start_loc", "seq_lens"):
        with pytest.raises(ValueError, match=r"^paged_attention_extend: all tensors must be on one device"):
            extend(extending, good, **{name: getattr(good, name).to("meta")})


def arguments(call):
    """The arguments of the registered operator for a call."""
    return (
        *(call.out, call.query, call.key_cache, call.value_cache, call.scale, call.block_tables),
        *(call.query_start_loc, call.seq_lens, call.max_query_len, call.max_seq_len, None, "auto", 1.0, 1.0),
        *(None, None, None, None, None, "", [], call.lse, ""),
    )


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck is of torch 2.4 and later")
def test_opcheck(extending):
    results = torch.library.opcheck(extending.extender.op, arguments(call_of()))
    assert set(results.values()) == {"SUCCESS"}


def test_a_compiled_function_takes_the_operator_whole(extending):
    def step(out, query):
        extending.extender.op(out, query, *arguments(good)[2:])
        return out + 1

    own = good.out.clone(), good.out.clone()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(own[0], good.query), step(own[1], good.query))
    assert torch.equal(*own) and not (own[0] == SENTINEL).any()


def test_supports_and_check_model_know_the_operator(extending):
    assert extending.supports(**MODEL, operator="extend") and extending.supports(**MODEL, operator="cache")
    assert extending.supports(**MODEL, kv_cache_dtype="fp8", operator="extend")
    assert not extending.supports(**{**MODEL, "num_heads": 8}, operator="extend")
    assert not extending.supports(**MODEL, operator="prefill")
    extending.check_model(6, 2, 64, 16, torch.float16, operator="extend")
    with pytest.raises(extending.NoKernelError, match=r"no extend kernel for .*gqa_ratio 4"):
        extending.check_model(8, 2, 64, 16, torch.float16, operator="extend")
    with pytest.raises(ValueError, match=r"^check_model: operator 'prefill' is not one of decode, extend, cache"):
        extending.check_model(6, 2, 64, 16, torch.float16, operator="prefill")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": "8"}, "block_size must be an int, got the str '8'"),
        ({"head_size": 64.0}, "head_size must be an int, got the float 64.0"),
        ({"num_heads": "24"}, "num_heads must be an int, got the str '24'"),
        ({"tp_size": None}, "tp_size must be an int, got None"),
        ({"softcap": "30"}, "softcap must be a number, got the str '30'"),
        ({"sliding_window": "30"}, "sliding_window must be an int, got the str '30'"),
        ({"modification": 3}, "modification must be a text, got the int 3"),
        ({"sinks": torch.zeros(8)}, "sinks must be True or False, got a Tensor"),
        ({"sinks": None}, "sinks must be True or False, got None"),
        ({"alibi": "x"}, "alibi must be True or False, got the str 'x'"),
        ({"blocksparse": 1}, "blocksparse must be True or False, got the int 1"),
        ({"operator": ["decode"]}, "operator must be a text, got a list"),
    ],
)
def test_check_model_names_an_argument_of_a_wrong_type(extending, change, words):
    with pytest.raises(ValueError, match=r"^check_model: ") as raised:
        extending.check_model(**{**MODEL, **change})
    assert str(raised.value) == f"check_model: {words}"
    if "tp_size" not in change:
        assert not extending.supports(**{**MODEL, **change})


def row(key=HALF, **options):
    return Row("pav2_a", "a", key, 512, "a.torch_kernels.x", "a/x.cu", 0, 0, 16, 64, operator="extend")._replace(
        **options
    )


def test_a_key_that_is_built_for_decode_alone_names_its_spec():
    table = Table([row(), row(FP8, operator="decode", spec="b")], files={"b": "mine.yaml"}, operator="extend")
    with pytest.raises(NoKernelError) as raised:
        table.serving(FP8)
    assert str(raised.value).startswith(f"no extend kernel for {FP8}: mine.yaml builds this key for decode; ")
    assert str(raised.value).endswith("add extend to its operators, then: pav2gen build mine.yaml")


def test_a_key_that_is_built_for_extend_alone_names_its_spec():
    with pytest.raises(NoKernelError) as raised:
        Table([row(FP8, spec="b")], files={"b": "mine.yaml"}).serving(FP8)
    assert str(raised.value).startswith(f"no decode kernel for {FP8}: mine.yaml builds this key for extend; ")
    assert str(raised.value).endswith("add decode to its operators, then: pav2gen build mine.yaml")


def test_a_package_without_extend_kernels_says_how_to_build_some():
    with pytest.raises(NoKernelError, match=r"operators: \[decode, extend\] in a spec, then: pav2gen build"):
        Table([], operator="extend").serving(HALF)


@pytest.mark.parametrize(("max_query_len", "preferred"), [(1, True), (8, True), (9, False), (2048, False)])
def test_the_cuda_kernel_is_preferred_up_to_its_query_length(max_query_len, preferred):
    assert bool(op.preferring_cuda([row(cuda_query_len=8)], max_query_len)) is preferred
    assert op.preferring_cuda([row(cuda_query_len=8, torch="")], max_query_len)


def test_maxima_are_bounded_by_shapes_before_the_choice(extending, monkeypatch):
    asked = []
    monkeypatch.setattr(extending.kernels, "backend", lambda _, rows, *rest: asked.append(list(rows)) or "torch")
    module = extending.kernels.module(extending.extender.table.serving(HALF)[0])
    given = []
    monkeypatch.setattr(module, "paged_attention_extend", given.append)
    far = good._replace(max_seq_len=2**31 - 1, max_query_len=2**31 - 1)
    extending.extender.run(*arguments(far))
    assert asked == [[]], "no row prefers CUDA, because there is no CUDA kernel"
    assert given[0].max_seq_len == good.block_tables.shape[1] * 16 and given[0].max_query_len == 4


def test_the_policy_of_host_lengths_reaches_the_kernel(extending, monkeypatch):
    module = extending.kernels.module(extending.extender.table.serving(HALF)[0])
    operator = importlib.import_module(f"{extending.__name__}.runtime.extend.op")
    given = []
    monkeypatch.setattr(module, "paged_attention_extend", given.append)
    monkeypatch.setattr(operator, "may_read", lambda device, policy: policy != "auto")
    extending.extender.op(*arguments(good))
    assert [each.read_lengths for each in given] == [False]


EMPTY = {
    "no sequences": ((), (), {"trailing_rows": 2}),
    "no rows": ((0, 0), (5, 0), {}),
    "no new tokens": ((2, 1), (5, 0), {"max_query_len": 0}),
}


@pytest.mark.parametrize("name", EMPTY)
def test_calls_without_rows_write_nothing(extending, name):
    query_lens, contexts, options = EMPTY[name]
    done = extend(extending, call_of(query_lens, contexts, **options))
    assert (done.out == SENTINEL).all() and (done.lse == SENTINEL).all()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("key", [FLOAT, WINDOW])
def test_rows_past_max_query_len_are_kept_and_the_others_do_not_move(extending, key, captured):
    call = call_of((5, 2, 3), (20, 33, 0), key)._replace(read_lengths=not captured)
    kernel = kernel_of(extending, key)
    whole, cut = kernel.run(call), kernel.run(call._replace(max_query_len=2))
    computed = [0, 1, 5, 6, 7, 8]
    torch.testing.assert_close(cut.out[computed], whole.out[computed], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(cut.lse[computed], whole.lse[computed], rtol=2e-6, atol=1e-6)
    kept = [2, 3, 4, 9]
    assert (cut.out[kept] == SENTINEL).all() and (cut.lse[kept] == SENTINEL).all()


@pytest.mark.parametrize("sinks", [None, torch.arange(6.0)])
def test_a_call_without_tokens_attends_nothing(sinks):
    call = call_of((2, 0, 3), (0, 0, 0), max_seq_len=0, leading_rows=1, trailing_rows=2)._replace(sinks=sinks)
    op.launch(pytest.fail, call)
    owned = [row for rows in row_ranges(call) for row in rows]
    assert owned == [1, 2, 3, 4, 5]
    others = [row for row in range(call.out.shape[0]) if row not in owned]
    assert not call.out[owned].any() and (call.out[others] == SENTINEL).all()
    expected = torch.full((6,), -torch.inf) if sinks is None else sinks
    assert (call.lse[owned] == expected).all() and (call.lse[others] == SENTINEL).all()


@pytest.mark.parametrize("bounds", [[0, 3, 2, 9], [-5, 3, 3, 4], [9, 0, 900, 901], [7, 7, 7, 7], [0, 2**31 - 1, 1, 2]])
def test_the_rows_that_sequences_own(bounds):
    call = call_of((3, 2, 4), (0, 0, 0), max_query_len=3)
    call = call._replace(query_start_loc=torch.tensor(bounds, dtype=torch.int32))
    owned = sorted({row for rows in row_ranges(call) for row in rows})
    assert op.owned_rows(call).nonzero().flatten().tolist() == owned
    assert all(0 <= row < 9 for row in owned)


def test_the_table_runs_the_kernel(extending):
    for key in (HALF, FP8):
        kernel = kernel_of(extending, key)
        kernel.check_table(kernel.case([2, 1, 4], [16, 17, 0], trailing_rows=1))
